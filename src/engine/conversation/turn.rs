//! A turn: finds the longest kept prefix of the prompt, prepares the chain to prefill the rest and generate the answer, and
//! reports the result.

use super::super::chain::Generation;
use super::super::context::Context;
use super::super::loaded::Loaded;
use super::super::prompt::{Encoding, ends_thinking, stretches};
use super::super::reply::{Reply, flat_of};
use super::super::snapshots::Worth;
use super::{Conversation, Halt, Job, Work};
use crate::backend::Backend;
use crate::cache::CacheError;
use crate::protocol::{
    ChainsReport, ChainsRequest, DENSE_TURN, Event, EventSender, FORK_TURN, GenerateRequest, LogEntry, Piece,
    PresenceRequest, SamplingParams, StopReason, Token, TurnReport, count,
};
use crate::system;
use crate::tokenizer::flat::{CLOSE, OPEN};
use crate::tokenizer::flatten;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The state that a turn starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Base {
    /// The current context, which the prompt continues.
    Current,
    /// The snapshot of this index.
    Kept(usize),
    Nothing,
}

/// The state to return to if the turn fails.
struct Start {
    log: Vec<LogEntry>,
    flat: String,
    pending: Option<Token>,
}

pub(in crate::engine) struct Turn {
    request: GenerateRequest,
    seed: u64,
    /// Canonical text of the prompt.
    flat: String,
    /// Bytes of it that the state held for which the rest was encoded.
    skip: usize,
    encoding: Option<Encoding>,
    /// `None` until the turn changes the conversation.
    start: Option<Start>,
    prompt_tokens: usize,
    reused: usize,
    /// Tokens of the prompt that are prefilled.
    pub prefilled: usize,
    started: Instant,
    prefill_started: Option<Instant>,
    /// The answer, once it has ended.
    generation: Option<Generation>,
    /// The chains that answered, once one has won.
    chains: Option<Box<ChainsReport>>,
    /// Most distinct pages that they and the prompt held.
    shared_pages: Option<usize>,
}

impl Turn {
    fn new(request: GenerateRequest) -> Self {
        Self {
            seed: request.seed.unwrap_or_else(random_seed),
            flat: flatten(&request.prompt),
            request,
            skip: 0,
            encoding: None,
            start: None,
            prompt_tokens: 0,
            reused: 0,
            prefilled: 0,
            started: system::now(),
            prefill_started: None,
            generation: None,
            chains: None,
            shared_pages: None,
        }
    }

    /// The number of the turn in the conversation.
    pub fn id(&self) -> u64 {
        self.request.turn
    }

    /// Whether it waits for the tokens of its prompt.
    pub fn is_encoding(&self) -> bool {
        self.encoding.is_some()
    }

    pub fn prompt(&self) -> &[Piece] {
        &self.request.prompt
    }

    pub fn max_tokens(&self) -> usize {
        self.request.max_tokens.unwrap_or(usize::MAX)
    }

    /// Whether several chains are to answer and were not forked yet.
    pub fn wants_chains(&self) -> bool {
        self.request.chains.is_some() && !self.is_aside()
    }

    pub fn take_chains(&mut self) -> Option<ChainsRequest> {
        self.request.chains.take()
    }

    /// Sets what the report says of the sampling.
    pub fn set_sampling(&mut self, sampling: SamplingParams) {
        self.request.sampling = sampling;
    }

    /// Sets the result of the vote, and the most distinct pages that the chains and the prompt held.
    pub fn set_chains(&mut self, report: ChainsReport, shared_pages: usize) {
        self.chains = Some(Box::new(report));
        self.shared_pages = Some(shared_pages);
    }

    /// Whether a chain has won, whose reply is replayed.
    pub fn is_decided(&self) -> bool {
        self.chains.is_some()
    }

    /// Whether it is answered in a fork.
    fn is_aside(&self) -> bool {
        self.id() == FORK_TURN || self.is_dense()
    }

    /// Whether it is answered from a cache of its own that drops nothing.
    pub fn is_dense(&self) -> bool {
        self.id() == DENSE_TURN
    }
}

