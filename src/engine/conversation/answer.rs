//! Serves a turn: its prompt, its answer, and the report.

use super::super::context::Context;
use super::super::loaded::Loaded;
use super::super::reply::{flat_of, tokens_within};
use super::super::snapshots::Worth;
use super::asked::Asked;
use super::halt::Halt;
use super::job::{Job, Work};
use super::said;
use super::state::Conversation;
use super::turn::{Base, Start, Turn, replaced};
use crate::backend::Backend;
use crate::cache::CacheError;
use crate::protocol::{Event, EventSender, GenerateRequest, PresenceRequest, StopReason, Token, TurnReport};
use std::sync::Arc;

/// Least tokens of a beginning that is kept for other prompts.
const LEAST_SHARED: usize = 64;

/// Tokens at the beginning of a prompt after which its state is kept for others: those within
/// `bytes` of its text, in whole chunks where results depend on them.
fn shared_tokens<B: Backend>(m: &Loaded<B>, tokens: &[Token], bytes: usize) -> usize {
    let n = if bytes == 0 { 0 } else { tokens_within(&m.vocabulary.tokenizer, tokens, bytes) };
    let n = m.runner.chunk().map_or(n, |chunk| n - n % chunk);
    if n < LEAST_SHARED { 0 } else { n }
}

impl<B: Backend> Conversation<B> {
    pub fn begin_turn(&mut self, m: &Loaded<B>, request: GenerateRequest) -> (Work, Option<Halt>) {
        let mut turn = Box::new(Turn::new(request));
        let refused = turn.asked.check_length(m).and_then(|()| turn.asked.check_options(m)).err();
        if refused.is_none() {
            self.encode(m, &mut turn);
        }
        (Work::Answer(turn), refused)
    }

    /// Starts to encode the part of the prompt that the longest matching state does not hold.
    fn encode(&self, m: &Loaded<B>, turn: &mut Turn) {
        turn.skip = self.skip_of(m, turn);
        turn.asked.encode(m, turn.skip, &self.replies);
    }

    /// Bytes of the prompt's text that the state holds which the turn would start from now.
    fn skip_of(&self, m: &Loaded<B>, turn: &Turn) -> usize {
        let base = self.context_of(m, self.base_of(m, &turn.asked.flat));
        base.filter(|context| !context.is_cut).map_or(0, |context| context.flat.len())
    }

    /// Starts the turn once its prompt is encoded. If it was cancelled, it ends before anything
    /// changes.
    pub fn continue_encoding(&mut self, m: &mut Loaded<B>) {
        let is_encoding = |job: &mut Job| matches!(&job.work, Work::Answer(turn) if turn.is_encoding());
        let Some(mut job) = self.job.take_if(is_encoding) else { return };
        if let Work::Answer(turn) = &mut job.work {
            let encoded = if job.cancelled { Err(Halt::Cancelled) } else { turn.asked.encoded() };
            job.halt = match encoded {
                Ok(None) => None,
                // The snapshot was released for another conversation.
                Ok(Some(_)) if self.skip_of(m, turn) != turn.skip => {
                    self.encode(m, turn);
                    None
                }
                Ok(Some(tokens)) => self.start_turn(m, &job.events, turn, tokens).err(),
                Err(halt) => {
                    turn.asked.stop_encoding();
                    Some(halt)
                }
            };
        }
        self.job = Some(job);
    }

    /// The state that a turn with this text begins with.
    pub fn base_of(&self, m: &Loaded<B>, flat: &str) -> Base {
        self.longest_base(m, flat, self.unswitched)
    }

    /// The state whose text is the longest that begins `flat`. `unswitched`: of those in which
    /// eviction was never switched.
    pub fn longest_base(&self, m: &Loaded<B>, flat: &str, unswitched: bool) -> Base {
        let current = &self.chain.context;
        let fit = |context: &Context| !(unswitched && context.was_switched(m.eviction));
        let continues = !current.flat.is_empty() && flat.starts_with(&current.flat) && fit(current);
        let goes_on = flat.len() > current.flat.len() || current.pending.is_some();
        let kept = m.snapshots.longest_prefix(self.id(), flat, fit).map(|i| (i, m.snapshots.get(i).context.flat.len()));
        match kept.filter(|(_, len)| *len > 0) {
            Some((_, len)) if continues && goes_on && current.flat.len() >= len => Base::Current,
            None if continues && goes_on => Base::Current,
            Some((i, _)) => Base::Kept(i),
            None => Base::Nothing,
        }
    }

