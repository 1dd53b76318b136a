//! The KV cache's ops: the launches of each op.

use super::super::{
    AttentionArgs, KvGeometry, KvTables, OutOfMemory, Pages, PoolStats, PresenceCounts, QkvRopeArgs, Span,
};
use super::abi::Arg::{self, I32, Ptr, U64};
use super::abi::{self, DecodeParams, HeadParams, Kept, PrefillParams, RopeParams};
use super::delta;
use super::gpu::Cuda;
use super::kernels::{BLOCK, Kernel, MAX_DECODE_HEAD_DIM, Mode, Rows, USUAL_HEAD_DIM, padded};
use super::kinds::Kind;
use super::memory::{Acts, Buf};
use super::merge;
use super::pages::Choices;
use super::pool::Pool;
use super::spans::{Shape, Staged};
use super::tiles::{DECODE_THREADS, attend_wgmma, decode_kernel, tile_queries, unpacks};
use super::views::{view, view_of};
use crate::policy::SlotMeta;
use crate::protocol::{LaneFilter, Token};
use std::ops::Range;

/// Blocks of `qkv_rope` that keep an SM busy.
const ROPE_BLOCKS_PER_SM: usize = 4;
/// Most splits of the keys of one tile.
const MAX_TILE_SPLITS: usize = 32;
const PLACE_SCORES_THREADS: usize = 384;
const APPEND_LANES: usize = 8;
/// Threads of a block of `attend_tiles` and of `kv_scatter`.
const TILE_THREADS: usize = 128;
/// Threads of a block of `attend_wgmma`; an SM has room for one block.
const WGMMA_THREADS: usize = 384;
const SCATTER_THREADS: usize = 256;
/// Maximum threads of a block of `place`, which assigns slots to this many tokens at once.
const PLACE_THREADS: usize = 1024;
/// Threads of a block of `kv_unpack`, and its blocks per SM.
const UNPACK_THREADS: usize = 256;
const UNPACK_BLOCKS_PER_SM: usize = 4;

/// Attention of any step, but for the output gate.
pub(super) fn attention(cuda: &Cuda, out: &mut Acts, args: &mut AttentionArgs<'_, Cuda>) {
    let AttentionArgs { kv: KvTables { geometry: g, .. }, layer, spans, rope, .. } = args;
    if !rope.staged && is_fused(g, *layer, spans) {
        return decode(cuda, out, args);
    }
    if g.policy.quest().is_some() {
        // Single tokens choose their pages. Their rows are finished before the other ops change
        // them.
        let (single, longer): (Vec<Span>, Vec<Span>) = spans.iter().partition(|s| s.len == 1);
        if !single.is_empty() {
            decode(cuda, out, &mut of_spans(args, &single));
            // The other rows are staged where these are.
            append(cuda, args.kv, args.layer, &single);
        }
        return prefill(cuda, out, &mut of_spans(args, &longer));
    }
    if rope.staged && reads_staged(g, *layer) {
        return staged(cuda, out, args);
    }
    prefill(cuda, out, args);
}

/// Whether a step that is not staged runs decode attention in a layer, which leaves its tokens to
/// [`append`].
fn is_fused(g: &KvGeometry, layer: usize, spans: &[Span]) -> bool {
    // The widest heads have no instance, and wide ones none that reads near rows; their tokens are
    // tiles of one row. With far rows they are so in all layers, because appending is of all layers
    // of a kind.
    let dim = g.layer(layer).heads.dim;
    let has_instance = dim <= MAX_DECODE_HEAD_DIM && (!g.keeps_far() || dim <= USUAL_HEAD_DIM);
    has_instance && spans.iter().all(|s| s.len == 1) || g.policy.scored().is_some()
}

/// The same arguments for some of the spans.
fn of_spans<'a>(args: &'a mut AttentionArgs<'_, Cuda>, spans: &'a [Span]) -> AttentionArgs<'a, Cuda> {
    let AttentionArgs { qkv, decisions, kv, layer, rope, .. } = args;
    AttentionArgs { qkv, decisions, kv, layer: *layer, spans, rope }
}

/// Whether decode attention has a mode for staged steps of a layer, in which every row sees the
/// rows before it in its span.
fn reads_staged(g: &KvGeometry, layer: usize) -> bool {
    let sees_all = g.policy_of(layer).rule().is_none_or(|rule| rule.window >= g.staged_rows);
    sees_all && g.layer(layer).heads.dim <= USUAL_HEAD_DIM && g.staged_rows <= g.page_slots && g.far_of(layer).is_none()
}

