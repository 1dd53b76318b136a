//! Plain data between front ends and the engine's thread: commands in, events and snapshots out.
//!
//! Events are lossless and ordered. Of [`Snapshot`]s, the numbers of the panels, only the latest
//! counts.

mod chains;
mod download;
mod draft;
mod handle;
mod kv_stats;
mod log;
mod model;
pub mod number;
mod presence;
mod probe;
mod recall;
mod sampling;
mod steering;
mod template;
mod twin;

pub use chains::{
    ChainEvent, ChainFigures, ChainReport, ChainState, ChainsReport, ChainsRequest, MAX_AUTO_WIDTH, MAX_WIDTH,
    VoteCount,
};
pub use download::Download;
pub use draft::{DraftReport, DraftSource, MAX_DRAFTS};
pub use handle::{
    CommandSender, ConversationId, EngineHandle, EngineMessage, EventSender, Outlet, Request, RequestId, Response,
};
pub use kv_stats::KvStats;
pub use model::{Decisions, ModelIdentity, ModelInfo, ModelReference, Plan, Thinking, WeightsInfo};
pub use presence::{LaneFilter, LaneState, Presence, PresenceRequest};
pub use probe::{Finding, Likely, Probe, TokenChoice};
pub use recall::{Guess, RecallRequest, Recalled, RecalledToken};
pub(crate) use sampling::sampling_table;
pub use sampling::{SamplingOption, SamplingOverrides, SamplingParams, SamplingState};
pub use template::{TemplateSpec, TextLimit};
pub use twin::{TwinDifference, TwinReport};

use crate::words::words;
pub use log::LogEntry;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
pub use steering::{Dial, LogChange, Pinned, WhenFull};

/// A token id.
pub type Token = u32;

/// Formats a number with commas between thousands: `12,606`.
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

/// Formats bytes with a decimal unit: `812 B`, `3.4 MB`.
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

/// Maximum tokens of a context: a slot stores its position in 20 bits.
pub const MAX_CONTEXT: usize = 1 << 20;

/// A piece of a rendered conversation. Only `Control` may become control tokens: text that people
/// type, paste or load is always `Text`, which is encoded without added tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The literal of an added token, written by the template: `<|im_start|>`.
    Control(String),
    /// Ordinary text. Adjacent texts are encoded as one.
    Text(String),
    /// The model's reply of `turn`, whole or without its think block. The engine reuses the
    /// generated token ids if it has them and they spell the same text.
    Reply { turn: u64, pieces: Vec<Piece> },
}

/// A prompt, and how it is answered.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// The whole conversation rendered by the template, including the generation prompt.
    pub prompt: Vec<Piece>,
    pub sampling: SamplingParams,
    /// `None`: a random seed, which the report contains.
    pub seed: Option<u64>,
    /// `None`: the rest of the context.
    pub max_tokens: Option<usize>,
    /// Tokens after which a thought is closed, so that the model answers. `None`: never.
    pub max_think: Option<usize>,
    /// Most tokens that a step tries beside its own; 0: none. The answer is the same.
    pub drafts: usize,
}

/// A turn to answer.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    /// Number of the turn in the conversation, from 1 on; used in events, session files and
    /// [`Piece::Reply`].
    pub turn: u64,
    pub ask: Ask,
    /// A text of the prompt whose tokens are pinned.
    pub pin: Option<String>,
    /// Several chains answer, and a vote chooses one; `None` is one chain.
    pub chains: Option<ChainsRequest>,
}

/// A saved conversation to load: its log is prefilled under its toggles, with progress events.
#[derive(Clone, Debug, Default)]
pub struct RestoreRequest {
    pub log: Vec<LogEntry>,
    /// Generated token ids by turn.
    pub replies: Vec<(u64, Vec<Token>)>,
    /// The last sampled token, which is not fed yet: the first token of the next prefill.
    pub pending: Option<Token>,
    /// A file that may hold the cache that the log fills, so that nothing needs to be fed.
    pub cache: Option<PathBuf>,
}

/// Where a conversation's cache is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheFile {
    pub path: PathBuf,
    /// Maximum bytes of all caches in the folder. The oldest are removed to make room.
    pub limit_bytes: u64,
}

