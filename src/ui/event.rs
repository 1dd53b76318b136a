//! Events of the chat: keys, messages of the engine, results of effects. Plain data.

use super::attach::Attachment;
use super::effect::{Store, Summary, Which};
use super::models::{Known, ModelEntry};
use super::state::Level;
use super::theme::Background;
use super::training::Report;
use crate::chat::session::{Moved, Passage};
use crate::chat::{Conversation, Tags};
use crate::protocol::{Event, ModelInfo, ModelReference, RestoreRequest, Snapshot};
use crossterm::event::{KeyEvent, MouseEvent};
use std::path::PathBuf;
use std::sync::Arc;

/// An input of `update`.
#[derive(Debug)]
pub enum AppEvent {
    Key(KeyEvent),
    /// A bracketed paste.
    Paste(String),
    /// Text of many keys that waited together: a paste without brackets.
    Burst(String),
    Mouse(MouseEvent),
    Resize(u16, u16),
    /// Time has passed; asked for by `App::wants_tick`.
    Tick,
    /// From the engine in use.
    Engine(Event),
    Snapshot(Arc<Snapshot>),
    /// From the engine that is being loaded.
    Progress(Event),
    /// A model of this name is being loaded.
    LoadBegan(String),
    /// The model is loaded and in use.
    ModelReady(Arc<ModelInfo>),
    LoadFailed(String),
    /// This did not reach the engine: why, or `None` if it was stopped before.
    NotAsked {
        what: Asked,
        why: Option<String>,
    },
    /// The engine's thread has ended.
    EngineEnded,
    /// The input history of earlier runs.
    History(Vec<String>),
    /// Line mode: a line was entered.
    Line(String),
    /// Line mode: everything new was printed.
    Printed,
    /// The terminal reported its background.
    Background(Background),
    /// The engine was sent the state of a saved conversation.
    Restored,
    /// The program ends: the unsent text is kept in the history.
    Leaving,
    /// The external editor has closed.
    Edited(Result<String, String>),
    Copied {
        what: String,
        /// Sent to the terminal, which does not confirm it.
        sent: bool,
    },
    Sessions(Vec<SessionEntry>),
    /// A command of the shell has ended: its output as a message, or why there is none.
    Ran {
        id: u64,
        result: Result<String, String>,
    },
    /// A search over all conversations has ended.
    Searched(Box<SearchResult>),
    /// An attached file was read.
    Attached {
        typed: String,
        read: Result<Attachment, String>,
    },
    /// Names of models, and the folders and files of models that earlier conversations were held
    /// with.
    KnownModels {
        known: Known,
        used: Vec<String>,
    },
    /// The work of /train reported something.
    Trained(Report),
    /// The list of local models was read.
    Models(Vec<ModelEntry>),
    /// A saved conversation was read.
    Opened(Box<Opened>),
    /// The conversation's model is another one, which can be loaded.
    OpenNeedsModel {
        which: Which,
        reference: ModelReference,
    },
    /// The conversation's model is gone or does not load, and why.
    OpenLacksModel {
        which: Which,
        model: String,
        why: String,
    },
    /// A session began.
    SessionBegan(NewSession),
    /// An empty conversation replaces the open one (/new, /delete).
    NewConversation(NewSession),
    /// A new conversation replaces the open one and continues it from a summary. `continues`: its
    /// session, if it is saved.
    Compacted {
        session: NewSession,
        continues: Option<String>,
        summary: Box<Summary>,
    },
    /// Another program changed the session's file; the conversation continues in a new one.
    SessionMoved(Moved),
    /// The conversation named on the command line is being read (true), or was read and waits for
    /// its model.
    Opening(bool),
    /// The conversation was not opened, and why.
    NotOpened(Level, String),
    /// Records of the conversation could not be written; `then` would leave it.
    NotSaved {
        why: String,
        then: Store,
    },
    /// A file exists: ask before it is replaced.
    Exists {
        path: PathBuf,
        export: bool,
    },
    /// A message about an effect.
    Said(Level, String),
    /// A command failed after it had begun: its name, and why.
    CommandFailed(&'static str, String),
}

/// A session that began: its id, and "now" to its templates.
#[derive(Debug, Default)]
pub struct NewSession {
    pub id: String,
    pub date: jiff::civil::DateTime,
}

/// A conversation read from a file.
#[derive(Debug)]
pub struct Opened {
    pub id: String,
    pub chat: Conversation,
    pub date: jiff::civil::DateTime,
    /// The eviction state at its end.
    pub eviction: Option<bool>,
    /// Lines to show.
    pub notices: Vec<String>,
    /// Request that loads it into the cache; absent without a model.
    pub restore: Option<Box<RestoreRequest>>,
    /// Whether that is done at once; else with the next message.
    pub loads: bool,
}

/// Work that the user waits for.
#[derive(Clone, Copy, Debug)]
pub enum Asked {
    Turn(u64),
    /// Like [`crate::protocol::Probe::Aside`].
    Aside {
        dense: bool,
    },
    Recall,
    Rebuild,
}

/// The result of a search over all conversations.
#[derive(Clone, Debug, Default)]
pub struct SearchResult {
    /// The words, as they were typed.
    pub words: String,
    pub hits: Vec<SearchHit>,
    /// Texts with the words that are not among the hits.
    pub more: usize,
    /// Lines and files that could not be read.
    pub unread: usize,
}

/// A passage with the words, and its conversation.
#[derive(Clone, Debug)]
pub struct SearchHit {
    pub session: String,
    pub title: String,
    pub when: String,
    pub passage: Passage,
}

impl AsRef<str> for SearchHit {
    fn as_ref(&self) -> &str {
        &self.passage.text
    }
}

/// A saved conversation in the list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionEntry {
    pub id: String,
    pub title: String,
    pub tags: Tags,
    /// When it was last written, in words.
    pub when: String,
    pub turns: usize,
    pub model: String,
    /// The last question, and on the next line its answer.
    pub preview: String,
    pub ratio: Option<f64>,
    /// Bytes of its file.
    pub bytes: u64,
    /// The session that it continues from a summary.
    pub continues: Option<String>,
    /// The text that the search matches.
    pub haystack: String,
}

impl AsRef<str> for SessionEntry {
    fn as_ref(&self) -> &str {
        &self.haystack
    }
}
