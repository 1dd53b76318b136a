//! Room on a disk.

use std::path::Path;

/// Free bytes on the disk of a folder, which need not exist yet; `None` if unknown.
#[cfg(unix)]
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let there = folder.ancestors().find(|f| f.exists())?;
    let stat = rustix::fs::statvfs(there).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(not(unix))]
pub fn free_bytes(_: &Path) -> Option<u64> {
    None
}
