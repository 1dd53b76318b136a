//! The interface that a device implements to run a model: its memory ([`Device`]), the ops of a
//! step ([`Ops`]), the cache's pages between steps ([`Pages`]), the pages of its second tier
//! ([`FarPages`]), and reports about itself ([`Report`]); together a [`Backend`]. [`Measure`] has
//! the functions that only measurements and checks need. An op is as large as the work that kernels
//! fuse; the backend decides which kernels run it.
//!
//! All ops write into a caller's buffer and allocate nothing. Shapes are `[rows, width]`,
//! row-major; a matmul has M rows of activations, N rows of the weight and K columns of both. The
//! CPU composes its ops of plain loops and is the reference for other backends. This module knows
//! policies, codecs and tensors, but no model, file or conversation.
//!
//! A decode or prefill step runs inside [`Ops::step`], and its only read-back is
//! [`Ops::read_step`]. Lengths and tables are in device memory ([`KvTables`]), so that a backend
//! can capture a step once and replay it.

pub mod cpu;
pub mod cuda;
mod far;
mod kv;
mod measure;
mod memory;
mod ops;
mod report;

pub use crate::protocol::SamplingState;
pub(crate) use crate::protocol::bytes as in_units;
pub use far::{FarCounts, FarLane, FarPages, FarSizes};
pub use kv::{DeltaGeometry, KvGeometry, KvTables, Lane, PageLayout, Pages, PoolStats, PresenceCounts, Span};
pub use measure::{Measure, Queries, TIMED_ROUNDS};
pub use memory::{Device, DeviceLost, OutOfMemory, Plain, Use};
pub use ops::{
    After, Alpha, AttentionArgs, Backend, Beside, Borrowed, Columns, DeltaNetArgs, ExpertRows, ExpertsArgs, Growth,
    Linear, Mlp, Norm, Ops, Predictor, QkvRopeArgs, SampleArgs, StepKind, StepResult,
};
pub use report::{About, KernelNeeds, MemoryUse, Report};
