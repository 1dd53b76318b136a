//! `csr:N`: K and V as sums of N atoms of a dictionary ("CSR: Achieving 1 Bit Key-Value Cache via
//! Sparse Representation"). A code is the index of an atom and its signed coefficient, found by
//! matching pursuit. K is coded before RoPE, and V as two halves with N / 2 atoms each. The online
//! part of the paper, atoms from the conversation itself, is left out.
//!
//! A dictionary is a safetensors file: `layers` I32 `[layers, 2]` has the number of each layer's
//! atoms of K and of V, `k.G` F32 `[atoms, head_dim]` and `v.G` F32 `[atoms, head_dim / 2]` have
//! the atoms, rows of unit norm.

use super::coder::{Coder, Heads, Place, Rotation};
use super::row::{Elements, RowFormat};
use crate::random::Random;
use half::f16;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use std::sync::{Arc, OnceLock};

/// Rows of so many codes, of 4 bytes: index, then coefficient in f16.
pub struct Codes(pub usize);

const CODE_BYTES: usize = 4;
/// Atoms that an index can name.
const MAX_ATOMS: usize = 1 << 16;

fn code(atom: usize, coefficient: f16) -> u32 {
    atom as u32 | u32::from(coefficient.to_bits()) << 16
}

fn coefficient(code: u32) -> f16 {
    f16::from_bits((code >> 16) as u16)
}

fn codes_of(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks::<CODE_BYTES>().0.iter().map(|code| u32::from_le_bytes(*code))
}

impl RowFormat for Codes {
    fn elements(&self) -> Elements {
        Elements::F32
    }

    fn shares_bytes(&self) -> bool {
        true
    }

    fn terms(&self) -> usize {
        self.0
    }

    fn bytes(&self, _head_dim: usize) -> usize {
        CODE_BYTES * self.0
    }

    /// Copies codes from the row that holds them.
    fn encode(&self, x: &[f32], out: &mut [u8]) -> u32 {
        for (out, code) in out.chunks_exact_mut(CODE_BYTES).zip(x) {
            out.copy_from_slice(&code.to_bits().to_le_bytes());
        }
        0
    }

    fn decode(&self, bytes: &[u8], _side: u32, out: &mut [f32]) {
        out.fill(0.0);
        out.iter_mut().zip(codes_of(bytes)).for_each(|(out, code)| *out = f32::from_bits(code));
    }

    fn is_finite(&self, bytes: &[u8], _side: u32) -> bool {
        codes_of(bytes).all(|code| coefficient(code).is_finite())
    }

    fn round_trip(&self, x: &mut [f32]) {
        let n = self.0.min(x.len());
        x[n..].fill(0.0);
    }
}

/// Atoms of one dimension.
#[derive(Clone, Debug, PartialEq)]
pub struct Atoms {
    dim: usize,
    /// `[atoms, dim]`
    rows: Vec<f32>,
    /// `[dim, atoms]`
    columns: Vec<f32>,
}

impl Atoms {
    /// `rows` is `[atoms, dim]`.
    pub fn new(dim: usize, rows: Vec<f32>) -> Self {
        let n = rows.len() / dim;
        let columns = (0..dim).flat_map(|i| rows.iter().skip(i).step_by(dim).copied().take(n)).collect();
        Self { dim, rows, columns }
    }

    pub fn n(&self) -> usize {
        self.rows.len() / self.dim
    }

    pub fn dim(&self) -> usize {
        self.dim
    }

    /// `[atoms, dim]`
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    pub fn row(&self, atom: usize) -> &[f32] {
        &self.rows[atom * self.dim..][..self.dim]
    }

