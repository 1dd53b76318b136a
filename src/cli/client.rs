//! A client of the engine without a screen, for `-p` and `eval`: starts an engine, restores a
//! conversation, asks and streams the answer. Writes only notices, to stderr.

use super::check::{Checks, Verdict};
use super::interrupts::{Interrupts, Kills};
use super::output::{self, Interrupted, Killed};
use super::quantizing::Quantizing;
use super::{devices, download, spawn};
use crate::chat::session::Loaded;
use crate::chat::{Conversation, RenderOptions, render};
use crate::config::{Pin, Settings};
use crate::protocol::{
    Ask, ChainEvent, ChainReport, ChainsRequest, Command, EngineHandle, Event, GenerateRequest, ModelInfo,
    SamplingParams, TextKind, TurnReport, count,
};
use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

/// How one answer is sampled.
#[derive(Clone, Debug)]
pub struct Sampling {
    pub params: SamplingParams,
    pub seed: Option<u64>,
    pub max_tokens: Option<usize>,
    pub max_think: Option<usize>,
    pub drafts: usize,
    /// Several chains, and the command that judges their answers.
    pub chains: Option<ChainsRequest>,
    pub check: Option<String>,
}

/// An engine with a loaded model, and the runtime its events are awaited on.
pub struct Client {
    runtime: tokio::runtime::Runtime,
    source: Source,
    pub info: Arc<ModelInfo>,
    pub opts: RenderOptions,
    /// Whether saved conversations come with their caches.
    reads_caches: bool,
    /// Whether the system prompt is pinned.
    pins_system: bool,
}

/// An engine whose model is loaded, and the runtime that its events are awaited on.
pub struct Started {
    pub runtime: tokio::runtime::Runtime,
    pub handle: EngineHandle,
    pub interrupts: Interrupts,
    pub info: Arc<ModelInfo>,
}

