//! Downloads for the command line and the chat: shows the plan and the progress, and stops on
//! Ctrl+C. [`crate::checkpoint::hub`] does the download.

use super::devices::{self, Stored};
use super::interrupts::Interrupts;
use super::naming;
use super::output::{self, Interrupted, StatusLine, notice, wrong_use};
use super::quantized;
use crate::checkpoint;
use crate::checkpoint::adapter;
use crate::checkpoint::eagle;
use crate::checkpoint::known::{self, Kind};
use crate::checkpoint::pull::{Downloader, Plan};
use crate::config::{Adapter, Device, Settings};
use crate::engine::Loading;
use crate::hub::cache::{Cached, Extent};
use crate::hub::{Hub, HubError, HubModel, ModelRef, Observer, Progress};
use crate::protocol::{Download, DraftSource, Event};
use crate::ui::numbers;
use crate::ui::text::{bytes, plural};
use anyhow::{Context, Result};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A hub model whose files are not all in the cache.
pub struct Missing {
    hub: Hub,
    model: HubModel,
    /// Whether the files in the cache suffice to open it.
    usable: bool,
}

/// Returns what has to be downloaded before this model can be opened; `None` for a model that is on
/// this machine. A cached model is used as it is: only `models pull` checks for updates. Quantized
/// weights replace an original that is gone.
pub fn missing(name: &str) -> Result<Option<Missing>> {
    let ModelRef::Hub(model) = naming::parse(name)? else { return Ok(None) };
    let hub = Hub::from_env()?;
    let extent = hub.repo(&model.id).find(&model)?.map_or(Extent::Part, |cached| cached.extent);
    let instead = || extent < Extent::Weights && !quantized::of(name).is_empty();
    let needed = extent < Extent::Whole && !(hub.offline && extent == Extent::Weights) && !instead();
    Ok(needed.then_some(Missing { hub, model, usable: extent == Extent::Weights }))
}

/// The predictor of `--adapter` and the head of `--draft`, if they are hub ids and missing from the
/// cache.
fn missing_beside(settings: &Settings) -> Result<Vec<Missing>> {
    let adapter = if let Adapter::File(path) = &settings.adapter { Some(path) } else { None };
    let head = if let DraftSource::Head(path) = &settings.draft { Some(path) } else { None };
    let mut all = Vec::new();
    for model in adapter.into_iter().chain(head).filter_map(|path| known::hub_model(path)) {
        let hub = Hub::from_env()?;
        let is_here = hub.repo(&model.id).find(&model)?.is_some_and(|cached| cached.extent >= Extent::Weights);
        if !is_here {
            all.push(Missing { hub, model, usable: false });
        }
    }
    Ok(all)
}

/// Downloads the model of the settings, its predictor and its head if they are missing, with
/// progress on stderr.
pub fn ensure(settings: &Settings) -> Result<()> {
    for missing in missing_beside(settings).map_err(output::as_wrong_use)? {
        pull(missing, settings.device)?;
    }
    let Some(missing) = missing(&settings.model).map_err(output::as_wrong_use)? else { return Ok(()) };
    let usable = missing.usable;
    match pull(missing, settings.device) {
        Err(error) if usable && !error.is::<Interrupted>() => {
            notice(&format!("{error:#}; using the copy in the cache"));
            Ok(())
        }
        done => done.map(|_| ()),
    }
}

/// `models pull`: downloads a model and the files published for it, if they are missing or newer on
/// the hub and the settings do not name others. Returns the folders.
pub fn newest(model: &str, settings: &Settings) -> Result<(PathBuf, Vec<(Kind, PathBuf)>)> {
    let folder = newest_of(model, settings.device)?;
    // A predictor or a head itself has none.
    let name = model.split('@').next().unwrap_or(model);
    let published = checkpoint::summary(&ModelRef::Folder(folder.clone()), name);
    let wanted = |kind| match kind {
        Kind::Predictor => settings.adapter == Adapter::Auto,
        Kind::DraftHead => settings.draft == DraftSource::Auto,
    };
    let published = published.map_or(Vec::new(), |summary| summary.published);
    let published = published.into_iter().filter(|published| wanted(published.kind));
    let folders = published.map(|published| Ok((published.kind, newest_of(&published.id, settings.device)?)));
    Ok((folder, folders.collect::<Result<_>>()?))
}

