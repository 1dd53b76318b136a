//! The cache's ops: what the kernels see of the tables, and how each op is launched.

use super::super::{KvGeometry, KvTables, QkvRope, Span};
use super::abi::Arg::{self, F32, I32, Ptr, U64};
use super::abi::View;
use super::driver::Driver;
use super::kernels::Kernel;
use super::memory::{Acts, Buf};
use super::{BLOCK, Cuda, MAX_GROUP, MAX_HEAD_DIM};
use crate::codec::Codec;
use crate::policy::{Shift, SlotMeta};

/// Blocks of `qkv_rope` that keep a multiprocessor busy.
const BLOCKS_OF_ROWS: usize = 4;
/// Most parts of the keys of one tile.
const MOST_PARTS: usize = 32;
/// Rows times query heads of a group in a tile: `LINES` in `attend_tiles.cu`.
pub(super) const TILE_LINES: usize = 128;

fn view(kv: &KvTables<Cuda>) -> View {
    let (g, page, rule) = (&kv.geometry, kv.geometry.page(), kv.geometry.policy.rule());
    let scales = |at: usize| if page.has_scale() { at as i32 } else { 0 };
    View {
        pages: kv.pool.base(),
        table: kv.page_table.ptr(),
        live: kv.live.ptr(),
        ring: kv.ring.ptr(),
        seq_len: kv.seq_len.ptr(),
        eviction: kv.eviction.ptr(),
        slots: kv.slots.ptr(),
        refs: kv.pool.refs.ptr(),
        free_list: kv.pool.free_list.ptr(),
        returned: kv.pool.returned.ptr(),
        counts: kv.pool.counts.ptr(),
        staged: kv.pool.staged.ptr(),
        reads: kv.reads.ptr(),
        peak: kv.peak.ptr(),
        stride: kv.pool.stride as u64,
        n_layers: g.n_layers as i32,
        n_q_heads: g.n_q_heads as i32,
        n_kv_heads: g.n_kv_heads as i32,
        head_dim: g.head_dim as i32,
        n_seqs: g.n_seqs as i32,
        max_pages: g.max_pages as i32,
        k_bytes: page.slot.k_bytes as i32,
        v_bytes: page.slot.v_bytes as i32,
        v_at: page.v_at as i32,
        k_scales_at: scales(page.k_side_at),
        v_scales_at: scales(page.v_side_at),
        meta_at: page.meta_at as i32,
        evicts: rule.is_some() as i32,
        window: rule.map_or(0, |r| r.window as i32),
        previous: rule.is_some_and(|r| r.shift == Shift::Previous) as i32,
        sinks: rule.map_or(0, |r| r.sinks as i32),
    }
}

/// The instances of the kernels that depend on the codec.
struct Instances {
    qkv_rope: Kernel,
    attend: Kernel,
    attend_tiles: Kernel,
    take: Kernel,
}

/// The instances for a geometry: one row of the table a codec. f32 is refused where the device is chosen.
fn instances(g: &KvGeometry) -> Instances {
    use Kernel::*;
    let group = g.n_q_heads / g.n_kv_heads;
    assert!(group <= MAX_GROUP, "{group} query heads per KV head; the CUDA backend supports {MAX_GROUP}");
    assert!(g.head_dim <= MAX_HEAD_DIM, "heads of {} channels; the CUDA backend supports {MAX_HEAD_DIM}", g.head_dim);
    let wide = (padded(g.head_dim) == MAX_HEAD_DIM) as usize;
    let (qkv_rope, attend, attend_tiles, take) = match g.codec {
        Codec::Bf16 => (QkvRopeBf16, [Attend64Bf16, Attend128Bf16], [AttendTiles64Bf16, AttendTiles128Bf16], TakeBf16),
        Codec::Fp8 => (QkvRopeFp8, [Attend64Fp8, Attend128Fp8], [AttendTiles64Fp8, AttendTiles128Fp8], TakeFp8),
        Codec::Int8 => (QkvRopeInt8, [Attend64Int8, Attend128Int8], [AttendTiles64Int8, AttendTiles128Int8], TakeInt8),
        Codec::F32 => panic!("the CUDA backend does not store K and V as f32"),
    };
    Instances { qkv_rope, attend: attend[wide], attend_tiles: attend_tiles[wide], take }
}

/// Threads of a block of `attend`.
const SINGLE_THREADS: usize = 256;

/// Blocks of attention for single tokens that a multiprocessor runs side by side.
pub(super) fn attend_blocks(driver: &Driver, g: &KvGeometry) -> usize {
    driver.blocks_per_sm(instances(g).attend, SINGLE_THREADS)
}

/// Channels that an instance of attention has room for.
pub(super) fn padded(head_dim: usize) -> usize {
    if head_dim <= 64 { 64 } else { MAX_HEAD_DIM }
}

