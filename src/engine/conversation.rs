//! A conversation: its chain and its requests.
//!
//! Requests that change the conversation are served in order, each as a [`Job`].
//! [`Conversation::begin`] runs the part of a job before its steps, and [`Conversation::finish`]
//! the part after them. The worker runs the steps.

mod answer;
mod asked;
mod chains;
mod halt;
mod job;
mod probe;
mod said;
mod slot;
mod state;
mod turn;
mod width;

use super::chain::{Chain, Pushed};
use super::context::Context;
use super::disk::{DiskCache, Due};
use super::far_load::FarLoad;
use super::loaded::Loaded;
use super::presence::FedText;
use super::prompt::send_tokens;
use super::report::Figures;
use super::runner::{NonFinite, Runner};
use super::scheduler::Stage;
use super::snapshots::Worth;
use crate::backend::Backend;
use crate::cache::CacheError;
use crate::protocol::{
    Command, ConversationId, DraftReport, Event, EventSender, Outlet, Phase, Presence, PresenceRequest, SlotInfo,
    Snapshot, Token,
};
pub(super) use halt::Halt;
pub(super) use job::{Forgotten, Job, Work};
use probe::running::Running;
pub(super) use state::Conversation;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use turn::Base;

impl<B: Backend> Conversation<B> {
    pub fn id(&self) -> ConversationId {
        self.outlet.conversation()
    }

    /// Creates an empty conversation. Returns the outlet if no sequence is free.
    pub fn new(m: &mut Loaded<B>, outlet: Outlet) -> Result<Self, (Outlet, CacheError)> {
        let eviction = m.eviction;
        let mut context = match m.with_sequence(|runner| Context::new(runner, eviction)) {
            Ok(context) => context,
            Err(error) => return Err((outlet, error)),
        };
        context.set_dial(&mut m.runner, m.dial);
        Ok(Self {
            outlet,
            chain: Chain::idle(context),
            chains: None,
            twin: None,
            twin_wanted: false,
            reported: Vec::new(),
            replies: HashMap::new(),
            eviction: m.eviction,
            unswitched: false,
            dial: m.dial,
            decode_tok_s: None,
            unread: 0,
            fetched_before: Vec::new(),
            fed_text: FedText::new(&m.vocabulary.tokenizer),
            job: None,
            disk: DiskCache::default(),
            far_load: FarLoad::default(),
            queue: VecDeque::new(),
            late: VecDeque::new(),
            forgotten: Forgotten::default(),
            probes: Vec::new(),
        })
    }

    /// Goes on with the write of the cache to its file.
    pub fn write_cache(&mut self, m: &mut Loaded<B>) -> Due {
        if self.chain.context.awaits_far {
            return Due::Never;
        }
        let now = self.job.is_none().then_some(&self.chain.context);
        self.disk.go_on(m, now, &self.outlet)
    }

    /// Like [`Self::write_cache`], but until the file is complete, before the conversation is
    /// closed or replaced by another one.
    pub fn write_cache_at_close(&mut self, m: &mut Loaded<B>) {
        if self.chain.context.awaits_far && (!self.disk.has_changed() || !self.settle_far(m)) {
            return;
        }
        let now = self.job.is_none().then_some(&self.chain.context);
        self.disk.close(m, now, &self.outlet);
    }

    /// Releases all sequences.
    pub fn close(mut self, m: &mut Loaded<B>) {
        self.release_chains(m);
        let runner = &mut m.runner;
        m.snapshots.release_of(runner, self.id(), Worth::TurnStart);
        self.release_twin(runner);
        self.give_up_old_cache(runner);
        self.release_probes(runner);
        runner.release(self.chain.context.seq);
    }

