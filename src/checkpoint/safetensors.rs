//! One safetensors file: checks the whole header, and gives tensors as handles into the shared
//! bytes. Knows nothing of models.
//!
//! Layout: u64 little-endian header length, JSON header, data; `data_offsets` count from the data.
//! The entry types are those of the safetensors crate. Its reader is not used, because its errors
//! do not name the tensor.

use super::bounds;
use super::mapped;
use super::names::TensorSpec;
use crate::tensor::{DType, SharedBytes, Tensor};
use ::safetensors::tensor::{Dtype, TensorInfo};
use anyhow::{Context, Result, anyhow, bail, ensure};
use half::{bf16, f16};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// One weight file.
#[derive(Clone)]
pub struct SourceFile {
    pub name: String,
    /// Bytes before the tensors' data.
    pub head_bytes: usize,
    pub bytes: SharedBytes,
}

/// A parsed file. `label` names it in error messages.
pub struct TensorFile {
    label: String,
    bytes: SharedBytes,
    /// Bytes before the tensors' data.
    head_bytes: usize,
    entries: BTreeMap<String, Entry>,
    /// `__metadata__`, all strings.
    pub metadata: BTreeMap<String, String>,
}

/// The range of a tensor in the file. Files may have element types that no supported model needs.
pub(super) struct Entry {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub range: Range<usize>,
}

impl TensorFile {
    /// Parses the header. Errors name the file and the first problem.
    pub fn new(label: &str, bytes: SharedBytes) -> Result<Self> {
        let raw = (*bytes).as_ref();
        let header_len = match raw.first_chunk::<8>() {
            Some(chunk) => u64::from_le_bytes(*chunk),
            None => bail!("{label} is not a safetensors file: {} bytes long", raw.len()),
        };
        let after_len = raw.len() as u64 - 8;
        ensure!(
            header_len <= after_len,
            "{label} is truncated or no safetensors file: its header claims {header_len} bytes, {after_len} follow"
        );
        ensure!(
            header_len <= bounds::HEADER_BYTES,
            "{label}: its header has {header_len} bytes, expected at most {}",
            bounds::HEADER_BYTES
        );
        let data_start = 8 + header_len as usize;
        let header: Map<String, Value> = serde_json::from_slice(&raw[8..data_start])
            .map_err(|e| anyhow!("{label}: the safetensors header is not JSON: {e}"))?;
        let (mut entries, mut metadata) = (BTreeMap::new(), BTreeMap::new());
        for (name, value) in &header {
            if name == "__metadata__" {
                metadata = strings(value).with_context(|| format!("{label}: __metadata__ is not a map of strings"))?;
            } else {
                let entry =
                    Entry::parse(value, data_start, raw.len()).map_err(|e| anyhow!("{label}: tensor {name}: {e}"))?;
                entries.insert(name.clone(), entry);
            }
        }
        if let Some([a, b]) = bounds::overlap(entries.iter().map(|(name, e)| (name, &e.range))) {
            bail!("{label}: tensors {a} and {b} overlap");
        }
        Ok(Self { label: label.to_owned(), bytes, head_bytes: data_start, entries, metadata })
    }

    /// A file of another format, whose tensors have these places in it. They may overlap.
    pub(super) fn of_entries(label: &str, bytes: SharedBytes, entries: BTreeMap<String, Entry>) -> Self {
        Self { label: label.to_owned(), bytes, head_bytes: 0, entries, metadata: BTreeMap::new() }
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Bytes before the tensors' data.
    pub fn head_bytes(&self) -> usize {
        self.head_bytes
    }

    /// The file itself.
    pub fn source(&self) -> SourceFile {
        let name = Path::new(&self.label).file_name().unwrap_or_default().to_string_lossy().into_owned();
        SourceFile { name, head_bytes: self.head_bytes, bytes: self.bytes.clone() }
    }

    /// The tensor of that name, in any element type.
    pub fn raw(&self, name: &str) -> Option<RawTensor> {
        let Entry { dtype, shape, range } = self.entries.get(name)?;
        Some(RawTensor { dtype: *dtype, shape: shape.clone(), file: self.bytes.clone(), range: range.clone() })
    }

    /// The tensor of that name and shape, in F32, F16 or BF16. Shares the file's bytes, or copies
    /// them if they are not aligned.
    pub fn tensor(&self, spec: &TensorSpec) -> Result<Option<Tensor>> {
        let name = &spec.name;
        let Some(entry) = self.entries.get(name) else { return Ok(None) };
        spec.check_shape(&entry.shape, &self.label)?;
        let dtype = match entry.dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::Bf16,
            other => bail!("{}: tensor {name} is {other}; F32, F16 and BF16 are supported", self.label),
        };
        let raw = &(*self.bytes).as_ref()[entry.range.clone()];
        if raw.as_ptr().align_offset(dtype.size_bytes()) == 0 {
            let bytes = self.bytes.clone();
            return Ok(Some(Tensor::new(name, dtype, entry.shape.clone(), bytes, entry.range.clone())));
        }
        // Only files of writers that do not pad the header reach this; the reference implementation
        // pads.
        let copy = mapped::buffer(raw.len(), |to| to.copy_from_slice(raw))?;
        Ok(Some(Tensor::new(name, dtype, entry.shape.clone(), copy, 0..raw.len())))
    }
}

/// A tensor of any element type. It need not be aligned.
pub struct RawTensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// The whole file.
    pub file: SharedBytes,
    pub range: Range<usize>,
}

impl RawTensor {
    pub fn bytes(&self) -> &[u8] {
        &(*self.file).as_ref()[self.range.clone()]
    }

    /// Whether it is F32, F16 or BF16.
    pub fn is_float(&self) -> bool {
        matches!(self.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16)
    }

    /// Element `at` of a tensor of 32-bit integers.
    pub fn u32_at(&self, at: usize) -> u32 {
        let b = &self.bytes()[4 * at..4 * at + 4];
        u32::from_le_bytes([b[0], b[1], b[2], b[3]])
    }

    /// Element `at` of a tensor of floats.
    pub fn f32_at(&self, at: usize) -> f32 {
        let pair = |b: &[u8]| [b[2 * at], b[2 * at + 1]];
        match self.dtype {
            Dtype::F16 => f16::from_le_bytes(pair(self.bytes())).to_f32(),
            Dtype::BF16 => bf16::from_le_bytes(pair(self.bytes())).to_f32(),
            _ => f32::from_bits(self.u32_at(at)),
        }
    }
}

impl Entry {
    fn parse(value: &Value, data_start: usize, file_len: usize) -> Result<Self> {
        let TensorInfo { dtype, shape, data_offsets: (start, end) } = serde_json::from_value(value.clone())?;
        let absolute = |x: usize| x.checked_add(data_start);
        let (start, end) = absolute(start).zip(absolute(end)).context("data_offsets overflow")?;
        ensure!(start <= end, "data_offsets run backwards");
        ensure!(end <= file_len, "ends at byte {end}, but the file has {file_len}: the file is truncated");
        let n = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).context("shape overflows")?;
        let bits = n.checked_mul(dtype.bitsize()).context("shape overflows")?;
        ensure!(
            bits.is_multiple_of(8) && bits / 8 == end - start,
            "shape {shape:?} of {dtype} does not fill its {} bytes",
            end - start
        );
        Ok(Self { dtype, shape, range: start..end })
    }
}

fn strings(value: &Value) -> Option<BTreeMap<String, String>> {
    value.as_object()?.iter().map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect()
}
