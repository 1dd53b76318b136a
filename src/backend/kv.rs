//! Geometry and device tables of the KV cache (pages, lanes, rings, counters), and the maintenance
//! of pages between steps.

use super::memory::{Device, OutOfMemory};
use crate::codec::{Codec, Coder, SlotLayout};
use crate::policy::{Far, KvHeads, LayerLanes, Policy, SlotMeta, bf16_down, bf16_up, sums_len};
use crate::protocol::{LaneFilter, LaneState};
use std::ops::Range;
use std::sync::Arc;

/// A run of consecutive tokens of one sequence inside a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Row of the cache's sequence tables.
    pub seq: usize,
    /// First row of the step's activations.
    pub start: usize,
    pub len: usize,
}

/// Fixed properties of a KV cache.
#[derive(Clone, Copy, Debug)]
pub struct KvGeometry {
    /// Layers with attention.
    pub n_layers: usize,
    pub n_q_heads: usize,
    /// KV heads of a layer and their channels; the most of any layer where layers differ, so that
    /// what reads or writes a layer asks for [its own](Self::of_layer).
    pub n_kv_heads: usize,
    pub head_dim: usize,
    /// Heads of local layers and of the others, where they differ.
    pub heads: Option<[KvHeads; 2]>,
    /// Number of sequences in the tables.
    pub n_seqs: usize,
    /// Slots per page: of the widest heads, where layers differ.
    pub page_slots: usize,
    /// [`Pages::SAME_SLOTS`] of the backend.
    pub same_slots: bool,
    /// Entries of one lane's page table.
    pub max_pages: usize,
    pub codec: Codec,
    /// Policy of the layers that are not local.
    pub policy: Policy,
    pub local: crate::policy::LocalLayers,
    /// Whether rows that leave are kept; see [`Self::far_of`].
    pub far: Option<Far>,
    /// Layers with a recurrent state, if the model has some.
    pub delta: Option<DeltaGeometry>,
    /// Number of token ids; [`KvTables::seen`] has one bit for each.
    pub vocab: usize,
    /// Maximum rows of a step that is [committed later](super::Ops::commit).
    pub staged_rows: usize,
}

/// Sizes of the gated delta net layers, which are all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaGeometry {
    pub n_layers: usize,
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    /// Rows that the convolution mixes: the newest row and the `kernel - 1` rows before it.
    pub kernel: usize,
    /// Maps value head h to key head `h % key_heads` if true, else to
    /// `h / (value_heads / key_heads)`.
    pub tiled: bool,
}

impl DeltaGeometry {
    /// Channels of v.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of q, k and v together, the input of the convolution.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_width()
    }

    /// Key head that belongs to a value head.
    pub fn key_head(&self, value_head: usize) -> usize {
        if self.tiled { value_head % self.key_heads } else { value_head / (self.value_heads / self.key_heads) }
    }

    /// Floats per sequence and layer in [`KvTables::delta_inputs`].
    pub fn inputs_len(&self) -> usize {
        (self.kernel - 1) * self.channels()
    }

    /// Floats per sequence and layer in [`KvTables::delta_state`].
    pub fn state_len(&self) -> usize {
        self.value_width() * self.key_dim
    }

    /// Bytes per sequence, over all delta net layers.
    pub fn seq_bytes(&self) -> usize {
        self.n_layers * (self.inputs_len() + self.state_len()) * size_of::<f32>()
    }
}

/// One KV head of one layer, in any sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    pub layer: usize,
    pub head: usize,
}

impl KvGeometry {
    /// Properties of the lanes of a layer.
    pub fn layer(&self, layer: usize) -> LayerLanes {
        let usual = KvHeads { count: self.n_kv_heads, dim: self.head_dim };
        let lanes = self.local.lanes(layer, usual);
        let own = self.heads.map(|[local, global]| if lanes.decides() { global } else { local });
        LayerLanes { heads: own.unwrap_or(usual), ..lanes }
    }

    /// The geometry with the heads of a layer, and the slots of its pages. Numbers of lanes and
    /// bytes of pages are the same.
    pub fn of_layer(&self, layer: usize) -> Self {
        let KvHeads { count, dim } = self.layer(layer).heads;
        Self { n_kv_heads: count, head_dim: dim, page_slots: self.slots_of(dim), ..*self }
    }

