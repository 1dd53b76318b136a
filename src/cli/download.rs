//! Downloads as the command line and the chat see them: what will come, how far it is, and how
//! Ctrl+C stops it. The download itself is [`crate::checkpoint::hub`]'s.

use super::headless::Interrupts;
use super::machine::memory;
use super::output::{self, Interrupted, notice, wrong_use};
use crate::backend::cuda;
use crate::checkpoint::ModelRef;
use crate::checkpoint::hub::cache::{self, Extent};
use crate::checkpoint::hub::{Hub, HubError, MAIN, Plan, Progress, Watch};
use crate::config::{Device, Settings};
use crate::engine::Loading;
use crate::protocol::{Download, Event};
use crate::ui::numbers;
use crate::ui::text::bytes;
use anyhow::Result;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A hub id whose files are not all in the cache.
pub struct Missing {
    hub: Hub,
    id: String,
    revision: Option<String>,
    /// What is there can be opened.
    usable: bool,
}

/// What has to be downloaded before this model can be opened; nothing for a model that is here. A
/// model that is in the cache is used as it is: `models pull` looks for news.
pub fn missing(model: &str) -> Result<Option<Missing>> {
    let ModelRef::Hub { id, revision } = ModelRef::parse(model)? else { return Ok(None) };
    let hub = Hub::from_env()?;
    let snapshot = hub.repo(&id).snapshot(revision.as_deref().unwrap_or(MAIN))?;
    let extent = snapshot.map_or(Extent::Part, |folder| cache::extent(&folder));
    let needed = extent < Extent::Whole && !(hub.offline && extent == Extent::Weights);
    Ok(needed.then_some(Missing { hub, id, revision, usable: extent == Extent::Weights }))
}

/// Downloads the model of these settings where it is not here, told on stderr.
pub fn ensure(settings: &Settings) -> Result<()> {
    let Some(missing) = missing(&settings.model).map_err(output::as_wrong_use)? else { return Ok(()) };
    let usable = missing.usable;
    match pull(missing, settings.device) {
        Err(error) if usable && !error.is::<Interrupted>() => {
            notice(&format!("{error:#}; what the cache has is used"));
            Ok(())
        }
        done => done.map(|_| ()),
    }
}

/// `models pull`: also where all is here, for what is new on the hub.
pub fn newest(model: &str, device: Device) -> Result<PathBuf> {
    let ModelRef::Hub { id, revision } = ModelRef::parse(model).map_err(output::as_wrong_use)? else {
        return Err(wrong_use(format!("{model} is no hub id such as ORG/NAME, so there is nothing to download")));
    };
    pull(Missing { hub: Hub::from_env().map_err(output::as_wrong_use)?, id, revision, usable: false }, device)
}

/// Downloads on a thread of its own, while this one waits for Ctrl+C.
fn pull(missing: Missing, device: Device) -> Result<PathBuf> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut interrupts = runtime.block_on(async { Interrupts::new() })?;
    let (send, done) = tokio::sync::oneshot::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let mut bar = Bar { device, stop: stop.clone(), terminal: std::io::stderr().is_terminal(), drawn: 0, tenth: 0 };
    let work = move || {
        let Missing { hub, id, revision, .. } = missing;
        let result = hub.pull(&id, revision.as_deref(), &mut bar);
        bar.clear();
        let _ = send.send(result);
    };
    std::thread::Builder::new().name("download".into()).spawn(work)?;
    runtime.block_on(async {
        tokio::select! {
            result = done => result?.map_err(in_words),
            () = interrupts.next() => {
                stop.store(true, Ordering::Relaxed);
                if std::io::stderr().is_terminal() {
                    eprintln!();
                }
                Err(in_words(HubError::Stopped))
            }
        }
    })
}

/// As an error with its exit code: 2 where another try would give the same, else 1; stopped is 130.
pub fn in_words(error: HubError) -> anyhow::Error {
    match error {
        HubError::Wrong(why) => wrong_use(why),
        HubError::Stopped => anyhow::Error::from(Interrupted).context("what has come is kept for the next download"),
        failed => failed.into(),
    }
}

