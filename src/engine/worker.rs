//! The engine's loop: takes commands, keeps the conversation's context and its checkpoints, and
//! acts on toggles and cancels between two steps.

use super::context::Context;
use super::planner::kv_budget;
use super::reply::{ThinkTags, flat_of};
use super::runner::{Runner, StepError};
use super::scheduler::ChunkSizer;
use super::{EngineOptions, Outlet, report};
use crate::backend::Backend;
use crate::cache::CacheError;
use crate::checkpoint::{Checkpoint, DmsVariant, GenerationDefaults};
use crate::protocol::{
    Command, Event, LogEntry, ModelInfo, Phase, Piece, Plan, RestoreRequest, SamplingParams, SlotInfo, TemplateSpec,
    TextLimit, Token, count,
};
use crate::tokenizer::{Tokenizer, flatten};
use anyhow::Result;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// Panels are redrawn at most this often.
const SNAPSHOT_EVERY: Duration = Duration::from_millis(33);

/// Bytes of a draft that are encoded to count its tokens: some tens of milliseconds.
const MAX_COUNTED: usize = 128 << 10;

/// Why work ended before it was done.
#[derive(Debug)]
pub(super) enum Halt {
    Cancelled,
    CacheFull(String),
    ContextFull(String),
    Error(String),
}

pub(super) struct Worker<'a, B: Backend> {
    pub(super) runner: Runner<B>,
    pub(super) tokenizer: Arc<Tokenizer>,
    inbox: Receiver<Command>,
    pub(super) outlet: &'a Outlet,
    pub(super) eos: Vec<Token>,
    pub(super) think: Option<ThinkTags>,
    pub(super) active: Context,
    /// The state before the last turn's user message.
    pub(super) before: Option<Context>,
    /// The state at the end of the last turn's prompt, its last token pending.
    pub(super) prompt_end: Option<Context>,
    /// The log as the last report or restore left it: what others know of it.
    pub(super) reported: Vec<LogEntry>,
    /// Generated ids by turn: what the model said is never encoded again.
    pub(super) replies: HashMap<u64, Vec<Token>>,
    /// Eviction as last set; restored contexts follow it.
    pub(super) eviction: bool,
    has_policy: bool,
    /// Of weights and workspace.
    fixed_bytes: u64,
    memory_bytes: Option<u64>,
    deferred: VecDeque<Command>,
    pub(super) cancel: bool,
    /// A log is being fed again, under the toggles that stand in it.
    replaying: bool,
    shutdown: bool,
    pub(super) sizer: ChunkSizer,
    pub(super) phase: Phase,
    pub(super) decode_tok_s: Option<f64>,
    last_snapshot: Instant,
}

impl<'a, B: Backend> Worker<'a, B> {
    pub fn new(
        mut runner: Runner<B>,
        checkpoint: &Checkpoint,
        options: &EngineOptions,
        plan: Plan,
        inbox: Receiver<Command>,
        outlet: &'a Outlet,
    ) -> Result<Self> {
        let tokenizer = Tokenizer::new(&checkpoint.tokenizer_json, checkpoint.config.vocab)?;
        let think = tokenizer.token_for("<think>").zip(tokenizer.token_for("</think>"));
        let disabled = checkpoint.config.dms.as_ref().is_some_and(|d| d.disabled);
        let eviction = options.eviction.unwrap_or(!disabled);
        let info = model_info(&runner, checkpoint, &tokenizer, options, plan, think.is_some());
        let active = Context::new(&mut runner, eviction)?;
        let worker = Self {
            has_policy: runner.cache.geometry().policy.rule().is_some(),
            fixed_bytes: checkpoint.weight_bytes + options.workspace_bytes,
            memory_bytes: options.memory_bytes,
            sizer: ChunkSizer::new(runner.max_step()),
            runner,
            tokenizer: Arc::new(tokenizer),
            inbox,
            outlet,
            eos: checkpoint.generation.eos.clone(),
            think: think.map(|(open, close)| ThinkTags { open, close }),
            active,
            before: None,
            prompt_end: None,
            reported: Vec::new(),
            replies: HashMap::new(),
            eviction,
            deferred: VecDeque::new(),
            cancel: false,
            replaying: false,
            shutdown: false,
            phase: Phase::Idle,
            decode_tok_s: None,
            last_snapshot: Instant::now(),
        };
        outlet.event(Event::Ready(Arc::new(info)));
        checkpoint.notices().for_each(|text| outlet.notice(text));
        worker.publish();
        Ok(worker)
    }

