//! The files behind the chat: the session that is open, the list of all, transcripts. Does what
//! [`Store`] asks and answers with events; draws nothing. Records are appended by the [`Writer`]'s
//! thread; a conversation is not left before they are in its file, or the user says so.

use super::models::Models;
use super::paths::expand_home;
use super::state::{App, Level, SessionEntry};
use super::text::clean_line;
use super::update::{AppEvent, Opened, Store, Which};
use super::writer::Writer;
use crate::chat::session::{self, Moved, Session, Written};
use crate::chat::{RenderOptions, session::Store as Folder};
use crate::protocol::{ModelInfo, ModelReference, RestoreRequest};
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long a disk may take before a conversation is left, and before the program ends.
const SETTLE: Duration = Duration::from_secs(2);
const LEAVE: Duration = Duration::from_millis(1500);

/// The open session and the folder it lives in.
pub struct Sessions {
    folder: Folder,
    session: Session,
    unsaved: bool,
    /// What the engine has to be brought to before the next message.
    pub restore: Option<RestoreRequest>,
    /// The model last in use, for records.
    info: Option<Arc<ModelInfo>>,
    pub writer: Writer,
    /// Conversations that the user has left before their records could be written.
    left: Vec<Session>,
    models: Arc<dyn Models>,
    /// The next conversation is opened with the model that the user named.
    model_given: bool,
}

impl Sessions {
    /// `model_given`: the user named a model, which the first conversation is opened with.
    pub fn new(folder: PathBuf, unsaved: bool, writer: Writer, models: Arc<dyn Models>, model_given: bool) -> Self {
        let folder = Folder::new(folder);
        let session = if unsaved { Session::unsaved() } else { folder.create() };
        Self { folder, session, unsaved, restore: None, info: None, writer, left: Vec::new(), models, model_given }
    }

    /// The next conversation is opened with the model that is loaded then.
    pub fn keep_model(&mut self) {
        self.model_given = true;
    }

    /// The model that a conversation was held with, when it can be loaded.
    pub fn model_of(&self, which: &Which) -> Option<ModelReference> {
        self.models.find(&self.stamp(which)?).ok()
    }

    /// The model that a conversation was last held with; none where the user named another one.
    fn stamp(&self, which: &Which) -> Option<session::Stamp> {
        if self.model_given {
            return None;
        }
        let stamp = match which {
            Which::Newest => self.folder.newest().and_then(|id| self.folder.stamp(&id)),
            Which::Id(id) => self.folder.stamp(id),
            Which::Named(name) => self.folder.stamp_named(name),
        };
        stamp.ok()
    }

    /// What has to happen before a conversation can go on with the model it was held with.
    fn other_model(&self, app: &App, which: &Which) -> Option<AppEvent> {
        let stamp = self.stamp(which)?;
        let current = app.engine.info.as_ref();
        if current.is_some_and(|info| stamp.fits(info)) {
            return None;
        }
        let which = which.clone();
        match self.models.find(&stamp) {
            Ok(reference) if current.and_then(|i| i.reference.as_ref()) == Some(&reference) => None,
            Ok(reference) => Some(AppEvent::OpenNeedsModel { which, reference }),
            // Such files name no model that could be looked up: a notice tells when they are opened.
            Err(_) if stamp.reference.is_none() => None,
            Err(why) => Some(AppEvent::OpenLacksModel { which, model: stamp.name, why }),
        }
    }

    pub fn set_model(&mut self, info: &Arc<ModelInfo>) {
        self.info = Some(Arc::clone(info));
    }

    /// What the state has to know of the open session.
    pub fn began(&self) -> AppEvent {
        AppEvent::SessionBegan { id: self.session.id().to_owned(), date: self.session.template_date() }
    }

    /// Does what is asked; errors are one line.
    pub fn run(&mut self, app: &mut App, what: Store) -> Vec<AppEvent> {
        let mut events = Vec::new();
        if let Err(error) = self.try_run(app, what, &mut events) {
            events.push(AppEvent::Said(Level::Error, clean_line(&format!("{error:#}"))));
        }
        events
    }

