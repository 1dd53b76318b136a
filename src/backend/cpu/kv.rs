//! Slot assignment, storing and bookkeeping of slots on the CPU, token after token: the reference
//! for parallel implementations.

use super::super::{KvGeometry, KvTables, OutOfMemory, PageLayout, Pages, PoolStats, PresenceCounts, Span};
use super::far::{self, RowBytes};
use super::{Acts, Cpu, Pool};
use crate::codec::{Codec, Coder, Place};
use crate::policy::{LaneSlots, Placement, Scope, Scored, SlotMeta};
use crate::protocol::{LaneFilter, Token};
use std::collections::BTreeSet;
use std::ops::Range;

/// One lane's part of the tables, with the pool it takes pages from.
struct Lane<'a> {
    layout: PageLayout,
    /// Its number in the tables.
    number: usize,
    pages: &'a mut [i32],
    live: &'a mut i32,
    ring: &'a mut [i32],
    /// Scores of all slots that the lane may ever have; empty if the policy has none.
    scores: &'a mut [f32],
    /// Whether rows that leave are kept.
    far: bool,
    pool: &'a mut Pool,
}

impl<'a> Lane<'a> {
    fn of(kv: &'a mut KvTables<Cpu>, layer: usize, seq: usize, head: usize) -> Self {
        let g = &kv.geometry;
        let (row, rings, scores) = (g.row(layer, seq, head), g.ring_len(), g.score_slots());
        let (ring_len, far) = (g.policy_of(layer).ring_len(), g.far_of(layer).is_some());
        Self {
            layout: g.of_layer(layer).page(),
            number: row,
            pages: &mut kv.page_table[row * g.max_pages..(row + 1) * g.max_pages],
            live: &mut kv.live[row],
            ring: &mut kv.ring[row * rings..][..ring_len],
            scores: &mut kv.score[row * scores..(row + 1) * scores],
            far,
            pool: &mut kv.pool,
        }
    }

    /// The page of `slot`, fit to be written: never one that another sequence holds too.
    fn own_page(&mut self, slot: usize) -> &mut [u8] {
        let entry = &mut self.pages[slot / self.layout.page_slots];
        *entry = self.pool.make_unique(*entry);
        self.pool.page_mut(*entry)
    }

    /// Far rows that attention reads.
    fn near_rows(&self) -> usize {
        self.pool.far.as_ref().filter(|_| self.far).map_or(0, |far| far.near_rows(self.number))
    }

    fn held_pages(&self) -> usize {
        (*self.live as usize).div_ceil(self.layout.page_slots)
    }

    fn clear(&mut self) {
        let live = (*self.live as usize).min(self.scores.len());
        self.scores[..live].fill(0.0);
        for entry in &mut self.pages[..(*self.live as usize).div_ceil(self.layout.page_slots)] {
            self.pool.release(std::mem::replace(entry, -1));
        }
        *self.live = 0;
        self.pool.order_mut(self.number).clear();
    }
}

impl LaneSlots for Lane<'_> {
    fn meta(&self, slot: usize) -> SlotMeta {
        let p = self.layout.page_slots;
        self.layout.meta(self.pool.page(self.pages[slot / p]), slot % p)
    }

    fn set_meta(&mut self, slot: usize, meta: SlotMeta) {
        let layout = self.layout;
        // A slot that gets another position gets the newest one.
        let order = self.pool.order_mut(self.number);
        let moves = order.last() != Some(&(slot as u32));
        if moves && self.meta(slot).position() != meta.position() {
            let order = self.pool.order_mut(self.number);
            order.retain(|&other| other != slot as u32);
            order.push(slot as u32);
        }
        layout.set_meta(self.own_page(slot), slot % layout.page_slots, meta);
    }

    fn ring(&self, entry: usize) -> usize {
        self.ring[entry] as usize
    }

    fn set_ring(&mut self, entry: usize, slot: usize) {
        self.ring[entry] = slot as i32;
    }

    fn append(&mut self) -> usize {
        let slot = *self.live as usize;
        if slot.is_multiple_of(self.layout.page_slots) {
            self.pages[slot / self.layout.page_slots] = self.pool.take();
        }
        *self.live += 1;
        self.pool.order_mut(self.number).push(slot as u32);
        slot
    }

    fn leave(&mut self, slot: usize) {
        if self.far {
            let (page, row) = (self.pages[slot / self.layout.page_slots], slot % self.layout.page_slots);
            let row = RowBytes::read(&self.layout, self.pool.page(page), row);
            let number = self.number;
            self.pool.far.iter_mut().for_each(|far| far.push(number, &row));
        }
    }
}

