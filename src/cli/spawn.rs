//! Opens the checkpoint that the settings name and starts an engine, or other work, on its device.

use super::calibrate;
use super::devices::{self, DeviceJob, DeviceKind, DeviceOptions, Target};
use super::download;
use super::interrupts;
use super::naming;
use super::output::{as_wrong_use, notice};
use super::quantized;
use super::quantizing::Quantizing;
use super::reference;
use crate::backend::Measure;
use crate::checkpoint::eagle;
use crate::checkpoint::{AdapterChoice, Checkpoint, ModelConfig, Tuning};
use crate::codec::{Codec, DataFile};
use crate::config::{Adapter, Device, FarSize, Importance, Settings, Width};
use crate::engine::{self, Drafts, EngineOptions, FarOptions, Loading, Runner, WeightOptions};
use crate::hub::HubError;
use crate::policy::Far;
use crate::protocol::{DraftSource, EngineHandle, Event, MAX_AUTO_WIDTH, MAX_DRAFTS, WhenFull, bytes};
use crate::quant::Weights;
use crate::quantize::calibration::{Calibration, Given};
use crate::quantize::imatrix;
use crate::quantize::weight_cache::WeightCache;
use crate::regular_file;
use crate::remote::{self, Remote};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

/// Most earlier turns of a conversation that are kept as checkpoints.
const OLDER_TURNS: usize = 5;
/// Chains that a chat has sequences for unasked.
const USUAL_CHAINS: usize = 8;
/// Share of the free memory that states of sequences for earlier turns and chains may take.
const STATE_SHARE: u64 = 16;
/// Free memory of a GPU from which on tables of sequences do not matter.
const AMPLE_BYTES: u64 = 16 << 30;

/// Starts the engine's thread, which downloads the model if it is missing, opens it and loads it
/// onto the device. Progress arrives as events. `download_failed` is set if a download failed for a
/// reason outside the settings. `slots`: [`EngineOptions::slots`].
pub fn engine(settings: &Settings, slots: usize, download_failed: Arc<AtomicBool>) -> Result<EngineHandle> {
    if let Some(url) = &settings.server {
        return served(settings, url);
    }
    let settings = settings.clone();
    engine::spawn_with(move |loading| {
        // The probe for a GPU may take a while: it runs on the engine's thread.
        Target::new(&settings)?;
        download::for_chat(&settings, &loading).inspect_err(|error| {
            download_failed.store(matches!(error.downcast_ref(), Some(HubError::Failed(_))), Ordering::Relaxed);
        })?;
        let (mut checkpoint, target) = open_on_target(&settings, |text| loading.event(Event::Notice(text)))?;
        if settings.draft == DraftSource::Auto {
            checkpoint.find_draft_head()?;
        }
        let options = options(&settings, &checkpoint, target)?;
        let max_older = if settings.checkpoints > 0 { OLDER_TURNS } else { 0 };
        // Slots of a server share the beginnings of long prompts only without far rows.
        let unasked = far_unasked(&settings, &checkpoint, &options).filter(|_| slots == 0);
        if let Some(FarOptions { limit_bytes, .. }) = unasked {
            let most = bytes(limit_bytes);
            let text = format!(
                "what this model forgets is kept in at most {most} of host memory and found again; --far off drops it"
            );
            loading.event(Event::Notice(text));
        }
        let options = EngineOptions {
            far: far(&settings).or(unasked),
            reference: reference::of(&settings),
            max_logits: engine::CHAT_LOGITS,
            max_seqs: options.max_seqs * (1 + slots)
                + engine::shared_states(slots)
                + extra_rows(&settings, &checkpoint.config, target, options.memory_bytes, max_older),
            slots,
            max_older,
            checkpoint_bytes: settings.checkpoints,
            ..options
        };
        target.run(DeviceOptions::from(&settings), Serve { loading, checkpoint, options })
    })
}

/// Connects to a server, whose model answers instead of an engine of this process.
fn served(settings: &Settings, url: &str) -> Result<EngineHandle> {
    // One that no source names is the built-in model here, and there the server's first one.
    let model = settings.layer.model.is_some().then(|| settings.model.clone());
    let key = std::env::var(SERVER_KEY).ok().filter(|key| !key.is_empty());
    remote::spawn(Remote { url: url.to_owned(), model, key }).context("cannot start a thread")
}

