//! Reads the lines of a session file into a conversation and the engine's token log. Opens no file.

use super::Policies;
use super::record::{FORMAT, Header, Policy, Record, Turn, VERSION};
use crate::chat::conversation::{Conversation, Mark, Message, MessageId, Role};
use crate::chat::tags::Tags;
use crate::policy::PolicyKind;
use crate::protocol::{LogEntry, ModelIdentity, ModelInfo, RestoreRequest, Token};
use crate::unicode::one_line;
use anyhow::{Result, bail};
use std::collections::HashSet;
use std::path::PathBuf;

/// Largest ids and counts. dmschat writes smaller ones, and their sums do not overflow.
const MAX_NUMBER: u64 = 1 << 53;
/// Problems that are reported individually.
const MAX_PROBLEMS: usize = 10;

/// The content of a session file.
#[derive(Debug)]
pub struct Loaded {
    pub conversation: Conversation,
    pub header: Header,
    /// The eviction state at the end; `None` if there is no turn and no toggle.
    pub eviction: Option<bool>,
    /// One line for each unreadable line of the file, with its number.
    pub problems: Vec<String>,
    /// The file of its cache, which may not exist; `None` for a copy of a session.
    pub cache: Option<PathBuf>,
    turns: Vec<SavedTurn>,
    log: Vec<LogEntry>,
    /// The last message when the log was what it is.
    log_of: Option<MessageId>,
    /// False after a turn whose log does not continue the one before it.
    log_fits: bool,
    /// The token after the log that was not fed, if the last turn states it.
    pending: Option<Option<Token>>,
}

/// The model of a turn, for its tokens.
#[derive(Debug)]
struct SavedTurn {
    turn: u64,
    model: ModelIdentity,
    policy: Option<Policy>,
    generated: Vec<Token>,
    in_context: bool,
    /// Entries of the log at its end, while the log still begins with them, and the token after
    /// them.
    end: Option<usize>,
    pending: Option<Option<Token>>,
}

