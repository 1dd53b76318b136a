//! GEMM and GEMV with plain and packed weights.
//!
//! A row's results have the same bits whatever rows are computed beside it, with any number of
//! threads: prefill of T tokens equals T decode steps bit for bit.
//!
//! Packed weights multiply activations that are rounded to bf16, as on a GPU, straight from their
//! tiles.
//!
//! With plain weights, few rows of activations are memory-bound: dot products convert weights in
//! registers. Many rows are compute-bound: blocks of weights are converted into a scratch buffer
//! that fits L2 and multiplied there. Both split the weights' rows over the thread pool.

use super::Cpu;
use super::simd::dots::{Rows, dots, widen};
use super::simd::packed::{Input, Strips, tile_dots};
use super::simd::{BLOCK_COLS, Format, Isa, maths, matmul};
use super::thread_pool::Tile;
use crate::quant::TILE_ROWS;
use crate::tensor::{self, DType, Tensor};
use std::ops::Range;

/// Rows of activations up to which dot products with plain weights are used.
const FEW_ROWS: usize = 64;
/// Rows of activations that are multiplied with packed weights together, so that they fit L2.
const PACKED_ROWS: usize = 64;
/// Bytes of weights in a task of dot products: microseconds of work on sequential memory.
const TASK_BYTES: usize = 128 << 10;
/// Rows of a block of weights converted to f32; with [`BLOCK_COLS`] columns 384 KiB.
const BLOCK_ROWS: usize = 96;
/// Padding between the rows of a block, so that rows of [`BLOCK_COLS`] do not fall into the same
/// cache sets.
const PADDING: usize = 16;

/// Matrices of equal width, stacked by rows: all packed, or none.
pub struct Weight {
    parts: Vec<Tensor>,
    rows: usize,
    cols: usize,
}

impl Weight {
    pub(super) fn new(parts: &[Tensor]) -> Self {
        let cols = parts[0].shape[1];
        assert!(parts.iter().all(|p| p.shape.len() == 2 && p.shape[1] == cols), "stacked weights differ in width");
        let packed = |p: &Tensor| matches!(p.format, tensor::Format::Packed(_));
        assert!(parts.iter().all(|p| packed(p) == packed(&parts[0])), "stacked weights differ in format");
        let strips = parts[..parts.len() - 1].iter().all(|p| p.shape[0].is_multiple_of(TILE_ROWS));
        assert!(strips || !packed(&parts[0]), "stacked packed weights are whole strips");
        Self { parts: parts.to_vec(), rows: parts.iter().map(|p| p.shape[0]).sum(), cols }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All of its rows.
    pub(super) fn all(&self) -> Stack<'_> {
        Stack { parts: &self.parts, rows: self.rows, cols: self.cols }
    }

    /// Rows of share number `share` of `n` equal shares, which are whole parts.
    pub(super) fn share(&self, share: usize, n: usize) -> Stack<'_> {
        let each = self.parts.len() / n;
        assert_eq!(each * n, self.parts.len(), "stacked weights are no {n} equal shares");
        Stack { parts: &self.parts[share * each..(share + 1) * each], rows: self.rows / n, cols: self.cols }
    }

    pub(super) fn row_to_f32(&self, isa: Isa, row: usize, out: &mut [f32]) {
        let (_, block) = self.all().blocks(row..row + 1).next().expect("a row of the weight");
        block.widen(isa, 0..self.cols, self.cols, out);
    }
}

/// Some consecutive matrices of a [`Weight`].
#[derive(Clone, Copy)]
pub(super) struct Stack<'a> {
    parts: &'a [Tensor],
    rows: usize,
    cols: usize,
}

impl<'a> Stack<'a> {
    /// Rows `range` as one block per stacked matrix, each with its offset in `range`.
    fn blocks(self, range: Range<usize>) -> impl Iterator<Item = (usize, Block<'a>)> {
        let mut first = 0;
        self.parts.iter().filter_map(move |part| {
            let start = first;
            first += part.shape[0];
            let (from, to) = (range.start.max(start), range.end.min(first));
            let rows = || match &part.format {
                tensor::Format::Packed(code) => {
                    Block::Packed(Strips::new(*code, part.bytes(), self.cols, from - start..to - start))
                }
                tensor::Format::Rows(_) => Block::Decoded(part, from - start..to - start),
                tensor::Format::Plain(_) => {
                    Block::Plain(Rows::new(part.bytes(), element(part), self.cols).slice(from - start..to - start))
                }
            };
            (from < to).then(|| (from - range.start, rows()))
        })
    }

