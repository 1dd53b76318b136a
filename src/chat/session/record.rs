//! The records of a session file, as described in docs/session.md. Plain data; opens no file.

use crate::chat::retention::Retention;
use crate::codec::Codec;
use crate::policy::{Budget, PolicyKind};
use crate::protocol::{LogEntry, ModelIdentity, ModelInfo, Token, TurnReport, WeightsInfo};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Identifies a message in its conversation. Ids grow from 1; some belong to other records of the session file.
pub type MessageId = u64;

/// First field of a header.
pub const FORMAT: &str = "dmschat-session";
/// Increases if a reader of the old version would misread the new one.
pub const VERSION: u32 = 1;

/// One line of a session file.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Record {
    Header(Box<Header>),
    Turn(Box<Turn>),
    Message(Said),
    Edit(Edit),
    Toggle(Toggle),
    Log(Log),
    Head(Head),
    System(System),
    Title(Title),
}

impl Record {
    /// Parses one line: first the type, then the fields in a second pass. A derived reader of a
    /// tagged enum would hold the line as a tree of sixteen times its size.
    pub fn parse(line: &[u8]) -> serde_json::Result<Self> {
        use serde_json::from_slice;
        Ok(match Kind::of(line)?.as_ref() {
            "header" => Record::Header(from_slice(line)?),
            "turn" => Record::Turn(from_slice(line)?),
            "message" => Record::Message(from_slice(line)?),
            "edit" => Record::Edit(from_slice(line)?),
            "toggle" => Record::Toggle(from_slice(line)?),
            "log" => Record::Log(from_slice(line)?),
            "head" => Record::Head(from_slice(line)?),
            "system" => Record::System(from_slice(line)?),
            "title" => Record::Title(from_slice(line)?),
            other => {
                let other: String = other.chars().take(40).collect();
                return Err(serde::de::Error::custom(format!("unknown record type {other:?}")));
            }
        })
    }

    /// The record's id and the message that it follows.
    pub fn place(&self) -> (MessageId, Option<MessageId>) {
        match self {
            Record::Header(r) => (r.id, r.parent),
            Record::Turn(r) => (r.id, r.parent),
            Record::Message(r) => (r.id, r.parent),
            Record::Edit(r) => (r.id, r.parent),
            Record::Toggle(r) => (r.id, r.parent),
            Record::Log(r) => (r.id, r.parent),
            Record::Head(r) => (r.id, r.parent),
            Record::System(r) => (r.id, r.parent),
            Record::Title(r) => (r.id, r.parent),
        }
    }
}

/// The type of a record.
#[derive(Deserialize)]
pub(super) struct Kind<'a> {
    #[serde(borrow, rename = "type")]
    name: Cow<'a, str>,
}

impl Kind<'_> {
    pub fn of(line: &[u8]) -> serde_json::Result<Cow<'_, str>> {
        serde_json::from_slice(line).map(|kind: Kind| kind.name)
    }
}

/// Line 1: the settings at the start of the session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    pub format: String,
    pub version: u32,
    /// Always 0.
    pub id: MessageId,
    pub parent: Option<MessageId>,
    /// The session's id, which is the name of its file.
    pub session: String,
    /// RFC 3339, UTC.
    pub created: String,
    /// Date and time for the chat template, in local time.
    pub template_date: String,
    pub program: String,
    pub model: ModelIdentity,
    /// Missing in files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<WeightsInfo>,
    pub codec: Codec,
    pub policy: PolicyKind,
    /// Of the policy, where it has one; missing in files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// DMS window in tokens; null for a dense model.
    pub window: Option<usize>,
    pub n_layers: usize,
    pub n_kv_heads: usize,
    pub context: usize,
    pub system: Option<String>,
    /// The session that this one continues from a summary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<String>,
}

impl Header {
    pub fn new(session: &str, created: String, template_date: String, info: &ModelInfo, system: Option<&str>) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            id: 0,
            parent: None,
            session: session.to_owned(),
            created,
            template_date,
            program: concat!("dmschat ", env!("CARGO_PKG_VERSION")).to_owned(),
            model: info.identity.clone(),
            weights: Some(info.weights.clone()),
            codec: info.codec,
            policy: info.policy,
            budget: info.budget,
            window: info.window,
            n_layers: info.n_layers,
            n_kv_heads: info.n_kv_heads,
            context: info.context,
            system: system.map(str::to_owned),
            continues: None,
        }
    }
}

/// The cache's policy in a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    pub policy: PolicyKind,
    /// Of the policy, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// In tokens; null where nothing is dropped by marks.
    pub window: Option<usize>,
}

impl Policy {
    pub fn of(info: &ModelInfo) -> Self {
        Self { policy: info.policy, budget: info.budget, window: info.window }
    }

    /// `dms` or `tova 512`.
    pub fn name(&self) -> String {
        self.budget.map_or(self.policy.to_string(), |budget| format!("{} {budget}", self.policy))
    }

    /// The policy of the header, which is that of the first turn.
    pub fn first(header: &Header) -> Self {
        Self { policy: header.policy, budget: header.budget, window: header.window }
    }
}

/// A question and its reply.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Turn {
    /// The id of the reply.
    pub id: MessageId,
    /// The id of the question.
    pub parent: Option<MessageId>,
    pub time: String,
    pub user: Option<Said>,
    /// The answer as generated.
    pub text: String,
    /// The think block as generated, without its tags.
    pub reasoning: Option<String>,
    pub reasoning_closed: bool,
    pub think: bool,
    pub keep_thinking: Option<bool>,
    pub model: ModelIdentity,
    /// Missing in files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Policy>,
    pub report: TurnReport,
    /// Missing in files of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retention: Vec<Retention>,
}

/// A message of the user: in a turn, or by itself without an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Said {
    pub id: MessageId,
    pub parent: Option<MessageId>,
    pub text: String,
}

/// A message of the user that replaces another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Edit {
    pub id: MessageId,
    pub parent: Option<MessageId>,
    pub time: String,
    /// The message that it replaces.
    pub of: MessageId,
    pub text: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Toggle {
    pub id: MessageId,
    pub parent: Option<MessageId>,
    pub time: String,
    pub eviction: bool,
    /// Number of tokens in the log before it.
    pub at_token: usize,
    /// Bytes of the text of the reply `parent` at that time; missing if no answer was running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_text: Option<usize>,
    pub dropped_slots: u64,
}

/// The token log changed between two turns: its first `log_base` entries, then `log`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Log {
    pub id: MessageId,
    pub parent: Option<MessageId>,
    pub time: String,
    pub log_base: usize,
    pub log: Vec<LogEntry>,
    /// The token after the log, which is not fed yet.
    pub pending: Option<Token>,
}

/// The active path ends at `parent` from here on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Head {
    pub id: MessageId,
    pub parent: Option<MessageId>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct System {
    pub id: MessageId,
    pub parent: Option<MessageId>,
    pub text: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Title {
    pub id: MessageId,
    pub parent: Option<MessageId>,
    pub title: Option<String>,
}
