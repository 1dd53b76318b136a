//! Attention of a step's rows over stored slots and the step's own rows.
//!
//! A row's result has the same bits whatever is computed beside it: one definition serves decode
//! and prefill, for any chunks, any number of threads and any order of the slots. A score is a dot
//! product with a key as it is stored, times the key's scale. Weights are
//! `exp(score - largest score)`; their sum is exact and so has no order. Values are added in the
//! order of their positions, in every form; a key that is hidden from a row has the weight 0, which
//! changes no bit.
//!
//! A *group* is the query rows of one KV head in a run of a span's tokens; its keys are read once
//! for all of them. Two forms:
//!
//! - `in_place` (decode, few rows): keys are read from their pages, values through
//!   [`super::Pool::order`];
//! - `gathered` (prefill, many rows): keys that some row sees are copied into blocks in f32 and
//!   multiplied by GEMM. Keys that no row sees cost only a look at their mark.
//!
//! `in_order` has the form for policies that place by the weights, `paged` the choice of pages.

mod gathered;
mod importance;
mod in_order;
mod in_place;
mod paged;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
mod weights;

use super::super::{KvGeometry, KvTables, PageLayout, Span};
use super::simd::{Format, Isa, maths};
use super::thread_pool::Tile;
use super::{Acts, Cpu, kv};
use crate::codec::{Codec, Elements, unpack_codes, unrotate};
use crate::policy::{Dms, SlotMeta};
pub(super) use importance::importance;
pub(super) use in_order::attend_in_order;
use paged::Chosen;
pub(super) use paged::count_reads;
use std::ops::Range;
use weights::Sides;

/// Tokens of a span up to which pages are read in place.
const FEW_TOKENS: usize = 4;
/// Approximate query rows (tokens x query heads) of a group in prefill.
const BLOCK_ROWS: usize = 96;
/// Scores that a group in prefill keeps at most, unless one token has more: 4 MiB.
const GROUP_SCORES: usize = 1 << 20;

/// Work shared by the threads of one call, kept from call to call.
#[derive(Default)]
pub(super) struct Plan {
    groups: Vec<Group>,
    /// Each span's first group, and the tokens of its groups.
    spans: Vec<(usize, usize)>,
    own: OwnRows,
    /// `[groups, rows of the largest, keys of the largest + 2]`, where the threads share the keys
    /// of a group.
    scores: Vec<f32>,
    /// `[groups, rows of the largest, head_dim]`
    out: Vec<f32>,
}

struct Group {
    span: usize,
    head: usize,
    /// Tokens of the span.
    tokens: Range<usize>,
    /// Pages that it reads, where the policy reads pages.
    chosen: Chosen,
}

/// The step's own keys and values, `[n_tokens, n_kv_heads]`, as they will be stored: K, V in whole
/// bytes, side data.
#[derive(Default)]
struct OwnRows {
    bytes: Vec<u8>,
    heads: usize,
    k_bytes: usize,
    v_bytes: usize,
}

impl OwnRows {
    fn encode(&mut self, cpu: &Cpu, qkv: &Acts, g: &KvGeometry, n: usize) {
        let (layout, d) = (g.page(), g.head_dim);
        (self.heads, self.k_bytes, self.v_bytes) =
            (g.n_kv_heads, layout.slot.k_bytes, d * format(g.codec).size_bytes());
        let row_bytes = self.k_bytes + self.v_bytes + 8;
        self.bytes.resize(n * self.heads * row_bytes, 0);
        let width = self.heads * row_bytes;
        // Encoding a row takes less time than waking a thread.
        let rows = if n <= FEW_TOKENS { n } else { n.div_ceil(4 * cpu.threads()) };
        cpu.thread_pool.tiles(&mut Tile::new(&mut self.bytes, n, width), rows.max(1), width, |_, tile| {
            for i in 0..tile.rows() {
                let (k, v) = qkv.row(tile.row_range().start + i)[g.n_q_heads * d..].split_at(g.n_kv_heads * d);
                let own = tile.row_mut(i).chunks_exact_mut(row_bytes);
                for ((k, v), own) in k.chunks_exact(d).zip(v.chunks_exact(d)).zip(own) {
                    let (k_out, rest) = own.split_at_mut(layout.slot.k_bytes);
                    let (v_out, sides) = rest.split_at_mut(rest.len() - 8);
                    let k_side = g.codec.encode_k(k, k_out);
                    let v_side = if g.codec.packs_values() {
                        let mut codes = vec![0; layout.slot.v_bytes];
                        let side = g.codec.encode_v(v, &mut codes);
                        unpack_codes(&codes, v_out);
                        side
                    } else {
                        g.codec.encode_v(v, v_out)
                    };
                    sides[..4].copy_from_slice(&k_side.to_le_bytes());
                    sides[4..].copy_from_slice(&v_side.to_le_bytes());
                }
            }
        });
    }

