//! The request that is being served.

use super::halt::Halt;
use super::turn::Turn;
use crate::engine::context::Context;
use crate::engine::disk::Load;
use crate::protocol::{Command, EventSender, LogEntry, Token};

/// The request that is being served.
pub(in crate::engine) struct Job {
    pub events: EventSender,
    pub cancelled: bool,
    /// Set if a step failed.
    pub halt: Option<Halt>,
    pub work: Work,
}

impl Job {
    /// Whether its steps have begun.
    pub(super) fn has_begun(&self) -> bool {
        match &self.work {
            Work::New(_) | Work::Restore { load: Some(_), .. } => false,
            Work::Answer(turn) => !turn.is_encoding(),
            _ => true,
        }
    }

    /// Whether several chains are to answer and were not forked yet.
    pub(super) fn waits_for_chains(&self) -> bool {
        matches!(&self.work, Work::Answer(turn) if turn.wanted.is_some()) && !self.cancelled && self.halt.is_none()
    }
}

/// Kind of work of a job.
pub(in crate::engine) enum Work {
    /// Not begun. A cancel or a toggle that is already in the inbox acts first.
    New(Command),
    /// Encodes and prefills the prompt and generates the answer.
    Answer(Box<Turn>),
    /// Replays the log of the turn's start. The turn has failed, and its snapshot was released.
    Undo(Box<Turn>, Halt),
    /// Prefills the log into a new sequence.
    Rebuild {
        /// The old context, until it is replaced or its pages are needed.
        beside: Option<Context>,
        /// Its log and its pending token: without it they are replayed if there is no room for the
        /// new one either.
        old: (Vec<LogEntry>, Option<Token>),
    },
    /// Loads the cache of a saved conversation from its file, or replays its log.
    Restore { pending: Option<Token>, load: Option<Box<Load>> },
}

/// Slots dropped for lack of memory since a job began.
#[derive(Default)]
pub(in crate::engine) struct Forgotten {
    pub times: usize,
    pub slots: u64,
    /// Notice about the first time, sent once the turn has continued.
    pub untold: Option<String>,
}