    pub fn context_of<'a>(&'a self, m: &'a Loaded<B>, base: Base) -> Option<&'a Context> {
        match base {
            Base::Current => Some(&self.chain.context),
            Base::Kept(i) => Some(&m.snapshots.get(i).context),
            Base::Nothing => None,
        }
    }

    /// Makes the base the current context and gives the chain its work. `encoded`: the prompt's
    /// tokens after the base.
    fn start_turn(
        &mut self,
        m: &mut Loaded<B>,
        events: &EventSender,
        turn: &mut Turn,
        mut encoded: Vec<Token>,
    ) -> Result<(), Halt> {
        let mut from = self.base_of(m, &turn.asked.flat);
        if let Some(cut) = self.context_of(m, from).filter(|base| base.is_cut) {
            let n = cut.len(&m.runner);
            match encoded.len() > n && cut.tokens().eq(encoded[..n].iter().copied()) {
                true => drop(encoded.drain(..n)),
                false => from = Base::Nothing,
            }
        }
        let base = self.context_of(m, from);
        let mut todo: Vec<Token> = base.and_then(|base| base.pending).into_iter().chain(encoded).collect();
        let last = turn.asked.measure(&m.runner, base.map_or(0, |base| base.len(&m.runner)), &mut todo)?;
        let start = base.unwrap_or(&self.chain.context);
        turn.start = Some(Start::of(start));
        if from != Base::Current {
            let prompt = base.into_iter().flat_map(Context::tokens).chain(todo.iter().copied()).chain([last]);
            turn.asked.replaced = replaced(&self.chain.context, prompt);
            self.release_twin(&mut m.runner);
        }
        // A pin applies before the tokens that it pins.
        let shareable = if turn.pin.is_none() { &todo[..] } else { &[] };
        let shared = if from == Base::Nothing { shared_tokens(m, shareable, turn.asked.ask.shared) } else { 0 };
        self.start_from(m, from, !todo.is_empty(), shareable)?;
        self.count_fetched_from_here(m);
        let asked = &mut turn.asked;
        asked.reused = self.chain.context.len(&m.runner);
        asked.prefilled = asked.prompt_tokens - asked.reused;
        drop(todo.drain(..todo.len() + 1 - asked.prefilled));
        let Asked { prompt_tokens, reused, prefilled: todo_tokens, .. } = *asked;
        events.event(Event::TurnStarted { turn: turn.id, prompt_tokens, reused, todo: todo_tokens });
        self.follow_eviction_here(m, events)?;
        if turn.wanted.is_some() && self.twin_wanted {
            // It would have to be fed every chain. The next ordinary answer makes it again.
            self.release_twin(&mut m.runner);
            events.notice("several chains have no twin; the next ordinary answer has one again");
        } else {
            self.begin_twin(m);
        }
        if let Some(text) = &turn.pin {
            self.pin_prompt(m, &todo, text);
        }
        turn.asked.begin(m, &mut self.chain, todo, last);
        self.chain.share_at = Some(shared).filter(|shared| *shared > reused);
        self.keep_prompt_end(m);
        Ok(())
    }

    /// Keeps a snapshot at the end of what the prompt shares with others, once the prompt is
    /// prefilled up to there.
    pub fn keep_shared(&mut self, m: &mut Loaded<B>) {
        let context = &self.chain.context;
        if self.chain.share_at != Some(context.len(&m.runner)) {
            return;
        }
        self.chain.share_at = None;
        if context.is_everybodys(&m.runner)
            && !context.awaits_far
            && !m.snapshots.shares(&context.log)
            && let Ok(fork) = m.with_sequence(|runner| context.fork(runner))
        {
            let shared = Context { flat: String::new(), pending: None, is_cut: false, ..fork };
            m.snapshots.share(&mut m.runner, shared);
        }
    }

