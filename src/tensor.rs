//! A named, typed, read-only block of a model file. `checkpoint` makes tensors, `model` chooses them by name, a backend
//! loads them.

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

/// A row-major, little-endian tensor in bytes that it shares with other tensors.
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
    /// Creates a tensor over `range` of `bytes`. Panics unless the range holds exactly `shape` elements of `dtype` and lies
    /// inside `bytes`; readers of files check the header first.
    pub fn new(name: &str, dtype: DType, shape: Vec<usize>, bytes: SharedBytes, range: Range<usize>) -> Self {
        let n: usize = shape.iter().product();
        assert_eq!(range.len(), n * dtype.size_bytes(), "tensor {name}: byte range and shape differ");
        assert!(range.end <= (*bytes).as_ref().len(), "tensor {name}: range outside its file");
        Self { name: name.to_owned(), dtype, shape, bytes, range }
    }

    /// Creates an f32 tensor with bytes of its own, for tests and random benchmark weights.
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

    /// Converts all values to f32. For vectors (norms, biases), not for weight matrices.
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