impl Conversation {
    pub(in crate::engine) fn begin_turn<B: Backend>(
        &mut self,
        m: &Loaded<B>,
        request: GenerateRequest,
    ) -> (Work, Option<Halt>) {
        let mut turn = Box::new(Turn::new(request));
        // Do not count the marks around control tokens.
        let marks = (OPEN.len_utf8() + CLOSE.len_utf8()) * turn.flat.matches(OPEN).count();
        let limit = m.info.template.limit;
        if let Some(why) = limit.and_then(|limit| limit.refusal("the prompt", turn.flat.len() - marks)) {
            return (Work::Answer(turn), Some(Halt::ContextFull(why)));
        }
        self.encode(m, &mut turn);
        (Work::Answer(turn), None)
    }

    /// Starts to encode the part of the prompt that the longest matching state does not hold.
    fn encode<B: Backend>(&self, m: &Loaded<B>, turn: &mut Turn) {
        turn.skip = self.skip_of(m, turn);
        let tokenizer = &m.vocabulary.tokenizer;
        let stretches = stretches(tokenizer, &turn.request.prompt, turn.skip, &self.replies);
        turn.encoding = Some(Encoding::start(tokenizer, stretches));
    }

    /// Bytes of the prompt's text that the state holds which the turn would start from now.
    fn skip_of<B: Backend>(&self, m: &Loaded<B>, turn: &Turn) -> usize {
        self.context_of(m, self.turn_base(m, turn)).map_or(0, |context| context.flat.len())
    }

    /// Starts the turn once its prompt is encoded. If it was cancelled, it ends before anything changes.
    pub(in crate::engine) fn continue_encoding<B: Backend>(&mut self, m: &mut Loaded<B>) {
        let is_encoding = |job: &mut Job| matches!(&job.work, Work::Answer(turn) if turn.is_encoding());
        let Some(mut job) = self.job.take_if(is_encoding) else { return };
        if let Work::Answer(turn) = &mut job.work
            && let Some(encoding) = turn.encoding.take()
        {
            match encoding.poll() {
                _ if job.cancelled => job.halt = Some(Halt::Cancelled),
                None => turn.encoding = Some(encoding),
                // The snapshot was released for another conversation.
                Some(Ok(_)) if self.skip_of(m, turn) != turn.skip => self.encode(m, turn),
                Some(tokens) => {
                    let tokens = tokens.map_err(|error| Halt::Error(format!("{error:#}")));
                    job.halt = tokens.and_then(|tokens| self.start_turn(m, &job.events, turn, tokens)).err();
                }
            }
        }
        self.job = Some(job);
    }

    /// The state that the turn starts from. A cache that drops nothing has to be filled from the beginning.
    fn turn_base<B: Backend>(&self, m: &Loaded<B>, turn: &Turn) -> Base {
        if turn.is_dense() { Base::Nothing } else { self.base_of(m, &turn.flat) }
    }

    /// The state whose text is the longest that begins `flat`.
    pub(in crate::engine) fn base_of<B: Backend>(&self, m: &Loaded<B>, flat: &str) -> Base {
        let current = &self.chain.context;
        let continues = !current.flat.is_empty() && flat.starts_with(&current.flat);
        let goes_on = flat.len() > current.flat.len() || current.pending.is_some();
        let kept = m.snapshots.longest_prefix(self.id(), flat).map(|i| (i, m.snapshots.get(i).context.flat.len()));
        match kept.filter(|(_, len)| *len > 0) {
            Some((_, len)) if continues && goes_on && current.flat.len() >= len => Base::Current,
            None if continues && goes_on => Base::Current,
            Some((i, _)) => Base::Kept(i),
            None => Base::Nothing,
        }
    }

    pub(in crate::engine) fn context_of<'a, B: Backend>(&'a self, m: &'a Loaded<B>, base: Base) -> Option<&'a Context> {
        match base {
            Base::Current => Some(&self.chain.context),
            Base::Kept(i) => Some(&m.snapshots.get(i).context),
            Base::Nothing => None,
        }
    }

