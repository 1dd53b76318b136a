//! One conversation's records: those written, and those to come.

use super::super::conversation::{Change, Conversation, MessageId, Role, now};
use super::file::{AppendError, LineFile};
use super::load::Loaded;
use super::record;
use super::record::Policies;
use super::record::{Header, Said, Turn};
use super::record::{Policy, Record};
use super::whole::create_new;
use crate::protocol::ModelInfo;
use anyhow::{Result, anyhow};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// The records of one conversation, written and pending.
#[derive(Debug)]
pub struct Session {
    pub(super) id: String,
    pub(super) created: String,
    pub(super) date: jiff::civil::DateTime,
    /// `None`: this conversation is not saved.
    pub(super) file: File,
    /// All records, each a line with its newline; starts with the header once there is a turn.
    pub(super) text: String,
    /// Bytes of `text` that are synced to the file.
    pub(super) written: usize,
    pub(super) started: bool,
    /// Messages that have a record.
    pub(super) recorded: HashSet<MessageId>,
    pub(super) policies: Policies,
}

/// Where a session is saved.
#[derive(Debug)]
pub(super) enum File {
    /// Nowhere.
    None,
    Here(LineFile),
    /// A [`Write`] holds the file; this is its path.
    Away(PathBuf),
}

/// Lines to be written, and their file.
#[derive(Debug)]
pub struct Write {
    pub(super) file: LineFile,
    pub(super) lines: String,
    pub(super) id: String,
}

/// The outcome of a [`Write`].
#[derive(Debug)]
pub struct Written {
    pub(super) file: LineFile,
    pub(super) bytes: usize,
    pub(super) outcome: Result<(), AppendError>,
}

impl Written {
    /// Its file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Write {
    /// Appends and syncs. Waits for the disk.
    pub fn run(mut self) -> Written {
        let outcome = self.file.append(&self.lines, &self.id);
        Written { file: self.file, bytes: self.lines.len(), outcome }
    }
}

/// A session that continues in a new file because another program changed the old one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    pub from: String,
    pub to: String,
}

impl Session {
    /// A session that is not saved (`--no-session`); `/save` and `/export` still work.
    pub fn unsaved() -> Self {
        Self::with_file(new_id(), None)
    }

    pub(super) fn with_file(id: String, file: Option<LineFile>) -> Self {
        let now = jiff::Zoned::now();
        Self {
            id,
            created: now.timestamp().to_string(),
            date: now.datetime(),
            file: file.map_or(File::None, File::Here),
            text: String::new(),
            written: 0,
            started: false,
            recorded: HashSet::new(),
            policies: Policies::new(),
        }
    }

    /// The session that was read from `text`. `written`: whether `text` is the content of `file`.
    pub(super) fn of_loaded(id: String, file: Option<LineFile>, text: String, written: bool, loaded: &Loaded) -> Self {
        let mut session = Self::with_file(id, file);
        session.text = text;
        session.written = if written { session.text.len() } else { 0 };
        session.started = true;
        session.created.clone_from(&loaded.header.created);
        session.date = loaded.header.template_date.parse().unwrap_or(session.date);
        session.recorded = loaded.conversation.messages().iter().map(|m| m.id).collect();
        session.policies = loaded.policies();
        session
    }

    /// The session's id, which is also the name of its file.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The cache's policy in each turn, by the turn's number, as far as it is known.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// Its file, which may not exist before the first turn.
    pub fn path(&self) -> Option<&Path> {
        match &self.file {
            File::None => None,
            File::Here(file) => Some(file.path()),
            File::Away(path) => Some(path),
        }
    }

    /// The date and time for the chat template, fixed for the session.
    pub fn template_date(&self) -> jiff::civil::DateTime {
        self.date
    }

    /// Writes the changes since the last call. Creates no file before the first finished turn. On
    /// an error (one line) the records are kept, and the next call tries again.
    pub fn sync(&mut self, chat: &mut Conversation, info: &ModelInfo) -> Result<Option<Moved>> {
        self.take(chat, info);
        self.flush()
    }

    /// Collects the changes since the last call, to be written later.
    pub fn take(&mut self, chat: &mut Conversation, info: &ModelInfo) {
        let changes = chat.take_changes();
        self.record(chat, &changes, info);
    }

    /// Adds the records of changes, to be written later.
    pub fn record(&mut self, chat: &Conversation, changes: &[Change], info: &ModelInfo) {
        for change in changes {
            match change {
                Change::Turn(reply) => self.turn(chat, *reply, info),
                Change::Record(record) => self.note(chat, record),
            }
        }
    }

    /// Writes the pending records. Returns the new file if it had to start one.
    pub fn flush(&mut self) -> Result<Option<Moved>> {
        let mut moved = None;
        while let Some(write) = self.begin_write() {
            moved = self.end_write(write.run())?.or(moved);
        }
        Ok(moved)
    }

    /// The pending records as a [`Write`], to be run and passed to [`Session::end_write`]; `None`
    /// if there are none or a write is in progress.
    pub fn begin_write(&mut self) -> Option<Write> {
        if !self.is_behind() {
            return None;
        }
        let lines = self.text[self.written..].to_owned();
        match std::mem::replace(&mut self.file, File::None) {
            File::Here(file) => {
                self.file = File::Away(file.path().to_owned());
                Some(Write { file, lines, id: self.id.clone() })
            }
            other => {
                self.file = other;
                None
            }
        }
    }