/// Fused attention of a step of single tokens: they attend to what is stored, then enter the cache.
#[allow(clippy::too_many_arguments)]
pub(super) fn decode(
    cuda: &Cuda,
    out: &mut Acts,
    qkv: &mut Acts,
    decisions: &mut Buf<f32>,
    kv: &mut KvTables<Cuda>,
    layer: usize,
    spans: &[Span],
    rope: &QkvRope<'_, Cuda>,
) {
    let (shape, view) = (cuda.send(spans), view(kv));
    out.holds(shape.n_rows);
    let (g, n, pool) = (&kv.geometry, shape.n_spans, &kv.pool);
    let found = [Ptr(pool.partials.ptr()), Ptr(pool.shares.ptr()), Ptr(qkv.ptr()), Ptr(decisions.ptr())];
    let of_layer = [Arg::of(&view), I32(layer as i32), Ptr(shape.spans)];
    let (turn, scale) = (turn(rope), [score_scale(g)]);
    // The card divides what its blocks have to do by the slots that live.
    let blocks = (pool.single_blocks / n).max(g.n_kv_heads);
    assert!(blocks * n <= pool.max_blocks * TILE_LINES / MAX_GROUP, "{n} sequences have no room for their parts");
    let kernels = instances(g);
    let args = [&found[..], &of_layer, &turn, &scale].concat();
    cuda.driver.launch(kernels.attend, [blocks, n, 1], SINGLE_THREADS, &args);
    let out = [Ptr(out.ptr()), I32(out.bf16 as i32)];
    let args = [&out[..], &found, &of_layer, &turn, &scale].concat();
    cuda.driver.launch(kernels.take, [g.n_kv_heads, n, 1], take_threads(g), &args);
}

/// [`Backend::qkv_rope`](super::Backend::qkv_rope), and codes of K and V to the step's staged pages.
pub(super) fn qkv_rope(
    cuda: &Cuda,
    qkv: &mut Acts,
    decisions: &mut Buf<f32>,
    kv: &mut KvTables<Cuda>,
    spans: &[Span],
    rope: &QkvRope<'_, Cuda>,
) {
    let (g, shape, view, driver) = (&kv.geometry, cuda.send(spans), view(kv), &cuda.driver);
    let rows = [Ptr(qkv.ptr()), Ptr(decisions.ptr()), Arg::of(&view)];
    let spans_of_rows = [Ptr(shape.spans), Ptr(shape.span_of_row)];
    // Heads share a row's angles, where there are rows enough.
    let enough = (driver.sm_count * BLOCKS_OF_ROWS).div_ceil(shape.n_rows);
    let per_layer = rope.borrowed.is_some_and(|a| a.per_layer);
    let blocks = if per_layer { 1 } else { enough.clamp(1, g.n_kv_heads) };
    let args = [&rows[..], &spans_of_rows, &turn(rope)].concat();
    driver.launch(instances(g).qkv_rope, [blocks, shape.n_rows, 1], 32 * (g.n_q_heads / g.n_kv_heads + 2), &args);
}

/// Attention of chunks in tiles of rows; single tokens are tiles of one row.
pub(super) fn attend(
    cuda: &Cuda,
    out: &mut Acts,
    qkv: &Acts,
    decisions: &Buf<f32>,
    kv: &mut KvTables<Cuda>,
    layer: usize,
    spans: &[Span],
) {
    let (g, shape, view, pool) = (&kv.geometry, cuda.send(spans), view(kv), &kv.pool);
    out.holds(shape.n_rows);
    let tile_rows = TILE_LINES / (g.n_q_heads / g.n_kv_heads);
    let n_tiles: usize = spans.iter().map(|s| s.len.div_ceil(tile_rows)).sum();
    // Few rows: enough blocks for the whole card by dividing the keys.
    let parts = (pool.max_blocks / (n_tiles * g.n_kv_heads)).clamp(1, MOST_PARTS);
    let args = [
        Ptr(out.ptr()),
        I32(out.bf16 as i32),
        Ptr(pool.partials.ptr()),
        Ptr(pool.arrivals.ptr()),
        Ptr(qkv.ptr()),
        Ptr(decisions.ptr()),
        Arg::of(&view),
        I32(layer as i32),
        Ptr(shape.spans),
        score_scale(g),
    ];
    cuda.driver.launch(instances(g).attend_tiles, [parts, g.n_kv_heads, n_tiles], 128, &args);
}

pub(super) fn place(cuda: &Cuda, kv: &mut KvTables<Cuda>, decisions: &Buf<f32>, layer: usize, spans: &[Span]) {
    let (shape, view) = (cuda.send(spans), view(kv));
    let args = [Arg::of(&view), Ptr(decisions.ptr()), I32(layer as i32), Ptr(shape.spans)];
    cuda.driver.launch(Kernel::Place, [kv.geometry.n_kv_heads, shape.n_spans, 1], BLOCK, &args);
}

/// Copies the codes that [`qkv_rope`] staged into their slots.
pub(super) fn store(cuda: &Cuda, kv: &mut KvTables<Cuda>, layer: usize, spans: &[Span]) {
    let (shape, view) = (cuda.send(spans), view(kv));
    let n_rows = I32(shape.n_rows as i32);
    let args = [Arg::of(&view), I32(layer as i32), Ptr(shape.spans), Ptr(shape.span_of_row), n_rows];
    cuda.driver.launch(Kernel::Store, [(shape.n_rows * kv.geometry.n_kv_heads).div_ceil(8), 1, 1], 256, &args);
}