/// Positions of a step's rows. Spans need not lie in the order of the rows.
pub(super) fn positions(kv: &KvTables<Cpu>, spans: &[Span]) -> Vec<usize> {
    let mut positions = vec![0; spans.iter().map(|s| s.start + s.len).max().unwrap_or(0)];
    for span in spans {
        let base = kv.seq_len[span.seq] as usize;
        let rows = positions[span.start..span.start + span.len].iter_mut().enumerate();
        rows.for_each(|(i, position)| *position = base + i);
    }
    positions
}

/// Replaces K and V of a step's rows `[q | k | v]` by what storing and reading makes of them, or by
/// their codes if the codec has a coder.
pub(super) fn round_trip(cpu: &Cpu, qkv: &mut Acts, kv: &KvTables<Cpu>, layer: usize, spans: &[Span]) {
    let (g, n) = (kv.geometry.of_layer(layer), spans.iter().map(|s| s.len).sum());
    if g.codec.is_exact() {
        return;
    }
    let positions = positions(kv, spans);
    cpu.rows(qkv, n, |row, i| {
        let (k, v) = row[g.n_q_heads * g.head_dim..].split_at_mut(g.n_kv_heads * g.head_dim);
        // A gate may stand behind V.
        let v = &mut v[..k.len()];
        for (k, v) in k.chunks_exact_mut(g.head_dim).zip(v.chunks_exact_mut(g.head_dim)) {
            if let Some(coder) = &kv.coder {
                let place = Place { layer, position: positions[i] };
                coder.code_k(place, k);
                coder.code_v(place, v);
            } else {
                g.codec.round_trip_k(k);
                g.codec.round_trip_v(v);
            }
        }
    });
}

/// Makes the order of the slots of a sequence's lanes where it is not known.
pub(super) fn order_slots(kv: &mut KvTables<Cpu>, layer: usize, seq: usize) {
    for head in 0..kv.geometry.of_layer(layer).n_kv_heads {
        let lane = Lane::of(kv, layer, seq, head);
        let live = *lane.live as usize;
        if lane.pool.order(lane.number).len() != live {
            let mut order: Vec<u32> = (0..live as u32).collect();
            order.sort_unstable_by_key(|&slot| lane.meta(slot as usize).position());
            *lane.pool.order_mut(lane.number) = order;
        }
        debug_assert!(lane.pool.order(lane.number).is_sorted_by_key(|&slot| lane.meta(slot as usize).position()));
    }
}

/// Gives every token of a step its slot, one after the other, and stores it there. Returns, for
/// each span, the rows of all lanes that attention reads after each of its tokens has its own slot,
/// summed over its tokens.
pub(super) fn append(kv: &mut KvTables<Cpu>, qkv: &Acts, decisions: &[f32], layer: usize, spans: &[Span]) -> Vec<u64> {
    let (g, policy) = (kv.geometry.of_layer(layer), kv.geometry.policy_of(layer));
    let (d, heads, coder) = (g.head_dim, g.n_kv_heads, kv.coder.clone());
    far::remember(kv, qkv, layer, spans);
    let mut lived = vec![0; spans.len()];
    for (span, lived) in spans.iter().zip(&mut lived) {
        let eviction = g.evicts(layer, kv.eviction[span.seq] != 0);
        let base = kv.seq_len[span.seq] as usize;
        let policy = policy.with_dial(kv.dial[span.seq]);
        for head in 0..heads {
            let mut lane = Lane::of(kv, layer, span.seq, head);
            let (layout, mut written) = (lane.layout, BTreeSet::new());
            for i in 0..span.len {
                let row = span.start + i;
                let (slot, _) = policy.store(&mut lane, base + i, decisions[row * heads + head], eviction);
                let (k, v) = qkv.row(row)[g.n_q_heads * d..].split_at(heads * d);
                let own = head * d..(head + 1) * d;
                let page = lane.own_page(slot);
                encode(g.codec, &layout, page, slot % layout.page_slots, &k[own.clone()], &v[own]);
                *lived += (*lane.live as usize + lane.near_rows()) as u64;
                if g.policy.quest().is_some() {
                    written.insert(slot / layout.page_slots);
                }
            }
            for page in written {
                set_bounds(&mut lane, (g.codec, coder.as_deref()), layer, page, d);
            }
        }
    }
    lived
}