    /// Receives a command. Some act at once, between two steps; others are queued.
    pub fn receive(&mut self, m: &mut Loaded<B>, events: EventSender, command: Command) {
        if matches!(
            command,
            Command::SetEviction(_) | Command::Pin { .. } | Command::Unpin(_) | Command::PinTokens { .. }
        ) {
            self.settle_far(m);
        }
        match command {
            Command::Cancel => {
                self.job.iter_mut().for_each(|job| job.cancelled = true);
                self.probes.iter_mut().for_each(|probe| probe.cancelled = true);
            }
            Command::Elect(chain) => self.elect(chain),
            Command::SetEviction(_)
            | Command::SetDial(_)
            | Command::Pin { .. }
            | Command::Unpin(_)
            | Command::PinTokens { .. }
                if self.is_replaying() =>
            {
                self.late.push_back((events, command));
            }
            Command::SetEviction(on) => self.toggle(m, &events, on),
            Command::SetTwin(on) => self.set_twin(m, &events, on),
            Command::SetDial(to) => self.set_dial(m, &events, to),
            Command::Pin { .. } | Command::Unpin(_) | Command::PinTokens { .. } => {
                self.change_pins(m, &events, command)
            }
            Command::Inspect { layer, head } => self.inspect(m, &events, layer, head),
            Command::Presence(request) => {
                let presence = self.presence(m, &request);
                events.event(Event::Presence(Arc::new(presence)));
            }
            Command::CountTokens { id, text } => {
                if let Some(tokens) = m.vocabulary.count_tokens(&text) {
                    events.event(Event::TokensCounted { id, tokens });
                }
            }
            Command::Encode(pieces) => send_tokens(&m.vocabulary.tokenizer, pieces, events),
            command => {
                self.queue.push_back((events, command));
                self.serve_next(m);
            }
        }
    }

    /// Starts to serve the next queued request if none is being served.
    pub fn serve_next(&mut self, m: &mut Loaded<B>) {
        while self.job.is_none() && !self.probes.iter().any(Running::is_queued) {
            let Some((events, command)) = self.queue.pop_front() else { return };
            if matches!(command, Command::Probe(_) | Command::Rewind(_)) && !self.settle_far(m) {
                return self.queue.push_front((events, command));
            }
            match command {
                Command::Clear => {
                    self.write_cache_at_close(m);
                    self.clear(m);
                }
                Command::KeepCache(file) => {
                    self.disk.set_file(file);
                    continue;
                }
                Command::Probe(probe) => {
                    self.begin_probe(m, events, probe);
                    continue;
                }
                Command::Rewind(pieces) => self.rewind(m, &events, &pieces),
                command => {
                    self.job = Some(Job { events, cancelled: false, halt: None, work: Work::New(command) });
                    return;
                }
            }
            m.trim();
            self.publish(m);
        }
    }

    /// Runs what a new job needs before its first step.
    pub fn begin(&mut self, m: &mut Loaded<B>) {
        self.settle_for_job(m);
        if let Some(job) = self.job.take_if(|job| matches!(job.work, Work::New(_))) {
            let Job { events, cancelled, work, .. } = job;
            let (work, halt) = match work {
                Work::New(Command::Generate(request)) => self.begin_turn(m, *request),
                Work::New(Command::Rebuild) => match self.begin_rebuild(m) {
                    Ok(work) => (work, None),
                    Err(why) => {
                        events.refuse("rebuild", why);
                        self.publish(m);
                        return self.end_job(m);
                    }
                },
                Work::New(Command::Restore(request)) => self.begin_restore(m, &events, *request),
                work => (work, None),
            };
            self.job = Some(Job { events, cancelled, halt, work });
        }
        self.continue_encoding(m);
        self.continue_load(m);
        if self.chain.context.awaits_far && self.chain.stage() == Stage::Decode {
            self.settle_far(m);
        }
        self.begin_chains(m);
    }

