//! A named, typed, read-only block of a model file. `checkpoint` makes tensors, `model` chooses
//! them by name, a backend loads them.

use crate::quant::{Code, TILE_ROWS};
use std::ops::Range;
use std::sync::Arc;

/// Element type in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DType {
    F32,
    F16,
    Bf16,
}

impl DType {
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
        }
    }

    pub const fn size_bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::Bf16 => 2,
        }
    }
}

/// Shared bytes: a mapped file, an embedded model or a vector.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A matrix in the format of another program, decoded row by row. It holds its own shared bytes.
pub trait Rows: Send + Sync {
    /// Name of the format in that program, such as `Q4_K`.
    fn name(&self) -> &str;
    /// Bits per weight, with scales.
    fn bits(&self) -> f32;
    /// Decodes row `row` into `out`, one value per column.
    fn decode(&self, row: usize, out: &mut [f32]);
    /// Whether the scales of row `row`, and codes that can be NaN, are finite numbers.
    fn is_finite(&self, _row: usize) -> bool {
        true
    }
    /// The code that [`Self::exact_strip`] keeps with its scales and minima, if there is one.
    fn own_code(&self) -> Option<Code> {
        None
    }
    /// Packs rows `16 strip ..` into `out` without loss, if `code` can hold their codes. Returns
    /// whether it did.
    fn exact_strip(&self, _code: Code, _strip: usize, _out: &mut [u8]) -> bool {
        false
    }
}

/// Some rows of a matrix: runs of `run` rows from `first` on, whose first rows are `stride` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRuns {
    pub first: usize,
    pub run: usize,
    pub stride: usize,
}

impl RowRuns {
    /// `n` rows from `first` on.
    pub fn one(first: usize, n: usize) -> Self {
        Self { first, run: n.max(1), stride: n }
    }

    fn source(self, row: usize) -> usize {
        self.first + row / self.run * self.stride + row % self.run
    }
}

/// A matrix of some rows of another.
struct SomeRows {
    whole: Arc<dyn Rows>,
    runs: RowRuns,
}

impl SomeRows {
    fn are_whole_strips(&self) -> bool {
        [self.runs.first, self.runs.run, self.runs.stride].iter().all(|row| row.is_multiple_of(TILE_ROWS))
    }
}

impl Rows for SomeRows {
    fn name(&self) -> &str {
        self.whole.name()
    }
    fn bits(&self) -> f32 {
        self.whole.bits()
    }
    fn decode(&self, row: usize, out: &mut [f32]) {
        self.whole.decode(self.runs.source(row), out);
    }
    fn is_finite(&self, row: usize) -> bool {
        self.whole.is_finite(self.runs.source(row))
    }
    fn own_code(&self) -> Option<Code> {
        self.whole.own_code().filter(|_| self.are_whole_strips())
    }
    fn exact_strip(&self, code: Code, strip: usize, out: &mut [u8]) -> bool {
        self.are_whole_strips() && self.whole.exact_strip(code, self.runs.source(strip * TILE_ROWS) / TILE_ROWS, out)
    }
}

/// How a tensor's values are stored.
#[derive(Clone)]
pub enum Format {
    /// Row-major elements.
    Plain(DType),
    /// A matrix in strips of 16 rows.
    Packed(Code),
    /// A matrix in another program's format. It is converted before a backend sees it.
    Rows(Arc<dyn Rows>),
}

impl Format {
    pub fn name(&self) -> &str {
        match self {
            Format::Plain(dtype) => dtype.name(),
            Format::Packed(code) => code.name(),
            Format::Rows(rows) => rows.name(),
        }
    }

    /// Bytes of a tensor of that shape.
    pub fn bytes(&self, shape: &[usize]) -> usize {
        let n: usize = shape.iter().product();
        match (self, shape) {
            (Format::Packed(code), &[rows, cols]) => code.bytes(rows, cols),
            (Format::Packed(code), _) => n * code.bits() / 8,
            (Format::Plain(dtype), _) => n * dtype.size_bytes(),
            (Format::Rows(rows), _) => (n as f64 * rows.bits() as f64 / 8.0) as usize,
        }
    }
}

/// A little-endian tensor in bytes that it shares with other tensors.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub format: Format,
    /// `[rows, cols]` of a matrix, `[len]` of a vector.
    pub shape: Vec<usize>,
    bytes: SharedBytes,
    range: Range<usize>,
}

impl Tensor {
    /// Creates a tensor over `range` of `bytes`. Panics unless the range holds exactly `shape`
    /// elements of `dtype` and lies inside `bytes`; readers of files check the header first.
    pub fn new(name: &str, dtype: DType, shape: Vec<usize>, bytes: SharedBytes, range: Range<usize>) -> Self {
        let n: usize = shape.iter().product();
        assert_eq!(range.len(), n * dtype.size_bytes(), "tensor {name}: byte range and shape differ");
        assert!(range.end <= (*bytes).as_ref().len(), "tensor {name}: range outside its file");
        Self { name: name.to_owned(), format: Format::Plain(dtype), shape, bytes, range }
    }

