//! The regression of one layer: a linear map by ridge regression in f64, and a hidden layer on its
//! residual by Adam with handwritten gradients.

use super::random::Random;
use super::rows::LayerRows;
use half::bf16;
use nalgebra::{Cholesky, DMatrix, DMatrixView, DMatrixViewMut, DVector, Dyn};

/// Weight of the squared norm of the linear map beside the sum of squared errors.
const LAMBDA: f64 = 1.0;
/// Rows that are converted at once.
const BLOCK: usize = 1024;
/// Columns of a tile of a symmetric matrix.
const TILE: usize = 256;
/// Rows of a step of Adam, and how often it sees all rows.
const BATCH: usize = 256;
pub const EPOCHS: usize = 12;
const RATE: f32 = 2e-3;

/// A fitted layer, or one of zeros that was fitted to no rows: the scores of x are
/// `weight x + bias + out GELU(inner x + inner_bias) + out_bias`. All matrices are row-major.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// `[heads, hidden]`
    pub weight: Vec<f32>,
    pub bias: Vec<f32>,
    /// `[units, hidden]`
    pub inner: Vec<f32>,
    pub inner_bias: Vec<f32>,
    /// `[heads, units]`
    pub out: Vec<f32>,
    pub out_bias: Vec<f32>,
    /// Scores of the rows `[rows, heads]` that it was fitted to.
    pub scores: Vec<f32>,
    /// Share of the variance that the linear map explains, and that all of it does.
    pub explained: [f64; 2],
}

impl Fitted {
    /// For a layer that decides nothing.
    fn zeros(hidden: usize, heads: usize, units: usize) -> Self {
        let zeros = |n: usize| vec![0.0; n];
        let (weight, bias, inner, inner_bias) =
            (zeros(heads * hidden), zeros(heads), zeros(units * hidden), zeros(units));
        let (out, out_bias, scores) = (zeros(heads * units), zeros(heads), Vec::new());
        Self { weight, bias, inner, inner_bias, out, out_bias, scores, explained: [0.0; 2] }
    }
}

/// Fits one layer on `threads` threads.
pub fn fit(rows: &LayerRows, hidden: usize, heads: usize, units: usize, threads: usize) -> Fitted {
    if rows.y.is_empty() {
        return Fitted::zeros(hidden, heads, units);
    }
    let linear = ridge(rows, hidden, heads, threads);
    let n = rows.y.len() / heads;
    let mut residual = rows.y.clone();
    for (x, y) in rows.x.chunks_exact(hidden).zip(residual.chunks_exact_mut(heads)) {
        for (y, (weight, bias)) in y.iter_mut().zip(linear.0.chunks_exact(hidden).zip(&linear.1)) {
            *y -= bias + weight.iter().zip(x).map(|(w, x)| w * x.to_f32()).sum::<f32>();
        }
    }
    let variance = |of: &[f32]| {
        let mean = |h: usize| of.iter().skip(h).step_by(heads).map(|&y| f64::from(y)).sum::<f64>() / n as f64;
        let squares = |h: usize| {
            let mean = mean(h);
            of.iter().skip(h).step_by(heads).map(move |&y| (f64::from(y) - mean).powi(2)).sum::<f64>()
        };
        (0..heads).map(squares).sum::<f64>()
    };
    let total = variance(&rows.y).max(f64::MIN_POSITIVE);
    let by_linear = 1.0 - variance(&residual) / total;
    let mut network = Network::new(rows, hidden, heads, units);
    let left = network.train(rows, &residual, threads);
    let scores: Vec<f32> = rows.y.iter().zip(&left).map(|(y, left)| y - left).collect();
    let by_all = 1.0 - variance(&left) / total;
    let (inner, inner_bias) = network.unscaled();
    Fitted {
        weight: linear.0,
        bias: linear.1,
        inner,
        inner_bias,
        out: network.out.transpose().as_slice().to_vec(),
        out_bias: network.out_bias.as_slice().to_vec(),
        scores,
        explained: [by_linear, by_all],
    }
}

