//! Figures of the running engine, in the form that the protocol carries.

use super::runner::Runner;
use crate::backend::{Backend, FarCounts, KvGeometry, PoolStats};
use crate::cache::{SeqId, SeqStats};
use crate::protocol::{ChainFigures, FarStats, KvStats, Phase, Snapshot};

/// The device's tables, read at one moment.
pub(super) struct Figures {
    geometry: KvGeometry,
    seq: SeqStats,
    pinned: usize,
    /// Most bytes of far pages, if they are kept.
    far_limit: Option<u64>,
    /// Pages held by the twin.
    twin_pages: usize,
    /// Pages of the chains beyond the mean of one chain.
    chain_pages: usize,
    pool: PoolStats,
    pub device_bytes: Option<u64>,
    /// Reads and peak of the answer, summed over lanes.
    pub counted: (u64, u64),
    /// [`SeqStats::fetched`] before the newest turn.
    pub fetched_before: Vec<u32>,
    /// Maximum number of distinct pages that the answer's chains and their prompt held.
    pub shared_pages: Option<usize>,
    pub chains: Vec<ChainFigures>,
}

impl Figures {
    /// Reads the tables, which waits for the device.
    pub fn read<B: Backend>(runner: &Runner<B>, seq: SeqId, twin: Option<SeqId>) -> Self {
        let b = runner.backend();
        Self {
            geometry: *runner.cache.geometry(),
            seq: runner.cache.stats(b, seq),
            pinned: runner.cache.pins(seq).iter().map(ExactSizeIterator::len).sum(),
            far_limit: runner.far_limit(),
            twin_pages: twin.map_or(0, |twin| runner.cache.stats(b, twin).pages),
            chain_pages: 0,
            pool: runner.cache.pool_stats(b),
            device_bytes: b.device_bytes(),
            counted: (0, 0),
            fetched_before: Vec::new(),
            shared_pages: None,
            chains: Vec::new(),
        }
    }

    /// Counters of the sequence.
    pub fn seq(&self) -> &SeqStats {
        &self.seq
    }

    /// Pages held by neither the sequence nor the twin.
    pub fn other_pages(&self) -> usize {
        self.pool.used_pages.saturating_sub(self.seq.pages + self.twin_pages)
    }

    /// Replaces the figures of the sequence by the mean of these sequences. Together they hold all
    /// pages except the twin's and `others`. An empty list changes nothing.
    pub fn show_mean(&mut self, of: &[SeqStats], others: usize) {
        let n = of.len() as u64;
        if n > 0 {
            let mean = |figure: &dyn Fn(&SeqStats) -> u64| (of.iter().map(figure).sum::<u64>() + n / 2) / n;
            for (layer, row) in self.seq.live.iter_mut().enumerate() {
                for (head, live) in row.iter_mut().enumerate() {
                    *live = mean(&|stats| stats.live[layer][head].into()) as u32;
                }
                self.seq.dense[layer] = mean(&|stats| stats.dense[layer].into()) as u32;
            }
            self.seq.live_slots = self.seq.live.iter().flatten().map(|&live| u64::from(live)).sum();
            self.seq.len = mean(&|stats| stats.len as u64) as usize;
            self.seq.pages = mean(&|stats| stats.pages as u64) as usize;
            self.seq.far = FarCounts {
                rows: mean(&|stats| stats.far.rows),
                near: mean(&|stats| stats.far.near),
                dropped: mean(&|stats| stats.far.dropped),
                bytes: mean(&|stats| stats.far.bytes),
                ..self.seq.far
            };
            let lanes = of.iter().map(|stats| stats.fetched.len()).max().unwrap_or(0);
            let of_lane = |at: usize| mean(&|stats| stats.fetched.get(at).copied().unwrap_or(0).into()) as u32;
            self.seq.fetched = (0..lanes).map(of_lane).collect();
        }
        self.chain_pages = self.other_pages().saturating_sub(others);
    }

    /// Converts a sum over lanes into a mean per lane.
    pub fn per_lane(geometry: &KvGeometry, sum: u64) -> f64 {
        sum as f64 / geometry.seq_lanes() as f64
    }

    /// Cache figures of the sequence. `bytes` counts every page of the pool that is in use,
    /// including the pages of other sequences.
    pub fn kv(&self) -> KvStats {
        let (g, stats) = (&self.geometry, &self.seq);
        let dense_slots = stats.dense_slots();
        KvStats {
            codec: g.codec,
            live_slots: stats.live_slots,
            dense_slots,
            ratio: (stats.live_slots > 0).then(|| dense_slots as f64 / stats.live_slots as f64),
            bytes: self.pool.used_pages as u64 * g.page_bytes() as u64,
            live_bytes: stats.bytes(g),
            dense_bytes: stats.dense_bytes(g),
            live: stats.live.clone(),
            dense: stats.dense.clone(),
            reads: Self::per_lane(g, self.counted.0),
            peak_slots: Self::per_lane(g, self.counted.1),
            peak_shared: self.shared_pages.map(|pages| Self::per_lane(g, (pages * g.page_slots) as u64)),
            far: self.far_limit.map(|limit_bytes| self.far(limit_bytes)),
        }
    }

    /// Figures of the sequence's far rows.
    fn far(&self, limit_bytes: u64) -> FarStats {
        let (g, FarCounts { rows, near, dropped, bytes, .. }) = (&self.geometry, self.seq.far);
        let mut fetched_by_head: Vec<Vec<u32>> = g.layers().map(|layer| vec![0; layer.heads.count]).collect();
        let before = self.fetched_before.iter().copied().chain(std::iter::repeat(0));
        for ((lane, pages), before) in g.far_lanes().zip(&self.seq.fetched).zip(before) {
            fetched_by_head[lane.layer][lane.head] = pages.saturating_sub(before);
        }
        let fetched = fetched_by_head.iter().flatten().copied().map(u64::from).sum();
        FarStats { rows, near, dropped, bytes, limit_bytes, fetched, fetched_by_head }
    }

    pub fn snapshot(
        &self,
        phase: Phase,
        eviction: bool,
        decode_tok_s: Option<f64>,
        draft_gain: Option<f64>,
    ) -> Snapshot {
        let page_bytes = self.geometry.page_bytes() as u64;
        Snapshot {
            phase,
            tokens: self.seq.len,
            pinned: self.pinned,
            eviction,
            kv: self.kv(),
            checkpoint_bytes: (self.other_pages() - self.chain_pages) as u64 * page_bytes,
            twin_bytes: self.twin_pages as u64 * page_bytes,
            chain_bytes: self.chain_pages as u64 * page_bytes,
            mapped_bytes: self.pool.mapped_pages as u64 * page_bytes,
            decode_tok_s,
            draft_gain,
            chains: self.chains.clone(),
            device_bytes: self.device_bytes,
            kept: Vec::new(),
            unread: 0,
        }
    }
}
