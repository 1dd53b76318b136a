//! Plain data between front ends and the engine's thread: commands in, events and snapshots out.
//!
//! Events are lossless and ordered. Of [`Snapshot`]s, the numbers of the panels, only the latest
//! counts.

mod chains;
mod download;
mod draft;
mod grammar;
mod handle;
mod kv_stats;
mod log;
mod messages;
mod model;
pub mod number;
mod presence;
mod probe;
mod recall;
mod sampling;
mod steering;
mod template;
mod terms;
mod turn;
mod twin;

pub use messages::{CacheFile, Command, Event, Phase, RestoreRequest, SlotInfo, Snapshot};

pub use turn::{Ask, GenerateRequest, TurnReport};

use terms::present;
pub use terms::{MAX_CONTEXT, Piece, StopReason, TextKind, Token, bytes, count};

pub use chains::{
    ChainEvent, ChainFigures, ChainReport, ChainState, ChainsReport, ChainsRequest, MAX_AUTO_WIDTH, MAX_WIDTH,
    VoteCount,
};
pub use download::Download;
pub use draft::{DraftReport, DraftSource, MAX_DRAFTS};
pub use grammar::{Grammar, GrammarError, GrammarPart};
pub use handle::{
    CommandSender, ConversationId, EngineHandle, EngineMessage, EventSender, Outlet, Request, RequestId, Response,
};
pub use kv_stats::{FarStats, KvStats};
pub use model::{Decisions, ModelIdentity, ModelInfo, ModelReference, Plan, Thinking, WeightsInfo, thought_header};
pub use presence::{LaneFilter, LaneState, Presence, PresenceRequest};
pub use probe::{Finding, Likely, Probe, TokenChoice};
pub use recall::{Evidence, Guess, RecallRequest, Recalled, RecalledToken};
pub(crate) use sampling::sampling_table;
pub use sampling::{Adjustment, SamplingOption, SamplingOverrides, SamplingParams, SamplingState};
pub use template::{TemplateSpec, TextLimit};
pub use twin::{TwinDifference, TwinReport};

pub use log::LogEntry;
pub use steering::{Dial, LogChange, Pinned, WhenFull};
