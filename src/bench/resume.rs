//! Measures how long a resumed conversation waits: for a replay of its tokens, or for its cache
//! from a file.

use super::prompt;
use crate::backend::Measure;
use crate::cache::file::{Header, Identity, Opened, Room, Writer};
use crate::cache::{FarRest, SeqId};
use crate::engine::Runner;
use crate::policy::Far;
use crate::protocol::Token;
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for the disk.
const DISK: Duration = Duration::from_secs(60);

/// Seconds that each way takes, and what was written.
#[derive(Debug, Serialize)]
pub struct Resume {
    pub tokens: usize,
    pub bytes: u64,
    pub replay_s: f64,
    /// Until all layers have left the device.
    pub export_s: f64,
    /// Until the file is synced and has its name.
    pub write_s: f64,
    /// Until a step can run.
    pub load_s: f64,
    /// Part of `load_s` until layers were read and had the right checksums.
    pub wait_s: f64,
    /// From there until far rows are read too, which a choice waits for; 0 without far rows.
    pub far_s: f64,
    /// Whether the next logits are the same to the last bit: before far rows are read, and after
    /// a choice among them.
    pub equal: bool,
}

impl Resume {
    /// Feeds `tokens` tokens, writes the cache to `path`, and loads it beside the original.
    pub fn measure<B: Measure>(runner: &mut Runner<B>, tokens: usize, eviction: bool, path: &Path) -> Result<Self> {
        let ids = prompt(tokens + 1, runner.config().vocab, 0);
        let (log, next) = ids.split_at(tokens);
        // Warm-up: page faults of the weights, scratch, CPU clocks.
        let warm = runner.create(eviction)?;
        let step = runner.max_step();
        runner.feed(warm, &log[..step.min(tokens)])?;
        runner.release(warm);
        let first = runner.create(eviction)?;
        let replay_s = seconds(runner, |runner| Ok(runner.feed_prompt(first, log)?))?;
        let begun = Instant::now();
        let (export_s, bytes) = write(runner, first, path)?;
        let write_s = begun.elapsed().as_secs_f64();
        let mut second = None;
        let load_s = seconds(runner, |runner| {
            second = Some(load(runner, path, log)?);
            Ok(())
        })?;
        let LoadedCache { seq: second, waited, opened, rests } = second.context("a sequence that was loaded")?;
        let equal = logits(runner, first, next)? == logits(runner, second, next)?;
        let far_s = match rests.is_empty() {
            true => 0.0,
            false => seconds(runner, |runner| load_rest(runner, &opened, rests))?,
        };
        for seq in [first, second] {
            runner.choose(seq, Far::QUERIES);
        }
        let equal = equal && logits(runner, first, next)? == logits(runner, second, next)?;
        [first, second].into_iter().for_each(|seq| runner.release(seq));
        let wait_s = waited.as_secs_f64();
        Ok(Self { tokens, bytes, replay_s, export_s, write_s, load_s, wait_s, far_s, equal })
    }

    pub fn text(&self) -> String {
        let Self { tokens, bytes, replay_s, export_s, write_s, load_s, wait_s, far_s, equal } = self;
        let far = if *far_s > 0.0 { format!(", far rows {far_s:.3} s later") } else { String::new() };
        format!(
            "{tokens} tokens: replay {replay_s:.3} s; cache of {:.1} MB: export {export_s:.3} s, with the disk {write_s:.3} s, load \
             {load_s:.3} s ({wait_s:.3} s of it for the file){far}, {:.1} times as fast as the replay; next logits {}\n",
            *bytes as f64 / 1e6,
            replay_s / load_s,
            if *equal { "bit-equal" } else { "DIFFER" }
        )
    }

    pub fn json(&self) -> Value {
        json!(self)
    }
}

fn seconds<B: Measure>(runner: &mut Runner<B>, work: impl FnOnce(&mut Runner<B>) -> Result<()>) -> Result<f64> {
    runner.backend().synchronize();
    let begun = Instant::now();
    work(runner)?;
    runner.backend().synchronize();
    Ok(begun.elapsed().as_secs_f64())
}

/// Returns the seconds until the last layer was handed over, and the bytes of all.
fn write<B: Measure>(runner: &mut Runner<B>, seq: SeqId, path: &Path) -> Result<(f64, u64)> {
    let begun = Instant::now();
    let (sequence, layer_bytes) = runner.head(seq);
    let identity = Identity::new(runner.cache.geometry(), Default::default());
    let bytes = layer_bytes.iter().sum();
    let header = Header { identity, sequence, log: String::new(), layer_bytes, slot: None };
    let n_layers = header.layer_bytes.len();
    let writer = Writer::start(path.to_owned(), Room { limit_bytes: u64::MAX }, header)?;
    for layer in 0..n_layers {
        let mut image = writer.buffer();
        runner.export_layer(seq, layer, &mut image);
        while let Err(back) = writer.offer(image) {
            ensure!(begun.elapsed() < DISK, "{}: the disk does not answer", path.display());
            image = back;
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    let exported = begun.elapsed().as_secs_f64();
    loop {
        match writer.outcome() {
            Some(outcome) => {
                return outcome.map(|()| (exported, bytes)).with_context(|| path.display().to_string());
            }
            None => ensure!(begun.elapsed() < DISK, "{}: the disk does not answer", path.display()),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A cache that was loaded, but for far rows.
struct LoadedCache<B: Measure> {
    seq: SeqId,
    /// Time spent waiting for the file alone.
    waited: Duration,
    opened: Opened,
    rests: Vec<FarRest<B>>,
}

fn load<B: Measure>(runner: &mut Runner<B>, path: &Path, log: &[Token]) -> Result<LoadedCache<B>> {
    let opened = Opened::open(path)?.context("the file that was just written")?;
    let head = &opened.header.sequence;
    let check = runner.cache.layer_check(head.len);
    let mut reader = opened.read_some(0..runner.cache.first_rest(), move |layer, image| check.check(layer, image))?;
    let (mut waited, mut rests) = (Duration::ZERO, Vec::new());
    let seq = runner.create(true)?;
    while reader.left() > 0 {
        let begun = Instant::now();
        let Some(next) = reader.next(DISK) else { bail!("{}: the disk does not answer", path.display()) };
        waited += begun.elapsed();
        let layer = next?;
        rests.extend(runner.import_layer(seq, &layer)?);
        reader.recycle(layer.into_bytes());
    }
    runner.end_import(seq, head, log.iter().copied()).map_err(anyhow::Error::msg)?;
    Ok(LoadedCache { seq, waited, opened, rests })
}

/// Loads the far rows that a sequence awaits.
fn load_rest<B: Measure>(runner: &mut Runner<B>, opened: &Opened, mut rests: Vec<FarRest<B>>) -> Result<()> {
    let Header { sequence, layer_bytes, .. } = &opened.header;
    let (check, images) = (runner.cache.layer_check(sequence.len), runner.cache.first_rest()..layer_bytes.len());
    let mut reader = opened.read_some(images, move |number, image| check.check(number, image))?;
    while reader.left() > 0 {
        let image = reader.next(DISK).context("the disk does not answer")??;
        runner.import_rest(&mut rests, &image)?;
        reader.recycle(image.into_bytes());
    }
    Ok(())
}

fn logits<B: Measure>(runner: &mut Runner<B>, seq: SeqId, tokens: &[Token]) -> Result<Vec<u32>> {
    runner.feed(seq, tokens)?;
    let mut bits = Vec::new();
    runner.logits(tokens.len() - 1..tokens.len(), |_, row| bits = row.iter().map(|x| x.to_bits()).collect())?;
    Ok(bits)
}
