//! What is added to logits before a token is sampled: biases of tokens, and penalties of the tokens
//! that the answer has. The prompt does not count.

use crate::protocol::{Ask, Token};
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
        ask.adjusts().next()?;
        Some(Self {
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

    /// What is added to the logits of the token after the answer and `drafts`.
    pub fn row(&self, drafts: &[Token]) -> Vec<(Token, f32)> {
        let mut counts = self.counts.clone();
        drafts.iter().for_each(|&draft| *counts.entry(draft).or_default() += 1);
        let mut row = self.bias.clone();
        for (token, n) in counts {
            *row.entry(token).or_default() -= self.presence + self.frequency * n as f32;
        }
        row.into_iter().collect()
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
        assert_eq!(ask.adjusts().collect::<Vec<_>>(), ["presence_penalty", "frequency_penalty", "logit_bias"]);
        let mut adjust = Adjust::of(&ask).unwrap();
        [7, 7, 8].into_iter().for_each(|token| adjust.push(token));
        let sorted = |mut row: Vec<(Token, f32)>| {
            row.sort_by_key(|(token, _)| *token);
            row
        };
        assert_eq!(sorted(adjust.row(&[])), [(7, 1.5), (8, -1.25), (9, -100.0)]);
        assert_eq!(sorted(adjust.row(&[8, 5])), [(5, -1.25), (7, 1.5), (8, -1.5), (9, -100.0)]);
        assert!(Adjust::of(&Ask::default()).is_none());
    }
}
