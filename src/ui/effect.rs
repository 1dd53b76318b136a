//! What [`update`](super::update) asks to be done outside of the state: plain data.

use crate::protocol::{Command, ModelReference};
use std::path::PathBuf;

/// Something to do outside of the state.
#[derive(Debug)]
pub enum Effect {
    Engine(Command),
    /// Render the conversation and have `turn` answered.
    Generate {
        turn: u64,
    },
    /// Render what is left of the conversation and bring the cache there.
    Rewind,
    Load(String),
    /// Read a file; `typed` is what names it in the input.
    Attach {
        typed: String,
        path: String,
    },
    /// Read what models there are, for the list.
    ListModels,
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

/// Which saved conversation is meant.
#[derive(Clone, Debug, PartialEq)]
pub enum Which {
    /// The one that was written last.
    Newest,
    /// From a list: this one and no other.
    Id(String),
    /// Typed: an id, a title, the beginning of an id, a few letters, or a file.
    Named(String),
}

/// What to do with files of conversations.
#[derive(Clone, Debug, PartialEq)]
pub enum Store {
    /// Append what the conversation's journal says.
    Sync,
    /// Another conversation begins; this one's file is closed.
    Close,
    /// As the one within, also where this conversation could not be saved.
    Leave(Box<Store>),
    List,
    Open(Which),
    /// As `Open`, whatever model it was held with.
    OpenWithCurrent(Which),
    /// Forget the conversation that is being read.
    StopOpening,
    Rename {
        id: String,
        title: String,
    },
    Delete {
        id: String,
    },
    DeleteCurrent,
    /// Absent: only say where the conversation is being saved.
    Save {
        path: Option<PathBuf>,
        overwrite: bool,
    },
    Export {
        path: PathBuf,
        overwrite: bool,
    },
}
