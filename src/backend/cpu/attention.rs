//! Attention of a step's rows over stored slots and the step's own rows.
//!
//! A *group* is the query rows of one KV head in a run of a span's tokens; its keys are read once for all of them. Where there
//! are fewer groups than threads can use, a group's keys are divided into *splits* whose softmaxes are merged (split-KV). Two
//! loops over the keys:
//!
//! - decode, few rows ([`by_page`]): pages are read in place and converted in registers;
//! - prefill, many rows ([`by_block`]): keys that some row sees are gathered into a block in f32 and multiplied by GEMM. Keys
//!   that no row sees cost only a look at their mark.
//!
//! `in_order` has the form for policies that place by the weights, `paged` the choice of pages.

mod in_order;
mod paged;
#[cfg(test)]
mod reference;
mod softmax;
#[cfg(test)]
mod tests;

use super::super::{KvGeometry, KvTables, PageLayout, Span};
use super::simd::dots::{Rows, dots, fetch, widen};
use super::simd::{Format, Isa, maths, matmul};
use super::thread_pool::Tile;
use super::{Acts, Cpu};
use crate::codec::{Codec, unpack_codes, unrotate};
use crate::policy::{Dms, SlotMeta};
pub(super) use in_order::attend_in_order;
use paged::Chosen;
pub(super) use paged::count_reads;
use softmax::OnlineSoftmax;
use std::ops::Range;

/// Tokens of a span up to which pages are read in place.
const FEW_TOKENS: usize = 4;
/// Approximate query rows (tokens x query heads) of a group in prefill.
const BLOCK_ROWS: usize = 96;
/// Keys gathered into a block.
const BLOCK_KEYS: usize = 128;
/// Fewest slots of a split: fewer are not worth a task.
const SPLIT_SLOTS: usize = 256;

/// Work shared by the threads of one call, kept from call to call.
#[derive(Default)]
pub(super) struct Plan {
    groups: Vec<Group>,
    splits: Vec<Split>,
    /// Index of each span's first group.
    span_groups: Vec<usize>,
    /// `[splits, width]`: the online softmax of each split.
    partials: Vec<f32>,
}

struct Group {
    span: usize,
    head: usize,
    /// Tokens of the span.
    tokens: Range<usize>,
    splits: Range<usize>,
    /// What it reads, where the policy reads pages.
    chosen: Chosen,
}

struct Split {
    group: usize,
    slots: Range<usize>,
    /// Whether the step's own rows belong to it.
    own: bool,
}

/// Scratch of one thread.
#[derive(Default)]
pub(super) struct Scratch {
    /// `[rows, head_dim]`, scaled by 1/sqrt(head_dim).
    queries: Vec<f32>,
    /// `[keys, head_dim]` each.
    keys: Vec<f32>,
    values: Vec<f32>,
    /// `[rows, keys]`
    scores: Vec<f32>,
    /// Tokens of the group that see each gathered key.
    seen_by: Vec<(u32, u32)>,
    values_of_a_page: PageValues,
}

/// V of a page as attention reads it.
#[derive(Default)]
struct PageValues {
    /// Codes that are narrower than a byte, unpacked.
    codes: Vec<u8>,
    scales: Vec<f32>,
    offsets: Vec<f32>,
}

/// Arguments of a call, shared by all splits.
struct Call<'a> {
    isa: Isa,
    qkv: &'a Acts,
    decisions: &'a [f32],
    kv: &'a KvTables<Cpu>,
    geometry: &'a KvGeometry,
    layout: PageLayout,
    layer: usize,
    spans: &'a [Span],
}

impl<'a> Call<'a> {
    fn new(
        cpu: &Cpu,
        qkv: &'a Acts,
        decisions: &'a [f32],
        kv: &'a KvTables<Cpu>,
        layer: usize,
        spans: &'a [Span],
    ) -> Self {
        let geometry = &kv.geometry;
        Self { isa: cpu.isa, qkv, decisions, kv, geometry, layout: geometry.page(), layer, spans }
    }
}

