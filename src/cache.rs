//! The KV cache: sequences over lanes over pages, one cache for every policy, codec and backend.
//!
//! A *sequence* is one row of the tables: the conversation, a checkpoint of it, a rebuild beside
//! it, later a parallel chain. A *lane* is one KV head of one sequence; its slots are numbered
//! 0.. without holes. Forks share pages copy-on-write. The layout of a page stands at
//! [`KvTables`].
//!
//! Knows nothing of models, tokens' meaning or conversations.

use crate::backend::{Backend, KvGeometry, KvTables, OutOfMemory, PoolStats, QkvRope, Span, in_units};
use crate::policy::SlotMeta;

/// Slots in a page: small enough that a lane wastes 8 slots on average.
pub const PAGE_SLOTS: usize = 16;

/// A row of the cache's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SeqId(usize);

impl SeqId {
    /// The row, for tables of others beside the cache's.
    pub fn row(self) -> usize {
        self.0
    }
}

/// A step that does not fit was not run.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error("the KV cache is full: {} more would pass the limit of {}", in_units(*needed_bytes), in_units(*limit_bytes))]
    Limit { needed_bytes: u64, limit_bytes: u64 },
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    #[error("no sequence is free: all {0} are in use")]
    Sequences(usize),
}

#[derive(Clone, Copy, Debug, Default)]
struct SeqState {
    used: bool,
    len: usize,
    eviction: bool,
    /// The same number in a sequence and its forks: they may share pages.
    family: u64,
}

/// Counts of one sequence, read from the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeqStats {
    /// Tokens fed.
    pub len: usize,
    /// `[n_layers][n_kv_heads]` live slots.
    pub live: Vec<Vec<u32>>,
    pub live_slots: u64,
    /// Pages this sequence's tables name.
    pub pages: usize,
    /// Slots that decode steps have attended to, all lanes together.
    pub reads: u64,
    /// Most slots stored after a step, all lanes together.
    pub peak: u32,
}

pub struct KvCache<B: Backend> {
    tables: KvTables<B>,
    seqs: Vec<SeqState>,
    /// Most pages that may be in use.
    page_limit: Option<usize>,
    /// No more pages than this are in use: grows with what is reserved, until the pool is asked again.
    used_at_most: usize,
    /// Families so far.
    families: u64,
}

impl<B: Backend> KvCache<B> {
    /// A cache for `n_seqs` sequences of up to `context` tokens, empty, with steps of at most
    /// `max_step` tokens in all.
    pub fn new(b: &B, geometry: KvGeometry, context: usize, max_step: usize) -> Result<Self, OutOfMemory> {
        let tables = KvTables::new(b, geometry, context, max_step)?;
        let seqs = vec![SeqState::default(); geometry.n_seqs];
        Ok(Self { tables, seqs, page_limit: None, used_at_most: 0, families: 0 })
    }

    pub fn geometry(&self) -> &KvGeometry {
        &self.tables.geometry
    }

    /// Caps the bytes of allocated pages; what is in use already stays.
    pub fn set_limit_bytes(&mut self, limit: Option<u64>) {
        self.page_limit = limit.map(|bytes| (bytes / self.geometry().page_bytes() as u64) as usize);
    }

    pub fn limit_bytes(&self) -> Option<u64> {
        self.page_limit.map(|pages| (pages * self.geometry().page_bytes()) as u64)
    }

    /// An empty sequence.
    pub fn create(&mut self, b: &B, eviction: bool) -> Result<SeqId, CacheError> {
        let n = self.seqs.len();
        let row = self.seqs.iter().position(|s| !s.used).ok_or(CacheError::Sequences(n))?;
        self.families += 1;
        self.seqs[row] = SeqState { used: true, len: 0, eviction, family: self.families };
        b.write(&mut self.tables.eviction, row, &[eviction as i32]);
        Ok(SeqId(row))
    }

    /// A copy that shares every page, at the cost of a table row.
    pub fn fork(&mut self, b: &B, seq: SeqId) -> Result<SeqId, CacheError> {
        let state = self.seqs[seq.0];
        let copy = self.create(b, state.eviction)?;
        b.fork(&mut self.tables, seq.0, copy.0);
        self.seqs[copy.0] = state;
        Ok(copy)
    }

    /// Gives up a sequence and the pages nobody else holds.
    pub fn release(&mut self, b: &B, seq: SeqId) {
        b.release(&mut self.tables, seq.0);
        self.seqs[seq.0] = SeqState::default();
    }

