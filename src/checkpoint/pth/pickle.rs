//! Reads the pickle of a dict of tensors. A pickle is a program; this reader knows the few
//! instructions, names and calls that a dict of tensors consists of, makes plain values of them,
//! and refuses everything else by name. Nothing is imported or called.
//!
//! Values refer to each other by numbers in lists, so that a value is never deep, and each
//! instruction adds at most what it has in bytes or takes from the stack.

use ::safetensors::tensor::Dtype;
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, HashMap};

/// Most values on the stack: writers put at most 1,000 pairs there.
const STACK: usize = 1 << 13;
/// Longest text.
const TEXT_BYTES: usize = 1 << 10;
/// Most dimensions of a tensor, and most tensors.
const DIMS: usize = 8;
const TENSORS: usize = 1 << 14;

/// A tensor: the part of a storage that it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Name of the storage's file.
    pub key: String,
    pub dtype: Dtype,
    /// Values of the storage.
    pub storage_len: usize,
    /// Its first value.
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

/// What the names of a dict of tensors mean.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Storage(Dtype),
}

const GLOBALS: [(&str, &str, Global); 6] = [
    ("collections", "OrderedDict", Global::OrderedDict),
    ("torch._utils", "_rebuild_tensor_v2", Global::RebuildTensor),
    ("torch._utils", "_rebuild_parameter", Global::RebuildParameter),
    ("torch", "FloatStorage", Global::Storage(Dtype::F32)),
    ("torch", "HalfStorage", Global::Storage(Dtype::F16)),
    ("torch", "BFloat16Storage", Global::Storage(Dtype::BF16)),
];

