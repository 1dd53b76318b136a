//! Fits the atoms of a dictionary to rows: k-means, then matching pursuit and least squares, with a
//! term that keeps atoms apart; and which layers may share atoms. Nothing is drawn at random, so
//! that `tests/golden/csr/make_golden.py` computes the same in numpy.

use dmschat::codec::csr::{Atoms, term};

/// Largest Jensen-Shannon divergence between two layers that share atoms, and largest sum over all
/// pairs of them, in nats.
const PAIR: f64 = 0.20;
const SUM: f64 = 1.0;
/// Bins of a histogram along each of two axes.
const BINS: usize = 32;
/// Iterations that find the two axes.
const AXES_ITERATIONS: usize = 500;
/// Weight of the term that keeps atoms apart, over the error; and the largest.
const APART: f64 = 0.1;
const MAX_APART: f64 = 1.0;

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Scales a row to unit norm; `None` if it is zero.
fn unit(row: &[f64]) -> Option<Vec<f32>> {
    let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
    (norm > 0.0).then(|| row.iter().map(|x| (x / norm) as f32).collect())
}

/// Centroids of `rows [_, dim]` as atoms `[n, dim]` of unit norm. The first centroids are rows at
/// equal distances.
pub fn kmeans(rows: &[f32], dim: usize, n: usize, iterations: usize) -> Vec<f32> {
    let len = rows.len() / dim;
    let row = |i: usize| &rows[i * dim..][..dim];
    let mut centroids: Vec<f32> = (0..n).flat_map(|i| row(i * len / n).to_vec()).collect();
    for _ in 0..iterations {
        let norms: Vec<f32> = centroids.chunks_exact(dim).map(|c| dot(c, c)).collect();
        let (mut sums, mut counts) = (vec![0f64; n * dim], vec![0usize; n]);
        for x in rows.chunks_exact(dim) {
            let distances = centroids.chunks_exact(dim).zip(&norms).map(|(c, norm)| norm - 2.0 * dot(c, x));
            let nearest =
                distances.enumerate().fold((0, f32::INFINITY), |best, (i, d)| if d < best.1 { (i, d) } else { best });
            counts[nearest.0] += 1;
            sums[nearest.0 * dim..][..dim].iter_mut().zip(x).for_each(|(sum, x)| *sum += f64::from(*x));
        }
        let all = centroids.chunks_exact_mut(dim).zip(sums.chunks_exact(dim)).zip(counts);
        for ((centroid, sum), count) in all.filter(|(_, count)| *count > 0) {
            centroid.iter_mut().zip(sum).for_each(|(c, sum)| *c = (sum / count as f64) as f32);
        }
    }
    let one = |i: usize| (0..dim).map(|j| if j == i % dim { 1.0 } else { 0.0 }).collect();
    let unit =
        |(i, c): (usize, &[f32])| unit(&c.iter().map(|&x| f64::from(x)).collect::<Vec<_>>()).unwrap_or_else(|| one(i));
    centroids.chunks_exact(dim).enumerate().flat_map(unit).collect()
}

