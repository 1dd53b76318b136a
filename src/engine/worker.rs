//! The engine's loop: receives requests, asks the scheduler for the next step and runs it.

use super::chain::{self, Chain};
use super::conversation::{Conversation, Halt};
use super::disk::Due;
use super::draft::Costs;
use super::head::{self, Follow};
use super::loaded::Loaded;
use super::planner::kv_budget;
use super::runner::StepError;
use super::scheduler::{Id, Scheduler, Stage, Step};
use super::snapshots::Worth;
use crate::backend::Backend;
use crate::cache::CacheError;
use crate::protocol::{Command, ConversationId, EngineMessage, Event, Outlet, Request};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Minimum interval between snapshots during steps.
const SNAPSHOT_EVERY: Duration = Duration::from_millis(33);
/// Rows of a step up to which its weights are read about once, where several chains share it.
const FEW_ROWS: usize = 8;
/// Polling interval while a prompt is encoded, or answers are checked elsewhere, and nothing else runs.
const ENCODING_POLL: Duration = Duration::from_millis(10);

/// Most drafts of each of `chains` chains in a step of at most `rows` rows.
fn most_drafts(rows: usize, chains: usize) -> usize {
    let rows = if chains > 1 { rows.min(FEW_ROWS) } else { rows };
    (rows / chains.max(1)).saturating_sub(1)
}

pub(super) struct Worker<B: Backend> {
    model: Loaded<B>,
    /// Bytes of weights and workspace.
    fixed_bytes: u64,
    memory_bytes: Option<u64>,
    inbox: Receiver<EngineMessage>,
    conversations: BTreeMap<ConversationId, Conversation<B>>,
    scheduler: Scheduler,
    /// What decode steps take.
    costs: Costs,
    /// What guessing the next step's drafts took, in seconds.
    guessing: f64,
    last_snapshot: Instant,
    /// When caches that are being written to disk are continued.
    cache_due: Due,
}

impl<B: Backend> Worker<B> {
    /// `fixed_bytes`: bytes of weights and workspace. `memory_bytes`: free before loading, if known.
    pub fn new(model: Loaded<B>, fixed_bytes: u64, memory_bytes: Option<u64>, inbox: Receiver<EngineMessage>) -> Self {
        Self {
            scheduler: Scheduler::new(model.runner.max_step(), model.runner.backend().about().chunk_tokens),
            model,
            fixed_bytes,
            memory_bytes,
            inbox,
            conversations: BTreeMap::new(),
            costs: Costs::default(),
            guessing: 0.0,
            last_snapshot: Instant::now(),
            cache_due: Due::Never,
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
            let due = self.conversations.values_mut().map(|c| c.write_cache(&mut self.model));
            self.cache_due = due.min().unwrap_or(Due::Never);
            if let Some(text) = self.model.runner.backend().notice() {
                self.conversations.values().for_each(|c| c.outlet.notice(&*text));
            }
        }
    }

    /// Sends an event to all conversations.
    pub fn broadcast(&self, event: &Event) {
        self.conversations.values().for_each(|c| c.outlet.event(event.clone()));
    }

