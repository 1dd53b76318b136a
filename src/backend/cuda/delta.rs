//! The gated delta net, and the output gate of attention in models with it: `kernels/delta_net.cu`.

use super::super::{DeltaNetArgs, KvGeometry, KvTables, Span};
use super::abi::Arg::{self, I32, Ptr, U64};
use super::abi::DeltaParams;
use super::gpu::Cuda;
use super::kernels::BLOCK;
use super::kernels::Kernel;
use super::memory::Acts;

/// Sizes that the kernels support: exact tokens of the convolution, and maximum channels of a head.
const TAPS: usize = 4;
const MOST_DIM: usize = 128;
/// Threads of `delta_step`, `delta_chunk` and `delta_norm`, and columns per block of `delta_chunk`.
const STEP_THREADS: usize = 512;
const CHUNK_THREADS: usize = 128;
const NORM_THREADS: usize = 256;
const CHUNK_COLUMNS: usize = 32;

/// Whether there are kernels for a convolution over `kernel` tokens and these head sizes.
pub fn has_delta_net(kernel: usize, key_dim: usize, value_dim: usize) -> bool {
    kernel == TAPS && key_dim.max(value_dim) <= MOST_DIM && value_dim.is_multiple_of(2)
}

/// [`Ops::delta_net`](super::Ops::delta_net): one kernel where all spans have one token, else two.
pub(super) fn delta_net(
    cuda: &Cuda,
    out: &mut Acts,
    rows: &mut Acts,
    kv: &mut KvTables<Cuda>,
    layer: usize,
    spans: &[Span],
    args: &DeltaNetArgs<'_, Cuda>,
) {
    cuda.settle();
    let (shape, g) = (cuda.send(spans), kv.geometry.delta.expect("a model with delta nets"));
    let (n, first) = (shape.n_rows, layer * kv.geometry.n_seqs);
    assert!(has_delta_net(g.kernel, g.key_dim, g.value_dim), "{g:?} has no kernels");
    assert_eq!([rows.width, out.width], [g.channels() + g.value_width(), g.value_width()], "columns of a delta net");
    rows.holds_f32(n);
    args.gates.holds_f32(n);
    out.fills(n);
    let (width, behind_k) = (g.value_width(), g.channels() - g.value_width());
    let (raw, raw_width) = match args.staged {
        true => (kv.pool.delta_raw.ptr(), width),
        false => (rows.ptr() + (behind_k * size_of::<f32>()) as u64, rows.width),
    };
    let params = DeltaParams {
        rows: rows.ptr(),
        gates: args.gates.ptr(),
        conv: args.conv.ptr(),
        decay: args.decay.ptr(),
        dt_bias: args.dt_bias.ptr(),
        norm: args.norm.ptr(),
        inputs: kv.delta_inputs.from(first * g.inputs_len()),
        state: kv.delta_state.from(first * g.state_len()),
        arrivals: kv.pool.delta_arrivals.from(first * g.key_heads),
        seq_len: kv.seq_len.ptr(),
        spans: shape.spans,
        raw,
        out: out.ptr(),
        image: out.image_to_fill(n),
        raw_width: raw_width as i32,
        staged: args.staged as i32,
        out_is_bf16: out.bf16 as i32,
        key_heads: g.key_heads as i32,
        value_heads: g.value_heads as i32,
        key_dim: g.key_dim as i32,
        value_dim: g.value_dim as i32,
        tiled: g.tiled as i32,
        eps: args.rms_eps,
        n: n as i32,
    };
    let (args, staged) = ([Arg::of(&params)], args.staged);
    if !staged && spans.iter().all(|span| span.len == 1) {
        return cuda.driver.launch(Kernel::DeltaStep, [1, g.value_heads, shape.n_spans], STEP_THREADS, &args);
    }
    let grid = [g.value_dim.div_ceil(CHUNK_COLUMNS), g.value_heads, shape.n_spans];
    cuda.driver.launch(Kernel::DeltaChunk, grid, CHUNK_THREADS, &args);
    let blocks = (n * g.value_heads).div_ceil(NORM_THREADS / 32);
    cuda.driver.launch(Kernel::DeltaNorm, [blocks, 1, 1], NORM_THREADS, &args);
}

/// `out *= sigmoid(gate)`, of the rows of a step.
pub(super) fn gate(cuda: &Cuda, out: &mut Acts, qkv: &Acts, g: &KvGeometry, spans: &[Span]) {
    let n = cuda.send(spans).n_rows;
    let pairs = n * out.width / 2;
    let args = [
        Ptr(out.ptr()),
        Ptr(out.image_to_fill(n)),
        I32(out.bf16 as i32),
        Ptr(qkv.ptr()),
        I32(qkv.width as i32),
        I32(((g.n_q_heads + 2 * g.n_kv_heads) * g.head_dim) as i32),
        I32(out.width as i32),
        U64(pairs as u64),
    ];
    cuda.driver.launch(Kernel::GateRows, [pairs.div_ceil(BLOCK), 1, 1], BLOCK, &args);
}

/// Copies the state of a sequence.
pub(super) fn fork(kv: &mut KvTables<Cuda>, from: usize, to: usize) {
    let Some(g) = kv.geometry.delta else { return };
    for layer in 0..g.n_layers {
        let [from, to] = [from, to].map(|seq| layer * kv.geometry.n_seqs + seq);
        let (inputs, state) = (g.inputs_len(), g.state_len());
        kv.delta_inputs.copy(from * inputs, to * inputs, inputs);
        kv.delta_state.copy(from * state, to * state, state);
    }
}