    /// Tokens fed to a sequence.
    pub fn len(&self, seq: SeqId) -> usize {
        self.seqs[seq.0].len
    }

    /// Tokens fed to a span's sequence.
    pub fn len_of(&self, span: &Span) -> usize {
        self.seqs[span.seq].len
    }

    pub fn eviction(&self, seq: SeqId) -> bool {
        self.seqs[seq.0].eviction
    }

    /// Switches eviction from the next token on. Switching on drops at once every marked slot
    /// outside the window, and says how many.
    pub fn set_eviction(&mut self, b: &B, seq: SeqId, on: bool) -> Result<u64, CacheError> {
        let was = self.seqs[seq.0].eviction;
        if on == was {
            return Ok(0);
        }
        let mut dropped = 0;
        if on {
            let before = self.stats(b, seq);
            // Pages that a checkpoint shares do not come back as a lane is rewritten.
            let need = if self.is_shared(seq.0) { before.pages } else { 0 };
            self.reserve(b, need)?;
            b.compact(&mut self.tables, seq.0);
            dropped = before.live_slots - self.stats(b, seq).live_slots;
        }
        self.seqs[seq.0].eviction = on;
        b.write(&mut self.tables.eviction, seq.0, &[on as i32]);
        Ok(dropped)
    }

    pub fn span(&self, seq: SeqId, start: usize, len: usize) -> Span {
        Span { seq: seq.0, start, len }
    }

    /// Makes sure that a step over `spans` finds every page it may take. Nothing fails inside.
    ///
    /// Decode steps get what any state of the tables could need, so that nothing is read back for
    /// them; only where that does not fit, and for prefills, the need is counted.
    pub fn reserve_step(&mut self, b: &B, spans: &[Span]) -> Result<(), CacheError> {
        if spans.iter().all(|s| s.len == 1) {
            let g = self.geometry();
            let copies =
                spans.iter().filter(|s| self.is_shared(s.seq)).count() * self.geometry().policy.most_written(1);
            let most = g.n_layers * g.n_kv_heads * (spans.len() + copies);
            if self.reserve(b, most).is_ok() {
                return Ok(());
            }
        }
        let need = spans.iter().map(|s| self.pages_needed(b, s)).sum();
        self.reserve(b, need)
    }

    /// Upper bound on the pages that feeding `n` more tokens to a sequence takes. Reads the live counts.
    pub fn pages_for(&self, b: &B, seq: SeqId, n: usize) -> usize {
        self.pages_needed(b, &self.span(seq, 0, n))
    }

    /// Pages below the limit that no sequence holds; absent without a limit.
    pub fn free_pages(&self, b: &B) -> Option<usize> {
        Some(self.page_limit?.saturating_sub(self.pool_stats(b).used_pages))
    }

    /// Most pages a span can take: appends as if nothing were overwritten, and a copy of every
    /// shared page it may write to.
    fn pages_needed(&self, b: &B, span: &Span) -> usize {
        let g = self.geometry();
        let writes = if self.is_shared(span.seq) { self.geometry().policy.most_written(span.len) } else { 0 };
        let mut need = 0;
        for (live, _) in self.live_rows(b, span.seq) {
            let held = live.div_ceil(g.page_slots);
            need += (live + span.len).div_ceil(g.page_slots) - held + held.min(writes);
        }
        need
    }

    fn reserve(&mut self, b: &B, pages: usize) -> Result<(), CacheError> {
        if let Some(limit) = self.page_limit.filter(|_| pages > 0) {
            if self.used_at_most + pages > limit {
                self.used_at_most = b.pool_stats(&self.tables).used_pages;
            }
            let used = self.used_at_most;
            if used + pages > limit {
                let page_bytes = self.geometry().page_bytes();
                return Err(CacheError::Limit {
                    needed_bytes: ((used + pages - limit) * page_bytes) as u64,
                    limit_bytes: (limit * page_bytes) as u64,
                });
            }
        }
        self.used_at_most += pages;
        Ok(b.reserve(&mut self.tables, pages)?)
    }

    /// Whether another sequence may hold pages of this one.
    fn is_shared(&self, seq: usize) -> bool {
        let of_the_same = |(other, s): (usize, &SeqState)| other != seq && s.used && s.family == self.seqs[seq].family;
        self.seqs.iter().enumerate().any(of_the_same)
    }