    fn try_run(&mut self, app: &mut App, what: Store, events: &mut Vec<AppEvent>) -> Result<()> {
        self.take(app);
        if matches!(what, Store::Close | Store::Open(_) | Store::OpenWithCurrent(_))
            && let Err(why) = self.settle(events)
        {
            events.push(AppEvent::NotSaved { why: clean_line(&format!("{why:#}")), then: what });
            return Ok(());
        }
        match what {
            Store::Sync => self.write_on(events),
            Store::Close => events.push(self.begin_new()),
            Store::Leave(then) => {
                self.begin_new();
                self.try_run(app, *then, events)?;
            }
            Store::List => events.push(AppEvent::Sessions(self.entries())),
            Store::Open(which) => match self.other_model(app, &which) {
                Some(event) => events.push(event),
                None => events.push(self.open(app, &which)?),
            },
            Store::OpenWithCurrent(which) => events.push(self.open(app, &which)?),
            Store::Rename { id, title } => self.rename(app, &id, &title, events)?,
            Store::Delete { id } => events.push(self.delete(&id)?),
            Store::DeleteCurrent => self.delete_current(events)?,
            Store::Save { path, overwrite } => self.save(app, path, overwrite, events)?,
            Store::Export { path, overwrite } => {
                self.write_on(events);
                events.push(self.export(app, &path, overwrite, true)?);
            }
        }
        Ok(())
    }

    /// Takes what the conversation's journal says.
    fn take(&mut self, app: &mut App) {
        if let Some(info) = &self.info {
            self.session.take(&mut app.chat, info);
        }
    }

    /// Hands what waits to the writer, unless it is at it already.
    fn write_on(&mut self, events: &mut Vec<AppEvent>) {
        let Some(write) = self.session.begin_write() else { return };
        if let Err(write) = self.writer.write(write) {
            self.take_outcome(write.run(), events);
        }
    }

    /// The writer is done with some lines.
    pub fn written(&mut self, written: Written) -> Vec<AppEvent> {
        let mut events = Vec::new();
        if self.take_outcome(written, &mut events) {
            self.write_on(&mut events);
            // There may be room again for what else waits.
            self.left.retain_mut(|session| session.flush().is_err());
        }
        events
    }

    /// False when the lines are not in the file.
    fn take_outcome(&mut self, written: Written, events: &mut Vec<AppEvent>) -> bool {
        let sessions = std::iter::once(&mut self.session).chain(&mut self.left);
        let mut owner = sessions.filter(|s| s.is_writing() && s.path() == Some(written.path()));
        let Some(session) = owner.next() else { return false };
        match session.end_write(written) {
            Ok(moved) => {
                events.extend(moved.map(has_moved));
                true
            }
            Err(error) => {
                events.push(AppEvent::Said(Level::Error, clean_line(&format!("{error:#}"))));
                false
            }
        }
    }

    /// Waits until everything is in the file; the error says why it is not.
    fn settle(&mut self, events: &mut Vec<AppEvent>) -> Result<()> {
        self.settle_within(SETTLE, events)
    }

    fn settle_within(&mut self, limit: Duration, events: &mut Vec<AppEvent>) -> Result<()> {
        while self.session.is_writing() {
            let Some(written) = self.writer.wait(limit) else { bail!("the disk does not answer") };
            let mut said = Vec::new();
            self.take_outcome(written, &mut said);
            // Errors are told by the attempt that follows.
            events.extend(said.into_iter().filter(|e| !matches!(e, AppEvent::Said(Level::Error, _))));
        }
        let moved = self.session.flush()?;
        events.extend(moved.map(has_moved));
        Ok(())
    }

    /// Writes what waits, at the end. What cannot be written goes to a file in the folder for temporary
    /// files; the answer is one line that names it.
    pub fn leave(&mut self, app: &mut App) -> Option<String> {
        self.take(app);
        let why = self.settle_within(LEAVE, &mut Vec::new()).err();
        self.left.retain_mut(|session| session.flush().is_err());
        let behind = std::iter::once(&self.session).chain(&self.left).filter(|s| s.is_behind());
        let lines: Vec<String> = behind
            .map(|session| match session.rescue() {
                Ok(path) => {
                    let path = path.display();
                    format!("conversation {} is kept in {path}; dmschat --resume {path} goes on with it", session.id())
                }
                Err(error) => format!("conversation {} is lost: {error:#}", session.id()),
            })
            .collect();
        self.writer.end(LEAVE);
        let why = why.map_or_else(String::new, |why| format!("{why:#}; "));
        (!lines.is_empty()).then(|| clean_line(&format!("{why}{}", lines.join("; "))))
    }

    /// Closes the open session and begins another. Records that wait are tried again with every write.
    fn begin_new(&mut self) -> AppEvent {
        let new = if self.unsaved { Session::unsaved() } else { self.folder.create() };
        self.replace(new);
        self.restore = None;
        let (id, date) = (self.session.id().to_owned(), self.session.template_date());
        AppEvent::NewConversation { id, date }
    }

    fn replace(&mut self, session: Session) {
        let old = std::mem::replace(&mut self.session, session);
        if old.is_behind() || old.is_writing() {
            self.left.push(old);
        }
    }

