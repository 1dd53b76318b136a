//! Keeps the conversation on disk, and opens others.

use super::super::effect::{Store, Which};
use super::super::event::{AppEvent, NewSession, Opened, SearchHit, SearchResult, SessionEntry};
use super::super::models::Models;
use super::super::paths::expand_home;
use super::super::state::{App, Level};
use super::super::text::{FULL, clean_line, count};
use super::super::worker::{Outcome, Read, Worker};
use crate::chat::session::{self, Loaded, Moved, Query, Session, Written};
use crate::chat::summary::WAY_OUT;
use crate::chat::{Change, Conversation, RenderOptions, session::Store as Folder};
use crate::protocol::{CacheFile, LogEntry, ModelInfo, RestoreRequest, Snapshot};
use crate::regular_file;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a write may take before the user is asked whether to leave the conversation unsaved.
pub(super) const SETTLE: Duration = Duration::from_secs(2);

/// Most passages that a search over all conversations shows.
const MAX_HITS: usize = 500;

/// Without a file of its cache, a conversation of more tokens is replayed with the next message
/// only.
pub(super) const REPLAYED_AT_ONCE: usize = 2048;

/// The open session and the folder it lives in.
pub struct Sessions {
    /// The folder that the conversations are saved in.
    pub folder: Folder,
    pub(super) session: Session,
    pub(super) unsaved: bool,
    /// Maximum bytes of all caches on disk; 0 keeps none.
    pub cache_disk: u64,
    /// The model last used, for records.
    pub info: Option<Arc<ModelInfo>>,
    /// Changes of the conversation that wait for a model.
    pub(super) changes: Vec<Change>,
    /// At the end: the id of the conversation that was open, if it is saved.
    pub saved: Option<String>,
    /// Conversations that the user has left before their records could be written.
    pub(super) left: Vec<Session>,
    pub(super) models: Arc<dyn Models>,
    /// The next conversation is opened with the model that the user named, or that is loaded then.
    pub model_given: bool,
    /// The user named the cache's policy: conversations are opened under it.
    pub policy_given: bool,
    pub worker: Worker,
    /// The operation that waits for the open session's records to be written, and its deadline.
    pub(super) waiting: Option<(Store, Instant)>,
    /// Id of the running job that reads a conversation, and the number of such jobs so far.
    pub(super) reading: Option<u64>,
    pub(super) reads: u64,
    /// A conversation that was read and waits for its model or for the user's decision.
    pub(super) read: Option<Box<Read>>,
}

impl Sessions {
    /// `model_given`: the user named a model, which the first conversation is opened with.
    pub fn new(folder: PathBuf, unsaved: bool, worker: Worker, models: Arc<dyn Models>, model_given: bool) -> Self {
        let folder = Folder::new(folder);
        let session = if unsaved { Session::unsaved() } else { folder.create() };
        Self {
            folder,
            session,
            unsaved,
            cache_disk: 0,
            info: None,
            changes: Vec::new(),
            saved: None,
            left: Vec::new(),
            models,
            model_given,
            policy_given: false,
            worker,
            waiting: None,
            reading: None,
            reads: 0,
            read: None,
        }
    }

    /// Returns where the cache of the open session is kept.
    pub fn cache_file(&self) -> Option<CacheFile> {
        let path = self.session.path().filter(|_| self.cache_disk > 0)?;
        Some(CacheFile { path: session::cache_of(path), limit_bytes: self.cache_disk, has_log: false })
    }

    /// The open session, as it is announced.
    pub fn current(&self) -> NewSession {
        NewSession { id: self.session.id().to_owned(), date: self.session.template_date() }
    }

