//! Downloads one file: resumes from its incomplete blob, and checks the hash before the blob gets
//! its name.

use super::api::{Hash, Hasher, Remote};
use super::cache::Repo;
use super::http::{self, Fault, Retries, header, passing, pause_unless_stopped};
use super::layout::max_text_bytes;
use super::progress::{HubError, Meter, Observer};
use crate::regular_file;
use std::collections::BTreeMap;
use std::fs::{self, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Attempts without a byte received before a download fails.
const TRIES: u32 = 8;
const BUFFER: usize = 256 << 10;

/// A file to download.
#[derive(Clone, Debug)]
pub struct File {
    pub name: String,
    pub bytes: u64,
    pub hash: Hash,
}

/// Downloads the files of one commit.
pub struct Fetcher<'a, O: ?Sized> {
    pub remote: &'a Remote<'a>,
    pub repo: &'a Repo,
    commit: &'a str,
    pub meter: Meter,
    pub observer: &'a mut O,
    /// Small files downloaded before the plan, by hash. Their hashes are checked.
    held: BTreeMap<String, Vec<u8>>,
    /// Beginnings of files, by hash, which are also read elsewhere. They are verified together with
    /// the rest of the file.
    heads: BTreeMap<String, Head>,
}

/// Where the bytes of a file are written.
trait Sink: Write + Seek {
    fn clear(&mut self) -> io::Result<()>;
}

impl Sink for fs::File {
    fn clear(&mut self) -> io::Result<()> {
        self.set_len(0)
    }
}

type Memory = io::Cursor<Vec<u8>>;

/// The beginning of a file, and how to go on.
struct Head {
    bytes: Arc<Vec<u8>>,
    rest: Part<()>,
}

impl Sink for Memory {
    fn clear(&mut self) -> io::Result<()> {
        self.get_mut().clear();
        Ok(())
    }
}

/// A partly downloaded file.
struct Part<S> {
    to: S,
    hasher: Hasher,
    at: u64,
    /// The server's ETag, for If-Range: the rest of another version must not be appended.
    etag: Option<String>,
}

impl<S> Part<S> {
    /// The same state with another place for the bytes, and the place before.
    fn with<T>(self, to: T) -> (Part<T>, S) {
        let Self { to: before, hasher, at, etag } = self;
        (Part { to, hasher, at, etag }, before)
    }
}

impl<S: Sink> Part<S> {
    fn new(to: S, wanted: &File) -> Self {
        Self { to, hasher: wanted.hash.hasher(wanted.bytes), at: 0, etag: None }
    }

    /// Drops its bytes.
    fn clear(&mut self, wanted: &File) -> io::Result<()> {
        self.to.clear()?;
        self.to.rewind()?;
        (self.at, self.hasher, self.etag) = (0, wanted.hash.hasher(wanted.bytes), None);
        Ok(())
    }
}

/// Why a request did not complete the file.
enum End {
    /// The rest, or the whole file, has to be requested again.
    Fault(Fault),
    Stopped,
    Disk(io::Error),
}

impl<'a, O: Observer + ?Sized> Fetcher<'a, O> {
    pub fn new(remote: &'a Remote<'a>, repo: &'a Repo, commit: &'a str, observer: &'a mut O) -> Self {
        Self { remote, repo, commit, observer, meter: Meter::default(), held: BTreeMap::new(), heads: BTreeMap::new() }
    }

    /// Bytes of a file that are in the cache.
    pub fn here(&self, file: &File) -> u64 {
        if self.is_complete(file) {
            return file.bytes;
        }
        regular_len(&self.repo.partial(file.hash.as_str())).map_or(0, |len| len.min(file.bytes))
    }

    /// Downloads a small file into memory, until [`Self::fetch`] writes it to the cache.
    pub fn small(&mut self, file: &File) -> Result<Vec<u8>, HubError> {
        let hash = file.hash.as_str();
        if self.is_complete(file) {
            let read = regular_file::read(&self.repo.blob(hash), max_text_bytes(&file.name));
            return read.map_err(|e| self.repo.failed(&e));
        }
        self.meter.file(&file.name, file.bytes);
        let mut part = Part::new(Memory::default(), file);
        self.complete(&mut part, file)?;
        let bytes = part.to.into_inner();
        self.held.insert(hash.to_owned(), bytes.clone());
        Ok(bytes)
    }