    /// One layer of a step: [`Backend::attention`].
    #[allow(clippy::too_many_arguments)]
    pub fn attention(
        &mut self,
        b: &B,
        out: &mut B::Acts,
        qkv: &mut B::Acts,
        decisions: &mut B::Buf<f32>,
        layer: usize,
        spans: &[Span],
        rope: &QkvRope<'_, B>,
    ) {
        b.attention(out, qkv, decisions, &mut self.tables, layer, spans, rope);
    }

    pub fn seq_len(&self) -> &B::Buf<i32> {
        &self.tables.seq_len
    }

    /// The end of a step on the device: its tokens are part of their sequences.
    pub fn advance(&mut self, b: &B, spans: &[Span]) {
        b.advance(&mut self.tables, spans);
    }

    /// The same on the host, after the step: what runs inside one may be a replay.
    pub fn fed(&mut self, spans: &[Span]) {
        for span in spans {
            self.seqs[span.seq].len += span.len;
        }
    }

    /// The end of a step that is never replayed, on both sides.
    pub fn finish(&mut self, b: &B, spans: &[Span]) {
        self.advance(b, spans);
        self.fed(spans);
    }

    /// For ops that look at the pool beside what they are asked.
    pub fn tables(&self) -> &KvTables<B> {
        &self.tables
    }

    /// Gives memory that no page uses back, where whole steps of the pool are empty.
    pub fn trim(&mut self, b: &B) {
        b.trim(&mut self.tables);
    }

    pub fn pool_stats(&self, b: &B) -> PoolStats {
        b.pool_stats(&self.tables)
    }

    pub fn stats(&self, b: &B, seq: SeqId) -> SeqStats {
        let g = self.geometry();
        let rows: Vec<u32> = self.live_rows(b, seq.0).map(|(live, _)| live as u32).collect();
        let (mut reads, mut peak) = ([0], [0]);
        b.read(&self.tables.reads, seq.0, &mut reads);
        b.read(&self.tables.peak, seq.0, &mut peak);
        SeqStats {
            len: self.len(seq),
            reads: reads[0],
            peak: peak[0],
            live_slots: rows.iter().map(|&l| l as u64).sum(),
            pages: rows.iter().map(|&l| (l as usize).div_ceil(g.page_slots)).sum(),
            live: rows.chunks(g.n_kv_heads).map(<[u32]>::to_vec).collect(),
        }
    }

    /// Live slots of every lane of a sequence, layer by layer, with the lane's row.
    fn live_rows(&self, b: &B, seq: usize) -> impl Iterator<Item = (usize, usize)> + use<B> {
        let g = *self.geometry();
        let mut live = vec![0; g.n_layers * g.n_lanes()];
        b.read(&self.tables.live, 0, &mut live);
        (0..g.n_layers)
            .flat_map(move |layer| (0..g.n_kv_heads).map(move |head| g.row(layer, seq, head)))
            .map(move |row| (live[row] as usize, row))
    }

    /// Positions and marks of a head's stored slots, in slot order.
    pub fn slot_metas(&self, b: &B, seq: SeqId, layer: usize, head: usize) -> Vec<SlotMeta> {
        b.slot_metas(&self.tables, layer, seq.0, head)
    }

    /// Recounts who holds which page: every table entry against the pool's reference counts.
    /// Returns the number of distinct pages in use.
    pub fn audit(&self, b: &B) -> Result<usize, String> {
        let g = self.geometry();
        let mut table = vec![0; g.n_layers * g.n_lanes() * g.max_pages];
        b.read(&self.tables.page_table, 0, &mut table);
        let refs = b.page_refs(&self.tables);
        let mut counted = vec![0u32; refs.len()];
        for seq in 0..g.n_seqs {
            for (live, row) in self.live_rows(b, seq) {
                let entries = &table[row * g.max_pages..(row + 1) * g.max_pages];
                let held = live.div_ceil(g.page_slots);
                for (i, &page) in entries.iter().enumerate() {
                    match (i < held, page) {
                        (true, page) if page < 0 || page as usize >= refs.len() => {
                            return Err(format!("lane {row}: entry {i} names page {page}, which does not exist"));
                        }
                        (true, page) => counted[page as usize] += 1,
                        (false, -1) => {}
                        (false, page) => {
                            return Err(format!("lane {row}: entry {i} beyond its slots names page {page}"));
                        }
                    }
                }
            }
        }
        if let Some(page) = (0..refs.len()).find(|&p| refs[p] != counted[p]) {
            return Err(format!("page {page} is held {} times and counted {}", counted[page], refs[page]));
        }
        Ok(counted.iter().filter(|&&c| c > 0).count())
    }
}
