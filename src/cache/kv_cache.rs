//! The cache itself: its sequences, and steps over them.

use super::error::CacheError;
use crate::backend::{AttentionArgs, Backend, KvGeometry, KvTables, Lane, OutOfMemory, PoolStats, QkvRopeArgs, Span};
use crate::codec::Coder;
use crate::policy::{STRENGTHS, Shift, strength};
use crate::protocol::Token;
use std::ops::Range;
use std::sync::Arc;

/// Slots per page. A lane wastes half a page on average, hence a small number.
pub const PAGE_SLOTS: usize = 16;

/// A row of the cache's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SeqId(pub(super) usize);

impl SeqId {
    /// Index of the row, for tables kept beside the cache.
    pub fn row(self) -> usize {
        self.0
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct SeqState {
    pub(super) used: bool,
    pub(super) len: usize,
    pub(super) eviction: bool,
    pub(super) dial: f32,
    /// Positions whose tokens are never marked, in disjoint ranges in order.
    pub(super) pins: Vec<Range<usize>>,
    /// Sequences with the same number are forks of each other and may share pages.
    pub(super) fork_group: u64,
    /// Number of tokens and threshold at the last [`KvCache::forget`]. Until a token is fed, or a
    /// slot gets another mark or strength, calling it at this or a higher threshold drops nothing.
    pub(super) settled: Option<(usize, usize)>,
    /// Whether a token was fed since the last fork. If so, no other sequence holds the page of the
    /// newest token.
    pub(super) owns_newest: bool,
    /// [`KvCache::far_fetched`]
    pub(super) fetched: Vec<u32>,
}

pub struct KvCache<B: Backend> {
    pub(super) tables: KvTables<B>,
    pub(super) seqs: Vec<SeqState>,
    /// Maximum bytes of pages in use.
    pub(super) limit: Option<u64>,
    /// Upper bound on the pages in use. It grows with every reservation and becomes exact when the
    /// pool is read, so that most steps need no device read.
    pub(super) used_upper_bound: usize,
    /// Number of fork groups made so far.
    pub(super) fork_groups: u64,
    /// Copy of `tables.pinned` on the host.
    pub(super) pinned_rows: Vec<i32>,
}

impl<B: Backend> KvCache<B> {
    /// Creates an empty cache for `geometry.n_seqs` sequences of up to `context` tokens each and
    /// for steps of up to `max_step` tokens in total.
    pub fn new(b: &B, geometry: KvGeometry, context: usize, max_step: usize) -> Result<Self, OutOfMemory> {
        let tables = KvTables::new(b, geometry, context, max_step)?;
        let seqs = vec![SeqState::default(); geometry.n_seqs];
        Ok(Self { tables, seqs, limit: None, used_upper_bound: 0, fork_groups: 0, pinned_rows: vec![0; max_step] })
    }

    /// Sets the coder of the codec, before anything is stored.
    pub fn set_coder(&mut self, coder: Option<Arc<dyn Coder>>) {
        self.tables.coder = coder;
    }

    pub fn geometry(&self) -> &KvGeometry {
        &self.tables.geometry
    }

    /// Limits the bytes of allocated pages. Pages in use are kept.
    pub fn set_limit_bytes(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    pub fn limit_bytes(&self) -> Option<u64> {
        self.limit
    }

    /// Creates an empty sequence. The window of a model's own attention is always in force.
    pub fn create(&mut self, b: &B, eviction: bool) -> Result<SeqId, CacheError> {
        let eviction = eviction || self.geometry().policy.models_window().is_some();
        let row = self.free_row()?;
        self.fork_groups += 1;
        self.seqs[row] = SeqState { used: true, eviction, fork_group: self.fork_groups, ..SeqState::default() };
        b.write(&mut self.tables.eviction, row, &[eviction as i32]);
        b.write(&mut self.tables.dial, row, &[0.0]);
        self.write_seen(b, row, std::iter::empty());
        Ok(SeqId(row))
    }

    pub(super) fn free_row(&self) -> Result<usize, CacheError> {
        self.seqs.iter().position(|s| !s.used).ok_or(CacheError::Sequences(self.seqs.len()))
    }

    /// Writes the set of tokens fed to a sequence.
    pub(super) fn write_seen(&mut self, b: &B, row: usize, tokens: impl Iterator<Item = Token>) {
        let mut seen = vec![0u32; self.geometry().seen_words()];
        tokens.for_each(|token| seen[token as usize / 32] |= 1 << (token % 32));
        b.write(&mut self.tables.seen, row * seen.len(), &seen);
    }

    /// Creates a copy of a sequence that shares all its pages.
    pub fn fork(&mut self, b: &B, seq: SeqId) -> Result<SeqId, CacheError> {
        let copy = SeqId(self.free_row()?);
        b.fork(&mut self.tables, seq.0, copy.0);
        self.seqs[seq.0].owns_newest = false;
        self.seqs[copy.0] = self.seqs[seq.0].clone();
        Ok(copy)
    }

    /// Releases a sequence and the pages that no other sequence holds.
    pub fn release(&mut self, b: &B, seq: SeqId) {
        b.release(&mut self.tables, seq.0);
        self.seqs[seq.0] = SeqState::default();
    }

    /// Number of tokens fed to a sequence.
    pub fn len(&self, seq: SeqId) -> usize {
        self.seqs[seq.0].len
    }

    /// Number of tokens fed to the sequence of a span.
    pub fn len_of(&self, span: &Span) -> usize {
        self.seqs[span.seq].len
    }

    /// Whether tokens fed to a sequence may evict others.
    pub fn eviction(&self, seq: SeqId) -> bool {
        self.seqs[seq.0].eviction
    }

    /// Switches eviction for the tokens that follow. Switching it on drops all marked slots outside
    /// the window at once, switching it off makes all far pages near. Returns the number of slots
    /// dropped.
    pub fn set_eviction(&mut self, b: &B, seq: SeqId, on: bool) -> Result<u64, CacheError> {
        let was = self.seqs[seq.0].eviction;
        if on == was || self.geometry().policy.models_window().is_some() {
            return Ok(0);
        }
        let mut dropped = 0;
        if on {
            dropped = self.forget(b, seq, STRENGTHS)?;
        }
        self.seqs[seq.0].eviction = on;
        // Pinned tokens are near already.
        if let Some(error) = (!on).then(|| self.bring_held(b, seq, 0).err()).flatten() {
            self.seqs[seq.0].eviction = was;
            return Err(error);
        }
        b.write(&mut self.tables.eviction, seq.0, &[on as i32]);
        Ok(dropped)
    }

    /// Drops the slots outside the window that are marked or whose strength is at least
    /// `threshold`. Returns their number.
    pub fn forget(&mut self, b: &B, seq: SeqId, threshold: usize) -> Result<u64, CacheError> {
        let len = self.len(seq);
        if self.seqs[seq.0].settled.is_some_and(|(at, least)| at == len && least <= threshold) {
            return Ok(0);
        }
        let before = self.stats(b, seq);
        self.reserve_copies(b, seq, before.pages)?;
        b.compact(&mut self.tables, seq.0, threshold);
        self.seqs[seq.0].settled = Some((len, threshold));
        Ok(before.live_slots - self.stats(b, seq).live_slots)
    }

    /// Reserves copies of `pages` pages of a sequence that are about to be written, in case a fork
    /// shares them.
    pub(super) fn reserve_copies(&mut self, b: &B, seq: SeqId, pages: usize) -> Result<(), CacheError> {
        let need = if self.is_shared(seq.0) { pages } else { 0 };
        self.reserve(b, need)
    }

    /// Threshold that a decision must exceed to mark a token of this sequence:
    /// [`crate::policy::Dms::dial`].
    pub fn dial(&self, seq: SeqId) -> f32 {
        self.seqs[seq.0].dial
    }

    /// Sets the dial for the decisions that follow. Stored marks stay.
    pub fn set_dial(&mut self, b: &B, seq: SeqId, dial: f32) {
        // Constant decisions do not rank tokens, and the threshold of merging is fixed at 0.
        let policy = self.geometry().policy;
        if policy.constant_decision().is_some() || policy.merging().is_some() {
            return;
        }
        self.seqs[seq.0].dial = dial;
        b.write(&mut self.tables.dial, seq.0, &[dial]);
    }

    /// Positions of the pinned tokens of a sequence, in disjoint ranges in order.
    pub fn pins(&self, seq: SeqId) -> &[Range<usize>] {
        &self.seqs[seq.0].pins
    }

    /// Pins the tokens at these positions, fed or not. Tokens that are still stored lose their
    /// marks and are not marked again; far pages that have some of them become near, and stay so.
    pub fn pin(&mut self, b: &B, seq: SeqId, positions: Range<usize>) -> Result<(), CacheError> {
        let fed = positions.start..positions.end.min(self.len(seq));
        let rated = !fed.is_empty() && self.geometry().policy.dropping().is_some();
        let copies = if rated && self.is_shared(seq.0) { self.stats(b, seq).pages } else { 0 };
        let old = self.pins(seq).to_vec();
        let pins = &mut self.seqs[seq.0].pins;
        pins.push(positions);
        pins.sort_by_key(|pin| pin.start);
        pins.dedup_by(|next, pin| {
            let joins = next.start <= pin.end;
            pin.end = if joins { pin.end.max(next.end) } else { pin.end };
            joins
        });
        if let Err(error) = self.bring_held(b, seq, copies) {
            self.seqs[seq.0].pins = old;
            return Err(error);
        }
        if rated { self.rate(b, seq, fed, 0, false) } else { Ok(()) }
    }

    /// Removes pins. The heads' decisions about a token that was pinned are unknown: its slots
    /// stay, and rank like a decision at the threshold when memory runs out. If all decisions are
    /// the same, tokens outside the window are dropped at once. Returns the number of tokens and of
    /// dropped slots.
    pub fn unpin(&mut self, b: &B, seq: SeqId, positions: Range<usize>) -> Result<(usize, u64), CacheError> {
        let within = |pin: &Range<usize>| pin.start.max(positions.start)..pin.end.min(positions.end);
        let taken: Vec<Range<usize>> = self.pins(seq).iter().map(within).filter(|range| !range.is_empty()).collect();
        let (policy, len) = (*self.geometry(), self.len(seq));
        let constant = policy.policy.constant_decision();
        let rating = strength(constant.unwrap_or(0.0));
        // Without a dropping rule no token has a strength.
        let rated = policy.policy.dropping().map(|rule| if constant.is_some() { rule.sinks..len } else { 0..len });
        let rated = rated.unwrap_or(0..0);
        for range in &taken {
            let fed = range.start.max(rated.start)..range.end.min(rated.end);
            if !fed.is_empty() {
                self.rate(b, seq, fed, rating, constant.is_some())?;
            }
        }
        let dropped = if constant.is_some() && self.eviction(seq) && !taken.is_empty() {
            self.forget(b, seq, STRENGTHS)?
        } else {
            0
        };
        let outside =
            |pin: Range<usize>| [pin.start..pin.end.min(positions.start), pin.start.max(positions.end)..pin.end];
        let pins = std::mem::take(&mut self.seqs[seq.0].pins);
        self.seqs[seq.0].pins = pins.into_iter().flat_map(outside).filter(|range| !range.is_empty()).collect();
        Ok((taken.iter().map(ExactSizeIterator::len).sum(), dropped))
    }

    /// Drops the tokens at these positions from every lane, except the newest token. Returns the
    /// number of slots dropped. A policy with scores drops nothing here: it drops by its budget and
    /// never reads marks.
    pub fn drop_positions(&mut self, b: &B, seq: SeqId, positions: Range<usize>) -> Result<u64, CacheError> {
        // The next token's decision may be about the newest one, and would overwrite its mark.
        let positions = positions.start..positions.end.min(self.len(seq).saturating_sub(1));
        if positions.is_empty() || self.geometry().policy.scored().is_some() {
            return Ok(0);
        }
        self.rate(b, seq, positions, 0, true)?;
        self.forget(b, seq, STRENGTHS)
    }

    /// Sets the strength and the mark of the stored tokens at these positions.
    pub(super) fn rate(
        &mut self,
        b: &B,
        seq: SeqId,
        positions: Range<usize>,
        strength: usize,
        marked: bool,
    ) -> Result<(), CacheError> {
        let pages = self.stats(b, seq).pages;
        self.reserve_copies(b, seq, pages)?;
        self.seqs[seq.0].settled = None;
        b.rate_slots(&mut self.tables, seq.0, positions, strength, marked);
        Ok(())
    }

    /// Sends the flags of the step's rows whose decisions would mark a pinned token. Returns
    /// whether the flags have changed.
    pub fn send_pins(&mut self, b: &B, spans: &[Span]) -> bool {
        let Some(rule) = self.geometry().policy.dropping() else { return false };
        let mut changed = false;
        for span in spans {
            let state = &self.seqs[span.seq];
            for i in 0..span.len {
                let marked = match rule.shift {
                    Shift::Same => Some(state.len + i),
                    Shift::Previous => (state.len + i).checked_sub(1),
                };
                let pinned = marked.is_some_and(|position| state.pins.iter().any(|pin| pin.contains(&position)));
                let row = &mut self.pinned_rows[span.start + i];
                changed |= *row != i32::from(pinned);
                *row = i32::from(pinned);
            }
        }
        if changed {
            let n = spans.iter().map(|s| s.start + s.len).max().unwrap_or(0);
            b.write(&mut self.tables.pinned, 0, &self.pinned_rows[..n]);
        }
        changed
    }

    pub fn span(&self, seq: SeqId, start: usize, len: usize) -> Span {
        Span { seq: seq.0, start, len }
    }

    /// Reserves the pages that a step over `spans` may allocate, so that the step cannot fail.
    ///
    /// A step with few tokens of each sequence reserves the worst case over all table states, which
    /// needs no device read. Prefills reserve a bound computed from the live counts, and so do
    /// steps whose worst case does not fit.
    pub fn reserve_step(&mut self, b: &B, spans: &[Span]) -> Result<(), CacheError> {
        if spans.iter().all(|s| s.len <= PAGE_SLOTS) {
            let g = self.geometry();
            let worst_case = g.seq_lanes() * spans.iter().map(|s| self.most_taken(s)).sum::<usize>();
            if self.reserve(b, worst_case).is_ok() {
                return Ok(());
            }
        }
        let need = spans.iter().map(|s| self.pages_needed(b, s)).sum();
        self.reserve(b, need)
    }

    /// Upper bound on the pages that feeding `n` more tokens to a sequence takes. Reads the live
    /// counts.
    pub fn pages_for(&self, b: &B, seq: SeqId, n: usize) -> usize {
        self.pages_needed(b, &self.span(seq, 0, n))
    }

    /// Number of free pages below the limit; `None` without a limit.
    pub fn free_pages(&self, b: &B) -> Option<usize> {
        let limit = self.limit? / self.geometry().page_bytes() as u64;
        Some((limit as usize).saturating_sub(self.pool_stats(b).used_pages))
    }

    /// Upper bound on the pages that a span allocates. It assumes that every token is appended and
    /// that every shared page the span may write to is copied.
    pub(super) fn pages_needed(&self, b: &B, span: &Span) -> usize {
        let (g, most) = (self.geometry(), self.most_taken(span));
        let written = g.most_written(span.len, self.seqs[span.seq].owns_newest);
        let copied = if self.is_shared(span.seq) { written } else { 0 };
        let in_lane = |(live, lane): (usize, Lane)| {
            let page_slots = g.of_layer(lane.layer).page_slots;
            let held = live.div_ceil(page_slots);
            let appended = (live + span.len).div_ceil(page_slots) - held;
            (appended + self.far_pages(2) + copied.min(held)).min(most)
        };
        self.live_lanes(b, span.seq).map(in_lane).sum()
    }

    /// Upper bound on the pages that a span allocates in one lane, for any lane state: the appended
    /// pages, or one page per token's slot if pages may be shared, plus one page copied to mark the
    /// newest stored token.
    pub(super) fn most_taken(&self, span: &Span) -> usize {
        let pages = span.len.div_ceil(self.geometry().page_slots);
        // A token appends a slot, or one leaves and appends a near row.
        let near = self.far_pages(1);
        if !self.is_shared(span.seq) {
            return (pages + near).min(span.len);
        }
        let marks = self.geometry().policy.marks_stored() && !self.seqs[span.seq].owns_newest;
        span.len + usize::from(marks) + near * (pages + 1)
    }

    /// `pages` where rows that leave a lane take pages of the pool, else 0.
    fn far_pages(&self, pages: usize) -> usize {
        if B::IN_POOL && self.geometry().keeps_far() { pages } else { 0 }
    }

    pub(super) fn reserve(&mut self, b: &B, pages: usize) -> Result<(), CacheError> {
        if let Some(limit_bytes) = self.limit.filter(|_| pages > 0) {
            let g = *self.geometry();
            let bytes = |pages: usize| (pages * g.page_bytes()) as u64;
            if bytes(self.used_upper_bound + pages) > limit_bytes {
                self.used_upper_bound = b.pool_stats(&self.tables).used_pages;
            }
            let needed_bytes = bytes(self.used_upper_bound + pages).saturating_sub(limit_bytes);
            if needed_bytes > 0 {
                let least_bytes = bytes(g.seq_lanes());
                return Err(CacheError::Limit { needed_bytes, limit_bytes, least_bytes });
            }
        }
        self.used_upper_bound += pages;
        Ok(b.reserve(&mut self.tables, pages)?)
    }

    /// Number of sequences that can be created.
    pub fn free_rows(&self) -> usize {
        self.seqs.iter().filter(|s| !s.used).count()
    }

    /// Upper bound on the sequences for which there are pages: each sequence writes to a page of
    /// its own in every lane. `None` without a limit.
    pub fn most_sequences(&self, b: &B) -> Option<usize> {
        let g = self.geometry();
        Some(self.free_pages(b)? / g.seq_lanes())
    }

    /// Whether another sequence may hold pages of this one.
    pub(super) fn is_shared(&self, seq: usize) -> bool {
        let of_the_same =
            |(other, s): (usize, &SeqState)| other != seq && s.used && s.fork_group == self.seqs[seq].fork_group;
        self.seqs.iter().enumerate().any(of_the_same)
    }

    /// Runs attention and the cache update of one layer of a step:
    /// [`Ops::attention`](crate::backend::Ops::attention).
    #[allow(clippy::too_many_arguments)]
    pub fn attention(
        &mut self,
        b: &B,
        out: &mut B::Acts,
        qkv: &mut B::Acts,
        decisions: &mut B::Buf<f32>,
        layer: usize,
        spans: &[Span],
        rope: &QkvRopeArgs<'_, B>,
    ) {
        b.attention(out, AttentionArgs { qkv, decisions, kv: &mut self.tables, layer, spans, rope });
    }

    /// Commits rows of one staged layer, which may be `drafts`:
    /// [`Ops::commit`](crate::backend::Ops::commit).
    pub fn commit(
        &mut self,
        b: &B,
        rows: &B::Acts,
        decisions: &B::Buf<f32>,
        layer: usize,
        spans: &[Span],
        drafts: bool,
    ) {
        b.commit(rows, decisions, &mut self.tables, layer, spans, drafts);
    }

    /// Ends a step on the device: adds its tokens to the sequence lengths and, if `tokens` is
    /// given, to the sets of tokens fed.
    pub fn advance(&mut self, b: &B, tokens: Option<&B::Buf<Token>>, spans: &[Span]) {
        b.advance(&mut self.tables, tokens, spans);
    }

    /// Adds a step's tokens to the lengths kept on the host. Called after the step, because the
    /// body of a step does not run when a captured graph is replayed.
    pub fn fed(&mut self, spans: &[Span]) {
        for span in spans {
            let state = &mut self.seqs[span.seq];
            state.len += span.len;
            state.owns_newest |= span.len > 0;
        }
    }

    /// Ends a step that is never replayed, on the device and on the host.
    pub fn finish(&mut self, b: &B, spans: &[Span]) {
        self.advance(b, None, spans);
        self.fed(spans);
    }

    /// The device tables.
    pub fn tables(&self) -> &KvTables<B> {
        &self.tables
    }

    /// Returns unused pool memory to the system, in whole mapping granules.
    pub fn trim(&mut self, b: &B) {
        b.trim(&mut self.tables);
    }

    pub fn pool_stats(&self, b: &B) -> PoolStats {
        b.pool_stats(&self.tables)
    }

    /// Live slots of each lane of a sequence, layer by layer.
    pub(super) fn live_lanes(&self, b: &B, seq: usize) -> impl Iterator<Item = (usize, Lane)> + use<B> {
        let (g, live) = (*self.geometry(), self.live_slots(b));
        g.lanes().map(move |lane| (live[g.row(lane.layer, seq, lane.head)], lane))
    }

    /// Live slots of all lanes, by table row.
    pub(super) fn live_slots(&self, b: &B) -> Vec<usize> {
        let mut live = vec![0; self.geometry().n_layers * self.geometry().n_lanes()];
        b.read(&self.tables.live, 0, &mut live);
        live.into_iter().map(|n: i32| n as usize).collect()
    }
}
