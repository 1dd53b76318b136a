//! Where a checkpoint came from: its model and its weight files. Gives the key under which
//! converted weights are cached.

use super::files::Files;
use super::source::Source;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// The model that a checkpoint was opened from.
#[derive(Clone)]
pub struct Origin {
    /// The argument of `-m`: a hub id, or the absolute path of a folder or file.
    pub model: String,
    /// The commit of a hub model.
    pub revision: Option<String>,
    pub(crate) files: Files,
    /// The weight files, with their headers read.
    pub(super) source: Arc<Source>,
}

/// Blocks of a weight file that its digest covers, beside the header.
const SAMPLES: usize = 64;
const SAMPLE_BYTES: usize = 64 << 10;

impl Origin {
    /// Digest of `what` is made, and of the weight files: names, lengths, headers and a sample of
    /// the data. Reads at most 4 MiB and the header of each file, so that a large model is
    /// identified without reading it.
    pub fn key(&self, what: &str) -> String {
        let mut hash = Sha256::new();
        hash.update(what);
        for file in self.source.files() {
            let raw = (*file.bytes).as_ref();
            let (head, data) = raw.split_at(file.head_bytes.min(raw.len()));
            hash.update(format!("\n{} {}\n", file.name, raw.len()));
            hash.update(head);
            if data.len() <= SAMPLES * SAMPLE_BYTES {
                hash.update(data);
                continue;
            }
            let last = data.len() - SAMPLE_BYTES;
            for i in 0..SAMPLES {
                // In u128: a file's length times 64 may not fit.
                let at = (last as u128 * i as u128 / (SAMPLES - 1) as u128) as usize;
                hash.update(&data[at..at + SAMPLE_BYTES]);
            }
        }
        hash.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect()
    }

    /// Bytes of all weight files.
    pub fn bytes(&self) -> u64 {
        self.source.files().iter().map(|f| (*f.bytes).as_ref().len() as u64).sum()
    }
}