/// A command to the engine. Commands that change the conversation are served in order; `Cancel`,
/// `Elect`, `SetEviction`, `SetTwin`, `SetKvLimit`, `SetWhenFull`, `Inspect`, `Presence` and
/// `CountTokens` act between two steps.
#[derive(Clone, Debug)]
pub enum Command {
    /// Answers a turn.
    Generate(Box<GenerateRequest>),
    /// Ends the prefill, answer, rebuild, restore or probe that runs. Does nothing when idle.
    Cancel,
    /// Ends the chains that answer: this one wins, or the vote's winner if none was found right.
    Elect(Option<usize>),
    /// Switches eviction, also in the middle of an answer or a prefill.
    SetEviction(bool),
    /// Compares the next answers with a twin, a sequence without eviction: [`Event::TwinSet`].
    SetTwin(bool),
    /// Sets how much is kept of the tokens that follow: [`Event::DialSet`].
    SetDial(Dial),
    /// Pins the message with this text, or asks what that would cost: [`Event::Pinned`].
    Pin { text: String, ask: bool },
    /// Takes back the pins of the message with this text, or all: [`Event::Unpinned`].
    Unpin(Option<String>),
    /// Pins the tokens at these positions, or removes their pins: [`Event::Pinned`] or
    /// [`Event::Unpinned`].
    PinTokens { tokens: Range<usize>, pin: bool },
    /// Rebuilds the cache: prefills the token log under the current eviction state.
    Rebuild,
    /// Goes back to the newest kept state that begins this rendering, without a prefill (after
    /// undo, edit, delete).
    Rewind(Vec<Piece>),
    /// Loads a saved conversation.
    Restore(Box<RestoreRequest>),
    /// Empties the conversation.
    Clear,
    /// Asks beside the conversation: [`Event::Found`].
    Probe(Probe),
    /// Keeps the conversation's cache in this file from now on, updated after each turn; `None`
    /// keeps it nowhere.
    KeepCache(Option<CacheFile>),
    /// Asks for the stored slots of a KV head: [`Event::HeadPositions`].
    Inspect { layer: usize, head: usize },
    /// Asks which tokens the cache still holds: [`Event::Presence`].
    Presence(PresenceRequest),
    /// Limits the bytes of allocated KV pages, of all conversations together. `None` lifts the
    /// limit.
    SetKvLimit(Option<u64>),
    /// Sets what happens where memory runs out; `None`: what the model does by default.
    SetWhenFull(Option<WhenFull>),
    /// Asks for the number of tokens of a text: [`Event::TokensCounted`].
    CountTokens { id: u64, text: String },
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended its turn.
    End,
    MaxTokens,
    ContextFull,
    CacheFull,
    Cancelled,
    Error,
}

words! { StopReason, "a reason to stop", {
    End = "end",
    MaxTokens = "max_tokens",
    ContextFull = "context_full",
    CacheFull = "cache_full",
    Cancelled = "cancelled",
    Error = "error",
} }

/// The result of a turn: the numbers of `--json`, session files and the status line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnReport {
    pub turn: u64,
    pub stop_reason: StopReason,
    /// Explains `error`, `cache_full` and `context_full`.
    pub detail: Option<String>,
    /// Tokens of the rendered prompt, including BOS.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were in the cache.
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
    /// Slots dropped during the turn for want of memory.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub forgotten_slots: u64,
    pub kv: KvStats,
    /// GPU memory of the process as the driver reports it; `None` on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_bytes: Option<u64>,
    /// Statistics of drafts, if some were tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft: Option<DraftReport>,
    /// The comparison with a twin, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twin: Option<Box<TwinReport>>,
    /// The chains that answered, if there were several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chains: Option<Box<ChainsReport>>,
    /// The log after the turn: the first `log_base` entries of the log after the last report,
    /// [`LogChange`] or restore, then `log`.
    pub log_base: usize,
    pub log: Vec<LogEntry>,
    /// All generated ids, including the last one, which is not fed.
    pub generated: Vec<Token>,
    /// Index in `generated` of the first end of a thought that was not sampled but set, because of
    /// [`GenerateRequest::max_think`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought_closed_at: Option<usize>,
    /// Number of generated tokens after which the reply was noticed to repeat itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats_at: Option<usize>,
    /// The token after the log, which is not fed yet. The field is missing in files of older
    /// versions.
    #[serde(default, deserialize_with = "present")]
    pub pending: Option<Option<Token>>,
    /// False if cache and log went back to the start of the turn: the answer is on screen and in
    /// the file, but not part of the context.
    pub in_context: bool,
    /// Contents of the cache at the end of the turn. Session files have the retention of each
    /// message instead.
    #[serde(skip)]
    pub presence: Option<Arc<Presence>>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Reads a field that is present, null or not; `serde(default)` supplies a missing one.
fn present<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// The part of a reply that a text belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextKind {
    Reasoning,
    Answer,
}

