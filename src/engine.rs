//! The engine: one thread that owns a backend and a model and serves conversations.
//!
//! | type | owns |
//! | --- | --- |
//! | `Worker` | the loop: the model, the conversations, the scheduler |
//! | `Conversation` | a chain, the requests that wait or are served |
//! | `Snapshots` | states that conversations can go back to: forks, the cheapest given up first |
//! | `Chain` | one sequence, what is still to be fed to it, the answer that is generated |
//! | `Probe` | what works beside the answers, on a sequence of its own: recall, answers aside, the dial's trial |
//! | `Context` | the token log and the cache sequence that holds it |
//! | `Scheduler` | ids of the chains that wait and run; chooses each step |
//! | `Runner` | model, workspace and cache: runs steps |
//!
//! Requests are received between two steps, so a cancel costs at most a step. Events are lossless
//! and ordered, snapshots latest-wins. The engine does not know terminals or files.

mod chain;
mod context;
mod conversation;
mod dials;
mod disk;
mod draft;
mod head;
mod loaded;
mod pins;
mod planner;
mod presence;
mod prompt;
mod repetition;
mod replay;
mod reply;
mod report;
mod room;
mod runner;
mod scheduler;
mod snapshots;
mod steer;
mod think;
mod threads;
mod weights;
mod worker;

pub use dials::measure_dials;
pub use draft::{Draft, Drafter, Drafts, Lookup};
pub use head::DraftRequest;
pub use loaded::{default_sampling, template_spec, weights_info};
pub use planner::{CHAT_LOGITS, dense_context, host_bytes, state_bytes};
pub use runner::{Decode, NonFinite, Runner, StepError, Verify, workspace_bytes};
pub use think::{ThinkTags, split as split_reply};
pub use threads::join_all;
pub use weights::{Fit, WeightOptions, prepare};

use crate::backend::{Backend, DeviceLost, KernelNeeds};
use crate::checkpoint::{Checkpoint, ModelConfig};
use crate::codec::Codec;
use crate::policy::PolicyRequest;
use crate::protocol::{Dial, EngineHandle, EngineMessage, Event, MAX_CONTEXT, Outlet, Plan, WhenFull};
use crate::quantize::convert::Report;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use worker::Worker;

/// Sequences; more are a user's choice of chains.
const USUAL_SEQUENCES: usize = 16;

/// Compiling kernels is reported once it has taken this long.
const NOTICEABLE: Duration = Duration::from_millis(500);

/// Settings of an engine, resolved.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    pub codec: Codec,
    /// Codecs to try, in order, if the wanted context is not expected to fit with `codec`.
    pub smaller_codecs: &'static [Codec],
    /// Maximum tokens of a conversation. `None`: the length that the checkpoint was trained for,
    /// lowered to what fits, either in the worst case or with a margin at the ratio at which a DMS
    /// model evicts. Longer contexts use YaRN, for families that document it.
    pub context: Option<usize>,
    /// Memory that is free before loading; `None` if unknown.
    pub memory_bytes: Option<u64>,
    /// Memory needed beside weights and pages. Set by [`resolve_context`].
    pub workspace_bytes: u64,
    /// Maximum bytes of allocated KV pages.
    pub kv_limit: Option<u64>,
    /// Whether conversations start with eviction. `None`: as the checkpoint asks.
    pub eviction: Option<bool>,
    /// Compression ratio that conversations begin with; `None`: as the model was trained.
    pub dial_ratio: Option<f32>,
    /// Folder of the files that record what models keep at each setting of the dial; `None`: no
    /// file is read or written.
    pub dial_folder: Option<PathBuf>,
    pub when_full: WhenFull,
    /// Which slots live; by default the model's own policy.
    pub policy: PolicyRequest,
    /// How the weights are stored.
    pub weights: WeightOptions,
    /// Maximum tokens of one step. `None`: chosen for the backend and the memory by
    /// [`resolve_context`].
    pub max_step: Option<usize>,
    /// Rows of logits that the workspace has room for, at least one for each sequence.
    pub max_logits: usize,
    pub drafts: Drafts,
    /// Number of cache sequences. A conversation takes up to four: itself, two snapshots of its
    /// last turn and a rebuild.
    pub max_seqs: usize,
    /// Maximum snapshots of earlier turns that a conversation keeps, each in its own sequence, and
    /// the maximum bytes of pages that only they hold.
    pub max_older: usize,
    pub checkpoint_bytes: u64,
    /// How the model is named in sessions; reported in `ModelInfo`.
    pub reference: Option<crate::protocol::ModelReference>,
}

