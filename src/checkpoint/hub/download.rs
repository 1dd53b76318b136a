//! One file of a model, from wherever it was left to a blob whose bytes have the listed hash.

use super::api::{Hash, Hasher, Remote};
use super::cache::Repo;
use super::http::{self, Fault, Patience, header, passing, pause_unless_stopped};
use super::progress::Meter;
use super::{HubError, Observer};
use crate::checkpoint::files::max_text_bytes;
use crate::regular_file;
use std::collections::BTreeMap;
use std::fs::{self, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

/// A download is tried so often without a byte between.
const TRIES: u32 = 8;
const BUFFER: usize = 256 << 10;

/// A file that is wanted.
#[derive(Clone, Debug)]
pub struct File {
    pub name: String,
    pub bytes: u64,
    pub hash: Hash,
}

/// Fetches files of one commit.
pub struct Fetcher<'a> {
    pub remote: &'a Remote<'a>,
    pub repo: &'a Repo,
    commit: &'a str,
    pub meter: Meter,
    /// Small files that were fetched before the plan, by hash; their bytes have that hash.
    held: BTreeMap<String, Vec<u8>>,
}

/// Where the bytes of a file are gathered.
enum Gathered {
    Disk(fs::File),
    Memory(io::Cursor<Vec<u8>>),
}

impl Gathered {
    fn clear(&mut self) -> io::Result<()> {
        match self {
            Self::Disk(file) => file.set_len(0),
            Self::Memory(bytes) => {
                bytes.get_mut().clear();
                Ok(())
            }
        }
    }
}

impl Write for Gathered {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Disk(file) => file.write(bytes),
            Self::Memory(memory) => memory.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Gathered {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Self::Disk(file) => file.seek(to),
            Self::Memory(memory) => memory.seek(to),
        }
    }
}

/// What is gathered of a file.
struct Part {
    to: Gathered,
    hasher: Hasher,
    at: u64,
    /// The server's name for what it sent, so that a rest of something else is not appended.
    etag: Option<String>,
}

impl Part {
    /// Begins anew.
    fn clear(&mut self, wanted: &File) -> io::Result<()> {
        self.to.clear()?;
        self.to.rewind()?;
        (self.at, self.hasher, self.etag) = (0, wanted.hash.hasher(wanted.bytes), None);
        Ok(())
    }
}

impl Part {
    fn in_memory(wanted: &File) -> Self {
        Self::new(Gathered::Memory(io::Cursor::default()), wanted)
    }

    fn new(to: Gathered, wanted: &File) -> Self {
        Self { to, hasher: wanted.hash.hasher(wanted.bytes), at: 0, etag: None }
    }
}

/// How one request ended.
enum End {
    /// For now: the rest, or all of it, has to be asked for again.
    Fault(Fault),
    Stopped,
    Disk(io::Error),
}

impl<'a> Fetcher<'a> {
    pub fn new(remote: &'a Remote<'a>, repo: &'a Repo, commit: &'a str) -> Self {
        Self { remote, repo, commit, meter: Meter::default(), held: BTreeMap::new() }
    }

    /// Bytes of a file that are here already.
    pub fn here(&self, file: &File) -> u64 {
        if self.whole(file) {
            return file.bytes;
        }
        regular_len(&self.repo.partial(file.hash.as_str())).map_or(0, |len| len.min(file.bytes))
    }

    /// The bytes of a small file, which stay in memory until [`Self::fetch`] puts them into the cache.
    pub fn small(&mut self, file: &File, observer: &mut dyn Observer) -> Result<Vec<u8>, HubError> {
        let hash = file.hash.as_str();
        if self.whole(file) {
            let read = regular_file::read(&self.repo.blob(hash), max_text_bytes(&file.name));
            return read.map_err(|e| self.repo.failed(&e));
        }
        self.meter.file(&file.name, file.bytes);
        let mut part = Part::in_memory(file);
        self.complete(&mut part, file, observer)?;
        if let Gathered::Memory(bytes) = part.to {
            self.held.insert(hash.to_owned(), bytes.into_inner());
        }
        Ok(self.held[hash].clone())
    }

