//! What is added to logits before a token is sampled: biases of tokens, and penalties of the tokens
//! that the answer has. The prompt does not count.

use crate::protocol::{Adjustment, Ask, SamplingState, Token};
use std::collections::HashMap;

/// The adjustments of one answer.
#[derive(Clone, Debug)]
pub(super) struct Adjust {
    presence: f32,
    frequency: f32,
    bias: HashMap<Token, f32>,
    /// How often the answer has each of its tokens.
    counts: HashMap<Token, u32>,
}

impl Adjust {
    /// `None` where nothing is added.
    pub fn of(ask: &Ask) -> Option<Self> {
        ask.adjusts().then(|| Self {
            presence: ask.sampling.presence_penalty,
            frequency: ask.sampling.frequency_penalty,
            bias: ask.logit_bias.iter().copied().collect(),
            counts: HashMap::new(),
        })
    }

    /// The answer has another token.
    pub fn push(&mut self, token: Token) {
        *self.counts.entry(token).or_default() += 1;
    }

    /// What is added to the logits of the token after the answer and `drafts`. Beyond as many
    /// tokens as a row may have, the smallest amounts are left out.
    pub fn row(&self, drafts: &[Token]) -> Vec<Adjustment> {
        let mut counts = self.counts.clone();
        drafts.iter().for_each(|&draft| *counts.entry(draft).or_default() += 1);
        let mut row = self.bias.clone();
        for (token, n) in counts {
            *row.entry(token).or_default() -= self.presence + self.frequency * n as f32;
        }
        let mut row: Vec<_> = row.into_iter().map(|(token, add)| Adjustment { token, add }).collect();
        if row.len() > SamplingState::MOST_ADJUSTED {
            row.sort_by(|a, b| b.add.abs().total_cmp(&a.add.abs()).then(a.token.cmp(&b.token)));
            row.truncate(SamplingState::MOST_ADJUSTED);
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::SamplingParams;

    #[test]
    fn each_token_of_the_answer_costs_once_and_by_its_count() {
        let sampling = SamplingParams { presence_penalty: 1.0, frequency_penalty: 0.25, ..SamplingParams::default() };
        let ask = Ask { sampling, logit_bias: vec![(7, 3.0), (9, -100.0)], ..Ask::default() };
        let mut adjust = Adjust::of(&ask).unwrap();
        [7, 7, 8].into_iter().for_each(|token| adjust.push(token));
        let sorted = |row: Vec<Adjustment>| {
            let mut row: Vec<_> = row.into_iter().map(|a| (a.token, a.add)).collect();
            row.sort_by_key(|(token, _)| *token);
            row
        };
        assert_eq!(sorted(adjust.row(&[])), [(7, 1.5), (8, -1.25), (9, -100.0)]);
        assert_eq!(sorted(adjust.row(&[8, 5])), [(5, -1.25), (7, 1.5), (8, -1.5), (9, -100.0)]);
        assert!(Adjust::of(&Ask::default()).is_none());
        // More than fit: what counts most stays, then the first.
        let most = SamplingState::MOST_ADJUSTED as Token;
        let many = (0..most + 9).map(|token| (token, if token > most { 2.0 } else { 1.0 })).collect();
        let row = sorted(Adjust::of(&Ask { logit_bias: many, ..Ask::default() }).unwrap().row(&[]));
        let kept = (0..most - 8).chain(most + 1..most + 9);
        assert_eq!(row.iter().map(|(token, _)| *token).collect::<Vec<_>>(), kept.collect::<Vec<_>>());
    }
}