    /// Carries out an operation, or starts a job for it. Operations that leave the conversation
    /// wait until its records are written.
    pub fn run(&mut self, app: &App, what: Store) -> Vec<AppEvent> {
        let mut events = Vec::new();
        let leaves = match &what {
            Store::Close | Store::Compact(_) | Store::Open { .. } | Store::DeleteCurrent => true,
            Store::Save { path, .. } => path.is_none(),
            _ => false,
        };
        if leaves || what == Store::StopOpening {
            self.waiting = None;
        }
        // A conversation that was read waits only for its model: whether to leave this one was
        // decided before.
        let decided = matches!(&what, Store::Open { which, .. }
            if self.read.as_ref().is_some_and(|read| read.which == *which));
        if leaves && !decided && self.session.is_behind() {
            self.waiting = Some((what, Instant::now() + SETTLE));
            self.write_on();
        } else {
            self.perform(app, what, &mut events);
        }
        events
    }

    pub(super) fn perform(&mut self, app: &App, what: Store, events: &mut Vec<AppEvent>) {
        if !matches!(what, Store::Sync | Store::Open { .. }) {
            // It keeps its file locked.
            self.read = None;
        }
        match what {
            Store::Sync => self.write_on(),
            Store::Close => events.push(AppEvent::NewConversation(self.begin_session())),
            Store::Compact(summary) => {
                let continues = self.session.path().map(|_| self.session.id().to_owned());
                let session = self.begin_session();
                events.push(AppEvent::Compacted { session, continues, summary });
            }
            // Not through `run`, which would wait for the records again: once another conversation
            // is in its place, [`Sessions::replace`] keeps trying to write them.
            Store::Leave(then) => self.perform(app, *then, events),
            Store::List => self.list(),
            Store::Search(words) => self.search(words),
            Store::Open { which, with_current } => self.open(app, which, with_current, events),
            Store::StopOpening => self.reading = None,
            Store::Rename { id, title } => self.on_files("rename", move |folder| {
                folder.rename(&id, &title)?;
                Ok(Vec::new())
            }),
            Store::Delete { id } if id == self.session.id() => {
                events.push(AppEvent::Said(Level::Info, "this conversation is open; /delete deletes it".into()));
            }
            Store::Delete { id } => self.on_files("delete", move |folder| {
                folder.delete(&id)?;
                Ok(vec![AppEvent::Said(Level::Info, "deleted".into())])
            }),
            Store::DeleteCurrent => self.delete_current(events),
            Store::Save { path, overwrite } => self.save(app, path, overwrite, events),
            Store::Export { path, overwrite } => {
                self.write_on();
                self.export(app, path, overwrite, true);
            }
        }
    }

    /// Runs `work` on the sessions folder, after earlier work. An error is shown in one line.
    pub(super) fn on_files(
        &self,
        name: &'static str,
        work: impl FnOnce(&Folder) -> Result<Vec<AppEvent>> + Send + 'static,
    ) {
        let folder = self.folder.clone();
        self.worker.in_order(move || {
            let error = |e: anyhow::Error| vec![AppEvent::CommandFailed(name, clean_line(&format!("{e:#}")))];
            Outcome::Events(work(&folder).unwrap_or_else(error))
        });
    }

    /// Adds records of these changes. Before the first model they are kept until one is loaded.
    pub fn record(&mut self, chat: &Conversation, changes: Vec<Change>) {
        self.changes.extend(changes);
        if let Some(info) = &self.info {
            self.session.record(chat, &std::mem::take(&mut self.changes), info);
        }
    }

    /// Starts writing pending records, unless a write is running.
    pub(super) fn write_on(&mut self) {
        if let Some(write) = self.session.begin_write() {
            self.worker.write(move || Some(Outcome::Written(write.run())));
        }
    }

