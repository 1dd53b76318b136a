//! What happens to the chat: keys, the engine's words, and the results of effects. Plain data.

use super::attach::Attachment;
use super::effect::{Store, Which};
use super::models::ModelEntry;
use super::state::{Level, SessionEntry};
use super::theme::Background;
use crate::chat::Conversation;
use crate::protocol::{Download, Event, ModelInfo, ModelReference, Snapshot};
use crossterm::event::{KeyEvent, MouseEvent};
use std::path::PathBuf;
use std::sync::Arc;

/// Something that happened.
#[derive(Debug)]
pub enum AppEvent {
    Key(KeyEvent),
    /// A bracketed paste.
    Paste(String),
    Mouse(MouseEvent),
    Resize(u16, u16),
    /// Time has passed; asked for by `App::wants_tick`.
    Tick,
    /// From the engine in use.
    Engine(Event),
    Snapshot(Arc<Snapshot>),
    /// From the engine that is being loaded.
    Downloading(Download),
    Loading {
        done_bytes: u64,
        total_bytes: u64,
    },
    /// A model of this name is being loaded.
    LoadBegan(String),
    /// It is ready and in use from now on.
    ModelReady(Arc<ModelInfo>),
    LoadFailed(String),
    /// The prompt of `turn` could not be rendered or sent.
    GenerateFailed {
        turn: u64,
        error: String,
    },
    /// `turn` was taken back before it reached the engine.
    Withdrawn {
        turn: u64,
    },
    /// What was typed in earlier runs.
    History(Vec<String>),
    /// A line was entered, where the chat goes line by line.
    Line(String),
    /// Everything new was printed, where the chat goes line by line.
    Printed,
    /// The terminal has said its background.
    Background(Background),
    /// The engine was told what a saved conversation's cache holds.
    Restored,
    /// The program ends: what stands in the input is kept.
    Leaving,
    /// The external editor came back.
    Edited(Result<String, String>),
    Copied {
        what: String,
        /// Handed to the terminal, which does not answer.
        sent: bool,
    },
    Sessions(Vec<SessionEntry>),
    /// A file for the input was read.
    Attached {
        typed: String,
        read: Result<Attachment, String>,
    },
    /// Hub ids in the cache.
    CachedModels(Vec<String>),
    /// The models of this machine have been read.
    Models(Vec<ModelEntry>),
    /// A saved conversation was read.
    Opened(Box<Opened>),
    /// A conversation was held with another model, which is still there.
    OpenNeedsModel {
        which: Which,
        reference: ModelReference,
    },
    /// A conversation was held with a model that is gone or does not load; why.
    OpenLacksModel {
        which: Which,
        model: String,
        why: String,
    },
    /// The conversation's session, and what "now" is in it.
    SessionBegan {
        id: String,
        date: jiff::civil::DateTime,
    },
    /// /new, or the open conversation was deleted: an empty one takes its place.
    NewConversation {
        id: String,
        date: jiff::civil::DateTime,
    },
    /// Another program has changed the session's file: it goes on in a new one.
    SessionMoved {
        from: String,
        to: String,
    },
    /// The conversation that the command line asks for is being read, or has been and waits for its model.
    Opening(bool),
    /// The conversation asked for was not opened, and why.
    NotOpened(Level, String),
    /// The conversation's last records are in no file; what was asked for would leave it.
    NotSaved {
        why: String,
        then: Store,
    },
    /// A file exists: ask before it is replaced.
    Exists {
        path: PathBuf,
        export: bool,
    },
    /// Something done outside went well, or not.
    Said(Level, String),
}

/// A conversation read from a file.
#[derive(Debug)]
pub struct Opened {
    pub id: String,
    pub chat: Conversation,
    pub date: jiff::civil::DateTime,
    /// The eviction state at its end.
    pub eviction: Option<bool>,
    /// One line each, to be shown.
    pub notices: Vec<String>,
}
