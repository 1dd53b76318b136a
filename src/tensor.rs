//! A named, typed, read-only block of a model file: plain data that `checkpoint` makes, `model`
//! names and a backend loads. Knows nothing of files, models or devices.

use std::ops::Range;
use std::sync::Arc;

/// Element type as stored in the file.
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

/// Bytes that stay valid as long as anyone holds them: a mapped file, an embedded model, a vector.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// One tensor: row-major, little-endian, inside bytes shared with its neighbours.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub dtype: DType,
    /// `[rows, cols]` of a matrix, `[len]` of a vector.
    pub shape: Vec<usize>,
    bytes: SharedBytes,
    range: Range<usize>,
}

impl Tensor {
    /// Panics when `range` does not hold exactly `shape` elements of `dtype`, or lies outside
    /// `bytes`: whoever reads a file checks its header first.
    pub fn new(name: &str, dtype: DType, shape: Vec<usize>, bytes: SharedBytes, range: Range<usize>) -> Self {
        let n: usize = shape.iter().product();
        assert_eq!(range.len(), n * dtype.size_bytes(), "tensor {name}: byte range and shape differ");
        assert!(range.end <= (*bytes).as_ref().len(), "tensor {name}: range outside its file");
        Self { name: name.to_owned(), dtype, shape, bytes, range }
    }

    /// A tensor of its own f32 values (tests, random benchmark weights).
    pub fn from_f32(name: &str, shape: Vec<usize>, values: &[f32]) -> Self {
        let bytes: Vec<u8> = bytemuck::cast_slice(values).to_vec();
        let len = bytes.len();
        Self::new(name, DType::F32, shape, Arc::new(bytes), 0..len)
    }

    pub fn bytes(&self) -> &[u8] {
        &(*self.bytes).as_ref()[self.range.clone()]
    }

    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All values widened to f32: for vectors (norms, biases), never for a whole weight matrix.
    pub fn to_f32(&self) -> Vec<f32> {
        let raw = self.bytes();
        match self.dtype {
            DType::F32 => raw.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect(),
            DType::F16 => raw.chunks_exact(2).map(|c| half::f16::from_le_bytes([c[0], c[1]]).to_f32()).collect(),
            DType::Bf16 => raw.chunks_exact(2).map(|c| half::bf16::from_le_bytes([c[0], c[1]]).to_f32()).collect(),
        }
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} {:?}", self.name, self.dtype, self.shape)
    }
}
