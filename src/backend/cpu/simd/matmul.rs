//! GEMM tiles in f32. An element of the result has the same bits as the dot product or weighted sum
//! of `dots`, whatever rows and columns are computed beside it.

// Indices of fixed arrays, which the compiler unrolls and keeps in registers.
#![allow(clippy::needless_range_loop)]

use super::super::thread_pool::Tile;
#[cfg(target_arch = "aarch64")]
use super::neon::Neon;
#[cfg(not(target_arch = "aarch64"))]
use super::vector::Exact;
#[cfg(target_arch = "x86_64")]
use super::vector::{Avx2, Avx512};
use super::vector::{Portable, Vector};
use super::{BLOCK_COLS, Isa, Set, array_of, by_isa};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m512, _mm256_loadu_ps, _mm512_broadcast_f32x8, _mm512_castps256_ps512, _mm512_castps512_ps256,
    _mm512_extractf32x8_ps, _mm512_fmadd_ps, _mm512_insertf32x8, _mm512_setzero_ps,
};

/// `out = a b^T`, or `out += a b^T`, for a `[out.rows, k]` in rows of `a_stride` and b
/// `[out.cols, k]` in rows of `b_stride`. Sums run as in [`super::dots::dots`].
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
    for start in (0..k.max(1)).step_by(BLOCK_COLS) {
        let (a, b) = (a[start..].as_ptr(), b[start..].as_ptr());
        let k = (k - start).min(BLOCK_COLS);
        let gemm = Gemm { m, n, k, a, a_stride, b, b_stride, width: out.width(), add: add || start > 0 };
        a_bt_of(isa, gemm, out.as_mut_ptr());
    }
}

/// `out += a b`, for a `[out.rows, k]` in rows of `a_stride` and b `[k, out.cols]` in rows of
/// `b_stride`. Sums run as in [`super::dots::weighted_sum`].
pub(in super::super) fn add_a_b(
    isa: Isa,
    out: &mut Tile<'_>,
    a: &[f32],
    a_stride: usize,
    b: &[f32],
    b_stride: usize,
    k: usize,
) {
    let (m, n) = (out.rows(), out.cols());
    if m == 0 || n == 0 || k == 0 {
        return;
    }
    assert!((m - 1) * a_stride + k <= a.len(), "shapes of a GEMM");
    assert!((k - 1) * b_stride + n <= b.len(), "shapes of a GEMM");
    let gemm = Gemm { m, n, k, a: a.as_ptr(), a_stride, b: b.as_ptr(), b_stride, width: out.width(), add: true };
    a_b_of(isa, gemm, out.as_mut_ptr());
}

/// Arguments of a GEMM, checked by its callers: `a [m, k]`, `b [n, k]` or `[k, n]`, `out [m, n]` in
/// rows of `width`.
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

fn a_bt_of(isa: Isa, gemm: Gemm, out: *mut f32) {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::EXACT && super::isa::has_avx512() {
        // SAFETY: the instructions were detected, and `a_bt` has checked the shapes.
        return unsafe { a_bt_in_pairs(gemm, out) };
    }
    by_isa!(isa, a_bt_body::<>(gemm: Gemm, out: *mut f32))
}

fn a_b_of(isa: Isa, gemm: Gemm, out: *mut f32) {
    by_isa!(isa, a_b_body::<>(gemm: Gemm, out: *mut f32))
}

/// The sums of a tile fit the registers: 32 of AVX-512, else 16. Measured on two instruction sets:
/// 130 to 160 GFLOP/s on a thread with AVX-512, 96 to 108 with AVX2.
#[inline(always)]
unsafe fn a_bt_body<V: Vector>(g: Gemm, out: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe { if V::LANES == 16 { a_bt_tiles::<V, 6>(g, out) } else { a_bt_tiles::<V, 3>(g, out) } }
}

/// Rows of `a` in a tile of [`a_bt_tiles`], whose sums [`Vector::sum4`] reduces together.
const TILE_M: usize = 4;