/// Fused attention of a staged step. Rows attend like decode tokens, to stored slots and to the
/// rows of their spans, and are kept.
fn staged(cuda: &Cuda, out: &mut Acts, args: &mut AttentionArgs<'_, Cuda>) {
    assert!(args.kv.geometry.policy.merging().is_none(), "staged rows are not merged");
    let heads = merge::prepare(cuda, args);
    let (shape, g, pool) = (cuda.send(args.spans), &args.kv.geometry.of_layer(args.layer), &args.kv.pool);
    out.fills(shape.n_rows);
    unstage(args.kv, args.layer);
    let params = decode_params(args, heads, out, &shape);
    let kernel = Kernel::Attend(Mode::Drafts, USUAL_HEAD_DIM, Rows::of(g.codec));
    let grid = [decode_blocks(pool, g, shape.n_rows), shape.n_rows, 1];
    cuda.driver.launch(kernel, grid, DECODE_THREADS, &[Arg::of(&params)]);
}

/// The parameters of decode attention.
fn decode_params(args: &AttentionArgs<'_, Cuda>, heads: HeadParams, out: &Acts, shape: &Shape) -> DecodeParams {
    let AttentionArgs { qkv, decisions, kv, layer, rope, .. } = args;
    let (g, pool, keys) = (&kv.geometry.of_layer(*layer), &kv.pool, rope.keys_of.unwrap_or(qkv));
    let [chosen, chosen_slots] = pool.choices.as_ref().map_or([0; 2], Choices::lists);
    DecodeParams {
        kv: view_of(kv, *layer),
        heads,
        out: out.ptr(),
        states: pool.states.ptr(),
        peaks: pool.peaks.ptr(),
        qkv: qkv.ptr(),
        decisions: decisions.ptr(),
        spans: shape.spans,
        image: out.image_to_fill(shape.n_rows),
        out_is_bf16: out.bf16 as i32,
        layer: *layer as i32,
        score_scale: score_scale(g),
        in_order: 0,
        logits: pool.logits.ptr(),
        arrivals: pool.arrivals.ptr(),
        chosen,
        chosen_slots,
        span_of_row: shape.span_of_row,
        kept: pool.kept(g, Kind::of(g, *layer)),
        sinks: sinks(rope),
        keys: keys.ptr(),
        keys_width: keys.width as i32,
        unused: 0,
    }
}

/// The address of the attention sinks; 0 if there are none.
pub(super) fn sinks(rope: &QkvRopeArgs<'_, Cuda>) -> u64 {
    rope.sinks.map_or(0, Buf::ptr)
}

/// Fused attention of a decode step: split-KV attention over the stored slots and the tokens
/// themselves, which are staged. They enter the cache by [`append`], for all layers at once, in
/// [`advance`]. Under a policy with scores, a step of any kind runs one row of each sequence after
/// another, because each row changes the slots that the next one sees.
fn decode(cuda: &Cuda, out: &mut Acts, args: &mut AttentionArgs<'_, Cuda>) {
    let shape = cuda.send(args.spans);
    let heads = merge::prepare(cuda, args);
    out.fills(shape.n_rows);
    let mut params = decode_params(args, heads, out, &shape);
    let (g, pool, spans) = (&args.kv.geometry.of_layer(args.layer), &args.kv.pool, args.spans);
    let kernel = decode_kernel(g, args.layer).expect("an instance for the heads of the layer");
    let (scored, gates) = (g.policy.scored().is_some(), merge::gates(args.rope));
    let launch = |params: &DecodeParams, n: usize| {
        let args = [Arg::of(params)];
        if let Some(choices) = &pool.choices {
            choices.choose(&cuda.driver, g, params, n);
        }
        cuda.driver.launch(kernel, [decode_blocks(pool, g, n), n, 1], DECODE_THREADS, &args);
        if scored {
            let args = [&args[..], &gates].concat();
            cuda.driver.launch(Kernel::PlaceScores, [g.n_kv_heads, n, 1], PLACE_SCORES_THREADS, &args);
        }
    };
    if !scored {
        let kind = Kind::of(g, args.layer);
        pool.staged_layers.set(pool.staged_layers.get().with(kind, args.layer, false));
    }
    if spans.iter().all(|s| s.len == 1) {
        return launch(&params, shape.n_spans);
    }
    let (rows, turns) = cuda.spans.borrow_mut().send_rows(spans);
    let mut before = 0;
    for n in turns {
        params.spans = rows + (before * size_of::<abi::Span>()) as u64;
        launch(&params, n);
        before += n;
        params.in_order = 1;
    }
}

