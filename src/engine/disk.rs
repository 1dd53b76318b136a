//! Keeps a conversation's cache in a file beside its session, and loads it from there instead of
//! replaying the log.
//!
//! A write runs while the conversation is idle, one layer between two checks of the inbox, so that
//! a request waits for at most one layer. It is abandoned when the conversation continues; the end
//! of that turn begins another. Files that do not match are left in place until the next write
//! replaces them.

use super::context::Context;
use super::far_load::FarLoad;
use super::loaded::{Loaded, hex_digest};
use super::snapshots::Worth;
use crate::backend::Backend;
use crate::cache::file::{Header, Identity, Opened, Reader, Room, SlotLog, Writer};
use crate::cache::{CheckedLayer, SeqId};
use crate::protocol::{CacheFile, EventSender, LogEntry, Outlet, count};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Idle time before a write begins: session records and quick answers come first.
const SETTLE: Duration = Duration::from_millis(300);
/// How long a step of a load waits for the disk.
const LAYER: Duration = Duration::from_millis(10);
/// Longest wait for the disk when a conversation is closed.
const CLOSE: Duration = Duration::from_millis(1500);
/// Polling interval while the disk is busy.
const POLL: Duration = Duration::from_millis(2);

/// The file of a conversation's cache, and the write that is under way.
#[derive(Default)]
pub(super) struct DiskCache {
    file: Option<CacheFile>,
    /// When the cache last changed, if that is not written.
    changed: Option<Instant>,
    write: Option<Write>,
    /// A failure was reported, and no write has succeeded since.
    told: bool,
}

struct Write {
    writer: Writer,
    seq: SeqId,
    /// Entries of the log that the image is of.
    entries: usize,
    n_layers: usize,
    /// Layers handed over so far.
    layer: usize,
    /// A layer that the writer had no room for.
    image: Option<Vec<u8>>,
}

/// When [`DiskCache::go_on`] has to be called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    In(Duration),
    Never,
}

const NOW: Due = Due::In(Duration::ZERO);

/// A cache that is being loaded.
pub(super) struct Load {
    opened: Opened,
    reader: Reader<CheckedLayer>,
    /// Images before those of far rows that are read later.
    layers: usize,
    pub log: Vec<LogEntry>,
}

/// The entries of a log that change something, as a replay leaves them.
fn canonical(log: &[LogEntry]) -> impl Iterator<Item = LogEntry> {
    let (mut on, mut at) = (true, 0.0);
    log.iter().copied().filter(move |entry| match *entry {
        LogEntry::Toggle { eviction } => std::mem::replace(&mut on, eviction) != eviction,
        LogEntry::Dial { dial } => std::mem::replace(&mut at, dial) != dial,
        _ => true,
    })
}

/// A digest of all entries of a log.
fn log_digest(log: &[LogEntry]) -> String {
    let mut text = Vec::new();
    for entry in canonical(log) {
        // Plain numbers always serialize.
        let _ = serde_json::to_writer(&mut text, &entry);
        text.push(b'\n');
    }
    hex_digest(&text)
}

impl DiskCache {
    /// Sets the file that stores the cache. A write to another file is abandoned.
    pub fn set_file(&mut self, file: Option<CacheFile>) {
        if self.file != file {
            self.write = None;
            self.file = file;
        }
    }