fn encode(codec: Codec, layout: &PageLayout, page: &mut [u8], row: usize, k: &[f32], v: &[f32]) {
    let k_side = codec.encode_k(k, &mut page[layout.k(row)]);
    let v_side = codec.encode_v(v, &mut page[layout.v(row)]);
    layout.set_sides(page, row, [k_side, v_side]);
}

/// Writes the bounds of the keys that a page of a lane stores, as they are read.
fn set_bounds(lane: &mut Lane<'_>, (codec, coder): (Codec, Option<&dyn Coder>), layer: usize, entry: usize, d: usize) {
    let (layout, first) = (lane.layout, entry * lane.layout.page_slots);
    let rows = (*lane.live as usize - first).min(layout.page_slots);
    let page = lane.pool.page_mut(lane.pages[entry]);
    let (mut low, mut high, mut key) = (vec![f32::INFINITY; d], vec![f32::NEG_INFINITY; d], vec![0.0; d]);
    for row in 0..rows {
        let place = Place { layer, position: layout.meta(page, row).position() };
        codec.read_k(coder, place, &page[layout.k(row)], layout.sides(page, row)[0], &mut key);
        low.iter_mut().zip(&key).for_each(|(low, x)| *low = low.min(*x));
        high.iter_mut().zip(&key).for_each(|(high, x)| *high = high.max(*x));
    }
    layout.set_bounds(page, &low, &high);
}

/// Places and stores token `n` of a sequence in a layer under a policy with scores. `k` and `v` are
/// `[n_kv_heads, head_dim]`, `decisions` has one for each head. `weights` holds the attention
/// weights of each head's slots and then of the token itself, and becomes their scores.
pub(super) fn put_by_scores<'w>(
    kv: &mut KvTables<Cpu>,
    rule: &Scored,
    layer: usize,
    (seq, n): (usize, usize),
    kv_row: (&[f32], &[f32]),
    decisions: &[f32],
    weights: impl Iterator<Item = &'w mut [f32]>,
) {
    let g = kv.geometry.of_layer(layer);
    let (layout, d, eviction) = (g.page(), g.head_dim, kv.eviction[seq] != 0);
    let heads = kv_row.0.chunks_exact(d).zip(kv_row.1.chunks_exact(d)).zip(weights).enumerate();
    for (head, ((k, v), weights)) in heads {
        let mut lane = Lane::of(kv, layer, seq, head);
        let live = *lane.live as usize;
        let weights = &mut weights[..=live];
        for (score, weight) in lane.scores[..live].iter_mut().zip(weights.iter_mut()) {
            *score = rule.update(*score, *weight);
            *weight = *score;
        }
        weights[live] = rule.first(weights[live], decisions[head]);
        let position = |slot| lane.meta(slot).position();
        let slot = match if eviction { rule.place(n + 1, weights, position) } else { Placement::Append } {
            Placement::Append => lane.append(),
            Placement::Overwrite(slot) => slot,
            Placement::Skip => continue,
        };
        lane.scores[slot] = weights[live];
        lane.set_meta(slot, SlotMeta::new(n, 0, false));
        encode(g.codec, &layout, lane.own_page(slot), slot % layout.page_slots, k, v);
    }
}

impl Pages for Cpu {
    type Pool = Pool;

    fn pool(&self, geometry: &KvGeometry, max_pages: usize, _max_step: usize) -> Result<Pool, OutOfMemory> {
        Ok(Pool::new(geometry, max_pages))
    }

    fn reserve(&self, kv: &mut KvTables<Self>, pages: usize) -> Result<(), OutOfMemory> {
        kv.pool.reserve(pages)
    }

    fn trim(&self, kv: &mut KvTables<Self>) {
        kv.pool.trim();
    }

    fn pool_stats(&self, kv: &KvTables<Self>) -> PoolStats {
        kv.pool.stats()
    }