/// Sequences beyond those that every conversation needs: for earlier turns or chains. Large states
/// may take only a small share of the memory, unless they are for requested chains: earlier turns
/// are then released sooner.
fn extra_rows(
    settings: &Settings,
    config: &ModelConfig,
    target: Target,
    free_bytes: Option<u64>,
    max_older: usize,
) -> usize {
    let chains = chain_rows(settings, target, free_bytes);
    let asked = if settings.width == Width::Chains(1) { 1 } else { chains };
    let state_bytes = engine::state_bytes(config);
    let most = match free_bytes {
        Some(free) if state_bytes > 0 => usize::try_from(free / STATE_SHARE / state_bytes).unwrap_or(usize::MAX),
        _ => usize::MAX,
    };
    max_older.max(chains).min(most.max(asked))
}

/// Sequences for chains. Their tables grow with the context, so a small GPU has them only on
/// request.
fn chain_rows(settings: &Settings, target: Target, free_bytes: Option<u64>) -> usize {
    let ample = target == Target::Cpu || free_bytes.is_some_and(|bytes| bytes >= AMPLE_BYTES);
    match settings.width {
        Width::Chains(1) if ample => USUAL_CHAINS,
        Width::Chains(1) => 0,
        Width::Chains(n) => n,
        Width::Auto => MAX_AUTO_WIDTH,
    }
}

/// The variable with the key of a server.
const SERVER_KEY: &str = "DMSCHAT_SERVER_KEY";
/// Longest file with a dictionary that is read.
const MAX_DICTIONARY_BYTES: u64 = 4 << 30;

/// Runs the engine's loop.
struct Serve {
    loading: Loading,
    checkpoint: Checkpoint,
    options: EngineOptions,
}

impl DeviceJob for Serve {
    type Output = ();

    fn run<D: DeviceKind>(self, device: &D) -> Result<()> {
        self.loading.serve(self.checkpoint, || device.open(), self.options)
    }
}

/// Work on a loaded model without the engine's thread, for any backend.
pub trait ModelJob {
    /// An exit code, or what else it makes.
    type Output;
    fn run<B: Measure>(self, runner: &mut Runner<B>, checkpoint: &Checkpoint) -> Result<Self::Output>;
}

/// Loads the model of the settings onto its device and runs `job`. A step has at most `max_step`
/// tokens.
pub fn with_model(settings: &Settings, max_step: usize, job: impl ModelJob<Output = u8>) -> Result<u8> {
    with_options(settings, |options, _| EngineOptions { max_step: Some(max_step), ..options }, job)
}

/// Like [`with_model`], with far pages where the settings have them.
pub fn with_far(settings: &Settings, max_step: usize, job: impl ModelJob<Output = u8>) -> Result<u8> {
    let far = far(settings);
    with_options(settings, |options, _| EngineOptions { max_step: Some(max_step), far, ..options }, job)
}

/// Like [`with_model`], with options that `adjust` derives from the options of the settings.
pub fn with_options<J: ModelJob>(
    settings: &Settings,
    adjust: impl FnOnce(EngineOptions, &ModelConfig) -> EngineOptions,
    job: J,
) -> Result<J::Output> {
    devices::check(settings)?;
    download::ensure(settings)?;
    interrupts::end_on_interrupt("interrupted")?;
    let (checkpoint, target) = open_or_say(settings).map_err(as_wrong_use)?;
    let options = adjust(options(settings, &checkpoint, target).map_err(as_wrong_use)?, &checkpoint.config);
    target.run(DeviceOptions::from(settings), OnRunner { checkpoint, options, job })
}

/// The checkpoint as it is loaded onto this device, with progress and notices on stderr.
pub fn prepared<B: Measure>(b: &B, checkpoint: Checkpoint, options: &mut EngineOptions) -> Result<Checkpoint> {
    let mut progress = Quantizing::default();
    let prepared = engine::prepare(b, checkpoint, options, &mut |report| progress.report(report));
    progress.clear();
    let (checkpoint, _) = prepared.map_err(as_wrong_use)?;
    checkpoint.notices().for_each(|text| notice(&text));
    Ok(checkpoint)
}