impl EngineOptions {
    pub fn new(codec: Codec) -> Self {
        Self { codec, max_logits: planner::MAX_LOGITS, max_seqs: 4, ..Self::default() }
    }

    /// Determines the kernels that a checkpoint needs under these options. Fails for a policy that
    /// it was not trained for.
    fn kernel_needs(&self, checkpoint: &Checkpoint) -> Result<KernelNeeds> {
        let (config, weights) = (&checkpoint.config, checkpoint.weights);
        Ok(KernelNeeds {
            head_dim: config.head_dim,
            codec: self.codec,
            weights,
            policy: config.policy(self.policy)?,
            delta_net: config.spec.delta_net.is_some(),
            experts: config.spec.experts.is_some(),
            drafts: self.drafts.rows > 0,
        })
    }
}

/// Starts the engine's thread and returns the handle of its first conversation. `load` runs on that
/// thread, because neither checkpoint nor backend can cross threads: it opens a model and calls
/// [`Loading::serve`]. Its error arrives as [`Event::LoadFailed`]. [`join_all`] waits until
/// everything that `load` made is dropped.
pub fn spawn_with(load: impl FnOnce(Loading) -> Result<()> + Send + 'static) -> Result<EngineHandle> {
    let (handle, inbox, outlet) = EngineHandle::new();
    let loading = Loading { inbox, outlet };
    let work = move || {
        let events = loading.outlet.sender(None);
        match catch_unwind(AssertUnwindSafe(|| load(loading))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => events.event(Event::LoadFailed(format!("{error:#}"))),
            Err(panic) => events.event(Event::Failed(panic_text(&*panic))),
        }
    };
    threads::spawn(work).context("the engine's thread cannot be started")?;
    Ok(handle)
}

/// Like [`spawn_with`], for a model that needs no events before it is opened.
pub fn spawn<B: Backend>(
    open: impl FnOnce() -> Result<Checkpoint> + Send + 'static,
    backend: impl FnOnce() -> Result<B> + Send + 'static,
    options: EngineOptions,
) -> Result<EngineHandle> {
    spawn_with(move |loading| loading.serve(open()?, backend, options))
}

/// An engine whose model is not loaded yet.
pub struct Loading {
    inbox: std::sync::mpsc::Receiver<EngineMessage>,
    outlet: Outlet,
}

impl Loading {
    /// Sends an event to the first conversation.
    pub fn event(&self, event: Event) {
        self.outlet.event(event);
    }

    /// Whether the first conversation still waits for the model.
    pub fn is_wanted(&self) -> bool {
        !self.outlet.is_closed()
    }

    /// Returns a progress callback for backends that compile kernels. It takes the kernels done and
    /// in total, and returns whether to continue.
    pub fn on_kernels(&self) -> impl FnMut(usize, usize) -> bool {
        let mut began = None;
        move |done, total| {
            let elapsed = began.get_or_insert_with(Instant::now).elapsed();
            if elapsed >= NOTICEABLE {
                self.event(Event::CompilingKernels { done, total, seconds: elapsed.as_secs() });
            }
            self.is_wanted()
        }
    }

