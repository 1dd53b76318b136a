//! The file of quantized weights: an ordinary safetensors file whose matrices are `NAME.q4` or
//! `NAME.q8` (U8, the bytes of [`crate::quant`]) and whose other tensors are copies. Lays the file
//! out, writes it and reads it back. Knows no folders.
//!
//! Metadata: `dmschat` is the version, `key` the digest of everything that the bytes depend on,
//! `weights` the choice, `calibration` how columns were weighted (`measured 2`: on the built-in
//! text; a digest: by a file; `gptq 1`, with or without a digest: the same with GPTQ; nothing: all
//! the same), and one entry `NAME: CODE ROWS COLS` for each
//! packed matrix.
//!
//! The last tensor, `checksums`, has a checksum for each MiB of the others, which the checksum of
//! the header is the seed of: a header does not pass with the data of another file.

use crate::checkpoint::names::TensorSpec;
use crate::checkpoint::safetensors::{RawTensor, TensorFile};
use crate::cores;
use crate::quant::Code;
use crate::regular_file::checksum::checksum;
use crate::tensor::{DType, SharedBytes, Tensor};
use ::safetensors::tensor::Dtype;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Written under the key `dmschat`. Increases if a reader of the old version would misread the new
/// one.
const VERSION: &str = "weights 2";
/// Without checksums. Its files are still read.
const UNCHECKED: &str = "weights 1";
/// Part of the key of every file, so that files of all versions with the same bytes of weights have
/// the same name.
pub const KEYED: &str = "weights 1";

/// The tensor of checksums, the last of the file: one for each block of the data before it.
const CHECKSUMS: &str = "checksums";
/// Bytes of the data that share a checksum.
const BLOCK_BYTES: usize = 1 << 20;

/// Alignment of the data in the file, and so of every packed matrix: their lengths are multiples of
/// it.
pub const ALIGN_BYTES: usize = 128;

/// One tensor of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The tensor's name in the model, and its shape there.
    pub spec: TensorSpec,
    pub stored: Stored,
}

/// How a tensor is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stored {
    Packed(Code),
    Plain(DType),
}

impl Entry {
    pub fn bytes(&self) -> usize {
        match (self.stored, &self.spec.shape[..]) {
            (Stored::Packed(code), [rows, cols]) => code.bytes(*rows, *cols),
            (Stored::Packed(_), shape) => panic!("{}: a packed tensor of shape {shape:?}", self.spec.name),
            (Stored::Plain(dtype), shape) => shape.iter().product::<usize>() * dtype.size_bytes(),
        }
    }

    fn name(&self) -> String {
        match self.stored {
            Stored::Packed(code) => format!("{}.{}", self.spec.name, code.name()),
            Stored::Plain(_) => self.spec.name.clone(),
        }
    }

    /// The header's entry for a tensor at these bytes of the data.
    fn header(&self, at: Range<usize>) -> Value {
        let (dtype, shape) = match self.stored {
            Stored::Packed(_) => ("U8", vec![at.len()]),
            Stored::Plain(dtype) => (safetensors_name(dtype), self.spec.shape.clone()),
        };
        json!({"dtype": dtype, "shape": shape, "data_offsets": [at.start, at.end]})
    }
}

fn safetensors_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::Bf16 => "BF16",
    }
}

/// Metadata of the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Identity {
    pub key: String,
    /// `int8` or `int4`.
    pub weights: String,
    /// How columns were weighted: [`super::calibration::Calibration::describe`].
    pub calibration: String,
    /// The model that it was made from: a hub id or the path of a folder.
    pub source: String,
    /// The commit of a hub model; empty for others.
    pub revision: String,
    /// The model's name for the user.
    pub name: String,
    /// Fingerprint of that model.
    pub fingerprint: String,
}