/// Blocks of decode attention for each of `n` tokens: its share of the blocks that the GPU runs at
/// once, and one more for each KV head. The kernel divides the share among the heads by their live
/// slots; unused blocks end at once.
fn decode_blocks(pool: &Pool, g: &KvGeometry, n: usize) -> usize {
    g.n_kv_heads + (pool.decode_blocks / n).max(1)
}

/// Forgets what a step that was not ended has staged in the layers of a kind.
fn unstage(kv: &KvTables<Cuda>, layer: usize) {
    let staged = &kv.pool.staged_layers;
    staged.set(staged.get().without(Kind::of(&kv.geometry, layer)));
}

/// Appends the tokens that [`decode`] has staged in the layers from `first` on to the cache.
fn append(cuda: &Cuda, kv: &mut KvTables<Cuda>, first: usize, spans: &[Span]) {
    let (shape, Staged { layers, kept }) = (cuda.send(spans), kv.pool.staged_layers.take());
    for (kind, of_kind) in Kind::all(&kv.geometry) {
        let (g, view, last) = (kv.geometry.of_layer(of_kind), view_of(kv, of_kind), layers[kind as usize]);
        if last <= first {
            continue;
        }
        let kept = if kept { kv.pool.kept(&g, kind) } else { Kept::default() };
        let args = [Arg::of(&view), Ptr(shape.spans), I32(first as i32), Arg::of(&kept)];
        let grid = [g.n_kv_heads.div_ceil(APPEND_LANES), shape.n_spans, last - first];
        match g.policy.quest() {
            Some(_) => cuda.driver.launch(Kernel::AppendBounds, grid, 32 * APPEND_LANES, &args[..3]),
            None => cuda.driver.launch(Kernel::Append, grid, 32 * APPEND_LANES, &args),
        }
    }
}

/// Attention of any step in four kernels, under a policy whose victims the weights do not choose.
fn prefill(cuda: &Cuda, out: &mut Acts, args: &mut AttentionArgs<'_, Cuda>) {
    qkv_rope(cuda, args);
    attend(cuda, out, args);
    if !args.rope.staged && !args.rope.lends && args.rope.keys_of.is_none() {
        place(cuda, args.kv, args.decisions, args.layer, args.spans);
        store(cuda, args.kv, args.layer, args.spans);
    }
}

/// Prepares projected rows in place. Codes of K and V are written to the step's staged pages and
/// overwrite their contents.
fn qkv_rope(cuda: &Cuda, args: &mut AttentionArgs<'_, Cuda>) {
    let heads = merge::prepare(cuda, args);
    let AttentionArgs { qkv, decisions, kv, layer, spans, rope } = args;
    let (g, shape) = (&kv.geometry.of_layer(*layer), cuda.send(spans));
    unstage(kv, *layer);
    let per_layer = rope.borrowed.is_some_and(|b| b.alpha.per_layer);
    let stores = rope.staged && rope.keys_of.is_none();
    let params = RopeParams {
        kv: view_of(kv, *layer),
        heads,
        qkv: qkv.ptr(),
        decisions: decisions.ptr(),
        spans: shape.spans,
        span_of_row: shape.span_of_row,
        rows: Rows::of(g.codec) as i32,
        layer: *layer as i32,
        kept: if stores { kv.pool.kept(g, Kind::of(g, *layer)) } else { Kept::default() },
        keys: rope.keys_of.map_or(0, Acts::ptr),
        keys_width: rope.keys_of.map_or(0, |keys| keys.width as i32),
        unused: 0,
    };
    launch_rope(cuda, g, &params, shape.n_rows, per_layer);
}