    /// Serves commands until told to stop or nobody is left to serve.
    pub fn run(&mut self) {
        while !self.shutdown {
            let command = match self.deferred.pop_front() {
                Some(command) => command,
                None => match self.inbox.recv() {
                    Ok(command) => command,
                    Err(_) => return,
                },
            };
            self.cancel = false;
            match command {
                Command::Generate(request) => self.generate(*request),
                Command::Rebuild => self.rebuild(),
                Command::Restore(request) => self.restore(*request),
                Command::Rewind(pieces) => self.rewind(&pieces),
                Command::Clear => self.clear(),
                other => self.act(other),
            }
            self.phase = Phase::Idle;
            self.runner.trim();
            if let Some(text) = self.runner.backend().notice() {
                self.outlet.notice(text);
            }
            self.publish();
        }
    }

    /// Commands that act at once, between two steps; the others wait for their turn.
    fn act(&mut self, command: Command) {
        match command {
            Command::Cancel => self.cancel = true,
            Command::Shutdown => self.shutdown = true,
            Command::SetEviction(on) if !self.replaying => self.toggle(on),
            Command::SetKvLimit(limit) => {
                self.runner.cache.set_limit_bytes(kv_budget(self.fixed_bytes, limit, self.memory_bytes));
                self.publish();
            }
            Command::Inspect { layer, head } => self.inspect(layer, head),
            Command::CountTokens { id, text } => self.count_tokens(id, &text),
            other => self.deferred.push_back(other),
        }
    }