impl Identity {
    fn fields(&self) -> [(&'static str, &str); 9] {
        [
            ("dmschat", VERSION),
            ("key", &self.key),
            ("weights", &self.weights),
            ("calibration", &self.calibration),
            ("source", &self.source),
            ("revision", &self.revision),
            ("name", &self.name),
            ("fingerprint", &self.fingerprint),
            ("program", concat!("dmschat ", env!("CARGO_PKG_VERSION"))),
        ]
    }

    /// Reads the metadata of a file. Fails if it is not of this version.
    pub fn of(file: &TensorFile) -> Result<Self> {
        let field = |name: &str| file.metadata.get(name).cloned().unwrap_or_default();
        match file.metadata.get("dmschat").map(String::as_str) {
            None => bail!("not a file of dmschat's weights"),
            Some(VERSION | UNCHECKED) => {}
            Some(other) => bail!("its format is {other:?}, and this version reads {VERSION:?}"),
        }
        Ok(Self {
            key: field("key"),
            weights: field("weights"),
            calibration: field("calibration"),
            source: field("source"),
            revision: field("revision"),
            name: field("name"),
            fingerprint: field("fingerprint"),
        })
    }
}

/// Where everything is in the file.
pub struct Layout {
    /// The header with its length, padded so that the data is aligned.
    pub head: Vec<u8>,
    /// In the order of the data: packed matrices first, so that each is aligned.
    pub entries: Vec<Entry>,
    /// Bytes of the whole file.
    pub file_bytes: u64,
}

impl Layout {
    pub fn new(identity: &Identity, mut entries: Vec<Entry>) -> Result<Self> {
        entries.sort_by_key(|e| match e.stored {
            Stored::Packed(_) => 0,
            Stored::Plain(DType::F32) => 1,
            Stored::Plain(_) => 2,
        });
        let mut metadata: Map<String, Value> =
            identity.fields().into_iter().map(|(k, v)| (k.to_owned(), v.into())).collect();
        let mut header = Map::new();
        let mut at = 0;
        for entry in &entries {
            if let (Stored::Packed(code), [rows, cols]) = (entry.stored, &entry.spec.shape[..]) {
                metadata.insert(entry.spec.name.clone(), format!("{} {rows} {cols}", code.name()).into());
            }
            let range = at..at + entry.bytes();
            at = range.end;
            header.insert(entry.name(), entry.header(range));
        }
        let sums = at..at + at.div_ceil(BLOCK_BYTES) * size_of::<u64>();
        header.insert(
            CHECKSUMS.to_owned(),
            json!({"dtype": "U8", "shape": [sums.len()], "data_offsets": [at, sums.end]}),
        );
        header.insert("__metadata__".to_owned(), Value::Object(metadata));
        let mut text = serde_json::to_vec(&header)?;
        let padded = (8 + text.len()).next_multiple_of(ALIGN_BYTES) - 8;
        text.resize(padded, b' ');
        let mut head = (padded as u64).to_le_bytes().to_vec();
        head.extend(text);
        let file_bytes = (head.len() + sums.end) as u64;
        Ok(Self { head, entries, file_bytes })
    }
}

/// Writes a file: the header of its layout, the data of its entries in their order, and the
/// checksums.
pub struct Writer<W> {
    to: W,
    seed: u64,
    /// Data of a block that is not full.
    block: Vec<u8>,
    sums: Vec<u8>,
}

impl<W: Write> Writer<W> {
    pub fn new(mut to: W, layout: &Layout) -> io::Result<Self> {
        to.write_all(&layout.head)?;
        let seed = checksum(0, &layout.head);
        Ok(Self { to, seed, block: Vec::with_capacity(BLOCK_BYTES), sums: Vec::new() })
    }

    pub fn data(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (taken, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.block.len()));
            self.block.extend_from_slice(taken);
            bytes = rest;
            if self.block.len() == BLOCK_BYTES {
                self.end_block()?;
            }
        }
        Ok(())
    }

    fn end_block(&mut self) -> io::Result<()> {
        let number = self.sums.len() / size_of::<u64>();
        self.sums.extend(block_checksum(self.seed, number, &self.block).to_le_bytes());
        self.to.write_all(&self.block)?;
        self.block.clear();
        Ok(())
    }

    /// Writes the remaining data and the checksums.
    pub fn end(mut self) -> io::Result<W> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        self.to.write_all(&self.sums)?;
        Ok(self.to)
    }
}

/// Blocks differ in their seeds, so that none passes for another.
fn block_checksum(seed: u64, number: usize, block: &[u8]) -> u64 {
    checksum(seed.wrapping_add(number as u64 + 1), block)
}