    fn is_packed(&self) -> bool {
        self.parts.iter().any(|p| matches!(p.format, tensor::Format::Packed(_)))
    }

    fn row_bytes(&self) -> usize {
        self.parts.iter().map(|p| p.stored_bytes() / p.shape[0].max(1)).max().unwrap_or(1).max(1)
    }
}

/// Rows of one stacked matrix.
enum Block<'a> {
    Plain(Rows<'a>),
    Packed(Strips<'a>),
    /// Rows of a matrix in another program's format, which are decoded at every use: slow, but
    /// without memory.
    Decoded(&'a Tensor, Range<usize>),
}

impl Block<'_> {
    fn len(&self) -> usize {
        match self {
            Block::Plain(rows) => rows.len(),
            Block::Packed(strips) => strips.len(),
            Block::Decoded(_, rows) => rows.len(),
        }
    }

    fn cols(&self) -> usize {
        match self {
            Block::Plain(rows) => rows.cols(),
            Block::Packed(strips) => strips.cols(),
            Block::Decoded(tensor, _) => tensor.shape[1],
        }
    }

    /// Converts columns `cols` of all rows to f32, `[rows, cols.len()]` in rows of `stride`.
    fn widen(&self, isa: Isa, cols: Range<usize>, stride: usize, out: &mut [f32]) {
        match self {
            Block::Plain(rows) => widen_columns(isa, *rows, cols, stride, out),
            Block::Packed(strips) => strips.unpack(isa, cols, stride, out),
            Block::Decoded(tensor, rows) => {
                let mut whole = vec![0.0; tensor.shape[1]];
                for (row, out) in rows.clone().zip(out.chunks_mut(stride)) {
                    tensor.decode_row(row, &mut whole);
                    out[..cols.len()].copy_from_slice(&whole[cols.clone()]);
                }
            }
        }
    }
}

fn element(part: &Tensor) -> Format {
    match part.dtype() {
        Some(DType::F32) => Format::F32,
        Some(DType::F16) => Format::F16,
        _ => Format::Bf16,
    }
}

fn widen_columns(isa: Isa, rows: Rows<'_>, cols: Range<usize>, stride: usize, out: &mut [f32]) {
    let size = rows.format().size_bytes();
    for (out, row) in out.chunks_mut(stride).zip(rows.bytes().chunks_exact(rows.cols() * size)) {
        widen(isa, &row[cols.start * size..cols.end * size], rows.format(), 1.0, &mut out[..cols.len()]);
    }
}

/// `out [n, rows] = x [n, cols] weight^T + bias`
pub(super) fn linear(cpu: &Cpu, out: &mut [f32], x: &[f32], weight: Stack<'_>, bias: Option<&[f32]>, n: usize) {
    let mut out = Tile::new(out, n, weight.rows);
    let add_bias = |tile: &mut Tile<'_>| {
        if let Some(bias) = bias {
            (0..tile.rows()).for_each(|i| {
                let cols = tile.col_range();
                maths::add(cpu.isa, tile.row_mut(i), &bias[cols]);
            });
        }
    };
    if cpu.observer.as_ref().is_some_and(|observer| !observer.input(weight.parts, &x[..n * weight.cols])) {
        return;
    }
    if weight.is_packed() {
        return packed(cpu, &mut out, x, weight, add_bias);
    }
    if n <= FEW_ROWS {
        // A multiple of the kernels' 8 rows.
        cpu.thread_pool.tiles(&mut out, n.max(1), task_rows(cpu, weight), |worker, tile| {
            for (at, block) in weight.blocks(tile.col_range()) {
                let mut tile = tile.narrow(at..at + block.len());
                match block {
                    Block::Plain(rows) => dots(cpu.isa, rows, x, &mut tile),
                    block => multiply_block(cpu.isa, &mut tile, x, &block, &mut cpu.scratch(worker).weights),
                }
            }
            add_bias(tile);
        });
        return;
    }
    // If the weights have too few rows for all threads, the activations are split too, and weights
    // are converted twice.
    let across = weight.rows.div_ceil(BLOCK_ROWS);
    let down = (2 * cpu.threads()).div_ceil(across).min(n.div_ceil(64));
    let rows = n.div_ceil(down);
    cpu.thread_pool.tiles(&mut out, rows, BLOCK_ROWS, |worker, tile| {
        let mut scratch = cpu.scratch(worker);
        let x = &x[tile.row_range().start * weight.cols..];
        for (at, block) in weight.blocks(tile.col_range()) {
            let mut tile = tile.narrow(at..at + block.len());
            multiply_block(cpu.isa, &mut tile, x, &block, &mut scratch.weights);
        }
        add_bias(tile);
    });
}

