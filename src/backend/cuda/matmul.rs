//! Matmuls with a weight: the choice between `gemv` and `gemm` for plain weights, and `packed`.

use super::super::{Next, Norm};
use super::abi::DecodeNorm;
use super::memory::{Acts, Buf, Stored, Weight};
use super::{Cuda, gemm, gemv, packed};

/// `out = x weight^T + bias` in f32, of `m` rows.
pub(super) fn matmul(cuda: &Cuda, out: u64, x: &Acts, weight: &Weight, bias: Option<&Buf<f32>>, m: usize) {
    x.holds(m);
    let gemm = gemm::describe(out, x.ptr(), weight, bias, m);
    match weight.stored {
        Stored::Packed(code) => packed::matmul(cuda, code, &gemm, x),
        Stored::Plain(dtype) if !x.bf16 => gemm::plain(cuda, &gemm, dtype),
        Stored::Plain(_) => {
            assert!(weight.on_tensor_cores(), "bf16 activations for a weight that is multiplied in f32");
            if m == 1 { gemv::matmul(cuda, &gemm, false) } else { gemm::bf16(cuda, &gemm) }
        }
    }
}

/// `out = silu(gate) * up` of `[gate | up] = x weight^T + bias`, x and out in bf16.
pub(super) fn fused_swiglu(
    cuda: &Cuda,
    out: &mut Acts,
    scratch: &mut Acts,
    x: &Acts,
    weight: &Weight,
    bias: Option<&Buf<f32>>,
    m: usize,
) {
    assert!(out.bf16 && 2 * out.width == weight.rows, "SwiGLU's output does not fit");
    out.fills(m);
    x.holds(m);
    match weight.stored {
        Stored::Packed(code) => {
            let gemm = gemm::describe(out.ptr(), x.ptr(), weight, bias, m);
            packed::fused_swiglu(cuda, code, &gemm, out, scratch, x);
        }
        Stored::Plain(_) if m == 1 => {
            gemv::matmul(cuda, &gemm::describe(out.ptr(), x.ptr(), weight, bias, m), true);
        }
        Stored::Plain(_) => gemm::fused_swiglu(cuda, out, scratch, x, weight, bias, m),
    }
}

/// `acc += x weight^T + bias` by one kernel; false where there is none.
pub(super) fn add(
    cuda: &Cuda,
    acc: &mut Acts,
    x: &Acts,
    weight: &Weight,
    bias: Option<&Buf<f32>>,
    next: Option<Next<'_, Cuda>>,
    m: usize,
) -> bool {
    assert_eq!((acc.width, x.width), (weight.rows, weight.cols), "activations do not fit the weight");
    acc.holds_f32(m);
    x.holds(m);
    match weight.stored {
        Stored::Packed(code) if x.bf16 => packed::add(cuda, code, &gemm::describe(acc.ptr(), x.ptr(), weight, bias, m)),
        Stored::Plain(_) if x.bf16 && m == 1 => {
            gemv::add(cuda, &gemm::describe(acc.ptr(), x.ptr(), weight, bias, m));
            true
        }
        Stored::Plain(_) if x.bf16 => {
            let Some(next) = next else { return false };
            let Some(squares) = next.h.squares_to_fill(m) else { return false };
            assert_eq!(next.h.width, acc.width, "a norm's input does not fit the sum");
            let (scaled, weight_of_norm) = (next.h.ptr(), next.norm.weight.ptr());
            let norm = DecodeNorm { scaled, weight: weight_of_norm, squares, ..DecodeNorm::default() };
            gemm::decode(cuda, &gemm::describe(acc.ptr(), x.ptr(), weight, bias, m), false, &norm);
            true
        }
        _ => false,
    }
}

/// `out = rms_norm(x) weight^T + bias` by one kernel, or with `fused` SwiGLU of that; false where there is none. `h` may hold
/// what [`add`] has prepared.
#[allow(clippy::too_many_arguments)]
pub(super) fn norm(
    cuda: &Cuda,
    out: &mut Acts,
    h: &Acts,
    x: &Acts,
    norm: &Norm<'_, Cuda>,
    weight: &Weight,
    bias: Option<&Buf<f32>>,
    non_finite: &mut Buf<i32>,
    m: usize,
    fused: bool,
) -> bool {
    let width = if fused { 2 * out.width } else { out.width };
    assert_eq!((width, x.width), (weight.rows, weight.cols), "activations do not fit the weight");
    out.fills(m);
    x.holds_f32(m);
    match weight.stored {
        Stored::Packed(code) if out.bf16 == fused => {
            let gemm = gemm::describe(out.ptr(), x.ptr(), weight, bias, m);
            packed::norm(cuda, code, &gemm, norm, non_finite.ptr(), fused)
        }
        Stored::Plain(_) if out.bf16 == fused && m == 1 && weight.on_tensor_cores() => {
            let gemm = gemm::describe(out.ptr(), x.ptr(), weight, bias, m);
            gemv::norm(cuda, &gemm, norm, non_finite.ptr(), fused)
        }
        Stored::Plain(_) if out.bf16 == fused && m > 1 && weight.on_tensor_cores() => {
            let Some(squares) = h.take_squares(m) else { return false };
            let (eps, layer) = (norm.eps, norm.layer as i32);
            let norm = DecodeNorm { squares, non_finite: non_finite.ptr(), eps, layer, ..DecodeNorm::default() };
            gemm::decode(cuda, &gemm::describe(out.ptr(), h.ptr(), weight, bias, m), fused, &norm);
            true
        }
        _ => false,
    }
}