    /// Loads the checkpoint onto a backend and serves requests until the last conversation is
    /// closed. An error means that loading failed.
    pub fn serve<B: Backend>(
        self,
        checkpoint: Checkpoint,
        backend: impl FnOnce() -> Result<B>,
        mut options: EngineOptions,
    ) -> Result<()> {
        let b = backend()?;
        let outlet = &self.outlet;
        let mut report = |report| {
            match report {
                Report::Measuring { done, total } => outlet.event(Event::Quantizing { measuring: true, done, total }),
                Report::Layers { done, total } => outlet.event(Event::Quantizing { measuring: false, done, total }),
                Report::Waiting => {}
                Report::Notice(text) => outlet.notice(text),
            }
            !outlet.is_closed()
        };
        let (checkpoint, plan) = prepare(&b, checkpoint, &mut options, &mut report)?;
        b.load_kernels(&options.kernel_needs(&checkpoint)?, &mut self.on_kernels())?;
        let progress = |done_bytes, total_bytes| {
            outlet.event(Event::Loading { done_bytes, total_bytes });
            !outlet.is_closed()
        };
        let runner = Runner::new(b, &checkpoint, &options, progress)?;
        let slow = runner.cache.geometry().policy.slow_prefill();
        let (found, notices) =
            (checkpoint.found().collect::<Vec<_>>(), checkpoint.warnings().chain(slow).collect::<Vec<_>>());
        let fixed_bytes = checkpoint.weight_bytes + options.workspace_bytes;
        let mut model = loaded::Loaded::new(runner, &checkpoint, &options, plan)?;
        drop(checkpoint);
        let dial = options.dial_ratio.map(|ratio| model.first_dial(Dial::Ratio(ratio)));
        model.dial = dial.as_ref().map_or(0.0, |set| set.as_ref().map_or(0.0, |(dial, ..)| *dial));
        let Self { inbox, outlet } = self;
        let mut worker = Worker::new(model, fixed_bytes, options.memory_bytes, inbox);
        let events = outlet.sender(None);
        worker.open(outlet);
        found.into_iter().for_each(|text| events.event(Event::Info(text)));
        notices.into_iter().for_each(|text| events.notice(text));
        match dial {
            Some(Ok((_, ratio, trained))) => events.event(Event::DialSet { ratio, trained, at_token: 0 }),
            Some(Err(why)) => events.notice(format!("keep_ratio does nothing: {why}")),
            None => {}
        }
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| worker.run())) {
            worker.broadcast(&Event::Failed(panic_text(&*panic)));
        }
        Ok(())
    }
}

/// Chooses the context length, and the codec and the tokens of a step if they are open. Extends
/// RoPE if the requested context is longer than the model was trained on, and lowers a default to
/// what fits. `notice` receives messages for the user. Fails if the model or the requested context
/// does not fit in memory, before anything of their size is allocated. The error names an adapter
/// that was found by itself if the rest fits without it.
pub fn resolve_context<B: Backend>(
    b: &B,
    checkpoint: &mut Checkpoint,
    options: &mut EngineOptions,
    notice: impl FnMut(String),
) -> Result<Plan> {
    let mut before = options.clone();
    resolve(b, checkpoint, options, notice).map_err(|why| {
        let Some(source) = checkpoint.adapter.as_ref().filter(|source| source.found) else { return why };
        let label = source.label.clone();
        checkpoint.config.dms = None;
        match resolve(b, checkpoint, &mut before, |_| ()) {
            Ok(_) => {
                anyhow!("{why:#}; it fits without {label}, which was found by itself: --adapter none leaves it out")
            }
            Err(_) => why,
        }
    })
}