    /// Makes `base` the current context and keeps a snapshot of the state before this turn. `adds`:
    /// the prompt is longer than the base, so the base itself is worth keeping. `tokens`: the
    /// tokens to feed to an empty base, for which another conversation's state may serve.
    fn start_from(&mut self, m: &mut Loaded<B>, base: Base, adds: bool, tokens: &[Token]) -> Result<(), CacheError> {
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

    /// Keeps a snapshot at the end of the prompt, for regenerate, once the prompt is prefilled up
    /// to its last token.
    pub fn keep_prompt_end(&mut self, m: &mut Loaded<B>) {
        let at_end = self.chain.generation.as_ref().is_some_and(|g| g.generated.is_empty());
        if at_end
            && self.chain.tokens_left() == 0
            && !m.snapshots.has(self.id(), Worth::PromptEnd)
            && let Ok(end) = m.with_sequence(|runner| self.chain.context.fork(runner))
        {
            m.snapshots.insert(&mut m.runner, self.id(), Worth::PromptEnd, end);
        }
    }

    /// Ends a turn. A cancelled answer is kept up to its last token; a turn that fails otherwise
    /// returns cache and log to the state at its start.
    pub fn end_answer(&mut self, m: &mut Loaded<B>, events: EventSender, mut turn: Box<Turn>, halt: Option<Halt>) {
        let answered = self.chain.generation.as_ref().is_some_and(|g| !g.generated.is_empty());
        let halt = match halt {
            None | Some(Halt::Cancelled) if answered => {
                self.end_text(m, &events, &turn);
                None
            }
            halt => halt,
        };
        turn.asked.generation = self.chain.stop();
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
    fn end_text(&mut self, m: &mut Loaded<B>, events: &EventSender, turn: &Turn) {
        let rest = self.chain.finish_text();
        said::send(events, turn.id, None, self.chain.likely_mut(), rest);
        let Some(generation) = &mut self.chain.generation else { return };
        generation.stop.get_or_insert(StopReason::Cancelled);
        self.replies.insert(turn.id, generation.generated.clone());
        if self.chain.is_replaying() {
            // Cancelled while preempted: the next turn prefills the tokens that were not replayed.
            let context = &mut self.chain.context;
            (context.flat, context.pending) = (flat_of(&m.vocabulary.tokenizer, context.tokens()).0, None);
            self.settle_eviction(m, events);
        }
    }

    /// Returns to the state before the turn. Returns true if its snapshot is gone, so that the log
    /// has to be replayed.
    fn go_back(&mut self, m: &mut Loaded<B>, events: &EventSender, start: &Start) -> bool {
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
        self.chain.context.is_cut = start.is_cut;
    }

    /// Ends the replay of the log of the turn's start, which `halt` may have ended early.
    pub fn end_undo(&mut self, m: &mut Loaded<B>, events: &EventSender, turn: Turn, why: Halt, halt: Option<Halt>) {
        self.end_replay(m, events, halt);
        if let Some(start) = turn.start.as_ref().filter(|start| start.log == self.chain.context.log) {
            self.set_text(start);
        }
        self.settle_eviction(m, events);
        self.report(m, events, turn, Some(why));
    }

    fn report(&mut self, m: &mut Loaded<B>, events: &EventSender, turn: Turn, halt: Option<Halt>) {
        m.snapshots.trim(&mut m.runner, self.id(), self.chain.context.seq);
        m.trim();
        let mut figures = self.figures(m);
        figures.shared_pages = turn.shared_pages;
        let presence = self.presence(m, &PresenceRequest::default());
        let twin = turn.asked.generation.as_ref().and_then(|g| self.twin_report(m, &g.generated));
        let in_context = halt.is_none();
        if in_context {
            self.unread = 0;
        }
        let forgotten_slots = self.tell_forgotten(events, in_context);
        let (log_base, log) = self.untold();
        let report = TurnReport {
            turn: turn.id,
            joules: turn.asked.joules(m),
            forgotten_slots,
            twin: twin.map(Box::new),
            chains: turn.chains,
            log_base,
            log,
            pending: Some(self.chain.context.pending),
            in_context,
            presence: Some(Arc::new(presence)),
            ..turn.asked.report(self.eviction, &figures, halt)
        };
        // A turn that is refused before it answers is not saved.
        let refused = !report.in_context && report.generated.is_empty();
        if !refused {
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
