//! GPTQ: chooses the codes of a strip column by column, each for the weight as corrected for the
//! errors of the columns before it.
//!
//! The error of a row is `e H e^T`, where `e` are the errors of its weights and `H` is the mean of
//! `x^T x` over inputs. With `H = U D U^T`, where U is upper triangular with ones in its diagonal,
//! it is the sum over columns k of `D_k (e U)_k^2`: the nearest code to
//! `w_k + sum of e_j U_jk over j < k` is the best one that is chosen without regard to the columns
//! behind. Sums have a fixed order, so every machine chooses the same bytes.

// Indexed loops, which become vector code in the caller's instruction set.
#![allow(clippy::needless_range_loop)]

use super::group::{GROUP, TILE_ROWS};

/// One value of each row of a strip.
pub type Column = [f32; TILE_ROWS];

/// U and D of the inputs of a matrix.
pub struct Factor {
    cols: usize,
    /// Columns of U above the diagonal, one after the other: column k has k values.
    above: Vec<f32>,
    diagonal: Vec<f32>,
}

impl Factor {
    /// `above` has the columns of U above the diagonal, and `diagonal` D.
    pub fn new(above: Vec<f32>, diagonal: Vec<f32>) -> Self {
        let cols = diagonal.len();
        assert_eq!(above.len(), cols * cols.saturating_sub(1) / 2, "a triangle of {cols} columns");
        Self { cols, above, diagonal }
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The columns of U above the diagonal, one after the other, and D.
    pub fn parts(&self) -> (&[f32], &[f32]) {
        (&self.above, &self.diagonal)
    }

    /// Column `k` of U above the diagonal.
    #[inline(always)]
    fn column(&self, k: usize) -> &[f32] {
        &self.above[k * k.saturating_sub(1) / 2..][..k]
    }
}

/// A code whose grids are chosen for a block of columns, and then its codes one by one.
pub trait Columns {
    /// Columns of a block; the last one of a row may be shorter.
    const BLOCK: usize;
    /// Grid of a row in a block.
    type Grid;
    /// The grid of the least error of `x`, where the squared error of each column has a weight.
    fn grid(&self, x: &[f32], weights: &[f32]) -> Self::Grid;
    /// The code nearest to `x` in column `col` of a block, and its value.
    fn code(&self, grid: &Self::Grid, col: usize, x: f32) -> (u8, f32);
    /// Stores a block of row `row` with as many groups of codes as it has.
    fn put(&mut self, row: usize, block: usize, grid: &Self::Grid, codes: &[[u8; GROUP]]);
}

/// Chooses and stores the codes of a strip of `rows`, `[16, cols]`.
#[inline(always)]
pub fn choose<C: Columns>(to: &mut C, rows: &[f32], factor: &Factor) {
    let cols = factor.cols;
    let weights: Vec<Column> = (0..cols).map(|col| std::array::from_fn(|row| rows[row * cols + col])).collect();
    let mut errors = vec![[0.0; TILE_ROWS]; cols];
    let mut corrected = vec![[0.0; TILE_ROWS]; C::BLOCK];
    let mut codes = vec![[[0u8; GROUP]; TILE_ROWS]; C::BLOCK / GROUP];
    let (mut x, mut grids) = (vec![0.0; C::BLOCK], Vec::with_capacity(TILE_ROWS));
    for first in (0..cols).step_by(C::BLOCK) {
        let end = cols.min(first + C::BLOCK);
        correct(&mut corrected, &weights, &errors, factor, first..end);
        let x = &mut x[..end - first];
        grids.clear();
        for row in 0..TILE_ROWS {
            for (x, column) in x.iter_mut().zip(&corrected) {
                *x = column[row];
            }
            // Not in a closure, which would not be compiled for the caller's instructions.
            grids.push(to.grid(x, &factor.diagonal[first..end]));
        }
        for k in first..end {
            let (col, mut column) = (k - first, corrected[k - first]);
            for (e, u) in errors[first..k].iter().zip(&factor.column(k)[first..]) {
                for row in 0..TILE_ROWS {
                    column[row] = e[row].mul_add(*u, column[row]);
                }
            }
            for row in 0..TILE_ROWS {
                let (code, value) = to.code(&grids[row], col, column[row]);
                codes[col / GROUP][row][col % GROUP] = code;
                errors[k][row] = weights[k][row] - value;
            }
        }
        for (row, grid) in grids.iter().enumerate() {
            let groups: Vec<_> = codes[..(end - first) / GROUP].iter().map(|group| group[row]).collect();
            to.put(row, first / C::BLOCK, grid, &groups);
        }
    }
}

/// The weights of columns `block`, corrected for the errors of the columns before it.
#[inline(always)]
fn correct(out: &mut [Column], weights: &[Column], errors: &[Column], factor: &Factor, block: std::ops::Range<usize>) {
    for at in block.clone().step_by(ROWS) {
        let mut sums = [[0.0; TILE_ROWS]; ROWS];
        add_products(&mut sums, std::array::from_fn(|i| &factor.column(at + i)[..block.start]), &errors[..block.start]);
        for i in 0..ROWS {
            for row in 0..TILE_ROWS {
                out[at + i - block.start][row] = weights[at + i][row] + sums[i][row];
            }
        }
    }
}

/// Rows that [`add_products`] multiplies at a time.
pub const ROWS: usize = 8;

/// `sums[i] += sum of a[i][k] b[k] over k`, fused, in the order of k. The sums fit the registers;
/// as two arrays of four the compiler keeps them there.
#[inline(always)]
pub fn add_products(sums: &mut [Column; ROWS], a: [&[f32]; ROWS], b: &[Column]) {
    let n = b.len();
    let (a, [mut upper, mut lower]) = (a.map(|a| &a[..n]), [[[0.0; TILE_ROWS]; 4]; 2]);
    upper.copy_from_slice(&sums[..4]);
    lower.copy_from_slice(&sums[4..]);
    for k in 0..n {
        for i in 0..4 {
            for row in 0..TILE_ROWS {
                upper[i][row] = a[i][k].mul_add(b[k][row], upper[i][row]);
            }
        }
        for i in 0..4 {
            for row in 0..TILE_ROWS {
                lower[i][row] = a[4 + i][k].mul_add(b[k][row], lower[i][row]);
            }
        }
    }
    sums[..4].copy_from_slice(&upper);
    sums[4..].copy_from_slice(&lower);
}
