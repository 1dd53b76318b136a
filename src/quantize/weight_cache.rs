//! Converted weights in dmschat's own cache folder: `NAME--KEY.safetensors` ([`weight_file`]), and
//! a folder `NAME--KEY` with the model's configuration and tokenizer, so that the file serves when
//! the original is gone.
//!
//! A file is written as `NAME--KEY.partial`, which its writer locks, flushed to the disk and
//! renamed: whatever has the final name is whole. A file that is not what its name promises is made
//! again. Two starts that want the same file wait for each other.

use super::calibration::{Calibration, Guide};
use super::convert::{self, OnReport, Report};
use super::weight_file::{self, Entry, Identity, Layout, Stored};
use crate::checkpoint::files::Files;
use crate::checkpoint::names::{self, TensorSpec};
use crate::checkpoint::origin::Origin;
use crate::checkpoint::safetensors::TensorFile;
use crate::checkpoint::{AdapterChoice, Checkpoint, ModelConfig, mapped, pack};
use crate::hub::layout::TEXTS;
use crate::quant::Weights;
use crate::regular_file::{self, is_same_file, temporary};
use crate::tensor::{DType, Tensor};
use crate::unicode;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

const WHOLE: &str = "safetensors";
const PARTIAL: &str = "partial";
const PARTIAL_TEXTS: &str = "texts.partial";

/// Packed bytes that are made and written at a time.
const CHUNK_BYTES: usize = 8 << 20;

/// How often a start looks whether the other one has finished the file.
const POLL: Duration = Duration::from_millis(200);

/// Digits of a key in a file name.
const KEY_DIGITS: usize = 16;

/// Longest name of a model in a file name.
const MAX_NAME: usize = 80;

/// The folder of converted weights.
#[derive(Clone, Debug)]
pub struct WeightCache {
    folder: PathBuf,
    /// Free bytes on the disk of a folder; replaced by tests.
    free_bytes: fn(&Path) -> Option<u64>,
}

/// A file in the cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Cached {
    pub path: PathBuf,
    pub bytes: u64,
    pub identity: Identity,
}

/// Reason why there is no usable file of converted weights.
enum Refusal {
    /// They can be converted in memory instead; the notice says why.
    InMemory(String),
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Refusal {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

impl WeightCache {
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, free_bytes: regular_file::free_bytes }
    }

    /// Returns the checkpoint with its matrices as `weights` says, from a file that is made first
    /// if there is none. Without room for a file, they are converted in memory. Only a stop and a
    /// bad matrix are errors.
    pub fn convert(
        &self,
        source: Checkpoint,
        weights: Weights,
        calibration: &Calibration,
        report: OnReport,
    ) -> Result<Checkpoint> {
        let Some(wanted) = Wanted::new(self, &source, weights, calibration) else {
            return convert_in_memory(source, weights, calibration, report);
        };
        match wanted.open_or_make(report) {
            Ok(tensors) => Ok(source.with_converted(weights, tensors)),
            Err(Refusal::Failed(error)) => Err(error),
            Err(Refusal::InMemory(why)) => {
                report(Report::Notice(format!("{why}; the weights are quantized in memory, at every start")));
                convert_in_memory(source, weights, calibration, report)
            }
        }
    }

    /// Makes the file for this checkpoint if there is none, and returns it. Fails where there
    /// cannot be one.
    pub fn make(
        &self,
        source: &Checkpoint,
        weights: Weights,
        calibration: &Calibration,
        report: OnReport,
    ) -> Result<Cached> {
        let wanted = Wanted::new(self, source, weights, calibration);
        let Some(wanted) = wanted else { bail!("{} cannot be quantized to {}", source.name, weights.name()) };
        match wanted.open_or_make(report) {
            Ok(_) => Cached::read(wanted.path),
            Err(Refusal::InMemory(why)) => bail!("{why}"),
            Err(Refusal::Failed(error)) => Err(error),
        }
    }

    /// The file for this checkpoint, if there is one. Not checked against the checkpoint beyond its
    /// name.
    pub fn file_of(&self, source: &Checkpoint, weights: Weights, calibration: &Calibration) -> Option<PathBuf> {
        Wanted::new(self, source, weights, calibration).map(|w| w.path).filter(|p| p.is_file())
    }