/// Loads a model and does a [`ModelJob`].
struct OnRunner<J> {
    checkpoint: Checkpoint,
    options: EngineOptions,
    job: J,
}

impl<J: ModelJob> DeviceJob for OnRunner<J> {
    type Output = J::Output;

    fn run<D: DeviceKind>(self, device: &D) -> Result<J::Output> {
        let Self { checkpoint, mut options, job } = self;
        let b = device.open()?;
        let checkpoint = prepared(&b, checkpoint, &mut options)?;
        let mut runner = Runner::new(b, &checkpoint, &options, |_, _| true)?;
        // A command may load a model in several formats.
        static SLOW_PREFILL: Once = Once::new();
        if let Some(text) = runner.cache.geometry().policy.slow_prefill() {
            SLOW_PREFILL.call_once(|| notice(&text));
        }
        job.run(&mut runner, &checkpoint)
    }
}

/// The checkpoint that the settings name.
pub fn open(settings: &Settings) -> Result<Checkpoint> {
    let adapter = match &settings.adapter {
        Adapter::Auto => AdapterChoice::In(settings.dirs.adapters()),
        Adapter::None => AdapterChoice::None,
        Adapter::File(path) => AdapterChoice::File(path.clone()),
    };
    let mut checkpoint = match quantized::in_place_of(&settings.model, settings.weights, settings.device) {
        Some(cached) => quantized::cache()?.open(&cached, &adapter)?,
        None => Checkpoint::open(&naming::parse(&settings.model)?, &adapter)?,
    };
    checkpoint.tune(tuning(settings))?;
    match &settings.draft {
        DraftSource::Head(path) => checkpoint.set_draft_head(eagle::named(path, checkpoint.config.n_layers)?)?,
        DraftSource::Mtp => {
            let none =
                || format!("{} has no layer for multi-token prediction, which --draft mtp asks for", checkpoint.name);
            let head = checkpoint.own_head()?.with_context(none)?;
            checkpoint.set_draft_head(head)?;
        }
        DraftSource::Auto | DraftSource::Lookup | DraftSource::Off => {}
    }
    Ok(checkpoint)
}

/// Changes of the settings to the model's eviction rule.
pub fn tuning(settings: &Settings) -> Tuning {
    let threshold = settings.threshold.map(|x| x as f32);
    Tuning { threshold, window: settings.window, sinks: settings.sinks }
}

/// Opens the checkpoint and its device. `--device auto` falls back to the CPU if the GPU's kernels
/// do not support the model, and reports that to `notice`.
pub fn open_on_target(settings: &Settings, notice: impl FnOnce(String)) -> Result<(Checkpoint, Target)> {
    let checkpoint = open(settings)?;
    let target = Target::new(settings)?;
    match target.check_model(&checkpoint.config) {
        Ok(()) => Ok((checkpoint, target)),
        Err(why) if settings.device == Device::Auto => {
            notice(format!("the model runs on the CPU: {why}"));
            Ok((checkpoint, Target::Cpu))
        }
        Err(why) => bail!("{why}; use --device cpu"),
    }
}

/// Like [`open_on_target`], with the notice on stderr.
pub fn open_or_say(settings: &Settings) -> Result<(Checkpoint, Target)> {
    open_on_target(settings, |text| notice(&text))
}

/// Rows of steps that try drafts.
fn draft_rows(source: &DraftSource) -> usize {
    if *source == DraftSource::Off { 0 } else { 1 + MAX_DRAFTS }
}