/// Stages rows again that [`qkv_rope`] has prepared.
fn stage_again(cuda: &Cuda, rows: &Acts, decisions: &Buf<f32>, kv: &KvTables<Cuda>, layer: usize, spans: &[Span]) {
    let (g, shape) = (&kv.geometry.of_layer(layer), cuda.send(spans));
    let params = RopeParams {
        kv: view_of(kv, layer),
        decisions: decisions.ptr(),
        spans: shape.spans,
        span_of_row: shape.span_of_row,
        rows: Rows::of(g.codec) as i32,
        layer: layer as i32,
        keys: rows.ptr(),
        keys_width: rows.width as i32,
        ..bytemuck::Zeroable::zeroed()
    };
    launch_rope(cuda, g, &params, shape.n_rows, false);
}

/// `per_layer`: a layer has one decision.
fn launch_rope(cuda: &Cuda, g: &KvGeometry, params: &RopeParams, n_rows: usize, per_layer: bool) {
    // KV heads of a row share a block, and so its angles, if there are enough rows for all SMs.
    let enough = (cuda.driver.sm_count * ROPE_BLOCKS_PER_SM).div_ceil(n_rows);
    let blocks = if per_layer { 1 } else { enough.clamp(1, g.n_kv_heads) };
    let threads = 32 * (g.n_q_heads / g.n_kv_heads + 2);
    let kernel = if g.head_dim > MAX_DECODE_HEAD_DIM { Kernel::QkvRopeWidest } else { Kernel::QkvRope };
    cuda.driver.launch(kernel, [blocks, n_rows, 1], threads, &[Arg::of(params)]);
}

/// Attention by tiles of query rows; a decode token is a tile of one row.
fn attend(cuda: &Cuda, out: &mut Acts, args: &AttentionArgs<'_, Cuda>) {
    let AttentionArgs { qkv, decisions, kv, layer, spans, .. } = args;
    let (g, shape, pool) = (&kv.geometry.of_layer(*layer), cuda.send(spans), &kv.pool);
    out.fills(shape.n_rows);
    let tile_tokens = tile_queries(g) / (g.n_q_heads / g.n_kv_heads);
    let n_tiles: usize = spans.iter().map(|s| s.len.div_ceil(tile_tokens)).sum();
    let driver = &cuda.driver;
    let wgmma = attend_wgmma(driver, g);
    // Few tiles: split their keys until there are enough blocks for all SMs.
    let blocks = if wgmma.is_some() { driver.sm_count } else { pool.max_blocks };
    let splits = (blocks / (n_tiles * g.n_kv_heads)).clamp(1, MAX_TILE_SPLITS);
    let lanes = shape.n_spans * g.n_kv_heads;
    let unpacked =
        if unpacks(driver, g, shape.n_rows) { pool.unpacked_pages(g, lanes, shape.n_rows) } else { Default::default() };
    let params = PrefillParams {
        kv: view_of(kv, *layer),
        out: out.ptr(),
        partials: pool.partials.ptr(),
        arrivals: pool.arrivals.ptr(),
        qkv: qkv.ptr(),
        decisions: decisions.ptr(),
        spans: shape.spans,
        out_is_bf16: out.bf16 as i32,
        layer: *layer as i32,
        score_scale: score_scale(g),
        qkv_width: qkv.width as i32,
        unpacked: unpacked.at,
        lane_pages: unpacked.lane_pages as i32,
        first_staged: unpacked.first_staged as i32,
        sinks: sinks(args.rope),
    };
    if unpacked.at != 0 {
        let blocks = (UNPACK_BLOCKS_PER_SM * driver.sm_count).div_ceil(lanes);
        let grid = [blocks, g.n_kv_heads, shape.n_spans];
        driver.launch(Kernel::KvUnpack, grid, UNPACK_THREADS, &[Arg::of(&params)]);
    }
    let grid = [splits, g.n_kv_heads, n_tiles];
    match wgmma {
        Some(kernel) => {
            let [stored, staged] = pool.maps(g, Kind::of(g, *layer));
            let args = [Arg::of(&params), Arg::of(&stored), Arg::of(&staged)];
            driver.launch(kernel, grid, WGMMA_THREADS, &args);
        }
        None => {
            let kernel = Kernel::AttendTiles(padded(g.head_dim), Rows::of(g.codec));
            driver.launch(kernel, grid, TILE_THREADS, &[Arg::of(&params)]);
        }
    }
}