/// Reads all lines. Broken lines are reported and skipped. Fails without a header of a supported
/// version.
pub fn load(text: &[u8], name: &str) -> Result<Loaded> {
    let mut lines = text.split(|b| *b == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    let header = match lines.next().map(|(_, line)| Record::parse(line)) {
        Some(Ok(Record::Header(header))) if header.format == FORMAT => *header,
        Some(Ok(_) | Err(_)) => {
            let version = newer_version(text);
            bail!("session {name}: line 1 {}", version.unwrap_or_else(|| "is not a session header".into()))
        }
        None => bail!("session {name}: the file has no complete line"),
    };
    if header.version > VERSION {
        bail!("session {name}: version {} is newer than this dmschat reads ({VERSION})", header.version);
    }
    let mut loading = Loading {
        system: header.system.clone(),
        title: None,
        tags: Tags::default(),
        tokens: 0,
        out: Loaded::new(header),
    };
    let (mut problems, mut more) = (Vec::new(), 0);
    for (index, line) in lines {
        let read = Record::parse(line).map_err(|e| e.to_string()).and_then(|record| loading.take(record));
        match read {
            Err(what) if problems.len() < MAX_PROBLEMS => {
                problems.push(one_line(&format!("session {name}: line {} is left out: {what}", index + 1)));
            }
            Err(_) => more += 1,
            Ok(()) => {}
        }
    }
    if more > 0 {
        problems.push(format!("session {name}: {more} more lines are left out"));
    }
    Ok(loading.finish(problems))
}

/// The message for a header of an unsupported version.
fn newer_version(text: &[u8]) -> Option<String> {
    let line = text.split(|b| *b == b'\n').next()?;
    let value: serde_json::Value = serde_json::from_slice(line).ok()?;
    let version = value.get("version")?.as_u64().filter(|v| *v > u64::from(VERSION))?;
    Some(format!("says version {version}, which is newer than this dmschat reads ({VERSION})"))
}

struct Loading {
    out: Loaded,
    system: Option<String>,
    title: Option<String>,
    tags: Tags,
    /// Number of tokens in the log.
    tokens: usize,
}

impl Loading {
    fn take(&mut self, record: Record) -> Result<(), String> {
        check_numbers(&record)?;
        match record {
            Record::Header(_) => return Err("a second header".to_owned()),
            Record::Turn(turn) => return self.turn(*turn),
            Record::Message(said) => self.user(said.id, said.parent, said.text)?,
            Record::Edit(edit) => {
                self.user(edit.id, edit.parent, edit.text)?;
                self.out.conversation.set_replaces(edit.id, edit.of);
            }
            Record::Toggle(toggle) => {
                self.out.conversation.restore_id(toggle.id);
                self.out.conversation.restore_mark(Mark {
                    after: toggle.parent,
                    within: toggle.at_text,
                    eviction: toggle.eviction,
                    at_token: toggle.at_token,
                    dropped_slots: toggle.dropped_slots,
                });
                self.out.eviction = Some(toggle.eviction);
                // One within a turn is in that turn's log. Older versions wrote one at 0 tokens
                // where the conversation was not in the cache.
                let cuts = self.tokens > toggle.at_token;
                if !cuts || toggle.at_text.is_none() && (toggle.at_token > 0 || toggle.parent.is_none()) {
                    self.log_toggle(toggle.at_token, toggle.eviction);
                    self.out.log_of = toggle.parent;
                }
            }
            Record::Log(record) => {
                self.out.conversation.restore_id(record.id);
                self.extend_log(record.log_base, &record.log);
                self.out.log_of = record.parent;
                self.out.pending = Some(record.pending);
            }
            Record::Head(head) => {
                self.out.conversation.restore_id(head.id);
                if !self.out.conversation.restore_head(head.parent) {
                    return Err(format!("there is no message {:?}", head.parent));
                }
            }
            Record::System(system) => {
                self.out.conversation.restore_id(system.id);
                self.system = system.text;
            }
            Record::Title(title) => {
                self.out.conversation.restore_id(title.id);
                self.title = title.title;
                if let Some(tags) = title.tags {
                    self.tags = Tags::read(tags);
                }
            }
        }
        Ok(())
    }

    fn user(&mut self, id: MessageId, parent: Option<MessageId>, text: String) -> Result<(), String> {
        self.known(id, parent)?;
        self.out.conversation.restore(Message::new(id, parent, Role::User, text));
        Ok(())
    }

    /// A message follows an earlier one that was read, or none.
    fn known(&self, id: MessageId, parent: Option<MessageId>) -> Result<(), String> {
        match parent {
            Some(parent) if parent >= id || self.out.conversation.get(parent).is_none() => {
                Err(format!("message {id} follows message {parent}, which does not exist"))
            }
            _ => Ok(()),
        }
    }

    fn turn(&mut self, turn: Turn) -> Result<(), String> {
        let report = turn.report;
        // The tokens are counted even if the text is not usable.
        self.extend_log(report.log_base, &report.log);
        (self.out.log_of, self.out.pending) = (Some(turn.id), report.pending);
        self.out.eviction = Some(report.eviction);
        if let Some(user) = turn.user {
            self.user(user.id, user.parent, user.text)?;
        }
        self.known(turn.id, turn.parent)?;
        let mut message = Message::new(turn.id, turn.parent, Role::Assistant, turn.text);
        message.reasoning = turn.reasoning;
        message.reasoning_closed = turn.reasoning_closed;
        message.think = turn.think;
        message.keep_thinking = turn.keep_thinking;
        message.turn = Some(report.turn);
        message.in_context = report.in_context;
        message.retention = turn.retention;
        let (generated, in_context) = (report.generated.clone(), report.in_context);
        self.out.turns.push(SavedTurn {
            turn: report.turn,
            model: turn.model,
            policy: turn.cache,
            generated,
            in_context,
            end: Some(self.out.log.len()),
            pending: report.pending,
        });
        message.report = Some(Box::new(report));
        self.out.conversation.restore(message);
        Ok(())
    }

    /// Replaces the log after its first `base` entries.
    fn extend_log(&mut self, base: usize, log: &[LogEntry]) {
        self.out.log_fits &= base <= self.out.log.len();
        self.cut_log(base);
        self.tokens += log.iter().filter_map(LogEntry::token).count();
        self.out.log.extend(log);
    }

    /// Truncates the log to `n` entries.
    fn cut_log(&mut self, n: usize) {
        for turn in &mut self.out.turns {
            turn.end.take_if(|end| *end > n);
        }
        while self.out.log.len() > n {
            self.tokens -= usize::from(self.out.log.pop().is_some_and(|entry| entry.token().is_some()));
        }
    }

    /// Inserts a toggle after `at_token` tokens.
    fn log_toggle(&mut self, at_token: usize, eviction: bool) {
        if self.tokens > at_token {
            // After an undo, the pending token is not the last turn's.
            self.out.pending = None;
        }
        while self.tokens > at_token {
            self.cut_log(self.out.log.len() - 1);
        }
        self.out.log.push(LogEntry::Toggle { eviction });
    }

    fn finish(self, problems: Vec<String>) -> Loaded {
        let mut out = Loaded { problems, ..self.out };
        out.conversation.restore_facts(self.title, self.tags, self.system);
        out.conversation.set_continues(out.header.continues.clone());
        out
    }
}

/// Fails on ids and counts out of range.
fn check_numbers(record: &Record) -> Result<(), String> {
    let (id, parent) = record.place();
    let mut numbers = vec![id, parent.unwrap_or(0)];
    match record {
        Record::Turn(turn) => {
            let (r, kv) = (&turn.report, &turn.report.kv);
            let counts = [r.prompt_tokens, r.reused_tokens, r.answer_tokens, r.reasoning_tokens, r.log_base];
            numbers.extend(counts.map(|n| n as u64));
            numbers.extend([r.turn, kv.live_slots, kv.dense_slots, kv.bytes, kv.live_bytes, kv.dense_bytes]);
            numbers.extend(kv.dense.iter().map(|&dense| u64::from(dense)));
            numbers.extend(kv.far.iter().flat_map(|far| [far.rows, far.near, far.dropped, far.bytes]));
            let kept = turn.retention.iter().flat_map(|r| {
                let bytes = r.stretches.iter().fold(0u64, |sum, s| sum.saturating_add(s.0 as u64));
                [r.message.unwrap_or(0), r.tokens as u64, bytes]
            });
            numbers.extend(kept);
            numbers.extend(turn.user.iter().flat_map(|u| [u.id, u.parent.unwrap_or(0)]));
        }
        Record::Log(record) => numbers.push(record.log_base as u64),
        Record::Toggle(toggle) => numbers.extend([toggle.at_token as u64, toggle.dropped_slots]),
        Record::Edit(edit) => numbers.push(edit.of),
        _ => {}
    }
    match numbers.into_iter().find(|n| *n > MAX_NUMBER) {
        Some(n) => Err(format!("{n} is larger than any id or count ({MAX_NUMBER})")),
        None => Ok(()),
    }
}

impl Loaded {
    fn new(header: Header) -> Self {
        Self {
            conversation: Conversation::default(),
            header,
            eviction: None,
            problems: Vec::new(),
            cache: None,
            turns: Vec::new(),
            log: Vec::new(),
            log_of: None,
            log_fits: true,
            pending: None,
        }
    }

    /// The model of the last turn.
    pub fn model(&self) -> &ModelIdentity {
        self.turns.last().map_or(&self.header.model, |t| &t.model)
    }

    /// The cache's policies in the turns. Turns of older versions name what the settings asked for
    /// only: those that asked for `auto`, with another model or another policy than in the first
    /// turn, are missing.
    pub fn policies(&self) -> Policies {
        self.turns.iter().rev().filter_map(|turn| Some((turn.turn, self.policy(turn)?))).collect()
    }

    fn policy(&self, turn: &SavedTurn) -> Option<Policy> {
        let asked = |model: &ModelIdentity| model.reference.as_ref().and_then(|r| Some((r.policy?, r.budget)));
        let (first, own) = (&self.header.model, asked(&turn.model));
        let as_first = first.model_fingerprint == turn.model.model_fingerprint && asked(first) == own;
        let as_asked = || {
            let (policy, budget) = own.filter(|(policy, _)| *policy != PolicyKind::Auto)?;
            Some(Policy { policy, budget, window: None })
        };
        let older = || if as_first { Some(Policy::first(&self.header)) } else { as_asked() };
        turn.policy.clone().or_else(older)
    }

    /// Prepares the conversation for a model: marks the replies whose tokens it may reuse, and
    /// returns the request that restores the engine, with a notice to show, if any. Call it once,
    /// for the model that continues.
    pub fn restore_for(&mut self, info: &ModelInfo) -> (RestoreRequest, Option<String>) {
        let fitting: Vec<&SavedTurn> = self.turns.iter().filter(|t| t.model.fits(&info.identity)).collect();
        let known = |id: &Token| (*id as usize) < info.vocab;
        let spelled: Vec<&SavedTurn> = fitting.iter().copied().filter(|t| t.generated.iter().all(known)).collect();
        let own: HashSet<u64> = spelled.iter().map(|t| t.turn).collect();
        self.conversation.own_replies(|turn| own.contains(&turn));
        let mut request = RestoreRequest::default();
        let in_context = spelled.iter().filter(|t| t.in_context);
        request.replies = in_context.map(|t| (t.turn, t.generated.clone())).collect();
        if self.turns.is_empty() || (self.log.is_empty() && self.log_fits) {
            return (request, None);
        }
        if let Some(other) = self.turns.last().filter(|turn| !turn.model.fits(&info.identity)) {
            let was = &other.model.name;
            let notice = format!("this conversation was held with another model ({was}); its texts are encoded again");
            return (request, Some(notice));
        }
        if !self.log_fits {
            return (request, Some("the token log has a gap; the texts are encoded again".to_owned()));
        }
        // After an undo, the log belongs to the turn that was taken back.
        let whole = self.log.len();
        if let Some((end, pending)) = self.left_off() {
            self.log.truncate(end);
            self.pending = pending;
        }
        if self.log.iter().all(|entry| entry.token().is_none()) {
            return (request, None);
        }
        let pending = self.pending.unwrap_or_else(|| recall_pending(&self.log, &request.replies));
        let in_log = self.log.iter().filter_map(LogEntry::token);
        if let Some(id) = in_log.chain(pending).find(|id| !known(id)).or(unknown(&fitting, info.vocab)) {
            let notice = format!(
                "the token log names token {id}, and the vocabulary of {} has {}; the texts are encoded again",
                info.identity.name, info.vocab
            );
            return (request, Some(notice));
        }
        request.log.clone_from(&self.log);
        request.pending = pending;
        request.cache = self.cache.clone().filter(|_| self.log.len() == whole);
        (request, None)
    }

    /// Where the log has to end for the active path, and the token after it. `None` if all of it is
    /// of the path.
    fn left_off(&self) -> Option<(usize, Option<Option<Token>>)> {
        let path = self.conversation.path();
        if self.log_of.is_none_or(|id| path.iter().any(|m| m.id == id)) {
            return None;
        }
        let mut turns = path.iter().rev().filter_map(|m| self.turns.iter().find(|turn| Some(turn.turn) == m.turn));
        let known = turns.find_map(|turn| Some((turn.end?, turn.pending)));
        let (end, pending) = known.unwrap_or((0, Some(None)));
        // Switches after it stay unchanged.
        let switches = self.log[end..].iter().take_while(|entry| entry.token().is_none()).count();
        Some((end + switches, pending))
    }
}

/// The first generated token outside of a vocabulary of this size.
fn unknown(turns: &[&SavedTurn], vocab: usize) -> Option<Token> {
    turns.iter().flat_map(|t| &t.generated).copied().find(|id| *id as usize >= vocab)
}

/// The token after the log, for files whose turns do not state it: the last token of an answer is
/// sampled but not fed.
fn recall_pending(log: &[LogEntry], replies: &[(u64, Vec<Token>)]) -> Option<Token> {
    let ends_log = |fed: &[Token]| {
        let mut tokens = log.iter().rev().filter_map(LogEntry::token);
        fed.iter().rev().all(|id| tokens.next() == Some(*id))
    };
    let fed_and_last = replies.iter().filter_map(|(_, ids)| ids.split_last().map(|(last, fed)| (fed, *last)));
    let ending = fed_and_last.filter(|(fed, _)| !fed.is_empty() && ends_log(fed));
    ending.max_by_key(|(fed, _)| fed.len()).map(|(_, last)| last)
}
