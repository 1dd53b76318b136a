//! Files under another name that are renamed once they are whole, so that a path is always the
//! complete old or new file, also after a kill or on a full disk.
//!
//! Their writers hold a lock on them until then. One that nobody has locked was left by a process
//! that was killed: the next write to the same folder removes it, if the folder is dmschat's own.

use super::{is_same_file, make_private_folder, open_no_follow, private};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

const BEFORE: &str = ".dmschat-";
const AFTER: &str = ".tmp";

/// Names that are tried. They are random, and a process that removes abandoned files may take one
/// before it is locked.
const TRIES: usize = 16;

/// A file that is being written. Dropped before [`Temporary::rename`], it is removed.
#[derive(Debug)]
pub struct Temporary {
    /// Empty once it is renamed.
    path: PathBuf,
    pub file: File,
}

impl Temporary {
    /// Creates a file that only its owner can read in a folder of dmschat's own, which is made if
    /// it is missing. Removes the files of killed processes there.
    pub fn in_own_folder(folder: &Path) -> io::Result<Self> {
        make_private_folder(folder)?;
        remove_abandoned(folder);
        Self::create(folder, private(&mut OpenOptions::new()))
    }

    /// Creates a file in any folder. Nothing else there is touched.
    pub fn create(folder: &Path, options: &mut OpenOptions) -> io::Result<Self> {
        for _ in 0..TRIES {
            let (path, file) = create_new(folder, BEFORE, AFTER, options)?;
            let made = Self { path, file };
            // File systems without locks have nobody who removes it either.
            let taken = matches!(made.file.try_lock(), Err(TryLockError::WouldBlock));
            if !taken && is_same_file(&made.path, &made.file) {
                return Ok(made);
            }
        }
        Err(io::Error::other("another process removes new files at once"))
    }

    /// Its path until it is renamed.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Syncs the file and gives it its name, in the same folder.
    pub fn rename(mut self, name: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, name)?;
        self.path = PathBuf::new();
        sync_folder_of(name);
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Creates a file under a new random name.
pub fn create_new(folder: &Path, before: &str, after: &str, options: &mut OpenOptions) -> io::Result<(PathBuf, File)> {
    let mut tries = 0;
    loop {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|e| io::Error::other(e.to_string()))?;
        let path = folder.join(format!("{before}{:016x}{after}", u64::from_ne_bytes(random)));
        match options.write(true).create_new(true).open(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && tries < TRIES => tries += 1,
            made => return made.map(|file| (path, file)),
        }
    }
}

/// Removes the files of killed processes in a folder of dmschat's own: those with a name from
/// [`Temporary::create`] and without a lock. On file systems without locks they stay.
pub fn remove_abandoned(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let random = name.to_str().and_then(|n| n.strip_prefix(BEFORE)?.strip_suffix(AFTER));
        if !random.is_some_and(|r| r.len() == 16 && r.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))) {
            continue;
        }
        remove_unlocked(&entry.path());
    }
}

/// Removes a file whose writer holds a lock on it while it lives, if nobody does. Follows no link.
pub fn remove_unlocked(path: &Path) {
    let Ok(file) = open_no_follow(OpenOptions::new().write(true), path) else { return };
    if file.try_lock().is_ok() && is_same_file(path, &file) {
        let _ = fs::remove_file(path);
    }
}

/// Makes renames and new files in a folder durable.
#[cfg(unix)]
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Other systems cannot open folders as files, and order renames themselves.
#[cfg(not(unix))]
pub fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

/// The same for the folder of a file, where that is possible.
pub fn sync_folder_of(file: &Path) {
    let _ = file.parent().map(sync_folder);
}