    /// Where the cache is kept.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| &*file.path)
    }

    /// Notes that the cache is one that a session or a slot will come back to.
    pub fn changed(&mut self) {
        self.changed = Some(Instant::now());
    }

    /// Whether there is a change that is not written.
    pub fn has_changed(&self) -> bool {
        self.changed.is_some()
    }

    /// Records that the cache no longer matches the session's log, as after an undo. The next turn
    /// makes it match.
    pub fn left_log(&mut self) {
        self.changed = None;
    }

    /// Continues writing the cache, if there is one to write. `now`: the current state, or `None`
    /// while a request is served.
    pub fn go_on<B: Backend>(&mut self, m: &mut Loaded<B>, now: Option<&Context>, outlet: &Outlet) -> Due {
        let state = now.map(|now| self.state(m, now, outlet)).map(|at| (at.seq, at.log.len()));
        let is_of = |write: &Write| state == Some((write.seq, write.entries));
        if self.write.take_if(|write| write.layer < write.n_layers && !is_of(write)).is_some() {
            return NOW;
        }
        match (now, self.changed) {
            _ if self.write.is_some() => self.write_on(m, outlet),
            (Some(state), Some(at)) => match SETTLE.saturating_sub(at.elapsed()) {
                Duration::ZERO => self.begin(m, state, outlet),
                left => Due::In(left),
            },
            _ => Due::Never,
        }
    }

    /// The state that is written. A slot's is the end of the last prompt if the model thinks: from
    /// there the next prompt goes on, also where its template drops the thought.
    fn state<'a, B: Backend>(&self, m: &'a Loaded<B>, now: &'a Context, outlet: &Outlet) -> &'a Context {
        if !self.file.as_ref().is_some_and(|file| file.has_log) || m.info.think_tags.is_none() {
            return now;
        }
        let mut kept = m.snapshots.of(outlet.conversation());
        kept.rfind(|one| one.worth == Worth::PromptEnd).map_or(now, |one| &one.context)
    }

    fn begin<B: Backend>(&mut self, m: &mut Loaded<B>, now: &Context, outlet: &Outlet) -> Due {
        self.changed = None;
        let Some(CacheFile { path, limit_bytes, has_log }) = self.file.clone() else { return Due::Never };
        let &Context { seq, ref log, pending, is_cut, .. } = self.state(m, now, outlet);
        let (sequence, layer_bytes) = m.runner.head(seq);
        if sequence.len == 0 {
            return Due::Never;
        }
        let (entries, n_layers) = (log.len(), layer_bytes.len());
        let slot = has_log.then(|| SlotLog { entries: log.clone(), pending, is_cut });
        let header = Header { identity: m.identity.clone(), sequence, log: log_digest(log), layer_bytes, slot };
        match Writer::start(path, Room { limit_bytes }, header) {
            Ok(writer) => {
                self.write = Some(Write { writer, seq, entries, n_layers, layer: 0, image: None });
                NOW
            }
            Err(error) => {
                self.failed(&error, outlet);
                Due::Never
            }
        }
    }

    /// Hands over the next layer, or looks whether the write has ended.
    fn write_on<B: Backend>(&mut self, m: &mut Loaded<B>, outlet: &Outlet) -> Due {
        let Some(write) = &mut self.write else { return Due::Never };
        if let Some(outcome) = write.writer.outcome() {
            self.write = None;
            match outcome {
                Ok(()) => self.told = false,
                Err(error) => self.failed(&error, outlet),
            }
            return NOW;
        }
        if write.layer == write.n_layers {
            return Due::In(POLL);
        }
        let image = write.image.take().unwrap_or_else(|| {
            let mut image = write.writer.buffer();
            m.runner.export_layer(write.seq, write.layer, &mut image);
            image
        });
        match write.writer.offer(image) {
            Ok(()) => {
                write.layer += 1;
                NOW
            }
            Err(image) => {
                write.image = Some(image);
                Due::In(POLL)
            }
        }
    }

    fn failed(&mut self, error: &io::Error, outlet: &Outlet) {
        if std::mem::replace(&mut self.told, true) {
            return;
        }
        let why = match error.kind() {
            // Not the system's own limit.
            io::ErrorKind::FileTooLarge if error.raw_os_error().is_none() => {
                "it is larger than cache_disk allows".to_owned()
            }
            _ => error.to_string(),
        };
        outlet.notice(format!("the cache is not kept on disk ({why}); a resumed session will replay its tokens"));
    }

    /// Writes the remaining data, in bounded time, before the conversation is closed.
    pub fn close<B: Backend>(&mut self, m: &mut Loaded<B>, now: Option<&Context>, outlet: &Outlet) {
        let until = Instant::now() + CLOSE;
        if let (Some(state), Some(_), None) = (now, self.changed, &self.write) {
            self.begin(m, state, outlet);
        }
        while let Due::In(wait) = self.go_on(m, now, outlet) {
            if Instant::now() >= until {
                break;
            }
            std::thread::sleep(wait.min(POLL));
        }
        self.write = None;
    }
}

impl Load {
    /// Tokens of the log.
    pub fn total(&self) -> usize {
        self.opened.header.sequence.len
    }

    /// The tokens, scaled to the layers that are loaded.
    pub fn done(&self) -> usize {
        self.total() * (self.layers - self.reader.left()) / self.layers.max(1)
    }