    /// The first `bytes` of a file, which are kept in memory until [`Self::fetch`] writes them.
    pub fn head(&mut self, file: &File, bytes: u64) -> Result<Arc<Vec<u8>>, HubError> {
        let hash = file.hash.as_str();
        if self.is_complete(file) {
            let read = fs::File::open(self.repo.blob(hash)).and_then(|blob| {
                let mut head = Vec::new();
                blob.take(bytes).read_to_end(&mut head).map(|_| Arc::new(head))
            });
            return read.map_err(|e| self.repo.failed(&e));
        }
        self.meter.file(&file.name, file.bytes);
        let mut part = match self.heads.remove(hash) {
            Some(Head { bytes, rest }) => rest.with(Memory::new(Arc::unwrap_or_clone(bytes))).0,
            None => Part::new(Memory::default(), file),
        };
        self.fill(&mut part, file, bytes)?;
        let (rest, head) = part.with(());
        let bytes = Arc::new(head.into_inner());
        self.heads.insert(hash.to_owned(), Head { bytes: bytes.clone(), rest });
        Ok(bytes)
    }

    /// Downloads a file if it is missing, and links it into the commit's folder.
    pub fn fetch(&mut self, file: &File) -> Result<(), HubError> {
        self.meter.file(&file.name, file.bytes);
        let repo = self.repo;
        let hash = file.hash.as_str();
        if !self.is_complete(file) {
            let lock = self.lock(file)?;
            // Another process may have completed it meanwhile.
            if !self.is_complete(file) {
                self.download(file)?;
            }
            drop(lock);
        }
        repo.link(self.commit, &file.name, hash).map_err(|e| repo.failed(&e))?;
        self.meter.file_done(self.observer);
        Ok(())
    }

    /// Whether the blob is complete. Its bytes were checked before it got its name.
    fn is_complete(&self, file: &File) -> bool {
        regular_len(&self.repo.blob(file.hash.as_str())) == Some(file.bytes)
    }

