//! Frees pages after a step was refused for lack of them: releases what is cheapest to lose, and
//! reports it.

use super::chain::Chain;
use super::conversation::{Conversation, Halt};
use super::planner::{kv_budget, with_budget};
use super::scheduler::Id;
use super::snapshots::Worth;
use super::worker::Worker;
use crate::backend::Backend;
use crate::cache::CacheError;
use crate::protocol::{ConversationId, Event, bytes};

/// Gives something up for a step of these chains. Returns false if there is nothing of the kind.
type GiveUp<B> = fn(&mut Worker<B>, &[Id]) -> bool;

impl<B: Backend> Worker<B> {
    /// Things to release, cheapest first: observers, then what only saves time, then what the
    /// answer is made from.
    const VICTIMS: [GiveUp<B>; 8] = [
        Self::give_up_probe,
        Self::give_up_twin,
        Self::lend_draft_head,
        Self::give_up_undo_state,
        Self::give_up_idle_slot,
        Self::give_up_old_cache,
        Self::preempt,
        Self::forget,
    ];

    /// Frees pages after a step of `ids` was refused with `error`, so that the scheduler can choose
    /// again. If nothing is left to release, ends the last of several chains, or else the job.
    pub(super) fn make_room(&mut self, ids: &[Id], error: &CacheError) {
        if Self::VICTIMS.iter().any(|give_up| give_up(self, ids)) {
            return;
        }
        let Self { model, conversations, .. } = self;
        for id in ids {
            match (conversations.get_mut(&id.conversation), id.number) {
                (Some(conversation), Some(number)) => conversation.no_room_for_chain(model, number, error),
                (Some(conversation), None) => conversation.halt(Halt::CacheFull(error.to_string())),
                (None, _) => {}
            }
        }
    }

    /// Limits the bytes of the cache. Says at once what a limit below the bytes held means.
    pub(super) fn set_kv_limit(&mut self, id: ConversationId, limit: Option<u64>) {
        let budget = kv_budget(self.model.runner.fixed_bytes, limit, self.memory_bytes);
        self.model.runner.set_kv_budget(budget);
        self.scheduler.has_room();
        if !self.conversations.values().any(Conversation::is_busy) {
            // A step that runs releases them itself.
            while self.over(budget).is_some() && self.give_up_snapshot(Worth::TurnStart) {}
            self.model.trim();
        }
        let (over, runner) = (self.over(budget), &self.model.runner);
        let g = runner.cache.geometry();
        let plan = self.model.info.plan.clone();
        let near_rows = g.kept_far().map(|far| far.near_rows(runner.max_step()));
        let of_cache = (g.codec, &g.policy, near_rows);
        let plan = with_budget(plan, runner.config(), of_cache, runner.context(), budget);
        let Some(conversation) = self.conversations.get(&id) else { return };
        conversation.outlet.event(Event::Planned(Box::new(plan)));
        if let Some([held, budget]) = over {
            let then = self.model.when_over();
            let [held, budget] = [bytes(held), bytes(budget)];
            conversation.outlet.notice(format!("the cache holds {held}, and the limit is {budget} now: {then}"));
        }
        conversation.publish(&self.model);
    }

    /// The bytes of pages in use and the budget, if they are more than it.
    fn over(&self, budget: Option<u64>) -> Option<[u64; 2]> {
        let runner = &self.model.runner;
        let pages = runner.cache.pool_stats(runner.backend()).used_pages;
        let held = pages as u64 * runner.cache.geometry().page_bytes() as u64;
        budget.filter(|budget| held > *budget).map(|budget| [held, budget])
    }

    /// Its result says that the conversation needs the memory.
    fn give_up_probe(&mut self, _: &[Id]) -> bool {
        self.conversations.values_mut().any(|conversation| conversation.give_up_probe(&mut self.model))
    }

    fn give_up_twin(&mut self, _: &[Id]) -> bool {
        let why = "the twin stopped: the conversation needs its memory";
        let runner = &mut self.model.runner;
        self.conversations.values_mut().any(|conversation| conversation.give_up_twin(runner, why))
    }

    fn lend_draft_head(&mut self, _: &[Id]) -> bool {
        let Some(lent) = self.model.runner.lend_head() else { return false };
        let lent = bytes(lent);
        self.broadcast(&Event::Info(format!("no drafts for now: the cache needs the draft head's {lent}")));
        true
    }

    /// Gives the draft head its memory back. Called while nothing runs.
    pub(super) fn take_back_draft_head(&mut self) {
        if self.model.runner.take_back_head() {
            self.broadcast(&Event::Info("drafts are back: the draft head has its memory again".to_owned()));
        }
    }

    fn give_up_undo_state(&mut self, _: &[Id]) -> bool {
        let Some(cheapest) = self.model.snapshots.cheapest(Worth::TurnStart) else { return false };
        let (owner, worth, is_empty) = (cheapest.owner, cheapest.worth, cheapest.context.log.is_empty());
        let given_up = self.give_up_snapshot(Worth::TurnStart);
        let is_for_undo = matches!(worth, Worth::Earlier | Worth::TurnStart);
        if is_for_undo
            && !is_empty
            && !std::mem::replace(&mut self.said_undo_is_slow, true)
            && let Some(conversation) = owner.and_then(|owner| self.conversations.get(&owner))
        {
            let text = "the cache needs the memory of states kept for /undo, which will read the conversation again";
            conversation.outlet.event(Event::Info(text.to_owned()));
        }
        given_up
    }

    /// Releases the cheapest snapshot of at most this worth. Returns false if there is none.
    pub(super) fn give_up_snapshot(&mut self, most: Worth) -> bool {
        self.conversations.values_mut().for_each(|conversation| conversation.note_pages(&self.model));
        self.model.snapshots.give_up(&mut self.model.runner, most)
    }

    /// Releases the cache of the slot that has been idle for longest.
    pub(super) fn give_up_idle_slot(&mut self, _: &[Id]) -> bool {
        let idle = self.slots.give_up().and_then(|id| self.conversations.remove(&id));
        idle.map(|slot| slot.close(&mut self.model)).is_some()
    }

    /// The cache that a rebuild would replace.
    fn give_up_old_cache(&mut self, ids: &[Id]) -> bool {
        let Self { model, conversations, .. } = self;
        ids.iter().any(|id| {
            let conversation = conversations.get_mut(&id.conversation);
            conversation.is_some_and(|conversation| conversation.give_up_old_cache(&mut model.runner))
        })
    }

    /// Frees the pages of a chain that can wait. The panel shows that it does.
    fn preempt(&mut self, _: &[Id]) -> bool {
        let Self { model, conversations, scheduler, .. } = self;
        let left = |id: Id| {
            let chain = conversations.get(&id.conversation).and_then(|c| c.chain(id.number));
            chain.map_or(0, Chain::tokens_to_go)
        };
        let Some(id) = scheduler.preempt(left) else { return false };
        if let Some(conversation) = conversations.get_mut(&id.conversation) {
            conversation.restart(model, id.number);
        }
        true
    }

    /// Drops the slots that the heads need least, which the conversation says once it continues.
    fn forget(&mut self, ids: &[Id]) -> bool {
        let Self { model, conversations, .. } = self;
        ids.iter().filter(|id| id.number.is_none()).any(|id| {
            let conversation = conversations.get_mut(&id.conversation);
            conversation.is_some_and(|conversation| conversation.forget(model))
        })
    }
}