    /// Loads the next layer into an empty context, if the disk has delivered it. Returns true when
    /// all are loaded but for far rows, which `far` loads from then on. An error is the reason why
    /// the file cannot be used.
    pub fn go_on<B: Backend>(
        &mut self,
        m: &mut Loaded<B>,
        context: &mut Context,
        far: &mut FarLoad<B>,
    ) -> Result<bool, String> {
        if self.reader.left() > 0 {
            let Some(next) = self.reader.next(LAYER) else { return Ok(false) };
            let layer = next.map_err(|e| e.to_string())?;
            far.add(m.runner.import_layer(context.seq, &layer).map_err(|e| e.to_string())?);
            self.reader.recycle(layer.into_bytes());
        }
        if self.reader.left() > 0 {
            return Ok(false);
        }
        context.log = canonical(&self.log).collect();
        let Header { sequence, layer_bytes, .. } = &self.opened.header;
        let ended = m.runner.end_import(context.seq, sequence, context.tokens());
        ended.map_err(|what| format!("it is damaged ({what})"))?;
        if self.layers < layer_bytes.len() {
            let check = m.runner.cache.layer_check(sequence.len);
            let rest = self.opened.read_some(self.layers..layer_bytes.len(), move |n, image| check.check(n, image));
            far.begin(rest.map_err(|e| e.to_string())?, context.log.len());
            context.awaits_far = true;
        }
        Ok(true)
    }
}

/// Begins to load the cache of a saved conversation, whose log has `total` tokens, from its file.
/// `None` if the file cannot be used, after a notice if there is one.
pub(super) fn begin_load<B: Backend>(
    m: &Loaded<B>,
    path: &Path,
    log: &[LogEntry],
    total: usize,
    events: &EventSender,
) -> Option<Box<Load>> {
    if total == 0 {
        return None;
    }
    let opened = Opened::open(path).map_err(|e| e.to_string());
    let load = opened.and_then(|opened| opened.map(|opened| read(m, opened, log.to_vec(), total)).transpose());
    load.unwrap_or_else(|why| {
        events.notice(not_used(&why, total));
        None
    })
}

/// Begins to load the cache of a slot from its file. Returns what else the file has of it, or why
/// it cannot be used.
pub(super) fn begin_slot<B: Backend>(m: &Loaded<B>, path: &Path) -> Result<(Box<Load>, SlotLog), String> {
    let mut opened = Opened::open(path).map_err(|e| e.to_string())?.ok_or("it is gone")?;
    let mut slot = opened.header.slot.take().ok_or("it has no log")?;
    let total = m.check_log(&slot.entries)?;
    m.check_log(slot.pending.map(LogEntry::Token).as_slice())?;
    if total == 0 {
        return Err("it is empty".to_owned());
    }
    let load = read(m, opened, std::mem::take(&mut slot.entries), total)?;
    Ok((load, slot))
}

/// Notice if the file cannot be used.
pub(super) fn not_used(why: &str, tokens: usize) -> String {
    format!("the saved cache is not used: {why}; recomputing {} tokens", count(tokens))
}

/// Starts to read a cache file if it matches this log of `total` tokens.
fn read<B: Backend>(m: &Loaded<B>, opened: Opened, log: Vec<LogEntry>, total: usize) -> Result<Box<Load>, String> {
    let Header { identity, sequence, log: digest, layer_bytes, .. } = &opened.header;
    let state = canonical(&log).fold((true, 0.0), |(on, at), entry| match entry {
        LogEntry::Toggle { eviction } => (eviction, at),
        LogEntry::Dial { dial } => (on, dial),
        _ => (on, at),
    });
    if *identity != m.identity {
        let differs_in_far = Identity { far: m.identity.far, ..identity.clone() } == m.identity;
        return Err(match identity.far {
            None if differs_in_far => "it was saved without --far".to_owned(),
            Some(pages) if differs_in_far => format!("it was saved with --far and --far-pages {pages}"),
            _ => "it belongs to another model or kind of cache".to_owned(),
        });
    }
    if *digest != log_digest(&log) || sequence.len != total || (sequence.eviction, sequence.dial) != state {
        return Err("it is out of date".to_owned());
    }
    m.runner.cache.check_head(sequence, total).map_err(|what| format!("it is damaged ({what})"))?;
    let most = m.runner.cache.max_layer_bytes(total);
    if layer_bytes.len() != m.runner.cache.n_images() || layer_bytes.iter().any(|&bytes| bytes > most) {
        return Err("it is damaged (the sizes of its layers)".to_owned());
    }
    let (check, layers) = (m.runner.cache.layer_check(total), m.runner.cache.first_rest());
    let reader = opened.read_some(0..layers, move |layer, image| check.check(layer, image));
    Ok(Box::new(Load { reader: reader.map_err(|e| e.to_string())?, opened, layers, log }))
}