    /// Slots of a page in lanes of that many channels: narrower heads have more, so that pages of
    /// all layers have about the same size, and one pool.
    fn slots_of(&self, dim: usize) -> usize {
        if self.same_slots {
            return self.page_slots;
        }
        let ratio = |more: usize, less: usize| 1 << (more / less.max(1)).max(1).ilog2().min(Self::MOST_NARROWER);
        if dim <= self.head_dim {
            self.page_slots * ratio(self.head_dim, dim)
        } else {
            self.page_slots / ratio(dim, self.head_dim)
        }
    }

    /// Binary logarithm of the most slots in place of one: a far page holds whole pages.
    const MOST_NARROWER: u32 = 1;

    /// The most KV heads of a layer: its lanes of a sequence in tables.
    pub fn most_heads(&self) -> usize {
        self.heads.map_or(self.n_kv_heads, |heads| heads.map(|own| own.count).into_iter().max().unwrap_or(0))
    }

    /// Lanes of one sequence in tables that have as many in each layer.
    pub fn table_lanes(&self) -> usize {
        self.n_layers * self.most_heads()
    }

    /// Properties of the lanes of each layer, in order.
    pub fn layers(&self) -> impl Iterator<Item = LayerLanes> + use<> {
        let g = *self;
        (0..g.n_layers).map(move |layer| g.layer(layer))
    }

    /// Lanes of a sequence, layer by layer.
    pub fn lanes(&self) -> impl Iterator<Item = Lane> + use<> {
        let g = *self;
        let heads = move |layer| 0..g.layer(layer).heads.count;
        (0..g.n_layers).flat_map(move |layer| heads(layer).map(move |head| Lane { layer, head }))
    }

    /// Lanes of a sequence whose tokens the policy chooses, layer by layer.
    pub fn deciding_lanes(&self) -> impl Iterator<Item = Lane> + use<> {
        let g = *self;
        self.lanes().filter(move |lane| g.layer(lane.layer).decides())
    }

    /// Lanes of a sequence whose rows are kept when they leave, layer by layer.
    pub fn far_lanes(&self) -> impl Iterator<Item = Lane> + use<> {
        let g = *self;
        self.lanes().filter(move |lane| g.far_of(lane.layer).is_some())
    }

    /// Number of lanes of a sequence.
    pub fn seq_lanes(&self) -> usize {
        self.layers().map(|layer| layer.heads.count).sum()
    }

    /// Slots of one lane of a layer in a dense cache of `n` tokens.
    pub fn dense_slots(&self, layer: usize, n: usize) -> usize {
        self.layer(layer).dense_slots(n)
    }

    /// Pages of a dense cache of `n` tokens.
    pub fn dense_pages(&self, n: usize) -> usize {
        self.lanes().map(|lane| self.dense_slots(lane.layer, n).div_ceil(self.of_layer(lane.layer).page_slots)).sum()
    }

    /// Lanes of one layer in the tables. Lane `seq * n_kv_heads + head` is one KV head of one
    /// sequence, with the most heads of a layer; lanes that a layer lacks stay empty.
    pub fn n_lanes(&self) -> usize {
        self.n_seqs * self.most_heads()
    }

    pub fn lane(&self, seq: usize, head: usize) -> usize {
        seq * self.most_heads() + head
    }

    /// Index of a lane in `[n_layers, n_lanes]`.
    pub fn row(&self, layer: usize, seq: usize, head: usize) -> usize {
        layer * self.n_lanes() + self.lane(seq, head)
    }

    /// Bytes of a slot: encoded K and V, their side data, and its [`SlotMeta`].
    pub fn slot_bytes(&self) -> usize {
        self.codec.slot_bytes(self.head_dim)
    }

    /// Bytes of a page, of any layer.
    pub fn page_bytes(&self) -> usize {
        let of = |dim| self.slots_of(dim) * self.codec.slot_bytes(dim) + self.bounds_bytes(dim);
        let own = of(self.head_dim);
        self.heads.map_or(own, |heads| heads.into_iter().map(|heads| of(heads.dim)).fold(own, usize::max))
    }

    /// Bytes of the key bounds of a page, for a policy that selects pages by them.
    fn bounds_bytes(&self, dim: usize) -> usize {
        self.policy.quest().map_or(0, |_| 2 * dim * size_of::<u16>())
    }

