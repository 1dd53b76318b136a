//! Reports of a backend about itself, and functions that only measurements and checks use. No op of
//! a step is here.

use super::{Backend, KvGeometry, KvTables, QkvRopeArgs};
use crate::codec::Codec;
use crate::policy::Policy;
use crate::quant::Weights;
use std::ops::{Range, RangeInclusive};

/// Facts that decide which kernels the steps of a model launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelNeeds {
    /// Channels of a head.
    pub head_dim: usize,
    /// Format of K and V in the cache.
    pub codec: Codec,
    /// Format of the weights.
    pub weights: Weights,
    /// Policy of the cache.
    pub policy: Policy,
    /// Whether layers are gated delta nets.
    pub delta_net: bool,
    /// Whether layers have experts.
    pub experts: bool,
    /// Whether steps try drafts.
    pub drafts: bool,
}

/// Facts about a device that do not change.
#[derive(Clone, Debug)]
pub struct About {
    /// `cpu, 2 threads` or the GPU's name.
    pub name: String,
    /// An external library that runs some of the ops.
    pub library: Option<String>,
    /// Fewest and most tokens of a prefill step that suit the backend; memory decides between them.
    pub step_tokens: RangeInclusive<usize>,
    /// Tokens of a prefill chunk, as a function of the device alone, if a row's results depend on
    /// the rows beside it: the chunks of a prompt or a replay must then follow from its log. `None`
    /// if they do not, so that any chunks give the same state.
    pub chunk_tokens: Option<usize>,
    /// Most rows of a step that is [committed later](super::Ops::commit); 0 where there is none.
    pub staged_rows: usize,
    /// Whether experts may have the codes of GGUF files.
    pub own_experts: bool,
}

/// Properties of a backend, for notices, the planner and the panel.
pub trait Report {
    fn about(&self) -> About;
    /// A message for the user that came up in a step, returned once.
    fn notice(&self) -> Option<String> {
        None
    }
    /// Bytes of device memory as the driver reports them for this process.
    fn device_bytes(&self) -> Option<u64> {
        None
    }
}

/// Functions of a backend for measurements and checks, which running a model does not need.
pub trait Measure: Backend {
    /// Bytes read and written per second by a copy within the device's memory.
    fn copy_bytes_per_s(&self) -> anyhow::Result<f64>;
    /// Writes the first rows of activations from f32.
    fn write_acts(&self, dst: &mut Self::Acts, rows: &[f32]);
    /// Reference counts of the first `mapped_pages` pages (0 = free).
    fn page_refs(&self, kv: &KvTables<Self>) -> Vec<u32>;
    /// Largest weighted attention that each of the first tokens of a sequence gets from the queries
    /// `queries.rows`: `out[h, t] = max over rows i of a[h, i, t] * factors[i]`, for query heads h
    /// and `out.len() / n_q_heads` tokens t. `qkv` holds the sequence's projected rows from
    /// position 0 on, as [`Ops::attention`](super::Ops::attention) gets them; it may be
    /// overwritten. Attention `a` is dense and causal. Scores exist in tiles of a few rows only.
    fn importance(
        &self,
        out: &mut [f32],
        qkv: &mut Self::Acts,
        geometry: &KvGeometry,
        rope: &QkvRopeArgs<'_, Self>,
        queries: &Queries<'_>,
    );
    /// Returns when all work issued so far is done. A backend that works in the caller's thread has
    /// nothing to wait for.
    fn synchronize(&self) {}
    /// Steps captured as graphs.
    fn captured_steps(&self) -> usize {
        0
    }
    /// Contents of the device's memory; `None` where it is the host's.
    fn memory_use(&self) -> Option<MemoryUse> {
        None
    }
    /// Returns the median microseconds of one of `calls` calls of `op`, which receives the call's
    /// number, over [`TIMED_ROUNDS`] rounds after an untimed one. Each round begins with `before`,
    /// untimed. A backend may capture a round and replay it, so that the device is timed and not
    /// the host.
    fn time_us<S>(&self, calls: usize, state: &mut S, before: impl Fn(&mut S), op: impl Fn(&mut S, usize)) -> f64 {
        let mut round = || {
            before(state);
            self.synchronize();
            let started = std::time::Instant::now();
            (0..calls).for_each(|i| op(state, i));
            self.synchronize();
            started.elapsed().as_secs_f64() * 1e6 / calls as f64
        };
        round();
        median((0..TIMED_ROUNDS).map(|_| round()).collect())
    }
}

/// Queries of [`Measure::importance`].
pub struct Queries<'a> {
    /// Rows, which are positions as well.
    pub rows: Range<usize>,
    /// Factor on each row's attention.
    pub factors: &'a [f32],
}

/// Contents of a device's memory, as its driver and the backend count it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Taken by other programs and by the driver for this one, before anything was loaded.
    pub before_bytes: u64,
    /// Taken by loading the kernels.
    pub kernel_bytes: u64,
    /// Taken now, in all.
    pub taken_bytes: u64,
    /// Live allocations by purpose, in the driver's granules.
    pub allocated: Vec<(&'static str, u64)>,
}

/// Rounds that [`Measure::time_us`] times.
pub const TIMED_ROUNDS: usize = 5;

pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
