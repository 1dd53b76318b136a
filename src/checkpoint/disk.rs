//! Room on a disk, and writes that survive a power cut.

use std::io;
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

/// Makes renames and new files in a folder durable.
#[cfg(unix)]
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    use rustix::fs::{Mode, OFlags, fsync, open};
    Ok(fsync(open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)?)
}

/// Other systems cannot open folders as files, and order renames themselves.
#[cfg(not(unix))]
pub fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}