    /// Handles the result of a write.
    pub fn written(&mut self, app: &App, written: Written) -> Vec<AppEvent> {
        let mut events = Vec::new();
        let path = written.path().to_owned();
        match self.take_outcome(written) {
            Ok(moved) => {
                events.extend(moved.map(AppEvent::SessionMoved));
                self.write_on();
                // The disk may have room again for the others.
                for write in self.left.iter_mut().filter_map(Session::begin_write) {
                    self.worker.write(move || Some(Outcome::Written(write.run())));
                }
                self.left.retain(Session::is_behind);
            }
            Err(error) => {
                let why = clean_line(&format!("{error:#}"));
                let own = self.session.path() == Some(&*path);
                match self.waiting.take_if(|_| own) {
                    Some((then @ (Store::Close | Store::Compact(_) | Store::Open { .. }), _)) => {
                        events.push(AppEvent::NotSaved { why, then });
                    }
                    // The unwritten records are deleted with the rest.
                    Some((Store::DeleteCurrent, _)) => self.perform(app, Store::DeleteCurrent, &mut events),
                    _ => events.push(AppEvent::Said(Level::Error, why)),
                }
            }
        }
        if !self.session.is_behind()
            && let Some((what, _)) = self.waiting.take()
        {
            if app.turn.is_some() {
                events
                    .push(AppEvent::NotOpened(Level::Info, "this conversation stays open: an answer has begun".into()));
            } else {
                self.perform(app, what, &mut events);
            }
        }
        events
    }

    /// Returns the deadline of the operation that waits for the disk.
    pub fn overdue_at(&self) -> Option<Instant> {
        self.waiting.as_ref().map(|(_, until)| *until)
    }

    /// Gives up the operation that waits for a disk past its deadline.
    pub fn overdue(&mut self) -> Vec<AppEvent> {
        let Some((what, _)) = self.waiting.take_if(|(_, until)| *until <= Instant::now()) else { return Vec::new() };
        let why = "the disk does not answer".to_owned();
        vec![match what {
            Store::Save { .. } | Store::DeleteCurrent => AppEvent::Said(Level::Error, why),
            then => AppEvent::NotSaved { why, then },
        }]
    }

    pub(super) fn take_outcome(&mut self, written: Written) -> Result<Option<Moved>> {
        let sessions = std::iter::once(&mut self.session).chain(&mut self.left);
        let mut owner = sessions.filter(|s| s.is_writing() && s.path() == Some(written.path()));
        owner.next().map_or(Ok(None), |session| session.end_write(written))
    }

    /// Closes the open session and begins another. Its unwritten records are tried again with every
    /// write.
    pub(super) fn begin_session(&mut self) -> NewSession {
        let new = if self.unsaved { Session::unsaved() } else { self.folder.create() };
        self.replace(new);
        self.current()
    }

    pub(super) fn replace(&mut self, session: Session) {
        let old = std::mem::replace(&mut self.session, session);
        self.changes.clear();
        if old.is_behind() {
            self.left.push(old);
        }
    }

    pub(super) fn list(&self) {
        let entry = |e: session::Entry| SessionEntry {
            when: e.date(),
            haystack: e.as_ref().to_owned(),
            id: e.id,
            title: e.title,
            tags: e.tags,
            turns: e.turns,
            model: e.model,
            preview: e.preview,
            ratio: e.ratio,
            bytes: e.bytes,
            continues: e.continues,
        };
        self.on_files("sessions", move |folder| {
            Ok(vec![AppEvent::Sessions(folder.list().into_iter().map(entry).collect())])
        });
    }

    /// Looks for words on a thread of its own: nothing waits for it.
    fn search(&self, words: String) {
        let folder = self.folder.clone();
        self.worker.beside(move || {
            let mut result = SearchResult { words, ..SearchResult::default() };
            if let Some(query) = Query::new(&result.words) {
                let SearchResult { hits, more, .. } = &mut result;
                let searched = folder.search_texts(&query, |found| {
                    let when = session::local_time(found.modified);
                    *more += found.more;
                    for passage in found.passages {
                        let (session, title) = (found.id.clone(), found.title.clone());
                        match hits.len() < MAX_HITS {
                            true => hits.push(SearchHit { session, title, when: when.clone(), passage }),
                            false => *more += 1,
                        }
                    }
                    true
                });
                result.unread = searched.unread;
            }
            AppEvent::Searched(Box::new(result))
        });
    }

