//! What happens: `update` takes an event and changes the state, and says what is to be done outside
//! of it. Pure; the time is part of the event. By topic: [`keys`], [`commands`], [`engine`],
//! [`overlay`], [`turns`], [`files`].

mod commands;
mod count;
mod engine;
mod files;
mod find;
mod keys;
mod models;
mod overlay;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_texts;
#[cfg(test)]
mod tests_waiting;
mod turns;

pub use count::DraftCount;

use super::attach::Attachment;
use super::feed::LocalKind;
use super::models::ModelEntry;
use super::state::{App, Level, SessionEntry};
use crate::chat::Conversation;
use crate::protocol::{Command, Download, Event, ModelInfo, ModelReference, Snapshot};
use crossterm::event::{KeyEvent, MouseEvent};
use std::path::PathBuf;
use std::sync::Arc;

/// How long a frame of the spinner is shown.
pub const SPINNER_MS: u64 = 100;

/// Something that happened.
#[derive(Debug)]
pub enum AppEvent {
    Key(KeyEvent),
    /// A bracketed paste.
    Paste(String),
    Mouse(MouseEvent),
    Resize(u16, u16),
    /// Time has passed; asked for by [`App::wants_tick`].
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

/// Handles one event.
pub fn update(app: &mut App, event: AppEvent) -> Vec<Effect> {
    let mut effects = handle(app, event);
    app.expire_notice();
    turns::return_draft(app);
    effects.extend(count::draft(app));
    effects
}

fn handle(app: &mut App, event: AppEvent) -> Vec<Effect> {
    match event {
        AppEvent::Key(key) => keys::key(app, key),
        AppEvent::Paste(text) => keys::paste(app, &text),
        AppEvent::Mouse(mouse) => keys::mouse(app, mouse),
        AppEvent::Resize(columns, rows) => {
            app.size = (columns, rows);
            Vec::new()
        }
        AppEvent::Tick => keys::tick(app),
        AppEvent::Engine(event) => engine::event(app, event),
        AppEvent::Snapshot(snapshot) => engine::snapshot(app, snapshot),
        AppEvent::Downloading(download) => {
            if let Some(loading) = &mut app.engine.loading {
                loading.download = Some(download);
            }
            Vec::new()
        }
        AppEvent::Loading { done_bytes, total_bytes } => {
            if let Some(loading) = &mut app.engine.loading {
                (loading.download, loading.kernels) = (None, None);
                (loading.done_bytes, loading.total_bytes) = (done_bytes, total_bytes);
            }
            Vec::new()
        }
        AppEvent::ModelReady(info) => engine::ready(app, info),
        AppEvent::LoadFailed(error) => engine::load_failed(app, &error),
        AppEvent::GenerateFailed { turn, error } => turns::failed(app, turn, &error),
        AppEvent::Withdrawn { turn } => turns::withdrawn(app, turn),
        AppEvent::Edited(Ok(text)) => {
            app.input.set(text.strip_suffix('\n').unwrap_or(&text));
            keys::input_changed(app);
            Vec::new()
        }
        AppEvent::Edited(Err(error)) => said(app, Level::Error, error),
        AppEvent::Copied { what, sent } => {
            let text =
                if sent { format!("{what}: sent to the terminal's clipboard") } else { format!("{what}: copied") };
            said(app, Level::Info, text)
        }
        AppEvent::Sessions(entries) => overlay::sessions(app, entries),
        AppEvent::Attached { typed, read } => keys::attached(app, &typed, read),
        AppEvent::CachedModels(ids) => {
            app.cached_models = ids;
            Vec::new()
        }
        AppEvent::Models(entries) => models::listed(app, entries),
        AppEvent::Opened(opened) => files::opened(app, *opened),
        AppEvent::OpenNeedsModel { which, reference } => files::open_needs_model(app, which, reference),
        AppEvent::OpenLacksModel { which, model, why } => files::open_lacks_model(app, which, &model, &why),
        AppEvent::SessionBegan { id, date } => {
            app.session.id = Some(id);
            app.date = date;
            Vec::new()
        }
        AppEvent::NewConversation { id, date } => files::began_new(app, id, date),
        AppEvent::SessionMoved { from, to } => files::moved(app, &from, to),
        AppEvent::Opening(reads) => {
            (app.opening, app.resuming) = (reads, true);
            Vec::new()
        }
        AppEvent::NotOpened(level, why) => files::not_opened(app, level, &why),
        AppEvent::NotSaved { why, then } => {
            app.opening = false;
            overlay::ask_leave(app, &why, then)
        }
        AppEvent::Exists { path, export } => overlay::ask_overwrite(app, path, export),
        AppEvent::Said(level, text) => said(app, level, text),
    }
}

impl App {
    /// When a [`AppEvent::Tick`] is wanted, on the clock of [`App::now_ms`].
    pub fn wants_tick(&self) -> Option<u64> {
        let notice = self.notice.as_ref().and_then(|n| n.until_ms);
        let preparing = self.turn.as_ref().and_then(|t| t.shows_preparing_at()).filter(|at| *at > self.now_ms);
        let spinner = (self.is_busy() || self.engine.loading.is_some()).then_some(self.now_ms + SPINNER_MS);
        let rows = self.feed.behind.then_some(self.now_ms);
        [self.burst.due_at(), notice, preparing, spinner, rows, count::due_at(self)].into_iter().flatten().min()
    }
}

fn said(app: &mut App, level: Level, text: String) -> Vec<Effect> {
    app.say(level, text);
    Vec::new()
}

/// A line of our own in the conversation.
fn note(app: &mut App, kind: LocalKind, text: impl Into<String>) -> Vec<Effect> {
    app.feed.push_local(&app.chat, kind, text);
    Vec::new()
}