/// Downloads for the chat, from the engine's thread: told by events, and over when nobody waits.
pub fn for_chat(settings: &Settings, loading: &Loading) -> Result<()> {
    let Some(missing) = missing(&settings.model)? else { return Ok(()) };
    let mut watch = Told { device: settings.device, loading };
    match missing.hub.pull(&missing.id, missing.revision.as_deref(), &mut watch) {
        Err(error) if missing.usable && loading.is_wanted() => {
            watch.notice(&format!("{error}; what the cache has is used"));
            Ok(())
        }
        done => Ok(done.map(|_| ())?),
    }
}

struct Told<'a> {
    device: Device,
    loading: &'a Loading,
}

impl Watch for Told<'_> {
    fn stopped(&self) -> bool {
        !self.loading.is_wanted()
    }

    fn plan(&mut self, plan: &Plan) {
        plan_lines(plan, self.device).into_iter().for_each(|line| self.notice(&line));
    }

    fn progress(&mut self, p: &Progress) {
        self.loading.event(Event::Downloading(told(p)));
    }

    fn notice(&mut self, text: &str) {
        self.loading.event(Event::Notice(text.to_owned()));
    }
}

/// Progress on stderr: a line that is drawn over on a terminal, else a line for each tenth.
struct Bar {
    device: Device,
    stop: Arc<AtomicBool>,
    terminal: bool,
    /// Columns of the line that stands there.
    drawn: usize,
    tenth: u64,
}

impl Bar {
    fn clear(&mut self) {
        if self.drawn > 0 && !self.stopped() {
            let _ = write!(std::io::stderr(), "\r{:1$}\r", "", self.drawn);
        }
        self.drawn = 0;
    }
}

impl Watch for Bar {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn plan(&mut self, plan: &Plan) {
        plan_lines(plan, self.device).into_iter().for_each(|line| self.notice(&line));
    }

    fn progress(&mut self, p: &Progress) {
        let tenth = p.done * 10 / p.bytes.max(1);
        if self.terminal && !self.stopped() {
            let line = numbers::download(&told(p));
            let width = line.chars().count();
            // One row of the usual width: what is wider would not be drawn over.
            let line: String = line.chars().take(79).collect();
            let _ = write!(std::io::stderr(), "\r{line:0$}", self.drawn.min(79));
            self.drawn = width.min(79);
        } else if tenth > self.tenth {
            notice(&numbers::download(&told(p)));
        }
        self.tenth = tenth;
    }

    fn notice(&mut self, text: &str) {
        self.clear();
        notice(text);
    }
}

/// As the screens tell it.
fn told(p: &Progress) -> Download {
    Download {
        file: p.file.clone(),
        file_done_bytes: p.file_done,
        file_bytes: p.file_bytes,
        done_bytes: p.done,
        total_bytes: p.bytes,
        bytes_per_s: p.bytes_per_s,
        left_s: p.left_s(),
    }
}

/// What will be downloaded, and whether this machine has room for it.
fn plan_lines(plan: &Plan, device: Device) -> Vec<String> {
    let Plan { id, commit, n_files, .. } = plan;
    let commit: String = commit.chars().take(8).collect();
    let license = plan.license.as_deref().unwrap_or("not named");
    let here = match (plan.todo_bytes, plan.bytes - plan.todo_bytes) {
        (0, _) => ", all here".to_owned(),
        (_, 0) => String::new(),
        (todo, _) => format!(", {} of it still to come", bytes(todo)),
    };
    let disk = plan.free_bytes.map(|free| format!("; the disk has {} free", bytes(free))).unwrap_or_default();
    let size = format!("{id} at {commit}: {n_files} files, {}{here}; licence {license}{disk}", bytes(plan.bytes));
    [Some(size), room(plan.weight_bytes, device)].into_iter().flatten().collect()
}

/// Where a model would run, and the free bytes there.
pub(super) fn free(device: Device) -> Option<(&'static str, u64)> {
    Some(match device {
        Device::Cuda(index) => ("the GPU", cuda::free_bytes(index.unwrap_or(0))?),
        Device::Auto if cuda::usable(0).is_ok() => ("the GPU", cuda::free_bytes(0)?),
        _ => ("this machine", memory("MemAvailable:")?),
    })
}

/// Whether weights of so many bytes fit where they would run; nothing where that is not known.
pub fn room(weight_bytes: u64, device: Device) -> Option<String> {
    let (place, free) = free(device)?;
    let said = if weight_bytes < free { "fit" } else { "will NOT fit" };
    Some(format!("its weights ({}) {said} the memory of {place} ({} free)", bytes(weight_bytes), bytes(free)))
}