    /// All readable files, in the order of their names.
    pub fn list(&self) -> Vec<Cached> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|e| e.path());
        let mut paths: Vec<PathBuf> = entries.filter(|p| p.extension().is_some_and(|e| e == WHOLE)).collect();
        paths.sort();
        paths.into_iter().filter_map(|path| Cached::read(path).ok()).collect()
    }

    /// Opens a model from its converted weights and the texts beside them, without its own files.
    pub fn open(&self, cached: &Cached, adapter: &AdapterChoice) -> Result<Checkpoint> {
        let label = cached.path.display().to_string();
        let Identity { name, weights, fingerprint, key, .. } = &cached.identity;
        let files = Files::folder(&cached.texts())?;
        let take = |_: &Files, config: &ModelConfig| {
            let bytes = mapped::map_file(&cached.path)?;
            let entries = weight_file::listed(&TensorFile::new("the file", bytes.clone())?, names::all(config))?;
            let tensors = weight_file::read(bytes, key, &entries)?;
            Ok((tensors.into_values().collect(), None))
        };
        let opened = Checkpoint::from_files(name, &files, adapter, take);
        let mut out = opened.with_context(|| label.clone()).map_err(unicode::one_line_error)?;
        out.weights = weights.parse().map_err(|e: String| anyhow!("{label}: {e}"))?;
        out.cached = true;
        if out.adapter.is_none() && !fingerprint.is_empty() {
            out.fingerprint = fingerprint.clone();
        }
        Ok(out)
    }

    /// Deletes partial files other than `own` that no start writes any more, and folders of texts
    /// without one. Leaves what has no name that [`Wanted`] gives.
    fn sweep(&self, own: &Path) {
        let entries = || fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|e| e.path());
        let stem = |path: &Path, end: &str| {
            let stem = path.file_name()?.to_str()?.strip_suffix(end)?.strip_suffix('.')?;
            let key = stem.rsplit_once("--")?.1;
            (key.len() == KEY_DIGITS && key.bytes().all(|b| b.is_ascii_hexdigit())).then(|| stem.to_owned())
        };
        for path in entries().filter(|p| p != own && stem(p, PARTIAL).is_some()) {
            temporary::remove_unlocked(&path);
        }
        for path in entries() {
            let writer = stem(&path, PARTIAL_TEXTS).map(|stem| self.folder.join(format!("{stem}.{PARTIAL}")));
            if writer.is_some_and(|w| !w.exists()) {
                let _ = fs::remove_dir_all(&path);
            }
        }
    }

    /// Deletes a file with its folder of texts, and returns the bytes freed.
    pub fn remove(&self, cached: &Cached) -> io::Result<u64> {
        fs::remove_file(&cached.path)?;
        let texts = cached.texts();
        if texts.is_dir() {
            fs::remove_dir_all(texts)?;
        }
        Ok(cached.bytes)
    }
}

impl Cached {
    fn read(path: PathBuf) -> Result<Self> {
        let bytes = mapped::map_file(&path)?;
        let len = (*bytes).as_ref().len() as u64;
        let identity = Identity::of(&TensorFile::new(&path.display().to_string(), bytes)?)?;
        Ok(Self { path, bytes: len, identity })
    }

    /// The folder of the model's texts.
    pub fn texts(&self) -> PathBuf {
        self.path.with_extension("")
    }
}

/// The file that a start wants.
struct Wanted<'a> {
    cache: &'a WeightCache,
    source: &'a Checkpoint,
    calibration: &'a Calibration,
    origin: Origin,
    weights: Weights,
    identity: Identity,
    entries: Vec<Entry>,
    path: PathBuf,
}

impl<'a> Wanted<'a> {
    /// `None` for a checkpoint without files of its own.
    fn new(
        cache: &'a WeightCache,
        source: &'a Checkpoint,
        weights: Weights,
        calibration: &'a Calibration,
    ) -> Option<Self> {
        let origin = source.origin.clone().filter(|_| !source.weights.is_packed())?;
        let entries = entries(source, weights);
        if !entries.iter().any(|e| matches!(e.stored, Stored::Packed(_))) {
            return None;
        }
        let described = calibration.describe(weights);
        let what = format!("dmschat {}\n{}\n{described}", weight_file::KEYED, weights.key());
        let identity = Identity {
            key: origin.key(&what),
            calibration: described,
            weights: weights.name().to_owned(),
            source: origin.model.clone(),
            revision: origin.revision.clone().unwrap_or_default(),
            name: source.name.clone(),
            fingerprint: if source.adapter.is_none() { source.fingerprint.clone() } else { String::new() },
        };
        let path = cache.folder.join(format!("{}--{}.{WHOLE}", file_name(&source.name), identity.key));
        Some(Self { cache, source, calibration, origin, weights, identity, entries, path })
    }