/// A sum runs over columns `lane + i LANES` in each lane, then over the lanes, then over the
/// columns that are left.
#[inline(always)]
unsafe fn a_bt_tiles<V: Vector, const N: usize>(g: Gemm, out: *mut f32) {
    let whole = g.k / V::LANES * V::LANES;
    for i in (0..g.m).step_by(TILE_M) {
        for j in (0..g.n).step_by(N) {
            // SAFETY: a row that is missing in a tile is read as the last one, and its sums are
            // dropped.
            unsafe {
                let a: [*const f32; TILE_M] = array_of!(TILE_M, r => g.a.add((i + r).min(g.m - 1) * g.a_stride));
                let b: [*const f32; N] = array_of!(N, r => g.b.add((j + r).min(g.n - 1) * g.b_stride));
                let mut acc = [[V::splat(0.0); TILE_M]; N];
                for c in (0..whole).step_by(V::LANES) {
                    let b: [V; N] = array_of!(N, y => V::load(b[y].add(c)));
                    for x in 0..TILE_M {
                        let a = V::load(a[x].add(c));
                        for y in 0..N {
                            acc[y][x] = b[y].mul_add(a, acc[y][x]);
                        }
                    }
                }
                for y in 0..N.min(g.n - j) {
                    let mut sums = V::sum4(acc[y]);
                    for x in 0..TILE_M.min(g.m - i) {
                        for c in whole..g.k {
                            sums[x] += *b[y].add(c) * *a[x].add(c);
                        }
                        let out = out.add((i + x) * g.width + j + y);
                        *out = if g.add { *out + sums[x] } else { sums[x] };
                    }
                }
            }
        }
    }
}

/// [`a_bt_tiles`] of [`Avx2`], with the same bits, by AVX-512: a register has the eight lanes of
/// two rows of `b`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn a_bt_in_pairs(g: Gemm, out: *mut f32) {
    const PAIRS: usize = 4;
    let whole = g.k / Avx2::LANES * Avx2::LANES;
    for i in (0..g.m).step_by(TILE_M) {
        for j in (0..g.n).step_by(2 * PAIRS) {
            // SAFETY: as in `a_bt_tiles`.
            unsafe {
                let a: [*const f32; TILE_M] = array_of!(TILE_M, r => g.a.add((i + r).min(g.m - 1) * g.a_stride));
                let b: [*const f32; 2 * PAIRS] = array_of!(2 * PAIRS, r => g.b.add((j + r).min(g.n - 1) * g.b_stride));
                let mut acc = [[_mm512_setzero_ps(); TILE_M]; PAIRS];
                for c in (0..whole).step_by(Avx2::LANES) {
                    let a: [__m512; TILE_M] =
                        array_of!(TILE_M, x => _mm512_broadcast_f32x8(_mm256_loadu_ps(a[x].add(c))));
                    for y in 0..PAIRS {
                        let [lower, upper] = [_mm256_loadu_ps(b[2 * y].add(c)), _mm256_loadu_ps(b[2 * y + 1].add(c))];
                        let b = _mm512_insertf32x8::<1>(_mm512_castps256_ps512(lower), upper);
                        for x in 0..TILE_M {
                            acc[y][x] = _mm512_fmadd_ps(b, a[x], acc[y][x]);
                        }
                    }
                }
                for y in 0..(2 * PAIRS).min(g.n - j) {
                    let of_row: [Avx2; TILE_M] = if y % 2 == 0 {
                        array_of!(TILE_M, x => Avx2(_mm512_castps512_ps256(acc[y / 2][x])))
                    } else {
                        array_of!(TILE_M, x => Avx2(_mm512_extractf32x8_ps::<1>(acc[y / 2][x])))
                    };
                    let mut sums = Avx2::sum4(of_row);
                    for x in 0..TILE_M.min(g.m - i) {
                        for c in whole..g.k {
                            sums[x] += *b[y].add(c) * *a[x].add(c);
                        }
                        let out = out.add((i + x) * g.width + j + y);
                        *out = if g.add { *out + sums[x] } else { sums[x] };
                    }
                }
            }
        }
    }
}

/// Tiles of six rows and the columns that fit in registers.
#[inline(always)]
unsafe fn a_b_body<V: Vector>(g: Gemm, out: *mut f32) {
    let mut j = 0;
    // SAFETY: every column below `n` is visited once, by the widest step that fits.
    unsafe {
        let wide = if V::LANES == 16 { 4 } else { 2 };
        while j + wide * V::LANES <= g.n {
            if V::LANES == 16 {
                a_b_columns::<V, 4>(g, j, out)
            } else {
                a_b_columns::<V, 2>(g, j, out)
            }
            j += wide * V::LANES;
        }
        while j + V::LANES <= g.n {
            a_b_columns::<V, 1>(g, j, out);
            j += V::LANES;
        }
        for x in 0..g.m {
            for j in j..g.n {
                let out = out.add(x * g.width + j);
                for c in 0..g.k {
                    *out += *g.a.add(x * g.a_stride + c) * *g.b.add(c * g.b_stride + j);
                }
            }
        }
    }
}

