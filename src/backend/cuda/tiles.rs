//! Which kernel attends, and how many queries and blocks it takes.

use super::super::KvGeometry;
use super::driver::Driver;
use super::kernels::{Kernel, MAX_GROUP, MAX_HEAD_DIM, Mode, Rows, USUAL_HEAD_DIM, padded};

/// Threads of a block of `attend`, of `place_scores`, and lanes to a block of `append`.
pub(super) const DECODE_THREADS: usize = 256;
/// Minimum rows of a step for which packed codes are unpacked first: with fewer, too few tiles
/// share the copy.
pub(super) const UNPACK_ROWS: usize = 256;

/// Kernel of decode attention in a layer: the ordinary one, one for policies by which attention
/// chooses the slots to drop or to read, or one for layers with far rows.
pub(super) fn decode_kernel(g: &KvGeometry, layer: usize) -> Kernel {
    let of = |mode, head_dim| Kernel::Attend(mode, head_dim, Rows::of(g.codec));
    if g.policy.scored().is_some() || g.policy.quest().is_some() {
        return of(Mode::Choice, USUAL_HEAD_DIM);
    }
    if g.far_of(layer).is_some() && g.head_dim <= USUAL_HEAD_DIM {
        return of(Mode::Far, USUAL_HEAD_DIM);
    }
    of(Mode::Ordinary, padded(g.head_dim))
}

/// Whether the codes that a step of `rows` rows attends to are unpacked first.
pub(super) fn unpacks(driver: &Driver, g: &KvGeometry, rows: usize) -> bool {
    rows >= UNPACK_ROWS && Rows::of(g.codec) != Rows::Bf16 && attend_wgmma(driver, g).is_some()
}

/// Query rows (tokens x query heads of a group) of a prefill tile, in `attend_tiles.cuh` and
/// `attend_wgmma.cu`.
pub(super) fn tile_queries(g: &KvGeometry) -> usize {
    if g.head_dim > USUAL_HEAD_DIM { 64 } else { 128 }
}

/// Blocks of decode attention that an SM runs at once. Refuses geometries without kernels; f32 is
/// refused where the device is chosen.
pub(super) fn attend_blocks(driver: &Driver, g: &KvGeometry) -> usize {
    let group = g.n_q_heads / g.n_kv_heads;
    assert!(group <= MAX_GROUP, "{group} query heads per KV head; the CUDA backend supports {MAX_GROUP}");
    assert!(g.head_dim <= MAX_HEAD_DIM, "heads of {} channels; the CUDA backend supports {MAX_HEAD_DIM}", g.head_dim);
    (0..g.n_layers).map(|layer| driver.blocks_per_sm(decode_kernel(g, layer), DECODE_THREADS)).max().unwrap_or(1)
}

/// Prefill attention with `wgmma`, if the GPU runs it and there is an instance.
pub(super) fn attend_wgmma(driver: &Driver, g: &KvGeometry) -> Option<Kernel> {
    let rows = Rows::of(g.codec);
    let kernel = Kernel::AttendWgmma(rows);
    (g.head_dim == 128 && rows.has_wgmma() && driver.supports(kernel)).then_some(kernel)
}