/// The linear map `[heads, hidden]` and its bias, by normal equations of centred rows.
fn ridge(rows: &LayerRows, hidden: usize, heads: usize, threads: usize) -> (Vec<f32>, Vec<f32>) {
    let n = rows.y.len() / heads;
    let mut mean = DVector::<f64>::zeros(hidden);
    rows.x.chunks_exact(hidden).for_each(|x| mean.iter_mut().zip(x).for_each(|(m, x)| *m += x.to_f64()));
    mean /= n as f64;
    let mut target = DVector::<f64>::zeros(heads);
    rows.y.chunks_exact(heads).for_each(|y| target.iter_mut().zip(y).for_each(|(m, &y)| *m += f64::from(y)));
    target /= n as f64;
    let sums = |x: &[bf16], y: &[f32]| {
        let mut squares = DMatrix::<f64>::zeros(hidden, hidden);
        let mut products = DMatrix::<f64>::zeros(hidden, heads);
        for (x, y) in x.chunks(BLOCK * hidden).zip(y.chunks(BLOCK * heads)) {
            // Columns of these matrices are rows of the regression.
            let mut x = DMatrix::from_iterator(hidden, x.len() / hidden, x.iter().map(|x| x.to_f64()));
            let mut y = DMatrix::from_iterator(heads, y.len() / heads, y.iter().map(|&y| f64::from(y)));
            x.column_iter_mut().for_each(|mut x| x -= &mean);
            y.column_iter_mut().for_each(|mut y| y -= &target);
            add_products(squares.view_mut((0, 0), (hidden, hidden)), 1.0, &x.as_view());
            products.gemm(1.0, &x, &y.transpose(), 1.0);
        }
        (squares, products)
    };
    let share = n.div_ceil(threads.max(1));
    let (mut squares, products) = std::thread::scope(|scope| {
        let sums = &sums;
        let parts = rows.x.chunks(share * hidden).zip(rows.y.chunks(share * heads));
        let workers: Vec<_> = parts.map(|(x, y)| scope.spawn(move || sums(x, y))).collect();
        let parts = workers.into_iter().map(|worker| worker.join().expect("a sum of products"));
        parts.reduce(|(a, b), (c, d)| (a + c, b + d)).expect("there are rows")
    });
    (0..hidden).for_each(|i| squares[(i, i)] += LAMBDA);
    let map = cholesky(squares).solve(&products);
    let bias = (0..heads).map(|h| (target[h] - map.column(h).dot(&mean)) as f32).collect();
    (map.iter().map(|&w| w as f32).collect(), bias)
}

/// Adds `factor * x x^T` to the lower half of a square matrix, and to the part of the upper half
/// that is in tiles on the diagonal.
fn add_products(mut to: DMatrixViewMut<'_, f64>, factor: f64, x: &DMatrixView<'_, f64>) {
    let n = to.nrows();
    for at in (0..n).step_by(TILE) {
        let columns = TILE.min(n - at);
        let right = x.rows(at, columns).transpose();
        to.view_mut((at, at), (n - at, columns)).gemm(factor, &x.rows(at, n - at), &right, 1.0);
    }
}

/// Computes the Cholesky factor of a matrix whose lower half is given, by panels, so that nearly
/// all of it is matmuls.
fn cholesky(mut a: DMatrix<f64>) -> Cholesky<f64, Dyn> {
    let n = a.nrows();
    for at in (0..n).step_by(TILE) {
        let (width, below) = (TILE.min(n - at), at + TILE);
        let corner = a.view((at, at), (width, width)).into_owned().cholesky();
        let corner = corner.expect("a Gram matrix with a positive diagonal added is positive definite").unpack();
        a.view_mut((at, at), (width, width)).copy_from(&corner);
        if below >= n {
            break;
        }
        let mut inverse = DMatrix::identity(width, width);
        corner.solve_lower_triangular_mut(&mut inverse);
        let panel: DMatrix<f64> = a.view((below, at), (n - below, width)) * inverse.transpose();
        a.view_mut((below, at), (n - below, width)).copy_from(&panel);
        add_products(a.view_mut((below, below), (n - below, n - below)), -1.0, &panel.as_view());
    }
    Cholesky::pack_dirty(a)
}