    fn fork(&self, kv: &mut KvTables<Self>, from: usize, to: usize) {
        let g = kv.geometry;
        let (ring_len, scores, sums) = (g.ring_len(), g.score_slots(), g.sums_len());
        assert_eq!(kv.seq_len[to], 0, "fork into a sequence that is not empty");
        for layer in 0..g.n_layers {
            for head in 0..g.n_kv_heads {
                let (a, b) = (g.row(layer, from, head), g.row(layer, to, head));
                kv.page_table.copy_within(a * g.max_pages..(a + 1) * g.max_pages, b * g.max_pages);
                kv.ring.copy_within(a * ring_len..(a + 1) * ring_len, b * ring_len);
                kv.live[b] = kv.live[a];
                let scored = if scores > 0 { kv.live[a] as usize } else { 0 };
                kv.score.copy_within(a * scores..a * scores + scored, b * scores);
                kv.sums.copy_within(a * sums..(a + 1) * sums, b * sums);
                let lane = Lane::of(kv, layer, to, head);
                for entry in &lane.pages[..lane.held_pages()] {
                    lane.pool.share(*entry);
                }
                let order = lane.pool.order(a).to_vec();
                *lane.pool.order_mut(b) = order;
                lane.pool.far.iter_mut().for_each(|far| far.fork(a, b));
            }
            kv.pool.far.iter_mut().for_each(|far| far.fork_queries(&g.of_far(), layer, from, to));
        }
        for layer in 0..g.delta.map_or(0, |d| d.n_layers) {
            let (len, state) = g.delta.map_or((0, 0), |d| (d.inputs_len(), d.state_len()));
            let row = |seq: usize| layer * g.n_seqs + seq;
            kv.delta_inputs.copy_within(row(from) * len..(row(from) + 1) * len, row(to) * len);
            kv.delta_state.copy_within(row(from) * state..(row(from) + 1) * state, row(to) * state);
        }
        let words = g.seen_words();
        kv.seen.copy_within(from * words..(from + 1) * words, to * words);
        kv.seq_len[to] = kv.seq_len[from];
        kv.eviction[to] = kv.eviction[from];
        kv.dial[to] = kv.dial[from];
        kv.reads[to] = kv.reads[from];
        kv.peak[to] = kv.peak[from];
    }

    fn release(&self, kv: &mut KvTables<Self>, seq: usize) {
        for layer in 0..kv.geometry.n_layers {
            for head in 0..kv.geometry.n_kv_heads {
                let mut lane = Lane::of(kv, layer, seq, head);
                lane.clear();
                lane.pool.far.iter_mut().for_each(|far| far.clear(lane.number));
            }
        }
        kv.seq_len[seq] = 0;
        kv.reads[seq] = 0;
        kv.peak[seq] = 0;
    }

    fn compact(&self, kv: &mut KvTables<Self>, seq: usize, threshold: usize) {
        let g = kv.geometry;
        if let Some(rule) = g.policy.scored() {
            return reduce(kv, seq, &rule);
        }
        let (n, coder) = (kv.seq_len[seq] as usize, kv.coder.clone());
        for layer in 0..g.n_layers {
            let policy = g.policy_of(layer);
            for head in 0..g.n_kv_heads {
                let mut lane = Lane::of(kv, layer, seq, head);
                let kept: Vec<usize> =
                    (0..*lane.live as usize).filter(|&slot| !policy.drops(n, lane.meta(slot), threshold)).collect();
                if kept.len() < *lane.live as usize {
                    compact_lane(&mut lane, &kept, n.saturating_sub(policy.ring_len()));
                    let pages = if g.policy.quest().is_some() { lane.held_pages() } else { 0 };
                    let codec = (g.codec, coder.as_deref());
                    (0..pages).for_each(|page| set_bounds(&mut lane, codec, layer, page, g.head_dim));
                }
            }
        }
    }

    fn rate_slots(&self, kv: &mut KvTables<Self>, seq: usize, positions: Range<usize>, strength: usize, marked: bool) {
        let g = kv.geometry;
        // The model fixes which tokens local layers see.
        for layer in (0..g.n_layers).filter(|&layer| g.layer(layer).decides()) {
            for head in 0..g.n_kv_heads {
                let mut lane = Lane::of(kv, layer, seq, head);
                for slot in 0..*lane.live as usize {
                    let position = lane.meta(slot).position();
                    if positions.contains(&position) {
                        lane.set_meta(slot, SlotMeta::new(position, strength, marked));
                    }
                }
            }
        }
    }

    fn presence(
        &self,
        kv: &KvTables<Self>,
        seq: usize,
        n: usize,
        filter: LaneFilter,
        position: usize,
    ) -> PresenceCounts {
        let g = &kv.geometry;
        let mut words = vec![0u32; n + g.table_lanes()];
        for layer in 0..g.n_layers {
            for head in 0..g.n_kv_heads {
                for meta in self.slot_metas(kv, layer, seq, head) {
                    let marked = u32::from(meta.marked());
                    if filter.selects(layer, head) && meta.position() < n {
                        words[meta.position()] += 1 | marked << 16;
                    }
                    if meta.position() == position {
                        words[n + layer * g.n_kv_heads + head] = 1 + marked;
                    }
                }
            }
        }
        PresenceCounts::from_words(&words, n)
    }