    /// Matching pursuit: as many times as there are `codes`, finds the atom with the largest inner
    /// product with `x`, the first of equal ones, and subtracts it. Leaves the residual in `x`.
    pub fn pursue(&self, x: &mut [f32], codes: &mut [u32]) {
        let mut products = vec![0.0; self.n()];
        for out in codes {
            products.fill(0.0);
            for (x, column) in x.iter().zip(self.columns.chunks_exact(self.n())) {
                products.iter_mut().zip(column).for_each(|(product, atom)| *product += x * atom);
            }
            let (mut atom, mut most) = (0, 0.0);
            for (i, product) in products.iter().enumerate() {
                if product.abs() > most {
                    (atom, most) = (i, product.abs());
                }
            }
            let coefficient = f16::from_f32(products[atom]);
            *out = code(atom, coefficient);
            let by = coefficient.to_f32();
            x.iter_mut().zip(self.row(atom)).for_each(|(x, atom)| *x -= by * atom);
        }
    }

    /// Adds the atoms of `codes`. An index that no atom has, as a damaged cache may have, adds
    /// nothing.
    fn add(&self, codes: impl Iterator<Item = u32>, out: &mut [f32]) {
        for code in codes {
            let (atom, by) = term(code);
            if atom < self.n() {
                out.iter_mut().zip(self.row(atom)).for_each(|(out, atom)| *out += by * atom);
            }
        }
    }
}

/// Index and coefficient of a code.
pub fn term(code: u32) -> (usize, f32) {
    ((code & 0xffff) as usize, coefficient(code).to_f32())
}

/// Atoms of a model. Layers share them.
#[derive(Clone, Debug, PartialEq)]
pub struct Dictionary {
    /// Numbers of each layer's atoms of K and of V.
    pub layers: Vec<[usize; 2]>,
    pub k: Vec<Atoms>,
    /// Of halves of rows.
    pub v: Vec<Atoms>,
}

impl Dictionary {
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let file = SafeTensors::deserialize(bytes).map_err(|why| format!("not a dictionary: {why}"))?;
        let layers = file.tensor("layers").map_err(|_| "not a dictionary: it has no tensor layers".to_owned())?;
        let (Dtype::I32, &[_, 2]) = (layers.dtype(), layers.shape()) else {
            return Err(format!("layers is {:?} {:?}, expected I32 [layers, 2]", layers.dtype(), layers.shape()));
        };
        let numbers: Vec<usize> = codes_of(layers.data()).map(|number| number as usize).collect();
        let layers: Vec<[usize; 2]> = numbers.as_chunks::<2>().0.to_vec();
        // No layer has atoms that none before it could have.
        if numbers.iter().any(|&number| number >= layers.len()) {
            return Err(format!("layers names atoms beyond those of {} layers", layers.len()));
        }
        let all = |kind: &str, at: usize| {
            let n = layers.iter().map(|layer| layer[at] + 1).max().unwrap_or(0);
            (0..n).map(|group| atoms(&file, &format!("{kind}.{group}"))).collect::<Result<Vec<_>, _>>()
        };
        Ok(Self { k: all("k", 0)?, v: all("v", 1)?, layers })
    }

    /// The file of the dictionary.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let numbers: Vec<i32> = self.layers.as_flattened().iter().map(|&number| number as i32).collect();
        let mut views = vec![("layers".to_owned(), Dtype::I32, vec![self.layers.len(), 2], as_bytes(&numbers))];
        for (kind, groups) in [("k", &self.k), ("v", &self.v)] {
            for (i, atoms) in groups.iter().enumerate() {
                views.push((format!("{kind}.{i}"), Dtype::F32, vec![atoms.n(), atoms.dim], as_bytes(&atoms.rows)));
            }
        }
        let view =
            |(name, dtype, shape, bytes): (String, Dtype, Vec<usize>, Vec<u8>)| (name, Owned { dtype, shape, bytes });
        safetensors::serialize(views.into_iter().map(view), None).map_err(|why| why.to_string())
    }

    /// Atoms in random directions, two layers to a group, for checks.
    pub fn random(head_dim: usize, layers: usize, atoms: usize, seed: u32) -> Self {
        let mut random = Random(u64::from(seed));
        let mut groups = |dim: usize| -> Vec<Atoms> {
            let mut rows = || -> Vec<f32> { (0..atoms * dim).map(|_| random.signed()).collect() };
            let unit = |row: &[f32]| {
                let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt();
                row.iter().map(|x| x / norm).collect::<Vec<_>>()
            };
            let mut group = || Atoms::new(dim, rows().chunks_exact(dim).flat_map(unit).collect());
            (0..layers.div_ceil(2)).map(|_| group()).collect()
        };
        let (k, v) = (groups(head_dim), groups(head_dim / 2));
        Self { layers: (0..layers).map(|layer| [layer / 2; 2]).collect(), k, v }
    }

    /// Fails if it was not made for a model with these heads.
    fn check(&self, terms: usize, heads: &Heads) -> Result<(), String> {
        let (d, n) = (heads.head_dim, heads.rotations.len());
        if self.layers.len() != n {
            return Err(format!("it is for {} layers with attention, and the model has {n}", self.layers.len()));
        }
        let wrong = self.k.iter().map(|k| k.dim).chain(self.v.iter().map(|v| 2 * v.dim)).find(|&dim| dim != d);
        if let Some(dim) = wrong {
            return Err(format!("it is for heads of {dim} channels, and the model's have {d}"));
        }
        if terms > d {
            return Err(format!("heads of {d} channels cannot hold {terms} codes"));
        }
        Ok(())
    }
}

