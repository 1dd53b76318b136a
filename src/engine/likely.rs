//! Log-probabilities of an answer's tokens while it is generated, before temperature, filters and
//! what is added to logits. A token is reported with the text that begins in it: what a stop text
//! cuts off, and an end token, are not.

use super::reply::{Spoken, flat_of};
use crate::protocol::{Likely, Token, TokenChoice};
use crate::sampler::log_softmax;
use crate::tokenizer::Tokenizer;
use crate::tokenizer::flat::{CLOSE, OPEN};
use std::collections::VecDeque;

/// The text of a token alone, or of a part of an answer, without the marks of control tokens.
pub(super) fn shown(text: &str) -> String {
    text.replace([OPEN, CLOSE], "")
}

/// A token and the `k` most probable others, with their log-probabilities. `logits`: `[vocab]`.
pub(super) fn weigh(logits: &[f32], said: Token, k: usize) -> Vec<(Token, f64)> {
    let logprobs = log_softmax(logits);
    let logprob = |token: &Token| logprobs[*token as usize];
    let mut others: Vec<Token> = (0..logits.len() as Token).filter(|&token| token != said).collect();
    if others.len() > k {
        if k > 0 {
            others.select_nth_unstable_by(k - 1, |a, b| logprob(b).total_cmp(&logprob(a)));
        }
        others.truncate(k);
    }
    others.sort_by(|a, b| logprob(b).total_cmp(&logprob(a)));
    std::iter::once(said).chain(others).map(|token| (token, logprob(&token))).collect()
}

/// The result of [`weigh`] with its texts. `said`: the text of the first.
pub(super) fn choice(tokenizer: &Tokenizer, weighed: Vec<(Token, f64)>, said: String) -> TokenChoice {
    let mut likely = weighed.into_iter();
    let logprob = likely.next().map_or(f64::NEG_INFINITY, |(_, logprob)| logprob);
    let other = |(token, logprob)| Likely { text: shown(&flat_of(tokenizer, [token]).0), logprob };
    TokenChoice { said: Likely { text: said, logprob }, others: likely.map(other).collect() }
}

/// The tokens of one answer that were weighed and not reported yet.
pub(super) struct Waiting {
    /// Others that are reported beside each token.
    k: usize,
    /// Each with the bytes of the answer's text before it.
    tokens: VecDeque<(usize, TokenChoice)>,
    /// Bytes of the answer's text that its tokens spell, and that were reported.
    spelled: usize,
    reported: usize,
}

impl Waiting {
    pub fn new(k: usize) -> Self {
        Self { k, tokens: VecDeque::new(), spelled: 0, reported: 0 }
    }

    /// Takes a token of the answer with the logits that it was sampled from.
    pub fn push(&mut self, logits: &[f32], token: Token, spelled: usize, tokenizer: &Tokenizer) {
        let text = shown(&flat_of(tokenizer, [token]).0);
        self.tokens.push_back((self.spelled, choice(tokenizer, weigh(logits, token, self.k), text)));
        self.spelled += spelled;
    }

    /// A token belongs to a thought: so do those before it whose text is not out.
    pub fn drop_thought(&mut self, spoken: &Spoken) {
        self.tokens.clear();
        if spoken.was_thought {
            self.reported = 0;
        }
        self.spelled = self.reported;
    }

    /// The tokens that begin in the next `bytes` of the answer's text, which are reported now, each
    /// with the byte of them at which it begins.
    pub fn take(&mut self, bytes: usize) -> Vec<(usize, TokenChoice)> {
        let before = self.reported;
        self.reported += bytes;
        let n = self.tokens.iter().take_while(|(start, _)| *start < self.reported).count();
        self.tokens.drain(..n).map(|(start, token)| (start.saturating_sub(before), token)).collect()
    }
}
