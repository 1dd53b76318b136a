//! Sessions: what a conversation was, on disk, one record per event, so that it can be gone on with
//! and its cache statistics read later. `docs/session.md` is the schema.
//!
//! A session takes what the conversation's journal says and appends it; what could not be written
//! waits for the next time, so that nothing is lost while the program runs. Knows no widget and no
//! engine.

mod export;
mod file;
mod load;
mod record;
mod store;

pub use export::markdown;
pub use file::write_atomically;
pub use load::{Loaded, last_stamp, load};
pub use record::{FORMAT, Record, Stamp, VERSION};
pub use store::{Entry, Store};

use super::conversation::{Change, ChangeKind, Conversation, MessageId, Role};
use crate::protocol::ModelInfo;
use anyhow::Result;
use file::LineFile;
use record::{Edit, Head, Header, Question, Said, System, Title, Toggle, Turn};
use std::collections::HashSet;
use std::path::Path;

/// One conversation's records: those written, and those that wait.
#[derive(Debug)]
pub struct Session {
    id: String,
    created: String,
    date: jiff::civil::DateTime,
    /// Absent: this conversation is kept out of the data folder.
    file: Option<LineFile>,
    /// Every record, each a line with its newline; the header first, once there is a turn.
    lines: Vec<String>,
    /// So many of `lines` are safely in the file.
    written: usize,
    started: bool,
    /// Messages that some record tells.
    told: HashSet<MessageId>,
}

impl Session {
    /// A session that is not written anywhere (`--no-session`); `/save` and `/export` still work.
    pub fn unsaved() -> Self {
        Self::with_file(new_id(), None)
    }

    fn with_file(id: String, file: Option<LineFile>) -> Self {
        let now = jiff::Zoned::now();
        Self {
            id,
            created: now.timestamp().to_string(),
            date: now.datetime(),
            file,
            lines: Vec::new(),
            written: 0,
            started: false,
            told: HashSet::new(),
        }
    }

    /// Takes the place of a session that was read from `text`, of which `written` says whether it
    /// is the content of `file`.
    fn of_loaded(id: String, file: Option<LineFile>, text: &str, written: bool, loaded: &Loaded) -> Self {
        let mut session = Self::with_file(id, file);
        session.lines = text.split_inclusive('\n').map(str::to_owned).collect();
        session.written = if written { session.lines.len() } else { 0 };
        session.started = true;
        session.created.clone_from(&loaded.header.created);
        session.date = loaded.header.template_date.parse().unwrap_or(session.date);
        session.told = loaded.conversation.messages().iter().map(|m| m.id).collect();
        session
    }