/// `C` vectors of columns from `j` on. A sum runs over k in order.
#[inline(always)]
unsafe fn a_b_columns<V: Vector, const C: usize>(g: Gemm, j: usize, out: *mut f32) {
    const M: usize = 6;
    for i in (0..g.m).step_by(M) {
        // SAFETY: a row that is missing in a tile is read as the last one, and its sums are
        // dropped.
        unsafe {
            let row = |r: usize| (i + r).min(g.m - 1);
            let a: [*const f32; M] = array_of!(M, r => g.a.add(row(r) * g.a_stride));
            let out: [*mut f32; M] = array_of!(M, r => out.add(row(r) * g.width + j));
            let mut acc: [[V; C]; M] = array_of!(M, x => array_of!(C, y => V::load(out[x].add(y * V::LANES))));
            for c in 0..g.k {
                let b: [V; C] = array_of!(C, y => V::load(g.b.add(c * g.b_stride + j + y * V::LANES)));
                for x in 0..M {
                    let a = V::splat(*a[x].add(c));
                    for y in 0..C {
                        acc[x][y] = b[y].mul_add(a, acc[x][y]);
                    }
                }
            }
            for x in 0..M.min(g.m - i) {
                for y in 0..C {
                    acc[x][y].store(out[x].add(y * V::LANES));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::super::dots::{Rows, dots, weighted_sum};
    use super::super::maths::tests::random;
    use super::*;

    /// The exact GEMMs have the bits of a plain loop in the documented order, however they were
    /// compiled.
    #[test]
    fn exact_gemms_have_the_same_bits_everywhere() {
        for (m, n, k) in [(1, 1, 5), (4, 2, 64), (7, 9, 83), (5, 16, 200)] {
            let (a, b, start) = (random(m * k, 1), random(n * k, 2), random(m * n, 3));
            let b_t: Vec<f32> = (0..k * n).map(|i| b[i % n * k + i / n]).collect();
            let (mut got, mut transposed) = (start.clone(), start.clone());
            a_bt(Isa::EXACT, &mut Tile::new(&mut got, m, n), &a, k, &b, k, k, true);
            add_a_b(Isa::EXACT, &mut Tile::new(&mut transposed, m, n), &a, k, &b_t, n, k);
            for (i, (got, transposed)) in got.iter().zip(&transposed).enumerate() {
                let (a, b) = (&a[i / n * k..][..k], &b[i % n * k..][..k]);
                let mut lanes = [0f32; 8];
                (0..k / 8 * 8).for_each(|c| lanes[c % 8] = a[c].mul_add(b[c], lanes[c % 8]));
                let h: [f32; 4] = std::array::from_fn(|l| lanes[l] + lanes[l + 4]);
                let sum = (k / 8 * 8..k).fold((h[0] + h[1]) + (h[2] + h[3]), |sum, c| sum + a[c] * b[c]);
                assert_eq!(got.to_bits(), (start[i] + sum).to_bits(), "{m} {n} {k}");
                // Columns behind the last whole vector are not fused.
                let fused = i % n < n / 8 * 8;
                let add = |sum, c: usize| if fused { a[c].mul_add(b[c], sum) } else { sum + a[c] * b[c] };
                let sum = (0..k).fold(start[i], add);
                assert_eq!(transposed.to_bits(), sum.to_bits(), "{m} {n} {k}");
            }
        }
    }

    /// Prefill has the bits of decode: every row of a GEMM is the GEMV of that row.
    #[test]
    fn gemms_have_the_bits_of_dot_products_and_weighted_sums() {
        for isa in Isa::available().into_iter().chain([Isa::EXACT]) {
            for (m, n, k) in [(1, 1, 5), (7, 9, 83), (13, 40, 128), (6, 7, 2 * BLOCK_COLS + 75)] {
                let (a, b, start) = (random(m * k, 1), random(n * k, 2), random(m * n, 3));
                let b_t: Vec<f32> = (0..k * n).map(|i| b[i % n * k + i / n]).collect();
                let (mut got, mut want) = (vec![0.0; m * n], vec![0.0; m * n]);
                a_bt(isa, &mut Tile::new(&mut got, m, n), &a, k, &b, k, k, false);
                let rows = Rows::new(bytemuck::cast_slice(&b), Format::F32, k);
                let (mut sums, mut wanted) = (start.clone(), start);
                add_a_b(isa, &mut Tile::new(&mut sums, m, n), &a, k, &b_t, n, k);
                let values = Rows::new(bytemuck::cast_slice(&b_t), Format::F32, n);
                for x in 0..m {
                    dots(isa, rows, &a[x * k..], &mut Tile::new(&mut want[x * n..], 1, n));
                    weighted_sum(isa, values, &a[x * k..], k, &mut Tile::new(&mut wanted[x * n..], 1, n));
                }
                let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert!(bits(&got) == bits(&want), "dot products {} {m} {n} {k}", isa.name());
                assert!(bits(&sums) == bits(&wanted), "weighted sums {} {m} {n} {k}", isa.name());
            }
        }
    }
}
