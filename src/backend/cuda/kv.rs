//! The cache's ops: what the kernels see of the tables, and how each op is launched.

use super::super::{KvTables, Span};
use super::driver::Arg::{F32, I32, Kv, Ptr, U64};
use super::kernels::Kernel;
use super::memory::{Acts, Buf};
use super::{BLOCK, Cuda};
use crate::codec::Codec;
use crate::policy::{Policy, Shift, SlotMeta};

/// Mirrors `Kv` in `kv.cuh` field by field.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct View {
    pages: u64,
    table: u64,
    live: u64,
    ring: u64,
    seq_len: u64,
    eviction: u64,
    slots: u64,
    refs: u64,
    free_list: u64,
    returned: u64,
    counts: u64,
    stride: u64,
    n_layers: i32,
    n_q_heads: i32,
    n_kv_heads: i32,
    head_dim: i32,
    n_seqs: i32,
    page_slots: i32,
    max_pages: i32,
    codec: i32,
    policy: i32,
    window: i32,
    shift: i32,
    unused: i32,
}

/// Bytes of the view as a kernel's parameter.
pub const VIEW_BYTES: usize = std::mem::size_of::<View>();

/// Most splits of one row's keys.
const MAX_SPLITS: usize = 64;
/// From so many rows to a span on, attention runs on tensor cores, by tiles.
const TILE_ROWS: usize = 16;
/// Rows times query heads of a group in a tile: `LINES` in `attend_tiles.cu`.
const TILE_LINES: usize = 64;

/// As `Codec` in `kv.cuh` counts. f32 is refused where the device is chosen.
pub(super) fn codec_number(codec: Codec) -> i32 {
    match codec {
        Codec::Bf16 => 0,
        Codec::Fp8 => 1,
        Codec::F32 => panic!("the CUDA backend stores K and V as bf16 or fp8"),
    }
}

fn view(kv: &KvTables<Cuda>) -> View {
    let g = &kv.geometry;
    let (policy, window, shift) = match g.policy {
        Policy::Dense => (0, 0, 0),
        Policy::Dms(dms) => (1, dms.window as i32, (dms.shift == Shift::Previous) as i32),
    };
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
        stride: kv.pool.stride as u64,
        n_layers: g.n_layers as i32,
        n_q_heads: g.n_q_heads as i32,
        n_kv_heads: g.n_kv_heads as i32,
        head_dim: g.head_dim as i32,
        n_seqs: g.n_seqs as i32,
        page_slots: g.page_slots as i32,
        max_pages: g.max_pages as i32,
        codec: codec_number(g.codec),
        policy,
        window,
        shift,
        unused: 0,
    }
}

/// The instance of `attend` for a head size and a group.
fn attend_kernel(head_dim: usize, group: usize) -> Kernel {
    use Kernel::*;
    let by_group = match head_dim {
        0..=32 => [Attend11, Attend12, Attend14, Attend18],
        33..=64 => [Attend21, Attend22, Attend24, Attend28],
        65..=128 => [Attend41, Attend42, Attend44, Attend48],
        _ => panic!("heads of {head_dim} channels are more than the CUDA backend takes"),
    };
    match group {
        1 => by_group[0],
        2 => by_group[1],
        3..=4 => by_group[2],
        5..=8 => by_group[3],
        _ => panic!("{group} query heads to a KV head are more than the CUDA backend takes"),
    }
}

/// The instance of `attend_tiles` for a head size, where there is one.
fn tiles_kernel(head_dim: usize) -> Option<Kernel> {
    match head_dim {
        32 => Some(Kernel::AttendTiles32),
        64 => Some(Kernel::AttendTiles64),
        128 => Some(Kernel::AttendTiles128),
        _ => None,
    }
}

