//! A session file on disk: created with the first record, locked while open, appended and synced,
//! never rewritten. A failed write leaves the file as it was, and the next write includes its
//! lines. A file that another program has changed is not touched. Knows bytes and lines, not their
//! meaning.

use crate::regular_file::{self, is_at, make_private_folder, private, temporary};
use anyhow::{Context, Result, anyhow, bail};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Largest session file.
pub const MAX_BYTES: u64 = 1 << 30;

/// An append-only file of complete lines.
#[derive(Debug)]
pub struct LineFile {
    path: PathBuf,
    file: Option<File>,
    /// Bytes that are known to be complete lines.
    good: u64,
    /// The length that this process left: more than `good` if a failed write could not be undone.
    len: u64,
    /// Whether the last line is complete but has no newline; the next append writes it first.
    unended: bool,
}

/// Why an append failed.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// Another program changed the file. It was not touched.
    #[error("{}: changed, replaced or removed by another program", .0.display())]
    Changed(PathBuf),
    #[error(transparent)]
    Failed(#[from] anyhow::Error),
}

/// The content of an existing file, which has not been changed.
pub struct Opened {
    pub file: LineFile,
    pub bytes: Vec<u8>,
}

impl LineFile {
    /// A file that does not exist yet. The first append creates it.
    pub fn new(path: PathBuf) -> Self {
        Self { path, file: None, good: 0, len: 0, unended: false }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens, locks and reads an existing file. `name` is the session's name in errors.
    pub fn open(path: &Path, name: &str) -> Result<Opened> {
        let in_context = || format!("session {name}");
        let file = regular_file::open_with(OpenOptions::new().read(true).write(true), path).with_context(in_context)?;
        lock(&file, name)?;
        let bytes = regular_file::read_at_most(&file, MAX_BYTES).with_context(in_context)?;
        let len = bytes.len() as u64;
        let file = Self { path: path.to_owned(), file: Some(file), good: len, len, unended: false };
        Ok(Opened { file, bytes })
    }

    /// Marks the last line as complete but without a newline.
    pub fn end_line_later(&mut self) {
        self.unended = true;
    }

    /// Truncates an incomplete last line, after copying it to `FILE.part`.
    pub fn cut_off(&mut self, half: &[u8]) -> io::Result<PathBuf> {
        let aside = part_of(&self.path);
        let options = &mut OpenOptions::new();
        let mut part = regular_file::open_no_follow(private(options.append(true).create(true)), &aside)
            .map_err(|e| io::Error::other(format!("{}: {e}", aside.display())))?;
        part.write_all(half)?;
        part.write_all(b"\n")?;
        part.sync_all()?;
        if let Some(file) = &self.file {
            let good = self.good - half.len() as u64;
            file.set_len(good)?;
            file.sync_all()?;
            (self.good, self.len) = (good, good);
        }
        Ok(aside)
    }

    /// Appends complete lines and syncs them: all or none.
    pub fn append(&mut self, lines: &str, name: &str) -> Result<(), AppendError> {
        self.create(name)?;
        let Some(file) = &mut self.file else { return Err(anyhow!("session {name}: not open").into()) };
        let failed = |e: io::Error| AppendError::Failed(anyhow!("{}: {e}", self.path.display()));
        let open = file.metadata().map_err(failed)?;
        if open.len() != self.len || !is_at(&self.path, &open).map_err(failed)? {
            return Err(AppendError::Changed(self.path.clone()));
        }
        let (good, begin) = (self.good, if self.unended { "\n" } else { "" });
        let written = (|| {
            if self.len != good {
                file.set_len(good)?;
            }
            file.seek(SeekFrom::Start(good))?;
            file.write_all(begin.as_bytes())?;
            file.write_all(lines.as_bytes())?;
            file.sync_data()
        })();
        match written {
            Ok(()) => {
                self.good += (begin.len() + lines.len()) as u64;
                (self.len, self.unended) = (self.good, false);
                Ok(())
            }
            Err(e) => {
                // An incomplete write is removed now, or before the next write.
                let _ = file.set_len(good);
                self.len = file.metadata().map_or(good, |m| m.len());
                Err(failed(e))
            }
        }
    }

    fn create(&mut self, name: &str) -> Result<(), AppendError> {
        if self.file.is_some() {
            return Ok(());
        }
        if let Some(folder) = self.path.parent() {
            make_private_folder(folder).map_err(|e| anyhow!("{}: {e}", folder.display()))?;
        }
        let made = private(OpenOptions::new().read(true).write(true).create_new(true)).open(&self.path);
        let file = match made {
            Ok(file) => file,
            // create_new fails on any existing file or link.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                return Err(AppendError::Changed(self.path.clone()));
            }
            Err(e) => return Err(anyhow!("{}: {e}", self.path.display()).into()),
        };
        lock(&file, name)?;
        self.file = Some(file);
        (self.good, self.len) = (0, 0);
        temporary::sync_folder_of(&self.path);
        Ok(())
    }
}

/// The file for the incomplete last line of a session.
pub fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// Tries to lock a file, and the time between two: a process that another thread is just starting
/// holds our locks until it runs its program, also those that were released meanwhile.
const LOCK_TRIES: usize = 5;
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

fn lock(file: &File, name: &str) -> Result<()> {
    let mut tries = LOCK_TRIES;
    while let Err(TryLockError::WouldBlock) = file.try_lock() {
        tries -= 1;
        if tries == 0 {
            bail!("session {name} is open in another dmschat; close it there first, or start a new one")
        }
        std::thread::sleep(BETWEEN_TRIES);
    }
    // Locked; or on a file system without locks, where saving unlocked is better than not saving.
    Ok(())
}