/// Epochs of matching pursuit over all rows, each followed by a step of every atom: least squares
/// for its own share of the rows, less the gradient of `|I - D D^T|^2 / atoms^2`. Atoms that no row
/// uses stay.
pub fn learn(rows: &[f32], dim: usize, mut atoms: Vec<f32>, terms: usize, epochs: usize) -> Atoms {
    let (n, len) = (atoms.len() / dim, rows.len() / dim);
    for _ in 0..epochs {
        let now = Atoms::new(dim, atoms);
        let (mut shares, mut error) = (vec![0f64; n * dim], 0.0);
        let (mut codes, mut used) = (vec![0; terms], vec![false; n]);
        for row in rows.chunks_exact(dim) {
            let mut rest = row.to_vec();
            now.pursue(&mut rest, &mut codes);
            error += rest.iter().map(|x| f64::from(x * x)).sum::<f64>();
            for (atom, by) in codes.iter().map(|&code| term(code)) {
                used[atom] = true;
                let share = shares[atom * dim..][..dim].iter_mut().zip(&rest).zip(now.row(atom));
                share.for_each(|((share, rest), atom)| *share += f64::from(by * (rest + by * atom)));
            }
        }
        let gram = gram(now.rows(), dim);
        let by = 2.0 * apart(&gram, dim, n, error / len as f64) / (n * n) as f64;
        atoms = (0..n)
            .flat_map(|atom| {
                let (old, share) = (now.row(atom), &shares[atom * dim..][..dim]);
                let pull = |j: usize| {
                    let sum: f64 = (0..dim).map(|k| f64::from(old[k]) * gram[k * dim + j]).sum();
                    sum - f64::from(old[j])
                };
                let new: Vec<f64> = (0..dim).map(|j| share[j] / len as f64 - by * pull(j)).collect();
                unit(&new).filter(|_| used[atom]).unwrap_or_else(|| old.to_vec())
            })
            .collect();
    }
    Atoms::new(dim, atoms)
}

/// `D^T D` of atoms `[n, dim]`.
fn gram(atoms: &[f32], dim: usize) -> Vec<f64> {
    let mut gram = vec![0.0; dim * dim];
    for atom in atoms.chunks_exact(dim) {
        for (row, a) in gram.chunks_exact_mut(dim).zip(atom) {
            row.iter_mut().zip(atom).for_each(|(g, b)| *g += f64::from(*a) * f64::from(*b));
        }
    }
    gram
}

/// Weight of the term that keeps atoms apart, by the mean error of a row.
fn apart(gram: &[f64], dim: usize, n: usize, error: f64) -> f64 {
    let squares: f64 = gram.iter().map(|g| g * g).sum();
    let trace: f64 = gram.iter().step_by(dim + 1).sum();
    let divergence = (squares - 2.0 * trace + n as f64) / (n * n) as f64;
    if divergence > 0.0 { (APART * error / divergence).min(MAX_APART) } else { 0.0 }
}

/// The number of each layer's atoms: neighbours share atoms while the histograms of their rows
/// along the two main axes of all rows differ little.
pub fn groups(layers: &[Vec<f32>], dim: usize) -> Vec<usize> {
    let histograms = histograms(layers, dim);
    let (mut out, mut first, mut sum) = (vec![0; layers.len()], 0, 0.0);
    for layer in 1..layers.len() {
        let pairs: Vec<f64> = (first..layer).map(|other| divergence(&histograms[other], &histograms[layer])).collect();
        let with = sum + pairs.iter().sum::<f64>();
        let joins = pairs.iter().all(|pair| *pair <= PAIR) && with <= SUM;
        (first, sum) = if joins { (first, with) } else { (layer, 0.0) };
        out[layer] = out[layer - 1] + usize::from(!joins);
    }
    out
}

/// Shares of each layer's rows in each bin.
fn histograms(layers: &[Vec<f32>], dim: usize) -> Vec<Vec<f64>> {
    let all = || layers.iter().flat_map(|rows| rows.chunks_exact(dim));
    let n = all().count().max(1) as f64;
    let mut mean = vec![0f64; dim];
    all().for_each(|row| mean.iter_mut().zip(row).for_each(|(mean, x)| *mean += f64::from(*x) / n));
    let centered = |row: &[f32]| -> Vec<f64> { row.iter().zip(&mean).map(|(x, mean)| f64::from(*x) - mean).collect() };
    let mut covariance = vec![0f64; dim * dim];
    for row in all().map(centered) {
        for (out, a) in covariance.chunks_exact_mut(dim).zip(&row) {
            out.iter_mut().zip(&row).for_each(|(out, b)| *out += a * b / n);
        }
    }
    let axes = axes(&covariance, dim);
    let point = |row: &[f32]| {
        let row = centered(row);
        [0, 1].map(|axis: usize| row.iter().zip(&axes[axis]).map(|(x, a)| x * a).sum::<f64>())
    };
    let (mut low, mut high) = ([f64::INFINITY; 2], [f64::NEG_INFINITY; 2]);
    for point in all().map(point) {
        for axis in 0..2 {
            (low[axis], high[axis]) = (low[axis].min(point[axis]), high[axis].max(point[axis]));
        }
    }
    let bin = |x: f64, axis: usize| {
        let range = (high[axis] - low[axis]).max(f64::MIN_POSITIVE);
        (((x - low[axis]) / range * BINS as f64) as usize).min(BINS - 1)
    };
    let histogram = |rows: &Vec<f32>| {
        let mut shares = vec![0f64; BINS * BINS];
        let by = 1.0 / (rows.len() / dim).max(1) as f64;
        rows.chunks_exact(dim).map(point).for_each(|[x, y]| shares[bin(x, 0) * BINS + bin(y, 1)] += by);
        shares
    };
    layers.iter().map(histogram).collect()
}