pub(super) fn attend(
    cpu: &Cpu,
    out: &mut Acts,
    qkv: &Acts,
    decisions: &[f32],
    kv: &KvTables<Cpu>,
    layer: usize,
    spans: &[Span],
) {
    let g = &kv.geometry;
    let (d, group) = (g.head_dim, g.n_q_heads / g.n_kv_heads);
    let call = Call::new(cpu, qkv, decisions, kv, layer, spans);
    let mut plan = cpu.plan();
    // Splits are merged in another order than without: exact results have none.
    plan.fill(kv, layer, spans, if cpu.isa.is_exact() { 1 } else { cpu.threads() });
    let rows = plan.groups.iter().map(|g| g.tokens.len() * group).max().unwrap_or(0);
    let (width, n_splits) = (OnlineSoftmax::len(rows, d), plan.splits.len());
    let Plan { groups, splits, span_groups, partials } = &mut *plan;
    paged::choose(cpu, &call, groups);
    if partials.len() < n_splits * width {
        partials.resize(n_splits * width, 0.0);
    }
    cpu.thread_pool.tiles(&mut Tile::new(partials, n_splits, width), 1, width.max(1), |worker, tile| {
        let split = &splits[tile.row_range().start];
        let group = &groups[split.group];
        call.run(group, split, tile.row_mut(0), &mut cpu.scratch(worker).attention);
    });
    let n = spans.iter().map(|s| s.start + s.len).max().unwrap_or(0);
    cpu.rows(out, n, |out, i| {
        let Some(s) = spans.iter().position(|s| (s.start..s.start + s.len).contains(&i)) else { return };
        let token = i - spans[s].start;
        let per_head = spans[s].len.div_ceil(tokens_of_a_group(&spans[s], group));
        for head in 0..g.n_kv_heads {
            let of = &groups[span_groups[s] + head * per_head + token / tokens_of_a_group(&spans[s], group)];
            let partials = &partials[of.splits.start * width..of.splits.end * width];
            let first = (token - of.tokens.start) * group;
            for q in 0..group {
                let out = &mut out[(head * group + q) * d..][..d];
                finish(cpu.isa, g.codec, out, partials, width, of.tokens.len() * group, first + q);
            }
        }
    });
}

/// Writes one row of attention's output: [`softmax::merge`], without the codec's rotation of values.
fn finish(isa: Isa, codec: Codec, out: &mut [f32], states: &[f32], width: usize, rows: usize, row: usize) {
    softmax::merge(isa, out, states, width, rows, row);
    if codec.rotates_values() {
        unrotate(out);
    }
}

fn tokens_of_a_group(span: &Span, q_heads: usize) -> usize {
    if span.len <= FEW_TOKENS { span.len.max(1) } else { (BLOCK_ROWS / q_heads).max(1) }
}

impl Plan {
    fn fill(&mut self, kv: &KvTables<Cpu>, layer: usize, spans: &[Span], threads: usize) {
        let g = &kv.geometry;
        let q_heads = g.n_q_heads / g.n_kv_heads;
        self.groups.clear();
        self.splits.clear();
        self.span_groups.clear();
        let groups_of = |s: &Span| g.n_kv_heads * s.len.div_ceil(tokens_of_a_group(s, q_heads));
        // Several per thread, because heads differ in length.
        let wanted = (8 * threads).div_ceil(spans.iter().map(groups_of).sum::<usize>().max(1));
        for (s, span) in spans.iter().enumerate() {
            self.span_groups.push(self.groups.len());
            for head in 0..g.n_kv_heads {
                let live = kv.live[g.row(layer, span.seq, head)] as usize;
                let n_splits = if threads == 1 { 1 } else { wanted.min(live.div_ceil(SPLIT_SLOTS)).max(1) };
                // Whole pages, so that no two splits read one.
                let slots = live.div_ceil(n_splits).next_multiple_of(g.page_slots).max(1);
                let tokens = tokens_of_a_group(span, q_heads);
                for first in (0..span.len).step_by(tokens) {
                    let before = self.splits.len();
                    let mut start = 0;
                    loop {
                        let end = live.min(start + slots);
                        self.splits.push(Split { group: self.groups.len(), slots: start..end, own: end == live });
                        if end == live {
                            break;
                        }
                        start = end;
                    }
                    let tokens = first..span.len.min(first + tokens);
                    let splits = before..self.splits.len();
                    self.groups.push(Group { span: s, head, tokens, splits, chosen: Chosen::default() });
                }
            }
        }
    }
}

