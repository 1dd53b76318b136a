//! A conversation: a tree of messages with one active path. Knows no template, file or engine.
//!
//! Messages never change: an edit or a new answer is a sibling of the old one, undo moves the head
//! back, and every branch stays reachable.

use super::places::short_title;
use super::retention::{self, Retention};
pub use super::session::record::MessageId;
use super::session::record::{Edit, Head, Log, Record, System, Title, Toggle};
use super::tags::Tags;
use crate::protocol::{LogChange, StopReason, TextKind, TurnReport};
use crate::unicode::one_line;
use std::collections::{HashMap, HashSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    User,
    Assistant,
}

impl Role {
    /// Its name in templates and files.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// One message. Texts of the model are stored as generated, so that they match its tokens.
#[derive(Clone, Debug)]
pub struct Message {
    pub id: MessageId,
    pub parent: Option<MessageId>,
    pub role: Role,
    /// The user's text, or the answer as generated (see [`Message::shown`]).
    pub text: String,
    /// The think block as generated, without its tags, if there was one.
    pub reasoning: Option<String>,
    /// Whether the think block was closed; false if the answer was cut off while thinking.
    pub reasoning_closed: bool,
    /// Whether the prompt asked for thinking.
    pub think: bool,
    /// Whether earlier think blocks were kept in this reply's prompt; `None`: as the template does.
    pub keep_thinking: Option<bool>,
    /// The message of the user that this one replaces (edit).
    pub replaces: Option<MessageId>,
    /// The engine's id of the turn; assistant messages only.
    pub turn: Option<u64>,
    /// Whether the loaded model generated it, so that the engine may reuse its tokens.
    pub own: bool,
    /// False if cache and log were rolled back to the start of the turn: the message is shown and
    /// saved, but neither it nor its question is part of the context.
    pub in_context: bool,
    /// The report of the turn; `None` while it runs, and for messages that were not generated here.
    pub report: Option<Box<TurnReport>>,
    /// Contents of the cache for each message of the path at the end of the turn.
    pub retention: Vec<Retention>,
}

impl Message {
    pub(in crate::chat) fn new(id: MessageId, parent: Option<MessageId>, role: Role, text: String) -> Self {
        Self {
            id,
            parent,
            role,
            text,
            reasoning: None,
            reasoning_closed: false,
            think: true,
            keep_thinking: None,
            replaces: None,
            turn: None,
            own: false,
            in_context: true,
            report: None,
            retention: Vec::new(),
        }
    }

    /// The text without the surrounding newlines that models write between think block and answer.
    pub fn shown(&self) -> &str {
        match self.role {
            Role::User => &self.text,
            Role::Assistant => self.text.trim_matches('\n'),
        }
    }

    /// The think block without surrounding newlines; `None` if it is empty.
    pub fn shown_reasoning(&self) -> Option<&str> {
        self.reasoning.as_deref().map(|r| r.trim_matches('\n')).filter(|r| !r.trim().is_empty())
    }

    pub fn stop_reason(&self) -> Option<StopReason> {
        self.report.as_ref().map(|r| r.stop_reason)
    }

    /// Whether it is still being generated.
    pub fn is_open(&self) -> bool {
        self.role == Role::Assistant && self.turn.is_some() && self.report.is_none()
    }
}

/// A toggle of eviction, and its place among the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The last message at that time.
    pub after: Option<MessageId>,
    /// Bytes of that message's text at that time, if it was being generated.
    pub within: Option<usize>,
    pub eviction: bool,
    /// Position in the token log.
    pub at_token: usize,
    pub dropped_slots: u64,
}

impl Mark {
    /// Whether it takes back the toggle before it: nothing came between, and neither dropped slots.
    fn takes_back(&self, before: &Self) -> bool {
        let place = |mark: &Self| (mark.after, mark.within, mark.at_token);
        place(self) == place(before)
            && self.eviction != before.eviction
            && (self.dropped_slots, before.dropped_slots) == (0, 0)
    }
}

/// A change for the session file: a record, or a finished reply, whose record also names the model.
#[derive(Clone, Debug)]
pub enum Change {
    Turn(MessageId),
    Record(Record),
}