/// The two eigenvectors of the largest eigenvalues of a symmetric matrix.
fn axes(matrix: &[f64], dim: usize) -> [Vec<f64>; 2] {
    let mut axes = [0, 1].map(|axis| (0..dim).map(|i| 1.0 + (i * (axis + 2) % 7) as f64).collect::<Vec<_>>());
    for _ in 0..AXES_ITERATIONS {
        for axis in 0..2 {
            let times = |row: &[f64]| row.iter().zip(&axes[axis]).map(|(m, x)| m * x).sum::<f64>();
            let mut next: Vec<f64> = matrix.chunks_exact(dim).map(times).collect();
            if axis == 1 {
                let along: f64 = next.iter().zip(&axes[0]).map(|(x, a)| x * a).sum();
                next.iter_mut().zip(&axes[0]).for_each(|(x, a)| *x -= along * a);
            }
            let norm = next.iter().map(|x| x * x).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
            axes[axis] = next.into_iter().map(|x| x / norm).collect();
        }
    }
    axes
}

/// Jensen-Shannon divergence in nats.
fn divergence(a: &[f64], b: &[f64]) -> f64 {
    let part = |p: f64, m: f64| if p > 0.0 { p * (p / m).ln() } else { 0.0 };
    a.iter().zip(b).map(|(&a, &b)| (part(a, (a + b) / 2.0) + part(b, (a + b) / 2.0)) / 2.0).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn floats(value: &Value) -> Vec<f32> {
        value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
    }

    /// numpy computes in f64. The rows have no ties of atoms; a coefficient at a tie of f16 may
    /// differ by its last bit.
    #[test]
    fn a_dictionary_is_that_of_numpy() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/csr/csr.json");
        let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let size = |name: &str| golden[name].as_u64().unwrap() as usize;
        let (dim, n, terms, rows) = (size("dim"), size("atoms"), size("terms"), floats(&golden["rows"]));
        let near = |got: &[f32], wanted: &[f32], most: f32, what: &str| {
            assert_eq!(got.len(), wanted.len());
            let worst = got.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < most, "{what}: {worst}");
        };
        let first = kmeans(&rows, dim, n, size("iterations"));
        near(&first, &floats(&golden["centroids"]), 1e-6, "k-means");
        let learned = learn(&rows, dim, first, terms, size("epochs"));
        near(learned.rows(), &floats(&golden["learned"]), 5e-4, "learned");
        let layers: Vec<Vec<f32>> = golden["layers"].as_array().unwrap().iter().map(floats).collect();
        let wanted: Vec<usize> =
            golden["groups"].as_array().unwrap().iter().map(|g| g.as_u64().unwrap() as usize).collect();
        assert_eq!(groups(&layers, dim), wanted);
        let histograms = histograms(&layers, dim);
        let of_neighbours = floats(&golden["divergences"]);
        for (pair, wanted) in histograms.windows(2).zip(of_neighbours) {
            assert!((divergence(&pair[0], &pair[1]) - f64::from(wanted)).abs() < 1e-6);
        }
    }
}