impl Call<'_> {
    fn run(&self, group: &Group, split: &Split, partial: &mut [f32], scratch: &mut Scratch) {
        let rows = self.load_queries(group, scratch);
        let mut softmax = OnlineSoftmax::start(partial, rows, self.geometry.head_dim);
        if self.spans[group.span].len <= FEW_TOKENS {
            by_page(self, group, split, &mut softmax, scratch);
        } else {
            by_block(self, group, split, &mut softmax, scratch);
        }
    }

    /// Copies a group's query rows, scaled, and returns their number.
    fn load_queries(&self, group: &Group, scratch: &mut Scratch) -> usize {
        let g = self.geometry;
        let (d, q_heads) = (g.head_dim, g.n_q_heads / g.n_kv_heads);
        let rows = group.tokens.len() * q_heads;
        let scale = 1.0 / (d as f32).sqrt();
        scratch.queries.resize(rows * d, 0.0);
        for (t, queries) in group.tokens.clone().zip(scratch.queries.chunks_exact_mut(q_heads * d)) {
            queries.copy_from_slice(self.queries(group, t));
            maths::scale(self.isa, queries, scale);
        }
        rows
    }

    /// Query rows of a group's KV head of a token of its span, `[q_heads, head_dim]`.
    fn queries(&self, group: &Group, token: usize) -> &[f32] {
        let width = self.geometry.head_dim * self.geometry.n_q_heads / self.geometry.n_kv_heads;
        &self.qkv.row(self.spans[group.span].start + token)[group.head * width..][..width]
    }

    /// Stored slots of a lane.
    fn live(&self, span: &Span, head: usize) -> usize {
        self.kv.live[self.geometry.row(self.layer, span.seq, head)] as usize
    }

    /// Position of the span's first token.
    fn base(&self, span: &Span) -> usize {
        self.kv.seq_len[span.seq] as usize
    }

    /// The rule that hides keys from queries, where eviction is on.
    fn rule(&self, span: &Span) -> Option<Dms> {
        let policy = self.geometry.policy.with_dial(self.kv.dial[span.seq]);
        policy.rule().filter(|_| self.kv.eviction[span.seq] != 0)
    }

    /// Decision of a token of the step; `None` behind its last one.
    fn decision(&self, span: &Span, token: usize, head: usize) -> Option<f32> {
        let at = (span.start + token) * self.geometry.n_kv_heads + head;
        (token < span.len).then(|| self.decisions[at])
    }

    /// Mark of a token of the step.
    fn own_mark(&self, rule: &Dms, span: &Span, token: usize, head: usize) -> bool {
        rule.own_mark(self.base(span), token, |i| self.decision(span, i, head))
    }

    /// Mark of a stored token.
    fn stored_mark(&self, rule: &Dms, span: &Span, head: usize, meta: SlotMeta) -> bool {
        rule.stored_mark(self.base(span), meta, self.decision(span, 0, head))
    }

    fn page(&self, span: &Span, head: usize, slot: usize) -> &[u8] {
        let row = self.geometry.row(self.layer, span.seq, head);
        self.kv.pool.page(self.kv.page_table[row * self.geometry.max_pages + slot / self.geometry.page_slots])
    }

    /// K and V of a token of the step.
    fn own_row(&self, span: &Span, token: usize, head: usize) -> (&[f32], &[f32]) {
        let g = self.geometry;
        let row = &self.qkv.row(span.start + token)[g.n_q_heads * g.head_dim..];
        let (k, v) = row.split_at(g.n_kv_heads * g.head_dim);
        (&k[head * g.head_dim..][..g.head_dim], &v[head * g.head_dim..][..g.head_dim])
    }

    /// Format of rows of K, and of V once [`Self::value_rows`] has unpacked them.
    fn format(&self) -> Format {
        match self.geometry.codec {
            Codec::F32 => Format::F32,
            Codec::Bf16 => Format::Bf16,
            Codec::Fp8 => Format::Fp8,
            // 4-bit codes, a byte each, are int8 codes without a sign.
            Codec::Int8 | Codec::K8V4 => Format::Int8,
        }
    }

    /// Rows of V with a whole number of bytes to a value.
    fn value_rows<'a>(&self, rows: &'a [u8], codes: &'a mut Vec<u8>) -> &'a [u8] {
        if self.geometry.codec != Codec::K8V4 {
            return rows;
        }
        let (d, bytes) = (self.geometry.head_dim, self.layout.slot.v_bytes);
        codes.resize(rows.len() / bytes * d, 0);
        for (codes, row) in codes.chunks_exact_mut(d).zip(rows.chunks_exact(bytes)) {
            unpack_codes(row, codes);
        }
        codes
    }
}