/// The engine's options for these settings.
pub fn options(settings: &Settings, checkpoint: &Checkpoint, target: Target) -> Result<EngineOptions> {
    Ok(EngineOptions {
        context: settings.ctx_size,
        smaller_codecs: target.smaller_codecs(settings.kv),
        memory_bytes: target.free_bytes(),
        kv_limit: settings.kv_limit,
        eviction: settings.eviction,
        dial_ratio: settings.keep_ratio.map(|ratio| ratio as f32),
        dial_folder: Some(settings.dirs.dials()),
        when_full: settings.when_full.unwrap_or(match checkpoint.config.dms {
            Some(_) => WhenFull::Forget,
            None => WhenFull::Stop,
        }),
        weights: weight_options(settings, checkpoint)?,
        policy: settings.policy_request(),
        drafts: Drafts { rows: draft_rows(&settings.draft), ..Drafts::default() },
        codec_data: codec_data(settings, checkpoint, target.codec(settings.kv))?,
        ..EngineOptions::new(target.codec(settings.kv))
    })
}

/// How rows that leave the cache are kept, where that is asked for.
pub fn far(settings: &Settings) -> Option<FarOptions> {
    settings.far.bytes().map(|limit_bytes| FarOptions { rule: far_rule(settings), limit_bytes })
}

/// How rows that leave the cache are kept in a conversation, where nothing is said about them.
fn far_unasked(settings: &Settings, checkpoint: &Checkpoint, options: &EngineOptions) -> Option<FarOptions> {
    let free_on_host = Target::Cpu.free_bytes().filter(|_| settings.far == FarSize::Auto)?;
    let Checkpoint { config, weight_bytes, .. } = checkpoint;
    engine::usual_far(config, *weight_bytes, options, far_rule(settings), free_on_host)
}

fn far_rule(settings: &Settings) -> Far {
    Far { pages: settings.far_pages }
}

/// Reads the dictionary of a codec that needs one, and checks that it is the model's.
fn codec_data(settings: &Settings, checkpoint: &Checkpoint, codec: Codec) -> Result<Option<DataFile>> {
    if !codec.needs_data() {
        return Ok(None);
    }
    let path = settings.kv_dictionary.clone().unwrap_or_else(|| dictionary_path(settings, checkpoint));
    let bytes = regular_file::read(&path, MAX_DICTIONARY_BYTES).with_context(|| {
        format!(
            "--kv {codec} needs a dictionary of {}, made by dmslab dictionary, but {} cannot be read",
            checkpoint.name,
            path.display()
        )
    })?;
    let data = DataFile { name: path.display().to_string(), bytes: bytes.into() };
    let options = EngineOptions { codec_data: Some(data), ..EngineOptions::new(codec) };
    options.coder(&checkpoint.config)?;
    Ok(options.codec_data)
}

/// The file with the dictionary of a model, unless the settings name another.
pub fn dictionary_path(settings: &Settings, checkpoint: &Checkpoint) -> PathBuf {
    settings.dirs.dictionaries().join(format!("{}.safetensors", checkpoint.fingerprint))
}

/// The GPU of these settings.
fn gpu(settings: &Settings) -> Option<u32> {
    match Target::new(settings) {
        Ok(Target::Cuda(index)) => Some(index),
        Ok(Target::Cpu) | Err(_) => None,
    }
}

/// How the weights of a model are stored under these settings.
pub fn weight_options(settings: &Settings, checkpoint: &Checkpoint) -> Result<WeightOptions> {
    let may_quantize = settings.weights.asked().is_none_or(Weights::uses_importance) && !checkpoint.weights.is_packed();
    Ok(WeightOptions {
        choice: settings.weights,
        cache: settings.weight_cache.then(|| WeightCache::new(settings.dirs.weights())),
        calibration: match &settings.importance {
            Importance::File(path) => {
                let importance = imatrix::read(path, &checkpoint.config)?;
                Calibration::Given(Given { importance: importance.into(), name: path.display().to_string() })
            }
            Importance::Auto | Importance::Gptq if may_quantize => {
                let published = Calibration::published(checkpoint, calibrate::measure);
                let corrects = settings.importance == Importance::Gptq || calibrate::is_quickly_corrected(checkpoint);
                if corrects { published.corrected(calibrate::correct, gpu(settings)) } else { published }
            }
            Importance::Auto | Importance::Measured | Importance::Gptq => {
                Calibration::Measured(calibrate::measure, None)
            }
        },
    })
}