    /// Handles the outcome of a write. A file that another program has changed is not touched: all
    /// records go to a new one.
    pub fn end_write(&mut self, written: Written) -> Result<Option<Moved>> {
        let path = written.file.path().to_owned();
        self.file = File::Here(written.file);
        match written.outcome {
            Ok(()) => {
                self.written += written.bytes;
                Ok(None)
            }
            Err(AppendError::Changed(_)) => {
                let moved = Moved { from: self.id.clone(), to: new_id() };
                self.id.clone_from(&moved.to);
                self.text = record::with_session_name(&self.text, &self.id);
                self.file = File::Here(LineFile::new(path.with_file_name(format!("{}.jsonl", self.id))));
                self.written = 0;
                Ok(Some(moved))
            }
            Err(AppendError::Failed(e)) => {
                Err(anyhow!("the session is not saved for now: {e:#}; the next turn tries again"))
            }
        }
    }

    /// Whether a [`Write`] is in progress.
    pub fn is_writing(&self) -> bool {
        matches!(self.file, File::Away(_))
    }

    /// Whether the conversation is in its file, all of it.
    pub fn is_saved(&self) -> bool {
        self.written > 0 && !matches!(self.file, File::None) && !self.is_behind()
    }

    /// Whether there are records that are not in the file.
    pub fn is_behind(&self) -> bool {
        self.started && !matches!(self.file, File::None) && self.written < self.text.len()
    }

    /// Writes the session to a new file in the temporary folder, for an exit while its own file
    /// cannot be written.
    pub fn rescue(&self) -> Result<PathBuf> {
        use std::io::Write;
        let folder = std::env::temp_dir();
        let in_context = |e: std::io::Error| anyhow!("{}: {e}", folder.display());
        let (path, mut file) = create_new(&folder, "dmschat-", ".jsonl").map_err(in_context)?;
        file.write_all(self.text.as_bytes()).and_then(|()| file.sync_all()).map_err(in_context)?;
        Ok(path)
    }

    /// The session in the schema of the session file; empty before the first turn.
    pub fn jsonl(&self) -> &str {
        if self.started { &self.text } else { "" }
    }

    /// Adds the record of a change, after the records of the messages that it follows.
    pub(super) fn note(&mut self, chat: &Conversation, record: &Record) {
        match record {
            // The header has the system prompt of the first turn.
            Record::System(_) if !self.started => return,
            Record::System(_) | Record::Title(_) => {}
            _ => self.tell_users(chat, record.place().1),
        }
        if let Record::Edit(edit) = record {
            self.recorded.insert(edit.id);
        }
        self.push(record);
    }

    /// The header precedes the records from before the first turn.
    pub(super) fn start(&mut self, chat: &Conversation, info: &ModelInfo) {
        let header = Header {
            continues: chat.continues().map(str::to_owned),
            ..Header::new(&self.id, self.created.clone(), self.date.to_string(), info, chat.system())
        };
        let noted = std::mem::take(&mut self.text);
        self.push(&Record::Header(Box::new(header)));
        self.text.push_str(&noted);
        self.started = true;
    }

    pub(super) fn turn(&mut self, chat: &Conversation, id: MessageId, info: &ModelInfo) {
        if !self.started {
            self.start(chat, info);
        }
        let Some(reply) = chat.get(id) else { return };
        let Some(report) = reply.report.as_deref() else { return };
        let user = reply.parent.and_then(|p| chat.get(p)).filter(|m| m.role == Role::User);
        self.tell_users(chat, user.map_or(reply.parent, |m| m.parent));
        self.recorded.extend(user.map(|m| m.id));
        self.recorded.insert(id);
        self.policies.insert(report.turn, Policy::of(info));
        self.push(&Record::Turn(Box::new(Turn {
            id,
            parent: reply.parent,
            time: now(),
            user: user.map(|m| Said { id: m.id, parent: m.parent, text: m.text.clone() }),
            text: reply.text.clone(),
            reasoning: reply.reasoning.clone(),
            reasoning_closed: reply.reasoning_closed,
            think: reply.think,
            keep_thinking: reply.keep_thinking,
            model: info.identity.clone(),
            cache: Some(Policy::of(info)),
            report: report.clone(),
            retention: reply.retention.clone(),
        })));
    }

    /// Adds records for the user's messages on the path to `id` that have none.
    pub(super) fn tell_users(&mut self, chat: &Conversation, id: Option<MessageId>) {
        for message in chat.path_to(id) {
            if message.role == Role::User && self.recorded.insert(message.id) {
                let (id, parent, text) = (message.id, message.parent, message.text.clone());
                self.push(&Record::Message(Said { id, parent, text }));
            }
        }
    }

    pub(super) fn push(&mut self, record: &Record) {
        // Plain data with string keys always serializes.
        if let Ok(line) = serde_json::to_string(record) {
            self.text.push_str(&line);
            self.text.push('\n');
        }
    }
}

/// An id that sorts by time: `20261121-041530-9f3a`.
pub(super) fn new_id() -> String {
    let mut random = [0; 2];
    // Without randomness, the time alone distinguishes sessions.
    let _ = getrandom::fill(&mut random);
    let now = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
    format!("{now}-{:02x}{:02x}", random[0], random[1])
}