/// A tensor that is written.
struct Owned {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl safetensors::View for Owned {
    fn dtype(&self) -> Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        (&self.bytes).into()
    }
    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

fn as_bytes<T: bytemuck::NoUninit>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

fn atoms(file: &SafeTensors<'_>, name: &str) -> Result<Atoms, String> {
    let tensor: TensorView<'_> = file.tensor(name).map_err(|_| format!("tensor {name} is missing"))?;
    let &[n, dim] = tensor.shape() else { return Err(format!("{name} has shape {:?}, expected two", tensor.shape())) };
    if tensor.dtype() != Dtype::F32 || n == 0 || n > MAX_ATOMS || dim == 0 {
        let dtype = tensor.dtype();
        return Err(format!("{name} is {dtype:?} [{n}, {dim}], expected F32 with 1 to {MAX_ATOMS} atoms"));
    }
    let rows: Vec<f32> = codes_of(tensor.data()).map(f32::from_bits).collect();
    match rows.iter().position(|x| !x.is_finite()) {
        Some(at) => Err(format!("{name}: atom {} is not of finite numbers", at / dim)),
        None => Ok(Atoms::new(dim, rows)),
    }
}

/// Positions whose angles are computed together.
const BLOCK: usize = 256;
/// Blocks whose angles are kept.
const BLOCKS: usize = 1 << 12;

/// Angles of RoPE, computed once for each position.
pub struct Angles {
    rotation: Rotation,
    /// `[BLOCK, pairs]{cos, sin}`
    blocks: Vec<OnceLock<Box<[[f32; 2]]>>>,
}

impl Angles {
    pub fn new(rotation: Rotation) -> Self {
        Self { rotation, blocks: (0..BLOCKS).map(|_| OnceLock::new()).collect() }
    }

    /// Calls `each` with cos and sin of every pair of channels.
    fn at(&self, position: usize, mut each: impl FnMut(usize, f32, f32)) {
        let angle = |position: usize, freq: f32| {
            let (sin, cos) = (position as f64 * f64::from(freq)).sin_cos();
            [cos as f32, sin as f32]
        };
        let freqs = &self.rotation.inv_freq;
        let Some(block) = self.blocks.get(position / BLOCK) else {
            return freqs.iter().enumerate().for_each(|(i, &freq)| {
                let [cos, sin] = angle(position, freq);
                each(i, cos, sin);
            });
        };
        let first = position / BLOCK * BLOCK;
        let block = block.get_or_init(|| {
            (first..first + BLOCK).flat_map(|position| freqs.iter().map(move |&freq| angle(position, freq))).collect()
        });
        let pairs = &block[position % BLOCK * freqs.len()..][..freqs.len()];
        pairs.iter().enumerate().for_each(|(i, &[cos, sin])| each(i, cos, sin));
    }

