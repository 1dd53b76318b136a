//! Figures of the running engine, as the protocol carries them.

use super::runner::Runner;
use crate::backend::{Backend, KvGeometry, PoolStats};
use crate::cache::{SeqId, SeqStats};
use crate::protocol::{KvStats, Phase, Snapshot};

/// The device's tables as they are at one moment.
pub(super) struct Figures {
    geometry: KvGeometry,
    seq: SeqStats,
    /// Pages of the twin.
    twin_pages: usize,
    pool: PoolStats,
    device_bytes: Option<u64>,
}

impl Figures {
    /// Reads the tables: waits for the device.
    pub fn read<B: Backend>(runner: &Runner<B>, seq: SeqId, twin: Option<SeqId>) -> Self {
        let b = runner.backend();
        Self {
            geometry: *runner.cache.geometry(),
            seq: runner.cache.stats(b, seq),
            twin_pages: twin.map_or(0, |twin| runner.cache.stats(b, twin).pages),
            pool: runner.cache.pool_stats(b),
            device_bytes: b.device_bytes(),
        }
    }

    /// Cache figures of the sequence. `bytes` counts every page of the pool that is in use, those of other sequences
    /// included.
    pub fn kv(&self) -> KvStats {
        let (g, stats) = (&self.geometry, &self.seq);
        let dense_slots = (stats.len * g.n_layers * g.n_kv_heads) as u64;
        let slot_bytes = g.slot_bytes() as u64;
        KvStats {
            codec: g.codec.name().to_owned(),
            live_slots: stats.live_slots,
            dense_slots,
            ratio: (stats.live_slots > 0).then(|| dense_slots as f64 / stats.live_slots as f64),
            bytes: self.pool.used_pages as u64 * g.page_bytes() as u64,
            live_bytes: stats.live_slots * slot_bytes,
            dense_bytes: dense_slots * slot_bytes,
            live: stats.live.clone(),
        }
    }

    pub fn snapshot(&self, phase: Phase, eviction: bool, decode_tok_s: Option<f64>) -> Snapshot {
        let page_bytes = self.geometry.page_bytes() as u64;
        Snapshot {
            phase,
            tokens: self.seq.len,
            eviction,
            kv: self.kv(),
            checkpoint_bytes: (self.pool.used_pages - self.seq.pages - self.twin_pages) as u64 * page_bytes,
            twin_bytes: self.twin_pages as u64 * page_bytes,
            mapped_bytes: self.pool.mapped_pages as u64 * page_bytes,
            decode_tok_s,
            device_bytes: self.device_bytes,
        }
    }
}