    /// Waits until no other process downloads this file.
    fn lock(&mut self, file: &File) -> Result<fs::File, HubError> {
        let hash = file.hash.as_str();
        let lock = self.repo.lock_file(hash).map_err(|e| self.repo.failed(&e))?;
        let mut reported = false;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(lock),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(e)) => return Err(self.repo.failed(&e)),
            }
            if !reported {
                self.observer.notice(&format!("{}: waiting for another process that downloads it", file.name));
                reported = true;
            }
            let done = self.here(file);
            self.meter.at(done, self.observer);
            pause_unless_stopped(Duration::from_millis(100), self.observer)?;
        }
    }

    /// Downloads the file, checks its hash, and renames it to its blob.
    fn download(&mut self, file: &File) -> Result<(), HubError> {
        let repo = self.repo;
        let disk = |e: io::Error| repo.failed(&e);
        let (partial, blob) = (repo.partial(file.hash.as_str()), repo.blob(file.hash.as_str()));
        let mut opened = repo.open_partial(file.hash.as_str()).map_err(disk)?;
        if let Some(Head { bytes: head, .. }) = self.heads.remove(file.hash.as_str())
            && opened.metadata().map_err(disk)?.len() < head.len() as u64
        {
            let written = opened.write_all(&head).and_then(|()| opened.rewind());
            written.map_err(disk)?;
        }
        if let Some(bytes) = self.held.remove(file.hash.as_str()) {
            let written = opened.set_len(0).and_then(|()| (&opened).write_all(&bytes)).and_then(|()| opened.sync_all());
            written.map_err(disk)?;
        } else {
            let mut part = self.resume(opened, file)?;
            if let Err(error) = self.complete(&mut part, file) {
                if part.at == file.bytes {
                    let _ = fs::remove_file(&partial);
                }
                return Err(error);
            }
            part.to.sync_all().map_err(disk)?;
        }
        fs::rename(&partial, &blob).map_err(disk)
    }

    /// Downloads the rest of a file and checks its hash. If a resumed file has the wrong hash,
    /// downloads it once more from the beginning.
    fn complete(&mut self, part: &mut Part<impl Sink>, file: &File) -> Result<(), HubError> {
        let repo = self.repo;
        let mut restarted = false;
        loop {
            let resumed = part.at > 0;
            let pieced = self.fill(part, file, file.bytes)? || resumed;
            if part.hasher.clone().matches(&file.hash) {
                return Ok(());
            }
            if restarted || !pieced {
                let (id, name, host) = (&repo.id, &file.name, self.remote.hub.host());
                return Err(HubError::Failed(format!(
                    "{id}: {name} does not have the hash that {host} lists, and was deleted; try again later"
                )));
            }
            self.observer
                .notice(&format!("{}: the resumed file has the wrong hash and is downloaded again", file.name));
            part.clear(file).map_err(|e| repo.failed(&e))?;
            restarted = true;
        }
    }

    /// Hashes the bytes that an earlier download left.
    fn resume(&mut self, opened: fs::File, file: &File) -> Result<Part<fs::File>, HubError> {
        let repo = self.repo;
        let disk = |e: io::Error| repo.failed(&e);
        let mut left = opened.metadata().map_err(disk)?.len();
        let mut reader = opened.try_clone().map_err(disk)?;
        let mut part = Part::new(opened, file);
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
            self.meter.at(part.at, self.observer);
            if self.observer.stopped() {
                return Err(HubError::Stopped);
            }
        }
        Ok(part)
    }

    /// Downloads the missing bytes up to `until`. Returns whether that took several responses.
    fn fill(&mut self, part: &mut Part<impl Sink>, file: &File, until: u64) -> Result<bool, HubError> {
        let mut retries = Retries::new(self.remote.hub, TRIES);
        let mut pieces = 0;
        while part.at < until {
            let from = part.at;
            let end = self.request(part, file, until);
            pieces += u32::from(part.at != from);
            match end {
                Ok(()) => {}
                Err(End::Stopped) => return Err(HubError::Stopped),
                Err(End::Disk(e)) => return Err(self.repo.failed(&e)),
                Err(End::Fault(fault)) => {
                    if part.at > from {
                        retries.reset();
                    }
                    self.remote.retry(fault, Some(&file.name), &mut retries, self.observer)?;
                }
            }
        }
        Ok(pieces > 1)
    }

    /// Sends one request for all missing bytes, and reads those before `until`.
    fn request(&mut self, part: &mut Part<impl Sink>, file: &File, until: u64) -> Result<(), End> {
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
            // The server does not support ranges, or the file has changed.
            _ => true,
        };
        if whole && part.at > 0 {
            part.clear(file).map_err(End::Disk)?;
        }
        if answer.status().as_u16() != 200 && whole {
            return Err(End::Fault(passing(format!("{host} sent another range of {} than requested", file.name))));
        }
        let rest = file.bytes - part.at;
        if let Some(other) = http::length(&answer).filter(|n| *n != rest) {
            let why = format!("{host} sends {other} bytes of {} instead of {rest}", file.name);
            return Err(End::Fault(Fault::Lasting(why)));
        }
        // A weak ETag does not identify bytes.
        part.etag = header(&answer, "etag").filter(|tag| !tag.starts_with("W/")).map(str::to_owned);
        let body = answer.body_mut().with_config().limit(rest.saturating_add(1)).reader();
        self.copy(body, part, until)
    }

    fn copy(&mut self, mut body: impl Read, part: &mut Part<impl Sink>, until: u64) -> Result<(), End> {
        let host = self.remote.hub.host();
        part.to.seek(SeekFrom::Start(part.at)).map_err(End::Disk)?;
        let mut buffer = vec![0; BUFFER];
        while part.at < until {
            if self.observer.stopped() {
                return Err(End::Stopped);
            }
            let n = match body.read(&mut buffer) {
                Ok(0) => return Err(End::Fault(passing(format!("{host}: the connection was cut")))),
                Ok(n) => n.min((until - part.at) as usize),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(End::Fault(http::cut(&host, e))),
            };
            part.to.write_all(&buffer[..n]).map_err(End::Disk)?;
            part.hasher.update(&buffer[..n]);
            part.at += n as u64;
            self.meter.fetch(n);
            self.meter.at(part.at, self.observer);
        }
        Ok(())
    }
}

/// Length of a regular file; `None` for anything else, such as a link.
fn regular_len(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file).map(|m| m.len())
}
