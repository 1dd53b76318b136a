//! The bytes that files of caches may take together in a folder.

use super::MAGIC;
use crate::regular_file;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A limit on the bytes of all caches in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub limit_bytes: u64,
}

/// A file of a cache.
#[derive(Clone, Debug)]
pub struct Kept {
    pub path: PathBuf,
    pub bytes: u64,
    pub modified: SystemTime,
}

impl Room {
    /// The caches in a folder by their extension, oldest first. A session may lie in a folder of
    /// the user's, so that files which do not begin as a cache are left out.
    pub fn list(folder: &Path, extension: &str) -> Vec<Kept> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            // Metadata of the link itself, not of its target.
            let Ok(meta) = entry.metadata() else { continue };
            let (Ok(modified), true) = (meta.modified(), meta.is_file()) else { continue };
            if path.extension().is_some_and(|e| e == extension) && is_cache(&path).unwrap_or(false) {
                kept.push(Kept { path, bytes: meta.len(), modified });
            }
        }
        kept.sort_by(|a, b| a.modified.cmp(&b.modified).then_with(|| a.path.cmp(&b.path)));
        kept
    }

    /// Removes the oldest caches of a folder until a file of `bytes` fits at `path`, where it
    /// replaces another. Fails if it does not fit by itself, and if the file at `path` is not a
    /// cache.
    pub fn make(self, folder: &Path, path: &Path, bytes: u64) -> io::Result<()> {
        match is_cache(path) {
            Ok(false) => return Err(io::Error::other("the file of that name is not a cache")),
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        if bytes > self.limit_bytes {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than the limit"));
        }
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        let others: Vec<Kept> = Self::list(folder, extension).into_iter().filter(|k| k.path != path).collect();
        let mut sum = others.iter().fold(bytes, |sum, k| sum.saturating_add(k.bytes));
        for old in others {
            if sum <= self.limit_bytes {
                break;
            }
            // Another process may have removed it.
            let _ = fs::remove_file(&old.path);
            sum = sum.saturating_sub(old.bytes);
        }
        Ok(())
    }
}

/// Whether a file begins as a cache. Follows no link.
fn is_cache(path: &Path) -> io::Result<bool> {
    let mut begin = Vec::new();
    let file = regular_file::open_no_follow(OpenOptions::new().read(true), path)?;
    file.take(MAGIC.len() as u64).read_to_end(&mut begin)?;
    Ok(begin == MAGIC)
}