    /// Ends the job if its steps are done, if it was cancelled or if a step failed.
    pub fn finish(&mut self, m: &mut Loaded<B>) {
        self.late_commands(m);
        self.finish_chains(m);
        let done = self.chain.stage() == Stage::Done && self.chains.is_none() && !self.waits_for_twin();
        let Some(mut job) = self.job.take_if(|job| job.has_begun() && (done || job.cancelled || job.halt.is_some()))
        else {
            return;
        };
        let halt = job.halt.take().or_else(|| (!done).then_some(Halt::Cancelled));
        match job.work {
            Work::Answer(turn) => return self.end_answer(m, job.events, turn, halt),
            Work::Undo(turn, why) => self.end_undo(m, &job.events, *turn, why, halt),
            Work::Rebuild { beside, old } => {
                if let Some(work) = self.end_rebuild(m, &job.events, beside, old, halt) {
                    self.job = Some(Job { cancelled: false, halt: None, work, ..job });
                    return;
                }
            }
            Work::Restore { pending, .. } => self.end_restore(m, &job.events, pending, halt),
            Work::New(_) => {}
        }
        self.end_job(m);
    }

    /// Starts to serve the next request after a job.
    pub fn end_job(&mut self, m: &mut Loaded<B>) {
        self.job = None;
        self.late_commands(m);
        self.serve_next(m);
    }

    /// Whether there is work.
    pub fn is_busy(&self) -> bool {
        self.job.is_some() || !self.probes.is_empty()
    }

    /// Whether all work waits for a prompt to be encoded, or for the answers of chains to be
    /// checked.
    pub fn only_waits(&self) -> bool {
        let checks = self.chains.as_ref().is_some_and(|chains| chains.numbers().next().is_none());
        let encodes = matches!(&self.job, Some(Job { work: Work::Answer(turn), .. }) if turn.is_encoding());
        (self.job.is_none() || checks || encodes) && self.probes.iter().all(Running::is_encoding)
    }

    /// The conversation's own chain, or the one of this number.
    pub fn chain(&self, number: Option<usize>) -> Option<&Chain> {
        match number {
            None => Some(&self.chain),
            Some(number) => self.chains.as_ref()?.chain(number),
        }
    }

    pub fn chain_mut(&mut self, number: Option<usize>) -> Option<&mut Chain> {
        match number {
            None => Some(&mut self.chain),
            Some(number) => self.chains.as_mut()?.chain_mut(number),
        }
    }

    /// All chains: the conversation's own and those that answer.
    pub fn each_chain(&mut self) -> impl Iterator<Item = (Option<usize>, &mut Chain)> {
        let others = self.chains.iter_mut().flat_map(|chains| chains.each_mut());
        std::iter::once((None, &mut self.chain)).chain(others.map(|(number, chain)| (Some(number), chain)))
    }

    /// Frees the pages of a chain that is to wait.
    pub fn restart(&mut self, m: &mut Loaded<B>, number: Option<usize>) {
        self.note_pages(m);
        let runner = &mut m.runner;
        match (number, &mut self.chains) {
            (Some(number), Some(chains)) => chains.restart(runner, number, &self.chain.context),
            _ => self.chain.restart(runner, None),
        }
    }

    pub fn is_replaying(&self) -> bool {
        if self.chains.is_some() || self.far_load.has_failed() {
            return true;
        }
        match self.job.as_ref().map(|job| &job.work) {
            Some(Work::New(Command::Restore(_)) | Work::Restore { .. } | Work::Undo(..)) => true,
            _ => self.chain.is_replaying(),
        }
    }

    fn late_commands(&mut self, m: &mut Loaded<B>) {
        while !self.is_replaying()
            && let Some((events, command)) = self.late.pop_front()
        {
            self.receive(m, events, command);
        }
    }

    /// Receives a token that was sampled for a chain, at row `row` of the step.
    pub fn take(&mut self, m: &mut Loaded<B>, number: Option<usize>, token: Token, row: usize) {
        match number {
            Some(number) => self.chain_sampled(m, number, token, row),
            None => {
                if let Err(error) = self.keep_logits(&mut m.runner, row) {
                    self.give_up_twin(&mut m.runner, &format!("the twin stopped: {error}"));
                }
                self.sampled(m, token, row);
            }
        }
    }

    /// Receives that a chain's step has no token.
    pub fn not_finite(&mut self, m: &mut Loaded<B>, number: Option<usize>, error: NonFinite) {
        match number {
            Some(number) => self.end_chain(m, number, error),
            None => self.halt(Halt::Error(error.to_string())),
        }
    }