/// A hidden layer with GELU, for inputs that are centred and scaled to a variance of 1.
struct Network {
    /// Mean and 1 / deviation of each input.
    mean: Vec<f32>,
    scale: Vec<f32>,
    /// `[units, hidden]`
    inner: DMatrix<f32>,
    inner_bias: DVector<f32>,
    /// `[heads, units]`
    out: DMatrix<f32>,
    out_bias: DVector<f32>,
}

/// Moments of one parameter tensor under Adam.
struct Adam {
    mean: Vec<f32>,
    square: Vec<f32>,
}

impl Adam {
    fn new(len: usize) -> Self {
        Self { mean: vec![0.0; len], square: vec![0.0; len] }
    }

    /// Step `step`, counted from 1.
    fn update(&mut self, of: &mut [f32], gradient: &[f32], rate: f32, step: i32) {
        const B1: f32 = 0.9;
        const B2: f32 = 0.99;
        let (c1, c2) = (1.0 - B1.powi(step), 1.0 - B2.powi(step));
        let moments = self.mean.iter_mut().zip(&mut self.square);
        for ((x, &g), (m, v)) in of.iter_mut().zip(gradient).zip(moments) {
            *m = B1 * *m + (1.0 - B1) * g;
            *v = B2 * *v + (1.0 - B2) * g * g;
            *x -= rate * (*m / c1) / ((*v / c2).sqrt() + 1e-8);
        }
    }
}

impl Network {
    fn new(rows: &LayerRows, hidden: usize, heads: usize, units: usize) -> Self {
        let n = (rows.x.len() / hidden) as f64;
        let (mut sum, mut squares) = (vec![0f64; hidden], vec![0f64; hidden]);
        for x in rows.x.chunks_exact(hidden) {
            for ((sum, square), x) in sum.iter_mut().zip(&mut squares).zip(x) {
                let x = x.to_f64();
                *sum += x;
                *square += x * x;
            }
        }
        let mean: Vec<f32> = sum.iter().map(|sum| (sum / n) as f32).collect();
        let deviation = |(square, sum): (&f64, &f64)| (square / n - (sum / n).powi(2)).max(0.0).sqrt();
        let scale = squares.iter().zip(&sum).map(|of| 1.0 / (deviation(of) as f32).max(1e-4)).collect();
        let mut random = Random::new(7);
        let spread = (3.0 / hidden as f32).sqrt();
        Self {
            mean,
            scale,
            inner: DMatrix::from_fn(units, hidden, |_, _| spread * random.signed()),
            inner_bias: DVector::zeros(units),
            out: DMatrix::zeros(heads, units),
            out_bias: DVector::zeros(heads),
        }
    }

    /// Scaled inputs of these rows `[hidden, rows]`.
    fn inputs(&self, x: &[bf16], rows: &[usize]) -> DMatrix<f32> {
        let hidden = self.mean.len();
        let mut out = DMatrix::zeros(hidden, rows.len());
        for (out, &row) in out.as_mut_slice().chunks_exact_mut(hidden).zip(rows) {
            let x = &x[row * hidden..][..hidden];
            for ((out, x), (mean, scale)) in out.iter_mut().zip(x).zip(self.mean.iter().zip(&self.scale)) {
                *out = (x.to_f32() - mean) * scale;
            }
        }
        out
    }

    /// `a x + bias`
    fn affine(a: &DMatrix<f32>, bias: &DVector<f32>, x: &DMatrix<f32>) -> DMatrix<f32> {
        let mut y = a * x;
        y.column_iter_mut().for_each(|mut y| y += bias);
        y
    }