    /// The policy of a layer.
    pub fn policy_of(&self, layer: usize) -> Policy {
        self.layer(layer).policy(self.policy)
    }

    /// How rows that leave are kept; `None` if they are in no layer.
    pub fn kept_far(&self) -> Option<Far> {
        (0..self.n_layers).find_map(|layer| self.far_of(layer))
    }

    /// The geometry of the layers that keep rows which leave: they have the same heads.
    pub fn of_far(&self) -> Self {
        let layer = (0..self.n_layers).find(|&layer| self.far_of(layer).is_some());
        layer.map_or(*self, |layer| self.of_layer(layer))
    }

    /// Whether rows that leave are kept in some layers.
    pub fn keeps_far(&self) -> bool {
        self.kept_far().is_some()
    }

    /// How rows that leave the lanes of a layer are kept; `None`: they are gone. Local layers and
    /// policies that cannot do so keep none.
    pub fn far_of(&self, layer: usize) -> Option<Far> {
        self.far.filter(|_| self.policy.keeps_far() && self.layer(layer).decides())
    }

    /// Whether the tokens of a layer evict others. In local layers they always do, elsewhere if
    /// eviction is `on`.
    pub fn evicts(&self, layer: usize, on: bool) -> bool {
        self.layer(layer).evicts(on)
    }

    /// The policies of all layers.
    fn policies(&self) -> impl Iterator<Item = Policy> + use<> {
        self.local.policies(self.policy)
    }

    /// The policies of all layers as text, by which saved caches are told apart.
    pub fn policies_text(&self) -> String {
        self.local.describe(self.policy)
    }

    /// Entries of each lane in [`KvTables::ring`]: the maximum over the policies.
    pub fn ring_len(&self) -> usize {
        self.policies().map(|policy| policy.ring_len()).max().unwrap_or(0)
    }

    /// Maximum of [`Policy::most_written`] over the policies.
    pub fn most_written(&self, n: usize, owns_newest: bool) -> usize {
        self.policies().map(|policy| policy.most_written(n, owns_newest)).max().unwrap_or(0)
    }

    /// Scores per lane; 0 if the policy has none.
    pub fn score_slots(&self) -> usize {
        self.policy.scored().map_or(0, |_| self.max_pages * self.page_slots)
    }

    /// Floats per lane in [`KvTables::sums`]; 0 if the policy does not merge tokens.
    pub fn sums_len(&self) -> usize {
        self.policy.merging().map_or(0, |_| sums_len(self.head_dim))
    }

    /// Words of a sequence's row in [`KvTables::seen`].
    pub fn seen_words(&self) -> usize {
        self.vocab.div_ceil(u32::BITS as usize)
    }

    pub fn page(&self) -> PageLayout {
        PageLayout::new(self)
    }
}

/// Byte offsets inside a page. Row r of a page is the slot r of that page.
///
/// ```text
/// | K row 0..P | V row 0..P | side data of K rows | side data of V rows | P x SlotMeta | bounds |
/// 0            v_at         k_side_at             v_side_at             meta_at        bounds_at
/// ```
///
/// Only [`Quest`](crate::policy::Quest) stores bounds: the minimum and then the maximum of each
/// channel over the page's keys, `2 x head_dim` bf16 values rounded outward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    pub page_slots: usize,
    pub slot: SlotLayout,
    pub v_at: usize,
    pub k_side_at: usize,
    pub v_side_at: usize,
    pub meta_at: usize,
    pub bounds_at: usize,
    /// Bytes of what is in a page. A page is larger in layers with fewer of them.
    pub end: usize,
}

impl PageLayout {
    fn new(g: &KvGeometry) -> Self {
        let (p, slot) = (g.page_slots, g.codec.slot(g.head_dim));
        let v_at = p * slot.k_bytes;
        let k_side_at = v_at + p * slot.v_bytes;
        let v_side_at = k_side_at + p * slot.side_bytes;
        let meta_at = v_side_at + p * slot.side_bytes;
        let bounds_at = meta_at + p * size_of::<SlotMeta>();
        let end = bounds_at + g.bounds_bytes(g.head_dim);
        Self { page_slots: p, slot, v_at, k_side_at, v_side_at, meta_at, bounds_at, end }
    }

    /// Byte range of row `row`'s K.
    pub fn k(&self, row: usize) -> Range<usize> {
        row * self.slot.k_bytes..(row + 1) * self.slot.k_bytes
    }

