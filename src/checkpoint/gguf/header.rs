//! Parses the header of a GGUF file: metadata values and the list of tensors. Every count, length
//! and offset is checked against the file before it is used. Knows nothing of models.
//!
//! Layout: "GGUF", u32 version, u64 tensors, u64 metadata entries, the entries, the tensor list,
//! padding to the alignment, data; tensor offsets count from the data. All numbers are
//! little-endian.

use super::super::bounds;
use super::blocks::Kind;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::ops::Range;

pub const MAGIC: &[u8; 4] = b"GGUF";
/// Largest header. Vocabularies of 260,000 tokens with their merges take about 16 MB.
pub const HEADER_BYTES: usize = 64 << 20;
/// Most tensors and most metadata entries. Llama 3.1 405B has 1,138 tensors.
const ENTRIES: usize = 1 << 16;
/// Longest key and tensor name. llama.cpp writes names of up to 63 bytes.
const NAME_BYTES: usize = 256;
const MAX_DIMS: usize = 4;
const DEFAULT_ALIGNMENT: u64 = 32;
/// Smallest metadata entry: an empty key, a type and a byte.
const MIN_ENTRY_BYTES: usize = 8 + 4 + 1;
/// Smallest tensor: an empty name, no dimensions, type and offset.
const MIN_TENSOR_BYTES: usize = 8 + 4 + 4 + 8;

/// A metadata value. Arrays stay in the file and are read where they are needed.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Array(Array),
}

/// A value for a message.
pub fn shown(value: &Value) -> String {
    match value {
        Value::Text(text) => format!("{:?}", text.chars().take(60).collect::<String>()),
        Value::Array(array) => format!("an array of {} values", array.len),
        Value::Unsigned(n) => n.to_string(),
        Value::Signed(n) => n.to_string(),
        Value::Float(n) => n.to_string(),
        Value::Bool(b) => b.to_string(),
    }
}

/// The place of an array of `len` values of one type.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    type_id: u32,
    pub len: usize,
    range: Range<usize>,
}

/// A tensor in the file.
#[derive(Clone, Debug)]
pub struct Entry {
    /// `Err`: an element type that is not supported, by its number.
    pub kind: Result<Kind, u32>,
    /// Slowest dimension first: `[rows, cols]` of a matrix.
    pub shape: Vec<usize>,
    /// Bytes of the file; empty for a type that is not supported.
    pub range: Range<usize>,
    /// Which part of the model it is in, of several files.
    pub part: usize,
}

#[derive(Debug, Default)]
pub struct Header {
    pub metadata: BTreeMap<String, Value>,
    pub tensors: BTreeMap<String, Entry>,
    /// Bytes before the tensors' data.
    pub data_start: usize,
}

impl Header {
    /// Parses the header of a file of `file_len` bytes that begins with `raw`. Errors do not name
    /// the file.
    pub fn parse(raw: &[u8], file_len: usize) -> Result<Self> {
        let mut r = Reader { raw: &raw[..raw.len().min(HEADER_BYTES)], at: 0, file_len };
        let magic = r.take(4).unwrap_or_default();
        ensure!(magic == MAGIC, "not a GGUF file: it does not begin with \"GGUF\"");
        match r.u32()? {
            2 | 3 => {}
            swapped @ (0x0200_0000 | 0x0300_0000) => bail!("big-endian files (version {swapped:#x}) are not supported"),
            version => bail!("GGUF version {version} is not supported (2 and 3 are)"),
        }
        let n_tensors = r.count("tensors", MIN_TENSOR_BYTES)?;
        let n_entries = r.count("metadata entries", MIN_ENTRY_BYTES)?;
        let most = n_tensors.max(n_entries);
        ensure!(most <= ENTRIES, "its header has {most} entries, expected at most {ENTRIES}");
        let mut out = Self::default();
        for _ in 0..n_entries {
            let key = r.name("a metadata key")?;
            let value = r.value().with_context(|| format!("metadata {key:?}"))?;
            ensure!(!out.metadata.contains_key(&key), "metadata {key:?} occurs twice");
            out.metadata.insert(key, value);
        }
        let mut listed = Vec::new();
        for _ in 0..n_tensors {
            let name = r.name("a tensor name")?;
            let tensor = Listed::read(&mut r).with_context(|| format!("tensor {name}"))?;
            listed.push((name, tensor));
        }
        let alignment = out.alignment()?;
        let data_start = (r.at as u64).next_multiple_of(alignment);
        out.data_start = r.at;
        for (name, tensor) in listed {
            let entry = tensor.check(data_start, alignment, file_len).with_context(|| format!("tensor {name}"))?;
            ensure!(!out.tensors.contains_key(&name), "tensor {name} occurs twice");
            out.tensors.insert(name, entry);
        }
        out.refuse_overlap()?;
        Ok(out)
    }