    /// Minimises the squared error to `target [rows, heads]`. Returns the residual.
    fn train(&mut self, rows: &LayerRows, target: &[f32], threads: usize) -> Vec<f32> {
        let heads = self.out_bias.len();
        let n = target.len() / heads;
        let mut order: Vec<usize> = (0..n).collect();
        let mut random = Random::new(11);
        let mut adams = [self.inner.len(), self.inner_bias.len(), self.out.len(), heads].map(Adam::new);
        let steps = (EPOCHS * n.div_ceil(BATCH)) as f32;
        let mut step = 0;
        for _ in 0..EPOCHS {
            random.shuffle(&mut order);
            for batch in order.chunks(BATCH) {
                step += 1;
                let x = self.inputs(&rows.x, batch);
                let mut before = times(&self.inner, &x, threads);
                before.column_iter_mut().for_each(|mut before| before += &self.inner_bias);
                let unit = before.map(gelu);
                let mut error = Self::affine(&self.out, &self.out_bias, &unit);
                for (mut error, &row) in error.column_iter_mut().zip(batch) {
                    error.iter_mut().zip(&target[row * heads..]).for_each(|(e, t)| *e -= t);
                }
                error /= batch.len() as f32;
                let out = &error * unit.transpose();
                let mut unit = self.out.transpose() * &error;
                unit.zip_apply(&before, |u, x| *u *= gelu_slope(x));
                let inner = times(&unit, &x.transpose(), threads);
                let (inner_bias, out_bias) = (unit.column_sum(), error.column_sum());
                // A cosine from the full rate to none.
                let rate = RATE * 0.5 * (1.0 + (std::f32::consts::PI * step as f32 / steps).cos());
                let [a, b, c, d] = &mut adams;
                a.update(self.inner.as_mut_slice(), inner.as_slice(), rate, step);
                b.update(self.inner_bias.as_mut_slice(), inner_bias.as_slice(), rate, step);
                c.update(self.out.as_mut_slice(), out.as_slice(), rate, step);
                d.update(self.out_bias.as_mut_slice(), out_bias.as_slice(), rate, step);
            }
        }
        let mut left = target.to_vec();
        let all: Vec<usize> = (0..n).collect();
        for (rows_of, left) in all.chunks(BLOCK).zip(left.chunks_mut(BLOCK * heads)) {
            let unit = Self::affine(&self.inner, &self.inner_bias, &self.inputs(&rows.x, rows_of)).map(gelu);
            let y = Self::affine(&self.out, &self.out_bias, &unit);
            left.iter_mut().zip(y.iter()).for_each(|(left, y)| *left -= y);
        }
        left
    }

    /// The inner layer `[units, hidden]` for inputs as they are.
    fn unscaled(&self) -> (Vec<f32>, Vec<f32>) {
        let mut inner = self.inner.transpose();
        inner.column_iter_mut().for_each(|mut unit| unit.iter_mut().zip(&self.scale).for_each(|(w, s)| *w *= s));
        let shift = |unit: usize| inner.column(unit).iter().zip(&self.mean).map(|(w, m)| w * m).sum::<f32>();
        let bias = self.inner_bias.iter().enumerate().map(|(unit, bias)| bias - shift(unit)).collect();
        (inner.as_slice().to_vec(), bias)
    }
}

/// `a b`, whose rows are computed on several threads.
fn times(a: &DMatrix<f32>, b: &DMatrix<f32>, threads: usize) -> DMatrix<f32> {
    if threads < 2 {
        return a * b;
    }
    let share = a.nrows().div_ceil(threads);
    let mut out = DMatrix::zeros(a.nrows(), b.ncols());
    std::thread::scope(|scope| {
        let part = |at: usize| (at, scope.spawn(move || a.rows(at, share.min(a.nrows() - at)) * b));
        let parts: Vec<_> = (0..a.nrows()).step_by(share).map(part).collect();
        for (at, part) in parts {
            let part: DMatrix<f32> = part.join().expect("a product");
            out.rows_mut(at, part.nrows()).copy_from(&part);
        }
    });
    out
}

/// `x` times the normal distribution's share below `x`.
fn gelu(x: f32) -> f32 {
    x * below(x)
}

fn gelu_slope(x: f32) -> f32 {
    const DENSITY: f32 = 0.398_942_3;
    below(x) + x * DENSITY * (-0.5 * x * x).exp()
}