    pub fn v(&self, row: usize) -> Range<usize> {
        let at = self.v_at + row * self.slot.v_bytes;
        at..at + self.slot.v_bytes
    }

    /// Byte range of K of all rows.
    pub fn k_rows(&self) -> Range<usize> {
        0..self.v_at
    }

    pub fn v_rows(&self) -> Range<usize> {
        self.v_at..self.k_side_at
    }

    /// Whether rows have side data.
    pub fn has_sides(&self) -> bool {
        self.slot.side_bytes > 0
    }

    /// Side data of a row's K and V; 0 if the codec has none.
    pub fn sides(&self, page: &[u8], row: usize) -> [u32; 2] {
        [self.k_side_at, self.v_side_at].map(|at| if self.has_sides() { read_word(page, at, row) } else { 0 })
    }

    pub fn set_sides(&self, page: &mut [u8], row: usize, sides: [u32; 2]) {
        if self.has_sides() {
            for (at, side) in [self.k_side_at, self.v_side_at].into_iter().zip(sides) {
                page[at + 4 * row..][..4].copy_from_slice(bytemuck::bytes_of(&side));
            }
        }
    }

    /// Side data of all rows, for K and V. The page must be aligned to 4 bytes.
    pub fn all_sides<'a>(&self, page: &'a [u8]) -> [&'a [u32]; 2] {
        [self.k_side_at, self.v_side_at].map(|at| bytemuck::cast_slice(&page[at..at + 4 * self.page_slots]))
    }

    pub fn meta(&self, page: &[u8], row: usize) -> SlotMeta {
        SlotMeta(read_word(page, self.meta_at, row))
    }

    pub fn set_meta(&self, page: &mut [u8], row: usize, meta: SlotMeta) {
        page[self.meta_at + 4 * row..][..4].copy_from_slice(bytemuck::bytes_of(&meta.0));
    }

    /// Bounds of the page's keys: minimum and maximum of each channel, in bf16.
    pub fn bounds<'a>(&self, page: &'a [u8]) -> [&'a [u16]; 2] {
        let bounds: &[u16] = bytemuck::cast_slice(&page[self.bounds_at..self.end]);
        bounds.split_at(bounds.len() / 2).into()
    }

    /// Writes the bounds of a page whose keys lie between `low` and `high`.
    pub fn set_bounds(&self, page: &mut [u8], low: &[f32], high: &[f32]) {
        let bounds: &mut [u16] = bytemuck::cast_slice_mut(&mut page[self.bounds_at..self.end]);
        let (lows, highs) = bounds.split_at_mut(low.len());
        lows.iter_mut().zip(low).for_each(|(bound, &x)| *bound = bf16_down(x));
        highs.iter_mut().zip(high).for_each(|(bound, &x)| *bound = bf16_up(x));
    }

    /// Zeroes the rows of a page from `row` on, and what is behind its end.
    pub fn clear_rows(&self, page: &mut [u8], row: usize) {
        page[self.end..].fill(0);
        let starts = [0, self.v_at, self.k_side_at, self.v_side_at, self.meta_at, self.bounds_at];
        for parts in starts.windows(2) {
            let row_bytes = (parts[1] - parts[0]) / self.page_slots;
            page[parts[0] + row * row_bytes..parts[1]].fill(0);
        }
    }
}

/// Reads word `row` of the array of words at byte offset `at`.
fn read_word<T: bytemuck::AnyBitPattern>(page: &[u8], at: usize, row: usize) -> T {
    bytemuck::pod_read_unaligned(&page[at + 4 * row..][..4])
}