    fn alignment(&self) -> Result<u64> {
        const KEY: &str = "general.alignment";
        let stated = match self.metadata.get(KEY) {
            None => return Ok(DEFAULT_ALIGNMENT),
            Some(Value::Unsigned(n)) => *n,
            Some(other) => bail!("{KEY} is {other:?}, expected a whole number"),
        };
        ensure!(
            stated.is_power_of_two() && stated <= 1 << 16,
            "{KEY} is {stated}, expected a power of two up to 65536"
        );
        Ok(stated)
    }

    fn refuse_overlap(&self) -> Result<()> {
        let overlap = bounds::overlap(self.tensors.iter().map(|(name, t)| (name, &t.range)));
        overlap.map_or(Ok(()), |[a, b]| bail!("tensors {a} and {b} overlap"))
    }
}

/// A tensor as listed, before its data is looked at.
struct Listed {
    type_id: u32,
    shape: Vec<usize>,
    offset: u64,
}

impl Listed {
    fn read(r: &mut Reader) -> Result<Self> {
        let n_dims = r.u32()? as usize;
        ensure!(n_dims <= MAX_DIMS, "it has {n_dims} dimensions, expected at most {MAX_DIMS}");
        let mut shape = Vec::new();
        for _ in 0..n_dims {
            let n = r.u64()?;
            shape
                .push(usize::try_from(n).ok().filter(|n| *n < 1 << 40).with_context(|| format!("a dimension is {n}"))?);
        }
        shape.reverse();
        Ok(Self { type_id: r.u32()?, offset: r.u64()?, shape })
    }

    fn check(self, data_start: u64, alignment: u64, file_len: usize) -> Result<Entry> {
        let Self { type_id, shape, offset } = self;
        let kind = match Kind::from_id(type_id) {
            Some(kind) => kind,
            None => return Ok(Entry { kind: Err(type_id), shape, range: 0..0, part: 0 }),
        };
        let cols = shape.last().copied().unwrap_or(1);
        let (block, block_bytes) = kind.block();
        ensure!(cols % block == 0, "its rows of {cols} values are not whole blocks of {block} ({})", kind.name());
        let rows = shape.iter().rev().skip(1).try_fold(1usize, |n, &d| n.checked_mul(d));
        let bytes = rows.and_then(|rows| rows.checked_mul(cols / block)?.checked_mul(block_bytes));
        let bytes = bytes.with_context(|| format!("shape {shape:?} overflows"))?;
        ensure!(offset % alignment == 0, "its offset {offset} is not a multiple of {alignment}");
        let range = data_start.checked_add(offset).and_then(|start| {
            let start = usize::try_from(start).ok()?;
            Some(start..start.checked_add(bytes)?)
        });
        let range = range.with_context(|| format!("its offset {offset} overflows"))?;
        ensure!(
            range.end <= file_len,
            "ends at byte {}, but the file has {file_len}: the file is truncated",
            range.end
        );
        Ok(Entry { kind: Ok(kind), shape, range, part: 0 })
    }
}

impl Array {
    /// The strings of the array, or an error at the first that is not UTF-8. `raw` is the whole
    /// file.
    pub fn texts<'a>(&self, raw: &'a [u8]) -> Result<Vec<&'a str>> {
        ensure!(self.type_id == TEXT, "not an array of strings");
        let mut r = Reader { raw: &raw[..self.range.end], at: self.range.start, file_len: raw.len() };
        let text = |at: usize| {
            let bytes = r.text()?;
            std::str::from_utf8(bytes).ok().with_context(|| format!("string {at} is not UTF-8"))
        };
        (0..self.len).map(text).collect()
    }

    /// The f32 values of the array.
    pub fn floats(&self, raw: &[u8]) -> Result<Vec<f32>> {
        ensure!(self.type_id == FLOAT, "not an array of f32");
        Ok(raw[self.range.clone()].as_chunks::<4>().0.iter().map(|v| f32::from_le_bytes(*v)).collect())
    }

    /// The truth values of the array, also written as numbers.
    pub fn flags(&self, raw: &[u8]) -> Result<Vec<bool>> {
        if self.type_id == BOOL {
            return Ok(raw[self.range.clone()].iter().map(|byte| *byte != 0).collect());
        }
        Ok(self.integers(raw)?.into_iter().map(|n| n != 0).collect())
    }

    /// The integers of the array.
    pub fn integers(&self, raw: &[u8]) -> Result<Vec<i64>> {
        let size = scalar_bytes(self.type_id).filter(|_| !matches!(self.type_id, 6 | 7 | 12));
        let size = size.context("not an array of integers")?;
        let values = raw[self.range.clone()].chunks_exact(size);
        Ok(values.map(|v| integer(self.type_id, v)).collect())
    }
}

