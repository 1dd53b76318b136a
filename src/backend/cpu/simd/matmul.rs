//! GEMM tiles in f32, by the gemm crate.

use super::super::thread_pool::Tile;

/// `out = a b^T`, or `out += a b^T`, for a `[out.rows, k]` in rows of `a_stride` and b `[out.cols, k]`
/// in rows of `b_stride`.
pub(in super::super) fn a_bt(
    out: &mut Tile<'_>,
    a: &[f32],
    a_stride: usize,
    b: &[f32],
    b_stride: usize,
    k: usize,
    add: bool,
) {
    let (m, n) = (out.rows(), out.cols());
    if m == 0 || n == 0 {
        return;
    }
    assert!((m - 1) * a_stride + k <= a.len() && (n - 1) * b_stride + k <= b.len(), "shapes of a GEMM");
    product(out, a, a_stride, b, (1, b_stride), k, add);
}

/// `out = a b`, or `out += a b`, for a `[out.rows, k]` in rows of `a_stride` and b `[k, out.cols]` in rows
/// of `b_stride`.
pub(in super::super) fn a_b(
    out: &mut Tile<'_>,
    a: &[f32],
    a_stride: usize,
    b: &[f32],
    b_stride: usize,
    k: usize,
    add: bool,
) {
    let (m, n) = (out.rows(), out.cols());
    if m == 0 || n == 0 {
        return;
    }
    assert!(k == 0 || (m - 1) * a_stride + k <= a.len(), "shapes of a GEMM");
    assert!(k == 0 || (k - 1) * b_stride + n <= b.len(), "shapes of a GEMM");
    product(out, a, a_stride, b, (b_stride, 1), k, add);
}

/// `b_strides`: elements from one k to the next, and from one column to the next.
fn product(out: &mut Tile<'_>, a: &[f32], a_stride: usize, b: &[f32], b_strides: (usize, usize), k: usize, add: bool) {
    let (m, n, width) = (out.rows(), out.cols(), out.width());
    // SAFETY: both callers have checked that the strides stay inside a and b; the tile is exclusive.
    unsafe {
        // The crate is column-major: out^T [n, m] = b^T [n, k] a^T [k, m]. Strides are column stride, then row stride.
        gemm_f32::gemm::f32::get_gemm_fn()(
            n,
            m,
            k,
            out.as_mut_ptr(),
            width as isize,
            1,
            add,
            b.as_ptr(),
            b_strides.0 as isize,
            b_strides.1 as isize,
            a.as_ptr(),
            a_stride as isize,
            1,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm_common::Parallelism::None,
        );
    }
}