    /// Looks at what has come in. An error ends the work that is running.
    pub(super) fn poll(&mut self) -> Result<(), Halt> {
        loop {
            match self.inbox.try_recv() {
                Ok(command) => self.act(command),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.shutdown = true;
                    break;
                }
            }
        }
        if self.cancel || self.shutdown { Err(Halt::Cancelled) } else { Ok(()) }
    }

    fn toggle(&mut self, on: bool) {
        if !self.has_policy {
            self.outlet
                .notice("this model was not trained to evict: its cache stays dense, and the switch does nothing");
            return;
        }
        self.eviction = on;
        let at_token = self.active.len(&self.runner);
        match self.follow_eviction() {
            Ok(dropped_slots) => self.outlet.event(Event::EvictionSet { on, at_token, dropped_slots }),
            Err(error) => self.outlet.notice(format!("eviction stays as it was: {error}")),
        }
        self.publish();
    }

    /// Brings the active context to the eviction state now set. Checkpoints go first where room
    /// is short.
    pub(super) fn follow_eviction(&mut self) -> Result<u64, CacheError> {
        loop {
            match self.active.set_eviction(&mut self.runner, self.eviction) {
                Ok(dropped) => return Ok(dropped),
                Err(error) if !self.give_up_checkpoint() => {
                    self.eviction = self.active.eviction;
                    return Err(error);
                }
                Err(_) => {}
            }
        }
    }

    /// As [`Worker::follow_eviction`], for a context that was gone back to: a toggle that acts there again is reported.
    pub(super) fn follow_eviction_here(&mut self) -> Result<(), CacheError> {
        let (before, at_token) = (self.active.eviction, self.active.len(&self.runner));
        let dropped_slots = self.follow_eviction()?;
        if self.eviction != before {
            self.outlet.event(Event::EvictionSet { on: self.eviction, at_token, dropped_slots });
        }
        Ok(())
    }

    /// Counts the tokens of a text. A long one is counted in part, and the rest estimated.
    fn count_tokens(&self, id: u64, text: &str) {
        let mut part = text.len().min(MAX_COUNTED);
        while !text.is_char_boundary(part) {
            part -= 1;
        }
        let Ok(ids) = self.tokenizer.encode_pieces(&[Piece::Text(text[..part].to_owned())]) else { return };
        let tokens = ids.len() * text.len() / part.max(1);
        self.outlet.event(Event::TokensCounted { id, tokens });
    }

    fn inspect(&mut self, layer: usize, head: usize) {
        let config = self.runner.config();
        if layer >= config.n_layers || head >= config.n_kv_heads {
            return;
        }
        let metas = self.runner.cache.slot_metas(self.runner.backend(), self.active.seq, layer, head);
        let mut slots: Vec<SlotInfo> =
            metas.iter().map(|m| SlotInfo { position: m.position() as u32, marked: m.marked() }).collect();
        slots.sort_by_key(|s| s.position);
        self.outlet.event(Event::HeadPositions { layer, head, slots });
    }

    /// Feeds tokens to the active context in chunks, telling how far it is by `phase(fed)`.
    pub(super) fn feed_all(&mut self, tokens: &[Token], phase: impl Fn(usize) -> Phase) -> Result<(), Halt> {
        let mut fed = 0;
        while fed < tokens.len() {
            self.phase = phase(fed);
            self.publish_if_due();
            self.poll()?;
            fed += self.feed_some(&tokens[fed..])?;
        }
        Ok(())
    }

    /// Feeds as many of `tokens` as one chunk takes; how many that were. Where the cache is nearly
    /// full, chunks shrink to a token (whose need is known exactly), then checkpoints are given up.
    pub(super) fn feed_some(&mut self, tokens: &[Token]) -> Result<usize, Halt> {
        let mut n = tokens.len().min(self.sizer.size());
        loop {
            let started = Instant::now();
            match self.active.feed(&mut self.runner, &tokens[..n]) {
                Ok(()) => {
                    if n > 1 {
                        self.runner.synchronize();
                        self.sizer.observe(n, started.elapsed());
                    }
                    return Ok(n);
                }
                Err(StepError::Cache(_)) if n > 1 => n /= 2,
                Err(StepError::Cache(_)) if self.give_up_checkpoint() => {}
                Err(StepError::Cache(error)) => return Err(Halt::CacheFull(error.to_string())),
                Err(error) => return Err(Halt::Error(error.to_string())),
            }
        }
    }

    /// Feeds a token to the active context and samples the one after it. Checkpoints go where the cache
    /// is full.
    pub(super) fn decode(&mut self, token: Token, sampling: &SamplingParams, seed: u64) -> Result<Token, Halt> {
        loop {
            match self.active.decode(&mut self.runner, token, sampling, seed) {
                Ok(next) => return Ok(next),
                Err(StepError::Cache(_)) if self.give_up_checkpoint() => {}
                Err(StepError::Cache(error)) => return Err(Halt::CacheFull(error.to_string())),
                Err(error) => return Err(Halt::Error(error.to_string())),
            }
        }
    }

    /// Frees what is kept for regenerate and undo; false when there is nothing of it.
    fn give_up_checkpoint(&mut self) -> bool {
        let Some(context) = self.prompt_end.take().or_else(|| self.before.take()) else { return false };
        self.runner.release(context.seq);
        true
    }

    pub(super) fn release_checkpoints(&mut self) {
        while self.give_up_checkpoint() {}
    }

    /// Puts `context` in the active one's place.
    pub(super) fn replace_active(&mut self, context: Context) {
        let old = std::mem::replace(&mut self.active, context);
        self.runner.release(old.seq);
    }

    /// An empty active context; checkpoints stay.
    pub(super) fn reset_active(&mut self) {
        self.runner.release(self.active.seq);
        self.active = Context::new(&mut self.runner, self.eviction).expect("a row was just given back");
    }

    fn clear(&mut self) {
        self.release_checkpoints();
        self.reset_active();
        self.reported.clear();
        self.replies.clear();
        self.decode_tok_s = None;
    }

    /// Feeds the log anew under the eviction state now set, beside the old cache where there is
    /// room; cancelled, the old one stays in force.
    fn rebuild(&mut self) {
        let tokens: Vec<Token> = self.active.tokens().collect();
        let fresh = match Context::new(&mut self.runner, self.eviction) {
            Ok(fresh) => fresh,
            Err(error) => return self.outlet.notice(format!("cannot rebuild: {error}")),
        };
        let old = std::mem::replace(&mut self.active, fresh);
        let mut beside = Some(old);
        let mut done = 0;
        let outcome = loop {
            let total = tokens.len();
            let (from, outlet) = (done, self.outlet);
            let result = self.feed_all(&tokens[from..], |n| {
                outlet.event(Event::Rebuilding { done: from + n, total });
                Phase::Rebuild { done: from + n, total }
            });
            done = self.active.len(&self.runner);
            match (result, beside.is_some()) {
                (Err(Halt::CacheFull(_)), true) => {
                    self.outlet.notice("the old cache is given up to make room for the new one");
                    let old = beside.take().expect("it is some");
                    self.runner.release(old.seq);
                    self.active.flat = old.flat;
                    self.active.pending = old.pending;
                }
                (result, _) => break result,
            }
        };
        self.finish_rebuild(outcome, beside, tokens.len());
    }

    fn finish_rebuild(&mut self, outcome: Result<(), Halt>, beside: Option<Context>, total: usize) {
        match (&outcome, beside) {
            (Ok(()), Some(old)) => {
                self.active.flat = old.flat;
                self.active.pending = old.pending;
                self.runner.release(old.seq);
                self.release_checkpoints();
            }
            (Ok(()), None) => {}
            (Err(_), Some(old)) => {
                self.replace_active(old);
                let _ = self.follow_eviction();
            }
            (Err(_), None) => self.reset_active(),
        }
        if let Err(Halt::CacheFull(why) | Halt::Error(why)) = &outcome {
            self.outlet.notice(format!("the rebuild stopped: {why}"));
        }
        let tokens = if outcome.is_ok() { total } else { self.active.len(&self.runner) };
        self.outlet.event(Event::RebuildDone { cancelled: outcome.is_err(), tokens });
    }

    /// Takes up a saved conversation: its log is fed under its own toggles.
    fn restore(&mut self, request: RestoreRequest) {
        self.clear();
        let vocab = self.runner.config().vocab as Token;
        self.replies = request.replies.into_iter().filter(|(_, ids)| ids.iter().all(|id| *id < vocab)).collect();
        let restored = self.feed_again(&request.log);
        self.reported = request.log;
        if let Some(pending) = request.pending.filter(|id| restored && *id < vocab) {
            self.active.flat = flat_of(&self.tokenizer, self.active.tokens().chain([pending])).0;
            self.active.pending = Some(pending);
        }
        if let Err(error) = self.follow_eviction() {
            self.outlet.notice(format!("eviction stays as it was: {error}"));
        }
        let tokens = self.active.len(&self.runner);
        self.outlet.event(Event::RebuildDone { cancelled: !restored, tokens });
    }

    /// Makes the active context the one that `log` describes, or an empty one where that fails.
    pub(super) fn feed_again(&mut self, log: &[LogEntry]) -> bool {
        let wish = std::mem::replace(&mut self.eviction, true);
        self.reset_active();
        self.replaying = true;
        let outcome = self.replay(log);
        self.replaying = false;
        self.eviction = wish;
        if let Err(halt) = &outcome {
            self.reset_active();
            if let Halt::CacheFull(why) | Halt::ContextFull(why) | Halt::Error(why) = halt {
                self.outlet.notice(format!("the conversation could not be fed again: {why}"));
            }
        }
        outcome.is_ok()
    }

    fn replay(&mut self, log: &[LogEntry]) -> Result<(), Halt> {
        let total = log.iter().filter(|e| matches!(e, LogEntry::Token(_))).count();
        if total > self.runner.context() {
            let context = self.runner.context();
            return Err(Halt::ContextFull(format!(
                "it has {} tokens, and the context holds {}",
                count(total),
                count(context)
            )));
        }
        let vocab = self.runner.config().vocab as Token;
        if log.iter().any(|e| matches!(e, LogEntry::Token(t) if *t >= vocab)) {
            return Err(Halt::Error("its log names tokens that this model does not have".into()));
        }
        let outlet = self.outlet;
        for part in log.chunk_by(|a, b| matches!((a, b), (LogEntry::Token(_), LogEntry::Token(_)))) {
            if let LogEntry::Toggle { eviction } = part[0] {
                self.eviction = eviction;
                self.follow_eviction().map_err(|e| Halt::CacheFull(e.to_string()))?;
                continue;
            }
            let from = self.active.len(&self.runner);
            let tokens: Vec<Token> =
                part.iter().filter_map(|e| if let LogEntry::Token(t) = e { Some(*t) } else { None }).collect();
            self.feed_all(&tokens, |n| {
                outlet.event(Event::Rebuilding { done: from + n, total });
                Phase::Rebuild { done: from + n, total }
            })?;
        }
        self.active.flat = flat_of(&self.tokenizer, self.active.tokens()).0;
        Ok(())
    }

    /// Goes back to the newest state whose text begins the given rendering.
    fn rewind(&mut self, pieces: &[Piece]) {
        let flat = flatten(pieces);
        if flat.starts_with(&self.active.flat) {
            return;
        }
        let checkpoint = match (self.prompt_end.take(), self.before.take()) {
            (Some(end), before) if flat.starts_with(&end.flat) => {
                self.before = before;
                Some(end)
            }
            (end, before) => {
                if let Some(end) = end {
                    self.runner.release(end.seq);
                }
                match before {
                    Some(before) if flat.starts_with(&before.flat) => Some(before),
                    Some(before) => {
                        self.runner.release(before.seq);
                        None
                    }
                    None => None,
                }
            }
        };
        match checkpoint {
            Some(context) => self.replace_active(context),
            None => self.reset_active(),
        }
        if let Err(error) = self.follow_eviction_here() {
            self.outlet.notice(format!("eviction stays as it was: {error}"));
        }
    }

    pub(super) fn publish(&self) {
        self.outlet.snapshot(report::snapshot(
            &self.runner,
            &self.active,
            self.phase.clone(),
            self.eviction,
            self.decode_tok_s,
        ));
    }

    pub(super) fn publish_if_due(&mut self) {
        if self.last_snapshot.elapsed() >= SNAPSHOT_EVERY {
            self.last_snapshot = Instant::now();
            self.publish();
        }
    }
}

