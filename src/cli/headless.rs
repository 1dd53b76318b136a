//! Answers without a screen: starts an engine, restores, asks, and hands text on as it comes.
//! What `-p` and `eval` share; writes nothing but notices to stderr.

use super::output::{self, Interrupted};
use super::spawn;
use crate::chat::session::Loaded;
use crate::chat::{Conversation, RenderOptions, render};
use crate::config::Settings;
use crate::protocol::{Command, EngineHandle, Event, GenerateRequest, ModelInfo, SamplingParams, TextKind, TurnReport};
use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};
use std::sync::Arc;

/// How one answer is drawn.
#[derive(Clone, Debug)]
pub struct Drawing {
    pub sampling: SamplingParams,
    pub seed: Option<u64>,
    pub max_tokens: Option<usize>,
}

/// An engine with a loaded model, and the runtime its events are awaited on.
pub struct Headless {
    runtime: tokio::runtime::Runtime,
    ends: Ends,
    pub info: Arc<ModelInfo>,
    pub opts: RenderOptions,
}

impl Headless {
    /// Loads the model of these settings. A model that cannot be loaded is wrong use.
    pub fn start(settings: &Settings) -> Result<Self> {
        spawn::check_device(settings)?;
        super::download::ensure(settings)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let interrupts = runtime.block_on(async { Interrupts::new() })?;
        let mut ends = Ends { handle: spawn::engine(settings, Arc::default())?, interrupts };
        let mut compiles = false;
        let info = runtime.block_on(async {
            loop {
                match ends.next().await? {
                    Some(Event::CompilingKernels { .. }) => {
                        if !std::mem::replace(&mut compiles, true) {
                            output::notice("compiling kernels for this GPU (once)");
                        }
                    }
                    Some(Event::Ready(info)) => return Ok(info),
                    Some(event) => told(event)?,
                    None => return Err(anyhow::Error::from(Interrupted)),
                }
            }
        })?;
        let opts = RenderOptions {
            think: settings.think,
            keep_thinking: settings.keep_thinking,
            think_tags: info.think_tags.clone(),
            ..RenderOptions::default()
        };
        Ok(Self { runtime, ends, info, opts })
    }

    fn send(&self, command: Command) -> Result<()> {
        if self.ends.handle.send(command) { Ok(()) } else { Err(anyhow!("the engine has ended")) }
    }

    /// Forgets the conversation so far.
    pub fn clear(&self) -> Result<()> {
        self.send(Command::Clear)
    }

    /// Brings the engine to where a saved conversation ended.
    pub fn restore(&mut self, mut loaded: Loaded) -> Result<Conversation> {
        for problem in &loaded.problems {
            output::notice(problem);
        }
        if let Ok(date) = loaded.header.template_date.parse() {
            self.opts.date = date;
        }
        let (request, notice) = loaded.restore_for(&self.info);
        if let Some(notice) = notice {
            output::notice(&notice);
        }
        self.send(Command::Restore(Box::new(request)))?;
        let Self { runtime, ends, .. } = self;
        runtime.block_on(async {
            loop {
                match ends.next().await? {
                    Some(Event::RebuildDone { .. }) => return Ok(()),
                    Some(event) => told(event)?,
                    None => return Err(anyhow::Error::from(Interrupted)),
                }
            }
        })?;
        Ok(loaded.conversation)
    }

    /// Answers the last message. `sink` gets the text as it comes; its error ends the answer.
    /// Ctrl+C ends it too, keeping what there is; a second one does not wait.
    pub fn answer(
        &mut self,
        chat: &mut Conversation,
        drawing: &Drawing,
        mut sink: impl FnMut(TextKind, &str) -> Result<()>,
    ) -> Result<TurnReport> {
        let prompt = render(chat.system(), &chat.context_path(), &self.info.template, &self.opts)?;
        let turn = chat.begin_reply(self.opts.think, self.opts.keep_thinking);
        let Drawing { sampling, seed, max_tokens } = drawing.clone();
        self.send(Command::Generate(Box::new(GenerateRequest { turn, prompt, sampling, seed, max_tokens })))?;
        let mut cancelled = false;
        let Self { runtime, ends, .. } = self;
        runtime.block_on(async {
            loop {
                match ends.next().await? {
                    Some(Event::Text { turn: of, kind, text }) if of == turn => {
                        chat.append(turn, kind, &text);
                        sink(kind, &text)?;
                    }
                    Some(Event::TurnDone(report)) if report.turn == turn => {
                        chat.finish((*report).clone());
                        return Ok(*report);
                    }
                    Some(event) => told(event)?,
                    None if cancelled => return Err(Interrupted.into()),
                    None => {
                        cancelled = true;
                        ends.handle.send(Command::Cancel);
                    }
                }
            }
        })
    }
}

/// What an answer waits for.
struct Ends {
    handle: EngineHandle,
    interrupts: Interrupts,
}

impl Ends {
    /// The next event; `None` on Ctrl+C.
    async fn next(&mut self) -> Result<Option<Event>> {
        tokio::select! {
            event = self.handle.events.recv() => event.map(Some).context("the engine ended without a word"),
            () = self.interrupts.next() => Ok(None),
        }
    }
}

/// Ctrl+C, also when it comes while nobody waits.
#[cfg(unix)]
pub(super) struct Interrupts(tokio::signal::unix::Signal);

#[cfg(unix)]
impl Interrupts {
    pub(super) fn new() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self(signal(SignalKind::interrupt()).context("Ctrl+C cannot be listened to")?))
    }

    pub(super) async fn next(&mut self) {
        self.0.recv().await;
    }
}

#[cfg(not(unix))]
pub(super) struct Interrupts;

#[cfg(not(unix))]
impl Interrupts {
    pub(super) fn new() -> Result<Self> {
        Ok(Self)
    }

    pub(super) async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Events that matter whatever is being waited for.
fn told(event: Event) -> Result<()> {
    match event {
        Event::LoadFailed(why) => Err(output::wrong_use(why)),
        Event::Failed(why) => Err(anyhow!("{why}")),
        Event::Notice(line) => {
            output::notice(&line);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The `--json` object of an answer.
pub fn answer_json(chat: &Conversation, report: &TurnReport, info: &ModelInfo) -> Value {
    let reply = chat.reply(report.turn);
    json!({
        "answer": reply.map_or("", |m| m.shown()),
        "reasoning": reply.and_then(|m| m.shown_reasoning()).unwrap_or(""),
        "stop_reason": report.stop_reason.as_str(),
        "prompt_tokens": report.prompt_tokens,
        "answer_tokens": report.answer_tokens,
        "reasoning_tokens": report.reasoning_tokens,
        "ttft_ms": report.ttft_ms,
        "prefill_tok_s": report.prefill_tok_s,
        "decode_tok_s": report.decode_tok_s,
        "seed": report.seed,
        "model": info.name,
        "device": info.device,
        "eviction": report.eviction,
        "kv": report.kv,
    })
}