/// Assigns a slot to every token of the step.
fn place(cuda: &Cuda, kv: &KvTables<Cuda>, decisions: &Buf<f32>, layer: usize, spans: &[Span]) {
    let (shape, view) = (cuda.send(spans), view_of(kv, layer));
    let args = [Arg::of(&view), Ptr(decisions.ptr()), I32(layer as i32), Ptr(shape.spans)];
    let longest = spans.iter().map(|s| s.len).max().unwrap_or(1);
    let threads = longest.next_multiple_of(32).min(PLACE_THREADS);
    let heads = kv.geometry.of_layer(layer).n_kv_heads;
    cuda.driver.launch(Kernel::Place, [heads, shape.n_spans, 1], threads, &args);
}

/// Scatters the codes that [`qkv_rope`] staged to their slots.
fn store(cuda: &Cuda, kv: &KvTables<Cuda>, layer: usize, spans: &[Span]) {
    let (shape, view) = (cuda.send(spans), view_of(kv, layer));
    let warps = shape.n_rows * kv.geometry.of_layer(layer).n_kv_heads;
    let (layer, n) = (I32(layer as i32), I32(shape.n_rows as i32));
    let args = [Arg::of(&view), layer, Ptr(shape.spans), Ptr(shape.span_of_row), n];
    let grid = [warps.div_ceil(SCATTER_THREADS / 32), 1, 1];
    cuda.driver.launch(Kernel::KvScatter, grid, SCATTER_THREADS, &args);
    if kv.geometry.policy.quest().is_some() {
        cuda.driver.launch(Kernel::ScatterBounds, grid, SCATTER_THREADS, &args);
    }
}

/// Rows of a staged step, or of a layer that lends them, enter the cache. Where they are staged
/// like the tokens of decode steps, [`advance`] stores them for all layers at once.
pub(super) fn commit(
    cuda: &Cuda,
    rows: &Acts,
    decisions: &Buf<f32>,
    kv: &mut KvTables<Cuda>,
    layer: usize,
    spans: &[Span],
    drafts: bool,
) {
    let (kind, staged) = (Kind::of(&kv.geometry, layer), &kv.pool.staged_layers);
    if drafts {
        return staged.set(staged.get().with(kind, layer, true));
    }
    if !is_fused(&kv.geometry, layer, spans) {
        stage_again(cuda, rows, decisions, kv, layer, spans);
        place(cuda, kv, decisions, layer, spans);
        store(cuda, kv, layer, spans);
    }
}

fn score_scale(g: &KvGeometry) -> f32 {
    1.0 / (g.head_dim as f32).sqrt()
}

pub(super) fn advance(cuda: &Cuda, kv: &mut KvTables<Cuda>, tokens: Option<&Buf<Token>>, spans: &[Span]) {
    if kv.pool.staged_layers.get().layers != [0; 2] {
        append(cuda, kv, 0, spans);
    }
    let (shape, view) = (cuda.send(spans), view(kv));
    let [spans, seen, tokens] = [shape.spans, kv.seen.ptr(), tokens.map_or(0, Buf::ptr)].map(Ptr);
    let (n, words) = (shape.n_spans, I32(kv.geometry.seen_words() as i32));
    let args = [Arg::of(&view), spans, I32(n as i32), seen, tokens, words];
    cuda.driver.launch(Kernel::Advance, [n.div_ceil(BLOCK / 32), 1, 1], BLOCK, &args);
}

/// Launches a kernel with one block for each lane of a sequence in the tables, or in the layers
/// that a view describes.
fn over_lanes(cuda: &Cuda, view: &abi::Kv, kernel: Kernel, block: usize, numbers: &[usize]) {
    let heads = if view.layers_of == abi::layers::ALL { view.table_heads } else { view.n_kv_heads };
    let mut args = vec![Arg::of(view)];
    args.extend(numbers.iter().map(|&n| I32(n as i32)));
    cuda.driver.launch(kernel, [heads as usize, view.n_layers as usize, 1], block, &args);
}

