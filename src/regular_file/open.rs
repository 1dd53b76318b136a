//! Opens regular files alone, and reads no more of them than a caller believes.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// Opens a regular file for reading. Never blocks on a pipe or a device.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(OpenOptions::new().read(true), path)
}

/// [`open`] with other options. Follows a link at the end of the path.
pub fn open_with(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    opened(options, path, 0)
}

/// [`open_with`] that refuses a link at the end of the path.
pub fn open_no_follow(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    #[cfg(unix)]
    let flag = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    #[cfg(not(unix))]
    let flag = 0;
    opened(options, path, flag)
        .map_err(|e| if path.is_symlink() { invalid("a link, which is not followed here") } else { e })
}

/// Fails if something other than a regular file is at `path`. Follows a link.
pub fn check(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(not_regular(found.file_type())),
        _ => Ok(()),
    }
}

/// Reads a whole regular file of at most `max_bytes`.
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    read_at_most(open(path)?, max_bytes)
}

/// [`read`] for UTF-8 text, without a byte order mark.
pub fn read_text(path: &Path, max_bytes: u64) -> io::Result<String> {
    let text = String::from_utf8(read(path, max_bytes)?);
    text.map(without_mark).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8 text"))
}

/// A text without the byte order mark that some editors begin a file with.
pub fn without_mark(text: String) -> String {
    text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text)
}

/// Reads an open file or a stream to its end. Fails on more than `max_bytes`.
pub fn read_at_most(mut from: impl Read, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.by_ref().take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(invalid(&format!("more than {max_bytes} bytes, the most that a file of this kind may have")));
    }
    Ok(bytes)
}

/// Whether `path` still refers to the open file, and not to one that another process has put there
/// since.
pub fn is_same_file(path: &Path, file: &File) -> bool {
    file.metadata().and_then(|open| is_at(path, &open)).unwrap_or(false)
}

/// [`is_same_file`] that says if it cannot be known.
#[cfg(unix)]
pub fn is_at(path: &Path, open: &Metadata) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    match fs::symlink_metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (open.dev(), open.ino())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

#[cfg(not(unix))]
pub fn is_at(path: &Path, _: &Metadata) -> io::Result<bool> {
    path.try_exists()
}

/// Creates a folder that other users cannot read.
pub fn make_private_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    builder.create(path)
}

/// Options that create files which only their owner can read.
pub fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options
}

/// Reads at an offset; a file's own place is not used on Unix, and moved elsewhere.
#[cfg(unix)]
pub fn read_exact_at(file: &File, at: u64, bytes: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(not(unix))]
pub fn read_exact_at(mut file: &File, at: u64, bytes: &mut [u8]) -> io::Result<()> {
    use std::io::{Seek, SeekFrom};
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(bytes)
}

/// Makes `link` refer to `target`, a path from the link's folder; elsewhere than on Unix another
/// name or a copy of `file`, which is the same.
pub fn link(target: &Path, file: &Path, link: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        let _ = file;
        std::os::unix::fs::symlink(target, link)
    }
    #[cfg(not(unix))]
    {
        let _ = target;
        fs::hard_link(file, link).or_else(|_| fs::copy(file, link).map(|_| ()))
    }
}

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

pub(super) fn opened(options: &mut OpenOptions, path: &Path, flags: i32) -> io::Result<File> {
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        // O_NONBLOCK has no effect on regular files.
        options.custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32 | flags);
    }
    #[cfg(not(unix))]
    let _ = flags;
    let file = options.open(path).map_err(|e| match std::fs::metadata(path) {
        // ENXIO of a pipe or a socket, EISDIR of a folder.
        Ok(found) if !found.is_file() => not_regular(found.file_type()),
        _ => e,
    })?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() { Ok(file) } else { Err(not_regular(kind)) }
}

pub(super) fn not_regular(kind: FileType) -> io::Error {
    #[cfg(unix)]
    let other = {
        use std::os::unix::fs::FileTypeExt;
        match kind {
            _ if kind.is_fifo() => "a named pipe",
            _ if kind.is_socket() => "a socket",
            _ => "a device",
        }
    };
    #[cfg(not(unix))]
    let other = "a device";
    invalid(&format!("not a regular file but {}", if kind.is_dir() { "a folder" } else { other }))
}

pub(super) fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal<T>(result: io::Result<T>) -> String {
        result.err().expect("refused").to_string()
    }

    #[test]
    fn the_bound_is_the_files_and_the_streams() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        let wanted = "more than 4 bytes, the most that a file of this kind may have";
        assert_eq!(refusal(read(&path, 4)), wanted);
        assert_eq!(refusal(read_at_most(io::repeat(0), 4)), wanted);
        assert_eq!(refusal(read(dir.path(), 4)), "not a regular file but a folder");
        std::fs::write(&path, [0xff]).unwrap();
        assert_eq!(refusal(read_text(&path, 4)), "not UTF-8 text");
        std::fs::write(&path, "\u{feff}a\u{feff}").unwrap();
        assert_eq!(read_text(&path, 9).unwrap(), "a\u{feff}");
    }

    #[cfg(unix)]
    #[test]
    fn pipes_sockets_devices_and_links_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        make_pipe(&pipe);
        let writable = |path: &Path| open_with(OpenOptions::new().read(true).write(true), path);
        for result in [open(&pipe), writable(&pipe), open_with(OpenOptions::new().append(true), &pipe)] {
            assert_eq!(refusal(result), "not a regular file but a named pipe");
        }
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(refusal(open(&socket)), "not a regular file but a socket");
        assert_eq!(refusal(read(Path::new("/dev/zero"), 9)), "not a regular file but a device");
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let create = |path: &Path| open_no_follow(OpenOptions::new().append(true).create(true), path);
        assert_eq!(refusal(create(&link)), "a link, which is not followed here");
        assert!(!target.exists());
        create(&target).unwrap();
        assert_eq!(refusal(create(&link)), "a link, which is not followed here");
        open(&link).unwrap();
    }

    #[cfg(unix)]
    fn make_pipe(path: &Path) {
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    }
}
