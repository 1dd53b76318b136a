//! `window`: the newest tokens and a few attention sinks (StreamingLLM, arXiv 2309.17453), for any
//! model and without training. It is DMS whose every decision is positive.

use super::dms::{Dms, Shift};

/// First tokens of a sequence that are kept.
pub const SINKS: usize = 4;

/// A lane stores at most `budget` slots: [`SINKS`] first tokens and the newest ones. Keys keep
/// their true positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Slots of a lane, more than [`SINKS`].
    pub budget: usize,
}

impl Window {
    /// The decision of every token.
    pub const DECISION: f32 = 1.0;

    pub fn rule(&self) -> Dms {
        Dms { window: self.budget - SINKS - 1, shift: Shift::Same, sinks: SINKS, dial: 0.0 }
    }
}