    /// Makes the base the current context and gives the chain its work. `encoded`: the prompt's tokens after the base.
    fn start_turn<B: Backend>(
        &mut self,
        m: &mut Loaded<B>,
        events: &EventSender,
        turn: &mut Turn,
        encoded: Vec<Token>,
    ) -> Result<(), Halt> {
        let from = self.turn_base(m, turn);
        let base = self.context_of(m, from);
        turn.reused = base.map_or(0, |base| base.len(&m.runner));
        let mut todo: Vec<Token> = base.and_then(|base| base.pending).into_iter().chain(encoded).collect();
        turn.prompt_tokens = turn.reused + todo.len();
        let context = m.runner.context();
        if turn.prompt_tokens >= context {
            return Err(Halt::ContextFull(format!(
                "the prompt has {} tokens, and the context holds {} with the answer",
                count(turn.prompt_tokens),
                count(context)
            )));
        }
        turn.prefilled = todo.len();
        let Some(last) = todo.pop() else { return Err(Halt::Error("the prompt is empty".into())) };
        if turn.is_aside() {
            let eviction = self.eviction && !turn.is_dense();
            self.start_fork(m, from, eviction).map_err(|e| Halt::CacheFull(e.to_string()))?;
        } else {
            let start = base.unwrap_or(&self.chain.context);
            turn.start = Some(Start { log: start.log.clone(), flat: start.flat.clone(), pending: start.pending });
            if from != Base::Current {
                self.release_twin(&mut m.runner);
            }
            // A pin applies before the tokens that it pins.
            let shareable = if turn.request.pin.is_none() { &todo[..] } else { &[] };
            self.start_from(m, from, !todo.is_empty(), shareable).map_err(|e| Halt::CacheFull(e.to_string()))?;
            turn.reused = self.chain.context.len(&m.runner);
            turn.prefilled = turn.prompt_tokens - turn.reused;
            drop(todo.drain(..todo.len() + 1 - turn.prefilled));
        }
        events.event(Event::TurnStarted {
            turn: turn.id(),
            prompt_tokens: turn.prompt_tokens,
            reused: turn.reused,
            todo: turn.prefilled,
        });
        if !turn.is_aside() {
            self.follow_eviction_here(m, events).map_err(|e| Halt::CacheFull(e.to_string()))?;
            if turn.wants_chains() && self.twin_wanted {
                // It would have to be fed every chain. The next ordinary answer makes it again.
                self.release_twin(&mut m.runner);
                events.notice("several chains have no twin; the next ordinary answer has one again");
            } else {
                self.begin_twin(m);
            }
        }
        if let Some(text) = &turn.request.pin {
            self.pin_prompt(m, &todo, text);
        }
        turn.prefill_started = Some(system::now());
        self.chain.context.flat.clone_from(&turn.flat);
        self.chain.context.pending = Some(last);
        self.chain.prefill(todo);
        let reply = Reply::new(&m.vocabulary.tokenizer, ends_thinking(&turn.request.prompt));
        let generation = Generation::new(&turn.request, turn.seed, reply);
        self.chain.begin_answer(&m.runner, generation);
        self.keep_prompt_end(m);
        Ok(())
    }

    /// Makes a fork of `base` the chain's context, beside the conversation's own. On an error nothing has changed.
    pub(super) fn start_fork<B: Backend>(
        &mut self,
        m: &mut Loaded<B>,
        base: Base,
        eviction: bool,
    ) -> Result<(), CacheError> {
        // Its sequence may be needed; the next answer makes it again.
        self.release_twin(&mut m.runner);
        let Loaded { runner, snapshots, .. } = m;
        let mut fork = match base {
            Base::Current => self.chain.context.fork(runner),
            Base::Kept(i) => snapshots.get(i).context.fork(runner),
            Base::Nothing => Context::new(runner, eviction),
        }?;
        fork.set_dial(runner, self.dial);
        if let Err(error) = fork.set_eviction(runner, eviction) {
            runner.release(fork.seq);
            return Err(error);
        }
        self.beside = Some(std::mem::replace(&mut self.chain.context, fork));
        Ok(())
    }