/// The cache in device memory: pages, and the lanes that hold them. Only backend ops change it.
///
/// ```text
/// page   see PageLayout
/// table  lane -> page 0, page 1, ...        slot s = page s / P, row s % P
/// ring   token n of the newest W + 1 -> its slot, at n % (W + 1)
/// ```
pub struct KvTables<B: Pages> {
    pub geometry: KvGeometry,
    /// Codes rows with data of the model, if the codec needs some. Host backends only.
    pub coder: Option<Arc<dyn Coder>>,
    pub pool: B::Pool,
    /// `[n_layers, n_lanes, max_pages]` page numbers; -1 is an empty entry.
    pub page_table: B::Buf<i32>,
    /// `[n_layers, n_lanes]` stored slots.
    pub live: B::Buf<i32>,
    /// `[n_layers, n_lanes, ring_len]` slots of the newest tokens.
    pub ring: B::Buf<i32>,
    /// `[n_layers, n_lanes, score_slots]` scores of the stored slots: [`crate::policy::Scored`].
    /// They are kept outside the pages because they change at every step: a fork would have to copy
    /// every shared page.
    pub score: B::Buf<f32>,
    /// `[n_layers, n_lanes, sums_len]` sums of each lane's newest slot: [`crate::policy::merge`].
    /// Undefined for an empty lane.
    pub sums: B::Buf<f32>,
    /// `[delta layers, n_seqs, kernel - 1, channels]` newest inputs of the convolution, oldest
    /// first; and `[delta layers, n_seqs, value_heads, key_dim, value_dim]` state:
    /// [`Ops::delta_net`](super::Ops::delta_net). A sequence of length 0 is read as zeros, whatever
    /// is stored here: [`Pages::release`] clears nothing.
    pub delta_inputs: B::Buf<f32>,
    pub delta_state: B::Buf<f32>,
    /// `[n_seqs]` tokens fed before the running step.
    pub seq_len: B::Buf<i32>,
    /// `[n_seqs, seen_words]` bit sets of the tokens fed, for the repetition penalty.
    pub seen: B::Buf<u32>,
    /// `[n_seqs]` 1 if eviction is on.
    pub eviction: B::Buf<i32>,
    /// `[n_seqs]` threshold that a decision must exceed to mark: [`crate::policy::Dms::dial`].
    pub dial: B::Buf<f32>,
    /// `[n_tokens]` 1 if the token that a row's decision marks is pinned: the decision is then
    /// minus infinity.
    pub pinned: B::Buf<i32>,
    /// `[n_tokens, n_kv_heads]` slots of the step's tokens in one layer, which are stored after all
    /// are placed. -1 if a later token of the same step takes the slot. Unused if each token is
    /// stored as soon as it is placed.
    pub slots: B::Buf<i32>,
    /// `[n_seqs]` keys attended to in all lanes, summed over the decode steps.
    pub reads: B::Buf<u64>,
    /// `[n_seqs]` maximum number of live slots of all lanes after any step.
    pub peak: B::Buf<u32>,
}

impl<B: Pages> KvTables<B> {
    /// Allocates empty tables for sequences of up to `context` tokens and for steps of up to
    /// `max_step` tokens in total.
    pub fn new(b: &B, mut geometry: KvGeometry, context: usize, max_step: usize) -> Result<Self, OutOfMemory> {
        /// Number of entries written at once.
        const FILL: usize = 1 << 20;
        (geometry.max_pages, geometry.same_slots) = (context.div_ceil(geometry.page_slots), B::SAME_SLOTS);
        let g = geometry;
        let lanes = g.n_layers * g.n_lanes();
        let delta = |len: fn(&DeltaGeometry) -> usize| g.delta.map_or(0, |d| d.n_layers * g.n_seqs * len(&d));
        // Two sequences that write to a shared page may both copy it. One of the copies is free
        // again after the step.
        let copies = if g.n_seqs > 1 { g.most_written(max_step, false).min(g.max_pages) } else { 0 };
        let mut page_table = b.alloc(lanes * g.max_pages)?;
        let (entries, none) = (lanes * g.max_pages, vec![-1; (lanes * g.max_pages).min(FILL)]);
        for at in (0..entries).step_by(FILL) {
            b.write(&mut page_table, at, &none[..FILL.min(entries - at)]);
        }
        Ok(Self {
            geometry,
            coder: None,
            pool: b.pool(&g, lanes * (g.max_pages + copies), max_step)?,
            page_table,
            live: b.alloc(lanes)?,
            ring: b.alloc(lanes * g.ring_len())?,
            score: b.alloc(lanes * g.score_slots())?,
            sums: b.alloc(lanes * g.sums_len())?,
            delta_inputs: b.alloc(delta(DeltaGeometry::inputs_len))?,
            delta_state: b.alloc(delta(DeltaGeometry::state_len))?,
            seq_len: b.alloc(g.n_seqs)?,
            seen: b.alloc(g.n_seqs * g.seen_words())?,
            eviction: b.alloc(g.n_seqs)?,
            dial: b.alloc(g.n_seqs)?,
            pinned: b.alloc(max_step)?,
            slots: b.alloc(max_step * g.n_kv_heads)?,
            reads: b.alloc(g.n_seqs)?,
            peak: b.alloc(g.n_seqs)?,
        })
    }
}

