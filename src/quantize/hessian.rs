//! The Hessian of a matrix's output error: H is the mean of `x^T x` over inputs, and its factor is
//! what [`quant`](crate::quant) corrects errors by. f32 and f64 sums in a fixed order, each by one
//! thread: the same bits on every machine and with any number of threads.

// Indexed loops, which become vector code.
#![allow(clippy::needless_range_loop)]

use crate::cores;
use crate::quant::{Column, Factor, TILE_ROWS, add_products, vectorized};

/// Share of the mean of H's diagonal that is added to it: columns that a short text hardly uses
/// keep small corrections.
const DAMPING: f64 = 0.02;
/// Columns of a block of the factorization.
const BLOCK: usize = 64;
const LANES: usize = 8;

/// Bytes of the lower triangle of H and of the factor of a matrix that wide.
pub fn bytes(cols: usize) -> u64 {
    let triangle = (cols as u64) * (cols as u64 + 1) / 2;
    triangle * (size_of::<f64>() + size_of::<f32>()) as u64
}

/// Where row `i` of a lower triangle begins.
fn start(i: usize) -> usize {
    i * (i + 1) / 2
}

/// The factor of the inputs `x [n, cols]`, where `cols` is a multiple of 16. `None` if they have
/// none: all are zero, or one is not finite.
pub fn factor(x: &[f32], cols: usize, threads: usize) -> Option<Factor> {
    let mut triangle = reversed_sums(x, cols, threads);
    let (n, mut mean) = ((x.len() / cols) as f64, 0.0);
    triangle.iter_mut().for_each(|h| *h /= n);
    (0..cols).for_each(|i| mean += triangle[start(i) + i] / cols as f64);
    if !(mean > 0.0 && mean.is_finite()) {
        return None;
    }
    (0..cols).for_each(|i| triangle[start(i) + i] += DAMPING * mean);
    cholesky(&mut triangle, cols, threads)?;
    Some(unit(&triangle, cols))
}

/// The lower triangle of the sums of `x^T x`, with the columns of x in reverse: its Cholesky factor
/// is then the reverse of an upper one.
fn reversed_sums(x: &[f32], cols: usize, threads: usize) -> Vec<f64> {
    let panels: Vec<Vec<Column>> = (0..cols / TILE_ROWS)
        .map(|p| {
            let last = cols - 1 - p * TILE_ROWS;
            x.chunks_exact(cols).map(|x| std::array::from_fn(|i| x[last - i])).collect()
        })
        .collect();
    let mut out = vec![0.0; start(cols)];
    let mut rows = Vec::new();
    let mut rest = &mut out[..];
    for p in 0..panels.len() {
        let (these, behind) = rest.split_at_mut(start((p + 1) * TILE_ROWS) - start(p * TILE_ROWS));
        rows.push((p, these));
        rest = behind;
    }
    // The longest rows first.
    rows.reverse();
    cores::each(rows, threads, |(p, rows)| {
        let first = start(p * TILE_ROWS);
        for q in 0..=p {
            let tile = vectorized(
                #[inline(always)]
                || outer(&panels[p], &panels[q]),
            );
            for i in 0..TILE_ROWS {
                let row = p * TILE_ROWS + i;
                let len = if q == p { i + 1 } else { TILE_ROWS };
                let at = start(row) - first + q * TILE_ROWS;
                rows[at..at + len].iter_mut().zip(&tile[i]).for_each(|(to, v)| *to = f64::from(*v));
            }
        }
    });
    out
}

/// `a^T b` of two panels of columns, in the order of their rows.
#[inline(always)]
fn outer(a: &[Column], b: &[Column]) -> [Column; TILE_ROWS] {
    let mut out = [[0.0; TILE_ROWS]; TILE_ROWS];
    for four in 0..TILE_ROWS / 4 {
        let mut sums = [[0.0; TILE_ROWS]; 4];
        for (a, b) in a.iter().zip(b) {
            for i in 0..4 {
                for j in 0..TILE_ROWS {
                    sums[i][j] += a[4 * four + i] * b[j];
                }
            }
        }
        out[4 * four..4 * four + 4].copy_from_slice(&sums);
    }
    out
}

/// Replaces a lower triangle by its Cholesky factor, `a = l l^T`. `None` if it is not positive
/// definite.
fn cholesky(a: &mut [f64], n: usize, threads: usize) -> Option<()> {
    for first in (0..n).step_by(BLOCK) {
        let end = n.min(first + BLOCK);
        let (above, below) = a.split_at_mut(start(end));
        for i in first..end {
            for j in first..=i {
                let (before, row) = above.split_at_mut(start(i));
                let of_j = if j == i { &row[..j] } else { &before[start(j)..][..j] };
                let rest = row[j] - dots([&row[..j]; 4], of_j)[0];
                row[j] = if j < i { rest / before[start(j) + j] } else { rest.sqrt() };
            }
            let pivot = above[start(i) + i];
            if !(pivot > 0.0 && pivot.is_finite()) {
                return None;
            }
        }
        // Four rows at a time.
        let mut rows = Vec::new();
        let mut rest = below;
        for i in (end..n).step_by(4) {
            let (these, behind) = rest.split_at_mut(start(n.min(i + 4)) - start(i));
            rows.push((i, these));
            rest = behind;
        }
        let above = &above[..];
        cores::each(rows, threads, |(i, rows)| {
            vectorized(
                #[inline(always)]
                || solve(rows, i, above, first..end),
            );
        });
    }
    Some(())
}

