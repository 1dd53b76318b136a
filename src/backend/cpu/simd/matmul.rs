//! GEMM tiles in f32, by the gemm crate, whose sums depend on the machine; for [`Isa::EXACT`] by loops of our own.

// Indices of fixed arrays, which the compiler unrolls and keeps in registers.
#![allow(clippy::needless_range_loop)]

use super::super::thread_pool::Tile;
#[cfg(target_arch = "x86_64")]
use super::vector::{Avx2, Avx512};
use super::vector::{Exact, Portable, Vector};
use super::{Isa, Set, by_isa};

/// `out = a b^T`, or `out += a b^T`, for a `[out.rows, k]` in rows of `a_stride` and b `[out.cols, k]`
/// in rows of `b_stride`.
#[allow(clippy::too_many_arguments)] // The shape of a kernel.
pub(in super::super) fn a_bt(
    isa: Isa,
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
    if isa.is_exact() {
        let gemm = Gemm { m, n, k, a: a.as_ptr(), a_stride, b: b.as_ptr(), b_stride, width: out.width(), add };
        return exact_a_bt(isa, gemm, out.as_mut_ptr());
    }
    product(out, a, a_stride, b, (1, b_stride), k, add);
}

/// `out = a b`, or `out += a b`, for a `[out.rows, k]` in rows of `a_stride` and b `[k, out.cols]` in rows
/// of `b_stride`.
#[allow(clippy::too_many_arguments)] // The shape of a kernel.
pub(in super::super) fn a_b(
    isa: Isa,
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
    if isa.is_exact() {
        let gemm = Gemm { m, n, k, a: a.as_ptr(), a_stride, b: b.as_ptr(), b_stride, width: out.width(), add };
        return exact_a_b(isa, gemm, out.as_mut_ptr());
    }
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

/// Arguments of an exact GEMM, checked by its callers: `a [m, k]`, `b [n, k]` or `[k, n]`, `out [m, n]` in rows of `width`.
#[derive(Clone, Copy)]
struct Gemm {
    m: usize,
    n: usize,
    k: usize,
    a: *const f32,
    a_stride: usize,
    b: *const f32,
    b_stride: usize,
    width: usize,
    add: bool,
}

fn exact_a_bt(isa: Isa, gemm: Gemm, out: *mut f32) {
    by_isa!(isa, a_bt_body::<>(gemm: Gemm, out: *mut f32))
}

fn exact_a_b(isa: Isa, gemm: Gemm, out: *mut f32) {
    by_isa!(isa, a_b_body::<>(gemm: Gemm, out: *mut f32))
}

/// Rows of `a` and of `b^T` in a tile of sums, which fit 16 registers.
const TILE_M: usize = 4;
const TILE_N: usize = 2;

/// A sum runs over columns `lane + i LANES` in each lane, then over the lanes, then over the columns that are left.
#[inline(always)]
unsafe fn a_bt_body<V: Vector>(g: Gemm, out: *mut f32) {
    let whole = g.k / V::LANES * V::LANES;
    for i in (0..g.m).step_by(TILE_M) {
        for j in (0..g.n).step_by(TILE_N) {
            // SAFETY: a row that is missing in a tile is read as the last one, and its sums are dropped.
            unsafe {
                let a: [*const f32; TILE_M] = std::array::from_fn(|r| g.a.add((i + r).min(g.m - 1) * g.a_stride));
                let b: [*const f32; TILE_N] = std::array::from_fn(|r| g.b.add((j + r).min(g.n - 1) * g.b_stride));
                let mut acc = [[V::splat(0.0); TILE_M]; TILE_N];
                for c in (0..whole).step_by(V::LANES) {
                    for y in 0..TILE_N {
                        let b = V::load(b[y].add(c));
                        for x in 0..TILE_M {
                            acc[y][x] = b.mul_add(V::load(a[x].add(c)), acc[y][x]);
                        }
                    }
                }
                for y in 0..TILE_N.min(g.n - j) {
                    let mut sums = V::sum4(acc[y]);
                    for x in 0..TILE_M.min(g.m - i) {
                        for c in whole..g.k {
                            sums[x] += *a[x].add(c) * *b[y].add(c);
                        }
                        let out = out.add((i + x) * g.width + j + y);
                        *out = if g.add { *out + sums[x] } else { sums[x] };
                    }
                }
            }
        }
    }
}

/// A sum runs over k in order.
#[inline(always)]
unsafe fn a_b_body<V: Vector>(g: Gemm, out: *mut f32) {
    let whole = g.n / V::LANES * V::LANES;
    for i in (0..g.m).step_by(TILE_M) {
        let rows = TILE_M.min(g.m - i);
        // SAFETY: a row that is missing in a tile is read as the last one, and its sums are dropped.
        unsafe {
            let a: [*const f32; TILE_M] = std::array::from_fn(|r| g.a.add((i + r).min(g.m - 1) * g.a_stride));
            let out: [*mut f32; TILE_M] = std::array::from_fn(|r| out.add((i + r).min(g.m - 1) * g.width));
            for j in (0..whole).step_by(V::LANES) {
                let start = |x: usize| if g.add { V::load(out[x].add(j)) } else { V::splat(0.0) };
                let mut acc: [V; TILE_M] = std::array::from_fn(start);
                for c in 0..g.k {
                    let b = V::load(g.b.add(c * g.b_stride + j));
                    for x in 0..TILE_M {
                        acc[x] = b.mul_add(V::splat(*a[x].add(c)), acc[x]);
                    }
                }
                (0..rows).for_each(|x| acc[x].store(out[x].add(j)));
            }
            for x in 0..rows {
                for j in whole..g.n {
                    let start = if g.add { *out[x].add(j) } else { 0.0 };
                    let products = (0..g.k).map(|c| *a[x].add(c) * *g.b.add(c * g.b_stride + j));
                    *out[x].add(j) = products.fold(start, |sum, p| sum + p);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::maths::tests::random;
    use super::*;

    /// The exact GEMMs have the bits of a plain loop in the documented order, however they were compiled.
    #[test]
    fn exact_gemms_have_the_same_bits_everywhere() {
        for (m, n, k) in [(1, 1, 5), (4, 2, 64), (7, 9, 83), (5, 16, 200)] {
            let (a, b, start) = (random(m * k, 1), random(n * k, 2), random(m * n, 3));
            let b_t: Vec<f32> = (0..k * n).map(|i| b[i % n * k + i / n]).collect();
            for add in [false, true] {
                let base = |i: usize| if add { start[i] } else { 0.0 };
                let [mut got, mut transposed] = [start.clone(), start.clone()];
                a_bt(Isa::EXACT, &mut Tile::new(&mut got, m, n), &a, k, &b, k, k, add);
                a_b(Isa::EXACT, &mut Tile::new(&mut transposed, m, n), &a, k, &b_t, n, k, add);
                for (i, (got, transposed)) in got.iter().zip(&transposed).enumerate() {
                    let products: Vec<f32> = (0..k).map(|c| a[i / n * k + c] * b[i % n * k + c]).collect();
                    let mut lanes = [0f32; 8];
                    products[..k / 8 * 8].iter().enumerate().for_each(|(c, p)| lanes[c % 8] += p);
                    let h: [f32; 4] = std::array::from_fn(|l| lanes[l] + lanes[l + 4]);
                    let sum = products[k / 8 * 8..].iter().fold((h[0] + h[2]) + (h[1] + h[3]), |sum, p| sum + p);
                    assert_eq!(got.to_bits(), (if add { base(i) + sum } else { sum }).to_bits(), "{m} {n} {k} {add}");
                    let sum = products.iter().fold(base(i), |sum, p| sum + p);
                    assert_eq!(transposed.to_bits(), sum.to_bits(), "{m} {n} {k} {add}");
                }
            }
        }
    }
}
