//! Effects: what [`update`](super::update) requests outside of the state. Plain data.

use super::attach::Job;
use crate::chat::MessageId;
use crate::protocol::{Command, ModelReference, TurnReport};
use std::ops::Range;
use std::path::PathBuf;

/// An output of `update`, carried out by the runtime.
#[derive(Debug)]
pub enum Effect {
    Engine(Command),
    /// Render the conversation and request the answer of `turn`.
    Generate {
        turn: u64,
    },
    /// Render the rest of the conversation and rewind the cache to it.
    Rewind,
    Load(String),
    /// Run a command of the shell for a message.
    Run {
        id: u64,
        job: Job,
    },
    /// Read a file, a folder or a page to attach; `typed` is its name in the input.
    Attach {
        typed: String,
        path: String,
    },
    /// Render the conversation with a question for a text, and ask it in a fork. `tokens`: its
    /// positions, if it was chosen by them.
    Recall {
        text: String,
        tokens: Option<Range<usize>>,
    },
    /// Render the conversation up to this message with a request for a summary, and ask for it in a
    /// fork.
    Compact {
        upto: MessageId,
    },
    /// Render the conversation up to the question of this answer, and answer it without eviction in
    /// a fork.
    Compare {
        answer: MessageId,
    },
    /// Read the list of local models.
    ListModels,
    /// Make a predictor for the loaded model, or ask how long that takes.
    Train {
        estimates: bool,
    },
    StopTraining,
    /// Load the model of a conversation.
    LoadReference(ModelReference),
    CancelLoad,
    Copy {
        text: String,
        what: String,
    },
    ExternalEditor(String),
    Mouse(bool),
    Redraw,
    Bell,
    Suspend,
    Quit,
    Store(Store),
}

/// Selects a saved conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Which {
    /// The one that was written last.
    Newest,
    /// From a list: this one and no other.
    Id(String),
    /// Typed: an id, a title, the beginning of an id, a few letters, or a file.
    Named(String),
}

/// Beginning of a new conversation: a summary of the old one, or the user's messages.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    pub turns: Vec<TakenOver>,
    /// Describes it, for the line below.
    pub what: String,
}

/// A turn of the new conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct TakenOver {
    pub question: String,
    pub reasoning: Option<String>,
    pub answer: String,
    /// The numbers of the old conversation.
    pub report: TurnReport,
}

/// An operation on session files.
#[derive(Clone, Debug, PartialEq)]
pub enum Store {
    /// Append pending records.
    Sync,
    /// Close this conversation and begin another.
    Close,
    /// Close this conversation and begin one that continues it from a summary.
    Compact(Box<Summary>),
    /// Do the operation within even if this conversation cannot be saved.
    Leave(Box<Store>),
    List,
    /// Look for words in all conversations.
    Search(String),
    /// `with_current`: with the loaded model, even if another model held the conversation.
    Open {
        which: Which,
        with_current: bool,
    },
    /// Cancel opening a conversation.
    StopOpening,
    Rename {
        id: String,
        title: String,
    },
    Delete {
        id: String,
    },
    DeleteCurrent,
    /// `None`: only show where the conversation is saved.
    Save {
        path: Option<PathBuf>,
        overwrite: bool,
    },
    Export {
        path: PathBuf,
        overwrite: bool,
    },
}
