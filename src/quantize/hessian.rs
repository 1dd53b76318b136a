//! The Hessian of a matrix's output error: H is the mean of `x^T x` over inputs, and its factor is
//! what [`quant`](crate::quant) corrects errors by. Fused f32 and f64 sums in a fixed order, each
//! by one thread: the same bits on every machine and with any number of threads.
//!
//! Columns of x are taken in reverse: the Cholesky factor of H is then the reverse of an upper one.
//! A *panel* is 16 columns of a matrix row by row, or 16 rows of a lower triangle column by column:
//! what the products of two panels read lies together.

// Indexed loops, which become vector code.
#![allow(clippy::needless_range_loop)]

use crate::cores;
use crate::quant::{Column, Factor, ROWS, TILE_ROWS, add_products, vectorized};
use anyhow::Result;
use std::sync::Arc;

/// Share of the mean of H's diagonal that is added to it: columns that a short text hardly uses
/// keep small corrections.
const DAMPING: f64 = 0.02;
/// Panels of a task, and panels that are factored at a time.
const BLOCK: usize = 4;
/// Rows of panels whose products are summed while they are in the caches.
const CHUNK: usize = 256;
/// Columns of panels that are copied at a time.
const COPIED: usize = 1 << 14;

type Row<T> = [T; TILE_ROWS];
/// Sums of products of two panels.
type Tile = [Row<f64>; TILE_ROWS];

/// Bytes that the sums and the factor of a matrix that wide need.
pub fn bytes(cols: usize) -> u64 {
    let triangle = (cols as u64) * (cols as u64 + 1) / 2;
    triangle * (size_of::<f64>() + 2 * size_of::<f32>()) as u64
}

/// `sums += a^T b` of two chunks of panels, in the order of their rows.
#[inline(always)]
fn add_outer(sums: &mut Tile, a: &[Row<f32>], b: &[Row<f32>]) {
    let mut tile = [[0.0f32; TILE_ROWS]; TILE_ROWS];
    outer(&mut tile, a, b);
    for i in 0..TILE_ROWS {
        for j in 0..TILE_ROWS {
            sums[i][j] += f64::from(tile[i][j]);
        }
    }
}

/// `tile += a^T b`. The sums of eight rows fit the registers; as two arrays of four the compiler
/// keeps them there.
#[inline(always)]
fn outer(tile: &mut [Row<f32>; TILE_ROWS], a: &[Row<f32>], b: &[Row<f32>]) {
    for (first, eight) in tile.chunks_exact_mut(8).enumerate() {
        let [mut upper, mut lower] = [[[0.0f32; TILE_ROWS]; 4]; 2];
        upper.copy_from_slice(&eight[..4]);
        lower.copy_from_slice(&eight[4..]);
        for (a, b) in a.iter().zip(b) {
            let a = &a[8 * first..][..8];
            for i in 0..4 {
                for j in 0..TILE_ROWS {
                    upper[i][j] = a[i].mul_add(b[j], upper[i][j]);
                }
            }
            for i in 0..4 {
                for j in 0..TILE_ROWS {
                    lower[i][j] = a[4 + i].mul_add(b[j], lower[i][j]);
                }
            }
        }
        eight[..4].copy_from_slice(&upper);
        eight[4..].copy_from_slice(&lower);
    }
}

/// Where panel `p` of a lower triangle begins: panel p has `16 (p + 1)` columns.
fn start(p: usize) -> usize {
    TILE_ROWS / 2 * p * (p + 1)
}

/// The lower triangle in tasks of [`BLOCK`] panels from panel `first` on, the longest ones first:
/// each with the number of its first panel.
fn tasks<T>(mut rest: &mut [Row<T>], first: usize, panels: usize) -> Vec<(usize, &mut [Row<T>])> {
    let mut out = Vec::new();
    for p in (first..panels).step_by(BLOCK) {
        let (these, behind) = rest.split_at_mut(start(panels.min(p + BLOCK)) - start(p));
        out.push((p, these));
        rest = behind;
    }
    out.reverse();
    out
}

/// The panels of a task, each with its number.
#[inline(always)]
fn panels<T>(first: usize, mut rest: &mut [Row<T>]) -> Vec<(usize, &mut [Row<T>])> {
    let mut out = Vec::with_capacity(BLOCK);
    let mut p = first;
    while !rest.is_empty() {
        let (panel, behind) = rest.split_at_mut(TILE_ROWS * (p + 1));
        out.push((p, panel));
        (rest, p) = (behind, p + 1);
    }
    out
}

