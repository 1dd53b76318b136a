//! The arguments of a call, which its groups share.

use super::super::super::{KvGeometry, KvTables, PageLayout, Span};
use super::super::device::{Acts, Cpu};
use super::super::kv::positions;
use super::super::simd::{Isa, maths};
use super::super::thread_pool::Tile;
use super::plan::{Chosen, FEW_TOKENS, Group, OwnRows, Plan, format};
use crate::codec::{Place, unpack_codes};
use crate::policy::{Dms, SlotMeta};

/// Approximate query rows (tokens x query heads) of a group in prefill.
const BLOCK_ROWS: usize = 96;
/// Scores that a group in prefill keeps at most, unless one token has more: 4 MiB.
const GROUP_SCORES: usize = 1 << 20;

/// Arguments of a call, shared by all groups.
pub(super) struct Call<'a> {
    pub(super) isa: Isa,
    pub(super) qkv: &'a Acts,
    pub(super) decisions: &'a [f32],
    pub(super) kv: &'a KvTables<Cpu>,
    pub(super) geometry: &'a KvGeometry,
    pub(super) layout: PageLayout,
    pub(super) layer: usize,
    pub(super) spans: &'a [Span],
    pub(super) own: &'a OwnRows,
    /// Scores of all query heads that join the softmax; empty: none.
    pub(super) sinks: &'a [f32],
    /// See [`Plan::orders`].
    pub(super) orders: &'a [Vec<u32>],
}

impl Call<'_> {
    /// Writes a group's query rows, scaled, and returns their number.
    pub(super) fn load_queries(&self, group: &Group, queries: &mut Vec<f32>) -> usize {
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
    pub(super) fn queries(&self, group: &Group, token: usize) -> &[f32] {
        let width = self.geometry.head_dim * self.geometry.n_q_heads / self.geometry.n_kv_heads;
        &self.qkv.row(self.spans[group.span].start + token)[group.head * width..][..width]
    }

    /// Scores that join the softmax of a group's heads.
    pub(super) fn sinks_of(&self, group: &Group) -> &[f32] {
        let heads = self.geometry.n_q_heads / self.geometry.n_kv_heads;
        self.sinks.get(group.head * heads..(group.head + 1) * heads).unwrap_or_default()
    }

    /// Index of a group's lane in the tables.
    pub(super) fn lane(&self, group: &Group) -> usize {
        self.geometry.row(self.layer, self.spans[group.span].seq, group.head)
    }

    /// Stored slots of a lane.
    pub(super) fn live(&self, group: &Group) -> usize {
        self.kv.live[self.lane(group)] as usize
    }

    /// Stored keys that a lane reads, in one list of pages: its slots, then its near far rows.
    /// Where there are far rows, the last page of each part may have rows without a key.
    pub(super) fn stored(&self, group: &Group) -> usize {
        stored(self.kv, self.geometry, self.lane(group))
    }

    /// The page of a lane that has stored key `key`, and the number of its rows that have one.
    pub(super) fn rows_of(&self, group: &Group, key: usize) -> (&[u8], usize) {
        listed(self.kv, self.geometry, self.lane(group), key)
    }

    /// The page of a lane that has stored key `key`.
    pub(super) fn page(&self, group: &Group, key: usize) -> &[u8] {
        self.rows_of(group, key).0
    }

    /// The stored keys of a lane, by position.
    pub(super) fn order(&self, group: &Group) -> &[u32] {
        let (lane, of_slots) = (self.lane(group), self.kv.pool.order(self.lane(group)));
        let reads_far = self.kv.pool.far.as_ref().is_some_and(|far| far.blocks(lane) > 0);
        if reads_far { &self.orders[group.span * self.geometry.n_kv_heads + group.head] } else { of_slots }
    }

    /// Position of the span's first token.
    pub(super) fn base(&self, span: &Span) -> usize {
        self.kv.seq_len[span.seq] as usize
    }

    /// The rule that hides keys from queries, where eviction is on. Rows that leave in a step whose
    /// lanes keep them are read until the next choice.
    pub(super) fn rule(&self, span: &Span) -> Option<Dms> {
        let policy = self.geometry.policy_of(self.layer).with_dial(self.kv.dial[span.seq]);
        let evicts = self.geometry.evicts(self.layer, self.kv.eviction[span.seq] != 0);
        policy.rule().filter(|_| evicts && self.geometry.far_of(self.layer).is_none())
    }

    /// Decision of a token of the step; `None` after its last token.
    pub(super) fn decision(&self, span: &Span, token: usize, head: usize) -> Option<f32> {
        let at = (span.start + token) * self.geometry.n_kv_heads + head;
        (token < span.len).then(|| self.decisions[at])
    }

    /// Mark of a token of the step.
    pub(super) fn own_mark(&self, rule: &Dms, span: &Span, token: usize, head: usize) -> bool {
        rule.own_mark(self.base(span), token, |i| self.decision(span, i, head))
    }

    /// Mark of a stored token.
    pub(super) fn stored_mark(&self, rule: &Dms, span: &Span, head: usize, meta: SlotMeta) -> bool {
        rule.stored_mark(self.base(span), meta, self.decision(span, 0, head))
    }

    /// K, V and side data of a token of a group's span.
    pub(super) fn own_row(&self, group: &Group, token: usize) -> (&[u8], &[u8], [u32; 2]) {
        self.own.row(self.spans[group.span].start + token, group.head)
    }

    /// Place of a stored row.
    pub(super) fn place(&self, page: &[u8], row: usize) -> Place {
        Place { layer: self.layer, position: self.layout.meta(page, row).position() }
    }

    /// The first `n` rows of K of a page, unpacked.
    pub(super) fn key_rows<'a>(&self, page: &'a [u8], n: usize, codes: &'a mut Vec<f32>) -> &'a [u8] {
        if !self.geometry.codec.packs_keys() {
            return &page[self.layout.k_rows()];
        }
        codes.resize(n * self.geometry.head_dim, 0.0);
        codes.chunks_exact_mut(self.geometry.head_dim).enumerate().for_each(|(row, out)| self.read_key(page, row, out));
        bytemuck::cast_slice(codes)
    }

    /// A row of K of a page, unpacked.
    pub(super) fn key_row<'a>(&self, page: &'a [u8], row: usize, codes: &'a mut Vec<f32>) -> &'a [u8] {
        if !self.geometry.codec.packs_keys() {
            return &page[self.layout.k(row)];
        }
        codes.resize(self.geometry.head_dim, 0.0);
        self.read_key(page, row, codes);
        bytemuck::cast_slice(codes)
    }

    fn read_key(&self, page: &[u8], row: usize, out: &mut [f32]) {
        let (codec, coder) = (self.geometry.codec, self.kv.coder.as_deref());
        let side = self.layout.sides(page, row)[0];
        codec.read_k(coder, self.place(page, row), &page[self.layout.k(row)], side, out);
    }

    /// A row of V of a page, unpacked.
    pub(super) fn value_row<'a>(&self, page: &'a [u8], row: usize, codes: &'a mut Vec<f32>) -> &'a [u8] {
        if !self.geometry.codec.packs_values() {
            return &page[self.layout.v(row)];
        }
        let out = unpacked(codes, self.geometry.head_dim * format(self.geometry.codec).size_bytes());
        unpack_v(self.kv, self.place(page, row), &page[self.layout.v(row)], out);
        out
    }
}

