//! Keeps a conversation's cache in a file beside its session, and takes it from there instead of replaying the log.
//!
//! A write runs while the conversation is idle, a layer between two looks at the inbox, so that a request waits for one
//! layer at most. It is given up when the conversation goes on: the end of that turn begins another. Files that fit nothing
//! are left where they are, until the next write replaces them.

use super::conversation::{Conversation, Halt, Job, Work};
use super::loaded::{Loaded, hex_digest};
use crate::backend::Backend;
use crate::cache::SeqId;
use crate::cache::file::{Header, Opened, Reader, Room, Writer};
use crate::protocol::{CacheFile, EventSender, LogEntry, Token, count};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a step of a load waits for the disk.
const LAYER: Duration = Duration::from_millis(10);
/// Longest wait for the disk when a conversation is closed.
const CLOSE: Duration = Duration::from_millis(1500);
/// Polling interval of that wait.
const POLL: Duration = Duration::from_millis(1);

/// The file of a conversation's cache, and the write that is under way.
#[derive(Default)]
pub(super) struct Keep {
    file: Option<CacheFile>,
    /// The cache has changed since it was written.
    behind: bool,
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

/// When [`Conversation::keep`] has to be called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    Now,
    /// The disk is busy.
    Soon,
    Never,
}

/// A cache that is being loaded.
pub(super) struct Load {
    header: Header,
    reader: Reader,
    log: Vec<LogEntry>,
    pub pending: Option<Token>,
    /// Tokens of the log.
    pub total: usize,
}

impl Load {
    /// Tokens of the log, scaled to the layers that are loaded.
    pub fn done(&self) -> usize {
        let layers = self.header.layer_bytes.len();
        self.total * (layers - self.reader.left()) / layers.max(1)
    }
}