/// Rows of weights in a task of dot products: at least two tasks per thread, and whole strips of
/// packed weights.
fn task_rows(cpu: &Cpu, weight: Stack<'_>) -> usize {
    let share = weight.rows.div_ceil(2 * cpu.threads());
    (TASK_BYTES / weight.row_bytes()).clamp(1, share).next_multiple_of(TILE_ROWS)
}

/// [`linear`] with packed weights: dot products for any number of rows.
fn packed(cpu: &Cpu, out: &mut Tile<'_>, x: &[f32], weight: Stack<'_>, add_bias: impl Fn(&mut Tile<'_>) + Sync) {
    let (n, cols) = (out.rows(), weight.cols);
    let mut inputs = cpu.packed_inputs();
    let panels = n.div_ceil(PACKED_ROWS);
    if inputs.len() < panels {
        inputs.resize_with(panels, Input::default);
    }
    cpu.thread_pool.tiles(&mut Tile::new(&mut inputs[..panels], panels, 1), 1, 1, |_, tile| {
        let rows = tile.row_range().start * PACKED_ROWS..n.min((tile.row_range().start + 1) * PACKED_ROWS);
        tile.row_mut(0)[0].set(cpu.method, &x[rows.start * cols..], rows.len(), cols);
    });
    cpu.thread_pool.tiles(out, PACKED_ROWS, task_rows(cpu, weight), |worker, tile| {
        let input = &inputs[tile.row_range().start / PACKED_ROWS];
        for (at, block) in weight.blocks(tile.col_range()) {
            let Block::Packed(strips) = block else { unreachable!("stacked weights are all packed or none is") };
            let mut tile = tile.narrow(at..at + strips.len());
            tile_dots(cpu.isa, &strips, input, &mut tile, &mut cpu.scratch(worker).weights);
        }
        add_bias(tile);
    });
}

/// `out = x rows^T` for at most `BLOCK_ROWS` rows.
fn multiply_block(isa: Isa, out: &mut Tile<'_>, x: &[f32], block: &Block<'_>, scratch: &mut Vec<f32>) {
    let k = block.cols();
    if let Block::Plain(rows) = block
        && let Some(values) = rows.as_f32()
    {
        return matmul::a_bt(isa, out, x, k, values, k, k, false);
    }
    // Decoding is by whole rows.
    let block_cols = if let Block::Decoded(..) = block { k } else { BLOCK_COLS };
    for start in (0..k).step_by(block_cols) {
        let cols = start..k.min(start + block_cols);
        let stride = cols.len() + PADDING;
        scratch.resize(block.len() * stride, 0.0);
        block.widen(isa, cols.clone(), stride, scratch);
        matmul::a_bt(isa, out, &x[start..], k, scratch, stride, cols.len(), start > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Device, Ops, Use};
    use super::super::simd::maths::tests::random;
    use super::*;
    use crate::backend::cpu::Watch;
    use crate::quant::Code;
    use std::sync::{Arc, Mutex};

    /// A stacked weight in every type, and its values.
    fn weight(rows: [usize; 3], cols: usize) -> (Weight, Vec<f32>) {
        let mut values = Vec::new();
        let mut parts = Vec::new();
        for (rows, dtype) in rows.into_iter().zip([DType::Bf16, DType::F32, DType::F16]) {
            let v = random(rows * cols, (rows + cols) as u64);
            let bytes: Vec<u8> = match dtype {
                DType::Bf16 => v.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect(),
                DType::F16 => v.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect(),
                DType::F32 => v.iter().flat_map(|v| v.to_le_bytes()).collect(),
            };
            let len = bytes.len();
            let tensor = Tensor::new("w", dtype, vec![rows, cols], Arc::new(bytes), 0..len);
            values.extend(tensor.to_f32());
            parts.push(tensor);
        }
        (Weight::new(&parts), values)
    }

    #[test]
    fn linear_matches_the_plain_loop_and_repeats_itself() {
        for threads in [1, 3] {
            let cpu = Cpu::new(threads);
            for (rows, cols) in [([72, 24, 8], 96), ([5, 1, 130], 72), ([200, 40, 40], 1100)] {
                let (weight, values) = weight(rows, cols);
                let n_rows = weight.rows();
                let bias = random(n_rows, 9);
                for n in [1, 2, 3, 8, 17, 64, 65, 130] {
                    let x = random(n * cols, n as u64);
                    let mut out = vec![f32::NAN; n * n_rows + 1];
                    linear(&cpu, &mut out, &x, weight.all(), Some(&bias), n);
                    for i in 0..n {
                        for r in 0..n_rows {
                            let products = (0..cols).map(|c| x[i * cols + c] as f64 * values[r * cols + c] as f64);
                            let want = (products.sum::<f64>() + bias[r] as f64) as f32;
                            let got = out[i * n_rows + r];
                            assert!(
                                (got - want).abs() < 3e-5 * (1.0 + want.abs()),
                                "{rows:?} {cols} {n}: {got} {want}"
                            );
                        }
                    }
                    assert!(out[n * n_rows].is_nan(), "wrote behind its output");
                    let mut again = vec![0.0; n * n_rows];
                    linear(&cpu, &mut again, &x, weight.all(), Some(&bias), n);
                    assert!(again.iter().zip(&out).all(|(a, b)| a.to_bits() == b.to_bits()), "not the same twice");
                }
            }
        }
    }

    #[test]
    fn products_that_nobody_wants_are_not_computed() {
        struct OnlyShown(Arc<Mutex<usize>>);
        impl Watch for OnlyShown {
            fn input(&mut self, _: &[Tensor], x: &[f32]) -> bool {
                *self.0.lock().unwrap() += x.len();
                true
            }
            fn wants_product(&self, parts: &[Tensor]) -> bool {
                parts[0].name != "head"
            }
        }
        let seen = Arc::default();
        let cpu = Cpu::observing(1, Box::new(OnlyShown(Arc::clone(&seen))));
        let mut out = vec![7.0; 16];
        for (name, wanted) in [("head", 7.0), ("other", 1.5)] {
            let weight = Weight::new(&[Tensor::from_f32(name, vec![16, 2], &[0.5; 32])]);
            linear(&cpu, &mut out, &[1.0, 2.0], weight.all(), None, 1);
            assert_eq!(out, [wanted; 16], "{name}");
        }
        assert_eq!(*seen.lock().unwrap(), 4);
    }

    #[test]
    fn inputs_are_shown_until_the_observer_has_had_enough() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let list = seen.clone();
        let on_input = move |parts: &[Tensor], x: &[f32]| {
            let names: String = parts.iter().map(|p| p.name.as_str()).collect();
            let mut list = list.lock().unwrap();
            list.push((names, x.to_vec()));
            list.len() < 2
        };
        let cpu = Cpu::observing(2, Box::new(on_input));
        let part = |name: &str| Tensor::from_f32(name, vec![16, 2], &[0.5; 32]);
        let weight = Weight::new(&[part("q"), part("k")]);
        let mut out = vec![0.0; 64];
        linear(&cpu, &mut out, &[1.0, 2.0, 3.0, 0.0], weight.all(), None, 2);
        assert_eq!(out, [1.5; 64]);
        for _ in 0..2 {
            linear(&cpu, &mut out, &[2.0, 1.0], weight.all(), None, 1);
        }
        assert_eq!(out, [1.5; 64], "computed after a stop");
        let (first, second) = (("qk".to_owned(), vec![1.0, 2.0, 3.0, 0.0]), ("qk".to_owned(), vec![2.0, 1.0]));
        assert_eq!(*seen.lock().unwrap(), [first, second]);
    }

    /// Rows of another program's format are multiplied without a copy of the matrix.
    #[test]
    fn rows_of_other_formats_are_decoded_as_they_are_used() {
        struct Steps;
        impl tensor::Rows for Steps {
            fn name(&self) -> &str {
                "STEPS"
            }
            fn bits(&self) -> f32 {
                4.0
            }
            fn decode(&self, row: usize, out: &mut [f32]) {
                out.iter_mut().enumerate().for_each(|(i, v)| *v = (row * 3 % 7 + i % 5) as f32 - 4.0);
            }
        }
        let foreign = Tensor::from_rows("w", [100, 72], Arc::new(Steps));
        let plain = Tensor::from_f32("w", vec![100, 72], &foreign.to_f32());
        let cpu = Cpu::new(2);
        for n in [1, 65] {
            let x = random(n * 72, 4);
            let [got, want] = [&foreign, &plain].map(|tensor| {
                let mut out = vec![f32::NAN; n * 100];
                linear(&cpu, &mut out, &x, Weight::new(std::slice::from_ref(tensor)).all(), None, n);
                out
            });
            assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-4 * (1.0 + b.abs())), "{n}");
        }
    }

    #[test]
    fn packed_weights_are_multiplied_as_their_unpacked_values() {
        let (rows, cols) = ([32, 16, 21], 320);
        for code in Code::ALL {
            let (mut parts, mut plain) = (Vec::new(), Vec::new());
            for rows in rows {
                let mut values = random(rows * cols, rows as u64);
                values.resize(rows.next_multiple_of(TILE_ROWS) * cols, 0.0);
                let mut bytes = vec![0; code.bytes(rows, cols)];
                let strips = bytes.chunks_exact_mut(code.strip_bytes(cols));
                strips.zip(values.chunks_exact(TILE_ROWS * cols)).for_each(|(o, v)| code.pack_strip(v, cols, None, o));
                let len = bytes.len();
                parts.push(Tensor::packed("w", code, [rows, cols], Arc::new(bytes), 0..len));
                plain.push(Tensor::from_f32("w", vec![rows, cols], &parts.last().unwrap().to_f32()));
            }
            let [packed, plain] = [parts, plain].map(|parts| Weight::new(&parts));
            let (cpu, n_rows) = (Cpu::new(3), rows.iter().sum::<usize>());
            for n in [1, 2, 5, 65] {
                let x = random(n * cols, n as u64);
                let rounded: Vec<f32> = x.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect();
                let [got, want] = [(&packed, &x), (&plain, &rounded)].map(|(weight, x)| {
                    let mut out = vec![f32::NAN; n * n_rows];
                    linear(&cpu, &mut out, x, weight.all(), None, n);
                    out
                });
                // For few rows, activations have 16 bits.
                let near = |(a, b): (&f32, &f32)| (a - b).abs() < 3e-4 * (1.0 + b.abs());
                assert!(got.iter().zip(&want).all(near), "{code:?} {n}");
            }
            let [got, want] = [&packed, &plain].map(|weight| {
                let mut out = cpu.acts(n_rows, cols, Use::Any).unwrap();
                cpu.embed(&mut out, weight, &(0..n_rows as u32).collect(), 1.0, n_rows);
                out.data
            });
            assert_eq!(got, want);
        }
    }

    #[test]
    fn embedding_rows_come_from_their_part() {
        let cpu = Cpu::new(2);
        let (weight, values) = weight([3, 4, 5], 72);
        let mut out = cpu.acts(12, 72, Use::Any).unwrap();
        cpu.embed(&mut out, &weight, &(0..12).collect(), 1.0, 12);
        assert_eq!(out.data, values);
    }
}