/// Pages of a lane's slots in its list of pages. `g`, here and below: the geometry of the layer.
fn slot_pages(kv: &KvTables<Cpu>, g: &KvGeometry, lane: usize) -> usize {
    (kv.live[lane] as usize).div_ceil(g.page_slots)
}

/// [`Call::stored`]
fn stored(kv: &KvTables<Cpu>, g: &KvGeometry, lane: usize) -> usize {
    match kv.pool.far.as_ref().map_or(0, |far| far.blocks(lane)) {
        0 => kv.live[lane] as usize,
        blocks => (slot_pages(kv, g, lane) + blocks) * g.page_slots,
    }
}

/// [`Call::rows_of`]
fn listed<'a>(kv: &'a KvTables<Cpu>, g: &KvGeometry, lane: usize, key: usize) -> (&'a [u8], usize) {
    let page = key / g.page_slots;
    match (page.checked_sub(slot_pages(kv, g, lane)), &kv.pool.far) {
        (Some(block), Some(far)) => far.block(lane, block),
        _ => {
            let rows = (kv.live[lane] as usize - page * g.page_slots).min(g.page_slots);
            (kv.pool.page(kv.page_table[lane * g.max_pages + page]), rows)
        }
    }
}

/// The stored keys of a lane by position, if it reads far rows; else empty.
fn order_with_far(kv: &KvTables<Cpu>, g: &KvGeometry, lane: usize) -> Vec<u32> {
    let (slots, layout) = (g.page_slots, g.page());
    let first = slot_pages(kv, g, lane) * slots;
    let position = |key: usize| layout.meta(listed(kv, g, lane, key).0, key % slots).position();
    let mut far: Vec<(usize, u32)> = Vec::new();
    for start in (first..stored(kv, g, lane).max(first)).step_by(slots) {
        far.extend((start..start + listed(kv, g, lane, start).1).map(|key| (position(key), key as u32)));
    }
    if far.is_empty() {
        return Vec::new();
    }
    far.extend(kv.pool.order(lane).iter().map(|&slot| (position(slot as usize), slot)));
    far.sort_unstable();
    far.into_iter().map(|(_, key)| key).collect()
}