fn resolve<B: Backend>(
    b: &B,
    checkpoint: &mut Checkpoint,
    options: &mut EngineOptions,
    mut notice: impl FnMut(String),
) -> Result<Plan> {
    let (native, asked) = (checkpoint.config.context, options.context);
    let wanted = asked.unwrap_or(checkpoint.config.usual_context());
    ensure!(wanted <= MAX_CONTEXT, "a context of {wanted} tokens is out of range, expected 1 to {MAX_CONTEXT}");
    if wanted > native {
        checkpoint.config.extend_yarn(wanted)?;
    }
    checkpoint.config.rope.set_context(wanted);
    checkpoint.config.shorten_windows(wanted);
    if let (None, Some(factors)) = (asked, checkpoint.config.rope_factors()) {
        notice(format!("the context is {wanted} tokens: {factors}; --ctx-size N takes a longer one"));
    }
    let goal = if asked.is_some() { wanted } else { wanted.min(planner::USUAL_CONTEXT) };
    let smaller = choose_codec(b, checkpoint, options, goal);
    let open_step = options.max_step.is_none();
    let context = shorter_by_tables(checkpoint, options, wanted, asked.is_some())?;
    let on_host = set_context(b, checkpoint, options, context, open_step);
    // A limit on the pages is the user's choice: the context is not lowered for it.
    let plan = planner::plan(checkpoint, options, context, None);
    let (certain, expected) = (plan.certain_context, plan.expected_context);
    let default = planner::default_context(checkpoint, options, context);
    // Mapped weights may exceed the host's memory if the user asks for it.
    let runs_slowly = on_host && options.memory_bytes.is_none_or(|m| options.workspace_bytes < m);
    if certain == 0 && !(runs_slowly && asked.is_some()) {
        let hint = if runs_slowly { "; --ctx-size N runs it anyway, slowly" } else { "" };
        let fewer = fewer_sequences(&checkpoint.config, options, context);
        bail!("{}{hint}{fewer}", does_not_fit(plan.weight_bytes, plan.workspace_bytes, options));
    }
    smaller.into_iter().for_each(&mut notice);
    let more = if expected > certain { format!(" (about {expected} with eviction)") } else { String::new() };
    if certain < wanted && asked.is_some() {
        notice(format!("only {certain} of {wanted} tokens of context fit in memory in the worst case{more}"));
    } else if default < wanted && asked.is_none() {
        let why = if default > certain {
            format!("that many are expected to fit with eviction, {certain} in the worst case")
        } else {
            format!("that is what fits in the worst case{more}")
        };
        notice(format!("the context is {default} tokens, not {wanted}: {why}; --ctx-size overrides it"));
        // Tables for a shorter context are smaller.
        set_context(b, checkpoint, options, default, open_step);
    }
    let context = options.context.unwrap_or(wanted);
    Ok(planner::plan(checkpoint, options, context, options.kv_limit))
}

/// Sets the context, the tokens of a step if they are open, and the bytes of workspace for both.
/// Returns whether the workspace is in host memory.
fn set_context<B: Backend>(
    b: &B,
    checkpoint: &Checkpoint,
    options: &mut EngineOptions,
    context: usize,
    open_step: bool,
) -> bool {
    options.context = Some(context);
    if open_step {
        options.max_step = Some(planner::step_tokens(checkpoint, options, b.about().step_tokens));
    }
    let (bytes, on_host) = weights::beside(b, checkpoint, options, context);
    options.workspace_bytes = bytes;
    on_host
}

/// Sets the first codec with which `goal` tokens are expected to fit, or the last one. Returns a
/// message for the user if that is not the default.
fn choose_codec<B: Backend>(
    b: &B,
    checkpoint: &Checkpoint,
    options: &mut EngineOptions,
    goal: usize,
) -> Option<String> {
    let mut refused = Vec::new();
    for &codec in options.smaller_codecs {
        let mut trial = options.clone();
        set_context(b, checkpoint, &mut trial, goal, options.max_step.is_none());
        let fits = planner::default_context(checkpoint, &trial, goal);
        if fits >= goal {
            break;
        }
        refused.push(format!("{fits} as {}", options.codec.name()));
        options.codec = codec;
    }
    (!refused.is_empty()).then(|| {
        format!(
            "keys and values are stored as {}: of {goal} tokens of context {} would fit; --kv overrides it",
            options.codec.name(),
            refused.join(" and ")
        )
    })
}