    /// Creates a packed matrix `[rows, cols]` over `range` of `bytes`. Panics unless `cols` is a
    /// multiple of 64 and the range holds exactly its strips.
    pub fn packed(name: &str, code: Code, shape: [usize; 2], bytes: SharedBytes, range: Range<usize>) -> Self {
        let [rows, cols] = shape;
        assert!(Code::fits(cols), "tensor {name}: {cols} columns cannot be packed");
        assert_eq!(range.len(), code.bytes(rows, cols), "tensor {name}: byte range and shape differ");
        assert!(range.end <= (*bytes).as_ref().len(), "tensor {name}: range outside its file");
        Self { name: name.to_owned(), format: Format::Packed(code), shape: shape.to_vec(), bytes, range }
    }

    /// Creates a matrix `[rows, cols]` in another program's format.
    pub fn from_rows(name: &str, shape: [usize; 2], rows: Arc<dyn Rows>) -> Self {
        let (bytes, format): (SharedBytes, _) = (Arc::new([]), Format::Rows(rows));
        Self { name: name.to_owned(), format, shape: shape.to_vec(), bytes, range: 0..0 }
    }

    /// Creates an f32 tensor with bytes of its own, for tests and random benchmark weights.
    pub fn from_f32(name: &str, shape: Vec<usize>, values: &[f32]) -> Self {
        let bytes: Vec<u8> = bytemuck::cast_slice(values).to_vec();
        let len = bytes.len();
        Self::new(name, DType::F32, shape, Arc::new(bytes), 0..len)
    }

    /// The same values under another name.
    pub fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    /// A stack of matrices `[n, rows, cols]` as one `[n * rows, cols]`; anything else as it is.
    pub fn as_matrix(mut self) -> Self {
        if let [n, rows, cols] = self.shape[..] {
            self.shape = vec![n * rows, cols];
        }
        self
    }

    /// Returns `n` of its rows, under another name: shared, or copied if they are not contiguous.
    /// Strips are not divided.
    pub fn rows(&self, name: &str, n: usize, runs: RowRuns) -> Self {
        let mut shape = self.shape.clone();
        shape[0] = n;
        match &self.format {
            Format::Plain(dtype) => {
                let row = self.range.len() / self.shape[0].max(1);
                if runs.run >= n {
                    let first = self.range.start + runs.first * row;
                    return Self::new(name, *dtype, shape, self.bytes.clone(), first..first + n * row);
                }
                let mut bytes = Vec::with_capacity(n * row);
                (0..n).for_each(|i| bytes.extend_from_slice(&self.bytes()[runs.source(i) * row..][..row]));
                Self::new(name, *dtype, shape, Arc::new(bytes), 0..n * row)
            }
            Format::Rows(whole) => {
                Self::from_rows(name, [n, shape[1]], Arc::new(SomeRows { whole: whole.clone(), runs }))
            }
            Format::Packed(_) => panic!("tensor {}: strips cannot be divided", self.name),
        }
    }

    /// Its bytes; none of [`Format::Rows`].
    pub fn bytes(&self) -> &[u8] {
        &(*self.bytes).as_ref()[self.range.clone()]
    }

    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of its values as they are stored.
    pub fn stored_bytes(&self) -> usize {
        self.format.bytes(&self.shape)
    }

    /// The element type of a plain tensor.
    pub fn dtype(&self) -> Option<DType> {
        match self.format {
            Format::Plain(dtype) => Some(dtype),
            _ => None,
        }
    }

    /// Converts all values to f32. For vectors (norms, biases), not for weight matrices.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.len()];
        match self.shape[..] {
            [rows, cols] if cols > 0 => {
                let out = out.chunks_exact_mut(cols).take(rows).enumerate();
                out.for_each(|(row, out)| self.decode_row(row, out));
            }
            _ => self.decode_row(0, &mut out),
        }
        out
    }

    /// Converts row `row` of a matrix, or a whole vector, to f32.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        match &self.format {
            Format::Plain(dtype) => {
                let len = out.len() * dtype.size_bytes();
                widen(*dtype, &self.bytes()[row * len..(row + 1) * len], out);
            }
            Format::Packed(code) => code.unpack_row(self.bytes(), self.shape[0], self.shape[1], row, out),
            Format::Rows(rows) => rows.decode(row, out),
        }
    }
}

fn widen(dtype: DType, raw: &[u8], out: &mut [f32]) {
    let (pairs, fours) = (raw.as_chunks::<2>().0, raw.as_chunks::<4>().0);
    match dtype {
        DType::F32 => out.iter_mut().zip(fours).for_each(|(o, &c)| *o = f32::from_le_bytes(c)),
        DType::F16 => out.iter_mut().zip(pairs).for_each(|(o, &c)| *o = half::f16::from_le_bytes(c).to_f32()),
        DType::Bf16 => out.iter_mut().zip(pairs).for_each(|(o, &c)| *o = half::bf16::from_le_bytes(c).to_f32()),
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Part of a checkpoint's fingerprint.
        match &self.format {
            Format::Plain(dtype) => write!(f, "{} {dtype:?} {:?}", self.name, self.shape),
            format => write!(f, "{} {} {:?}", self.name, format.name(), self.shape),
        }
    }
}