const FLOAT: u32 = 6;
const BOOL: u32 = 7;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

/// Bytes of a value of this type; `None` for strings, arrays and unknown types.
fn scalar_bytes(type_id: u32) -> Option<usize> {
    match type_id {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// A little-endian integer of one of the integer types. A u64 above i64::MAX wraps.
fn integer(type_id: u32, bytes: &[u8]) -> i64 {
    let mut wide = [0u8; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let unsigned = u64::from_le_bytes(wide);
    match type_id {
        1 => i64::from(unsigned as i8),
        3 => i64::from(unsigned as i16),
        5 => i64::from(unsigned as i32),
        _ => unsigned as i64,
    }
}

/// A position in the header.
struct Reader<'a> {
    raw: &'a [u8],
    at: usize,
    file_len: usize,
}

impl<'a> Reader<'a> {
    fn left(&self) -> usize {
        self.raw.len() - self.at
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        if n > self.left() {
            ensure!(self.raw.len() == self.file_len, "its header has more than {HEADER_BYTES} bytes");
            bail!("the file is truncated: its header extends beyond its end");
        }
        let bytes = &self.raw[self.at..self.at + n];
        self.at += n;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(integer(4, self.take(4)?) as u32)
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(integer(10, self.take(8)?) as u64)
    }

    /// A number of things of at least `least` bytes each.
    fn count(&mut self, what: &str, least: usize) -> Result<usize> {
        let n = self.u64()?;
        let most = self.left() / least;
        ensure!(n <= most as u64, "its header claims {n} {what}, but has room for {most} at most");
        Ok(n as usize)
    }

    fn text(&mut self) -> Result<&'a [u8]> {
        let n = self.count("bytes of text", 1)?;
        self.take(n)
    }

    fn name(&mut self, what: &str) -> Result<String> {
        let bytes = self.text().context(what.to_owned())?;
        ensure!(bytes.len() <= NAME_BYTES, "{what} has {} bytes, expected at most {NAME_BYTES}", bytes.len());
        String::from_utf8(bytes.to_vec()).ok().with_context(|| format!("{what} is not UTF-8"))
    }

    fn value(&mut self) -> Result<Value> {
        match self.u32()? {
            TEXT => {
                let text = String::from_utf8(self.text()?.to_vec());
                Ok(Value::Text(text.ok().context("it is not UTF-8")?))
            }
            ARRAY => self.array(),
            type_id => {
                let size = scalar_bytes(type_id).with_context(|| format!("its type {type_id} is unknown"))?;
                let bytes = self.take(size)?;
                Ok(match type_id {
                    6 => Value::Float(f64::from(f32::from_bits(integer(4, bytes) as u32))),
                    12 => Value::Float(f64::from_bits(integer(10, bytes) as u64)),
                    7 => Value::Bool(bytes[0] != 0),
                    1 | 3 | 5 | 11 => Value::Signed(integer(type_id, bytes)),
                    _ => Value::Unsigned(integer(type_id, bytes) as u64),
                })
            }
        }
    }

    fn array(&mut self) -> Result<Value> {
        let type_id = self.u32()?;
        let least = match type_id {
            TEXT => 8,
            ARRAY => bail!("arrays of arrays are not supported"),
            other => scalar_bytes(other).with_context(|| format!("its element type {other} is unknown"))?,
        };
        let len = self.count("values", least)?;
        let start = self.at;
        if type_id == TEXT {
            for _ in 0..len {
                self.text()?;
            }
        } else {
            self.take(len * least)?;
        }
        Ok(Value::Array(Array { type_id, len, range: start..self.at }))
    }
}