    fn open_or_make(&self, report: OnReport) -> Result<BTreeMap<String, Tensor>, Refusal> {
        let was_there = self.path.exists();
        if let Some(tensors) = self.open(report) {
            return Ok(tensors);
        }
        let layout = Layout::new(&self.identity, self.entries.clone())?;
        let Some(lock) = self.lock(was_there, report)? else {
            return self.open(report).ok_or_else(|| self.unusable("the file that another start has made"));
        };
        self.check_room(layout.file_bytes)?;
        convert::check_scales(self.source).inspect_err(|_| drop(fs::remove_file(self.partial())))?;
        let made = self.make(&lock, &layout, report);
        if made.is_err() {
            let _ = fs::remove_file(self.partial());
        }
        made?;
        drop(lock);
        self.open(report).ok_or_else(|| self.unusable("the file just written"))
    }

    /// The tensors of the file, if it is there and is what its name promises.
    fn open(&self, report: OnReport) -> Option<BTreeMap<String, Tensor>> {
        if !self.path.exists() {
            return None;
        }
        let read =
            mapped::map_file(&self.path).and_then(|bytes| weight_file::read(bytes, &self.identity.key, &self.entries));
        read.map_err(|why| {
            report(Report::Notice(format!("{} is not used and made again: {why:#}", self.path.display())))
        })
        .ok()
    }

    fn partial(&self) -> PathBuf {
        self.path.with_extension(PARTIAL)
    }

    fn unusable(&self, what: &str) -> Refusal {
        Refusal::InMemory(format!("{what}, {}, cannot be read", self.path.display()))
    }

    /// Takes the lock of the partial file and returns it; `None` if another start has finished the
    /// file meanwhile. `was_there`: there was a file, which cannot be used.
    fn lock(&self, was_there: bool, report: OnReport) -> Result<Option<File>, Refusal> {
        let refused = |e: &dyn std::fmt::Display| {
            Refusal::InMemory(format!("{} cannot be written: {e}", self.partial().display()))
        };
        fs::create_dir_all(&self.cache.folder).map_err(|e| refused(&e))?;
        let mut waited = false;
        loop {
            let mut options = File::options();
            options.create(true).truncate(false).write(true);
            let file = regular_file::open_no_follow(&mut options, &self.partial()).map_err(|e| refused(&e))?;
            match file.try_lock() {
                // The lock of a file that has been renamed or deleted since says nothing.
                Ok(()) if !is_same_file(&self.partial(), &file) => continue,
                Ok(()) if (waited || !was_there) && self.path.exists() => {
                    let _ = fs::remove_file(self.partial());
                    return Ok(None);
                }
                Ok(()) => {
                    self.cache.sweep(&self.partial());
                    return Ok(Some(file));
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(e)) => return Err(refused(&e)),
            }
            let wait = format!(
                "another dmschat is quantizing {} to {}; waiting for it (--no-weight-cache does not wait)",
                self.identity.name, self.identity.weights
            );
            ensure_wanted(report(if waited { Report::Waiting } else { Report::Notice(wait) }))?;
            waited = true;
            std::thread::sleep(POLL);
        }
    }

    /// Refuses a file for which the disk has no room, with 5 % to spare.
    fn check_room(&self, file_bytes: u64) -> Result<(), Refusal> {
        let needed = file_bytes + file_bytes / 20;
        match (self.cache.free_bytes)(&self.cache.folder) {
            Some(free) if free < needed => {
                let _ = fs::remove_file(self.partial());
                let mb = |bytes: u64| bytes as f64 / 1e6;
                Err(Refusal::InMemory(format!(
                    "{} has no room for quantized weights: {:.0} MB are needed, {:.0} MB are free",
                    self.cache.folder.display(),
                    mb(needed),
                    mb(free)
                )))
            }
            _ => Ok(()),
        }
    }