    /// The session's name, which is also its file's.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Where it is written, or would be at the first turn.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(LineFile::path)
    }

    /// "Now" to the chat template, for as long as the session lasts.
    pub fn template_date(&self) -> jiff::civil::DateTime {
        self.date
    }

    /// Writes what has happened since the last call. Before the first finished turn nothing is
    /// written and no file is made. The error is one line to show: the records wait, and the next
    /// call tries again.
    pub fn sync(&mut self, chat: &mut Conversation, info: &ModelInfo) -> Result<()> {
        for change in chat.take_changes() {
            self.note(chat, &change, info);
        }
        self.flush()
    }

    /// Tries again to write what waits.
    pub fn flush(&mut self) -> Result<()> {
        let Some(file) = self.file.as_mut().filter(|_| self.started && self.written < self.lines.len()) else {
            return Ok(());
        };
        file.append(&self.lines[self.written..].concat(), &self.id)
            .map_err(|e| anyhow::anyhow!("the session is not saved for now: {e:#}; the next turn tries again"))?;
        self.written = self.lines.len();
        Ok(())
    }

    /// True while there are records that could not be written.
    pub fn is_behind(&self) -> bool {
        self.started && self.file.is_some() && self.written < self.lines.len()
    }

    /// The whole session in the schema of the session file; empty before the first turn.
    pub fn jsonl(&self) -> String {
        if self.started { self.lines.concat() } else { String::new() }
    }

    fn note(&mut self, chat: &Conversation, change: &Change, info: &ModelInfo) {
        let (id, parent) = (change.id, change.after);
        let time = jiff::Timestamp::now().to_string();
        match change.kind {
            ChangeKind::Turn => {
                if !self.started {
                    self.start(chat, info);
                }
                self.turn(chat, id, time, info);
            }
            ChangeKind::Edit { of } => {
                self.tell_users(chat, parent);
                let text = chat.get(id).map(|m| m.text.clone()).unwrap_or_default();
                self.told.insert(id);
                self.push(&Record::Edit(Edit { id, parent, time, of, text }));
            }
            ChangeKind::Toggle(mark) => {
                self.tell_users(chat, parent);
                let (eviction, at_token, dropped_slots) = (mark.eviction, mark.at_token, mark.dropped_slots);
                self.push(&Record::Toggle(Toggle { id, parent, time, eviction, at_token, dropped_slots }));
            }
            ChangeKind::Head => {
                self.tell_users(chat, parent);
                self.push(&Record::Head(Head { id, parent }));
            }
            // The header says the system prompt that the first turn had.
            ChangeKind::System if !self.started => {}
            ChangeKind::System => {
                self.push(&Record::System(System { id, parent, text: chat.system().map(str::to_owned) }));
            }
            ChangeKind::Title => {
                self.push(&Record::Title(Title { id, parent, title: chat.title().map(str::to_owned) }));
            }
        }
    }

    /// The header comes first, before what was noted while there was no turn yet.
    fn start(&mut self, chat: &Conversation, info: &ModelInfo) {
        let header = Header::new(&self.id, self.created.clone(), self.date.to_string(), info, chat.system());
        let noted = std::mem::take(&mut self.lines);
        self.push(&Record::Header(Box::new(header)));
        self.lines.extend(noted);
        self.started = true;
    }

    fn turn(&mut self, chat: &Conversation, id: MessageId, time: String, info: &ModelInfo) {
        let Some(reply) = chat.get(id) else { return };
        let Some(report) = reply.report.as_deref() else { return };
        let user = reply.parent.and_then(|p| chat.get(p)).filter(|m| m.role == Role::User);
        self.tell_users(chat, user.map_or(reply.parent, |m| m.parent));
        self.told.extend(user.map(|m| m.id));
        self.told.insert(id);
        self.push(&Record::Turn(Box::new(Turn {
            id,
            parent: reply.parent,
            time,
            user: user.map(|m| Question { id: m.id, parent: m.parent, text: m.text.clone() }),
            text: reply.text.clone(),
            reasoning: reply.reasoning.clone(),
            reasoning_closed: reply.reasoning_closed,
            think: reply.think,
            keep_thinking: reply.keep_thinking,
            model: Stamp::of(info),
            report: report.clone(),
        })));
    }

    /// Tells the user's messages on the way to `id` that no record tells yet.
    fn tell_users(&mut self, chat: &Conversation, id: Option<MessageId>) {
        for message in chat.path_to(id) {
            if message.role == Role::User && self.told.insert(message.id) {
                let (id, parent, text) = (message.id, message.parent, message.text.clone());
                self.push(&Record::Message(Said { id, parent, text }));
            }
        }
    }

    fn push(&mut self, record: &Record) {
        // Plain data with string keys: this cannot fail.
        if let Ok(mut line) = serde_json::to_string(record) {
            line.push('\n');
            self.lines.push(line);
        }
    }
}

/// Sorts by time: `20261121-041530-9f3a`.
fn new_id() -> String {
    let mut random = [0; 2];
    // Without randomness the time alone must tell sessions apart.
    let _ = getrandom::fill(&mut random);
    let now = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
    format!("{now}-{:02x}{:02x}", random[0], random[1])
}