    fn export_pages(&self, kv: &mut KvTables<Self>, pages: &[i32], bytes: &mut [u8]) {
        for (&page, bytes) in pages.iter().zip(bytes.chunks_exact_mut(kv.geometry.page_bytes())) {
            bytes.copy_from_slice(kv.pool.page(page));
        }
    }

    fn import_pages(&self, kv: &mut KvTables<Self>, bytes: &[u8]) -> Vec<i32> {
        let pages = bytes.chunks_exact(kv.geometry.page_bytes()).map(|bytes| {
            let page = kv.pool.take();
            kv.pool.page_mut(page).copy_from_slice(bytes);
            page
        });
        pages.collect()
    }

    fn slot_metas(&self, kv: &KvTables<Self>, layer: usize, seq: usize, head: usize) -> Vec<SlotMeta> {
        let g = &kv.geometry;
        let (row, layout) = (g.row(layer, seq, head), g.of_layer(layer).page());
        (0..kv.live[row] as usize)
            .map(|slot| {
                let page = kv.page_table[row * g.max_pages + slot / layout.page_slots];
                layout.meta(kv.pool.page(page), slot % layout.page_slots)
            })
            .collect()
    }
}

/// Ends a step: lengths, tokens fed, and the counters of live slots.
pub(super) fn advance(kv: &mut KvTables<Cpu>, tokens: Option<&Vec<Token>>, spans: &[Span]) {
    let g = kv.geometry;
    for span in spans {
        for &token in tokens.into_iter().flat_map(|tokens| &tokens[span.start..span.start + span.len]) {
            kv.seen[span.seq * g.seen_words() + token as usize / 32] |= 1 << (token % 32);
        }
        kv.seq_len[span.seq] += span.len as i32;
        let lanes = (0..g.n_layers).flat_map(|layer| (0..g.n_kv_heads).map(move |head| g.row(layer, span.seq, head)));
        let live: u32 = lanes.map(|row| kv.live[row] as u32).sum();
        kv.peak[span.seq] = kv.peak[span.seq].max(live);
        if span.len == 1 && !g.policy.attention_counts_reads() {
            kv.reads[span.seq] += u64::from(live) + far::near_rows(kv, span.seq);
        }
    }
}

/// Drops from every lane the slots that exceed its budget.
fn reduce(kv: &mut KvTables<Cpu>, seq: usize, rule: &Scored) {
    let g = kv.geometry;
    let n = kv.seq_len[seq] as usize;
    for layer in 0..g.n_layers {
        let mut of_the_layer = None;
        for head in 0..g.n_kv_heads {
            let mut lane = Lane::of(kv, layer, seq, head);
            let live = *lane.live as usize;
            let keep = |lane: &Lane<'_>| rule.keep(n, &lane.scores[..live], |slot| lane.meta(slot).position());
            let kept = match rule.scope {
                Scope::Head => keep(&lane),
                Scope::Layer => of_the_layer.get_or_insert_with(|| keep(&lane)).clone(),
            };
            if let Some(kept) = kept {
                compact_lane(&mut lane, &kept, n);
            }
        }
    }
}

/// Reads the survivors out before it takes pages for them, so that no page is needed beyond those
/// the lane already has.
fn compact_lane(lane: &mut Lane<'_>, kept: &[usize], window_start: usize) {
    let (layout, page_slots, ring_len) = (lane.layout, lane.layout.page_slots, lane.ring.len());
    let mut leaving: Vec<usize> = (0..*lane.live as usize).filter(|slot| kept.binary_search(slot).is_err()).collect();
    leaving.sort_by_key(|&slot| lane.meta(slot).position());
    leaving.into_iter().for_each(|slot| lane.leave(slot));
    let read = |&slot: &usize| {
        let page = lane.pool.page(lane.pages[slot / page_slots]);
        (RowBytes::read(&layout, page, slot % page_slots), lane.scores.get(slot).copied())
    };
    let rows: Vec<(RowBytes, Option<f32>)> = kept.iter().map(read).collect();
    // Pages that only this lane holds return as it clears them. Shared pages stay with the other
    // holder, and the host has reserved as many copies.
    lane.clear();
    for (bytes, score) in rows {
        let slot = lane.append();
        bytes.write(&layout, lane.own_page(slot), slot % page_slots);
        if let Some(score) = score {
            lane.scores[slot] = score;
        }
        // Slots are not in order of position: an older token must not take a newer one's place.
        if bytes.meta.position() >= window_start {
            lane.ring[bytes.meta.position() % ring_len] = slot as i32;
        }
    }
    lane.pool.order_mut(lane.number).clear();
}
