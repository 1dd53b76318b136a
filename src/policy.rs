//! Policies decide which slots of a lane live: one file per policy, pure per-head code. Every
//! backend's slot assignment and attention must agree with it slot for slot.
//!
//! A *lane* is one KV head of one sequence in one layer. Slots of a lane are numbered 0.. without
//! holes: a token either appends a slot, overwrites one or is not stored. There are four kinds of
//! rule. [`Dms`] marks a token when it arrives and drops it later. [`Scored`] drops the token with
//! the least score, by attention weights or by retention gates. [`Merging`] chooses the tokens that
//! share a slot. [`Quest`] chooses what a query reads.

mod budget;
mod cache_policy;
mod dense;
mod dials;
mod dmc;
mod dms;
pub mod far;
mod h2o;
mod kind;
mod lanes;
mod merge;
mod pool;
mod quest;
mod scored;
mod slot;
mod strength;
mod tova;
mod trimkv;
mod window;

pub use budget::Budget;
pub use cache_policy::{Policy, PolicyRequest, Trained};
pub use dials::{DialTable, MAX_RATIO};
pub use dmc::Dmc;
pub use dms::{Dms, Shift};
pub use far::Far;
pub use h2o::H2o;
pub use kind::PolicyKind;
pub use lanes::{KvHeads, LayerLanes, LocalLayers};
pub use merge::{Merging, members, merge, sums_len};
pub use pool::{MOST_MEMBERS, Pool};
pub use quest::{Quest, bf16_down, bf16_up, choose, upper_bound};
pub use scored::{History, Scope, Scored};
pub use slot::{LaneSlots, POSITION_BITS, Placement, SlotMeta};
pub use strength::{STRENGTHS, decision_of, least_decision, strength};
pub use tova::Tova;
pub use trimkv::TrimKv;
pub use window::{SINKS, Window};