/// What a prompt's bytes are held to.
pub(super) fn text_limit(context: usize, tokenizer: &Tokenizer) -> TextLimit {
    TextLimit { context, token_bytes: tokenizer.longest_token_bytes() }
}

fn model_info<B: Backend>(
    runner: &Runner<B>,
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
    options: &EngineOptions,
    plan: Plan,
    thinks: bool,
) -> ModelInfo {
    let (c, g) = (&checkpoint.config, runner.cache.geometry());
    ModelInfo {
        name: checkpoint.name.clone(),
        reference: options.reference.clone(),
        family: c.family.clone(),
        n_params: checkpoint.n_params,
        n_layers: c.n_layers,
        n_q_heads: c.n_q_heads,
        n_kv_heads: c.n_kv_heads,
        head_dim: c.head_dim,
        vocab: c.vocab,
        context: runner.context(),
        device: runner.backend().describe(),
        codec: options.codec.name().to_owned(),
        policy: g.policy.name().to_owned(),
        window: g.policy.rule().map(|rule| rule.window),
        dms: match c.dms.as_ref().map(|d| d.variant) {
            None => "none",
            Some(DmsVariant::Borrowed) => "borrowed",
            Some(DmsVariant::Adapter) => "adapter",
        }
        .to_owned(),
        adapter: checkpoint.adapter.clone(),
        weights: weight_format(checkpoint).to_owned(),
        weight_bytes: checkpoint.weight_bytes,
        slot_bytes: g.slot_bytes(),
        page_slots: g.page_slots,
        kv_limit: options.kv_limit,
        plan,
        template: TemplateSpec {
            source: checkpoint.chat_template.clone(),
            bos_token: checkpoint.bos_token.clone(),
            eos_token: checkpoint.eos_token.clone(),
            control: tokenizer.added_literals(),
            trusted: checkpoint.builtin,
            limit: Some(text_limit(runner.context(), tokenizer)),
        },
        think_tags: thinks.then(|| ("<think>".to_owned(), "</think>".to_owned())),
        default_sampling: default_sampling(&checkpoint.generation),
        model_fingerprint: checkpoint.fingerprint.clone(),
        tokenizer_fingerprint: tokenizer.fingerprint().to_owned(),
    }
}

