//! Which kernel attends, and how many queries and blocks it takes.

use super::super::KvGeometry;
use super::driver::Driver;
use super::kernels::{Kernel, MAX_DECODE_HEAD_DIM, MAX_GROUP, MAX_HEAD_DIM, Mode, Rows, USUAL_HEAD_DIM, padded};

/// Threads of a block of `attend`, of `place_scores`, and lanes to a block of `append`.
pub(super) const DECODE_THREADS: usize = 256;
/// Minimum rows of a step for which packed codes are unpacked first: with fewer, too few tiles
/// share the copy.
pub(super) const UNPACK_ROWS: usize = 256;

/// Kernel of decode attention in a layer: the ordinary one, one for policies by which attention
/// chooses the slots to drop or to read, or one for layers with far rows. `None` for the widest
/// heads, whose tokens go in tiles.
pub(super) fn decode_kernel(g: &KvGeometry, layer: usize) -> Option<Kernel> {
    let (of, dim) =
        (|mode, head_dim| Some(Kernel::Attend(mode, head_dim, Rows::of(g.codec))), g.layer(layer).heads.dim);
    if g.policy.scored().is_some() || g.policy.quest().is_some() {
        return of(Mode::Choice, USUAL_HEAD_DIM);
    }
    if g.far_of(layer).is_some() && dim <= USUAL_HEAD_DIM {
        return of(Mode::Far, USUAL_HEAD_DIM);
    }
    if dim > MAX_DECODE_HEAD_DIM { None } else { of(Mode::Ordinary, padded(dim)) }
}

/// Whether the codes that a step of `rows` rows attends to are unpacked first: where all layers
/// have the same heads.
pub(super) fn unpacks(driver: &Driver, g: &KvGeometry, rows: usize) -> bool {
    rows >= UNPACK_ROWS && g.heads.is_none() && Rows::of(g.codec) != Rows::Bf16 && attend_wgmma(driver, g).is_some()
}

/// Query rows (tokens x query heads of a group) of a prefill tile, in `attend_tiles.cuh` and
/// `attend_wgmma.cu`.
pub(super) fn tile_queries(g: &KvGeometry) -> usize {
    match padded(g.head_dim) {
        MAX_HEAD_DIM => 32,
        MAX_DECODE_HEAD_DIM => 64,
        _ => 128,
    }
}

/// Floats of a split's state in `attend_tiles.cuh`, where two warps share the query rows of the
/// widest heads, and in `attend_wgmma.cu`.
pub(super) fn partial_floats(g: &KvGeometry) -> usize {
    let room = padded(g.head_dim);
    if room > MAX_DECODE_HEAD_DIM { 2 * tile_queries(g) * (room / 2 + 8) } else { tile_queries(g) * (room + 8) }
}

/// Blocks of decode attention that an SM runs at once. Refuses geometries without kernels; f32 is
/// refused where the device is chosen.
pub(super) fn attend_blocks(driver: &Driver, g: &KvGeometry) -> usize {
    for layer in g.layers() {
        let (group, dim) = (g.n_q_heads / layer.heads.count, layer.heads.dim);
        assert!(group <= MAX_GROUP, "{group} query heads per KV head; the CUDA backend supports {MAX_GROUP}");
        assert!(dim <= MAX_HEAD_DIM, "heads of {dim} channels; the CUDA backend supports {MAX_HEAD_DIM}");
    }
    let kernels = (0..g.n_layers).filter_map(|layer| decode_kernel(g, layer));
    kernels.map(|kernel| driver.blocks_per_sm(kernel, DECODE_THREADS)).max().unwrap_or(1)
}

/// Prefill attention with `wgmma`, if the GPU runs it and there is an instance.
pub(super) fn attend_wgmma(driver: &Driver, g: &KvGeometry) -> Option<Kernel> {
    let rows = Rows::of(g.codec);
    let kernel = Kernel::AttendWgmma(rows);
    (g.head_dim == 128 && rows.has_wgmma() && driver.supports(kernel)).then_some(kernel)
}