    fn sampled(&mut self, m: &mut Loaded<B>, token: Token, row: usize) {
        let Some(Job { events, work: Work::Answer(turn), .. }) = &mut self.job else { return };
        self.forgotten.untold.take().into_iter().for_each(|text| events.notice(text));
        let Pushed { said, repeats } = match self.chain.push(token, row, &mut m.runner, &m.vocabulary) {
            Ok(pushed) => pushed,
            Err(error) => return self.halt(Halt::Error(error.to_string())),
        };
        said::send(events, turn.id, None, self.chain.likely_mut(), said);
        if repeats {
            events.event(Event::Repeats { turn: turn.id, chain: None });
        }
        self.decode_tok_s = self.chain.decode_tok_s();
    }

    /// Ends the job because a step failed.
    pub fn halt(&mut self, why: Halt) {
        if let Some(job) = &mut self.job {
            job.halt = Some(why);
        }
    }

    fn toggle(&mut self, m: &mut Loaded<B>, events: &EventSender, on: bool) {
        if !m.has_policy() {
            return events.notice("the cache keeps everything: its policy is dense, and the switch does nothing");
        }
        if let Some(tokens) = m.runner.cache.geometry().policy.models_window() {
            let text =
                format!("the model's attention sees its newest {tokens} tokens only, and the switch does nothing");
            return events.notice(text);
        }
        self.eviction = on;
        let at_token = self.chain.context.len(&m.runner);
        self.disk.changed();
        match self.follow_eviction(m) {
            Ok(dropped_slots) => {
                events.event(Event::EvictionSet { on, at_token, dropped_slots });
                self.tell_log(events);
            }
            Err(error) => events.notice(format!("eviction stays as it was: {error}")),
        }
        self.publish(m);
    }

    /// Switches the sequence to the wanted dial and eviction state, and returns the number of slots
    /// dropped. Releases snapshots if the cache is full.
    pub fn follow_eviction(&mut self, m: &mut Loaded<B>) -> Result<u64, CacheError> {
        self.chain.context.set_dial(&mut m.runner, self.dial);
        loop {
            match self.chain.context.set_eviction(&mut m.runner, self.eviction) {
                Ok(dropped) => return Ok(dropped),
                Err(error) if !m.give_up_snapshot() => {
                    self.eviction = m.runner.cache.eviction(self.chain.context.seq);
                    return Err(error);
                }
                Err(_) => {}
            }
        }
    }

    /// Like [`Self::follow_eviction`], after going back to an earlier context: reports the toggle
    /// if it acts again there.
    pub fn follow_eviction_here(&mut self, m: &mut Loaded<B>, events: &EventSender) -> Result<(), CacheError> {
        let context = &self.chain.context;
        let (before, at_token) = (m.runner.cache.eviction(context.seq), context.len(&m.runner));
        let dropped_slots = self.follow_eviction(m)?;
        if self.eviction != before {
            events.event(Event::EvictionSet { on: self.eviction, at_token, dropped_slots });
        }
        Ok(())
    }

    /// Like [`Self::follow_eviction`], with a notice on failure.
    pub fn settle_eviction(&mut self, m: &mut Loaded<B>, events: &EventSender) {
        if let Err(error) = self.follow_eviction(m) {
            events.notice(format!("eviction stays as it was: {error}"));
        }
    }

    fn inspect(&self, m: &Loaded<B>, events: &EventSender, layer: usize, head: usize) {
        let g = m.runner.cache.geometry();
        if layer >= g.n_layers || head >= g.layer(layer).heads.count {
            return;
        }
        let metas = m.runner.cache.slot_metas(m.runner.backend(), self.chain.context.seq, layer, head);
        let slot =
            |meta: &crate::policy::SlotMeta| SlotInfo { position: meta.position() as u32, marked: meta.marked() };
        let mut slots: Vec<SlotInfo> = metas.iter().map(slot).collect();
        slots.sort_by_key(|s| s.position);
        events.event(Event::HeadPositions { layer, head, slots });
    }

