//! `window`: the newest tokens and a few attention sinks (StreamingLLM, arXiv 2309.17453), for any
//! model and without training. It is DMS whose every decision is positive.

use super::dms::{Dms, Shift};

/// First tokens of a sequence that are kept.
pub const SINKS: usize = 4;

/// A lane stores at most `budget` slots: the first `sinks` tokens and the newest tokens. Keys keep
/// their true positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Slots of a lane, more than `sinks`.
    pub budget: usize,
    /// Number of first tokens of a sequence that are kept: [`SINKS`], or 0 for the model's own
    /// window.
    pub sinks: usize,
}

impl Window {
    /// The decision of every token.
    pub const DECISION: f32 = 1.0;

    /// A window that the user chooses.
    pub fn new(budget: usize) -> Self {
        Self { budget, sinks: SINKS }
    }

    /// Window of a model's own sliding-window attention: the newest `tokens`.
    pub fn of_model(tokens: usize) -> Self {
        Self { budget: tokens, sinks: 0 }
    }

    /// Whether it is the model's own. It cannot be switched off, and nothing outlives it.
    pub fn is_of_model(&self) -> bool {
        self.sinks == 0
    }

    pub fn rule(&self) -> Dms {
        Dms { window: self.budget - self.sinks - 1, shift: Shift::Same, sinks: self.sinks, dial: 0.0 }
    }
}