/// An event of a conversation.
#[derive(Clone, Debug)]
pub enum Event {
    /// The model is downloaded from the hub.
    Downloading(Download),
    /// Weights are loaded: bytes so far and in total.
    Loading {
        done_bytes: u64,
        total_bytes: u64,
    },
    /// Weights are quantized: layers so far and in total. Before that, the inputs of the weights
    /// are measured.
    Quantizing {
        measuring: bool,
        done: usize,
        total: usize,
    },
    /// The driver compiles kernels for this GPU, which it does once: kernel files so far and in
    /// total. Sent only if it takes noticeably long.
    CompilingKernels {
        done: usize,
        total: usize,
        seconds: u64,
    },
    /// The model is loaded, or another conversation was opened.
    Ready(Arc<ModelInfo>),
    /// Loading failed, and the engine has ended.
    LoadFailed(String),
    /// A turn begins: `reused` tokens of the prompt are in the cache, `todo` will be prefilled.
    TurnStarted {
        turn: u64,
        prompt_tokens: usize,
        reused: usize,
        todo: usize,
    },
    /// Streamed text: whole characters, without tags and control tokens.
    Text {
        turn: u64,
        kind: TextKind,
        text: String,
    },
    /// The answer of this turn so far was a thought: its end came without a beginning.
    WasThought {
        turn: u64,
    },
    /// Progress of the chains of a turn, if several answer. The winner's text follows as
    /// [`Event::Text`].
    Chain {
        turn: u64,
        event: ChainEvent,
    },
    /// The reply repeats itself: of this chain, if several answer. Sent once a turn.
    Repeats {
        turn: u64,
        chain: Option<usize>,
    },
    TurnDone(Box<TurnReport>),
    /// Eviction was switched before the token at position `at_token`, which dropped
    /// `dropped_slots`.
    EvictionSet {
        on: bool,
        at_token: usize,
        dropped_slots: u64,
    },
    /// Answers are compared with a twin from the next one on, or no longer; `why` explains a twin
    /// that went off by itself.
    TwinSet {
        on: bool,
        why: Option<String>,
    },
    /// Share kept from the token at position `at_token` on: the compression ratio expected of a
    /// long conversation, and the one that the model was trained for.
    DialSet {
        ratio: f64,
        trained: f64,
        at_token: usize,
    },
    /// The answer to [`Command::Pin`].
    Pinned(Box<Pinned>),
    /// Number of tokens that are no longer pinned, and of their slots that were dropped at once.
    Unpinned {
        tokens: usize,
        dropped_slots: u64,
    },
    /// The log changed between two turns.
    LogChanged(Box<LogChange>),
    /// Progress of a rebuild or restore, in tokens.
    Rebuilding {
        done: usize,
        total: usize,
    },
    RebuildDone {
        cancelled: bool,
        tokens: usize,
    },
    /// The answer to [`Command::Inspect`], by position.
    HeadPositions {
        layer: usize,
        head: usize,
        slots: Vec<SlotInfo>,
    },
    /// The answer to [`Command::Presence`].
    Presence(Arc<Presence>),
    /// The answer to [`Command::CountTokens`].
    TokensCounted {
        id: u64,
        tokens: usize,
    },
    /// The answer to [`Command::Probe`], or a part of it.
    Found(Finding),
    /// A command of the user was not carried out: its name, and why.
    Refused {
        command: &'static str,
        why: String,
    },
    /// A sentence for the user.
    Notice(String),
    /// A sentence about a feature in use, which is not a warning.
    Info(String),
    /// The engine has failed (a bug, or a lost device) and takes no more commands.
    Failed(String),
}

/// A stored slot of a KV head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotInfo {
    pub position: u32,
    /// Marked for eviction: dropped once it is outside the window, unless eviction is off.
    pub marked: bool,
}

/// Activity of the conversation, for the status line.
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

/// The numbers of the panels after a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    pub phase: Phase,
    /// Number of tokens fed.
    pub tokens: usize,
    /// Number of them that are pinned.
    pub pinned: usize,
    pub eviction: bool,
    pub kv: KvStats,
    /// Bytes of pages that only kept states (or other conversations) hold; part of `kv.bytes`.
    pub checkpoint_bytes: u64,
    /// Bytes of the twin's pages; part of `kv.bytes` and not of `checkpoint_bytes`.
    pub twin_bytes: u64,
    /// Bytes of the pages that chains hold beyond the mean chain, which the other figures describe;
    /// as `twin_bytes`.
    pub chain_bytes: u64,
    /// Bytes mapped by the page pool: `kv.bytes` and free pages.
    pub mapped_bytes: u64,
    pub decode_tok_s: Option<f64>,
    /// How much faster drafts make the answer: [`DraftReport::gain`].
    pub draft_gain: Option<f64>,
    /// The chains that answer, if there are several.
    pub chains: Vec<ChainFigures>,
    /// GPU memory of the process as the driver reports it; `None` on the CPU.
    pub device_bytes: Option<u64>,
    /// Tokens of each earlier state that is kept to go back to.
    pub kept: Vec<usize>,
}