/// Share of the normal distribution below `x`.
fn below(x: f32) -> f32 {
    0.5 * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(n: usize, hidden: usize, of: impl Fn(&[f32]) -> [f32; 2]) -> LayerRows {
        let mut random = Random::new(3);
        let mut rows = LayerRows::default();
        for _ in 0..n {
            let x: Vec<bf16> = (0..hidden).map(|_| bf16::from_f32(2.0 * random.signed() + 0.5)).collect();
            let plain: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
            rows.y.extend(of(&plain));
            rows.x.extend(x);
        }
        rows
    }

    #[test]
    fn a_linear_target_is_found_and_a_curved_one_needs_the_hidden_layer() {
        let linear = rows(600, 8, |x| [3.0 * x[0] - x[5] - 7.0, x[2] + 1.0]);
        let (map, bias) = ridge(&linear, 8, 2, 3);
        let close = |a: f32, b: f32| (a - b).abs() < 0.02;
        assert!(close(map[0], 3.0) && close(map[5], -1.0) && close(bias[0], -7.0), "{map:?} {bias:?}");
        assert!(close(map[8 + 2], 1.0) && close(bias[1], 1.0));
        let curved = rows(16_000, 8, |x| [x[0] + 2.0 * (x[1] * 2.0).sin(), x[3] - x[2] * x[2]]);
        let fitted = fit(&curved, 8, 2, 64, 1);
        assert!(fitted.explained[0] < 0.6 && fitted.explained[1] > 0.9, "{:?}", fitted.explained);
        // The parts give the scores, for inputs as they are.
        for (x, scores) in curved.x.chunks_exact(8).zip(fitted.scores.chunks_exact(2)).take(50) {
            let dot = |w: &[f32]| w.iter().zip(x).map(|(w, x)| w * x.to_f32()).sum::<f32>();
            let units = fitted.inner.chunks_exact(8).zip(&fitted.inner_bias).map(|(w, b)| gelu(dot(w) + b));
            let units: Vec<f32> = units.collect();
            for (h, score) in scores.iter().enumerate() {
                let out = fitted.out[h * 64..][..64].iter().zip(&units).map(|(w, u)| w * u).sum::<f32>();
                let want = dot(&fitted.weight[h * 8..][..8]) + fitted.bias[h] + out + fitted.out_bias[h];
                assert!((score - want).abs() < 1e-3, "{score} {want}");
            }
        }
    }

    #[test]
    fn tiles_and_threads_change_nothing() {
        let (n, mut random) = (TILE + 70, Random::new(5));
        let x = DMatrix::from_fn(n, n + 30, |_, _| f64::from(random.signed()));
        let whole = &x * x.transpose() + DMatrix::identity(n, n);
        let mut half = DMatrix::identity(n, n);
        add_products(half.view_mut((0, 0), (n, n)), 1.0, &x.as_view());
        let right = DVector::from_fn(n, |i, _| i as f64);
        let left = &whole * cholesky(half).solve(&right) - &right;
        assert!(left.amax() < 1e-6, "{}", left.amax());
        let curved = rows(2_000, 8, |x| [x[0] + (x[1] * 2.0).sin(), x[3] - x[2] * x[2]]);
        let [one, three] = [1, 3].map(|threads| fit(&curved, 8, 2, 20, threads));
        for (a, b) in one.scores.iter().zip(&three.scores) {
            assert!((a - b).abs() < 1e-2, "{a} {b}");
        }
    }

    #[test]
    fn the_slope_of_gelu_is_its_derivative() {
        for i in -40..40 {
            let x = i as f32 / 8.0;
            let slope = (gelu(x + 1e-2) - gelu(x - 1e-2)) / 2e-2;
            assert!((slope - gelu_slope(x)).abs() < 1e-3, "{x}");
        }
        // Of the tables.
        assert!((gelu(1.0) - 0.841_344_7).abs() < 1e-6 && (gelu(-2.0) + 0.045_500_26).abs() < 1e-6);
    }
}