/// Compacts the lanes of a sequence. Where rows are kept, one layer after the other: what moves
/// in a layer needs pages before it frees as many. Without memory for them it is gone.
fn compact(cuda: &Cuda, kv: &mut KvTables<Cuda>, seq: usize, threshold: usize) {
    let g = kv.geometry;
    let launch = |view: &abi::Kv, first: usize, layers: usize, keep: bool| {
        let numbers = [seq, threshold, first, usize::from(keep)].map(|n| I32(n as i32));
        let args = [&[Arg::of(view)], &numbers[..]].concat();
        cuda.driver.launch(Kernel::Compact, [view.n_kv_heads as usize, layers, 1], 32, &args);
    };
    if !g.keeps_far() {
        return Kind::all(&g).for_each(|(_, layer)| launch(&view_of(kv, layer), 0, g.n_layers, false));
    }
    let view = view(kv);
    let mut live = vec![0; g.n_layers * g.n_lanes()];
    kv.live.read(0, &mut live);
    for layer in 0..g.n_layers {
        let slots = live[g.row(layer, seq, 0)..][..g.n_kv_heads].iter().map(|&n: &i32| n as usize);
        let pages = slots.map(|n| n.div_ceil(g.page_slots) + 1).sum();
        launch(&view, layer, 1, kv.pool.reserve(pages).is_ok());
        reclaim(cuda, kv);
    }
}

/// Lets freed pages join the free list: the end of a step of no spans.
pub(super) fn reclaim(cuda: &Cuda, kv: &KvTables<Cuda>) {
    let (view, none) = (view(kv), Ptr(0));
    let args = [Arg::of(&view), none, I32(0), none, none, I32(0)];
    cuda.driver.launch(Kernel::Advance, [1, 1, 1], BLOCK, &args);
}

/// Copies pages of the pool to the staging pages, or `back`. `returned`, unused between steps,
/// lists the pages of the pool.
fn copy_staged(cuda: &Cuda, kv: &mut KvTables<Cuda>, pages: &[i32], back: bool) {
    kv.pool.returned.write(0, pages);
    let (view, listed) = (view(kv), kv.pool.returned.ptr());
    let args = [Arg::of(&view), Ptr(listed), I32(back as i32)];
    cuda.driver.launch(Kernel::StagePages, [pages.len(), 1, 1], BLOCK, &args);
}

/// Metadata of `n` slots of a lane (layer, sequence, head), in slot order, or of its near rows from
/// row `near` on.
pub(super) fn metas_of(
    cuda: &Cuda,
    kv: &KvTables<Cuda>,
    lane: [usize; 3],
    near: Option<usize>,
    n: usize,
) -> Vec<SlotMeta> {
    let mut metas = vec![0; n];
    if n == 0 {
        return Vec::new();
    }
    let (view, out, [layer, seq, head]) = (view_of(kv, lane[0]), &kv.pool.metas, lane.map(|n| I32(n as i32)));
    let near = I32(near.map_or(-1, |row| row as i32));
    let args = [Ptr(out.ptr()), Arg::of(&view), layer, seq, head, near];
    cuda.driver.launch(Kernel::SlotMetas, [n.div_ceil(BLOCK), 1, 1], BLOCK, &args);
    out.read(0, &mut metas);
    metas.into_iter().map(|meta: i32| SlotMeta(meta as u32)).collect()
}

impl Pages for Cuda {
    type Pool = Pool;

    const SAME_SLOTS: bool = true;

    fn pool(&self, geometry: &KvGeometry, max_pages: usize, max_step: usize) -> Result<Pool, OutOfMemory> {
        Pool::new(&self.driver, geometry, max_pages, max_step)
    }

    fn reserve(&self, kv: &mut KvTables<Self>, pages: usize) -> Result<(), OutOfMemory> {
        kv.pool.reserve(pages)
    }

    /// Moves pages to lower numbers if that empties the last granules of the pool, then unmaps
    /// those granules.
    fn trim(&self, kv: &mut KvTables<Self>) {
        if let Some((first, n)) = kv.pool.moves() {
            let (view, moved) = (view(kv), kv.pool.returned.ptr());
            self.driver.launch(Kernel::MovePages, [n, 1, 1], BLOCK, &[Arg::of(&view), Ptr(moved), I32(first as i32)]);
            let entries = kv.page_table.len();
            let args = [Arg::of(&view), Ptr(moved), I32(first as i32), I32(n as i32), U64(entries as u64)];
            self.driver.launch(Kernel::RenamePages, [entries.div_ceil(BLOCK), 1, 1], BLOCK, &args);
            if view.near != 0 {
                let near = abi::Kv { table: view.near, ..view };
                let args = [&[Arg::of(&near)], &args[1..]].concat();
                self.driver.launch(Kernel::RenamePages, [entries.div_ceil(BLOCK), 1, 1], BLOCK, &args);
            }
        }
        kv.pool.trim();
    }