/// `Turn` in `heads.cuh`, field by field.
fn turn(rope: &QkvRope<'_, Cuda>) -> [Arg<'static>; 9] {
    let (q_norm, k_norm) = rope.qk_norm.map_or((0, 0), |[q, k]| (q.ptr(), k.ptr()));
    let (scale, offset, per_layer) = rope.borrowed.map_or((0.0, 0.0, false), |a| (a.scale, a.offset, a.per_layer));
    [
        Ptr(q_norm),
        Ptr(k_norm),
        Ptr(rope.inv_freq.ptr()),
        F32(rope.rms_eps),
        F32(rope.rope_scale),
        I32(rope.borrowed.is_some() as i32),
        F32(scale),
        F32(offset),
        I32(per_layer as i32),
    ]
}

fn score_scale(g: &KvGeometry) -> Arg<'static> {
    F32(1.0 / (g.head_dim as f32).sqrt())
}

/// Of a block of `take`: a warp for each query head of a group, for K and for V, but at least those that put parts
/// together; and one to find the slot.
fn take_threads(g: &KvGeometry) -> usize {
    32 * ((g.n_q_heads / g.n_kv_heads + 2).max(8) + 1)
}

pub(super) fn advance(cuda: &Cuda, kv: &mut KvTables<Cuda>, spans: &[Span]) {
    let (shape, view) = (cuda.send(spans), view(kv));
    let args = [Arg::of(&view), Ptr(shape.spans), I32(shape.n_spans as i32)];
    cuda.driver.launch(Kernel::Advance, [shape.n_spans.div_ceil(BLOCK / 32), 1, 1], BLOCK, &args);
}

/// A kernel over all lanes of a sequence.
fn over_lanes(cuda: &Cuda, kv: &KvTables<Cuda>, kernel: Kernel, block: usize, numbers: &[usize]) {
    let view = view(kv);
    let mut args = vec![Arg::of(&view)];
    args.extend(numbers.iter().map(|&n| I32(n as i32)));
    cuda.driver.launch(kernel, [kv.geometry.n_kv_heads, kv.geometry.n_layers, 1], block, &args);
}

fn settle(cuda: &Cuda, kv: &KvTables<Cuda>) {
    cuda.driver.launch(Kernel::Settle, [1, 1, 1], BLOCK, &[Arg::of(&view(kv))]);
}

pub(super) fn fork(cuda: &Cuda, kv: &mut KvTables<Cuda>, from: usize, to: usize) {
    let mut len = [0];
    kv.seq_len.read(to, &mut len);
    assert_eq!(len[0], 0, "fork into a sequence that is not empty");
    over_lanes(cuda, kv, Kernel::Fork, BLOCK, &[from, to]);
}

pub(super) fn release(cuda: &Cuda, kv: &mut KvTables<Cuda>, seq: usize) {
    over_lanes(cuda, kv, Kernel::Release, BLOCK, &[seq]);
    settle(cuda, kv);
}

pub(super) fn compact(cuda: &Cuda, kv: &mut KvTables<Cuda>, seq: usize) {
    if kv.geometry.policy.rule().is_some() {
        over_lanes(cuda, kv, Kernel::Compact, 32, &[seq]);
        settle(cuda, kv);
    }
}

/// Moves pages down where that empties the last steps of the pool, which are then unmapped.
pub(super) fn trim(cuda: &Cuda, kv: &mut KvTables<Cuda>) {
    if let Some((first, n)) = kv.pool.moves() {
        let (view, moved) = (view(kv), kv.pool.returned.ptr());
        cuda.driver.launch(Kernel::MovePages, [n, 1, 1], BLOCK, &[Arg::of(&view), Ptr(moved), I32(first as i32)]);
        let entries = kv.page_table.len();
        let args = [Arg::of(&view), Ptr(moved), I32(first as i32), I32(n as i32), U64(entries as u64)];
        cuda.driver.launch(Kernel::RenamePages, [entries.div_ceil(BLOCK), 1, 1], BLOCK, &args);
    }
    kv.pool.trim();
}

pub(super) fn slot_metas(cuda: &Cuda, kv: &KvTables<Cuda>, layer: usize, seq: usize, head: usize) -> Vec<SlotMeta> {
    let mut live = [0];
    kv.live.read(kv.geometry.row(layer, seq, head), &mut live);
    let mut metas = vec![0; live[0] as usize];
    if metas.is_empty() {
        return Vec::new();
    }
    let (view, out) = (view(kv), &kv.pool.metas);
    let args = [Ptr(out.ptr()), Arg::of(&view), I32(layer as i32), I32(seq as i32), I32(head as i32)];
    cuda.driver.launch(Kernel::SlotMetas, [metas.len().div_ceil(BLOCK), 1, 1], BLOCK, &args);
    out.read(0, &mut metas);
    metas.into_iter().map(SlotMeta).collect()
}