    /// Handles all messages received; waits for one if there is nothing to do. Returns false when no conversation is left.
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
        !self.conversations.is_empty()
    }

    fn handle(&mut self, message: EngineMessage) {
        match message {
            EngineMessage::Open(outlet) => self.open(outlet),
            EngineMessage::Close(id) => {
                self.scheduler.retain(|other| other.conversation != id);
                if let Some(mut conversation) = self.conversations.remove(&id) {
                    conversation.write_cache_at_close(&mut self.model);
                    conversation.close(&mut self.model);
                }
            }
            EngineMessage::Request(Request { conversation: id, id: request, command }) => {
                let Some(conversation) = self.conversations.get_mut(&id) else { return };
                if let Command::SetKvLimit(limit) = command {
                    let budget = kv_budget(self.fixed_bytes, limit, self.memory_bytes);
                    self.model.runner.cache.set_limit_bytes(budget);
                    self.scheduler.has_room();
                    return conversation.publish(&self.model);
                }
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

    /// Ends jobs that are done, cancelled or failed, and updates the scheduler's list of chains with work.
    fn finish(&mut self) {
        let mut with_work = Vec::new();
        for (&conversation, c) in &mut self.conversations {
            c.finish(&mut self.model);
            let busy = c.each_chain().filter(|(_, chain)| chain.stage() != Stage::Done);
            with_work.extend(busy.map(|(number, _)| Id { conversation, number }));
        }
        self.scheduler.retain(|id| with_work.contains(&id));
        with_work.into_iter().for_each(|id| self.scheduler.add(id));
    }

    fn step(&mut self) {
        let (conversations, runner) = (&self.conversations, &self.model.runner);
        let chain = |id: Id| conversations.get(&id.conversation).and_then(|c| c.chain(id.number));
        let full = self.scheduler.is_full();
        let stage = |id| chain(id).map_or(Stage::Done, Chain::stage);
        // Pages for the tokens left to feed and one token of the answer.
        let need = |chain: &Chain| runner.cache.pages_for(runner.backend(), chain.context.seq, chain.tokens_left() + 1);
        let fit = |ids: &[Id]| match runner.cache.free_pages(runner.backend()) {
            // A step's need is an upper bound: what was preempted would be again.
            _ if full => false,
            // How much is free is not known.
            None => true,
            Some(free) => ids.iter().filter_map(|&id| chain(id)).map(need).sum::<usize>() <= free,
        };
        match self.scheduler.next(stage, fit) {
            Some(Step::Prefill(id)) => self.prefill(id),
            Some(Step::Decode(ids)) => self.decode(&ids),
            None => {}
        }
        if self.scheduler.has_waiting() && self.model.snapshots.count(Worth::Chain) > 0 {
            self.give_up_snapshot(Worth::Chain);
        }
    }

    /// Runs a prefill chunk of one chain.
    fn prefill(&mut self, id: Id) {
        let Some(conversation) = self.conversations.get_mut(&id.conversation) else { return };
        let runner = &mut self.model.runner;
        conversation.report_progress(runner);
        let started = Instant::now();
        let Some(chain) = conversation.chain_mut(id.number) else { return };
        match chain.feed(runner, self.scheduler.chunks.size()) {
            Ok(n) => {
                if let Err(error) = runner.check_finite() {
                    return conversation.halt(Halt::Error(error.to_string()));
                }
                // Of a long prompt a head sees the end.
                if n > 0 && runner.has_head() && chain.tokens_left() < head::WINDOW {
                    self.follow(&[(id, n)]);
                }
                if n > 1 {
                    self.scheduler.chunks.observe(n, started.elapsed());
                }
                let Some(conversation) = self.conversations.get_mut(&id.conversation) else { return };
                conversation.keep_prompt_end(&mut self.model);
                conversation.tell_dropped();
            }
            Err(StepError::Cache(error)) => self.make_room(&[id], &error),
            Err(error) => conversation.halt(Halt::Error(error.to_string())),
        }
    }

    /// Runs a decode step of several chains.
    fn decode(&mut self, ids: &[Id]) {
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
        let most = most_drafts(runner.most_rows(), chains.len());
        let price = self.costs.price(chains.len());
        chains.iter_mut().for_each(|chain| chain.choose_drafts(runner, most, price));
        let started = Instant::now();
        let mut sampled = chain::decode(runner, &chains);
        if matches!(sampled, Err(StepError::Cache(_)))
            && chains.iter_mut().map(|chain| chain.drop_drafts()).fold(false, |any, had| any | had)
        {
            // Their rows need pages too.
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
        let guessing = std::mem::take(&mut self.guessing);
        let cost = self.costs.observe(started.elapsed().as_secs_f64() + guessing, ids.len(), drafts);
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
            self.follow(&fed);
        }
    }

    /// Feeds the head with the last step, of which so many tokens of these chains were fed, and takes its guesses.
    fn follow(&mut self, fed: &[(Id, usize)]) {
        let started = Instant::now();
        let Self { conversations, costs, model, .. } = self;
        let most = most_drafts(model.runner.most_rows(), fed.len());
        let price = costs.price(fed.len());
        let mut next = Vec::new();
        for &(id, n) in fed.iter().filter(|(_, n)| *n > 0) {
            let Some(chain) = conversations.get_mut(&id.conversation).and_then(|c| c.chain_mut(id.number)) else {
                continue;
            };
            if let Some(wish) = chain.wish(&model.runner, most, price) {
                next.push((id, chain.context.seq, chain.behind(n), wish));
            }
        }
        let rows: Vec<Follow<'_>> = next.iter().map(|&(_, seq, ref next, most)| Follow { seq, next, most }).collect();
        let guesses = model.runner.follow(&rows);
        self.guessing = if guesses.iter().any(|g| !g.is_empty()) { started.elapsed().as_secs_f64() } else { 0.0 };
        for ((id, ..), tokens) in next.iter().zip(guesses) {
            if let Some(chain) = self.chain_mut(*id) {
                chain.guessed(tokens);
            }
        }
    }

    fn chain_mut(&mut self, id: Id) -> Option<&mut Chain> {
        self.conversations.get_mut(&id.conversation)?.chain_mut(id.number)
    }

    /// The conversations of these chains.
    fn of_step(&mut self, ids: &[Id]) -> impl Iterator<Item = &mut Conversation<B>> {
        let own = |id: &ConversationId| ids.iter().any(|other| other.conversation == *id);
        self.conversations.iter_mut().filter(move |(id, _)| own(id)).map(|(_, c)| c)
    }

    /// Frees pages after a step of `ids` was refused for lack of them, so that the scheduler can choose again. Releases, in
    /// this order: the head's pages, a probe, a twin, the cheapest snapshot, a cache that is being rebuilt, the pages of the
    /// chain that can wait (preemption), and what the heads need least. If nothing is left, the last of several chains ends,
    /// and else the job, with `error`.
    fn make_room(&mut self, ids: &[Id], error: &CacheError) {
        if self.model.runner.give_up_head() {
            return;
        }
        if self.conversations.values_mut().any(|conversation| conversation.give_up_probe(&mut self.model)) {
            return;
        }
        let runner = &mut self.model.runner;
        for conversation in self.conversations.values_mut() {
            if conversation.give_up_twin(runner, "the twin stopped: the conversation needs its memory") {
                return;
            }
        }
        if self.give_up_snapshot(Worth::TurnStart) {
            return;
        }
        let Self { model, conversations, scheduler, .. } = self;
        for id in ids {
            let conversation = conversations.get_mut(&id.conversation);
            if conversation.is_some_and(|c| c.give_up_old_cache(&mut model.runner)) {
                return;
            }
        }
        let left = |id: Id| {
            let chain = conversations.get(&id.conversation).and_then(|c| c.chain(id.number));
            chain.map_or(0, Chain::tokens_to_go)
        };
        if let Some(id) = scheduler.preempt(left) {
            if let Some(conversation) = conversations.get_mut(&id.conversation) {
                conversation.restart(model, id.number);
            }
            return;
        }
        for id in ids {
            let Some(conversation) = conversations.get_mut(&id.conversation) else { continue };
            if id.number.is_none() && conversation.forget(model) {
                return;
            }
        }
        for id in ids {
            match (conversations.get_mut(&id.conversation), id.number) {
                (Some(conversation), Some(number)) => conversation.no_room_for_chain(model, number, error),
                (Some(conversation), None) => conversation.halt(Halt::CacheFull(error.to_string())),
                (None, _) => {}
            }
        }
    }

    /// Releases the cheapest snapshot of at most this worth. Returns false if there is none.
    fn give_up_snapshot(&mut self, most: Worth) -> bool {
        self.conversations.values_mut().for_each(|conversation| conversation.note_pages(&self.model));
        self.model.snapshots.give_up(&mut self.model.runner, most)
    }

    /// Runs the steps of probes, and those of twins that are due.
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