/// Where the sums of a Hessian are and its factor is computed: the processor, or a device with the
/// same bits. An error says that the device failed.
pub trait Triangle: Send + Sync {
    /// Adds the products of columns of inputs, whose panels are `[n, 16]`.
    fn add(&mut self, x: Vec<Panel>) -> Result<()>;
    /// The diagonal of the sums.
    fn diagonal(&mut self) -> Result<Vec<f64>>;
    /// Panels of the Cholesky factor of the sums with another diagonal; `None` if they are not
    /// positive definite with it.
    fn cholesky(&mut self, diagonal: Vec<f32>) -> Result<Option<Panel>>;
}

/// A panel, or those of a triangle one after the other.
pub type Panel = Vec<Row<f32>>;

/// Opens a triangle of so many columns whose inputs come up to so many rows at a time; `None` where
/// there is no room for it, or the processor is as fast.
pub type OpenTriangle = Arc<dyn Fn(usize, usize) -> Option<Box<dyn Triangle>> + Send + Sync>;

/// Sums of `x^T x` over inputs.
pub struct Sums {
    cols: usize,
    n: usize,
    lower: Box<dyn Triangle>,
}

impl Sums {
    /// `cols` is a multiple of 16, and `rows` the most rows of inputs at a time.
    pub fn new(cols: usize, rows: usize, threads: usize, open: Option<&OpenTriangle>) -> Self {
        let here = || {
            let lower = vec![[0.0; TILE_ROWS]; start(cols / TILE_ROWS)];
            Box::new(Here { lower, panels: cols / TILE_ROWS, threads }) as Box<dyn Triangle>
        };
        Self { cols, n: 0, lower: open.and_then(|open| open(cols, rows)).unwrap_or_else(here) }
    }

    /// Adds the inputs `x`, rows of `cols` values.
    pub fn add(&mut self, x: &[&[f32]], threads: usize) -> Result<()> {
        let panels_of_x = cores::map_on(threads, &(0..self.cols / TILE_ROWS).collect::<Vec<_>>(), |p| {
            let last = self.cols - 1 - p * TILE_ROWS;
            x.iter().map(|x| std::array::from_fn(|i| x[last - i])).collect::<Panel>()
        });
        self.n += x.len();
        self.lower.add(panels_of_x)
    }

    /// The factor of the mean. `None` if it has none: all inputs are zero, or one is not finite.
    ///
    /// In f32, whose products are summed in f64: the damping is at least `DAMPING / cols` of the
    /// largest value in the diagonal, far above their rounding.
    pub fn factor(&mut self, threads: usize) -> Result<Option<Factor>> {
        let diagonal = self.lower.diagonal()?;
        let mean = diagonal.iter().sum::<f64>() / self.cols as f64;
        if !(mean > 0.0 && mean.is_finite()) {
            return Ok(None);
        }
        let damped = diagonal.iter().map(|v| (v + DAMPING * mean) as f32).collect();
        Ok(self.lower.cholesky(damped)?.map(|lower| unit(&lower, self.cols, self.n as f64, threads)))
    }
}

/// A triangle on the processor.
struct Here {
    /// Panels of the lower triangle.
    lower: Vec<Row<f64>>,
    panels: usize,
    threads: usize,
}

/// Where a column of the diagonal is in a triangle.
fn diagonal_at(col: usize) -> (usize, usize) {
    (start(col / TILE_ROWS) + col, col % TILE_ROWS)
}

impl Triangle for Here {
    fn add(&mut self, panels_of_x: Vec<Panel>) -> Result<()> {
        let n = panels_of_x.first().map_or(0, Vec::len);
        let tasks = tasks(&mut self.lower, 0, self.panels);
        cores::each(tasks, self.threads, |(first, rows)| {
            vectorized(
                #[inline(always)]
                || {
                    let mut panels = panels(first, rows);
                    for from in (0..n).step_by(CHUNK) {
                        let chunk = from..n.min(from + CHUNK);
                        for (q, x_q) in panels_of_x.iter().enumerate() {
                            for (p, panel) in &mut panels {
                                if *p < q {
                                    continue;
                                }
                                let (sums, _) = panel[q * TILE_ROWS..].split_first_chunk_mut().expect("a tile");
                                add_outer(sums, &x_q[chunk.clone()], &panels_of_x[*p][chunk.clone()]);
                            }
                        }
                    }
                },
            );
        });
        Ok(())
    }