/// Element type of the largest tensor, which stands for the model: norms and adapters may differ.
fn weight_format(checkpoint: &Checkpoint) -> &'static str {
    checkpoint.tensors.values().max_by_key(|t| t.len()).map_or("f32", |t| t.dtype.name())
}

/// What the model recommends. One that says nothing of sampling gets what chats commonly use: drawing from
/// the whole distribution as it is makes small models ramble.
fn default_sampling(generation: &GenerationDefaults) -> SamplingParams {
    let g = generation;
    let silent = (g.do_sample, g.temperature, g.top_k, g.top_p, g.min_p) == (None, None, None, None, None);
    let (temperature, top_k, top_p) = if silent { (0.7, 40, 0.95) } else { (1.0, 0, 1.0) };
    SamplingParams {
        temperature: if g.do_sample == Some(false) { 0.0 } else { g.temperature.unwrap_or(temperature) },
        top_k: g.top_k.unwrap_or(top_k),
        top_p: g.top_p.unwrap_or(top_p),
        min_p: g.min_p.unwrap_or(0.0),
        repetition_penalty: g.repetition_penalty.unwrap_or(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_recommends_nothing_is_not_drawn_from_as_it_is() {
        let says = |do_sample, temperature| {
            let says = GenerationDefaults { do_sample, temperature, ..GenerationDefaults::default() };
            let p = default_sampling(&says);
            (p.temperature, p.top_k, p.top_p)
        };
        assert_eq!(says(None, None), (0.7, 40, 0.95));
        assert_eq!(says(Some(true), Some(0.6)), (0.6, 0, 1.0));
        assert_eq!(says(Some(false), Some(0.6)).0, 0.0);
    }
}
