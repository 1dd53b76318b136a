//! The records of a session file, as described in docs/session.md. Plain data; opens no file.

use crate::chat::retention::Retention;
use crate::codec::Codec;
use crate::policy::{Budget, PolicyKind};
use crate::protocol::{LogEntry, ModelIdentity, ModelInfo, Token, TurnReport, WeightsInfo};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Identifies a message in its conversation. Ids grow from 1; some belong to other records of the
/// session file.
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
    /// The session's tags from here on; missing where they stay as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
}

/// The same lines with another session id.
pub(super) fn with_session_name(text: &str, id: &str) -> String {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    match Record::parse(first.as_bytes()) {
        Ok(Record::Header(header)) => {
            let header = Record::Header(Box::new(Header { session: id.to_owned(), ..*header }));
            let line = serde_json::to_string(&header).unwrap_or_else(|_| first.to_owned());
            format!("{line}\n{rest}")
        }
        _ => text.to_owned(),
    }
}

/// The cache's policies of turns, by their numbers.
pub type Policies = BTreeMap<u64, Policy>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::session::load;
    use crate::protocol::{
        ChainReport, ChainsReport, Decisions, DraftReport, FarStats, KvStats, ModelReference, SamplingParams,
        StopReason, TwinReport, VoteCount,
    };
    use serde_json::{Value, json};

    fn model(x: f64) -> ModelIdentity {
        ModelIdentity {
            reference: Some(ModelReference { threshold: Some(x), ..ModelReference::default() }),
            decisions: Some(Decisions { threshold: Some(x as f32), ..Decisions::default() }),
            ..ModelIdentity::default()
        }
    }

    fn sampling(x: f32) -> SamplingParams {
        SamplingParams {
            top_k: 3,
            temperature: x,
            top_p: x,
            min_p: x,
            repetition_penalty: x,
            top_n_sigma: x,
            presence_penalty: x,
            frequency_penalty: x,
        }
    }

    /// A report whose floating-point numbers are all `x`. Names every field, so that a new one is
    /// added here.
    fn report(x: f64) -> TurnReport {
        let chain = ChainReport {
            answer: String::new(),
            reasoning: String::new(),
            extracted: None,
            stop_reason: StopReason::End,
            tokens: 1,
            reasoning_tokens: 0,
            reads: x,
            seed: 1,
        };
        TurnReport {
            turn: 1,
            stop_reason: StopReason::End,
            detail: None,
            prompt_tokens: 1,
            reused_tokens: 0,
            answer_tokens: 1,
            reasoning_tokens: 0,
            ttft_ms: Some(x),
            prefill_tok_s: Some(x),
            decode_tok_s: Some(x),
            reasoning_ms: Some(x),
            seed: 1,
            sampling: sampling(x as f32),
            eviction: true,
            forgotten_slots: 1,
            kv: KvStats {
                codec: Codec::F32,
                live_slots: 1,
                dense_slots: 1,
                ratio: Some(x),
                bytes: 1,
                live_bytes: 1,
                dense_bytes: 1,
                live: vec![vec![1]],
                dense: vec![1],
                reads: x,
                peak_slots: x,
                peak_shared: Some(x),
                far: Some(FarStats {
                    rows: 1,
                    near: 1,
                    dropped: 1,
                    bytes: 1,
                    limit_bytes: 1,
                    fetched: 1,
                    fetched_by_head: vec![vec![1]],
                }),
            },
            device_bytes: Some(1),
            joules: Some(2.5),
            draft: Some(DraftReport { rounds: 1, drafted: 1, accepted: 1, tokens: 1, cost: x }),
            twin: Some(Box::new(TwinReport { kl: vec![x as f32; 2], differences: 0, first: None, bytes: 1 })),
            chains: Some(Box::new(ChainsReport {
                chains: vec![chain],
                votes: vec![VoteCount { answer: String::new(), count: 1 }],
                winner: 0,
                checked: false,
                stopped: false,
                dense_reads: x,
            })),
            log_base: 0,
            log: vec![LogEntry::Token(1), LogEntry::Dial { dial: x as f32 }],
            generated: vec![1],
            stop_text: None,
            thought_closed_at: None,
            repeats_at: None,
            pending: Some(None),
            in_context: true,
            grammar_error: None,
            presence: None,
        }
    }

    /// Every record that has floating-point numbers, all of them `x`.
    fn records(x: f64) -> [Record; 3] {
        let info = ModelInfo {
            identity: model(x),
            weights: WeightsInfo { bits: x, ..WeightsInfo::default() },
            ..ModelInfo::default()
        };
        let turn = Turn {
            id: 2,
            parent: Some(1),
            time: String::new(),
            user: Some(Said { id: 1, parent: None, text: "hi".to_owned() }),
            text: "an answer".to_owned(),
            reasoning: None,
            reasoning_closed: true,
            think: true,
            keep_thinking: None,
            model: model(x),
            cache: None,
            report: report(x),
            retention: vec![Retention { message: Some(1), tokens: 1, share: x, stretches: vec![(2, 50)], far: None }],
        };
        let log = vec![LogEntry::Dial { dial: x as f32 }];
        [
            Record::Header(Box::new(Header::new("s", String::new(), String::new(), &info, None))),
            Record::Turn(Box::new(turn)),
            Record::Log(Log { id: 3, parent: Some(2), time: String::new(), log_base: 0, log, pending: None }),
        ]
    }

    /// Replaces the floating-point number of this index in `value` by null. Returns whether there
    /// is one.
    fn without_number(value: &mut Value, index: &mut usize) -> bool {
        match value {
            Value::Number(n) if n.is_f64() => {
                let found = *index == 0;
                *index = index.wrapping_sub(1);
                if found {
                    *value = Value::Null;
                }
                found
            }
            Value::Array(items) => items.iter_mut().any(|item| without_number(item, index)),
            Value::Object(fields) => fields.values_mut().any(|field| without_number(field, index)),
            _ => false,
        }
    }

    fn loads(lines: &[String]) {
        let loaded = load(lines.join("\n").as_bytes(), "s").unwrap();
        assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
        assert_eq!(loaded.conversation.messages().len(), 2);
    }

    #[test]
    fn no_number_costs_a_turn() {
        let subnormal = [f64::from_bits(1), f64::from(f32::from_bits(1)), -0.0];
        for x in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].into_iter().chain(subnormal) {
            loads(&records(x).map(|record| serde_json::to_string(&record).unwrap()));
        }
        for x in [f64::from(f32::MAX), f64::from(f32::MIN_POSITIVE), 1e300] {
            loads(&records(x).map(|record| serde_json::to_string(&record).unwrap()));
        }
        for record in records(0.5) {
            let line = serde_json::to_string(&record).unwrap();
            assert_eq!(json!(Record::parse(line.as_bytes()).unwrap()), json!(record));
        }
        // A number that is too large for an f32 is infinite there, and so null in the file.
        let report = |x: f64| {
            let text = serde_json::to_string(&report(x)).unwrap();
            serde_json::from_str::<TurnReport>(&text.replace("\"log\":[1,{\"dial\":null}]", "\"log\":[1]")).unwrap()
        };
        assert!(report(1e300).kv.reads > 1e299 && report(1e300).sampling.temperature == 0.0);
    }

    #[test]
    fn numbers_are_read_to_their_last_digit() {
        let mut bits = 7u64;
        for _ in 0..300 {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // As large as speeds and ratios are.
            let x = (bits >> 11) as f64 / 2f64.powi(43);
            for record in records(x) {
                let line = serde_json::to_string(&record).unwrap();
                let read = Record::parse(line.as_bytes()).unwrap();
                assert_eq!(serde_json::to_string(&read).unwrap(), line);
            }
        }
    }

    #[test]
    fn null_is_read_wherever_a_number_stands() {
        let lines = records(0.5).map(|record| serde_json::to_string(&record).unwrap());
        let mut tried = [0; 3];
        for (line, tried) in tried.iter_mut().enumerate() {
            loop {
                let (mut value, mut index) = (json!(records(0.5)[line]), *tried);
                if !without_number(&mut value, &mut index) {
                    break;
                }
                let mut lines = lines.clone();
                lines[line] = value.to_string();
                loads(&lines);
                *tried += 1;
            }
        }
        assert_eq!(tried, [3, 25, 1]);
    }
}