/// Few rows: scores and sums directly from the pages.
fn by_page(call: &Call<'_>, group: &Group, split: &Split, softmax: &mut OnlineSoftmax<'_>, scratch: &mut Scratch) {
    let (g, rows) = (call.geometry, softmax.rows());
    let block = BLOCK_KEYS.next_multiple_of(g.page_slots);
    for start in split.slots.clone().step_by(block) {
        let slots = start..split.slots.end.min(start + block);
        scratch.scores.resize(rows * slots.len(), 0.0);
        add_pages(call, group, slots, split.slots.end, softmax, scratch);
    }
    if split.own {
        add_own(call, group, softmax, scratch);
    }
}

/// The slots `slots`, whole pages but for the last; more follow up to `end`.
fn add_pages(
    call: &Call<'_>,
    group: &Group,
    slots: Range<usize>,
    end: usize,
    softmax: &mut OnlineSoftmax<'_>,
    scratch: &mut Scratch,
) {
    let n = slots.len();
    score_pages(call, group, slots.clone(), n, scratch);
    softmax.rescale(call.isa, &mut scratch.scores);
    add_values(call, group, slots, n, end, softmax, scratch);
}

/// Writes the scores of the slots `slots` to the first columns of `scratch.scores`, whose rows have `n`.
fn score_pages(call: &Call<'_>, group: &Group, slots: Range<usize>, n: usize, scratch: &mut Scratch) {
    let Scratch { queries, scores, .. } = scratch;
    let (g, layout, isa) = (call.geometry, call.layout, call.isa);
    let (d, page_slots, rows) = (g.head_dim, g.page_slots, scores.len() / n.max(1));
    let span = &call.spans[group.span];
    let page = |slot: usize| call.page(span, group.head, slot);
    let k_rows = |slot: usize| &page(slot)[layout.k_rows()];
    let v_rows = |slot: usize| &page(slot)[layout.v_rows()];
    for start in slots.clone().step_by(page_slots) {
        let (next, at) = (start + page_slots, start - slots.start);
        let columns = at..slots.len().min(at + page_slots);
        if group.chosen.skips(start / page_slots) {
            let columns = scores.chunks_exact_mut(n).map(|scores| &mut scores[columns.clone()]);
            columns.for_each(|scores| scores.fill(f32::NEG_INFINITY));
            continue;
        }
        let next = if next < slots.end { k_rows(next) } else { v_rows(slots.start) };
        // K and V of a page are adjacent: prefetch V now, though it is needed later.
        fetch(v_rows(start));
        let keys = Rows::new(k_rows(start), call.format(), d).slice(0..columns.len()).then(next);
        dots(isa, keys, queries, &mut Tile::new(scores, rows, n).narrow(columns.clone()));
        if layout.has_sides() {
            let scales: &[f32] = bytemuck::cast_slice(layout.all_sides(page(start))[0]);
            for scores in scores.chunks_exact_mut(n) {
                maths::mul(isa, &mut scores[columns.clone()], &scales[..columns.len()]);
            }
        }
        group.chosen.hide(start / page_slots, columns.clone(), n, scores);
        hide_evicted(call, group, page(start), columns, n, scores);
    }
}

