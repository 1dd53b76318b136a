//! Packs single matrices in a format of [`quant`](crate::quant), strip by strip, or makes them
//! bf16. The bytes depend on the source alone, not on threads or on the machine.

use super::config::ModelConfig;
use super::mapped;
use super::names::{self, LayerSpec, TensorSpec};
use crate::cores;
use crate::quant::{Code, Part, TILE_ROWS};
use crate::tensor::{DType, Format, Tensor};
use anyhow::Result;
use std::collections::BTreeMap;

/// The matrices that can be packed, and what each is to a format. A matrix cannot be packed if its
/// columns are not divisible by 64, or if a backend stacks it (q, k and v; gate and up) and its
/// rows do not fill strips. Then the rest of that stack cannot be packed either.
pub fn packable(c: &ModelConfig) -> BTreeMap<String, Part> {
    let mut out = BTreeMap::new();
    let mut add = |stack: &[&TensorSpec], part: &dyn Fn(&TensorSpec) -> Part| {
        let packs =
            |t: &&TensorSpec| Code::fits(t.shape[1]) && (stack.len() == 1 || t.shape[0].is_multiple_of(TILE_ROWS));
        if stack.iter().all(packs) {
            out.extend(stack.iter().map(|t| (t.name.clone(), part(t))));
        }
    };
    add(&[&names::embedding(c)], &|_| Part::End);
    if let Some(head) = names::lm_head(c) {
        add(&[&head], &|_| Part::End);
    }
    if let Some(inputs) = names::layer_inputs(c) {
        add(&[&inputs.embedding], &|_| Part::End);
        add(&[&inputs.projection.weight], &|_| Part::End);
    }
    for l in 0..c.n_layers {
        LayerSpec::new(c, l).stacks().iter().for_each(|stack| add(stack, &|t| part_of(c, l, &t.name)));
    }
    out
}

/// Whether a matrix of that name is one of an expert, also of a shared one.
pub fn is_expert(name: &str) -> bool {
    name.contains(".mlp.experts.") || name.contains(".mlp.shared_expert.")
}

/// What a matrix of a layer is. The last layer's errors reach the logits as they are, and what
/// down adds in the layers before it hardly less so: measured, see `docs/fidelity.md`. Experts
/// have one code in all layers.
fn part_of(c: &ModelConfig, layer: usize, name: &str) -> Part {
    let is_late = 8 * (layer + 1) > 7 * c.n_layers && name.ends_with(".mlp.down_proj.weight");
    let is_last = layer + 1 == c.n_layers;
    if !is_expert(name) && (is_last || is_late) { Part::Late } else { Part::Layer }
}

/// Packs strips of a matrix from strip `from` on, until `out` is full. They are split over
/// `threads` (0: one per core).
pub fn pack(tensor: &Tensor, code: Code, importance: Option<&[f32]>, threads: usize, from: usize, out: &mut [u8]) {
    let cols = tensor.shape[1];
    let importance = importance.filter(|w| w.len() == cols);
    strips(code.strip_bytes(cols), threads, out, |strip, values, out| {
        let strip = from + strip;
        if let Format::Rows(source) = &tensor.format
            && source.exact_strip(code, strip, out)
        {
            return;
        }
        decode_strip(tensor, strip, values);
        code.pack_strip(values, cols, importance, out);
    });
}

/// Decodes the rows of a strip of a matrix; those behind its last one are zero.
pub(crate) fn decode_strip(tensor: &Tensor, strip: usize, values: &mut Vec<f32>) {
    let [rows, cols] = [tensor.shape[0], tensor.shape[1]];
    values.clear();
    values.resize(TILE_ROWS * cols, 0.0);
    for (row, values) in (strip * TILE_ROWS..rows).zip(values.chunks_exact_mut(cols)) {
        tensor.decode_row(row, values);
    }
}

/// A tensor in a format that a backend takes without packing: itself, or bf16 for another program's
/// format.
pub fn plain(tensor: Tensor, threads: usize) -> Result<Tensor> {
    if let Format::Rows(_) = tensor.format { bf16(&tensor, threads) } else { Ok(tensor) }
}

/// A matrix in another program's format as bf16.
fn bf16(tensor: &Tensor, threads: usize) -> Result<Tensor> {
    let (rows, cols) = (tensor.shape[0], tensor.shape[1]);
    let len = rows * cols * DType::Bf16.size_bytes();
    let bytes = mapped::buffer(len, |out| {
        strips(cols * DType::Bf16.size_bytes(), threads, out, |row, values, out| {
            values.resize(cols, 0.0);
            tensor.decode_row(row, values);
            for (out, &v) in out.chunks_exact_mut(2).zip(values.iter()) {
                out.copy_from_slice(&half::bf16::from_f32(v).to_le_bytes());
            }
        });
    })?;
    Ok(Tensor::new(&tensor.name, DType::Bf16, tensor.shape.clone(), bytes, 0..len))
}

/// Calls `strip(number, scratch, bytes)` for blocks of `size` bytes, on several threads.
fn strips(size: usize, threads: usize, out: &mut [u8], strip: impl Fn(usize, &mut Vec<f32>, &mut [u8]) + Sync) {
    let share = (out.len() / size.max(1)).div_ceil(cores::threads(threads)).max(1);
    let shares = out.chunks_mut(share * size.max(1)).enumerate().collect();
    cores::each(shares, threads, |(i, out): (usize, &mut [u8])| {
        let mut scratch = Vec::new();
        out.chunks_exact_mut(size).enumerate().for_each(|(n, out)| strip(i * share + n, &mut scratch, out));
    });
}