    pub(super) fn open(&mut self, app: &App, which: Which, with_current: bool, events: &mut Vec<AppEvent>) {
        if matches!(&which, Which::Id(id) | Which::Named(id) if id == self.session.id()) {
            return events.push(AppEvent::NotOpened(Level::Info, "this conversation is open already".into()));
        }
        match self.read.take().filter(|read| read.which == which) {
            Some(read) => events.extend(self.was_read(app, Box::new(Read { with_current, ..*read }))),
            None => self.read(which, with_current),
        }
    }

    /// Starts reading a saved conversation; [`Outcome::Read`] returns it.
    pub fn read(&mut self, which: Which, with_current: bool) {
        self.reads += 1;
        self.reading = Some(self.reads);
        let (id, folder, models) = (self.reads, self.folder.clone(), Arc::clone(&self.models));
        self.worker.in_order(move || {
            let result = match &which {
                Which::Newest => folder.newest().and_then(|id| folder.open(&id)),
                Which::Id(id) => folder.open(id),
                Which::Named(name) => folder.resume(name),
            };
            let result = result.map_err(|e| clean_line(&format!("{e:#}")));
            let model = result.as_ref().ok().map(|(_, loaded)| models.find(loaded.model()));
            let path = result.as_ref().ok().and_then(|(session, _)| session.path());
            let cached = path.is_some_and(|path| session::cache_of(path).exists());
            Outcome::Read(Box::new(Read { id, which, with_current, result, model, cached }))
        });
    }

    /// Returns the conversation if it is the one that is waited for.
    pub fn expect(&mut self, read: Box<Read>) -> Option<Box<Read>> {
        self.reading.take_if(|id| *id == read.id).map(|_| read)
    }

    /// Keeps a conversation that was read until its model is loaded.
    pub fn keep(&mut self, read: Box<Read>) {
        self.read = Some(read);
    }

    /// Opens a conversation that was read, unless it was held with another model.
    pub fn was_read(&mut self, app: &App, read: Box<Read>) -> Vec<AppEvent> {
        let loaded = match &read.result {
            Ok((_, loaded)) => loaded,
            Err(why) => return vec![AppEvent::NotOpened(Level::Error, why.clone())],
        };
        let (model, current) = (loaded.model(), app.engine.info.as_ref());
        let same_cache = |info: &ModelInfo| self.policy_given || model.same_cache(&info.identity);
        let fits = read.with_current
            || self.model_given
            || current.is_some_and(|info| model.fits(&info.identity) && same_cache(info));
        let which = read.which.clone();
        let other = match read.model.clone().filter(|_| !fits) {
            None => None,
            Some(Ok(reference)) if current.and_then(|i| i.identity.reference.as_ref()) == Some(&reference) => None,
            Some(Ok(reference)) => Some(AppEvent::OpenNeedsModel { which, reference }),
            // Old files name no model that could be looked up; a notice follows when they are
            // opened.
            Some(Err(_)) if model.reference.is_none() => None,
            Some(Err(why)) => Some(AppEvent::OpenLacksModel { which, model: model.name.clone(), why }),
        };
        if let Some(event) = other {
            self.read = Some(read);
            return vec![event];
        }
        match read.result {
            Ok((session, loaded)) => vec![self.opened(app, session, loaded, read.cached)],
            Err(_) => Vec::new(),
        }
    }

    pub(super) fn opened(&mut self, app: &App, session: Session, mut loaded: Loaded, cached: bool) -> AppEvent {
        self.replace(session);
        self.model_given = false;
        let mut notices = std::mem::take(&mut loaded.problems);
        let (mut restore, mut loads) = (None, false);
        if let Some(info) = &app.engine.info {
            let (mut request, notice) = loaded.restore_for(info);
            notices.extend(notice.or_else(|| shorten(&mut request, &loaded.conversation, info)));
            request.cache = request.cache.filter(|_| self.cache_disk > 0);
            let tokens = tokens_of(&request);
            loads = tokens > 0 && (tokens <= REPLAYED_AT_ONCE || (cached && request.cache.is_some()));
            restore = Some(Box::new(request));
        }
        AppEvent::Opened(Box::new(Opened {
            id: self.session.id().to_owned(),
            date: self.session.template_date(),
            eviction: loaded.eviction,
            chat: loaded.conversation,
            notices,
            restore,
            loads,
        }))
    }

