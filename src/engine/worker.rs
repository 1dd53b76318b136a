//! The engine's loop: receives requests, asks the scheduler for the next step and runs it.

use super::chain::{self, Chain};
use super::conversation::{Conversation, Halt};
use super::disk::Due;
use super::draft::Costs;
use super::head::{self, DraftRequest};
use super::loaded::Loaded;
use super::options::EngineOptions;
use super::runner::StepError;
use super::scheduler::{Id, Scheduler, Stage, Step};
use super::slots::{Choice, KeptSlots, Slots};
use super::snapshots::Worth;
use crate::backend::Backend;
use crate::protocol::{Command, ConversationId, EngineMessage, Event, GenerateRequest, Outlet, Request, RequestId};
use crate::tokenizer::flatten;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Minimum interval between snapshots during steps.
const SNAPSHOT_EVERY: Duration = Duration::from_millis(33);
/// Maximum rows of a step that several chains share when they draft: up to here a step reads the
/// weights about once.
const FEW_ROWS: usize = 8;
/// Polling interval while the only work is done elsewhere: encoding a prompt, or checking answers.
const ENCODING_POLL: Duration = Duration::from_millis(10);

/// Maximum drafts of each of `chains` chains in a step of at most `rows` rows.
fn max_drafts(rows: usize, chains: usize) -> usize {
    let rows = if chains > 1 { rows.min(FEW_ROWS) } else { rows };
    (rows / chains.max(1)).saturating_sub(1)
}

pub(super) struct Worker<B: Backend> {
    pub(super) model: Loaded<B>,
    pub(super) memory_bytes: Option<u64>,
    inbox: Receiver<EngineMessage>,
    pub(super) conversations: BTreeMap<ConversationId, Conversation<B>>,
    pub(super) scheduler: Scheduler,
    pub(super) slots: Slots,
    /// Where the caches of slots are kept.
    pub(super) kept_slots: Option<KeptSlots>,
    /// Cost of decode steps with drafts.
    costs: Costs,
    /// Seconds that the draft head took to guess the next step's drafts.
    drafting_s: f64,
    last_snapshot: Instant,
    /// Time at which cache files that are being written are continued.
    cache_due: Due,
    /// Whether the user has been notified, since work began, that the states for /undo were
    /// released.
    pub(super) said_undo_is_slow: bool,
    /// Whether the user has been notified that far pages were dropped.
    pub(super) said_far_is_full: bool,
}

impl<B: Backend> Worker<B> {
    pub fn new(model: Loaded<B>, options: &EngineOptions, inbox: Receiver<EngineMessage>) -> Self {
        Self {
            scheduler: Scheduler::new(model.runner.max_step(), model.runner.backend().about().chunk_tokens),
            model,
            slots: Slots::new(options.slots),
            kept_slots: None,
            memory_bytes: options.memory_bytes,
            inbox,
            conversations: BTreeMap::new(),
            costs: Costs::default(),
            drafting_s: 0.0,
            last_snapshot: Instant::now(),
            cache_due: Due::Never,
            said_undo_is_slow: false,
            said_far_is_full: false,
        }
    }

    /// Serves requests until the last conversation is closed.
    pub fn run(&mut self) {
        while self.receive() {
            let busy = self.conversations.values().filter(|c| c.is_busy()).count();
            self.model.alone = busy <= 1;
            for conversation in self.conversations.values_mut() {
                conversation.begin(&mut self.model);
            }
            self.finish();
            self.publish_if_due();
            self.step();
            self.step_beside();
            self.finish();
            let due = self
                .conversations
                .values_mut()
                .map(|c| c.load_far(&mut self.model).min(c.write_cache(&mut self.model)));
            self.cache_due = due.min().unwrap_or(Due::Never);
            if let Some(text) = self.model.runner.backend().notice() {
                self.conversations.values().for_each(|c| c.outlet.notice(&*text));
            }
        }
        self.write_slots();
    }

    /// Sends an event to all conversations.
    pub fn broadcast(&self, event: &Event) {
        self.conversations.values().for_each(|c| c.outlet.event(event.clone()));
    }