    /// Makes `base` the current context and keeps a snapshot of the state before this turn. `adds`: the prompt is longer
    /// than the base, so that the base itself is worth keeping. `tokens`: what will be fed to an empty base, where
    /// another conversation's state may serve.
    fn start_from<B: Backend>(
        &mut self,
        m: &mut Loaded<B>,
        base: Base,
        adds: bool,
        tokens: &[Token],
    ) -> Result<(), CacheError> {
        let (owner, mut worth) = (self.id(), Worth::TurnStart);
        if let Base::Kept(i) = base {
            let kept = m.snapshots.take(i);
            let left = std::mem::replace(&mut self.chain.context, kept.context);
            m.snapshots.insert(&mut m.runner, owner, Worth::Earlier, left);
            if kept.worth == Worth::PromptEnd && !adds {
                worth = Worth::PromptEnd;
            }
        }
        if worth == Worth::TurnStart {
            m.snapshots.leave_turn(&mut m.runner, owner, |_| false);
        }
        let start = if base == Base::Nothing {
            let fresh = m.begin_context(self.eviction, self.dial, tokens)?;
            std::mem::replace(&mut self.chain.context, fresh)
        } else {
            m.with_sequence(|runner| self.chain.context.fork(runner))?
        };
        m.snapshots.insert(&mut m.runner, owner, worth, start);
        Ok(())
    }

    /// Keeps a snapshot at the end of the prompt, for regenerate, once the prompt is prefilled up to its last token.
    pub(in crate::engine) fn keep_prompt_end<B: Backend>(&mut self, m: &mut Loaded<B>) {
        let at_end = self.chain.generation.as_ref().is_some_and(|g| g.generated.is_empty());
        let at_end = at_end && self.beside.is_none() && self.chain.tokens_left() == 0;
        if at_end
            && !m.snapshots.has(self.id(), Worth::PromptEnd)
            && let Ok(end) = m.with_sequence(|runner| self.chain.context.fork(runner))
        {
            m.snapshots.insert(&mut m.runner, self.id(), Worth::PromptEnd, end);
        }
    }

    /// Ends a turn. A cancelled answer is kept as far as it went; a turn that fails otherwise returns cache and log to the
    /// state at its start.
    pub(in crate::engine) fn end_answer<B: Backend>(
        &mut self,
        m: &mut Loaded<B>,
        events: EventSender,
        mut turn: Box<Turn>,
        halt: Option<Halt>,
    ) {
        if turn.is_aside() {
            if let Some((kind, text)) = self.chain.finish_text() {
                events.event(Event::Text { turn: turn.id(), kind, text });
            }
            turn.generation = self.chain.stop();
            self.leave_fork(&mut m.runner);
            self.report(m, &events, *turn, halt);
            return self.end_job(m);
        }
        let answered = self.chain.generation.as_ref().is_some_and(|g| !g.generated.is_empty());
        let halt = match halt {
            None | Some(Halt::Cancelled) if answered => {
                self.end_text(m, &events, &turn);
                None
            }
            halt => halt,
        };
        turn.generation = self.chain.stop();
        if let (Some(_), Some(start)) = (&halt, &turn.start)
            && self.go_back(m, &events, start)
        {
            let work = Work::Undo(turn, halt.unwrap_or(Halt::Cancelled));
            self.job = Some(Job { events, cancelled: false, halt: None, work });
            return;
        }
        self.report(m, &events, *turn, halt);
        self.end_job(m);
    }

    /// Makes the generated answer a part of the conversation.
    fn end_text<B: Backend>(&mut self, m: &mut Loaded<B>, events: &EventSender, turn: &Turn) {
        if let Some((kind, text)) = self.chain.finish_text() {
            events.event(Event::Text { turn: turn.id(), kind, text });
        }
        let Some(generation) = &mut self.chain.generation else { return };
        generation.stop.get_or_insert(StopReason::Cancelled);
        self.replies.insert(turn.id(), generation.generated.clone());
        if self.chain.is_replaying() {
            // Cancelled while preempted: the next turn prefills the tokens that were not replayed.
            let context = &mut self.chain.context;
            (context.flat, context.pending) = (flat_of(&m.vocabulary.tokenizer, context.tokens()).0, None);
            self.settle_eviction(m, events);
        }
    }

    /// Returns to the state before the turn. Returns true if its snapshot is gone, so that the log has to be replayed.
    fn go_back<B: Backend>(&mut self, m: &mut Loaded<B>, events: &EventSender, start: &Start) -> bool {
        let kept = m.snapshots.take_start(self.id());
        m.snapshots.leave_turn(&mut m.runner, self.id(), |_| true);
        match kept {
            Some(kept) => self.replace_context(&mut m.runner, kept),
            None if self.chain.context.log == start.log => self.set_text(start),
            None => {
                self.reset_context(&mut m.runner, true);
                self.chain.replay(&start.log);
                return true;
            }
        }
        self.settle_eviction(m, events);
        false
    }