/// Compares the checksums of a file with its header and data, on all cores: takes as long as the
/// weights' pass through memory. Files of the first version have none and pass.
fn verify(file: &TensorFile) -> Result<()> {
    let Some(sums) = file.raw(CHECKSUMS) else {
        let unchecked = file.metadata.get("dmschat").is_some_and(|version| version == UNCHECKED);
        ensure!(unchecked, "it is damaged: it has no checksums");
        return Ok(());
    };
    let raw = (*sums.file).as_ref();
    let (head, rest) = raw.split_at(file.head_bytes());
    let data = &rest[..sums.range.start - head.len()];
    let blocks = data.chunks(BLOCK_BYTES);
    ensure!(
        sums.range.end == raw.len() && sums.range.len() == 8 * blocks.len(),
        "it is damaged: its checksums are not its own"
    );
    let (seed, next) = (checksum(0, head), AtomicUsize::new(0));
    let is_whole = |number: usize| {
        let block = &data[number * BLOCK_BYTES..data.len().min((number + 1) * BLOCK_BYTES)];
        block_checksum(seed, number, block).to_le_bytes() == sums.bytes()[8 * number..8 * number + 8]
    };
    let look = || {
        let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        numbers.take_while(|number| *number < blocks.len()).find(|number| !is_whole(*number))
    };
    let damaged = std::thread::scope(|scope| {
        let looks: Vec<_> = (0..cores::count()).map(|_| scope.spawn(look)).collect();
        looks.into_iter().filter_map(|look| look.join().unwrap_or(Some(0))).min()
    });
    match damaged {
        None => Ok(()),
        Some(number) => bail!("it is damaged: the checksum of MiB {number} of {} differs", blocks.len()),
    }
}

/// Reads a file that must hold exactly these tensors under this key, and verifies its data. The
/// error says why it does not.
pub fn read(bytes: SharedBytes, key: &str, entries: &[Entry]) -> Result<BTreeMap<String, Tensor>> {
    let file = TensorFile::new("the file", bytes)?;
    let identity = Identity::of(&file)?;
    ensure!(identity.key == key, "it was made from other files");
    verify(&file)?;
    let read = |entry: &Entry| Ok((entry.spec.name.clone(), tensor(&file, entry)?));
    entries.iter().map(read).collect()
}

fn tensor(file: &TensorFile, entry: &Entry) -> Result<Tensor> {
    let Entry { spec, stored } = entry;
    match *stored {
        Stored::Plain(dtype) => {
            let tensor = spec.check(file.tensor(spec)?, "it")?;
            ensure!(tensor.dtype() == Some(dtype), "its tensor {} is not {}", spec.name, dtype.name());
            Ok(tensor)
        }
        Stored::Packed(code) => {
            let raw = file.raw(&entry.name()).filter(|t| t.dtype == Dtype::U8);
            let RawTensor { file, range, .. } = raw.with_context(|| format!("it has no tensor {}", entry.name()))?;
            ensure!(range.len() == entry.bytes(), "its tensor {} has {} bytes", entry.name(), range.len());
            let [rows, cols] = spec.shape[..] else { bail!("its tensor {} is not a matrix", entry.name()) };
            Ok(Tensor::packed(&spec.name, code, [rows, cols], file, range))
        }
    }
}

/// The tensors that a file lists in its metadata and header: for a file whose source is gone.
pub fn listed(file: &TensorFile, specs: impl Iterator<Item = TensorSpec>) -> Result<Vec<Entry>> {
    let entry = |spec: TensorSpec| {
        let stored = match file.metadata.get(&spec.name) {
            Some(text) => Stored::Packed(packed_as(text, &spec)?),
            None => {
                let tensor = spec.check(file.tensor(&spec)?, "it")?;
                Stored::Plain(tensor.dtype().context("a tensor of a safetensors file has a plain format")?)
            }
        };
        Ok(Entry { spec, stored })
    };
    specs.map(entry).collect()
}

/// The code of a matrix described as `CODE ROWS COLS`, which must be the model's.
fn packed_as(text: &str, spec: &TensorSpec) -> Result<Code> {
    let (code, shape) = text.split_once(' ').unwrap_or((text, ""));
    let wanted = spec.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
    ensure!(shape == wanted, "its matrix {} is {shape}, and the model's is {wanted}", spec.name);
    let known = Code::stored().find(|c| c.name() == code);
    known.with_context(|| format!("its matrix {} has the unknown code {code:?}", spec.name))
}
