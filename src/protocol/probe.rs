//! Probes: what is asked beside a conversation, of which nothing changes. They run on a sequence of their own, one after the other
//! and after the requests before them; [`Command::Cancel`](super::Command::Cancel) drops them.

use super::{Ask, RecallRequest, Recalled, TextKind, TurnReport};

/// What is asked.
#[derive(Clone, Debug)]
pub enum Probe {
    /// Whether the model still knows a text.
    Recall(Box<RecallRequest>),
    /// An answer that is not part of the conversation. `dense`: from a cache of its own that drops nothing.
    Aside { ask: Box<Ask>, dense: bool },
}

/// What was found.
#[derive(Clone, Debug)]
pub enum Finding {
    /// How much of a text the model knows, or why that was not asked.
    Recalled(Result<Box<Recalled>, String>),
    /// Streamed text of an answer aside.
    Text { dense: bool, kind: TextKind, text: String },
    /// The end of an answer aside. The report's turn is 0, and its log is empty.
    Said { dense: bool, report: Box<TurnReport> },
}
