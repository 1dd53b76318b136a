//! One file of a model, from wherever it was left to a blob whose bytes have the listed hash.

use super::api::{Hash, Hasher, Remote};
use super::cache::Repo;
use super::http::{self, Fault, Patience, header, passing, pause_unless_stopped};
use super::progress::Meter;
use super::{HubError, Watch};
use std::fs::{self, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
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
}

/// What is gathered of a file.
struct Part {
    file: fs::File,
    hasher: Hasher,
    at: u64,
    /// The server's name for what it sent, so that a rest of something else is not appended.
    etag: Option<String>,
}

impl Part {
    /// Begins anew.
    fn clear(&mut self, wanted: &File) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        (self.at, self.hasher, self.etag) = (0, wanted.hash.hasher(wanted.bytes), None);
        Ok(())
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
        Self { remote, repo, commit, meter: Meter::default() }
    }

    /// Bytes of a file that are here already.
    pub fn here(&self, file: &File) -> u64 {
        let len = |path| fs::metadata(path).map_or(0, |m| m.len());
        let hash = file.hash.as_str();
        let blob = self.repo.blob(hash);
        if blob.exists() { file.bytes } else { len(self.repo.partial(hash)).min(file.bytes) }
    }

    /// Sees to it that the file is in the commit's folder.
    pub fn fetch(&mut self, file: &File, watch: &mut dyn Watch) -> Result<(), HubError> {
        self.meter.file(&file.name, file.bytes);
        let repo = self.repo;
        let hash = file.hash.as_str();
        if !self.whole(file) {
            let lock = self.lock(file, watch)?;
            // Another process may have brought it meanwhile.
            if !self.whole(file) {
                self.gather(file, watch)?;
            }
            drop(lock);
        }
        repo.link(self.commit, &file.name, hash).map_err(|e| repo.failed(&e))?;
        self.meter.file_done(watch);
        Ok(())
    }

    /// The blob is there. Its bytes were checked by whoever gave it its name.
    fn whole(&self, file: &File) -> bool {
        fs::metadata(self.repo.blob(file.hash.as_str())).is_ok_and(|m| m.len() == file.bytes)
    }

    /// Waits until no other process fetches this file.
    fn lock(&mut self, file: &File, watch: &mut dyn Watch) -> Result<fs::File, HubError> {
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
                watch.notice(&format!("{}: waiting for another process that downloads it", file.name));
                told = true;
            }
            let done = self.here(file);
            self.meter.at(done, watch);
            pause_unless_stopped(Duration::from_millis(100), watch)?;
        }
    }

    /// Gathers the file, checks it, and gives it its name.
    fn gather(&mut self, file: &File, watch: &mut dyn Watch) -> Result<(), HubError> {
        let repo = self.repo;
        let disk = |e: io::Error| repo.failed(&e);
        let (partial, blob) = (repo.partial(file.hash.as_str()), repo.blob(file.hash.as_str()));
        fs::create_dir_all(blob.parent().unwrap_or(&repo.dir)).map_err(disk)?;
        let mut part = self.found(file, watch)?;
        let mut anew = false;
        loop {
            let found = part.at > 0;
            let pieced = self.fill(&mut part, file, watch)? || found;
            if part.hasher.clone().matches(&file.hash) {
                break;
            }
            if anew || !pieced {
                let _ = fs::remove_file(&partial);
                let (id, name, host) = (&repo.id, &file.name, self.remote.hub.host());
                return Err(HubError::Failed(format!(
                    "{id}: {name} does not have the hash that {host} lists, and was thrown away; try again later"
                )));
            }
            watch.notice(&format!("{}: its pieces do not fit together; it is fetched anew", file.name));
            part.clear(file).map_err(disk)?;
            anew = true;
        }
        part.file.sync_all().map_err(disk)?;
        fs::rename(&partial, &blob).map_err(disk)
    }

    /// What an earlier download left, hashed.
    fn found(&mut self, file: &File, watch: &mut dyn Watch) -> Result<Part, HubError> {
        let repo = self.repo;
        let disk = |e: io::Error| repo.failed(&e);
        let path = repo.partial(file.hash.as_str());
        let opened = fs::File::options().create(true).truncate(false).read(true).write(true).open(path);
        let hasher = file.hash.hasher(file.bytes);
        let mut part = Part { file: opened.map_err(disk)?, hasher, at: 0, etag: None };
        if part.file.metadata().map_err(disk)?.len() > file.bytes {
            part.clear(file).map_err(disk)?;
        }
        let mut buffer = vec![0; BUFFER];
        let mut left = part.file.metadata().map_err(disk)?.len();
        while left > 0 {
            let n = part.file.read(&mut buffer).map_err(disk)?;
            if n == 0 {
                break;
            }
            part.hasher.update(&buffer[..n]);
            part.at += n as u64;
            left = left.saturating_sub(n as u64);
            self.meter.at(part.at, watch);
            if watch.stopped() {
                return Err(HubError::Stopped);
            }
        }
        Ok(part)
    }

    /// Fetches what is missing. True when it came in several pieces.
    fn fill(&mut self, part: &mut Part, file: &File, watch: &mut dyn Watch) -> Result<bool, HubError> {
        let mut patience = Patience::new(self.remote.hub, TRIES);
        let mut pieces = 0;
        while part.at < file.bytes {
            let from = part.at;
            let end = self.request(part, file, watch);
            pieces += u32::from(part.at != from);
            match end {
                Ok(()) => {}
                Err(End::Stopped) => return Err(HubError::Stopped),
                Err(End::Disk(e)) => return Err(self.repo.failed(&e)),
                Err(End::Fault(fault)) => {
                    if part.at > from {
                        patience.reset();
                    }
                    self.remote.again(fault, Some(&file.name), &mut patience, watch)?;
                }
            }
        }
        Ok(pieces > 1)
    }

    /// One request, for all that is missing.
    fn request(&mut self, part: &mut Part, file: &File, watch: &mut dyn Watch) -> Result<(), End> {
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
        let body = answer.body_mut().with_config().limit(rest + 1).reader();
        self.copy(body, part, file, watch)
    }

    fn copy(&mut self, mut body: impl Read, part: &mut Part, file: &File, watch: &mut dyn Watch) -> Result<(), End> {
        let host = self.remote.hub.host();
        part.file.seek(SeekFrom::Start(part.at)).map_err(End::Disk)?;
        let mut buffer = vec![0; BUFFER];
        while part.at < file.bytes {
            if watch.stopped() {
                return Err(End::Stopped);
            }
            let n = match body.read(&mut buffer) {
                Ok(0) => return Err(End::Fault(passing(format!("{host}: the connection was cut")))),
                Ok(n) => n.min((file.bytes - part.at) as usize),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(End::Fault(http::cut(&host, e))),
            };
            part.file.write_all(&buffer[..n]).map_err(End::Disk)?;
            part.hasher.update(&buffer[..n]);
            part.at += n as u64;
            self.meter.fetch(n);
            self.meter.at(part.at, watch);
        }
        Ok(())
    }
}