    fn diagonal(&mut self) -> Result<Vec<f64>> {
        let at = |col| self.lower[diagonal_at(col).0][diagonal_at(col).1];
        Ok((0..TILE_ROWS * self.panels).map(at).collect())
    }

    fn cholesky(&mut self, diagonal: Vec<f32>) -> Result<Option<Panel>> {
        let mut lower = vec![[0.0f32; TILE_ROWS]; self.lower.len()];
        let parts = lower.chunks_mut(COPIED).zip(self.lower.chunks(COPIED)).collect();
        cores::each(parts, self.threads, |(to, from): (&mut [Row<f32>], &[Row<f64>])| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from.map(|v| v as f32));
        });
        for (col, v) in diagonal.into_iter().enumerate() {
            let (k, i) = diagonal_at(col);
            lower[k][i] = v;
        }
        Ok(cholesky(&mut lower, self.panels, self.threads).map(|()| lower))
    }
}

/// Replaces a lower triangle by its Cholesky factor, `a = l l^T`. `None` if it is not positive
/// definite.
fn cholesky(a: &mut [Row<f32>], n_panels: usize, threads: usize) -> Option<()> {
    for first in (0..n_panels).step_by(BLOCK) {
        let block = first..n_panels.min(first + BLOCK);
        let (above, below) = a.split_at_mut(start(block.end));
        // Of the block itself, by all threads; the rest of it is little work.
        let tiles: Vec<_> = block.clone().flat_map(|p| (first..=p).map(move |q| (p, q))).collect();
        let sums = cores::map_on(threads, &tiles, |&(p, q)| {
            let (of_p, of_q) = (&above[start(p)..], &above[start(q)..]);
            vectorized(
                #[inline(always)]
                || products(of_q, of_p, TILE_ROWS * first),
            )
        });
        let mut sums = &sums[..];
        for p in block.clone() {
            let (of_p, rest) = sums.split_at(p - first + 1);
            let (before, panel) = above[..start(p + 1)].split_at_mut(start(p));
            let is_definite = vectorized(
                #[inline(always)]
                || {
                    for (q, sums) in (first..p).zip(of_p) {
                        solve(panel, &before[start(q)..], q, first, *sums);
                    }
                    root(panel, first, of_p[p - first])
                },
            );
            if !is_definite {
                return None;
            }
            sums = rest;
        }
        let above = &above[..];
        cores::each(tasks(below, block.end, n_panels), threads, |(p, rows)| {
            vectorized(
                #[inline(always)]
                || columns(&mut panels(p, rows), above, block.clone()),
            );
        });
    }
    Some(())
}

/// Sums over the first `rows` rows of the products of two panels.
#[inline(always)]
fn products(a: &[Row<f32>], b: &[Row<f32>], rows: usize) -> Tile {
    let mut sums = [[0.0; TILE_ROWS]; TILE_ROWS];
    for from in (0..rows).step_by(CHUNK) {
        let rows = from..rows.min(from + CHUNK);
        add_outer(&mut sums, &a[rows.clone()], &b[rows]);
    }
    sums
}

/// The factor's columns `block`, a range of panels, in up to [`BLOCK`] panels; `above` has the
/// panels of the factor up to the block's end.
#[inline(always)]
fn columns(panels: &mut [(usize, &mut [Row<f32>])], above: &[Row<f32>], block: std::ops::Range<usize>) {
    let rows = TILE_ROWS * block.start;
    let mut sums = [[[[0.0; TILE_ROWS]; TILE_ROWS]; BLOCK]; BLOCK];
    for from in (0..rows).step_by(CHUNK) {
        let rows = from..rows.min(from + CHUNK);
        for (q, sums) in block.clone().zip(&mut sums) {
            let of_q = &above[start(q)..][rows.clone()];
            // Closures would not be compiled for the vector instructions.
            for ((_, panel), sums) in panels.iter().zip(sums) {
                add_outer(sums, of_q, &panel[rows.clone()]);
            }
        }
    }
    for (q, sums) in block.clone().zip(&sums) {
        for ((_, panel), sums) in panels.iter_mut().zip(sums) {
            solve(panel, &above[start(q)..], q, block.start, *sums);
        }
    }
}