/// A tree of messages. The active path leads from a first message to `head`.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    title: Option<String>,
    tags: Tags,
    system: Option<String>,
    /// The session that this conversation continues from a summary.
    continues: Option<String>,
    marks: Vec<Mark>,
    messages: Vec<Message>,
    /// The number of messages that follow each one; `None` counts first messages.
    children: HashMap<Option<MessageId>, usize>,
    head: Option<MessageId>,
    /// The head before the last question was sent, edited or repeated.
    asked_from: Option<MessageId>,
    /// Questions that were undone: the head moved back to before them.
    undone: HashSet<MessageId>,
    last_turn: u64,
    last_id: MessageId,
    changes: Vec<Change>,
}

impl Conversation {
    pub fn new(system: Option<String>) -> Self {
        Self { system: system.filter(|s| !s.is_empty()), ..Self::default() }
    }

    /// Whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The messages of all branches, oldest first.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    pub fn get(&self, id: MessageId) -> Option<&Message> {
        let at = self.messages.binary_search_by_key(&id, |m| m.id).ok()?;
        self.messages.get(at)
    }

    fn get_mut(&mut self, id: MessageId) -> Option<&mut Message> {
        let at = self.messages.binary_search_by_key(&id, |m| m.id).ok()?;
        self.messages.get_mut(at)
    }

    pub fn title(&self) -> Option<&str> {
        self.title.as_deref()
    }

    /// Sets the title, as one line; an empty one removes it.
    pub fn rename(&mut self, title: &str) {
        self.title = Some(one_line(title)).filter(|t| !t.is_empty());
        let title = self.title.clone();
        self.note(|id, parent| Record::Title(Title { id, parent, title, tags: None }));
    }

    pub fn tags(&self) -> &Tags {
        &self.tags
    }

    /// Replaces the tags.
    pub fn set_tags(&mut self, tags: Tags) {
        let (title, names) = (self.title.clone(), Some(tags.names().to_vec()));
        self.tags = tags;
        // With the title, which readers of older versions take from the last such record.
        self.note(|id, parent| Record::Title(Title { id, parent, title, tags: names }));
    }

    /// The id of the session that this conversation continues from a summary.
    pub fn continues(&self) -> Option<&str> {
        self.continues.as_deref()
    }

    /// Names the session that this one continues. Called before the first turn is finished.
    pub fn set_continues(&mut self, session: Option<String>) {
        self.continues = session;
    }

    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Sets the system prompt from the next turn on; an empty one removes it.
    pub fn set_system(&mut self, system: &str) {
        self.system = Some(system.to_owned()).filter(|t| !t.is_empty());
        let text = self.system.clone();
        self.note(|id, parent| Record::System(System { id, parent, text }));
    }

    /// Returns the changes since the last call, oldest first, for the session file.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// The last message of the active path.
    pub fn head(&self) -> Option<MessageId> {
        self.head
    }

    /// Activates the path to `id`. Returns false, and changes nothing, if there is no such message.
    pub fn set_head(&mut self, id: Option<MessageId>) -> bool {
        let known = id.is_none_or(|id| self.get(id).is_some());
        if known && self.head != id {
            self.head_moves(id);
            self.head = id;
            self.note(|id, parent| Record::Head(Head { id, parent }));
        }
        known
    }

    /// The active path, first message first.
    pub fn path(&self) -> Vec<&Message> {
        self.path_to(self.head)
    }

    /// The path from the first message to `id`.
    pub fn path_to(&self, id: Option<MessageId>) -> Vec<&Message> {
        let mut path = Vec::new();
        let mut at = id;
        while let Some(message) = at.and_then(|id| self.get(id)) {
            path.push(message);
            at = message.parent;
        }
        path.reverse();
        path
    }

    /// The messages of the next prompt: the active path without turns outside the context and
    /// without an unfinished reply.
    pub fn context_path(&self) -> Vec<&Message> {
        self.context_path_to(self.head)
    }

    /// Like [`Conversation::context_path`], for the path that ends at `id`.
    pub fn context_path_to(&self, id: Option<MessageId>) -> Vec<&Message> {
        let mut kept: Vec<&Message> = Vec::new();
        for message in self.path_to(id) {
            if message.is_open() {
                continue;
            }
            if !message.in_context {
                // Many templates refuse two questions in a row, so the question goes with its
                // answer.
                if kept.last().is_some_and(|m| m.role == Role::User) {
                    kept.pop();
                }
                continue;
            }
            kept.push(message);
        }
        kept
    }

    /// Appends a message of the user to the active path.
    pub fn push_user(&mut self, text: impl Into<String>) -> MessageId {
        self.asked_from = self.head;
        self.add(Role::User, text.into(), self.head)
    }

    /// Appends a reply that no engine of this process generated (loaded text, examples).
    pub fn push_assistant(&mut self, text: impl Into<String>, reasoning: Option<String>) -> MessageId {
        let id = self.add(Role::Assistant, text.into(), self.head);
        if let Some(message) = self.get_mut(id) {
            message.reasoning = reasoning;
        }
        id
    }

    /// Starts the reply to the head and returns the id of its turn. The arguments are the
    /// `RenderOptions` of its prompt.
    pub fn begin_reply(&mut self, think: bool, keep_thinking: Option<bool>) -> u64 {
        self.last_turn += 1;
        let turn = self.last_turn;
        let id = self.add(Role::Assistant, String::new(), self.head);
        if let Some(message) = self.get_mut(id) {
            message.turn = Some(turn);
            message.own = true;
            message.think = think;
            message.keep_thinking = keep_thinking;
        }
        turn
    }

    /// The reply of a turn.
    pub fn reply(&self, turn: u64) -> Option<&Message> {
        self.messages.iter().rev().find(|m| m.turn == Some(turn))
    }

    /// Appends streamed text to the reply of `turn`. Returns false if there is no such turn.
    pub fn append(&mut self, turn: u64, kind: TextKind, text: &str) -> bool {
        let Some(message) = self.messages.iter_mut().rev().find(|m| m.turn == Some(turn)) else { return false };
        match kind {
            TextKind::Reasoning => message.reasoning.get_or_insert_default().push_str(text),
            TextKind::Answer => {
                message.reasoning_closed = true;
                message.text.push_str(text);
            }
        }
        true
    }

    /// Makes the answer of `turn` so far a thought ([`crate::protocol::Event::WasThought`]).
    pub fn was_thought(&mut self, turn: u64) {
        if let Some(message) = self.messages.iter_mut().rev().find(|m| m.turn == Some(turn)) {
            let thought = std::mem::take(&mut message.text);
            message.reasoning.get_or_insert_default().push_str(&thought);
        }
    }

    /// Finishes the reply of the report's turn. Returns false if there is no such turn.
    pub fn finish(&mut self, mut report: TurnReport) -> bool {
        let retention = match (report.presence.take(), self.reply(report.turn)) {
            (Some(presence), Some(reply)) if report.in_context => {
                let path = self.path_to(Some(reply.id)).into_iter().filter(|m| m.in_context);
                let texts = self.system().map(|text| (None, None, text)).into_iter();
                let texts: Vec<_> =
                    texts.chain(path.map(|m| (Some(m.id), m.shown_reasoning(), m.text.as_str()))).collect();
                let now = retention::of_messages(&presence, &texts);
                retention::changes(&self.retention_at(reply.parent), now)
            }
            _ => Vec::new(),
        };
        let Some(message) = self.messages.iter_mut().rev().find(|m| m.turn == Some(report.turn)) else { return false };
        if report.reasoning_tokens > 0 {
            message.reasoning.get_or_insert_default();
        }
        message.reasoning_closed |= report.stop_reason == StopReason::End;
        message.in_context = report.in_context;
        message.report = Some(Box::new(report));
        message.retention = retention;
        let id = message.id;
        self.changes.push(Change::Turn(id));
        true
    }

    /// Contents of the cache for each message at the end of the last turn of the active path.
    pub fn retention(&self) -> Vec<&Retention> {
        self.retention_at(self.head)
    }

    /// The same for the path to `id`. Each reply has what its turn changed.
    fn retention_at(&self, id: Option<MessageId>) -> Vec<&Retention> {
        let replies = self.path_to(id).into_iter().filter(|m| m.report.is_some() && m.in_context);
        retention::merged(replies.map(|reply| &reply.retention[..]))
    }

    /// Replaces the user's message `id` by `text`, on a new branch without an answer yet. `None` if
    /// `id` is not a message of the user.
    pub fn edit(&mut self, id: MessageId, text: impl Into<String>) -> Option<MessageId> {
        let parent = self.get(id).filter(|m| m.role == Role::User)?.parent;
        self.asked_from = self.head;
        let text = text.into();
        let new = self.add(Role::User, text.clone(), parent);
        self.set_replaces(new, id);
        let edit = Edit { id: new, parent, time: now(), of: id, text };
        self.changes.push(Change::Record(Record::Edit(edit)));
        Some(new)
    }

    /// Moves the head back to the user's last message, to answer it again. `None` if there is none.
    pub fn regenerate(&mut self) -> Option<MessageId> {
        let asked = self.path().iter().rev().find(|m| m.role == Role::User).map(|m| m.id)?;
        self.asked_from = self.head;
        self.head = Some(asked);
        Some(asked)
    }

    /// Removes a turn without an answer: its reply, and its question unless other messages follow
    /// it. Restores the head and returns the text of the question.
    pub fn retract(&mut self, turn: u64) -> Option<String> {
        let reply = self.reply(turn)?.id;
        let asked = self.path_to(Some(reply)).iter().rev().find(|m| m.role == Role::User).map(|m| m.id)?;
        let text = self.get(asked)?.text.clone();
        for id in [reply, asked] {
            if self.messages.iter().any(|m| m.parent == Some(id)) {
                continue;
            }
            if let Some(count) = self.get(id).map(|m| m.parent).and_then(|parent| self.children.get_mut(&parent)) {
                *count -= 1;
            }
            self.messages.retain(|m| m.id != id);
            self.changes.retain(|change| match change {
                Change::Turn(turn) => *turn != id,
                Change::Record(record) => record.place().0 != id,
            });
            for mark in self.marks.iter_mut().filter(|mark| mark.after == Some(id)) {
                (mark.after, mark.within) = (self.asked_from, None);
            }
        }
        self.head = self.asked_from.filter(|id| self.get(*id).is_some());
        // A toggle meanwhile may have recorded the question in the file.
        self.note(|id, parent| Record::Head(Head { id, parent }));
        Some(text)
    }

    /// The number of [`Conversation::siblings`].
    pub fn sibling_count(&self, id: MessageId) -> usize {
        self.get(id).and_then(|m| self.children.get(&m.parent)).copied().unwrap_or(0)
    }

    /// Notes that a move of the head to `to` takes back the question after it, and that it brings
    /// back those of its own path.
    fn head_moves(&mut self, to: Option<MessageId>) {
        let left: Vec<MessageId> = self.path().iter().map(|m| m.id).collect();
        let after = to.map_or(Some(0), |to| left.iter().position(|id| *id == to).map(|at| at + 1));
        let question = after.and_then(|at| left.get(at)).copied();
        let is_question = |id: &MessageId| self.get(*id).is_some_and(|m| m.role == Role::User);
        self.undone.extend(question.filter(is_question));
        let path: Vec<MessageId> = self.path_to(to).iter().map(|m| m.id).collect();
        self.undone.retain(|id| !path.contains(id));
    }

    /// Whether this question was undone.
    pub(in crate::chat) fn is_undone(&self, id: MessageId) -> bool {
        self.undone.contains(&id)
    }

    /// Records that a message of the user replaces another.
    pub(in crate::chat) fn set_replaces(&mut self, id: MessageId, of: MessageId) {
        if let Some(message) = self.get_mut(id) {
            message.replaces = Some(of);
        }
    }

    /// Records a toggle after the last message, or within it while it is open.
    pub fn mark_toggle(&mut self, eviction: bool, at_token: usize, dropped_slots: u64) -> Mark {
        let open = self.head.and_then(|id| self.get(id)).filter(|m| m.is_open());
        self.mark_within(open.map(|m| m.text.len()), eviction, at_token, dropped_slots)
    }

    /// Records a toggle of a cache that is being rebuilt. As one within an answer, it leaves the
    /// log of the session alone: if the rebuild ends well, the log that it made follows, and if
    /// not, the old cache is used again.
    pub fn mark_toggle_in_rebuild(&mut self, eviction: bool, at_token: usize, dropped_slots: u64) -> Mark {
        let text = self.head.and_then(|id| self.get(id)).map_or(0, |m| m.text.len());
        self.mark_within(Some(text), eviction, at_token, dropped_slots)
    }

    fn mark_within(&mut self, within: Option<usize>, eviction: bool, at_token: usize, dropped_slots: u64) -> Mark {
        let mark = Mark { after: self.head, within, eviction, at_token, dropped_slots };
        self.marks.push(mark);
        self.note(|id, parent| {
            Record::Toggle(Toggle { id, parent, time: now(), eviction, at_token, at_text: within, dropped_slots })
        });
        mark
    }

    /// All toggles, oldest first.
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// The toggles that did something, oldest first: without those that were taken back at once.
    pub fn shown_marks(&self) -> Vec<&Mark> {
        let mut shown: Vec<&Mark> = Vec::new();
        for mark in &self.marks {
            match shown.last() {
                Some(before) if mark.takes_back(before) => shown.truncate(shown.len() - 1),
                _ => shown.push(mark),
            }
        }
        shown
    }

    /// Marks every reply to be encoded from its text, after another model or tokenizer was loaded.
    pub fn disown_replies(&mut self) {
        for message in &mut self.messages {
            message.own = false;
        }
    }

    /// The finished turns of all branches.
    pub fn turns(&self) -> usize {
        self.messages.iter().filter(|m| m.report.is_some()).count()
    }

    /// The title, else the beginning of the first question.
    pub fn title_or_first_line(&self) -> String {
        if let Some(title) = &self.title {
            return title.clone();
        }
        let first = self.messages.iter().find(|m| m.role == Role::User);
        short_title(first.map_or("", |m| &m.text))
    }

    /// Records a change of the token log between two turns.
    pub fn log_changed(&mut self, change: LogChange) {
        let LogChange { log_base, log, pending } = change;
        self.note(|id, parent| Record::Log(Log { id, parent, time: now(), log_base, log, pending }));
    }

    /// Notes a record with a new id, after the last message.
    fn note(&mut self, record: impl FnOnce(MessageId, Option<MessageId>) -> Record) {
        self.last_id += 1;
        self.changes.push(Change::Record(record(self.last_id, self.head)));
    }

    fn add(&mut self, role: Role, text: String, parent: Option<MessageId>) -> MessageId {
        self.last_id += 1;
        let id = self.last_id;
        self.messages.push(Message::new(id, parent, role, text));
        *self.children.entry(parent).or_default() += 1;
        self.head = Some(id);
        id
    }

    /// Inserts a message from a file and makes it the head. A known id changes nothing.
    pub(in crate::chat) fn restore(&mut self, message: Message) {
        self.restore_id(message.id);
        self.last_turn = self.last_turn.max(message.turn.unwrap_or(0));
        self.head = Some(message.id);
        if let Err(at) = self.messages.binary_search_by_key(&message.id, |m| m.id) {
            *self.children.entry(message.parent).or_default() += 1;
            self.messages.insert(at, message);
        }
    }

    /// Reserves an id that a file uses.
    pub(in crate::chat) fn restore_id(&mut self, id: MessageId) {
        self.last_id = self.last_id.max(id);
    }

    /// Returns false if there is no such message.
    pub(in crate::chat) fn restore_head(&mut self, head: Option<MessageId>) -> bool {
        let known = head.is_none_or(|id| self.get(id).is_some());
        if known {
            self.head_moves(head);
            self.head = head;
        }
        known
    }

    pub(in crate::chat) fn restore_mark(&mut self, mark: Mark) {
        self.marks.push(mark);
    }

    pub(in crate::chat) fn restore_facts(&mut self, title: Option<String>, tags: Tags, system: Option<String>) {
        self.tags = tags;
        self.title = title.map(|title| one_line(&title)).filter(|title| !title.is_empty());
        self.system = system;
    }

    /// Marks the replies whose tokens the loaded model may reuse.
    pub(in crate::chat) fn own_replies(&mut self, own: impl Fn(u64) -> bool) {
        for message in &mut self.messages {
            message.own = message.turn.is_some_and(&own);
        }
    }
}

/// The time of a record: RFC 3339, UTC.
pub(in crate::chat) fn now() -> String {
    jiff::Timestamp::now().to_string()
}
