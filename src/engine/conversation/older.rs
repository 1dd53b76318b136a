//! Checkpoints of earlier turns: one at each turn's end, so that undo, edit and other branches go back at once. They are
//! bounded by number and by the bytes that only they hold; the oldest goes first.

use super::Conversation;
use crate::backend::Backend;
use crate::cache::{CacheError, SeqId};
use crate::engine::context::Context;
use crate::engine::loaded::Loaded;
use crate::engine::runner::Runner;

impl Conversation {
    /// Keeps a context that the conversation leaves. Without text, or if one of the same text is kept, it is released.
    pub(in crate::engine) fn keep_older<B: Backend>(&mut self, runner: &mut Runner<B>, context: Context) {
        let kept = |other: &Context| other.log == context.log;
        let others = self.older.iter().chain(&self.before).chain([&self.chain.context]);
        if context.flat.is_empty() || self.max_older == 0 || others.into_iter().any(kept) {
            return runner.release(context.seq);
        }
        self.older.push_back(context);
        while self.older.len() > self.max_older {
            self.give_up_older(runner);
        }
    }

    /// Releases the oldest checkpoint of an earlier turn. Returns false if there is none.
    pub(in crate::engine) fn give_up_older<B: Backend>(&mut self, runner: &mut Runner<B>) -> bool {
        let Some(context) = self.older.pop_front() else { return false };
        runner.release(context.seq);
        true
    }

    /// A fork of the current context, for which an earlier turn's checkpoint gives its row if there is none left.
    pub(in crate::engine) fn fork_current<B: Backend>(
        &mut self,
        runner: &mut Runner<B>,
    ) -> Result<Context, CacheError> {
        loop {
            match self.chain.context.fork(runner) {
                Err(CacheError::Sequences(_)) if self.give_up_older(runner) => {}
                forked => return forked,
            }
        }
    }

    /// As [`Self::fork_current`], for an empty context.
    pub(in crate::engine) fn new_context<B: Backend>(&mut self, runner: &mut Runner<B>) -> Result<Context, CacheError> {
        loop {
            match Context::new(runner, self.eviction) {
                Err(CacheError::Sequences(_)) if self.give_up_older(runner) => {}
                made => return made,
            }
        }
    }

    /// The newest checkpoint of an earlier turn whose text is the longest that `begins` accepts.
    pub(in crate::engine) fn best_older(&self, begins: impl Fn(&Context) -> bool) -> Option<usize> {
        let fitting = self.older.iter().enumerate().filter(|(_, context)| begins(context));
        fitting.max_by_key(|(i, context)| (context.flat.len(), *i)).map(|(i, _)| i)
    }

    /// Gives up checkpoints of earlier turns until what only they hold is within the budget. Called after a turn.
    pub(in crate::engine) fn trim_older<B: Backend>(&mut self, m: &mut Loaded<B>) {
        if self.older.is_empty() {
            return;
        }
        let budget = (m.checkpoint_bytes / m.runner.cache.geometry().page_bytes() as u64) as usize;
        let (b, cache) = (m.runner.backend(), &m.runner.cache);
        // All sequences together hold no less beside the current one, and their sum needs no page table.
        let beside = cache.pool_stats(b).used_pages - cache.stats(b, self.chain.context.seq).pages;
        if beside <= budget {
            return;
        }
        let own = self.before.iter().chain(&self.prompt_end).chain([&self.chain.context]);
        // The newest first, so that the counts say how many fit.
        let all: Vec<SeqId> = own.chain(self.older.iter().rev()).map(|context| context.seq).collect();
        let n_own = all.len() - self.older.len();
        let held = cache.distinct_pages(b, &[all]).remove(0);
        let fits = held[n_own..].iter().take_while(|&&pages| pages - held[n_own - 1] <= budget).count();
        while self.older.len() > fits {
            self.give_up_older(&mut m.runner);
        }
    }
}
