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
//! | `Slots` | ids of the conversations that answer prompts without an owner; chooses one for each |
//! | `KeptSlots` | the files from which slots go on after a restart |
//! | `Runner` | model, workspace and cache: runs steps |
//!
//! Requests are received between two steps, so a cancel costs at most a step. Events are lossless
//! and ordered, snapshots latest-wins. The engine does not know terminals or files.

mod adjust;
mod chain;
mod channels;
mod constrain;
mod context;
mod conversation;
mod dials;
mod disk;
mod draft;
mod draws;
mod far;
mod far_load;
mod head;
mod kept_slots;
mod likely;
mod loaded;
mod options;
mod pins;
mod plan;
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
mod settle;
mod slots;
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
pub use options::{CHAT_LOGITS, EngineOptions, FarOptions, WeightOptions};
pub use plan::resolve_context;
pub use planner::{Estimate, USUAL_CONTEXT, estimate, host_bytes, state_bytes, usual_far};
pub use runner::{Decode, NonFinite, Runner, StepError, Verify, workspace_bytes};
pub use snapshots::shared_states;
pub use think::{ThinkTags, split as split_reply};
pub use threads::join_all;
pub use weights::{Fit, prepare};

use crate::backend::{Backend, DeviceLost};
use crate::checkpoint::Checkpoint;
use crate::protocol::{Dial, EngineHandle, EngineMessage, Event, Outlet};
use crate::quantize::convert::Report;
use anyhow::{Context, Result};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};
use worker::Worker;

/// Compiling kernels is reported once it has taken this long.
const NOTICEABLE: Duration = Duration::from_millis(500);

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
        b.load_kernels(&options.kernel_needs(&checkpoint, &b.about())?, &mut self.on_kernels())?;
        let progress = |done_bytes, total_bytes| {
            outlet.event(Event::Loading { done_bytes, total_bytes });
            !outlet.is_closed()
        };
        let runner = Runner::new(b, &checkpoint, &options, progress)?;
        let policy = runner.cache.geometry().policy;
        let (slow, no_far) = (policy.slow_prefill(), options.far.and_then(|_| policy.far_refusal()));
        let (found, notices) = (
            checkpoint.found().collect::<Vec<_>>(),
            checkpoint.warnings().chain(slow).chain(no_far).collect::<Vec<_>>(),
        );
        let mut model = loaded::Loaded::new(runner, &checkpoint, &options, plan)?;
        drop(checkpoint);
        let dial = options.dial_ratio.map(|ratio| model.first_dial(Dial::Ratio(ratio)));
        model.dial = dial.as_ref().map_or(0.0, |set| set.as_ref().map_or(0.0, |(dial, ..)| *dial));
        let Self { inbox, outlet } = self;
        let mut worker = Worker::new(model, &options, inbox);
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
}