/// Starts an engine with the model of the settings, and with `slots` for prompts that belong to no
/// conversation. Errors of the model are wrong use.
pub fn start(settings: &Settings, slots: usize) -> Result<Started> {
    devices::check_for_chat(settings)?;
    if settings.server.is_none() {
        download::ensure(settings)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let interrupts = runtime.block_on(async { Interrupts::new() }).context("cannot listen for Ctrl+C")?;
    let mut source = Source { handle: spawn::engine(settings, slots, Arc::default())?, interrupts };
    let (mut compiles, mut quantizing) = (false, Quantizing::default());
    let info = runtime.block_on(async {
        loop {
            let event = source.next().await?;
            if let Some(Event::Quantizing { measuring, done, total }) = event {
                quantizing.layers(measuring, done, total);
                continue;
            }
            quantizing.clear();
            match event {
                Some(Event::CompilingKernels { .. }) => {
                    if !std::mem::replace(&mut compiles, true) {
                        output::notice("compiling kernels for this GPU (once)");
                    }
                }
                Some(Event::Ready(info)) => return Ok(info),
                Some(event) => handle(event)?,
                None => return Err(anyhow::Error::from(Interrupted)),
            }
        }
    })?;
    let Source { handle, interrupts } = source;
    Ok(Started { runtime, handle, interrupts, info })
}

impl Started {
    /// Keeps the caches of slots in a folder, and lets the slots go on from those that are there.
    pub fn keep_slots(&mut self, slots: usize, folder: PathBuf, limit_bytes: u64) -> Result<()> {
        let Self { runtime, handle, .. } = self;
        handle.commands.keep_slots(slots, folder, limit_bytes);
        runtime.block_on(async {
            while let Some(response) = handle.events.recv().await {
                match response.event {
                    Event::SlotsLoaded { slots: 0, .. } => return Ok(()),
                    Event::SlotsLoaded { slots, tokens } => {
                        let slots = if slots == 1 { "a slot goes".to_owned() } else { format!("{slots} slots go") };
                        output::notice(&format!("{slots} on from {} tokens", count(tokens)));
                        return Ok(());
                    }
                    event => self::handle(event)?,
                }
            }
            Err(anyhow!("the engine has ended"))
        })
    }
}

impl Client {
    /// Starts an engine with the model of the settings. Errors of the model are wrong use.
    pub fn start(settings: &Settings) -> Result<Self> {
        let Started { runtime, handle, interrupts, info } = start(settings, 0)?;
        let source = Source { handle, interrupts };
        let opts = RenderOptions {
            think: settings.think,
            keep_thinking: settings.keep_thinking,
            think_tags: info.think_tags.clone(),
            ..RenderOptions::default()
        };
        let (reads_caches, pins_system) = (settings.cache_disk > 0, settings.pin == Pin::System);
        Ok(Self { runtime, source, info, opts, reads_caches, pins_system })
    }

    fn send(&self, command: Command) -> Result<()> {
        if self.source.handle.send(command) { Ok(()) } else { Err(anyhow!("the engine has ended")) }
    }

    /// Starts an empty conversation.
    pub fn clear(&self) -> Result<()> {
        self.send(Command::Clear)
    }

    /// Restores a saved conversation in the engine, and returns it.
    pub fn restore(&mut self, mut loaded: Loaded) -> Result<Conversation> {
        for problem in &loaded.problems {
            output::notice(problem);
        }
        if let Ok(date) = loaded.header.template_date.parse() {
            self.opts.date = date;
        }
        let (mut request, notice) = loaded.restore_for(&self.info);
        request.cache = request.cache.filter(|_| self.reads_caches);
        if let Some(notice) = notice {
            output::notice(&notice);
        }
        self.send(Command::Restore(Box::new(request)))?;
        let Self { runtime, source, .. } = self;
        runtime.block_on(async {
            loop {
                match source.next().await? {
                    Some(Event::RebuildDone { .. }) => return Ok(()),
                    Some(event) => handle(event)?,
                    None => return Err(anyhow::Error::from(Interrupted)),
                }
            }
        })?;
        Ok(loaded.conversation)
    }

    /// Answers the last message. `sink` receives the text as it is generated; an error from it ends
    /// the answer. Ctrl+C cancels the answer and keeps its text; a second Ctrl+C returns at once.
    pub fn answer(
        &mut self,
        chat: &mut Conversation,
        sampling: &Sampling,
        mut sink: impl FnMut(TextKind, &str) -> Result<()>,
    ) -> Result<TurnReport> {
        let prompt = render(chat.system(), &chat.context_path(), &self.info.template, &self.opts)?;
        let turn = chat.begin_reply(self.opts.think, self.opts.keep_thinking);
        let runtime = &self.runtime;
        let Sampling { params: sampling, seed, max_tokens, max_think, drafts, chains, check } = sampling.clone();
        let mut checks = check.map(|command| Checks::new(&command)).transpose()?;
        // These signals otherwise end only this process: the command that runs would live on.
        let mut kills = checks
            .as_ref()
            .map(|_| runtime.block_on(async { Kills::new() }))
            .transpose()
            .context("cannot listen for signals")?;
        self.send(Command::Generate(Box::new(GenerateRequest {
            turn,
            ask: Ask { prompt, sampling, seed, max_tokens, max_think, drafts, ..Ask::default() },
            pin: chat.system().filter(|_| self.pins_system).map(str::to_owned),
            chains,
        })))?;
        let mut cancelled = false;
        let Self { source, .. } = self;
        runtime.block_on(async {
            loop {
                let event = tokio::select! {
                    event = source.next() => event?,
                    Some(signal) = async { Some(kills.as_mut()?.next().await) } => return Err(Killed(signal).into()),
                    Some((chain, verdict)) = async { checks.as_mut()?.verdicts.recv().await } => {
                        if let Some(choice) = judge(chain, verdict, &mut checks)? {
                            source.handle.send(Command::Elect(choice));
                        }
                        continue;
                    }
                };
                match event {
                    Some(Event::Text { turn: of, kind, text }) if of == turn => {
                        chat.append(turn, kind, &text);
                        sink(kind, &text)?;
                    }
                    Some(Event::WasThought { turn: of }) if of == turn => chat.was_thought(turn),
                    Some(Event::Chain { event, .. }) => {
                        if chain_event(event, &mut checks) {
                            source.handle.send(Command::Elect(None));
                        }
                    }
                    Some(Event::Repeats { turn: of, chain }) if of == turn => output::notice(&repeats(chain)),
                    Some(Event::TurnDone(report)) if report.turn == turn => {
                        chat.finish((*report).clone());
                        return Ok(*report);
                    }
                    Some(event) => handle(event)?,
                    None if cancelled => return Err(Interrupted.into()),
                    None => {
                        cancelled = true;
                        source.handle.send(Command::Cancel);
                    }
                }
            }
        })
    }
}

/// Says that the answer repeats itself.
fn repeats(chain: Option<usize>) -> String {
    let what = chain.map_or("the answer".to_owned(), |number| format!("chain {}", number + 1));
    format!("{what} repeats itself (Ctrl+C stops it); --temperature 1, --width 8 or --max-think may help")
}

/// Passes the answers of chains to the checker. Returns whether all are checked and none was right.
fn chain_event(event: ChainEvent, checks: &mut Option<Checks>) -> bool {
    let Some(checks) = checks else { return false };
    match event {
        ChainEvent::Started(chains) => checks.begin(chains),
        ChainEvent::Ended { chain, report, .. } => checks.add(chain, &report),
        ChainEvent::Text { .. } | ChainEvent::WasThought { .. } | ChainEvent::Elected(_) => return false,
    }
    checks.are_done()
}

/// Effect of a verdict on the chains: `Some` ends them, with a chosen chain or with the vote.
fn judge(chain: usize, verdict: Verdict, checks: &mut Option<Checks>) -> Result<Option<Option<usize>>> {
    let Some(checks) = checks else { return Ok(None) };
    checks.count();
    match verdict {
        Verdict::Right => {
            checks.give_up();
            return Ok(Some(Some(chain)));
        }
        Verdict::Wrong => {}
        Verdict::Hangs => {
            let limit = super::check::LIMIT.as_secs();
            output::notice(&format!(
                "--check: the command did not end within {limit} s and was killed; the vote decides"
            ));
            checks.give_up();
        }
        Verdict::Fails(why) => return Err(output::wrong_use(format!("--check: {why}"))),
    }
    Ok(checks.are_done().then_some(None))
}

/// Events that a client waits for.
struct Source {
    handle: EngineHandle,
    interrupts: Interrupts,
}

impl Source {
    /// The next event; `None` on Ctrl+C.
    async fn next(&mut self) -> Result<Option<Event>> {
        tokio::select! {
            response = self.handle.events.recv() => response.map(|r| Some(r.event)).context("the engine ended unexpectedly"),
            () = self.interrupts.next() => Ok(None),
        }
    }
}

/// Handles the events that matter at any time: failures and notices.
fn handle(event: Event) -> Result<()> {
    match event {
        Event::LoadFailed(why) => Err(output::wrong_use(why)),
        Event::Failed(why) => Err(anyhow!("{why}")),
        Event::Notice(line) | Event::Info(line) | Event::Refused { why: line, .. } => {
            output::notice(&line);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The `--json` object of an answer.
pub fn answer_json(chat: &Conversation, report: &TurnReport, info: &ModelInfo) -> Value {
    let reply = chat.reply(report.turn);
    let mut object = json!({
        "answer": reply.map_or("", |m| m.shown()),
        "reasoning": reply.and_then(|m| m.shown_reasoning()).unwrap_or(""),
        "stop_reason": report.stop_reason.name(),
        "prompt_tokens": report.prompt_tokens,
        "answer_tokens": report.answer_tokens,
        "reasoning_tokens": report.reasoning_tokens,
        "ttft_ms": report.ttft_ms,
        "prefill_tok_s": report.prefill_tok_s,
        "decode_tok_s": report.decode_tok_s,
        "seed": report.seed,
        "model": info.identity.name,
        "device": info.identity.device,
        "weights": info.weights,
        "eviction": report.eviction,
        "kv": report.kv,
    });
    let draft = report.draft.as_ref().map(|draft| {
        let mut object = json!(draft);
        object["accepted_length"] = json!(draft.accepted_length());
        object["gain"] = json!(draft.gain());
        object
    });
    let if_any = [
        ("decisions", info.identity.decisions.as_ref().map(|decisions| json!(decisions))),
        ("draft", draft),
        ("thought_closed_at", report.thought_closed_at.map(Value::from)),
        ("repeats_at", report.repeats_at.map(Value::from)),
        ("device_bytes", report.device_bytes.map(Value::from)),
    ];
    for (key, value) in if_any {
        value.into_iter().for_each(|value| object[key] = value);
    }
    if let Some(chains) = &report.chains {
        object["chains"] = chains.chains.iter().map(chain_json).collect();
        object["votes"] = json!(chains.votes);
        object["winner"] = json!(chains.winner);
        object["checked"] = json!(chains.checked);
        object["stopped"] = json!(chains.stopped);
        object["dense_reads"] = json!(chains.dense_reads);
    }
    object
}

/// A chain's reply, without the newlines around its parts, as the turn's answer has none.
fn chain_json(chain: &ChainReport) -> Value {
    let mut object = json!(chain);
    object["answer"] = json!(chain.shown());
    object["reasoning"] = json!(chain.shown_reasoning().unwrap_or_default());
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::StopReason;

    #[test]
    fn a_chains_parts_have_no_newlines_around_them() {
        let chain = ChainReport {
            answer: "\n\n4 \n".into(),
            reasoning: "\nponder\n".into(),
            extracted: Some("4".into()),
            stop_reason: StopReason::End,
            tokens: 5,
            reasoning_tokens: 0,
            reads: 1.0,
            seed: 7,
        };
        let object = chain_json(&chain);
        assert_eq!((&object["answer"], &object["reasoning"]), (&json!("4 "), &json!("ponder")));
        assert_eq!((&object["extracted"], &object["tokens"]), (&json!("4"), &json!(5)));
    }
}
