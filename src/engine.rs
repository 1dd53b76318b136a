//! The engine: one std thread that owns a backend and a model, and runs turns.
//!
//! Commands come in over a channel and are looked at between two steps, so a cancel costs at most
//! a step; events go out in order, snapshots latest-wins. Knows nothing of terminals or files.

mod context;
mod generate;
mod planner;
mod reply;
mod report;
mod runner;
mod scheduler;
pub mod score;
mod worker;

pub use runner::{NonFinite, Runner};
pub use scheduler::ChunkSizer;

use crate::backend::Backend;
use crate::checkpoint::Checkpoint;
use crate::codec::Codec;
use crate::protocol::{Command, EngineHandle, Event, Plan, Snapshot};
use anyhow::Result;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// What the user chose about the engine, resolved.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    pub codec: Codec,
    /// Most tokens of a conversation; absent: what the checkpoint was trained for, lowered to what
    /// surely fits. More than that is reached with YaRN where the family documents it.
    pub context: Option<usize>,
    /// Memory that is free before loading, where it is known.
    pub memory_bytes: Option<u64>,
    /// Most bytes of allocated KV pages.
    pub kv_limit: Option<u64>,
    /// Absent: on, unless the checkpoint asks to start without.
    pub eviction: Option<bool>,
    /// Most tokens of one step.
    pub max_step: usize,
}

impl EngineOptions {
    pub fn new(codec: Codec) -> Self {
        Self { codec, context: None, memory_bytes: None, kv_limit: None, eviction: None, max_step: 512 }
    }
}

/// Starts the engine's thread. Checkpoint and backend are made inside it, so that neither need
/// cross threads; a failure arrives as [`Event::LoadFailed`].
pub fn spawn<B: Backend>(
    open: impl FnOnce() -> Result<Checkpoint> + Send + 'static,
    backend: impl FnOnce() -> Result<B> + Send + 'static,
    options: EngineOptions,
) -> EngineHandle {
    let (commands, inbox) = std::sync::mpsc::channel();
    let (events, events_out) = mpsc::unbounded_channel();
    let (snapshots, snapshot) = watch::channel(None);
    let outlet = Outlet { events, snapshots };
    std::thread::Builder::new()
        .name("engine".into())
        .spawn(move || {
            let failed = outlet.events.clone();
            let run = AssertUnwindSafe(|| run(open, backend, options, inbox, outlet));
            if let Err(panic) = catch_unwind(run) {
                let _ = failed.send(Event::Failed(panic_text(&*panic)));
            }
        })
        .expect("the system starts a thread");
    EngineHandle { commands, events: events_out, snapshot }
}

fn run<B: Backend>(
    open: impl FnOnce() -> Result<Checkpoint>,
    backend: impl FnOnce() -> Result<B>,
    mut options: EngineOptions,
    inbox: std::sync::mpsc::Receiver<Command>,
    outlet: Outlet,
) {
    let loaded = (|| {
        let mut checkpoint = open()?;
        let plan = settle_context(&mut checkpoint, &mut options, |text| outlet.notice(text))?;
        let progress = |done_bytes, total_bytes| outlet.event(Event::Loading { done_bytes, total_bytes });
        let runner = Runner::new(backend()?, &checkpoint, &options, progress)?;
        worker::Worker::new(runner, &checkpoint, &options, plan, inbox, &outlet)
    })();
    match loaded {
        Ok(mut worker) => worker.run(),
        Err(error) => outlet.event(Event::LoadFailed(format!("{error:#}"))),
    }
}

/// Settles the context: extends RoPE where more is asked for than the model was trained on, and
/// lowers what nobody asked for to what surely fits. `notice` hears what a person should know.
pub fn settle_context(
    checkpoint: &mut Checkpoint,
    options: &mut EngineOptions,
    notice: impl Fn(String),
) -> Result<Plan> {
    let native = checkpoint.config.context;
    let wanted = options.context.unwrap_or(native);
    if wanted > native {
        checkpoint.config.extend_yarn(wanted)?;
    }
    // A limit on the pages is the user's own: the context is not lowered for it.
    let certain = planner::plan(checkpoint, options.codec, wanted, None, options.memory_bytes).certain_context;
    if certain < wanted && options.context.is_some() {
        notice(format!("only {certain} of {wanted} tokens of context surely fit in memory"));
    } else if certain < wanted {
        notice(format!("the context is {certain} tokens, not {wanted}: that much surely fits; --ctx-size overrides"));
        options.context = Some(certain.max(1));
    }
    let context = options.context.unwrap_or(wanted);
    Ok(planner::plan(checkpoint, options.codec, context, options.kv_limit, options.memory_bytes))
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string()).or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the engine stopped: {}", text.unwrap_or_else(|| "a panic without a message".into()))
}

/// Where the engine speaks to. Nobody listening is no error: the commands' end tells.
struct Outlet {
    events: mpsc::UnboundedSender<Event>,
    snapshots: watch::Sender<Option<Arc<Snapshot>>>,
}

impl Outlet {
    fn event(&self, event: Event) {
        let _ = self.events.send(event);
    }

    fn notice(&self, text: impl Into<String>) {
        self.event(Event::Notice(text.into()));
    }

    fn snapshot(&self, snapshot: Snapshot) {
        self.snapshots.send_replace(Some(Arc::new(snapshot)));
    }
}