    /// Sees to it that the file is in the commit's folder.
    pub fn fetch(&mut self, file: &File, observer: &mut dyn Observer) -> Result<(), HubError> {
        self.meter.file(&file.name, file.bytes);
        let repo = self.repo;
        let hash = file.hash.as_str();
        if !self.whole(file) {
            let lock = self.lock(file, observer)?;
            // Another process may have brought it meanwhile.
            if !self.whole(file) {
                self.gather(file, observer)?;
            }
            drop(lock);
        }
        repo.link(self.commit, &file.name, hash).map_err(|e| repo.failed(&e))?;
        self.meter.file_done(observer);
        Ok(())
    }

    /// The blob is there. Its bytes were checked by whoever gave it its name.
    fn whole(&self, file: &File) -> bool {
        regular_len(&self.repo.blob(file.hash.as_str())) == Some(file.bytes)
    }

    /// Waits until no other process fetches this file.
    fn lock(&mut self, file: &File, observer: &mut dyn Observer) -> Result<fs::File, HubError> {
        let hash = file.hash.as_str();
        let lock = self.repo.lock_file(hash).map_err(|e| self.repo.failed(&e))?;
        let mut told = false;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(lock),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(e)) => return Err(self.repo.failed(&e)),
            }
            if !told {
                observer.notice(&format!("{}: waiting for another process that downloads it", file.name));
                told = true;
            }
            let done = self.here(file);
            self.meter.at(done, observer);
            pause_unless_stopped(Duration::from_millis(100), observer)?;
        }
    }

    /// Gathers the file, checks it, and gives it its name.
    fn gather(&mut self, file: &File, observer: &mut dyn Observer) -> Result<(), HubError> {
        let repo = self.repo;
        let disk = |e: io::Error| repo.failed(&e);
        let (partial, blob) = (repo.partial(file.hash.as_str()), repo.blob(file.hash.as_str()));
        let opened = repo.open_partial(file.hash.as_str()).map_err(disk)?;
        if let Some(bytes) = self.held.remove(file.hash.as_str()) {
            let written = opened.set_len(0).and_then(|()| (&opened).write_all(&bytes)).and_then(|()| opened.sync_all());
            written.map_err(disk)?;
        } else {
            let mut part = self.found(opened, file, observer)?;
            if let Err(error) = self.complete(&mut part, file, observer) {
                if part.at == file.bytes {
                    let _ = fs::remove_file(&partial);
                }
                return Err(error);
            }
            if let Gathered::Disk(opened) = part.to {
                opened.sync_all().map_err(disk)?;
            }
        }
        fs::rename(&partial, &blob).map_err(disk)
    }

    /// Fetches what is missing of a file until its bytes have its hash: once from its beginning where
    /// pieces turn out not to fit together.
    fn complete(&mut self, part: &mut Part, file: &File, observer: &mut dyn Observer) -> Result<(), HubError> {
        let repo = self.repo;
        let mut anew = false;
        loop {
            let found = part.at > 0;
            let pieced = self.fill(part, file, observer)? || found;
            if part.hasher.clone().matches(&file.hash) {
                return Ok(());
            }
            if anew || !pieced {
                let (id, name, host) = (&repo.id, &file.name, self.remote.hub.host());
                return Err(HubError::Failed(format!(
                    "{id}: {name} does not have the hash that {host} lists, and was thrown away; try again later"
                )));
            }
            observer.notice(&format!("{}: its pieces do not fit together; it is fetched anew", file.name));
            part.clear(file).map_err(|e| repo.failed(&e))?;
            anew = true;
        }
    }

    /// What an earlier download left, hashed.
    fn found(&mut self, opened: fs::File, file: &File, observer: &mut dyn Observer) -> Result<Part, HubError> {
        let repo = self.repo;
        let disk = |e: io::Error| repo.failed(&e);
        let mut left = opened.metadata().map_err(disk)?.len();
        let mut reader = opened.try_clone().map_err(disk)?;
        let mut part = Part::new(Gathered::Disk(opened), file);
        if left > file.bytes {
            part.clear(file).map_err(disk)?;
            left = 0;
        }
        let mut buffer = vec![0; BUFFER];
        while left > 0 {
            let n = reader.read(&mut buffer).map_err(disk)?;
            if n == 0 {
                break;
            }
            part.hasher.update(&buffer[..n]);
            part.at += n as u64;
            left = left.saturating_sub(n as u64);
            self.meter.at(part.at, observer);
            if observer.stopped() {
                return Err(HubError::Stopped);
            }
        }
        Ok(part)
    }

    /// Fetches what is missing. True when it came in several pieces.
    fn fill(&mut self, part: &mut Part, file: &File, observer: &mut dyn Observer) -> Result<bool, HubError> {
        let mut patience = Patience::new(self.remote.hub, TRIES);
        let mut pieces = 0;
        while part.at < file.bytes {
            let from = part.at;
            let end = self.request(part, file, observer);
            pieces += u32::from(part.at != from);
            match end {
                Ok(()) => {}
                Err(End::Stopped) => return Err(HubError::Stopped),
                Err(End::Disk(e)) => return Err(self.repo.failed(&e)),
                Err(End::Fault(fault)) => {
                    if part.at > from {
                        patience.reset();
                    }
                    self.remote.again(fault, Some(&file.name), &mut patience, observer)?;
                }
            }
        }
        Ok(pieces > 1)
    }

    /// One request, for all that is missing.
    fn request(&mut self, part: &mut Part, file: &File, observer: &mut dyn Observer) -> Result<(), End> {
        let host = self.remote.hub.host();
        let mut headers = Vec::new();
        if part.at > 0 {
            headers.push(("range", format!("bytes={}-", part.at)));
            headers.extend(part.etag.clone().map(|etag| ("if-range", etag)));
        }
        let url = self.remote.file_url(self.commit, &file.name);
        let mut answer = self.remote.client.get(&url, &headers).map_err(End::Fault)?;
        let whole = match answer.status().as_u16() {
            206 => {
                header(&answer, "content-range")
                    != Some(&format!("bytes {}-{}/{}", part.at, file.bytes - 1, file.bytes))
            }
            // Ranges are not served here, or it is not the same file any more.
            _ => true,
        };
        if whole && part.at > 0 {
            part.clear(file).map_err(End::Disk)?;
        }
        if answer.status().as_u16() != 200 && whole {
            return Err(End::Fault(passing(format!("{host} sends another part of {} than was asked for", file.name))));
        }
        let rest = file.bytes - part.at;
        if let Some(other) = http::length(&answer).filter(|n| *n != rest) {
            let why = format!("{host} sends {other} bytes of {} where {rest} are listed", file.name);
            return Err(End::Fault(Fault::Lasting(why)));
        }
        // A weak one does not vouch for bytes.
        part.etag = header(&answer, "etag").filter(|tag| !tag.starts_with("W/")).map(str::to_owned);
        let body = answer.body_mut().with_config().limit(rest.saturating_add(1)).reader();
        self.copy(body, part, file, observer)
    }

    fn copy(
        &mut self,
        mut body: impl Read,
        part: &mut Part,
        file: &File,
        observer: &mut dyn Observer,
    ) -> Result<(), End> {
        let host = self.remote.hub.host();
        part.to.seek(SeekFrom::Start(part.at)).map_err(End::Disk)?;
        let mut buffer = vec![0; BUFFER];
        while part.at < file.bytes {
            if observer.stopped() {
                return Err(End::Stopped);
            }
            let n = match body.read(&mut buffer) {
                Ok(0) => return Err(End::Fault(passing(format!("{host}: the connection was cut")))),
                Ok(n) => n.min((file.bytes - part.at) as usize),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(End::Fault(http::cut(&host, e))),
            };
            part.to.write_all(&buffer[..n]).map_err(End::Disk)?;
            part.hasher.update(&buffer[..n]);
            part.at += n as u64;
            self.meter.fetch(n);
            self.meter.at(part.at, observer);
        }
        Ok(())
    }
}

/// Length of a regular file; nothing for what is none, such as a link.
fn regular_len(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file).map(|m| m.len())
}
