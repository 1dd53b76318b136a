//! The recall test: whether a model still knows a text.

use super::Piece;
use std::ops::Range;

/// A question for a text of the conversation, which the engine asks in a fork of it.
#[derive(Clone, Debug, Default)]
pub struct RecallRequest {
    /// The conversation rendered by the template, with a message that asks to repeat the text,
    /// including the generation prompt.
    pub prompt: Vec<Piece>,
    /// That message alone, rendered in the same way.
    pub alone: Vec<Piece>,
    pub text: String,
    /// The positions of its tokens, if the text was chosen by them; its spelling may then hold
    /// control tokens.
    pub tokens: Option<Range<usize>>,
    /// Bytes of the text that the message gives away. The tokens after them are scored.
    pub cue_bytes: usize,
}

/// The result of a recall test.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recalled {
    /// How often the conversation holds the text. 0: it was never said.
    pub times: usize,
    /// The beginning of the text, which was given.
    pub cue: String,
    /// Lanes of the cache: layers x KV heads.
    pub lanes: u32,
    /// The scored tokens, in order.
    pub tokens: Vec<RecalledToken>,
}

/// A scored token of a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecalledToken {
    /// Empty for a token that ends inside a character.
    pub text: String,
    /// With the conversation.
    pub known: Guess,
    /// Without the conversation: what the words around it alone give away. `None` if there was no
    /// room to ask.
    pub guessed: Option<Guess>,
    /// Where the token was when the answer began, where it was said first; `None` if it was never
    /// said.
    pub evidence: Option<Evidence>,
}

/// Lanes by where they have a token. All others have it nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    pub stored: u32,
    /// In a far page that they read, and in one that they do not read.
    pub read: u32,
    pub unread: u32,
}

impl Evidence {
    /// Lanes that attend to the token.
    pub fn attended(self) -> u32 {
        self.stored + self.read
    }
}

/// Prediction of a model at a token, given those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Guess {
    /// Log-probability of the token, natural logarithm.
    pub logprob: f64,
    /// Whether the token is the greedy choice.
    pub is_choice: bool,
}

impl Recalled {
    /// Number of tokens that are the greedy choice with the conversation.
    pub fn remembered(&self) -> usize {
        self.tokens.iter().filter(|t| t.known.is_choice).count()
    }

    /// Number of tokens that are the greedy choice without the conversation; `None` if that was not
    /// asked.
    pub fn guessed(&self) -> Option<usize> {
        self.tokens.iter().try_fold(0, |n, t| Some(n + usize::from(t.guessed?.is_choice)))
    }

    /// Mean shares of the lanes that stored the tokens, that had them far and read them, and that
    /// had them far and did not read them; `None` if they were never said.
    pub fn presence(&self) -> Option<[f64; 3]> {
        let all = self.tokens.len() as u64 * u64::from(self.lanes);
        let of_all = |of: fn(Evidence) -> u32| {
            let lanes = self.tokens.iter().try_fold(0, |n, t| Some(n + u64::from(of(t.evidence?))))?;
            (all > 0).then(|| lanes as f64 / all as f64)
        };
        Some([of_all(|e| e.stored)?, of_all(|e| e.read)?, of_all(|e| e.unread)?])
    }

    /// Mean log-probabilities of the tokens, with the conversation and without.
    pub fn mean_logprobs(&self) -> (f64, Option<f64>) {
        let n = self.tokens.len().max(1) as f64;
        let known: f64 = self.tokens.iter().map(|t| t.known.logprob).sum();
        let guessed = self.tokens.iter().try_fold(0.0, |sum, t| Some(sum + t.guessed?.logprob));
        (known / n, guessed.map(|sum| sum / n))
    }
}