    fn entries(&self) -> Vec<SessionEntry> {
        let entry = |e: session::Entry| SessionEntry {
            when: e.date(),
            haystack: e.as_ref().to_owned(),
            id: e.id,
            title: e.title,
            turns: e.turns,
            model: e.model,
            preview: e.preview,
            ratio: e.ratio,
            bytes: e.bytes,
        };
        self.folder.list().into_iter().map(entry).collect()
    }

    fn open(&mut self, app: &App, which: &Which) -> Result<AppEvent> {
        let (session, mut loaded) = match which {
            Which::Id(id) | Which::Named(id) if id == self.session.id() => {
                return Ok(AppEvent::Said(Level::Info, "this conversation is open already".into()));
            }
            Which::Newest => self.folder.open(&self.folder.newest()?)?,
            Which::Id(id) => self.folder.open(id)?,
            Which::Named(name) => self.folder.resume(name)?,
        };
        self.replace(session);
        self.model_given = false;
        let mut notices = std::mem::take(&mut loaded.problems);
        self.restore = None;
        if let Some(info) = &app.engine.info {
            let (request, notice) = loaded.restore_for(info);
            self.restore = Some(request);
            notices.extend(notice);
        }
        Ok(AppEvent::Opened(Box::new(Opened {
            id: self.session.id().to_owned(),
            date: self.session.template_date(),
            eviction: loaded.eviction,
            chat: loaded.conversation,
            notices,
        })))
    }

    fn rename(&mut self, app: &mut App, id: &str, title: &str, events: &mut Vec<AppEvent>) -> Result<()> {
        if id != self.session.id() {
            return self.folder.rename(id, title);
        }
        app.chat.rename(title);
        self.take(app);
        self.write_on(events);
        Ok(())
    }

    fn delete(&mut self, id: &str) -> Result<AppEvent> {
        if id == self.session.id() {
            return Ok(AppEvent::Said(Level::Info, "this conversation is open; /delete deletes it".into()));
        }
        self.folder.delete(id)?;
        Ok(AppEvent::Said(Level::Info, "deleted".into()))
    }

    fn delete_current(&mut self, events: &mut Vec<AppEvent>) -> Result<()> {
        // A write under way is waited for; what it could not write goes with the rest.
        let _ = self.settle(events);
        let (id, exists) = (self.session.id().to_owned(), self.session.path().is_some_and(Path::exists));
        let began = self.begin_new();
        self.left.retain(|session| session.id() != id);
        if exists {
            self.folder.delete(&id)?;
        }
        events.extend([began, AppEvent::Said(Level::Info, "deleted".into())]);
        Ok(())
    }

    fn save(&mut self, app: &App, path: Option<PathBuf>, overwrite: bool, events: &mut Vec<AppEvent>) -> Result<()> {
        let kept = self.session.path().map(Path::to_owned);
        match (path, kept) {
            (None, Some(kept)) => {
                self.settle(events)?;
                events.push(saved(&kept));
            }
            (path, _) => {
                self.write_on(events);
                let path = path.unwrap_or_else(|| PathBuf::from(format!("dmschat-{}.jsonl", self.session.id())));
                events.push(self.export(app, &path, overwrite, false)?);
            }
        }
        Ok(())
    }

    /// Writes the conversation to a file that the user names.
    fn export(&self, app: &App, path: &Path, overwrite: bool, export: bool) -> Result<AppEvent> {
        let path = expand_home(path);
        // A link counts, wherever it leads.
        if path.symlink_metadata().is_ok() && !overwrite {
            return Ok(AppEvent::Exists { path, export });
        }
        let markdown = path.extension().is_some_and(|e| e == "md");
        match &self.info {
            Some(info) if markdown => session::write_atomically(&path, session::markdown(&app.chat, info).as_bytes())?,
            _ => session::write_atomically(&path, self.session.jsonl().as_bytes())?,
        }
        Ok(saved(&path))
    }
}

fn has_moved(moved: Moved) -> AppEvent {
    AppEvent::SessionMoved { from: moved.from, to: moved.to }
}

fn saved(path: &Path) -> AppEvent {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    AppEvent::Said(Level::Info, format!("saved in {}", clean_line(&whole.display().to_string())))
}

/// How the conversation is rendered now.
pub fn render_options(app: &App) -> RenderOptions {
    RenderOptions {
        think: app.options.think,
        keep_thinking: app.options.keep_thinking,
        date: app.date,
        think_tags: app.engine.info.as_ref().and_then(|i| i.think_tags.clone()),
        ..RenderOptions::default()
    }
}