/// Columns `block` of the factor in up to four rows from `i` on; `above` has the rows of the
/// factor up to the block's end.
#[inline(always)]
fn solve(rows: &mut [f64], i: usize, above: &[f64], block: std::ops::Range<usize>) {
    let mut four: Vec<&mut [f64]> = Vec::with_capacity(4);
    let (mut rest, mut len) = (rows, i + 1);
    while !rest.is_empty() {
        let (row, behind) = rest.split_at_mut(len);
        four.push(row);
        (rest, len) = (behind, len + 1);
    }
    let last = four.len() - 1;
    for j in block {
        let l = &above[start(j)..][..j + 1];
        let dots = dots(std::array::from_fn(|r| &four[r.min(last)][..j]), &l[..j]);
        for r in 0..=last {
            four[r][j] = (four[r][j] - dots[r]) / l[j];
        }
    }
}

/// Dot products of four rows with another.
#[inline(always)]
fn dots(a: [&[f64]; 4], b: &[f64]) -> [f64; 4] {
    let mut lanes = [[0.0; LANES]; 4];
    let (whole, tail) = b.as_chunks::<LANES>();
    let a = a.map(|a| &a[..b.len()]);
    for k in 0..whole.len() {
        for r in 0..4 {
            for i in 0..LANES {
                lanes[r][i] += a[r][k * LANES + i] * whole[k][i];
            }
        }
    }
    let done = whole.len() * LANES;
    std::array::from_fn(|r| {
        let mut sum = 0.0;
        tail.iter().zip(&a[r][done..]).for_each(|(b, a)| sum += a * b);
        lanes[r].iter().fold(sum, |sum, lane| sum + lane)
    })
}

/// The upper factor with ones in its diagonal, from the Cholesky factor of the reversed matrix.
fn unit(l: &[f64], cols: usize) -> Factor {
    let mut above = vec![0.0f32; cols * cols.saturating_sub(1) / 2];
    let mut diagonal = vec![0.0f32; cols];
    for k in 0..cols {
        let reversed = cols - 1 - k;
        let pivot = l[start(reversed) + reversed];
        diagonal[k] = (pivot * pivot) as f32;
        let column = &mut above[k * k.saturating_sub(1) / 2..][..k];
        for (j, u) in column.iter_mut().enumerate() {
            *u = (l[start(cols - 1 - j) + reversed] / pivot) as f32;
        }
    }
    Factor::new(above, diagonal)
}

/// Sum of squares of the outputs of `x [n, cols]` with the columns of a strip's errors.
pub fn output_error(x: &[f32], errors: &[Column]) -> f64 {
    let cols = errors.len();
    vectorized(
        #[inline(always)]
        || {
            let mut sum = 0.0;
            let n = x.len() / cols;
            for first in (0..n).step_by(4) {
                let mut outputs = [[0.0; TILE_ROWS]; 4];
                let row = |i: usize| &x[(first + i).min(n - 1) * cols..][..cols];
                add_products(&mut outputs, std::array::from_fn(row), errors);
                for output in &outputs[..4.min(n - first)] {
                    for v in output {
                        sum += f64::from(*v) * f64::from(*v);
                    }
                }
            }
            sum
        },
    )
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Correlated inputs of very different sizes.
    pub fn inputs(n: usize, cols: usize) -> Vec<f32> {
        let mut state = 7u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let mut out = Vec::new();
        for _ in 0..n {
            let shared = [next(), next(), next()];
            out.extend((0..cols).map(|c| {
                let size = if c % 29 == 3 { 20.0 } else { 1.0 };
                size * (shared[c % 3] + 0.3 * next())
            }));
        }
        out
    }

    #[test]
    fn the_factor_makes_the_hessian_again() {
        for cols in [16, 64, 208] {
            let x = inputs(300, cols);
            let factors = [1, 8].map(|threads| factor(&x, cols, threads).unwrap());
            assert_eq!(factors[0].parts(), factors[1].parts(), "other bits with other threads");
            let (above, diagonal) = factors[0].parts();
            let u = |j: usize, k: usize| match j.cmp(&k) {
                std::cmp::Ordering::Less => above[k * (k - 1) / 2 + j] as f64,
                std::cmp::Ordering::Equal => 1.0,
                std::cmp::Ordering::Greater => 0.0,
            };
            let h = |i: usize, j: usize| x.chunks(cols).map(|x| x[i] as f64 * x[j] as f64).sum::<f64>() / 300.0;
            let damping = DAMPING * (0..cols).map(|i| h(i, i)).sum::<f64>() / cols as f64;
            for i in 0..cols {
                for j in 0..cols {
                    let got: f64 = (0..cols).map(|k| u(i, k) * diagonal[k] as f64 * u(j, k)).sum();
                    let want = h(i, j) + if i == j { damping } else { 0.0 };
                    let size = (h(i, i) * h(j, j)).sqrt();
                    assert!((got - want).abs() < 2e-5 * (size + damping), "{cols} {i} {j}: {got} {want}");
                }
            }
        }
    }

    #[test]
    fn inputs_without_a_factor_have_none() {
        assert!(factor(&[0.0; 64 * 3], 64, 2).is_none());
        let mut x = inputs(10, 64);
        x[5] = f32::NAN;
        assert!(factor(&x, 64, 2).is_none());
        x[5] = f32::INFINITY;
        assert!(factor(&x, 64, 2).is_none());
    }
}