/// Returns the context to plan with: `wanted`, or less if its page tables alone would take a large
/// share of memory. Fails if the user `asked` for it and they do not fit.
fn shorter_by_tables(checkpoint: &Checkpoint, options: &EngineOptions, wanted: usize, asked: bool) -> Result<usize> {
    let c = &checkpoint.config;
    let (tables, rest) = (planner::table_bytes(c, options, wanted), planner::host_bytes(c, options, 0));
    let Some(memory) = options.memory_bytes.filter(|m| tables > m / 4) else { return Ok(wanted) };
    if asked {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        ensure!(
            tables + rest < memory,
            "a context of {wanted} tokens needs page tables of {:.0} MB, {:.0} MB are free; give a smaller --ctx-size{}",
            mb(tables),
            mb(memory),
            fewer_sequences(c, options, wanted)
        );
        return Ok(wanted);
    }
    let fits = planner::longest_context(checkpoint, options, rest).map_or(wanted, |n| n.min(wanted));
    if fits == 0 {
        bail!("{}{}", does_not_fit(checkpoint.weight_bytes, rest, options), fewer_sequences(c, options, wanted));
    }
    Ok(fits)
}

/// The end of a message where many sequences are what does not fit.
fn fewer_sequences(c: &ModelConfig, options: &EngineOptions, context: usize) -> String {
    let fit = planner::sequences_that_fit(c, options, context).filter(|_| options.max_seqs > USUAL_SEQUENCES);
    fit.map_or(String::new(), |fit| {
        format!(", or fewer chains (--width, --batch): about {fit} of {} sequences fit", options.max_seqs)
    })
}

fn does_not_fit(weights: u64, beside: u64, options: &EngineOptions) -> String {
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let free = mb(options.memory_bytes.unwrap_or(0));
    format!(
        "the model does not fit: it needs {:.0} MB of weights and {:.0} MB of workspace, {free:.0} MB are free",
        mb(weights),
        mb(beside)
    )
}

/// Runs `work` and turns the loss of its device into an error.
pub fn catch_device_lost<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| match panic.downcast::<DeviceLost>() {
        Ok(lost) => Err((*lost).into()),
        Err(panic) => resume_unwind(panic),
    })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(lost) = panic.downcast_ref::<DeviceLost>() {
        return lost.to_string();
    }
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string()).or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the engine stopped: {}", text.unwrap_or_else(|| "a panic without a message".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_reported_only_where_they_take_long() {
        let (mut handle, inbox, outlet) = EngineHandle::new();
        let loading = Loading { inbox, outlet };
        let mut on_kernels = loading.on_kernels();
        assert!(on_kernels(0, 2) && handle.events.try_recv().is_err());
        std::thread::sleep(NOTICEABLE);
        assert!(on_kernels(1, 2));
        assert!(matches!(handle.events.try_recv().unwrap().event, Event::CompilingKernels { done: 1, total: 2, .. }));
        drop(handle);
        assert!(!on_kernels(2, 2), "nobody waits for the model any more");
    }

    #[test]
    fn a_width_that_no_memory_holds_is_refused_with_what_fits() {
        let checkpoint = Checkpoint::random("demo").unwrap();
        let options =
            |max_seqs| EngineOptions { memory_bytes: Some(1 << 30), max_seqs, ..EngineOptions::new(Codec::Bf16) };
        let refused =
            |max_seqs| format!("{:#}", shorter_by_tables(&checkpoint, &options(max_seqs), 1 << 20, true).unwrap_err());
        let text = refused(1000);
        let fit: usize =
            text.split("about ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).expect(&text);
        assert!(text.contains("--width") && text.contains("of 1000 sequences"), "{text}");
        assert!(shorter_by_tables(&checkpoint, &options(fit), 1 << 20, true).is_ok() && fit > 16);
        refused(fit + 1);
    }
}