    /// K, V and side data of a row of the step.
    fn row(&self, row: usize, head: usize) -> (&[u8], &[u8], [u32; 2]) {
        let row_bytes = self.k_bytes + self.v_bytes + 8;
        let (k, rest) = self.bytes[(row * self.heads + head) * row_bytes..][..row_bytes].split_at(self.k_bytes);
        let (v, sides) = rest.split_at(self.v_bytes);
        let side = |at: usize| u32::from_le_bytes(sides[at..at + 4].try_into().expect("four bytes"));
        (k, v, [side(0), side(4)])
    }
}

/// Scratch of one thread.
#[derive(Default)]
pub(super) struct Scratch {
    /// `[rows, head_dim]`, scaled by 1/sqrt(head_dim).
    queries: Vec<f32>,
    /// `[rows, keys + 2]`
    scores: Vec<f32>,
    /// `[keys, head_dim]` of K, then of V.
    block: Vec<f32>,
    keys: Vec<gathered::Key>,
    sides: Sides,
    /// V of a lane, where codes are narrower than a byte.
    codes: Vec<u8>,
    /// Slots to read, where the policy reads pages.
    order: Vec<u32>,
}

/// Arguments of a call, shared by all groups.
struct Call<'a> {
    isa: Isa,
    qkv: &'a Acts,
    decisions: &'a [f32],
    kv: &'a KvTables<Cpu>,
    geometry: &'a KvGeometry,
    layout: PageLayout,
    layer: usize,
    spans: &'a [Span],
    own: &'a OwnRows,
}

pub(super) fn attend(
    cpu: &Cpu,
    out: &mut Acts,
    qkv: &Acts,
    decisions: &[f32],
    kv: &mut KvTables<Cpu>,
    layer: usize,
    spans: &[Span],
) {
    spans.iter().for_each(|span| kv::order_slots(kv, layer, span.seq));
    let kv = &*kv;
    let g = &kv.geometry;
    let (d, q_heads) = (g.head_dim, g.n_q_heads / g.n_kv_heads);
    let n = spans.iter().map(|s| s.start + s.len).max().unwrap_or(0);
    let mut plan = cpu.plan();
    plan.fill(kv, layer, spans);
    let Plan { groups, spans: groups_of_spans, own, scores, out: results } = &mut *plan;
    own.encode(cpu, qkv, g, n);
    let call = Call { isa: cpu.isa, qkv, decisions, kv, geometry: g, layout: g.page(), layer, spans, own };
    paged::choose(cpu, &call, groups);
    let rows = groups.iter().map(|group| group.tokens.len() * q_heads).max().unwrap_or(0);
    results.resize(results.len().max(groups.len() * rows * d), 0.0);
    let mut tiles = Tile::new(results, groups.len() * rows, d);
    if let Some(keys) = in_place::shared_keys(cpu, &call, groups) {
        in_place::attend_together(cpu, &call, groups, rows, keys, scores, &mut tiles);
    } else {
        cpu.thread_pool.tiles(&mut tiles, rows.max(1), d, |worker, tile| {
            let group = &groups[tile.row_range().start / rows];
            let scratch = &mut cpu.scratch(worker).attention;
            if spans[group.span].len <= FEW_TOKENS {
                in_place::attend(&call, group, tile, scratch);
            } else {
                gathered::attend(&call, group, tile, scratch);
            }
        });
    }
    cpu.rows(out, n, |out, i| {
        let Some(s) = spans.iter().position(|s| (s.start..s.start + s.len).contains(&i)) else { return };
        let ((first, tokens), token) = (groups_of_spans[s], i - spans[s].start);
        for (head, out) in out.chunks_exact_mut(q_heads * d).enumerate() {
            let group = first + head * spans[s].len.div_ceil(tokens) + token / tokens;
            let row = group * rows + token % tokens * q_heads;
            out.copy_from_slice(&results[row * d..][..q_heads * d]);
            finish(g.codec, out, d);
        }
    });
}

