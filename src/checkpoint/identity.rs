//! By what a model is told from others: the digest of its tensors, and where it is.

use crate::tensor::{Format, Tensor};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The absolute path of a model. Links to folders are resolved; a link to a file keeps its name,
/// because in the Hugging Face cache its target is called by a hash.
pub fn full_path(path: &Path) -> PathBuf {
    let full = if path.is_file() { std::path::absolute(path) } else { std::fs::canonicalize(path) };
    full.unwrap_or_else(|_| path.to_owned())
}

/// A digest that differs between models whose saved token logs are not interchangeable. Reads a few
/// hundred bytes per tensor, so that opening a large model does not read all of it.
pub(super) fn fingerprint(identity: &str, tensors: &BTreeMap<String, Tensor>) -> String {
    const SAMPLE_BYTES: usize = 256;
    let mut hash = Sha256::new();
    hash.update(identity);
    for t in tensors.values() {
        hash.update(format!("{t:?}"));
        if let (Format::Rows(rows), &[n, cols]) = (&t.format, &t.shape[..]) {
            let mut middle = vec![0.0; cols];
            rows.decode(n / 2, &mut middle);
            hash.update(bytemuck::cast_slice(&middle));
            continue;
        }
        let raw = t.bytes();
        let middle = raw.len() / 2;
        hash.update(&raw[middle..raw.len().min(middle + SAMPLE_BYTES)]);
    }
    hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect()
}
