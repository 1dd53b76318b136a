//! Figures of the running engine, as the protocol carries them.

use super::context::Context;
use super::runner::Runner;
use crate::backend::Backend;
use crate::protocol::{KvStats, Phase, Snapshot};

/// Cache figures of a conversation. `bytes` counts every page of the pool that is in use, those
/// that only checkpoints hold included.
pub(super) fn kv_stats<B: Backend>(runner: &Runner<B>, context: &Context) -> KvStats {
    let g = runner.cache.geometry();
    let stats = runner.cache.stats(runner.backend(), context.seq);
    let dense_slots = (stats.len * g.n_layers * g.n_kv_heads) as u64;
    let slot_bytes = g.slot_bytes() as u64;
    KvStats {
        codec: g.codec.name().to_owned(),
        live_slots: stats.live_slots,
        dense_slots,
        ratio: (stats.live_slots > 0).then(|| dense_slots as f64 / stats.live_slots as f64),
        bytes: runner.cache.pool_stats(runner.backend()).used_pages as u64 * g.page_bytes() as u64,
        live_bytes: stats.live_slots * slot_bytes,
        dense_bytes: dense_slots * slot_bytes,
        live: stats.live,
    }
}

pub(super) fn snapshot<B: Backend>(
    runner: &Runner<B>,
    context: &Context,
    phase: Phase,
    eviction: bool,
    decode_tok_s: Option<f64>,
) -> Snapshot {
    let page_bytes = runner.cache.geometry().page_bytes() as u64;
    let pool = runner.cache.pool_stats(runner.backend());
    let own_pages = runner.cache.stats(runner.backend(), context.seq).pages;
    Snapshot {
        phase,
        tokens: runner.cache.len(context.seq),
        eviction,
        kv: kv_stats(runner, context),
        checkpoint_bytes: (pool.used_pages - own_pages) as u64 * page_bytes,
        mapped_bytes: pool.mapped_pages as u64 * page_bytes,
        decode_tok_s,
        device_bytes: runner.backend().device_bytes(),
    }
}