    fn pool_stats(&self, kv: &KvTables<Self>) -> PoolStats {
        kv.pool.stats()
    }

    fn fork(&self, kv: &mut KvTables<Self>, from: usize, to: usize) {
        let mut len = [0];
        kv.seq_len.read(to, &mut len);
        assert_eq!(len[0], 0, "fork into a sequence that is not empty");
        over_lanes(self, &view(kv), Kernel::Fork, BLOCK, &[from, to]);
        merge::fork(kv, from, to);
        let g = kv.geometry;
        kv.pool.far.iter_mut().for_each(|far| far.fork(&g, from, to));
        delta::fork(kv, from, to);
        let words = kv.geometry.seen_words();
        kv.seen.copy(from * words, to * words, words);
    }

    fn release(&self, kv: &mut KvTables<Self>, seq: usize) {
        over_lanes(self, &view(kv), Kernel::Release, BLOCK, &[seq]);
        let g = kv.geometry;
        kv.pool.far.iter_mut().for_each(|far| far.clear(&g, seq));
        reclaim(self, kv);
    }

    fn compact(&self, kv: &mut KvTables<Self>, seq: usize, threshold: usize) {
        compact(self, kv, seq, threshold);
        if kv.geometry.policy.quest().is_some() {
            over_lanes(self, &view(kv), Kernel::LaneBounds, BLOCK, &[seq]);
        }
        reclaim(self, kv);
    }

    fn rate_slots(&self, kv: &mut KvTables<Self>, seq: usize, positions: Range<usize>, strength: usize, marked: bool) {
        let rating = SlotMeta::new(0, strength, marked).0 as usize;
        let numbers = [seq, positions.start, positions.end, rating];
        // Local layers stay as they are.
        for (_, layer) in Kind::all(&kv.geometry).filter(|(kind, _)| *kind == Kind::Other) {
            over_lanes(self, &view_of(kv, layer), Kernel::RateSlots, 32, &numbers);
        }
        reclaim(self, kv);
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
        let out = &kv.pool.metas;
        let mut words = vec![0u32; n + g.table_lanes()];
        self.driver.clear(out.ptr(), words.len() * size_of::<u32>());
        let selected = |index: Option<usize>| I32(index.map_or(-1, |i| i as i32));
        let blocks = n.div_ceil(BLOCK).max(1);
        for (_, layer) in Kind::all(g) {
            let view = view_of(kv, layer);
            let args = [
                Ptr(out.ptr()),
                Arg::of(&view),
                I32(seq as i32),
                I32(n as i32),
                selected(filter.layer),
                selected(filter.head),
                I32(position.min(i32::MAX as usize) as i32),
            ];
            self.driver.launch(Kernel::Presence, [blocks, view.n_kv_heads as usize, g.n_layers], BLOCK, &args);
        }
        out.read(0, bytemuck::cast_slice_mut(&mut words));
        PresenceCounts::from_words(&words, n)
    }

    /// Copies pages to the host in parts, each gathered in the staging pages of prefill, which are
    /// unused between steps.
    fn export_pages(&self, kv: &mut KvTables<Self>, pages: &[i32], bytes: &mut [u8]) {
        let (stride, at_once) = (kv.pool.stride, kv.pool.staged.len() / kv.pool.stride);
        for (pages, bytes) in pages.chunks(at_once).zip(bytes.chunks_mut(at_once * stride)) {
            copy_staged(self, kv, pages, false);
            kv.pool.staged.read(0, bytes);
        }
    }

    fn import_pages(&self, kv: &mut KvTables<Self>, bytes: &[u8]) -> Vec<i32> {
        let (stride, at_once) = (kv.pool.stride, kv.pool.staged.len() / kv.pool.stride);
        reclaim(self, kv);
        let pages = kv.pool.take(bytes.len() / stride);
        for (pages, bytes) in pages.chunks(at_once).zip(bytes.chunks(at_once * stride)) {
            kv.pool.staged.write(0, bytes);
            copy_staged(self, kv, pages, true);
        }
        pages
    }

    fn slot_metas(&self, kv: &KvTables<Self>, layer: usize, seq: usize, head: usize) -> Vec<SlotMeta> {
        let mut live = [0];
        kv.live.read(kv.geometry.row(layer, seq, head), &mut live);
        metas_of(self, kv, [layer, seq, head], None, live[0] as usize)
    }
}