/// The entries of a log that change something, as a replay leaves them.
fn canonical(log: &[LogEntry]) -> impl Iterator<Item = LogEntry> {
    let mut on = true;
    log.iter().copied().filter(move |entry| match *entry {
        LogEntry::Toggle { eviction } => std::mem::replace(&mut on, eviction) != eviction,
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

impl Conversation {
    /// Sets the file that the cache is kept in. One that was written to another file is not written again.
    pub fn keep_in(&mut self, file: Option<CacheFile>) {
        if self.keep.file != file {
            self.keep.write = None;
            self.keep.file = file;
        }
    }

    /// Notes that the cache is one that a session will come back to.
    pub fn cache_changed(&mut self) {
        self.keep.behind = true;
    }

    /// Notes that the cache is not that of the session's log, as after an undo: the next turn makes it so.
    pub fn cache_left_log(&mut self) {
        self.keep.behind = false;
    }

    /// Goes on with the write of the cache, if there is one to make and nothing else to do.
    pub fn keep<B: Backend>(&mut self, m: &mut Loaded<B>) -> Due {
        let context = &self.chain.context;
        let is_of = |write: &Write| write.seq == context.seq && write.entries == context.log.len();
        let idle = self.job.is_none();
        let Some(write) = self.keep.write.take_if(|w| w.layer < w.n_layers && !(idle && is_of(w))) else {
            return match &self.keep.write {
                Some(_) => self.write_on(m),
                None if idle && self.keep.behind => self.begin_write(m),
                None => Due::Never,
            };
        };
        drop(write);
        Due::Now
    }

    fn begin_write<B: Backend>(&mut self, m: &mut Loaded<B>) -> Due {
        self.keep.behind = false;
        let Some(CacheFile { path, limit_bytes }) = self.keep.file.clone() else { return Due::Never };
        let context = &self.chain.context;
        let (sequence, layer_bytes) = m.runner.head(context.seq);
        if sequence.len == 0 {
            return Due::Never;
        }
        let (entries, n_layers) = (context.log.len(), layer_bytes.len());
        let header = Header { identity: m.identity.clone(), sequence, log: log_digest(&context.log), layer_bytes };
        match Writer::start(path, Room { limit_bytes }, header) {
            Ok(writer) => {
                let seq = context.seq;
                self.keep.write = Some(Write { writer, seq, entries, n_layers, layer: 0, image: None });
                Due::Now
            }
            Err(error) => {
                self.not_kept(&error);
                Due::Never
            }
        }
    }

    /// Hands over the next layer, or looks whether the write has ended.
    fn write_on<B: Backend>(&mut self, m: &mut Loaded<B>) -> Due {
        let Some(write) = &mut self.keep.write else { return Due::Never };
        if let Some(outcome) = write.writer.outcome() {
            self.keep.write = None;
            match outcome {
                Ok(()) => self.keep.told = false,
                Err(error) => self.not_kept(&error),
            }
            return Due::Now;
        }
        if write.layer == write.n_layers {
            return Due::Soon;
        }
        let image = write.image.take().unwrap_or_else(|| {
            let mut image = write.writer.buffer();
            m.runner.export_layer(write.seq, write.layer, &mut image);
            image
        });
        match write.writer.offer(image) {
            Ok(()) => {
                write.layer += 1;
                Due::Now
            }
            Err(image) => {
                write.image = Some(image);
                Due::Soon
            }
        }
    }

    fn not_kept(&mut self, error: &io::Error) {
        if std::mem::replace(&mut self.keep.told, true) {
            return;
        }
        let why = match error.kind() {
            io::ErrorKind::FileTooLarge => "it is larger than cache_disk allows".to_owned(),
            _ => error.to_string(),
        };
        self.outlet.notice(format!("the cache is not kept on disk ({why}); a resumed session will replay its tokens"));
    }

    /// Writes what is left to write, in bounded time, before the conversation is closed.
    pub fn keep_at_close<B: Backend>(&mut self, m: &mut Loaded<B>) {
        let until = Instant::now() + CLOSE;
        loop {
            match self.keep(m) {
                Due::Never => return,
                _ if Instant::now() >= until => break,
                Due::Now => {}
                Due::Soon => std::thread::sleep(POLL),
            }
        }
        self.keep.write = None;
    }

    /// Loads the next layer. After the last one, or if one cannot be used, the job goes on as a restore: with nothing to
    /// feed, or with the whole log.
    pub fn continue_load<B: Backend>(&mut self, m: &mut Loaded<B>) {
        let Some(mut job) = self.job.take_if(|job| matches!(job.work, Work::Load(_))) else { return };
        let Work::Load(mut load) = job.work else { return };
        let step = if job.cancelled { Err(None) } else { self.load_layer(m, &mut load) };
        job.work = match step {
            Ok(false) => Work::Load(load),
            Ok(true) => restore(&load),
            Err(why) => {
                self.reset_context(&mut m.runner, true);
                match why {
                    Some(why) => {
                        job.events.notice(not_used(&why, load.total));
                        self.chain.replay(&load.log);
                        self.cache_changed();
                    }
                    None => job.halt = Some(Halt::Cancelled),
                }
                restore(&load)
            }
        };
        self.job = Some(Job { ..job });
    }

    /// Loads one layer if the disk has it. Returns true when all are loaded.
    fn load_layer<B: Backend>(&mut self, m: &mut Loaded<B>, load: &mut Load) -> Result<bool, Option<String>> {
        let words = |e: &dyn std::fmt::Display| Some(e.to_string());
        let (seq, layer) = (self.chain.context.seq, load.header.layer_bytes.len() - load.reader.left());
        if load.reader.left() > 0 {
            let Some(image) = load.reader.next(LAYER) else { return Ok(false) };
            let image = image.map_err(|e| words(&e))?;
            m.runner.import_layer(seq, load.header.sequence.len, layer, &image).map_err(|e| words(&e))?;
            load.reader.recycle(image);
        }
        if load.reader.left() > 0 {
            return Ok(false);
        }
        let context = &mut self.chain.context;
        context.log = canonical(&load.log).collect();
        m.runner.end_import(seq, &load.header.sequence, context.tokens());
        Ok(true)
    }
}

/// Begins to load the cache of a saved conversation from its file. `None` if it cannot be used, after a notice if there is
/// one.
pub(super) fn begin_load<B: Backend>(
    m: &Loaded<B>,
    path: &Path,
    log: &[LogEntry],
    pending: Option<Token>,
    events: &EventSender,
) -> Option<Box<Load>> {
    let total = log.iter().filter(|e| matches!(e, LogEntry::Token(_))).count();
    match open(m, path, log, total) {
        Ok(found) => found.map(|(header, reader)| Box::new(Load { header, reader, log: log.to_vec(), pending, total })),
        Err(why) => {
            events.notice(not_used(&why, total));
            None
        }
    }
}

fn restore(load: &Load) -> Work {
    Work::Restore { pending: load.pending, total: load.total }
}

fn not_used(why: &str, tokens: usize) -> String {
    format!("the saved cache is not used: {why}; {} tokens are replayed", count(tokens))
}

/// Opens the file of a cache that this log fills, and starts to read it. `Ok(None)` if there is no file.
fn open<B: Backend>(
    m: &Loaded<B>,
    path: &Path,
    log: &[LogEntry],
    total: usize,
) -> Result<Option<(Header, Reader)>, String> {
    let Some(opened) = Opened::open(path).map_err(|e| e.to_string())? else { return Ok(None) };
    let Header { identity, sequence, log: digest, layer_bytes } = &opened.header;
    let eviction = canonical(log).fold(true, |on, entry| match entry {
        LogEntry::Toggle { eviction } => eviction,
        _ => on,
    });
    if *identity != m.identity {
        return Err("it is of another model or another kind of cache".to_owned());
    }
    if *digest != log_digest(log) || sequence.len != total || sequence.eviction != eviction {
        return Err("it is of another state of the conversation".to_owned());
    }
    let most = m.runner.cache.max_layer_bytes(total);
    if layer_bytes.len() != identity.n_layers || layer_bytes.iter().any(|&bytes| bytes > most) {
        return Err("it is damaged (the sizes of its layers)".to_owned());
    }
    let header = opened.header.clone();
    opened.read().map(|reader| Some((header, reader))).map_err(|e| e.to_string())
}