/// The factor's columns of panel `q` in another panel, from the sums of products of the two up to
/// panel `first`.
#[inline(always)]
fn solve(panel: &mut [Row<f32>], of_q: &[Row<f32>], q: usize, first: usize, mut sums: Tile) {
    let (first, at) = (TILE_ROWS * first, TILE_ROWS * q);
    add_outer(&mut sums, &of_q[first..at], &panel[first..at]);
    let tile = &mut panel[at..][..TILE_ROWS];
    for c in 0..TILE_ROWS {
        let mut column = sums[c];
        for i in 0..TILE_ROWS {
            column[i] = f64::from(tile[c][i]) - column[i];
        }
        for b in 0..c {
            let l = -f64::from(of_q[at + b][c]);
            for i in 0..TILE_ROWS {
                column[i] = l.mul_add(f64::from(tile[b][i]), column[i]);
            }
        }
        let pivot = f64::from(of_q[at + c][c]);
        for i in 0..TILE_ROWS {
            tile[c][i] = (column[i] / pivot) as f32;
        }
    }
}

/// The last tile of a panel, on the diagonal, whose other columns are the factor's, from the sums
/// of its products up to panel `first`. Returns whether the matrix is positive definite so far.
#[inline(always)]
fn root(panel: &mut [Row<f32>], first: usize, mut sums: Tile) -> bool {
    let (before, tile) = panel.split_at_mut(panel.len() - TILE_ROWS);
    let last = &before[TILE_ROWS * first..];
    add_outer(&mut sums, last, last);
    for c in 0..TILE_ROWS {
        let mut column = sums[c];
        for i in c..TILE_ROWS {
            column[i] = f64::from(tile[c][i]) - column[i];
        }
        for b in 0..c {
            let l = -f64::from(tile[b][c]);
            for i in c..TILE_ROWS {
                column[i] = l.mul_add(f64::from(tile[b][i]), column[i]);
            }
        }
        let pivot = column[c];
        if !(pivot > 0.0 && pivot.is_finite()) {
            return false;
        }
        for i in c..TILE_ROWS {
            tile[c][i] = (column[i] / pivot.sqrt()) as f32;
        }
    }
    true
}

/// The upper factor with ones in its diagonal of `1 / n` of the reversed matrix, from its Cholesky
/// factor.
fn unit(l: &[Row<f32>], cols: usize, n: f64, threads: usize) -> Factor {
    let mut above = vec![0.0f32; cols * cols.saturating_sub(1) / 2];
    let pivot = |k: usize| {
        let reversed = cols - 1 - k;
        f64::from(l[start(reversed / TILE_ROWS) + reversed][reversed % TILE_ROWS])
    };
    let mut rest = &mut above[..];
    let mut columns = Vec::with_capacity(cols);
    for k in 0..cols {
        let (column, behind) = rest.split_at_mut(k);
        columns.push((k, column));
        rest = behind;
    }
    columns.reverse();
    cores::each(columns, threads, |(k, column)| {
        let (reversed, pivot) = (cols - 1 - k, pivot(k));
        for (p, column) in (0..cols / TILE_ROWS).rev().zip(column.chunks_mut(TILE_ROWS)) {
            let l = &l[start(p) + reversed];
            column.iter_mut().zip(l.iter().rev()).for_each(|(u, l)| *u = (f64::from(*l) / pivot) as f32);
        }
    });
    Factor::new(above, (0..cols).map(|k| (pivot(k) * pivot(k) / n) as f32).collect())
}

/// Sum of squares of the outputs of `x [n, cols]` with the columns of a strip's errors.
pub fn output_error(x: &[f32], errors: &[Column]) -> f64 {
    let cols = errors.len();
    vectorized(
        #[inline(always)]
        || {
            let mut sum = 0.0;
            let n = x.len() / cols;
            for first in (0..n).step_by(ROWS) {
                let mut outputs = [[0.0; TILE_ROWS]; ROWS];
                let row = |i: usize| &x[(first + i).min(n - 1) * cols..][..cols];
                add_products(&mut outputs, std::array::from_fn(row), errors);
                for output in &outputs[..ROWS.min(n - first)] {
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

    fn factor(x: &[f32], cols: usize, threads: usize) -> Option<Factor> {
        let rows = x.chunks_exact(cols).collect::<Vec<_>>();
        let mut sums = Sums::new(cols, rows.len(), threads, None);
        // In two parts.
        let (some, others) = rows.split_at(rows.len() / 3);
        [some, others].iter().for_each(|x| sums.add(x, threads).unwrap());
        sums.factor(threads).unwrap()
    }

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