/// Adds the values of the slots `slots` by the weights in the first columns of `scratch.scores`, whose rows have `n`. More
/// slots follow up to `end`.
fn add_values(
    call: &Call<'_>,
    group: &Group,
    slots: Range<usize>,
    n: usize,
    end: usize,
    softmax: &mut OnlineSoftmax<'_>,
    scratch: &mut Scratch,
) {
    let Scratch { scores, values_of_a_page: page_values, .. } = scratch;
    let (g, layout, isa) = (call.geometry, call.layout, call.isa);
    let (d, page_slots) = (g.head_dim, g.page_slots);
    let page = |slot: usize| call.page(&call.spans[group.span], group.head, slot);
    let k_rows = |slot: usize| &page(slot)[layout.k_rows()];
    let v_rows = |slot: usize| &page(slot)[layout.v_rows()];
    for start in slots.clone().step_by(page_slots).filter(|start| !group.chosen.skips(start / page_slots)) {
        let (next, at) = (start + page_slots, start - slots.start);
        let columns = at..slots.len().min(at + page_slots);
        if layout.has_sides() {
            page_values.read_sides(g.codec, &layout.all_sides(page(start))[1][..columns.len()]);
            for (r, weights) in scores.chunks_exact_mut(n).enumerate() {
                let weights = &mut weights[columns.clone()];
                if g.codec.has_offsets() {
                    softmax.add_to_all(r, weights.iter().zip(&page_values.offsets).map(|(w, o)| w * o).sum());
                }
                maths::mul(isa, weights, &page_values.scales);
            }
        }
        let values = call.value_rows(v_rows(start), &mut page_values.codes);
        let values = Rows::new(values, call.format(), d).slice(0..columns.len());
        let values = match next {
            next if next < slots.end => values.then(v_rows(next)),
            next if next < end => values.then(k_rows(next)),
            _ => values,
        };
        softmax.add_stored(isa, &scores[at..], n, values);
    }
}

impl PageValues {
    /// Scales and offsets of rows.
    fn read_sides(&mut self, codec: Codec, sides: &[u32]) {
        self.scales.clear();
        self.offsets.clear();
        for [scale, offset] in sides.iter().map(|&side| codec.affine_v(side)) {
            self.scales.push(scale);
            self.offsets.push(offset);
        }
    }
}

/// Masks in scores `[rows, n]`, whose columns `columns` are a page's slots, the keys that eviction hides from each row.
fn hide_evicted(call: &Call<'_>, group: &Group, page: &[u8], columns: Range<usize>, n: usize, scores: &mut [f32]) {
    let span = &call.spans[group.span];
    let Some(rule) = call.rule(span) else { return };
    let base = call.base(span);
    let q_heads = scores.len() / n / group.tokens.len();
    for (row, column) in columns.enumerate() {
        let meta = call.layout.meta(page, row);
        if !call.stored_mark(&rule, span, group.head, meta) {
            continue;
        }
        for (token, scores) in group.tokens.clone().zip(scores.chunks_exact_mut(q_heads * n)) {
            if !rule.visible(base + token, meta.position(), true) {
                scores.iter_mut().skip(column).step_by(n).for_each(|s| *s = f32::NEG_INFINITY);
            }
        }
    }
}

/// The step's own rows.
fn add_own(call: &Call<'_>, group: &Group, softmax: &mut OnlineSoftmax<'_>, scratch: &mut Scratch) {
    let (d, isa, rows, n) = (call.geometry.head_dim, call.isa, softmax.rows(), group.tokens.end);
    let span = &call.spans[group.span];
    let (q_heads, rule) = (rows / group.tokens.len(), call.rule(span));
    let Scratch { queries, keys, values, scores, .. } = scratch;
    keys.resize(n * d, 0.0);
    values.resize(n * d, 0.0);
    scores.resize(rows * n, 0.0);
    for (t, (k, v)) in keys.chunks_exact_mut(d).zip(values.chunks_exact_mut(d)).enumerate() {
        let (own_k, own_v) = call.own_row(span, t, group.head);
        k.copy_from_slice(own_k);
        v.copy_from_slice(own_v);
    }
    dots(isa, Rows::new(bytemuck::cast_slice(keys), Format::F32, d), queries, &mut Tile::new(scores, rows, n));
    for (r, scores) in scores.chunks_exact_mut(n).enumerate() {
        let query = group.tokens.start + r / q_heads;
        for (t, score) in scores.iter_mut().enumerate() {
            let hidden = |rule: &Dms| !rule.visible(query, t, call.own_mark(rule, span, t, group.head));
            if t > query || rule.as_ref().is_some_and(hidden) {
                *score = f32::NEG_INFINITY;
            }
        }
    }
    softmax.rescale(isa, scores);
    softmax.add_stored(isa, scores, n, Rows::new(bytemuck::cast_slice(values), Format::F32, d));
}

