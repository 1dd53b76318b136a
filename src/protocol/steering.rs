//! Controls of how much of a conversation is kept: the dial, pins, and the behaviour when memory
//! runs out.

use super::{LogEntry, Token};
use crate::words::words;

/// A message that is pinned, or could be.
#[derive(Clone, Debug, PartialEq)]
pub struct Pinned {
    pub text: String,
    pub tokens: usize,
    /// Most bytes that the pin keeps: every token in every head.
    pub bytes: u64,
    /// Share of the tokens' slots, over all heads, that is still stored.
    pub stored: f64,
    /// Share of them that is in far pages, which a pin makes near.
    pub far: f64,
    /// Whether it is pinned now.
    pub done: bool,
}

/// The log of a conversation after a change between two turns.
#[derive(Clone, Debug, PartialEq)]
pub struct LogChange {
    /// Like [`TurnReport`](super::TurnReport): the first entries of the log reported last, then
    /// `log`.
    pub log_base: usize,
    pub log: Vec<LogEntry>,
    /// The token after the log, which is not fed yet.
    pub pending: Option<Token>,
}

/// Where the dial is set, which steers how much of a conversation is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dial {
    /// As the model was trained.
    Trained,
    /// A step towards a smaller compression ratio, or a larger one.
    More,
    Less,
    /// This expected compression ratio.
    Ratio(f32),
}

/// Behaviour when memory or a limit does not suffice for a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// The turn ends.
    #[default]
    Stop,
    /// The tokens that the heads marked most strongly are dropped, and the turn continues. A cache
    /// without decisions ends the turn.
    Forget,
    /// Like `Forget`, but a cache without decisions drops its oldest tokens except the first few.
    Window,
}

words! { WhenFull, "known", { Forget = "forget", Window = "window", Stop = "stop" } }