/// Encodes the step's own rows as they will be stored, unpacked.
pub(super) fn encode(own: &mut OwnRows, cpu: &Cpu, qkv: &Acts, kv: &KvTables<Cpu>, layer: usize, spans: &[Span]) {
    let (g, positions) = (kv.geometry.of_layer(layer), positions(kv, spans));
    let (layout, d, n) = (g.page(), g.head_dim, positions.len());
    let unpacked = d * format(g.codec).size_bytes();
    (own.heads, own.k_bytes, own.v_bytes) = (g.n_kv_heads, unpacked, unpacked);
    let row_bytes = own.k_bytes + own.v_bytes + 8;
    own.bytes.resize(n * own.heads * row_bytes, 0);
    let width = own.heads * row_bytes;
    // Encoding a row takes less time than waking a thread.
    let rows = if n <= FEW_TOKENS { n } else { n.div_ceil(4 * cpu.threads()) };
    cpu.thread_pool.tiles(&mut Tile::new(&mut own.bytes, n, width), rows.max(1), width, |_, tile| {
        for i in 0..tile.rows() {
            let row = tile.row_range().start + i;
            let (k, v) = qkv.row(row)[g.n_q_heads * d..].split_at(g.n_kv_heads * d);
            let place = Place { layer, position: positions[row] };
            let own = tile.row_mut(i).chunks_exact_mut(row_bytes);
            for ((k, v), own) in k.chunks_exact(d).zip(v.chunks_exact(d)).zip(own) {
                let (k_out, rest) = own.split_at_mut(unpacked);
                let (v_out, sides) = rest.split_at_mut(rest.len() - 8);
                let (k_side, v_side) = encode_unpacked(kv, &layout, place, [k, v], [k_out, v_out]);
                sides[..4].copy_from_slice(&k_side.to_le_bytes());
                sides[4..].copy_from_slice(&v_side.to_le_bytes());
            }
        }
    });
}

/// Encodes a row of K and one of V into the units that loops load, and returns their side data.
fn encode_unpacked(
    kv: &KvTables<Cpu>,
    layout: &PageLayout,
    place: Place,
    [k, v]: [&[f32]; 2],
    [k_out, v_out]: [&mut [u8]; 2],
) -> (u32, u32) {
    let codec = kv.geometry.codec;
    let packed = |bytes: usize| vec![0; bytes];
    let k_side = if codec.packs_keys() {
        let (mut codes, mut values) = (packed(layout.slot.k_bytes), vec![0.0; k.len()]);
        let side = codec.encode_k(k, &mut codes);
        codec.read_k(kv.coder.as_deref(), place, &codes, side, &mut values);
        k_out.copy_from_slice(bytemuck::cast_slice(&values));
        side
    } else {
        codec.encode_k(k, k_out)
    };
    let v_side = if codec.packs_values() {
        let (mut codes, mut values) = (packed(layout.slot.v_bytes), Vec::new());
        let side = codec.encode_v(v, &mut codes);
        let values = unpacked(&mut values, v_out.len());
        unpack_v(kv, place, &codes, values);
        v_out.copy_from_slice(values);
        side
    } else {
        codec.encode_v(v, v_out)
    };
    (k_side, v_side)
}

/// Unpacks a row of V into the units that loops load.
pub(super) fn unpack_v(kv: &KvTables<Cpu>, place: Place, bytes: &[u8], out: &mut [u8]) {
    match &kv.coder {
        Some(coder) => coder.read_v(place, bytes, bytemuck::cast_slice_mut(out)),
        None => unpack_codes(bytes, out),
    }
}

/// Bytes of a buffer that is aligned for f32.
pub(super) fn unpacked(buffer: &mut Vec<f32>, bytes: usize) -> &mut [u8] {
    buffer.resize(bytes.div_ceil(size_of::<f32>()), 0.0);
    &mut bytemuck::cast_slice_mut(buffer)[..bytes]
}

/// Splits the spans into groups.
pub(super) fn fill(plan: &mut Plan, kv: &KvTables<Cpu>, g: &KvGeometry, layer: usize, spans: &[Span]) {
    let q_heads = g.n_q_heads / g.n_kv_heads;
    plan.groups.clear();
    plan.spans.clear();
    plan.orders.clear();
    for (s, span) in spans.iter().enumerate() {
        let lanes = || (0..g.n_kv_heads).map(|head| g.row(layer, span.seq, head));
        plan.orders.extend(lanes().map(|lane| order_with_far(kv, g, lane)));
        let keys = lanes().map(|lane| stored(kv, g, lane)).max().unwrap_or(0) + span.len;
        let rows = (GROUP_SCORES / keys.max(1)).min(BLOCK_ROWS);
        let tokens = if span.len <= FEW_TOKENS { span.len.max(1) } else { (rows / q_heads).max(1) };
        plan.spans.push((plan.groups.len(), tokens));
        for head in 0..g.n_kv_heads {
            plan.groups.extend((0..span.len).step_by(tokens).map(|first| {
                let tokens = first..span.len.min(first + tokens);
                Group { span: s, head, tokens, chosen: Chosen::default() }
            }));
        }
    }
}