/// Operations on the cache's pages between steps.
pub trait Pages: Device {
    /// The pages, their reference counts and the free list.
    type Pool;

    /// Whether pages have as many slots in all layers, so that those of narrower heads are in part
    /// unused. Else narrower heads have more.
    const SAME_SLOTS: bool = false;

    /// Creates an empty pool that may grow to `max_pages`, for steps of up to `max_step` rows.
    fn pool(&self, geometry: &KvGeometry, max_pages: usize, max_step: usize) -> Result<Self::Pool, OutOfMemory>;
    /// Grows the pool until `pages` pages are free, so that a step can allocate them.
    fn reserve(&self, kv: &mut KvTables<Self>, pages: usize) -> Result<(), OutOfMemory>;
    /// Returns unused memory to the system. A backend may move pages to do so.
    fn trim(&self, kv: &mut KvTables<Self>);
    fn pool_stats(&self, kv: &KvTables<Self>) -> PoolStats;
    /// Makes the empty sequence `to` a copy of `from`. It shares all pages and copies everything
    /// else that the tables hold.
    fn fork(&self, kv: &mut KvTables<Self>, from: usize, to: usize);
    /// Empties a sequence and frees its pages.
    fn release(&self, kv: &mut KvTables<Self>, seq: usize);
    /// Drops the slots outside the window that are marked or whose strength is at least
    /// `threshold`, and closes the gaps: [`Policy::drops`]. A policy with scores drops the slots
    /// over its budget instead: [`crate::policy::Scored::keep`].
    fn compact(&self, kv: &mut KvTables<Self>, seq: usize, threshold: usize);
    /// Sets the strength and the mark of the stored tokens at these positions.
    fn rate_slots(&self, kv: &mut KvTables<Self>, seq: usize, positions: Range<usize>, strength: usize, marked: bool);
    /// Counts the lanes that store each of the first `n` positions of a sequence, in one pass over
    /// the metadata of its slots. Also returns the state of position `at` in every lane. Waits for
    /// the device and is never part of a step.
    fn presence(&self, kv: &KvTables<Self>, seq: usize, n: usize, filter: LaneFilter, at: usize) -> PresenceCounts;
    /// Copies pages to the host, `[pages.len(), page_bytes]`, after all work issued so far.
    fn export_pages(&self, kv: &mut KvTables<Self>, pages: &[i32], bytes: &mut [u8]);
    /// Takes a free page for each `page_bytes` of `bytes`, with a reference count of 1, and fills
    /// it: the inverse of [`Self::export_pages`]. The caller reserves the pages before and enters
    /// them in the page tables.
    fn import_pages(&self, kv: &mut KvTables<Self>, bytes: &[u8]) -> Vec<i32>;
    /// Metadata of a lane's slots, in slot order.
    fn slot_metas(&self, kv: &KvTables<Self>, layer: usize, seq: usize, head: usize) -> Vec<SlotMeta>;
}

/// Number of lanes that store each position of a sequence: the result of [`Pages::presence`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PresenceCounts {
    /// Selected lanes that store each position.
    pub kept: Vec<u16>,
    /// Selected lanes that store the position and have marked it.
    pub marked: Vec<u16>,
    /// `[n_layers * n_kv_heads]` state of one position in each lane.
    pub of_position: Vec<LaneState>,
}

impl PresenceCounts {
    /// Unpacks `n` words of counts (`marked << 16 | kept`) and one word per lane (0 dropped, 1
    /// kept, 2 marked).
    pub fn from_words(words: &[u32], n: usize) -> Self {
        let (counts, lanes) = words.split_at(n);
        let state = |&word: &u32| match word {
            0 => LaneState::Dropped,
            1 => LaneState::Kept,
            _ => LaneState::Marked,
        };
        Self {
            kept: counts.iter().map(|&word| word as u16).collect(),
            marked: counts.iter().map(|&word| (word >> 16) as u16).collect(),
            of_position: lanes.iter().map(state).collect(),
        }
    }
}

/// Page counts of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Pages that at least one table holds.
    pub used_pages: usize,
    /// Pages backed by memory from the system.
    pub mapped_pages: usize,
}