/// Downloads missing or outdated files of one repository, and returns the folder or the GGUF file.
fn newest_of(name: &str, device: Device) -> Result<PathBuf> {
    let ModelRef::Hub(model) = naming::parse(name).map_err(output::as_wrong_use)? else {
        return Err(wrong_use(format!("{name} is not a hub id (ORG/NAME), so there is nothing to download")));
    };
    let hub = Hub::from_env().map_err(output::as_wrong_use)?;
    let cached = hub.repo(&model.id).find(&model).ok().flatten();
    let cached = cached.filter(is_whole);
    if let (Some(cached), true) = (&cached, hub.offline) {
        notice(&format!("HF_HUB_OFFLINE is set: {} is in the cache and was not checked for updates", model.name()));
        return Ok(cached.path.clone());
    }
    pull(Missing { hub, model, usable: false }, device).map_err(|error| match error.downcast_ref() {
        Some(HubError::Failed(why)) if cached.is_some() => {
            let why = why.replace("is not downloaded", "was not checked for updates");
            HubError::Failed(format!("{why}; the copy in the cache can be used")).into()
        }
        _ => error,
    })
}

/// Whether all is there that the repository is for: a predictor or a head has no tokenizer.
fn is_whole(cached: &Cached) -> bool {
    cached.extent == Extent::Whole
        || cached.extent == Extent::Weights && (adapter::is_source_at(&cached.path) || eagle::is_at(&cached.path))
}

/// Downloads on its own thread, while this one waits for Ctrl+C.
fn pull(missing: Missing, device: Device) -> Result<PathBuf> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut interrupts = runtime.block_on(async { Interrupts::new() }).context("cannot listen for Ctrl+C")?;
    let (send, done) = tokio::sync::oneshot::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let mut bar = Bar {
        device,
        stop: stop.clone(),
        terminal: std::io::stderr().is_terminal(),
        line: StatusLine::default(),
        tenth: 0,
    };
    let work = move || {
        let Missing { hub, model, .. } = missing;
        let result = hub.pull(&model, &mut bar);
        bar.clear();
        let _ = send.send(result);
    };
    std::thread::Builder::new().name("download".into()).spawn(work)?;
    runtime.block_on(async {
        tokio::select! {
            result = done => result?.map_err(with_exit_code),
            () = interrupts.next() => {
                stop.store(true, Ordering::Relaxed);
                if std::io::stderr().is_terminal() {
                    eprintln!();
                }
                Err(with_exit_code(HubError::Stopped))
            }
        }
    })
}

/// The error with its exit code: 2 if another try would fail in the same way, 130 if it was
/// stopped, else 1.
pub fn with_exit_code(error: HubError) -> anyhow::Error {
    match error {
        HubError::Wrong(why) => wrong_use(why),
        HubError::Stopped => anyhow::Error::from(Interrupted).context("the next download continues from here"),
        failed => failed.into(),
    }
}

/// Downloads for the chat, on the engine's thread: reports by events, and stops when the chat does
/// not wait any more.
pub fn for_chat(settings: &Settings, loading: &Loading) -> Result<()> {
    let mut observer = Events { device: settings.device, loading };
    for Missing { hub, model, .. } in missing_beside(settings)? {
        hub.pull(&model, &mut observer)?;
    }
    let Some(missing) = missing(&settings.model)? else { return Ok(()) };
    match missing.hub.pull(&missing.model, &mut observer) {
        Err(error) if missing.usable && loading.is_wanted() => {
            observer.notice(&format!("{error}; using the copy in the cache"));
            Ok(())
        }
        done => {
            predictor_of(settings, &missing, done?, &mut observer);
            Ok(())
        }
    }
}

