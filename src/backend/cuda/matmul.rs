//! Linear layers: chooses the kernels for the norm, the matmul and the use of its result, and fuses
//! them where possible.
//!
//! A sum into a residual stream is completed by the op that reads it, because the cheapest way
//! depends on that op: a norm adds the result of a separate matmul while it reads, and between two
//! GEMMs of a small batch there is no norm kernel at all (`gemm_decode.cu`). Until then the sum is
//! [`Pending`].

use super::super::{After, Linear, Norm};
use super::abi;
use super::abi::Arg::{F32, Ptr, U64};
use super::cublaslt::Gemm;
use super::gemm::Gate;
use super::gemv::Then;
use super::gpu::{Cuda, Pending};
use super::kernels::{BLOCK, Kernel};
use super::memory::{Acts, Buf, Stored, UNSCALED_ROWS, Weight};
use super::{gemm, gemv, packed};

/// Address of the matmul's result, which is launched now if it was not.
fn result(cuda: &Cuda, pending: &Pending) -> u64 {
    if !pending.launched {
        gemm::bf16(cuda, &pending.gemm);
    }
    pending.gemm.out
}

impl Cuda {
    /// Completes the pending sum. Every op that may read or write activations begins with it, or
    /// with [`Self::pending_of`].
    pub(super) fn settle(&self) {
        if let Some(pending) = self.pending.take() {
            let values = pending.gemm.m * pending.gemm.n;
            let args = [Ptr(pending.acc), Ptr(result(self, &pending)), U64(values as u64)];
            self.driver.launch(Kernel::Add, [values.div_ceil(BLOCK), 1, 1], BLOCK, &args);
        }
    }

    /// Returns the sum pending for the first `m` rows of `x`; completes any other pending sum.
    fn pending_of(&self, x: &Acts, m: usize) -> Option<Pending> {
        let pending = self.pending.take()?;
        if (pending.acc, pending.gemm.m) == (x.ptr(), m) {
            return Some(pending);
        }
        self.pending.set(Some(pending));
        self.settle();
        None
    }
}

/// [`Ops::rms_norm`](super::super::Ops::rms_norm), including the sum pending for `x`.
pub(super) fn rms_norm(cuda: &Cuda, out: &mut Acts, x: &Acts, norm: Norm<'_, Cuda>, m: usize) {
    let more = cuda.pending_of(x, m).map_or(0, |pending| result(cuda, &pending));
    cuda.norm(out, x, more, &norm, 0.0, m);
}

/// [`Ops::linear`](super::super::Ops::linear).
pub(super) fn linear(cuda: &Cuda, out: &mut Acts, x: &Acts, layer: Linear<'_, Cuda>, m: usize) {
    let Linear { weight, bias, before, after } = layer;
    let then = match &after {
        After::Swiglu(_) => Then::Gate(Gate::Silu),
        After::Geglu(_) => Then::Gate(Gate::Gelu),
        _ => Then::Store,
    };
    let gated = then != Then::Store;
    let width = if gated { 2 * out.width } else { out.width };
    assert_eq!((width, x.width), (weight.rows, weight.cols), "activations do not fit the weight");
    let Some((norm, normed)) = before else {
        cuda.settle();
        return unnormed(cuda, out, x, weight, bias, after, m);
    };
    let pending = cuda.pending_of(x, m);
    if !matches!(after, After::Add(_)) && out.bf16 == gated {
        out.fills(m);
        x.holds_f32(m);
        let gemm = gemm::describe(out.ptr(), x.ptr(), weight, bias, m);
        if fused_norm(cuda, &gemm, normed, &norm, weight, pending.as_ref(), then) {
            return;
        }
    }
    cuda.pending.set(pending);
    rms_norm(cuda, normed, x, norm, m);
    unnormed(cuda, out, normed, weight, bias, after, m);
}

/// Runs a linear layer of `rms_norm(x)` without a norm kernel, after completing the pending sum of
/// `x`. Returns false, with nothing launched, if there is no such kernel.
fn fused_norm(
    cuda: &Cuda,
    gemm: &Gemm,
    normed: &Acts,
    norm: &Norm<'_, Cuda>,
    weight: &Weight,
    pending: Option<&Pending>,
    then: Then,
) -> bool {
    match (weight.stored, pending) {
        (_, None) => weight.on_tensor_cores() && gemv::multiply(cuda, weight, gemm, Some(norm), then),
        // These kernels have no GELU.
        (Stored::Plain(_), Some(sum))
            if !sum.launched && weight.on_tensor_cores() && then != Then::Gate(Gate::Gelu) =>
        {
            let Some(squares) = normed.squares() else { return false };
            assert_eq!(normed.width, gemm.k, "a norm's input does not fit the sum");
            normed.fills(gemm.m);
            // The first GEMM writes its sum times the norm's weight, and the sums of squares; the
            // second divides by their root.
            let (scaled, weight) = (normed.ptr(), norm.weight.ptr());
            let first = abi::Norm { scaled, weight, squares, ..abi::Norm::default() };
            gemm::decode(cuda, &Gemm { out: sum.acc, ..sum.gemm }, false, &first);
            let (eps, layer, non_finite) = (norm.eps, norm.layer as i32, norm.non_finite.ptr());
            let second = abi::Norm { squares, non_finite, eps, layer, ..abi::Norm::default() };
            gemm::decode(cuda, &Gemm { x: scaled, ..*gemm }, then != Then::Store, &second);
            true
        }
        _ => false,
    }
}