    fn set_text(&mut self, start: &Start) {
        self.chain.context.flat.clone_from(&start.flat);
        self.chain.context.pending = start.pending;
    }

    /// Ends the replay of the log of the turn's start, which `halt` may have ended early.
    pub(in crate::engine) fn end_undo<B: Backend>(
        &mut self,
        m: &mut Loaded<B>,
        events: &EventSender,
        turn: Turn,
        why: Halt,
        halt: Option<Halt>,
    ) {
        self.end_replay(m, events, halt);
        if let Some(start) = turn.start.as_ref().filter(|start| start.log == self.chain.context.log) {
            self.set_text(start);
        }
        self.settle_eviction(m, events);
        self.report(m, events, turn, Some(why));
    }

    fn report<B: Backend>(&mut self, m: &mut Loaded<B>, events: &EventSender, turn: Turn, halt: Option<Halt>) {
        m.snapshots.trim(&mut m.runner, self.id(), self.chain.context.seq);
        m.trim();
        let mut figures = self.figures(m);
        figures.shared_pages = turn.shared_pages;
        let presence = (!turn.is_aside()).then(|| self.presence(m, &PresenceRequest::default()));
        let twin = turn.generation.as_ref().and_then(|g| self.twin_report(m, &g.generated));
        let aside = turn.is_aside();
        let forgotten_slots = self.tell_forgotten(events);
        let (log_base, log) = if aside { (0, Vec::new()) } else { self.untold() };
        let g = turn.generation.as_ref();
        let in_context = halt.is_none() && !aside;
        let (stop_reason, detail) = match halt {
            None => (g.and_then(|g| g.stop).unwrap_or(StopReason::End), None),
            Some(Halt::Cancelled) => (StopReason::Cancelled, None),
            Some(Halt::CacheFull(why)) => (StopReason::CacheFull, Some(why)),
            Some(Halt::ContextFull(why)) => (StopReason::ContextFull, Some(why)),
            Some(Halt::Error(why)) => (StopReason::Error, Some(why)),
        };
        let first_token = g.and_then(|g| g.timings.first_token);
        let prefill = turn.prefill_started.zip(first_token).map_or(0.0, |(from, to)| (to - from).as_secs_f64());
        let report = TurnReport {
            turn: turn.id(),
            stop_reason,
            detail,
            prompt_tokens: turn.prompt_tokens,
            reused_tokens: turn.reused,
            answer_tokens: g.map_or(0, |g| g.reply.answer_tokens),
            reasoning_tokens: g.map_or(0, |g| g.reply.reasoning_tokens),
            ttft_ms: first_token.map(|t| ms(t - turn.started)),
            prefill_tok_s: (prefill > 0.0).then(|| turn.prefilled as f64 / prefill),
            decode_tok_s: g.and_then(Generation::decode_tok_s),
            reasoning_ms: g.and_then(|g| g.timings.reasoning_end).zip(first_token).map(|(end, first)| ms(end - first)),
            seed: turn.seed,
            sampling: turn.request.sampling,
            eviction: self.eviction,
            forgotten_slots,
            kv: figures.kv(),
            device_bytes: figures.device_bytes,
            twin: twin.map(Box::new),
            chains: turn.chains,
            log_base,
            log,
            thought_closed_at: g.and_then(|g| g.thought_closed_at),
            repeats_at: g.and_then(|g| g.repeats_at),
            generated: turn.generation.map_or_else(Vec::new, |g| g.generated),
            pending: Some(self.chain.context.pending.filter(|_| !aside)),
            in_context,
            presence: presence.map(Arc::new),
        };
        // A turn that is refused before it answers is not saved.
        let refused = !report.in_context && report.generated.is_empty();
        if !aside && !refused {
            self.reported.clone_from(&self.chain.context.log);
            self.disk.changed();
        }
        self.publish_figures(m, &figures);
        events.event(Event::TurnDone(Box::new(report)));
        if refused {
            self.tell_log(events);
        }
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// 32 bits: easy to type again, and exact in JSON.
fn random_seed() -> u64 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u32::from_le_bytes(bytes) as u64,
        Err(_) => std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos() as u32 as u64),
    }
}