pub(super) fn attend(
    cuda: &Cuda,
    out: &mut Acts,
    qkv: &Acts,
    decisions: &Buf<f32>,
    kv: &KvTables<Cuda>,
    layer: usize,
    spans: &[Span],
) {
    let (g, shape, view) = (&kv.geometry, cuda.send(spans), view(kv));
    let (rows, d, group) = (shape.n_rows, g.head_dim, g.n_q_heads / g.n_kv_heads);
    // Few rows: enough blocks for the whole card by splitting the keys.
    let n_splits = (kv.pool.max_blocks / (rows * g.n_kv_heads).max(1)).clamp(1, MAX_SPLITS);
    out.holds(rows);
    let mut args = vec![
        Ptr(out.ptr()),
        I32(out.rounded as i32),
        Ptr(kv.pool.partials.ptr()),
        Ptr(qkv.ptr()),
        Ptr(decisions.ptr()),
        Kv(&view),
        I32(layer as i32),
        Ptr(shape.spans),
    ];
    let scale = F32(1.0 / (d as f32).sqrt());
    let tiles = tiles_kernel(d).filter(|_| rows >= TILE_ROWS * shape.n_spans);
    let (kernel, blocks) = match tiles {
        Some(kernel) => (kernel, spans.iter().map(|s| s.len.div_ceil(TILE_LINES / group)).sum()),
        None => {
            args.push(Ptr(shape.span_of_row));
            (attend_kernel(d, group), rows)
        }
    };
    args.push(scale);
    cuda.driver.launch(kernel, [n_splits, g.n_kv_heads, blocks], 128, &args);
    if n_splits > 1 {
        let args =
            [Ptr(out.ptr()), I32(out.rounded as i32), Ptr(kv.pool.partials.ptr()), I32(n_splits as i32), I32(d as i32)];
        cuda.driver.launch(Kernel::AttendMerge, [g.n_q_heads, rows, 1], 128, &args);
    }
}

pub(super) fn place(cuda: &Cuda, kv: &mut KvTables<Cuda>, decisions: &Buf<f32>, layer: usize, spans: &[Span]) {
    let (shape, view) = (cuda.send(spans), view(kv));
    let args = [Kv(&view), Ptr(decisions.ptr()), I32(layer as i32), Ptr(shape.spans)];
    // A token for each span: a warp does. Chunks are placed a block's threads at a time.
    let threads = if shape.n_rows == shape.n_spans { 32 } else { BLOCK };
    cuda.driver.launch(Kernel::Place, [kv.geometry.n_kv_heads, shape.n_spans, 1], threads, &args);
}

pub(super) fn store(cuda: &Cuda, kv: &mut KvTables<Cuda>, qkv: &Acts, layer: usize, spans: &[Span]) {
    let (shape, view) = (cuda.send(spans), view(kv));
    let args = [Kv(&view), Ptr(qkv.ptr()), I32(layer as i32), Ptr(shape.spans), Ptr(shape.span_of_row)];
    cuda.driver.launch(Kernel::Store, [kv.geometry.n_kv_heads, shape.n_rows, 1], 64, &args);
}

pub(super) fn advance(cuda: &Cuda, kv: &mut KvTables<Cuda>, spans: &[Span]) {
    let (shape, view) = (cuda.send(spans), view(kv));
    let args = [Kv(&view), Ptr(shape.spans), I32(shape.n_spans as i32)];
    cuda.driver.launch(Kernel::Advance, [1, 1, 1], BLOCK, &args);
}

/// A kernel over all lanes of a sequence.
fn over_lanes(cuda: &Cuda, kv: &KvTables<Cuda>, kernel: Kernel, block: usize, numbers: &[usize]) {
    let view = view(kv);
    let mut args = vec![Kv(&view)];
    args.extend(numbers.iter().map(|&n| I32(n as i32)));
    cuda.driver.launch(kernel, [kv.geometry.n_kv_heads, kv.geometry.n_layers, 1], block, &args);
}

fn settle(cuda: &Cuda, kv: &KvTables<Cuda>) {
    cuda.driver.launch(Kernel::Settle, [1, 1, 1], BLOCK, &[Kv(&view(kv))]);
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
    if kv.geometry.policy.dms().is_some() {
        over_lanes(cuda, kv, Kernel::Compact, 32, &[seq]);
        settle(cuda, kv);
    }
}

/// Moves pages down where that empties the last steps of the pool, which are then unmapped.
pub(super) fn trim(cuda: &Cuda, kv: &mut KvTables<Cuda>) {
    if let Some((first, n)) = kv.pool.moves() {
        let (view, moved) = (view(kv), kv.pool.returned.ptr());
        cuda.driver.launch(Kernel::MovePages, [n, 1, 1], BLOCK, &[Kv(&view), Ptr(moved), I32(first as i32)]);
        let entries = kv.page_table.len();
        let args = [Kv(&view), Ptr(moved), I32(first as i32), I32(n as i32), U64(entries as u64)];
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
    let args = [Ptr(out.ptr()), Kv(&view), I32(layer as i32), I32(seq as i32), I32(head as i32)];
    cuda.driver.launch(Kernel::SlotMetas, [metas.len().div_ceil(BLOCK), 1, 1], BLOCK, &args);
    out.read(0, &mut metas);
    metas.into_iter().map(SlotMeta).collect()
}
