//! The files behind the chat: the session that is open, the list of all, transcripts, and the input
//! history. Does what [`Store`] asks and answers with events; draws nothing.

use super::models::Models;
use super::paths::expand_home;
use super::state::{App, Level, SessionEntry};
use super::text::clean_line;
use super::update::{AppEvent, Opened, Store, Which};
use crate::chat::session::{self, Session};
use crate::chat::{RenderOptions, session::Store as Folder};
use crate::protocol::{ModelInfo, ModelReference, RestoreRequest};
use crate::regular_file;
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The open session and the folder it lives in.
pub struct Sessions {
    folder: Folder,
    session: Session,
    unsaved: bool,
    /// What the engine has to be brought to before the next message.
    pub restore: Option<RestoreRequest>,
    /// The model last in use, for records.
    info: Option<Arc<ModelInfo>>,
    models: Arc<dyn Models>,
    /// The next conversation is opened with the model that the user named.
    model_given: bool,
}

impl Sessions {
    /// `model_given`: the user named a model, which the first conversation is opened with.
    pub fn new(folder: PathBuf, unsaved: bool, models: Arc<dyn Models>, model_given: bool) -> Self {
        let folder = Folder::new(folder);
        let session = if unsaved { Session::unsaved() } else { folder.create() };
        Self { folder, session, unsaved, restore: None, info: None, models, model_given }
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
            Which::Newest => self.folder.newest().and_then(|entry| self.folder.stamp(&entry.id)),
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
        match self.try_run(app, what) {
            Ok(events) => events,
            Err(error) => vec![AppEvent::Said(Level::Error, clean_line(&format!("{error:#}")))],
        }
    }

    fn try_run(&mut self, app: &mut App, what: Store) -> Result<Vec<AppEvent>> {
        match what {
            Store::Sync => self.sync(app)?,
            Store::Close => return Ok(self.begin_new()),
            Store::List => return Ok(vec![AppEvent::Sessions(self.entries())]),
            Store::Open(which) => {
                return match self.other_model(app, &which) {
                    Some(event) => Ok(vec![event]),
                    None => self.open(app, &which),
                };
            }
            Store::OpenWithCurrent(which) => return self.open(app, &which),
            Store::Rename { id, title } => self.rename(app, &id, &title)?,
            Store::Delete { id } => return self.delete(&id),
            Store::DeleteCurrent => {
                let id = self.session.id().to_owned();
                let mut events = self.begin_new();
                self.folder.delete(&id)?;
                events.push(AppEvent::Said(Level::Info, "deleted".into()));
                return Ok(events);
            }
            Store::Save { path, overwrite } => return self.save(app, path, overwrite),
            Store::Export { path, overwrite } => return self.export(app, &path, overwrite),
        }
        Ok(Vec::new())
    }

    fn sync(&mut self, app: &mut App) -> Result<()> {
        match &self.info {
            Some(info) => self.session.sync(&mut app.chat, info),
            None => Ok(()),
        }
    }

    /// Closes the open session and begins another.
    fn begin_new(&mut self) -> Vec<AppEvent> {
        self.session = if self.unsaved { Session::unsaved() } else { self.folder.create() };
        self.restore = None;
        vec![self.began()]
    }

    fn entries(&self) -> Vec<SessionEntry> {
        let entry = |e: session::Entry| SessionEntry {
            when: e.date(),
            haystack: e.as_ref().to_owned(),
            id: e.id,
            title: e.title,
            turns: e.turns,
            model: e.model,
        };
        self.folder.list().into_iter().map(entry).collect()
    }

    fn open(&mut self, app: &App, which: &Which) -> Result<Vec<AppEvent>> {
        let (session, mut loaded) = match which {
            Which::Id(id) | Which::Named(id) if id == self.session.id() => {
                return Ok(vec![AppEvent::Said(Level::Info, "this conversation is open already".into())]);
            }
            Which::Newest => self.folder.open(&self.folder.newest()?.id)?,
            Which::Id(id) => self.folder.open(id)?,
            Which::Named(name) => self.folder.resume(name)?,
        };
        self.session = session;
        self.model_given = false;
        let mut notices = std::mem::take(&mut loaded.problems);
        self.restore = None;
        if let Some(info) = &app.engine.info {
            let (request, notice) = loaded.restore_for(info);
            self.restore = Some(request);
            notices.extend(notice);
        }
        Ok(vec![AppEvent::Opened(Box::new(Opened {
            id: self.session.id().to_owned(),
            date: self.session.template_date(),
            eviction: loaded.eviction,
            chat: loaded.conversation,
            notices,
        }))])
    }

    fn rename(&mut self, app: &mut App, id: &str, title: &str) -> Result<()> {
        if id == self.session.id() {
            app.chat.rename(title);
            return self.sync(app);
        }
        self.folder.rename(id, title)
    }

    fn delete(&mut self, id: &str) -> Result<Vec<AppEvent>> {
        if id == self.session.id() {
            return Ok(vec![AppEvent::Said(Level::Info, "this conversation is open; /delete deletes it".into())]);
        }
        self.folder.delete(id)?;
        Ok(vec![AppEvent::Said(Level::Info, "deleted".into())])
    }

    fn save(&mut self, app: &mut App, path: Option<PathBuf>, overwrite: bool) -> Result<Vec<AppEvent>> {
        self.sync(app)?;
        if let (None, Some(path)) = (&path, self.session.path()) {
            return Ok(vec![saved(path)]);
        }
        let path = path.unwrap_or_else(|| PathBuf::from(format!("dmschat-{}.jsonl", self.session.id())));
        self.write(app, &path, overwrite, false)
    }

    fn export(&mut self, app: &mut App, path: &Path, overwrite: bool) -> Result<Vec<AppEvent>> {
        self.sync(app)?;
        self.write(app, path, overwrite, true)
    }

    fn write(&self, app: &App, path: &Path, overwrite: bool, export: bool) -> Result<Vec<AppEvent>> {
        let path = expand_home(path);
        if path.exists() && !overwrite {
            return Ok(vec![AppEvent::Exists { path, export }]);
        }
        let markdown = path.extension().is_some_and(|e| e == "md");
        let text = match &self.info {
            Some(info) if markdown => session::markdown(&app.chat, info),
            _ => self.session.jsonl(),
        };
        session::write_atomically(&path, text.as_bytes())?;
        Ok(vec![saved(&path)])
    }
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

/// What was typed in earlier runs; one JSON string a line.
pub struct HistoryFile {
    path: Option<PathBuf>,
}

/// Entries that are kept.
const MAX_HISTORY: usize = 1_000;
/// A larger file is none of ours, and is not read.
const MAX_HISTORY_BYTES: u64 = 64 << 20;

impl HistoryFile {
    /// `path` absent: nothing is read or written.
    pub fn new(path: Option<PathBuf>) -> Self {
        Self { path }
    }

    pub fn read(&self) -> Vec<String> {
        let text = self.path.as_ref().and_then(|p| regular_file::read(p, MAX_HISTORY_BYTES).ok()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(MAX_HISTORY);
        lines[from..].iter().filter_map(|l| serde_json::from_str(l).ok()).collect()
    }

    /// Writes what this run has added, older entries first. A failure is not worth a word.
    pub fn write(&self, entries: &[String]) {
        let Some(path) = &self.path else { return };
        let from = entries.len().saturating_sub(MAX_HISTORY);
        let lines: Vec<String> = entries[from..].iter().filter_map(|e| serde_json::to_string(e).ok()).collect();
        let _ = session::write_atomically(path, (lines.join("\n") + "\n").as_bytes());
    }
}