/// Takes the codec's rotation of values from rows of attention's output.
fn finish(codec: Codec, out: &mut [f32], d: usize) {
    if codec.rotates_values() {
        out.chunks_exact_mut(d).for_each(unrotate);
    }
}

/// Format of rows of K, and of V in whole bytes.
fn format(codec: Codec) -> Format {
    match codec.elements() {
        Elements::F32 => Format::F32,
        Elements::Bf16 => Format::Bf16,
        Elements::Fp8 => Format::Fp8,
        Elements::Int8 => Format::Int8,
    }
}

impl Plan {
    fn fill(&mut self, kv: &KvTables<Cpu>, layer: usize, spans: &[Span]) {
        let g = &kv.geometry;
        let q_heads = g.n_q_heads / g.n_kv_heads;
        self.groups.clear();
        self.spans.clear();
        for (s, span) in spans.iter().enumerate() {
            let live = (0..g.n_kv_heads).map(|head| kv.live[g.row(layer, span.seq, head)] as usize);
            let keys = live.max().unwrap_or(0) + span.len;
            let rows = (GROUP_SCORES / keys.max(1)).min(BLOCK_ROWS);
            let tokens = if span.len <= FEW_TOKENS { span.len.max(1) } else { (rows / q_heads).max(1) };
            self.spans.push((self.groups.len(), tokens));
            for head in 0..g.n_kv_heads {
                self.groups.extend((0..span.len).step_by(tokens).map(|first| {
                    let tokens = first..span.len.min(first + tokens);
                    Group { span: s, head, tokens, chosen: Chosen::default() }
                }));
            }
        }
    }
}

impl Call<'_> {
    /// Writes a group's query rows, scaled, and returns their number.
    fn load_queries(&self, group: &Group, queries: &mut Vec<f32>) -> usize {
        let g = self.geometry;
        let (d, q_heads) = (g.head_dim, g.n_q_heads / g.n_kv_heads);
        let rows = group.tokens.len() * q_heads;
        let scale = 1.0 / (d as f32).sqrt();
        queries.resize(rows * d, 0.0);
        for (t, queries) in group.tokens.clone().zip(queries.chunks_exact_mut(q_heads * d)) {
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

    /// Index of a group's lane in the tables.
    fn lane(&self, group: &Group) -> usize {
        self.geometry.row(self.layer, self.spans[group.span].seq, group.head)
    }

    /// Stored slots of a lane.
    fn live(&self, group: &Group) -> usize {
        self.kv.live[self.lane(group)] as usize
    }

    /// The page of a lane that has `slot`.
    fn page(&self, group: &Group, slot: usize) -> &[u8] {
        let entry = self.lane(group) * self.geometry.max_pages + slot / self.geometry.page_slots;
        self.kv.pool.page(self.kv.page_table[entry])
    }

    /// Position of the span's first token.
    fn base(&self, span: &Span) -> usize {
        self.kv.seq_len[span.seq] as usize
    }

    /// The rule that hides keys from queries, where eviction is on.
    fn rule(&self, span: &Span) -> Option<Dms> {
        let policy = self.geometry.policy_of(self.layer).with_dial(self.kv.dial[span.seq]);
        policy.rule().filter(|_| self.geometry.evicts(self.layer, self.kv.eviction[span.seq] != 0))
    }

    /// Decision of a token of the step; `None` after its last token.
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

    /// K, V and side data of a token of a group's span.
    fn own_row(&self, group: &Group, token: usize) -> (&[u8], &[u8], [u32; 2]) {
        self.own.row(self.spans[group.span].start + token, group.head)
    }

    /// Rows of V with a whole number of bytes to a value.
    fn value_rows<'a>(&self, rows: &'a [u8], codes: &'a mut Vec<u8>) -> &'a [u8] {
        if !self.geometry.codec.packs_values() {
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