    fn rotate(&self, position: usize, row: &mut [f32]) {
        let (half, factor) = (self.rotation.inv_freq.len(), self.rotation.factor);
        self.at(position, |i, cos, sin| {
            let (a, b) = (row[i], row[i + half]);
            (row[i], row[i + half]) = ((a * cos - b * sin) * factor, (b * cos + a * sin) * factor);
        });
    }

    /// Undoes RoPE of a row at a position.
    pub fn unrotate(&self, position: usize, row: &mut [f32]) {
        let (half, by) = (self.rotation.inv_freq.len(), 1.0 / self.rotation.factor);
        self.at(position, |i, cos, sin| {
            let (a, b) = (row[i], row[i + half]);
            (row[i], row[i + half]) = ((a * cos + b * sin) * by, (b * cos - a * sin) * by);
        });
    }
}

/// Codes rows of a model by its dictionary.
struct Csr {
    terms: usize,
    dictionary: Dictionary,
    /// Angles that differ, and those of each layer.
    angles: Vec<Angles>,
    of_layer: Vec<usize>,
}

/// [`super::Codec::coder`] of this codec.
pub fn open(terms: usize, bytes: &[u8], heads: &Heads) -> Result<Arc<dyn Coder>, String> {
    let dictionary = Dictionary::parse(bytes)?;
    dictionary.check(terms, heads)?;
    let (mut angles, mut of_layer) = (Vec::<Angles>::new(), Vec::new());
    for rotation in &heads.rotations {
        let known = angles.iter().position(|angles| angles.rotation == *rotation);
        of_layer.push(known.unwrap_or(angles.len()));
        if known.is_none() {
            angles.push(Angles::new(rotation.clone()));
        }
    }
    Ok(Arc::new(Csr { terms, dictionary, angles, of_layer }))
}

impl Csr {
    fn k(&self, layer: usize) -> &Atoms {
        &self.dictionary.k[self.dictionary.layers[layer][0]]
    }

    fn v(&self, layer: usize) -> &Atoms {
        &self.dictionary.v[self.dictionary.layers[layer][1]]
    }

    fn angles(&self, layer: usize) -> &Angles {
        &self.angles[self.of_layer[layer]]
    }
}

/// Replaces a row by its codes.
fn put(codes: &[u32], row: &mut [f32]) {
    row.fill(0.0);
    row.iter_mut().zip(codes).for_each(|(x, code)| *x = f32::from_bits(*code));
}

impl Coder for Csr {
    fn code_k(&self, place: Place, row: &mut [f32]) {
        let mut codes = vec![0; self.terms];
        self.angles(place.layer).unrotate(place.position, row);
        self.k(place.layer).pursue(row, &mut codes);
        put(&codes, row);
    }

    fn code_v(&self, place: Place, row: &mut [f32]) {
        let mut codes = vec![0; self.terms];
        let halves = row.chunks_exact_mut(row.len() / 2).zip(codes.chunks_exact_mut(self.terms / 2));
        halves.for_each(|(half, codes)| self.v(place.layer).pursue(half, codes));
        put(&codes, row);
    }

    fn read_k(&self, place: Place, bytes: &[u8], out: &mut [f32]) {
        out.fill(0.0);
        self.k(place.layer).add(codes_of(bytes), out);
        self.angles(place.layer).rotate(place.position, out);
    }

    fn read_v(&self, place: Place, bytes: &[u8], out: &mut [f32]) {
        out.fill(0.0);
        let halves = out.chunks_exact_mut(out.len() / 2).zip(bytes.chunks_exact(bytes.len() / 2));
        halves.for_each(|(out, bytes)| self.v(place.layer).add(codes_of(bytes), out));
    }
}

#[cfg(test)]
mod tests;