/// Many rows: gathers blocks of the keys that some of them see.
fn by_block(call: &Call<'_>, group: &Group, split: &Split, softmax: &mut OnlineSoftmax<'_>, scratch: &mut Scratch) {
    let (g, layout) = (call.geometry, call.layout);
    let (d, page_slots) = (g.head_dim, g.page_slots);
    let span = &call.spans[group.span];
    let (base, rule) = (call.base(span), call.rule(span));
    scratch.keys.resize(BLOCK_KEYS * d, 0.0);
    scratch.values.resize(BLOCK_KEYS * d, 0.0);
    scratch.seen_by.clear();
    let first = base + group.tokens.start;
    let n_tokens = group.tokens.len();
    // The tokens of the group that see a key; empty where it is hidden from all.
    let seen_by = |position: usize, marked: bool| {
        let from = position.saturating_sub(first).min(n_tokens);
        let last = rule.filter(|_| marked).map(|rule| rule.last_to_see(position));
        let to = last.map_or(n_tokens, |last| (last + 1).saturating_sub(first).min(n_tokens));
        (from as u32, to.max(from) as u32)
    };
    for start in split.slots.clone().step_by(page_slots) {
        let page = call.page(span, group.head, start);
        let n = page_slots.min(split.slots.end - start);
        for row in 0..n {
            let meta = layout.meta(page, row);
            let marked = rule.is_some_and(|rule| call.stored_mark(&rule, span, group.head, meta));
            let seen = seen_by(meta.position(), marked);
            if seen.0 == seen.1 {
                continue;
            }
            let (at, [k_side, v_side]) = (scratch.seen_by.len() * d, layout.sides(page, row));
            let ([k_scale, _], [v_scale, v_offset]) = (g.codec.affine_k(k_side), g.codec.affine_v(v_side));
            widen(call.isa, &page[layout.k(row)], call.format(), k_scale, &mut scratch.keys[at..at + d]);
            let (v, values) = (&page[layout.v(row)], &mut scratch.values[at..at + d]);
            let v = call.value_rows(v, &mut scratch.values_of_a_page.codes);
            widen(call.isa, v, call.format(), v_scale, values);
            if g.codec.has_offsets() {
                values.iter_mut().for_each(|x| *x += v_offset);
            }
            scratch.seen_by.push(seen);
            if scratch.seen_by.len() == BLOCK_KEYS {
                add_block(call.isa, softmax, scratch, n_tokens, d);
            }
        }
    }
    if split.own {
        for token in 0..group.tokens.end {
            let marked = rule.is_some_and(|rule| call.own_mark(&rule, span, token, group.head));
            let seen = seen_by(base + token, marked);
            if seen.0 == seen.1 {
                continue;
            }
            let (at, (k, v)) = (scratch.seen_by.len() * d, call.own_row(span, token, group.head));
            scratch.keys[at..at + d].copy_from_slice(k);
            scratch.values[at..at + d].copy_from_slice(v);
            scratch.seen_by.push(seen);
            if scratch.seen_by.len() == BLOCK_KEYS {
                add_block(call.isa, softmax, scratch, n_tokens, d);
            }
        }
    }
    if !scratch.seen_by.is_empty() {
        add_block(call.isa, softmax, scratch, n_tokens, d);
    }
}

fn add_block(isa: Isa, softmax: &mut OnlineSoftmax<'_>, scratch: &mut Scratch, n_tokens: usize, d: usize) {
    let Scratch { queries, keys, values, scores, seen_by, .. } = scratch;
    let (rows, n) = (softmax.rows(), seen_by.len());
    let q_heads = rows / n_tokens;
    scores.resize(rows * BLOCK_KEYS, 0.0);
    matmul::a_bt(isa, &mut Tile::new(scores, rows, n), queries, d, keys, d, d, false);
    for (key, &(from, to)) in seen_by.iter().enumerate() {
        let (from, to) = (from as usize * q_heads, to as usize * q_heads);
        for row in (0..from).chain(to..rows) {
            scores[row * n + key] = f32::NEG_INFINITY;
        }
    }
    softmax.rescale(isa, &mut scores[..rows * n]);
    softmax.add(isa, &scores[..rows * n], values, n);
    seen_by.clear();
}