/// A value. Numbers are places in the lists of [`Reader`].
#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    Mark,
    None,
    Bool,
    Int(i64),
    Text(&'a str),
    Global(Global),
    Tuple(usize),
    Dict(usize),
    Storage(usize),
    Tensor(usize),
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value<'a>>,
    memo: HashMap<u32, Value<'a>>,
    tuples: Vec<Vec<Value<'a>>>,
    dicts: Vec<BTreeMap<&'a str, Value<'a>>>,
    /// Type, key and number of values.
    storages: Vec<(Dtype, &'a str, usize)>,
    tensors: Vec<Part>,
}

/// The tensors of a pickle, by name.
pub fn parts(bytes: &[u8]) -> Result<Vec<(String, Part)>> {
    let mut reader = Reader {
        bytes,
        at: 0,
        stack: Vec::new(),
        memo: HashMap::new(),
        tuples: Vec::new(),
        dicts: Vec::new(),
        storages: Vec::new(),
        tensors: Vec::new(),
    };
    while !reader.instruction()? {}
    let Some(Value::Dict(dict)) = reader.stack.pop().filter(|_| reader.stack.is_empty()) else {
        bail!("it holds no dict of tensors");
    };
    let part = |(name, value): (&&str, &Value<'_>)| match value {
        Value::Tensor(tensor) => Ok((name.to_string(), reader.tensors[*tensor].clone())),
        _ => bail!("{name} is not a tensor"),
    };
    reader.dicts[dict].iter().map(part).collect()
}

impl<'a> Reader<'a> {
    /// Reads one instruction. Returns whether it is the last.
    fn instruction(&mut self) -> Result<bool> {
        let start = self.at;
        match self.take(1)?[0] {
            0x80 => {
                let version = self.take(1)?[0];
                ensure!(version == 2, "it has version {version}, expected 2, which torch.save writes");
            }
            b'.' => return Ok(true),
            b'(' => self.push(Value::Mark)?,
            b'N' => self.push(Value::None)?,
            0x88 | 0x89 => self.push(Value::Bool)?,
            b'K' => self.number(1)?,
            b'M' => self.number(2)?,
            b'J' => self.number(4)?,
            0x8a => {
                let len = self.take(1)?[0];
                self.number(usize::from(len))?;
            }
            b'X' => {
                let len = self.u32()? as usize;
                ensure!(len <= TEXT_BYTES, "a text of {len} bytes, expected at most {TEXT_BYTES}");
                let text = std::str::from_utf8(self.take(len)?).context("a text is not UTF-8")?;
                self.push(Value::Text(text))?;
            }
            b'c' => self.global()?,
            b')' => self.tuple(0)?,
            0x85 => self.tuple(1)?,
            0x86 => self.tuple(2)?,
            0x87 => self.tuple(3)?,
            b't' => {
                let n = self.above_mark()?;
                self.tuple(n)?;
                let tuple = self.pop()?;
                self.pop()?;
                self.push(tuple)?;
            }
            b'}' => self.dict()?,
            b's' => self.set(2)?,
            b'u' => {
                let n = self.above_mark()?;
                self.set(n)?;
                ensure!(matches!(self.pop()?, Value::Mark), "items without a mark");
            }
            b'q' => {
                let n = u32::from(self.take(1)?[0]);
                self.remember(n)?;
            }
            b'r' => {
                let n = self.u32()?;
                self.remember(n)?;
            }
            b'h' => {
                let n = u32::from(self.take(1)?[0]);
                self.recall(n)?;
            }
            b'j' => {
                let n = self.u32()?;
                self.recall(n)?;
            }
            b'Q' => self.storage()?,
            b'R' => self.call()?,
            // The attributes of a dict of torch: versions of its modules.
            b'b' => {
                self.pop()?;
                ensure!(matches!(self.stack.last(), Some(Value::Dict(_))), "attributes of something that is no dict");
            }
            other => bail!(
                "instruction {other:#04x} at byte {start} is none that a dict of tensors needs, and it is refused; \
                 save the tensors as safetensors"
            ),
        }
        Ok(false)
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let taken = self.bytes[self.at..].get(..n).context("it ends in the middle")?;
        self.at += n;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32> {
        let b = self.take(4)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    fn line(&mut self) -> Result<&'a str> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().take(TEXT_BYTES).position(|&b| b == b'\n').context("a name without an end")?;
        let line = std::str::from_utf8(self.take(len)?).context("a name is not UTF-8")?;
        self.take(1)?;
        Ok(line)
    }

    fn push(&mut self, value: Value<'a>) -> Result<()> {
        ensure!(self.stack.len() < STACK, "more than {STACK} values at once");
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<Value<'a>> {
        self.stack.pop().context("an instruction without its values")
    }

    /// The newest `n` values, which are taken from the stack.
    fn pop_all(&mut self, n: usize) -> Result<Vec<Value<'a>>> {
        let from = self.stack.len().checked_sub(n).context("an instruction without its values")?;
        Ok(self.stack.split_off(from))
    }

    /// Number of values since the newest mark.
    fn above_mark(&self) -> Result<usize> {
        self.stack.iter().rev().position(|value| matches!(value, Value::Mark)).context("no mark")
    }

    /// An integer of `n` bytes: without a sign below 4 bytes, else in two's complement.
    fn number(&mut self, n: usize) -> Result<()> {
        let bytes = self.take(n)?;
        ensure!(n <= 8, "an integer of {n} bytes");
        let negative = n > 2 && bytes[n - 1] & 0x80 != 0;
        let mut word = [if negative { 0xff } else { 0 }; 8];
        word[..n].copy_from_slice(bytes);
        self.push(Value::Int(i64::from_le_bytes(word)))
    }

    fn global(&mut self) -> Result<()> {
        let (module, name) = (self.line()?, self.line()?);
        let known = GLOBALS.iter().find(|(m, n, _)| (*m, *n) == (module, name));
        let Some((.., global)) = known else {
            let wanted: Vec<&str> = GLOBALS.iter().map(|(_, name, _)| *name).collect();
            bail!(
                "it asks for {:?}, which is refused; it may ask for {}",
                format!("{module}.{name}"),
                wanted.join(", ")
            );
        };
        self.push(Value::Global(*global))
    }

    fn tuple(&mut self, n: usize) -> Result<()> {
        let values = self.pop_all(n)?;
        self.tuples.push(values);
        self.push(Value::Tuple(self.tuples.len() - 1))
    }

    fn dict(&mut self) -> Result<()> {
        self.dicts.push(BTreeMap::new());
        self.push(Value::Dict(self.dicts.len() - 1))
    }

    /// Adds the newest `n` values to the dict below them, or below their mark.
    fn set(&mut self, n: usize) -> Result<()> {
        let values = self.pop_all(n)?;
        let below = self.stack.iter().rev().find(|value| !matches!(value, Value::Mark));
        let Some(&Value::Dict(dict)) = below else { bail!("items of something that is no dict") };
        ensure!(n.is_multiple_of(2), "an item without a value");
        for pair in values.chunks_exact(2) {
            let Value::Text(name) = pair[0] else { bail!("a name that is no text") };
            ensure!(self.dicts[dict].insert(name, pair[1]).is_none(), "two values of {name}");
        }
        Ok(())
    }

    fn remember(&mut self, n: u32) -> Result<()> {
        let value = *self.stack.last().context("nothing to remember")?;
        self.memo.insert(n, value);
        Ok(())
    }

    fn recall(&mut self, n: u32) -> Result<()> {
        let value = *self.memo.get(&n).with_context(|| format!("value {n} was not remembered"))?;
        self.push(value)
    }

    fn values(&self, tuple: Value<'a>) -> Result<&[Value<'a>]> {
        match tuple {
            Value::Tuple(at) => Ok(&self.tuples[at]),
            _ => bail!("arguments that are no tuple"),
        }
    }

    /// `('storage', type, key, device, number of values)`
    fn storage(&mut self) -> Result<()> {
        let id = self.pop()?;
        let &[Value::Text("storage"), Value::Global(Global::Storage(dtype)), Value::Text(key), Value::Text(_), len] =
            self.values(id)?
        else {
            bail!("a storage that is not described as torch does it");
        };
        self.storages.push((dtype, key, size(len)?));
        self.push(Value::Storage(self.storages.len() - 1))
    }

    fn call(&mut self) -> Result<()> {
        let arguments = self.pop()?;
        let Value::Global(called) = self.pop()? else { bail!("a call of something that has no name") };
        let arguments = self.values(arguments)?;
        match (called, arguments) {
            (Global::OrderedDict, []) => self.dict(),
            (Global::RebuildParameter, &[tensor @ Value::Tensor(_), ..]) => self.push(tensor),
            // Storage, offset, shape, strides, whether it has a gradient, hooks.
            (Global::RebuildTensor, &[Value::Storage(storage), offset, shape, strides, Value::Bool, _, ..]) => {
                let sizes = |tuple| -> Result<Vec<usize>> {
                    let values = self.values(tuple)?;
                    ensure!(values.len() <= DIMS, "a tensor of {} dimensions, expected at most {DIMS}", values.len());
                    values.iter().map(|&value| size(value)).collect()
                };
                let (shape, strides) = (sizes(shape)?, sizes(strides)?);
                ensure!(
                    shape.len() == strides.len(),
                    "a tensor with {} strides for {} dimensions",
                    strides.len(),
                    shape.len()
                );
                ensure!(self.tensors.len() < TENSORS, "more than {TENSORS} tensors");
                let (dtype, key, storage_len) = self.storages[storage];
                let part = Part { key: key.to_owned(), dtype, storage_len, offset: size(offset)?, shape, strides };
                self.tensors.push(part);
                self.push(Value::Tensor(self.tensors.len() - 1))
            }
            _ => bail!("a call of {called:?} with other arguments than torch writes"),
        }
    }
}

fn size(value: Value<'_>) -> Result<usize> {
    match value {
        Value::Int(n) => usize::try_from(n).ok().with_context(|| format!("{n} is no size")),
        _ => bail!("a size that is no integer"),
    }
}