    /// Handles all messages received; waits for one if there is nothing to do. Returns false when
    /// no conversation is left.
    fn receive(&mut self) -> bool {
        let busy = || self.conversations.values().filter(|c| c.is_busy());
        let wait = match self.cache_due {
            _ if busy().next().is_some() => {
                Some(if busy().all(Conversation::only_waits) { ENCODING_POLL } else { Duration::ZERO })
            }
            Due::Never => None,
            Due::In(wait) => Some(wait),
        };
        let first = match wait {
            Some(wait) => self.inbox.recv_timeout(wait),
            None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match first {
            Ok(message) => self.handle(message),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        while let Ok(message) = self.inbox.try_recv() {
            self.handle(message);
        }
        self.conversations.len() > self.slots.n_idle()
    }

    fn handle(&mut self, message: EngineMessage) {
        match message {
            EngineMessage::Open(outlet) => self.open(outlet),
            EngineMessage::Ask { outlet, id, request } => self.ask(outlet, id, request),
            EngineMessage::KeepSlots { outlets, folder, limit_bytes } => self.keep_slots(outlets, folder, limit_bytes),
            EngineMessage::Close(id) => {
                self.scheduler.retain(|other| other.conversation != id);
                if self.slots.free(id) {
                    if let Some(conversation) = self.conversations.get_mut(&id) {
                        conversation.leave_slot(&mut self.model);
                    }
                } else if let Some(mut conversation) = self.conversations.remove(&id) {
                    conversation.write_cache_at_close(&mut self.model);
                    conversation.close(&mut self.model);
                }
            }
            EngineMessage::Request(Request { conversation: id, id: request, command }) => {
                if let Command::SetKvLimit(limit) = command {
                    return self.set_kv_limit(id, limit);
                }
                let Some(conversation) = self.conversations.get_mut(&id) else { return };
                if let Command::SetWhenFull(when) = command {
                    self.model.when_full = when.unwrap_or(self.model.usual_when_full());
                    return;
                }
                let events = conversation.outlet.sender(Some(request));
                conversation.receive(&mut self.model, events, command);
            }
        }
    }

    /// Opens a conversation. Answers with [`Event::Failed`] if no sequence is free.
    pub fn open(&mut self, outlet: Outlet) {
        match Conversation::new(&mut self.model, outlet) {
            Ok(conversation) => {
                conversation.outlet.event(Event::Ready(Arc::clone(&self.model.info)));
                conversation.publish(&self.model);
                self.conversations.insert(conversation.outlet.conversation(), conversation);
            }
            Err((outlet, error)) => outlet.event(Event::Failed(format!("no conversation can be opened: {error}"))),
        }
    }

    /// Answers a prompt in a slot.
    fn ask(&mut self, outlet: Outlet, id: RequestId, request: Box<GenerateRequest>) {
        let flat = flatten(&request.ask.prompt);
        let eviction = request.ask.eviction;
        let held = |id| self.conversations.get(&id).map_or(0, |slot| slot.held(&self.model, &flat, eviction));
        let choice = self.slots.choose(held);
        let slot = match choice {
            Choice::Idle(id) => match self.conversations.remove(&id) {
                Some(mut slot) => {
                    slot.hand_to(&mut self.model, outlet);
                    Ok(slot)
                }
                None => unreachable!("an idle slot is a conversation"),
            },
            Choice::New => Conversation::new(&mut self.model, outlet)
                .map_err(|(outlet, error)| (outlet, format!("no slot can be opened: {error}")))
                .map(|mut slot| {
                    slot.disk.set_file(self.file_of_slot());
                    slot
                }),
            Choice::Full => Err((outlet, "all slots are taken".to_owned())),
        };
        let mut slot = match slot {
            Ok(slot) => slot,
            Err((outlet, why)) => return outlet.event(Event::Failed(why)),
        };
        let was = if let Choice::Idle(was) = choice { Some(was) } else { None };
        slot.set_eviction(&self.model, eviction);
        self.slots.take(was, slot.id());
        let events = slot.outlet.sender(Some(id));
        slot.receive(&mut self.model, events, Command::Generate(request));
        self.conversations.insert(slot.id(), slot);
    }

    /// Ends jobs that are done, cancelled or failed, and updates the scheduler's list of chains
    /// with work.
    fn finish(&mut self) {
        let mut with_work = Vec::new();
        for (&conversation, c) in &mut self.conversations {
            c.finish(&mut self.model);
            let busy = c.each_chain().filter(|(_, chain)| chain.stage() != Stage::Done);
            with_work.extend(busy.map(|(number, _)| Id { conversation, number }));
        }
        self.scheduler.retain(|id| with_work.contains(&id));
        if with_work.is_empty() && !self.conversations.values().any(Conversation::is_busy) {
            self.said_undo_is_slow = false;
            self.take_back_draft_head();
        }
        with_work.into_iter().for_each(|id| self.scheduler.add(id));
    }

    fn step(&mut self) {
        let (conversations, runner) = (&self.conversations, &self.model.runner);
        let chain = |id: Id| conversations.get(&id.conversation).and_then(|c| c.chain(id.number));
        let full = self.scheduler.is_full();
        let stage = |id| chain(id).map_or(Stage::Done, Chain::stage);
        // Pages for the tokens still to feed and for one token of the answer.
        let need = |chain: &Chain| runner.cache.pages_for(runner.backend(), chain.context.seq, chain.tokens_left() + 1);
        let fit = |ids: &[Id]| match runner.cache.free_pages(runner.backend()) {
            // The need is an upper bound. A chain that was just preempted would be preempted again.
            _ if full => false,
            // Free memory is unknown.
            None => true,
            Some(free) => ids.iter().filter_map(|&id| chain(id)).map(need).sum::<usize>() <= free,
        };
        match self.scheduler.next(stage, fit) {
            Some(Step::Prefill(id)) => self.prefill(id),
            Some(Step::Decode(ids)) => self.decode(&ids),
            None => {}
        }
        if self.scheduler.has_waiting() {
            match self.model.snapshots.count(Worth::Chain) {
                0 => self.give_up_idle_slot(&[]),
                _ => self.give_up_snapshot(Worth::Chain),
            };
        }
    }

    /// Runs a prefill chunk of one chain.
    fn prefill(&mut self, id: Id) {
        let Some(conversation) = self.conversations.get_mut(&id.conversation) else { return };
        conversation.report_progress(&self.model.runner);
        let started = Instant::now();
        let size = self.scheduler.chunks.size();
        match conversation.feed(&mut self.model, id.number, size) {
            Ok(n) => {
                let runner = &mut self.model.runner;
                if let Err(error) = runner.check_finite() {
                    return conversation.halt(Halt::Error(error.to_string()));
                }
                // The draft head is only fed the end of a long prompt, which its window holds.
                let left = conversation.chain(id.number).map_or(0, Chain::tokens_left);
                if n > 0 && runner.has_head() && left < head::WINDOW {
                    self.feed_head(&[(id, n)]);
                }
                if n > 1 {
                    self.scheduler.chunks.observe(n, started.elapsed());
                }
                let Some(conversation) = self.conversations.get_mut(&id.conversation) else { return };
                conversation.keep_shared(&mut self.model);
                conversation.keep_prompt_end(&mut self.model);
                conversation.tell_dropped();
                self.limit_far();
            }
            Err(StepError::Cache(error)) => self.make_room(&[id], &error),
            Err(error) => conversation.halt(Halt::Error(error.to_string())),
        }
    }

    /// Runs a decode step of several chains.
    fn decode(&mut self, ids: &[Id]) {
        self.choose_far(ids);
        let mut rows = Vec::with_capacity(ids.len());
        let mut chains: Vec<&mut Chain> = Vec::with_capacity(ids.len());
        for (&conversation, c) in &mut self.conversations {
            for (number, chain) in c.each_chain() {
                let id = Id { conversation, number };
                if ids.contains(&id) {
                    rows.push(id);
                    chains.push(chain);
                }
            }
        }
        let runner = &mut self.model.runner;
        let max = max_drafts(runner.most_rows(), chains.len());
        let price = self.costs.price(chains.len());
        for chain in &mut chains {
            chain.choose_drafts(runner, max, price);
        }
        let started = Instant::now();
        let mut sampled = chain::decode(runner, &chains);
        if matches!(sampled, Err(StepError::Cache(_)))
            && chains.iter_mut().map(|chain| chain.drop_drafts()).fold(false, |any, had| any | had)
        {
            // Rows with drafts need pages too.
            sampled = chain::decode(runner, &chains);
        }
        let sampled = match sampled {
            Ok(sampled) => sampled,
            Err(StepError::Cache(error)) => return self.make_room(ids, &error),
            Err(error) => {
                let halt = |c: &mut Conversation<B>| c.halt(Halt::Error(error.to_string()));
                return self.of_step(&rows).for_each(halt);
            }
        };
        let drafts: usize = chains.iter().map(|chain| chain.drafts().len()).sum();
        let (mut first, mut accepted, mut failed) = (0, Vec::new(), Vec::new());
        for (&id, results) in rows.iter().zip(sampled) {
            let mut taken = 0;
            for (i, result) in results.iter().enumerate() {
                let Some(conversation) = self.conversations.get_mut(&id.conversation) else { break };
                let Some(chain) = conversation.chain_mut(id.number) else { break };
                if i > 0 && !chain.follows(i - 1) {
                    break;
                }
                chain.accept(&mut self.model.runner);
                taken += 1;
                match result {
                    Ok(token) => conversation.take(&mut self.model, id.number, *token, first + i),
                    Err(error) => failed.push((id, *error)),
                }
            }
            first += results.len();
            accepted.push(taken);
        }
        self.model.runner.commit();
        let drafting_s = std::mem::take(&mut self.drafting_s);
        let cost = self.costs.observe(started.elapsed().as_secs_f64() + drafting_s, ids.len(), drafts);
        for (&id, &taken) in rows.iter().zip(&accepted) {
            if let Some(chain) = self.chain_mut(id) {
                chain.drafts_ran(taken - 1, cost);
            }
        }
        for (id, error) in failed {
            if let Some(conversation) = self.conversations.get_mut(&id.conversation) {
                conversation.not_finite(&mut self.model, id.number, error);
            }
        }
        if self.model.runner.has_head() {
            let fed: Vec<(Id, usize)> = rows.into_iter().zip(accepted).collect();
            self.feed_head(&fed);
        }
    }

    /// Feeds the last step to the draft head and sets the drafts of the next step. `fed`: the
    /// chains of the step, each with the number of its accepted tokens.
    fn feed_head(&mut self, fed: &[(Id, usize)]) {
        let started = Instant::now();
        let Self { conversations, costs, model, .. } = self;
        let max = max_drafts(model.runner.most_rows(), fed.len());
        let price = costs.price(fed.len());
        let mut next = Vec::new();
        for &(id, n) in fed.iter().filter(|(_, n)| *n > 0) {
            let Some(chain) = conversations.get_mut(&id.conversation).and_then(|c| c.chain_mut(id.number)) else {
                continue;
            };
            if let Some(drafts) = chain.head_drafts(&model.runner, max, price) {
                next.push((id, chain.context.seq, chain.tokens_after(n), drafts));
            }
        }
        let requests: Vec<DraftRequest<'_>> =
            next.iter().map(|&(_, seq, ref next, max)| DraftRequest { seq, next, max }).collect();
        let drafts = model.runner.draft(&requests);
        self.drafting_s = if drafts.iter().any(|d| !d.is_empty()) { started.elapsed().as_secs_f64() } else { 0.0 };
        for ((id, ..), tokens) in next.iter().zip(drafts) {
            if let Some(chain) = self.chain_mut(*id) {
                chain.set_head_drafts(tokens);
            }
        }
    }

    fn chain_mut(&mut self, id: Id) -> Option<&mut Chain> {
        self.conversations.get_mut(&id.conversation)?.chain_mut(id.number)
    }

    /// Conversations that own these chains.
    fn of_step(&mut self, ids: &[Id]) -> impl Iterator<Item = &mut Conversation<B>> {
        let own = |id: &ConversationId| ids.iter().any(|other| other.conversation == *id);
        self.conversations.iter_mut().filter(move |(id, _)| own(id)).map(|(_, c)| c)
    }

    /// Runs the steps of probes, and steps of twins that are due.
    fn step_beside(&mut self) {
        let size = self.scheduler.chunks.size();
        for conversation in self.conversations.values_mut() {
            conversation.step_twin(&mut self.model, size);
            let started = Instant::now();
            let fed = conversation.step_probes(&mut self.model, size);
            if fed > 1 {
                self.scheduler.chunks.observe(fed, started.elapsed());
            }
        }
    }

    fn publish_if_due(&mut self) {
        if self.last_snapshot.elapsed() >= SNAPSHOT_EVERY {
            self.last_snapshot = Instant::now();
            for conversation in self.conversations.values().filter(|c| c.is_busy()) {
                conversation.publish(&self.model);
            }
        }
    }
}
