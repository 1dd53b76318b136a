//! A session file on disk: created at the first record, locked while open, appended and synced,
//! never rewritten. A write that fails leaves the file as it was; the next one makes up for it.
//! Knows bytes and lines, not what they say.

use crate::regular_file;
use anyhow::{Context, Result, anyhow, bail};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A session file larger than this is refused.
pub const MAX_BYTES: u64 = 1 << 30;

/// An append-only file of whole lines.
#[derive(Debug)]
pub struct LineFile {
    path: PathBuf,
    file: Option<File>,
    /// Bytes that are known to be whole lines.
    good: u64,
}

/// What was read from an existing file.
pub struct Opened {
    pub file: LineFile,
    pub bytes: Vec<u8>,
    /// Bytes of a half last line that were cut off, and where they are kept now.
    pub cut: Option<(usize, PathBuf)>,
}

impl LineFile {
    /// A file that does not exist yet; nothing is touched before the first append.
    pub fn new(path: PathBuf) -> Self {
        Self { path, file: None, good: 0 }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens and locks an existing file, and cuts off a half last line, which is kept in
    /// `FILE.part`. `name` is what the session is called in errors.
    pub fn open(path: &Path, name: &str) -> Result<Opened> {
        let in_context = || format!("session {name}");
        let file = regular_file::open_with(OpenOptions::new().read(true).write(true), path).with_context(in_context)?;
        lock(&file, name)?;
        let mut bytes = regular_file::read_at_most(&file, MAX_BYTES).with_context(in_context)?;
        let good = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let half = bytes.split_off(good);
        let mut opened = Self { path: path.to_owned(), file: Some(file), good: good as u64 };
        let cut =
            if half.is_empty() { None } else { Some((half.len(), opened.cut_off(&half).with_context(in_context)?)) };
        Ok(Opened { file: opened, bytes, cut })
    }

    /// Keeps a half line aside before it goes.
    fn cut_off(&mut self, half: &[u8]) -> io::Result<PathBuf> {
        let aside = part_of(&self.path);
        let mut part = private(OpenOptions::new().append(true).create(true)).open(&aside)?;
        part.write_all(half)?;
        part.write_all(b"\n")?;
        part.sync_all()?;
        if let Some(file) = &self.file {
            file.set_len(self.good)?;
            file.sync_all()?;
        }
        Ok(aside)
    }

    /// Appends whole lines and syncs them: all of them, or none.
    pub fn append(&mut self, lines: &str, name: &str) -> Result<()> {
        self.create(name)?;
        let Some(file) = &mut self.file else { bail!("session {name}: not open") };
        let good = self.good;
        let written = (|| {
            file.set_len(good)?;
            file.seek(SeekFrom::Start(good))?;
            file.write_all(lines.as_bytes())?;
            file.sync_data()
        })();
        match written {
            Ok(()) => {
                self.good += lines.len() as u64;
                Ok(())
            }
            Err(e) => {
                // What stands half is taken away now, or before the next write.
                let _ = file.set_len(good);
                Err(anyhow!("{}: {e}", self.path.display()))
            }
        }
    }

    fn create(&mut self, name: &str) -> Result<()> {
        if self.file.is_some() {
            return Ok(());
        }
        let said = |e: io::Error| anyhow!("{}: {e}", self.path.display());
        if let Some(folder) = self.path.parent() {
            make_private_folder(folder).map_err(|e| anyhow!("{}: {e}", folder.display()))?;
        }
        let file =
            private(OpenOptions::new().read(true).write(true).create_new(true)).open(&self.path).map_err(said)?;
        lock(&file, name)?;
        self.file = Some(file);
        self.good = 0;
        // The folder's entry for the new file; where folders cannot be synced, the file's own sync must do.
        if let Some(folder) = self.path.parent().and_then(|f| File::open(f).ok()) {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

/// Where the half line of a session is kept.
pub fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

fn lock(file: &File, name: &str) -> Result<()> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            bail!("session {name} is open in another dmschat; leave it there first, or start a new one")
        }
        // File systems without locks: better unlocked than unsaved.
        Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Makes a folder that others may not read.
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

/// Files made with these options are readable by their owner alone.
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options
}

/// Writes a file under another name, syncs it and puts it in place: the old one or the new one is
/// there, never half of it. Errors name the file in one line.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let name =
        path.file_name().and_then(|n| n.to_str()).with_context(|| format!("{}: no file name", path.display()))?;
    let beside = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    let written = (|| {
        let mut file = private(OpenOptions::new().write(true).create(true).truncate(true)).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    })();
    written.map_err(|e| {
        let _ = fs::remove_file(&beside);
        anyhow!("{}: {e}", path.display())
    })
}