/// Downloads the predictor that is published for a model which was just downloaded. The model works
/// without it.
fn predictor_of(settings: &Settings, downloaded: &Missing, path: PathBuf, observer: &mut Events) {
    let name = downloaded.model.name();
    let summary = checkpoint::summary(&ModelRef::Folder(path), &name);
    let published = summary.map_or(Vec::new(), |summary| summary.published);
    let predictor = published.iter().find(|published| published.kind == Kind::Predictor);
    let predictor = predictor.filter(|_| settings.adapter == Adapter::Auto && !downloaded.usable);
    let Some(Ok(ModelRef::Hub(model))) = predictor.map(|published| ModelRef::parse(&published.id)) else { return };
    if let Err(error) = downloaded.hub.pull(&model, observer) {
        observer.notice(&format!("{error}; {name} keeps every token without it"));
    }
}

/// Reports a download as events of the engine.
struct Events<'a> {
    device: Device,
    loading: &'a Loading,
}

impl Downloader for Events<'_> {
    fn plan(&mut self, plan: &Plan) {
        plan_lines(plan, self.device).into_iter().for_each(|line| self.notice(&line));
    }
}

impl Observer for Events<'_> {
    fn stopped(&self) -> bool {
        !self.loading.is_wanted()
    }

    fn progress(&mut self, p: &Progress) {
        self.loading.event(Event::Downloading(snapshot(p)));
    }

    fn notice(&mut self, text: &str) {
        self.loading.event(Event::Notice(text.to_owned()));
    }
}

/// Reports a download on stderr: by one line that is redrawn on a terminal, else by one line per
/// tenth.
struct Bar {
    device: Device,
    stop: Arc<AtomicBool>,
    terminal: bool,
    line: StatusLine,
    tenth: u64,
}

impl Bar {
    fn clear(&mut self) {
        if !self.stopped() {
            self.line.clear();
        }
    }
}

impl Downloader for Bar {
    fn plan(&mut self, plan: &Plan) {
        plan_lines(plan, self.device).into_iter().for_each(|line| self.notice(&line));
    }
}

impl Observer for Bar {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn progress(&mut self, p: &Progress) {
        let tenth = p.done * 10 / p.bytes.max(1);
        if self.terminal && !self.stopped() {
            self.line.show(&numbers::download(&snapshot(p)));
        } else if tenth > self.tenth {
            notice(&numbers::download(&snapshot(p)));
        }
        self.tenth = tenth;
    }

    fn notice(&mut self, text: &str) {
        self.clear();
        notice(text);
    }
}

/// The progress as the protocol has it.
fn snapshot(p: &Progress) -> Download {
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

/// Lines that say what will be downloaded, and whether it fits into this machine's memory.
fn plan_lines(plan: &Plan, device: Device) -> Vec<String> {
    let Plan { name, commit, n_files, .. } = plan;
    let commit: String = commit.chars().take(8).collect();
    let files = plural(*n_files as u64, "file");
    let license = plan.license.as_deref().unwrap_or("not stated");
    let here = match (plan.todo_bytes, plan.bytes - plan.todo_bytes) {
        (0, _) => ", all downloaded".to_owned(),
        (_, 0) => String::new(),
        (todo, _) => format!(", {} left to download", bytes(todo)),
    };
    let disk = plan.free_bytes.map(|free| format!("; the disk has {} free", bytes(free))).unwrap_or_default();
    let size = format!("{name} at {commit}: {files}, {}{here}; licence {license}{disk}", bytes(plan.bytes));
    let stored = Stored::of(name.contains(':'));
    let fit = plan.config.as_ref().and_then(|config| devices::fit(Some(config), plan.weight_bytes, stored, device));
    [Some(size), fit].into_iter().flatten().collect()
}
