//! What only measurements and checks ask of a backend.

use super::kv::{KvGeometry, KvTables};
use super::ops::{Backend, QkvRopeArgs};
use super::report::MemoryUse;
use std::ops::Range;

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

/// Rounds that [`Measure::time_us`] times.
pub const TIMED_ROUNDS: usize = 5;

pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
