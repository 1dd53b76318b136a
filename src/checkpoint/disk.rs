//! Room on a disk, and writes that survive a power cut.

use std::fs::File;
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

/// Whether the path still names the open file. A file that another process has renamed or deleted since is another one.
#[cfg(unix)]
pub fn is_same_file(path: &Path, file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |m: std::fs::Metadata| (m.dev(), m.ino());
    match (std::fs::symlink_metadata(path), file.metadata()) {
        (Ok(named), Ok(open)) => id(named) == id(open),
        _ => false,
    }
}

#[cfg(not(unix))]
pub fn is_same_file(path: &Path, _: &File) -> bool {
    path.exists()
}