/// A linear layer without a norm before it.
fn unnormed(
    cuda: &Cuda,
    out: &mut Acts,
    x: &Acts,
    weight: &Weight,
    bias: Option<&Buf<f32>>,
    after: After<'_, Acts>,
    m: usize,
) {
    match after {
        After::Store => store(cuda, out, x, weight, bias, m),
        After::Add(sum) => add(cuda, out, sum, x, weight, bias, m),
        After::Swiglu(gate_up) if x.bf16 && out.bf16 => fused_swiglu(cuda, out, gate_up, x, weight, bias, m),
        After::Geglu(gate_up) => {
            let fits = x.bf16 && out.bf16 && weight.on_tensor_cores();
            let gemm = gemm::describe(out.ptr(), x.ptr(), weight, bias, m);
            if fits && gemv::multiply(cuda, weight, &gemm, None, Then::Gate(Gate::Gelu)) {
                return out.fills(m);
            }
            store(cuda, gate_up, x, weight, bias, m);
            gemm::glu(cuda, out, 0, gate_up, m, Gate::Gelu);
        }
        After::GeluTimes { y, rows, at } => {
            store(cuda, y, x, weight, bias, m);
            gemm::gelu_times(cuda, out, y, rows, at, m);
        }
        After::Cap(cap) => {
            store(cuda, out, x, weight, bias, m);
            let values = m * out.width;
            let args = [Ptr(out.ptr()), F32(cap), U64(values as u64)];
            cuda.driver.launch(Kernel::Cap, [values.div_ceil(BLOCK), 1, 1], BLOCK, &args);
        }
        After::Swiglu(gate_up) => {
            store(cuda, gate_up, x, weight, bias, m);
            gemm::glu(cuda, out, 0, gate_up, m, Gate::Silu);
        }
    }
}

/// `out = x weight^T + bias` in f32, of `m` rows.
pub(super) fn store(cuda: &Cuda, out: &mut Acts, x: &Acts, weight: &Weight, bias: Option<&Buf<f32>>, m: usize) {
    assert_eq!((out.width, x.width), (weight.rows, weight.cols), "activations do not fit the weight");
    out.holds_f32(m);
    x.holds(m);
    let gemm = gemm::describe(out.ptr(), x.ptr(), weight, bias, m);
    assert!(!x.bf16 || weight.on_tensor_cores(), "bf16 activations for a weight that is multiplied in f32");
    // A packed weight too wide for the GPU's shared memory is left to the kernels of more rows.
    if x.bf16 && gemv::multiply(cuda, weight, &gemm, None, Then::Store) {
        return;
    }
    match weight.stored {
        Stored::Packed => packed::matmul(cuda, weight, &gemm, x),
        Stored::Plain(_) if x.bf16 => gemm::bf16(cuda, &gemm),
        Stored::Plain(dtype) => gemm::plain(cuda, &gemm, dtype),
    }
}

/// Computes `acc += x weight^T + bias` with one kernel if there is one; else writes the result to
/// `sum`, which is then pending.
fn add(cuda: &Cuda, acc: &Acts, sum: &mut Acts, x: &Acts, weight: &Weight, bias: Option<&Buf<f32>>, m: usize) {
    acc.holds_f32(m);
    sum.holds_f32(m);
    x.holds(m);
    let gemm = gemm::describe(acc.ptr(), x.ptr(), weight, bias, m);
    if x.bf16 && gemv::multiply(cuda, weight, &gemm, None, Then::Add) {
        return;
    }
    let waits = matches!(weight.stored, Stored::Plain(_)) && x.bf16 && m <= UNSCALED_ROWS;
    if !waits {
        store(cuda, sum, x, weight, bias, m);
    }
    cuda.pending.set(Some(Pending { acc: acc.ptr(), gemm: Gemm { out: sum.ptr(), ..gemm }, launched: !waits }));
}

/// `out = silu(gate) * up` of `[gate | up] = x weight^T + bias`, x and out in bf16.
fn fused_swiglu(
    cuda: &Cuda,
    out: &mut Acts,
    scratch: &mut Acts,
    x: &Acts,
    weight: &Weight,
    bias: Option<&Buf<f32>>,
    m: usize,
) {
    out.fills(m);
    x.holds(m);
    let gemm = gemm::describe(out.ptr(), x.ptr(), weight, bias, m);
    if gemv::multiply(cuda, weight, &gemm, None, Then::Gate(Gate::Silu)) {
        return;
    }
    match weight.stored {
        Stored::Packed => packed::fused_swiglu(cuda, weight, &gemm, out, scratch, x),
        Stored::Plain(_) => gemm::fused_swiglu(cuda, out, scratch, x, weight, bias, m),
    }
}
