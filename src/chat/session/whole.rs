//! Writes whole files: under another name that is synced and renamed, so that a path is always the
//! complete old or new file, also after a kill or on a full disk. Anything but a regular file is
//! never replaced.

use crate::regular_file::temporary::{self, Temporary};
use crate::regular_file::{self, private};
use anyhow::{Context, Result, anyhow};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes a file that only its owner can read. A link at `path` is replaced, not followed. Errors
/// are one line with the file's name.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    replace(path, bytes, private(&mut OpenOptions::new()))
}

/// Writes the output of a command: follows a link, and keeps the permissions of the file that it
/// replaces. Errors are one line with the file's name.
pub fn write_output(path: &Path, bytes: &[u8]) -> Result<()> {
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let before = fs::metadata(&target).ok();
    replace(&target, bytes, &mut OpenOptions::new())?;
    if let Some(before) = before {
        fs::set_permissions(&target, before.permissions()).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Fails if [`write_output`] could not write to `path`, so that a long measurement need not fail at
/// its end.
pub fn check_output(path: &Path) -> Result<()> {
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    beside(&target, &mut OpenOptions::new()).map(drop)
}

/// Opens a named pipe, a device or a stream of this process (`/dev/stdout`) for writing, and waits
/// for the reader of a pipe. `None` if `path` is a regular file, a folder, or free.
pub fn open_stream(path: &Path) -> io::Result<Option<File>> {
    let of_process = ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"].iter().any(|own| path.starts_with(own));
    let stream = of_process || fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir());
    // Appends, because a shell may have redirected the stream to a file.
    stream.then(|| OpenOptions::new().append(true).open(path)).transpose()
}

fn replace(path: &Path, bytes: &[u8], options: &mut OpenOptions) -> Result<()> {
    let mut beside = beside(path, options)?;
    let written = beside.file.write_all(bytes).and_then(|()| beside.rename(path));
    written.map_err(|e| anyhow!("{}: {e}", path.display()))
}

/// Creates a file in the folder of `path`, which must be a regular file or free.
fn beside(path: &Path, options: &mut OpenOptions) -> Result<Temporary> {
    path.file_name().with_context(|| format!("{}: no file name", path.display()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let created = regular_file::check(path).and_then(|()| Temporary::create(folder, options));
    created.map_err(|e| anyhow!("{}: {e}", path.display()))
}

/// Creates a file under a new random name that only its owner can read.
pub fn create_new(folder: &Path, before: &str, after: &str) -> io::Result<(PathBuf, File)> {
    temporary::create_new(folder, before, after, private(&mut OpenOptions::new()))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn output_keeps_links_and_permissions_and_replaces_no_device() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "old").unwrap();
        fs::set_permissions(at("file"), fs::Permissions::from_mode(0o640)).unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink("/dev/null", at("null")).unwrap();
        write_output(&at("link"), b"new").unwrap();
        assert_eq!(fs::read(at("file")).unwrap(), b"new");
        assert_eq!(fs::metadata(at("file")).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(open_stream(&at("link")).unwrap().is_none() && open_stream(&at("null")).unwrap().is_some());
        for refused in [write_output, write_atomically, |path: &Path, _: &[u8]| check_output(path)] {
            let error = refused(&at("null"), b"x").unwrap_err().to_string();
            assert!(error.ends_with("not a regular file but a device"), "{error}");
            assert!(refused(&at("no/file"), b"x").is_err() && refused(dir.path(), b"x").is_err());
        }
        assert!(at("null").is_symlink());
        // Nothing is left beside them.
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
