//! Writes whole files: under another name that is synced and renamed, so that a path is always the
//! complete old or new file, also after a kill or on a full disk. Anything but a regular file is
//! never replaced, and by the output of a command only a file of its own kind.

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

/// The kind of file that a command writes. A file of another kind is never replaced.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// Completes "it is not".
    pub noun: &'static str,
    /// Whether the file at this path is one that the command may have written.
    pub is_own: fn(&Path) -> bool,
}

impl Output {
    /// Fails if [`Self::write`] could not write to `path`, so that a long measurement does not fail
    /// at its end. An empty file may be replaced. A link is neither followed nor replaced.
    pub fn check(&self, path: &Path) -> Result<()> {
        let refuse = |why: &str| Err(anyhow!("{}: {why}, so it is left as it is; name another file", path.display()));
        match path.symlink_metadata() {
            Ok(found) if found.is_symlink() => return refuse("it is a link"),
            Ok(found) if found.is_file() && found.len() > 0 && !(self.is_own)(path) => {
                return refuse(&format!("it is not {}", self.noun));
            }
            _ => {}
        }
        beside(path, &mut OpenOptions::new()).map(drop)
    }

    /// Writes the output of a command, and keeps the permissions of the file that it replaces.
    /// Errors are one line with the file's name.
    pub fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        self.check(path)?;
        let before = fs::metadata(path).ok();
        replace(path, bytes, &mut OpenOptions::new())?;
        if let Some(before) = before {
            fs::set_permissions(path, before.permissions()).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }
}

/// Opens a named pipe, a device or a stream of this process (`/dev/stdout`) for writing, and waits
/// for the reader of a pipe. `None` if `path` is a regular file, a folder, a link, or free.
pub fn open_stream(path: &Path) -> io::Result<Option<File>> {
    let of_process = ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"].iter().any(|own| path.starts_with(own));
    let is_stream = |found: fs::Metadata| !found.is_file() && !found.is_dir() && !found.is_symlink();
    let stream = of_process || fs::symlink_metadata(path).is_ok_and(is_stream);
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
    fn output_replaces_its_own_kind_only_and_keeps_permissions() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let is_own = |path: &Path| fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"mine"));
        let output = Output { noun: "mine", is_own };
        for (name, text) in [("own", "mine, old"), ("other", "a letter"), ("empty", "")] {
            fs::write(at(name), text).unwrap();
        }
        fs::set_permissions(at("own"), fs::Permissions::from_mode(0o640)).unwrap();
        for name in ["own", "empty", "new"] {
            output.write(&at(name), b"mine, new").unwrap();
            assert_eq!(fs::read(at(name)).unwrap(), b"mine, new");
        }
        assert_eq!(fs::metadata(at("own")).unwrap().permissions().mode() & 0o777, 0o640);
        symlink(at("own"), at("link")).unwrap();
        symlink("/dev/null", at("null")).unwrap();
        assert!(open_stream(&at("link")).unwrap().is_none() && open_stream(&at("null")).unwrap().is_none());
        assert!(open_stream(Path::new("/dev/null")).unwrap().is_some());
        for (name, why) in [("other", "it is not mine"), ("link", "it is a link"), ("null", "it is a link")] {
            for refused in [output.check(&at(name)), output.write(&at(name), b"x")] {
                let error = refused.unwrap_err().to_string();
                assert!(error.contains(why) && error.starts_with(at(name).to_str().unwrap()), "{error}");
            }
        }
        for refused in
            [|_: &Output, path: &Path| write_atomically(path, b"x"), |output: &Output, path: &Path| output.check(path)]
        {
            let error = refused(&output, Path::new("/dev/null")).unwrap_err().to_string();
            assert!(error.ends_with("not a regular file but a device"), "{error}");
            assert!(refused(&output, &at("no/file")).is_err() && refused(&output, dir.path()).is_err());
        }
        assert!(at("null").is_symlink() && fs::read(at("own")).unwrap() == b"mine, new");
        assert_eq!(fs::read(at("other")).unwrap(), b"a letter");
        // Nothing is left beside them.
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 6);
    }
}