    /// Reads which tokens the cache still holds.
    pub fn presence(&mut self, m: &Loaded<B>, request: &PresenceRequest) -> Presence {
        self.fed_text.presence(&m.runner, &m.vocabulary.tokenizer, &self.chain.context, request)
    }

    /// Releases the current context and replaces it.
    pub fn replace_context(&mut self, runner: &mut Runner<B>, context: Context) {
        let old = std::mem::replace(&mut self.chain.context, context);
        runner.release(old.seq);
    }

    /// Replaces the current context by an empty one. Snapshots are kept.
    pub fn reset_context(&mut self, runner: &mut Runner<B>, eviction: bool) {
        runner.release(self.chain.context.seq);
        self.chain.context = Context::new(runner, eviction).expect("a sequence was just released");
    }

    pub fn clear(&mut self, m: &mut Loaded<B>) {
        let runner = &mut m.runner;
        m.snapshots.release_of(runner, self.id(), Worth::TurnStart);
        self.release_twin(runner);
        self.far_load = FarLoad::default();
        self.reset_context(runner, self.eviction);
        self.chain.context.set_dial(runner, self.dial);
        self.disk.left_log();
        self.reported.clear();
        self.replies.clear();
        (self.decode_tok_s, self.unread) = (None, 0);
    }

    /// Activity of the conversation, for the status line.
    pub fn phase(&self, runner: &Runner<B>) -> Phase {
        let len = self.chain.context.len(runner);
        match self.job.as_ref().map(|job| &job.work) {
            Some(Work::Answer(turn)) => turn.phase(&self.chain),
            Some(Work::Restore { load: Some(load), .. }) => Phase::Rebuild { done: load.done(), total: load.total() },
            Some(Work::Rebuild { .. } | Work::Restore { .. } | Work::Undo(..)) => {
                Phase::Rebuild { done: len, total: len + self.chain.tokens_left() }
            }
            _ => self.probes.iter().find_map(|probe| probe.phase(runner)).unwrap_or_default(),
        }
    }

    /// Sends the progress of a rebuild or replay. Called before each prefill chunk.
    pub fn report_progress(&self, runner: &Runner<B>) {
        if let (Some(job), Phase::Rebuild { done, total }) = (&self.job, self.phase(runner)) {
            job.events.event(Event::Rebuilding { done, total });
        }
    }

    /// Reads the tables and publishes a snapshot.
    pub fn publish(&self, m: &Loaded<B>) {
        self.publish_figures(m, &self.figures(m));
    }

    /// Reads the tables: waits for the device.
    pub fn figures(&self, m: &Loaded<B>) -> Figures {
        // A probe that drops nothing is a twin too.
        let dense = || self.probes.iter().find_map(Running::dense);
        let twin = self.twin.as_ref().and_then(|twin| twin.seq).or_else(dense);
        let mut figures = Figures::read(&m.runner, self.chain.context.seq, twin);
        figures.counted = self.chain.counted(figures.seq());
        figures.fetched_before = self.fetched_before.clone();
        self.add_chains(m, &mut figures);
        figures
    }

    /// How much faster drafts make the answer, over all of its chains.
    fn draft_gain(&self) -> Option<f64> {
        let report = |chain: &Chain| Some(chain.generation.as_ref()?.drafting.as_ref()?.report);
        let chains = self.chains.iter().flat_map(|chains| chains.running());
        let reports = chains.chain([&self.chain]).filter_map(report);
        reports.fold(DraftReport::default(), DraftReport::and).gain()
    }

    pub fn publish_figures(&self, m: &Loaded<B>, figures: &Figures) {
        let (phase, gain) = (self.phase(&m.runner), self.draft_gain());
        let snapshot = figures.snapshot(phase, self.eviction, self.decode_tok_s, gain);
        let kept = m.snapshots.of(self.id()).filter(|one| self.chain.context.log.starts_with(&one.context.log));
        let kept = kept.map(|one| one.context.len(&m.runner)).collect();
        self.outlet.snapshot(Snapshot { kept, unread: self.unread, ..snapshot });
    }
}
