//! Merging of a step's rows before attention, and growth of queries: `kernels/merge.cu`.

use super::super::{AttentionArgs, Borrowed, Columns, KvTables, QkvRopeArgs};
use super::abi::{Arg, Growth, HeadParams, MergeParams};
use super::gpu::Cuda;
use super::kernels::Kernel;
use super::memory::{Acts, Buf};
use crate::policy::{Dmc, Merging};

/// Threads of a block of `merge_rows`.
const ROWS_THREADS: usize = 512;

/// Work of attention on the heads of rows. Where the policy merges tokens, does it here beforehand,
/// with the merging. Where queries grow, norms them here beforehand.
pub(super) fn prepare(cuda: &Cuda, args: &mut AttentionArgs<'_, Cuda>) -> HeadParams {
    let AttentionArgs { qkv, decisions, kv, layer, spans, rope } = args;
    let heads = head_params(qkv, rope);
    let g = &kv.geometry;
    let merging = g.policy.merging();
    if merging.is_none() && rope.growth.is_none() {
        return heads;
    }
    let (every, dmc) = match merging {
        None => (-1, Dmc::default()),
        Some(Merging::Pool(pool)) => (pool.every as i32, Dmc::default()),
        Some(Merging::Learned(dmc)) => (0, dmc),
    };
    let shape = cuda.send(spans);
    let params = MergeParams {
        heads,
        qkv: qkv.ptr(),
        decisions: decisions.ptr(),
        sums: kv.sums.ptr(),
        seq_len: kv.seq_len.ptr(),
        eviction: kv.eviction.ptr(),
        spans: shape.spans,
        span_of_row: shape.span_of_row,
        layer: *layer as i32,
        n_q_heads: g.n_q_heads as i32,
        n_kv_heads: g.n_kv_heads as i32,
        head_dim: g.head_dim as i32,
        n_seqs: g.n_seqs as i32,
        every,
        most_members: dmc.most_members as i32,
        weight_scale: dmc.weight_scale,
        weight_offset: dmc.weight_offset,
        growth: growth(rope),
        unused: 0,
    };
    let threads = 32 * (g.n_q_heads / g.n_kv_heads + 1);
    let args = [Arg::of(&params)];
    cuda.driver.launch(Kernel::MergeHeads, [g.n_kv_heads, shape.n_rows, 1], threads, &args);
    if merging.is_none() {
        return HeadParams { q_norm: 0, ..heads };
    }
    cuda.driver.launch(Kernel::MergeRows, [g.n_kv_heads, shape.n_spans, 1], ROWS_THREADS, &args);
    HeadParams { q_norm: 0, k_norm: 0, rotary: 0, borrowed: 0, ..heads }
}

pub(super) fn growth(rope: &QkvRopeArgs<'_, Cuda>) -> Growth {
    rope.growth.map_or(Growth::default(), |growth| Growth { beta: growth.beta, length: growth.length as i32 })
}

/// Copies the sums of the newest slots of a sequence.
pub(super) fn fork(kv: &mut KvTables<Cuda>, from: usize, to: usize) {
    let (g, len) = (kv.geometry, kv.geometry.sums_len());
    for layer in (0..g.n_layers).filter(|_| len > 0) {
        let [from, to] = [from, to].map(|seq| g.row(layer, seq, 0) * len);
        kv.sums.copy(from, to, g.n_kv_heads * len);
    }
}

/// What retention gates have beside [`HeadParams`]: arguments of `place_scores`.
pub(super) fn gates<'a>(rope: &QkvRopeArgs<'_, Cuda>) -> [Arg<'a>; 3] {
    let mlp = rope.predictor.as_ref().and_then(|predictor| predictor.mlp.as_ref());
    let [weight, bias] = mlp.and_then(|mlp| mlp.middle).map_or([0; 2], |middle| middle.map(Buf::ptr));
    [Arg::Ptr(weight), Arg::Ptr(bias), Arg::I32(mlp.is_some_and(|mlp| mlp.silu) as i32)]
}

pub(super) fn head_params(qkv: &Acts, rope: &QkvRopeArgs<'_, Cuda>) -> HeadParams {
    let (q_norm, k_norm) = rope.qk_norm.map_or((0, 0), |[q, k]| (q.ptr(), k.ptr()));
    let Borrowed { heads, alpha } = rope.borrowed.unwrap_or_default();
    let mut params = HeadParams {
        q_norm,
        k_norm,
        inv_freq: rope.inv_freq.ptr(),
        eps: rope.rms_eps,
        rope_factor: rope.rope_scale,
        borrowed: heads as i32,
        qkv_width: qkv.width as i32,
        rotary: 2 * rope.inv_freq.len() as i32,
        v_norm: rope.v_norm as i32,
        ..bytemuck::Zeroable::zeroed()
    };
    let mut alpha = alpha;
    if let Some(predictor) = &rope.predictor {
        let (rows, Columns { linear, units, stride, copies }) = (predictor.own.unwrap_or(qkv), predictor.columns);
        params.columns = rows.ptr() + ((rows.width - copies * stride) * size_of::<f32>()) as u64;
        params.columns_width = rows.width as i32;
        (params.linear, params.units) = (linear as i32, units as i32);
        (params.stride, params.copies) = (stride as i32, copies as i32);
        (params.mlp_weight, params.mlp_bias) =
            predictor.mlp.as_ref().map_or((0, 0), |mlp| (mlp.weight.ptr(), mlp.bias.ptr()));
        assert!(copies <= 2, "the kernels add up two copies");
        alpha = predictor.alpha;
    }
    (params.scale, params.offset, params.per_layer) = (alpha.scale, alpha.offset, alpha.per_layer as i32);
    params
}
