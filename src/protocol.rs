//! Plain data that crosses between the engine's thread and everyone else: commands in, events and
//! snapshots out. Holds no behaviour beyond small conversions, and knows no tensor, no cache, no
//! widget and no file.
//!
//! Events are lossless and ordered. A [`Snapshot`] is latest-wins: the numbers of the panels.

mod handle;

pub use handle::{
    CommandSender, ConversationId, EngineHandle, EngineMessage, EventSender, Outlet, Request, RequestId, Response,
};

use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A token id.
pub type Token = u32;

/// A number with commas between thousands: `12,606`.
pub fn count(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Bytes with a decimal unit: `812 B`, `3.4 MB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{n} B")
    } else if value < 99.95 {
        format!("{value:.1} {}", UNITS[unit])
    } else {
        format!("{value:.0} {}", UNITS[unit])
    }
}

/// Most tokens of any context: a slot stores its position and one mark bit in an i32.
pub const MAX_CONTEXT: usize = 1 << 30;

/// A stretch of a rendered conversation. Only `Control` may become control tokens: what people
/// type, paste or load always travels as `Text`, which is encoded without added tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The literal of one added token of the tokenizer, written by the template: `<|im_start|>`.
    Control(String),
    /// Ordinary text. Neighbouring texts are one text to the tokenizer.
    Text(String),
    /// What the model generated at `turn` (whole, or without its think block): the engine reuses
    /// the generated token ids when it still knows them and they spell the same text.
    Reply { turn: u64, pieces: Vec<Piece> },
}

/// How the next token is chosen from a row of logits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 is off.
    pub top_k: u32,
    /// 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub min_p: f32,
    /// 1 is off.
    pub repetition_penalty: f32,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0 }
    }
}

/// One turn to answer.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    /// Names the turn in events, in the session file and in [`Piece::Reply`].
    pub turn: u64,
    /// The whole conversation as rendered by the template, generation prompt included.
    pub prompt: Vec<Piece>,
    pub sampling: SamplingParams,
    /// Drawn at random by the engine when absent; always reported.
    pub seed: Option<u64>,
    /// Absent: whatever is left of the context.
    pub max_tokens: Option<usize>,
}

/// An entry of the token log: what was fed, and the toggles at their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum LogEntry {
    Token(Token),
    /// Eviction was switched (`{"eviction": false}` in files).
    Toggle {
        eviction: bool,
    },
}

/// Reads a number or `{"eviction": BOOL}` without buffering it first, as an untagged enum would: long logs hold
/// millions of entries.
impl<'de> Deserialize<'de> for LogEntry {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entry;
        impl<'de> serde::de::Visitor<'de> for Entry {
            type Value = LogEntry;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a token id or {\"eviction\": BOOL}")
            }

            fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<LogEntry, E> {
                Token::try_from(id).map(LogEntry::Token).map_err(|_| E::custom(format!("{id} is not a token id")))
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<LogEntry, A::Error> {
                #[derive(Deserialize)]
                struct Toggle {
                    eviction: bool,
                }
                let toggle = Toggle::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                Ok(LogEntry::Toggle { eviction: toggle.eviction })
            }
        }
        deserializer.deserialize_any(Entry)
    }
}

/// What a saved conversation hands back to the engine. Prefilled under its toggles, visibly.
#[derive(Clone, Debug, Default)]
pub struct RestoreRequest {
    pub log: Vec<LogEntry>,
    /// Generated token ids by turn, in order.
    pub replies: Vec<(u64, Vec<Token>)>,
    /// The token that was sampled last and not fed: it comes first in whatever is fed next.
    pub pending: Option<Token>,
}

#[derive(Clone, Debug)]
pub enum Command {
    Generate(Box<GenerateRequest>),
    /// Ends the prefill, answer, rebuild or restore that is running; nothing when idle.
    Cancel,
    /// Acts between two steps, also while an answer or a prefill runs.
    SetEviction(bool),
    /// Prefill the token log anew under the eviction state now set.
    Rebuild,
    /// Bring the cache to the newest state inside this rendering, without prefilling anything
    /// (after undo, edit, delete).
    Rewind(Vec<Piece>),
    Restore(Box<RestoreRequest>),
    /// A new, empty conversation.
    Clear,
    /// Ask for one head's kept positions.
    Inspect {
        layer: usize,
        head: usize,
    },
    /// The largest number of bytes the allocated KV pages may take; `None` lifts it.
    SetKvLimit(Option<u64>),
    /// Ask how many tokens a text has; answered between two steps.
    CountTokens {
        id: u64,
        text: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model ended its turn.
    End,
    MaxTokens,
    ContextFull,
    CacheFull,
    Cancelled,
    Error,
}

impl StopReason {
    /// As JSON and session files spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            StopReason::End => "end",
            StopReason::MaxTokens => "max_tokens",
            StopReason::ContextFull => "context_full",
            StopReason::CacheFull => "cache_full",
            StopReason::Cancelled => "cancelled",
            StopReason::Error => "error",
        }
    }
}

/// Cache figures after some step. `n` tokens fed to a dense cache would hold
/// `n x layers x KV heads` slots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KvStats {
    /// `f32`, `bf16` or `fp8`.
    pub codec: String,
    pub live_slots: u64,
    pub dense_slots: u64,
    /// `dense_slots / live_slots`; absent (JSON null) while nothing is stored.
    pub ratio: Option<f64>,
    /// Allocated pages x page bytes, each page once, those of checkpoints included.
    pub bytes: u64,
    /// Live slots x slot bytes.
    pub live_bytes: u64,
    /// What a dense cache of the same codec would hold for the same tokens.
    pub dense_bytes: u64,
    /// `[n_layers][n_kv_heads]` live slots.
    pub live: Vec<Vec<u32>>,
}

impl KvStats {
    pub fn empty(codec: &str, n_layers: usize, n_kv_heads: usize) -> Self {
        Self {
            codec: codec.to_owned(),
            live_slots: 0,
            dense_slots: 0,
            ratio: None,
            bytes: 0,
            live_bytes: 0,
            dense_bytes: 0,
            live: vec![vec![0; n_kv_heads]; n_layers],
        }
    }
}

/// How a turn went; the numbers of `--json`, of the session file and of the status line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TurnReport {
    pub turn: u64,
    pub stop_reason: StopReason,
    /// Why, where `stop_reason` alone does not say it (`error`, `cache_full`).
    pub detail: Option<String>,
    /// Tokens of the rendered prompt, BOS included.
    pub prompt_tokens: usize,
    /// Of those, how many were already in the cache.
    pub reused_tokens: usize,
    pub answer_tokens: usize,
    pub reasoning_tokens: usize,
    pub ttft_ms: Option<f64>,
    pub prefill_tok_s: Option<f64>,
    pub decode_tok_s: Option<f64>,
    pub reasoning_ms: Option<f64>,
    pub seed: u64,
    pub sampling: SamplingParams,
    pub eviction: bool,
    pub kv: KvStats,
    /// The log after the turn is its first `log_base` entries, as the last report (or what was
    /// restored) left them, plus `log`. Toggles since then are in `log`.
    pub log_base: usize,
    pub log: Vec<LogEntry>,
    /// Every generated id, the last one (sampled, not fed) included.
    pub generated: Vec<Token>,
    /// The token that stands after the log and has not been fed. Absent as a whole in files of older versions.
    #[serde(default, deserialize_with = "present")]
    pub pending: Option<Option<Token>>,
    /// False when cache and log went back to the turn's start: what was answered is on screen and
    /// in the file, and not part of the context.
    pub in_context: bool,
}

/// A field that is there, null or not; `serde(default)` supplies the one that is not.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Option<Token>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// Which part of a reply a piece of text belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextKind {
    Reasoning,
    Answer,
}

/// A model that is being downloaded: how far it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Download {
    /// The file that is on its way.
    pub file: String,
    pub file_done_bytes: u64,
    pub file_bytes: u64,
    /// All files.
    pub done_bytes: u64,
    pub total_bytes: u64,
    pub bytes_per_s: Option<f64>,
    pub left_s: Option<f64>,
}

#[derive(Clone, Debug)]
pub enum Event {
    /// The model is not on this machine yet, and comes from the hub.
    Downloading(Download),
    /// Weights are being read; bytes so far and in all.
    Loading {
        done_bytes: u64,
        total_bytes: u64,
    },
    /// The driver compiles kernels for this GPU, which it does once; kernel files so far and in all. Sent only where it
    /// takes long enough to be noticed.
    CompilingKernels {
        done: usize,
        total: usize,
        seconds: u64,
    },
    Ready(Arc<ModelInfo>),
    /// Loading failed; the engine's thread has ended.
    LoadFailed(String),
    /// The prompt was encoded; `todo` tokens will be prefilled, `reused` are in the cache already.
    TurnStarted {
        turn: u64,
        prompt_tokens: usize,
        reused: usize,
        todo: usize,
    },
    /// Streamed text, whole characters only. Tags and control tokens are never part of it.
    Text {
        turn: u64,
        kind: TextKind,
        text: String,
    },
    TurnDone(Box<TurnReport>),
    /// The toggle has acted: before log position `at_token`, giving up `dropped_slots`.
    EvictionSet {
        on: bool,
        at_token: usize,
        dropped_slots: u64,
    },
    /// Rebuild or restore is running, `done` of `total` log tokens.
    Rebuilding {
        done: usize,
        total: usize,
    },
    RebuildDone {
        cancelled: bool,
        tokens: usize,
    },
    HeadPositions {
        layer: usize,
        head: usize,
        slots: Vec<SlotInfo>,
    },
    /// The answer to [`Command::CountTokens`].
    TokensCounted {
        id: u64,
        tokens: usize,
    },
    /// One sentence a person should see.
    Notice(String),
    /// The engine broke (a bug or a lost device) and takes no more commands.
    Failed(String),
}

/// A stored slot of one head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotInfo {
    pub position: u32,
    /// Marked for eviction: leaves with the window, or left behind while eviction was off.
    pub marked: bool,
}

/// What the engine is doing, for the status line.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum Phase {
    #[default]
    Idle,
    Prefill {
        done: usize,
        total: usize,
    },
    Decode,
    Rebuild {
        done: usize,
        total: usize,
    },
}

/// The panel's numbers after some step.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    pub phase: Phase,
    /// Tokens fed.
    pub tokens: usize,
    pub eviction: bool,
    pub kv: KvStats,
    /// Bytes of pages that only checkpoints hold ("kept for undo"); part of `kv.bytes`.
    pub checkpoint_bytes: u64,
    /// Bytes the pool has taken from the system: `kv.bytes` plus pages free for reuse.
    pub mapped_bytes: u64,
    pub decode_tok_s: Option<f64>,
    /// As the driver reports it; absent on the CPU.
    pub device_bytes: Option<u64>,
}

/// The chat template and what it needs to render.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TemplateSpec {
    /// Jinja source; absent when the checkpoint has none (then a plain ChatML one is used).
    pub source: Option<String>,
    pub bos_token: String,
    pub eos_token: String,
    /// Literals of all added tokens, longest first: the template's own text may yield these.
    pub control: Vec<String>,
    /// True for the built-in model, whose template needs no sandbox.
    pub trusted: bool,
    /// Absent: any length.
    pub limit: Option<TextLimit>,
}

/// How long a prompt can be: a longer text is refused before it is rendered or encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextLimit {
    /// Tokens of the context.
    pub context: usize,
    /// Bytes of the longest token.
    pub token_bytes: usize,
}

impl TextLimit {
    /// Most bytes that the context can hold.
    pub fn bytes(self) -> usize {
        self.context.saturating_mul(self.token_bytes)
    }

    /// Why a text of `bytes` is refused, when it is.
    pub fn refusal(self, what: &str, bytes: usize) -> Option<String> {
        let Self { context, token_bytes } = self;
        (bytes > self.bytes()).then(|| {
            format!(
                "{what} has {} bytes, and a context of {} tokens of up to {token_bytes} bytes holds at most {}; shorten it",
                count(bytes),
                count(context),
                count(self.bytes())
            )
        })
    }
}

/// What fits, as far as sizes tell before loading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub weight_bytes: u64,
    /// Memory beside weights and pages: tables, rings, activations, logits.
    pub workspace_bytes: u64,
    /// Room for KV pages; absent when neither memory nor limit is known.
    pub kv_budget_bytes: Option<u64>,
    /// A full context without eviction, and at the checkpoint's ratio.
    pub dense_kv_bytes: u64,
    pub expected_kv_bytes: u64,
    /// Tokens that fit whatever is evicted, and at the checkpoint's ratio.
    pub certain_context: usize,
    pub expected_context: usize,
}

/// What it takes to load a model again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelReference {
    /// `demo`, the absolute path of a folder, or a hub id `ORG/NAME`.
    pub model: String,
    /// The commit of a hub model; null for others.
    pub revision: Option<String>,
    /// `auto`, `none`, or the absolute path of an adapter file.
    pub adapter: String,
}

impl ModelReference {
    /// The reference as it is written after `-m`.
    pub fn name(&self) -> String {
        match &self.revision {
            Some(revision) => format!("{}@{revision}", self.model),
            None => self.model.clone(),
        }
    }
}

/// What the loaded model is; constant until another one is loaded.
#[derive(Clone, Debug, Default)]
pub struct ModelInfo {
    /// As the user names it: `demo`, a folder's name, `ORG/NAME`.
    pub name: String,
    /// Absent where nothing can load the model by a name (tests).
    pub reference: Option<ModelReference>,
    pub family: String,
    pub n_params: u64,
    pub n_layers: usize,
    pub n_q_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
    /// Most tokens a conversation may have.
    pub context: usize,
    /// `cpu, 2 threads` or the card's name.
    pub device: String,
    pub codec: String,
    /// `dms` or `dense`.
    pub policy: String,
    /// DMS window W in tokens; absent for a dense model.
    pub window: Option<usize>,
    /// Where the decisions come from: `borrowed`, `adapter`, `none`.
    pub dms: String,
    pub adapter: Option<String>,
    /// Element type of the weights as stored: `f32`, `f16` or `bf16`.
    pub weights: String,
    pub weight_bytes: u64,
    pub slot_bytes: usize,
    pub page_slots: usize,
    pub kv_limit: Option<u64>,
    pub plan: Plan,
    pub template: TemplateSpec,
    /// Literals that open and close a think block, when the tokenizer has them.
    pub think_tags: Option<(String, String)>,
    /// From `generation_config.json`.
    pub default_sampling: SamplingParams,
    /// Hex digests: equal when a saved token log may be fed again.
    pub model_fingerprint: String,
    pub tokenizer_fingerprint: String,
}

/// Whether thinking can be switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// The model has no think blocks.
    None,
    /// The model thinks when it likes: its template has no switch.
    Fixed,
    Switchable,
}

impl ModelInfo {
    pub fn thinking(&self) -> Thinking {
        let switch = self.template.source.as_ref().is_some_and(|s| s.contains("enable_thinking"));
        match (&self.think_tags, switch) {
            (None, _) => Thinking::None,
            (Some(_), false) => Thinking::Fixed,
            (Some(_), true) => Thinking::Switchable,
        }
    }
}
