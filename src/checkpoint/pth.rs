//! Tensors in a file of `torch.save`: a zip of stored files, with a pickle that names them. Nothing
//! of the pickle is executed; [`pickle`] says what is read of it. Knows nothing of models.
//!
//! `NAME/data.pkl` maps names to tensors, each of which is a part of a storage `NAME/data/KEY`.

mod pickle;
#[cfg(test)]
mod tests;
mod zip;

use super::safetensors::{Entry, TensorFile};
use crate::tensor::SharedBytes;
use anyhow::{Context, Result, anyhow, bail, ensure};
use pickle::Part;
use std::collections::BTreeMap;
use std::ops::Range;

/// Largest pickle: about 200 bytes for each tensor.
const PICKLE_BYTES: usize = 2 << 20;

/// Opens a file. Its tensors share the file's bytes. Errors name the file and the first problem.
pub fn open(label: &str, bytes: SharedBytes) -> Result<TensorFile> {
    let entries = entries((*bytes).as_ref()).map_err(|why| anyhow!("{label}: {why:#}"))?;
    Ok(TensorFile::of_entries(label, bytes, entries))
}

fn entries(raw: &[u8]) -> Result<BTreeMap<String, Entry>> {
    let files = zip::files(raw)?;
    let ends = |end: &str| files.iter().find(|(name, _)| name.split_once('/').is_some_and(|(_, rest)| rest == end));
    let (name, pickle) = ends("data.pkl").context("it has no data.pkl, so torch.save did not write it")?;
    let folder = name.trim_end_matches("data.pkl");
    if let Some((_, order)) = ends("byteorder") {
        let order = raw[order.clone()].trim_ascii();
        ensure!(order == b"little", "its numbers are not little-endian");
    }
    let n = pickle.len();
    ensure!(n <= PICKLE_BYTES, "its data.pkl has {n} bytes, expected at most {PICKLE_BYTES}");
    let parts = pickle::parts(&raw[pickle.clone()]).context("data.pkl")?;
    let entry = |(name, part): (String, Part)| {
        let storage = files
            .get(&format!("{folder}data/{}", part.key))
            .with_context(|| format!("tensor {name}: its storage {} is missing", part.key))?;
        let range = place(&part, storage).map_err(|why| anyhow!("tensor {name}: {why}"))?;
        Ok((name, Entry { dtype: part.dtype, shape: part.shape, range }))
    };
    parts.into_iter().map(entry).collect()
}

/// The bytes of a tensor in its storage, whose bytes are given.
fn place(part: &Part, storage: &Range<usize>) -> Result<Range<usize>> {
    let size = part.dtype.bitsize() / 8;
    let all = part.storage_len.checked_mul(size).filter(|&all| all == storage.len());
    ensure!(
        all.is_some(),
        "its storage has {} bytes, expected {} values of {}",
        storage.len(),
        part.storage_len,
        part.dtype
    );
    // From the last dimension to the first. Where a dimension has one element, its stride means
    // nothing.
    let mut len = 1usize;
    for (&dim, &stride) in part.shape.iter().zip(&part.strides).rev() {
        if dim != 1 && stride != len {
            bail!("it is a view with strides {:?}; save it with .contiguous()", part.strides);
        }
        len = len.checked_mul(dim).context("its shape overflows")?;
    }
    let end = part.offset.checked_add(len).filter(|&end| end <= part.storage_len);
    let end = end.with_context(|| format!("{len} values from {} on are more than its storage has", part.offset))?;
    Ok(storage.start + part.offset * size..storage.start + end * size)
}