    pub(super) fn delete_current(&mut self, events: &mut Vec<AppEvent>) {
        let (id, path) = (self.session.id().to_owned(), self.session.path().map(Path::to_owned));
        events.push(AppEvent::NewConversation(self.begin_session()));
        self.left.retain(|session| session.id() != id);
        self.on_files("delete", move |folder| {
            if path.is_some_and(|path| path.exists()) {
                folder.delete(&id)?;
            }
            Ok(vec![AppEvent::Said(Level::Info, "deleted".into())])
        });
    }

    pub(super) fn save(&mut self, app: &App, path: Option<PathBuf>, overwrite: bool, events: &mut Vec<AppEvent>) {
        match (path, self.session.path()) {
            (None, Some(kept)) => events.push(saved(kept)),
            (path, _) => {
                self.write_on();
                let path = path.unwrap_or_else(|| PathBuf::from(format!("dmschat-{}.jsonl", self.session.id())));
                self.export(app, path, overwrite, false);
            }
        }
    }

    /// Writes the conversation to a file that the user names.
    pub(super) fn export(&self, app: &App, path: PathBuf, overwrite: bool, export: bool) {
        let path = expand_home(&path);
        let text = match &self.info {
            Some(info) if path.extension().is_some_and(|e| e == "md") => {
                let now = app.engine.snapshot.as_deref();
                let now = now.map(|now| Snapshot { eviction: app.engine.eviction, ..now.clone() });
                session::markdown(&app.chat, info, self.session.policies(), now.as_ref())
            }
            _ => self.session.jsonl().to_owned(),
        };
        self.on_files(if export { "export" } else { "save" }, move |_| {
            regular_file::check(&path).with_context(|| path.display().to_string())?;
            // A symbolic link counts as a file.
            if path.symlink_metadata().is_ok() && !overwrite {
                return Ok(vec![AppEvent::Exists { path, export }]);
            }
            session::write_atomically(&path, text.as_bytes())?;
            Ok(vec![saved(&path)])
        });
    }
}

/// Tokens of the log to restore.
pub(super) fn tokens_of(request: &RestoreRequest) -> usize {
    request.log.iter().filter(|e| matches!(e, LogEntry::Token(_))).count()
}

/// Drops a token log that is longer than the context, and returns a notice if the conversation
/// itself is.
pub(super) fn shorten(request: &mut RestoreRequest, chat: &Conversation, info: &ModelInfo) -> Option<String> {
    let tokens = tokens_of(request);
    if tokens < info.context {
        return None;
    }
    (request.log, request.pending, request.cache) = (Vec::new(), None, None);
    // The log belongs to the last turn, which may be taken back.
    let last = chat.context_path().last().and_then(|m| m.report.as_deref())?;
    let used = last.prompt_tokens + last.reasoning_tokens + last.answer_tokens;
    let (tokens, context) = (count(tokens as u64), count(info.context as u64));
    (used >= info.context).then(|| format!("{FULL}: {tokens} tokens, and it holds {context}; {WAY_OUT}"))
}

pub(super) fn saved(path: &Path) -> AppEvent {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    AppEvent::Said(Level::Info, format!("saved in {}", clean_line(&whole.display().to_string())))
}

/// Returns the options for rendering the conversation.
pub fn render_options(app: &App) -> RenderOptions {
    RenderOptions {
        think: app.options.think,
        keep_thinking: app.options.keep_thinking,
        date: app.date,
        think_tags: app.engine.info.as_ref().and_then(|i| i.think_tags.clone()),
        ..RenderOptions::default()
    }
}

#[cfg(test)]
mod tests;
