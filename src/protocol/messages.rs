//! Commands to the engine's thread, and what it sends back.

use super::chains::{ChainEvent, ChainFigures};
use super::download::Download;
use super::kv_stats::KvStats;
use super::log::LogEntry;
use super::model::{ModelInfo, Plan};
use super::presence::{Presence, PresenceRequest};
use super::probe::{Finding, Probe, TokenChoice};
use super::steering::{Dial, LogChange, Pinned, WhenFull};
use super::terms::{Piece, TextKind, Token};
use super::turn::{GenerateRequest, TurnReport};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

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
    /// Whether the log is in the file too: of a slot, which has no session.
    pub has_log: bool,
}

/// A command to the engine. Commands that change the conversation are served in order; `Cancel`,
/// `Elect`, `SetEviction`, `SetTwin`, `SetKvLimit`, `SetWhenFull`, `Inspect`, `Presence`,
/// `CountTokens` and `Encode` act between two steps.
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
    /// Asks for the tokens of a text: [`Event::Encoded`].
    Encode(Vec<Piece>),
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
    /// Slots go on from their files: so many, with so many tokens in all.
    SlotsLoaded {
        slots: usize,
        tokens: usize,
    },
    /// The model is loaded, or another conversation was opened.
    Ready(Arc<ModelInfo>),
    /// The plan of the memory has changed: the answer to [`Command::SetKvLimit`].
    Planned(Box<Plan>),
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
    /// Log-probabilities of the answer's tokens that begin in the next text of its turn, or of this
    /// chain: [`Ask::logprobs`](super::Ask::logprobs).
    Likely {
        turn: u64,
        chain: Option<usize>,
        /// Each with the byte of the next text at which it begins.
        tokens: Vec<(usize, TokenChoice)>,
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
    /// The answer to [`Command::Encode`], or why the text cannot be encoded.
    Encoded(Result<Vec<Token>, String>),
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
#[derive(Clone, Debug, PartialEq, Default)]
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
    /// Tokens of the conversation that the cache does not hold after a way back, and that the next
    /// message reads.
    pub unread: usize,
}