    /// Writes the partial file and gives it its name.
    fn make(&self, to: &File, layout: &Layout, report: OnReport) -> Result<(), Refusal> {
        let refused = |e: io::Error| Refusal::InMemory(format!("{} cannot be written: {e}", self.partial().display()));
        let guide = self.calibration.guide(self.source, self.weights, report)?;
        to.set_len(0).map_err(refused)?;
        let mut file = weight_file::Writer::new(to, layout).map_err(refused)?;
        let mut buffer = Vec::new();
        let mut done = 0;
        for entry in &layout.entries {
            done = done.max(layer_of(&entry.spec.name).unwrap_or(0));
            ensure_wanted(report(self.progress(done)))?;
            let tensor = self.source.tensor(&entry.spec)?;
            let Stored::Packed(code) = entry.stored else {
                file.data(pack::plain(tensor, 0)?.bytes()).map_err(refused)?;
                continue;
            };
            if let Some(chosen) = guide.chosen.get(&entry.spec.name) {
                file.data(chosen.bytes()).map_err(refused)?;
                continue;
            }
            let columns = guide.importance.get(&entry.spec.name).map(Vec::as_slice);
            let strip_bytes = code.strip_bytes(entry.spec.shape[1]);
            let per_chunk = (CHUNK_BYTES / strip_bytes).max(1);
            let strips = entry.bytes() / strip_bytes;
            for first in (0..strips).step_by(per_chunk) {
                buffer.resize(per_chunk.min(strips - first) * strip_bytes, 0);
                pack::pack(&tensor, code, columns, 0, first, &mut buffer);
                file.data(&buffer).map_err(refused)?;
                ensure_wanted(report(self.progress(done)))?;
            }
        }
        file.end().map_err(refused)?;
        to.sync_all().map_err(refused)?;
        self.write_texts().map_err(refused)?;
        fs::rename(self.partial(), &self.path).map_err(refused)?;
        temporary::sync_folder(&self.cache.folder).map_err(refused)
    }

    /// Progress of the file, in layers.
    fn progress(&self, done: usize) -> Report {
        Report::Layers { done, total: n_layers(&self.entries) }
    }

    /// Copies the model's configuration and tokenizer beside the file, as a folder that has its
    /// name only once it is whole.
    fn write_texts(&self) -> io::Result<()> {
        let texts = self.path.with_extension("");
        let partial = self.path.with_extension(PARTIAL_TEXTS);
        for old in [&partial, &texts] {
            match fs::remove_dir_all(old) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        if !self.origin.files.are_on_disk() {
            return Ok(());
        }
        fs::create_dir(&partial)?;
        for name in TEXTS {
            // A text that cannot be read now has not been read when the model was opened either.
            let Ok(Some(text)) = self.origin.files.text(name) else { continue };
            let mut file = File::create_new(partial.join(name))?;
            file.write_all(&text)?;
            file.sync_all()?;
        }
        temporary::sync_folder(&partial)?;
        fs::rename(&partial, &texts)
    }
}

/// The tensors of a model's file of converted weights: all except the tensors of a sidecar adapter,
/// so that the file serves with and without one.
fn entries(source: &Checkpoint, weights: Weights) -> Vec<Entry> {
    let codes = convert::codes_of(source, weights);
    let dms = source.config.dms.clone().filter(|_| source.adapter.is_none());
    let own = ModelConfig { dms, gates: None, ..source.config.clone() };
    let entry = |spec: TensorSpec| {
        let stored = match codes.get(&spec.name) {
            Some(&code) => Stored::Packed(code),
            None => Stored::Plain(source.tensors.get(&spec.name).and_then(Tensor::dtype).unwrap_or(DType::Bf16)),
        };
        Entry { spec, stored }
    };
    names::all(&own).map(entry).collect()
}

/// Converts a checkpoint in memory. One that is as `weights` says is returned as it is.
pub fn convert_in_memory(
    mut source: Checkpoint,
    weights: Weights,
    calibration: &Calibration,
    report: OnReport,
) -> Result<Checkpoint> {
    if !weights.is_packed() && source.tensors.values().all(|t| t.dtype().is_some()) {
        return Ok(source);
    }
    convert::check_scales(&source)?;
    let Guide { importance, chosen } = calibration.guide(&source, weights, report)?;
    source.tensors.extend(chosen);
    let total = source.config.n_layers;
    let layers = |done: u64, all: u64| (done as u128 * total as u128 / all.max(1) as u128) as usize;
    convert::convert(source, weights, &importance, 0, |done, all| {
        report(Report::Layers { done: layers(done, all), total })
    })
}

fn ensure_wanted(wanted: bool) -> Result<()> {
    ensure!(wanted, "loading was stopped");
    Ok(())
}

/// The layer of a tensor, if it belongs to one.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("model.layers.")?.split('.').next()?.parse().ok()
}

fn n_layers(entries: &[Entry]) -> usize {
    entries.iter().filter_map(|e| layer_of(&e.spec.name)).max().map_or(0, |last| last + 1)
}

/// A model's name as a file name.
fn file_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = name.replace('/', "--").chars().take(MAX_NAME).map(plain).collect();
    name.trim_start_matches('.').to_owned()
}

#[cfg(test)]
mod tests;
