//! States that conversations can go back to, in one list: ends of turns and of prompts.
//!
//! Undo, edits, branches, regenerate and the return from a failed turn all look for the longest
//! kept text that is a prefix of the wanted one. A snapshot is a fork, which costs a sequence and
//! the pages that only it holds. If either is short, the cheapest snapshot of any conversation goes
//! first.

use super::context::Context;
use super::runner::Runner;
use crate::backend::Backend;
use crate::cache::SeqId;
use crate::protocol::{ConversationId, LogEntry};

/// Purpose of a snapshot. Lower values are released first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Worth {
    /// The one of several chains that has ended and would win.
    Chain,
    /// The end of an earlier turn, or of another branch.
    Earlier,
    /// A beginning of prompts, such as a system prompt.
    Shared,
    /// The end of the last turn's prompt, its last token pending: regenerate.
    PromptEnd,
    /// The state before the last turn: undo, and the return from a turn that fails.
    TurnStart,
}

pub(super) struct Kept {
    /// `None`: new conversations begin with it.
    pub owner: Option<ConversationId>,
    pub worth: Worth,
    pub context: Context,
}

pub(super) struct Snapshots {
    /// Oldest first.
    kept: Vec<Kept>,
    /// Maximum number of [`Worth::Earlier`] snapshots of a conversation, and of bytes that only
    /// they hold.
    max_earlier: usize,
    budget_bytes: u64,
    /// Maximum number of [`Worth::Shared`] snapshots.
    max_shared: usize,
}

/// Maximum number of [`Worth::Shared`] snapshots, each in its own sequence, where prompts are
/// answered in so many slots.
pub fn shared_states(slots: usize) -> usize {
    slots.min(4)
}

impl Snapshots {
    pub fn new(max_earlier: usize, budget_bytes: u64, max_shared: usize) -> Self {
        Self { kept: Vec::new(), max_earlier, budget_bytes, max_shared }
    }

    /// The snapshots of a conversation, the oldest first.
    pub fn of(&self, owner: ConversationId) -> impl DoubleEndedIterator<Item = &Kept> {
        self.kept.iter().filter(move |one| one.owner == Some(owner))
    }

    pub fn has(&self, owner: ConversationId, worth: Worth) -> bool {
        self.of(owner).any(|one| one.worth == worth)
    }

    /// Gives a conversation's snapshots to another one.
    pub fn give(&mut self, from: ConversationId, to: ConversationId) {
        self.kept.iter_mut().filter(|one| one.owner == Some(from)).for_each(|one| one.owner = Some(to));
    }

    /// Number of snapshots of at most this worth.
    pub fn count(&self, most: Worth) -> usize {
        self.kept.iter().filter(|one| one.worth <= most).count()
    }

    pub fn get(&self, index: usize) -> &Kept {
        &self.kept[index]
    }

    /// Index of the conversation's snapshot with the longest text that is a prefix of `flat`, of
    /// those that are `fit`; the newest among equal ones.
    pub fn longest_prefix(&self, owner: ConversationId, flat: &str, fit: impl Fn(&Context) -> bool) -> Option<usize> {
        let begins = |one: &Kept| one.owner == Some(owner) && flat.starts_with(&one.context.flat) && fit(&one.context);
        let fitting = self.kept.iter().enumerate().filter(|(_, one)| begins(one));
        fitting.max_by_key(|(i, one)| (one.context.flat.len(), *i)).map(|(i, _)| i)
    }

    /// The context of any conversation whose log is the longest that begins `log`.
    pub fn longest_log(&self, log: &[LogEntry]) -> Option<&Context> {
        let contexts = self.kept.iter().map(|one| &one.context).filter(|context| !context.awaits_far);
        contexts.filter(|context| log.starts_with(&context.log)).max_by_key(|context| context.log.len())
    }

    /// Whether a state of this log is kept for new conversations.
    pub fn shares(&self, log: &[LogEntry]) -> bool {
        self.kept.iter().any(|one| one.worth == Worth::Shared && one.context.log == log)
    }

    /// Keeps a state with which new conversations may begin, and releases the one that was used
    /// least recently if there are too many.
    pub fn share<B: Backend>(&mut self, runner: &mut Runner<B>, context: Context) {
        self.kept.push(Kept { owner: None, worth: Worth::Shared, context });
        let shared = |kept: &[Kept]| kept.iter().filter(|one| one.worth == Worth::Shared).count();
        while shared(&self.kept) > self.max_shared
            && let Some(oldest) = self.kept.iter().position(|one| one.worth == Worth::Shared)
        {
            runner.release(self.take(oldest).context.seq);
        }
    }

    /// A new conversation has begun with a state of this log.
    pub fn used(&mut self, log: &[LogEntry]) {
        let is_it = |one: &Kept| one.worth == Worth::Shared && one.context.log == log;
        if let Some(at) = self.kept.iter().position(is_it) {
            let one = self.take(at);
            self.kept.push(one);
        }
    }

    /// The context of any conversation that `log` goes on from after the most entries, and their
    /// number: all of its log, or all but the choice of far pages that ends it, if that is the only
    /// one and can be [taken back](Context::take_choice_back). Those that do not fit are left out.
    pub fn longest_begun(&self, log: &[LogEntry], fits: impl Fn(&Context, usize) -> bool) -> Option<(&Context, usize)> {
        let begun = |context: &Context| match &context.log[..] {
            all if log.starts_with(all) => Some(all.len()),
            [before @ .., LogEntry::Choose { .. }]
                if log.starts_with(before) && !before.iter().any(LogEntry::is_far) =>
            {
                Some(before.len())
            }
            _ => None,
        };
        let whole = self.kept.iter().map(|one| &one.context).filter(|context| !context.awaits_far);
        let contexts = whole.filter_map(|context| Some((context, begun(context)?)));
        contexts.filter(|(context, entries)| fits(context, *entries)).max_by_key(|(_, entries)| *entries)
    }

    /// Takes out the state of exactly this log and text.
    pub fn take_equal(&mut self, owner: ConversationId, log: &[LogEntry], flat: &str) -> Option<Context> {
        let is_it = |one: &Kept| one.owner == Some(owner) && one.context.flat == flat && one.context.log == log;
        self.kept.iter().rposition(is_it).map(|i| self.take(i).context)
    }

    /// Takes out the state before the last turn.
    pub fn take_start(&mut self, owner: ConversationId) -> Option<Context> {
        let is_it = |one: &Kept| one.owner == Some(owner) && one.worth == Worth::TurnStart;
        self.kept.iter().rposition(is_it).map(|i| self.take(i).context)
    }

    pub fn take(&mut self, index: usize) -> Kept {
        self.kept.remove(index)
    }

    /// Keeps a state, unless it is an earlier one that is not worth it.
    pub fn insert<B: Backend>(
        &mut self,
        runner: &mut Runner<B>,
        owner: ConversationId,
        worth: Worth,
        context: Context,
    ) {
        self.kept.push(Kept { owner: Some(owner), worth, context });
        self.release_surplus(runner, owner);
    }

    /// Leaves the last turn: the snapshot at the end of its prompt is released, and the one at its
    /// start becomes an earlier state, unless the next turn `begins` there too.
    pub fn leave_turn<B: Backend>(
        &mut self,
        runner: &mut Runner<B>,
        owner: ConversationId,
        begins: impl Fn(&Context) -> bool,
    ) {
        self.release_if(runner, |one| one.owner == Some(owner) && one.worth == Worth::PromptEnd);
        let left = |one: &&mut Kept| one.owner == Some(owner) && !begins(&one.context);
        for one in self.kept.iter_mut().filter(left) {
            one.worth = Worth::Earlier;
        }
        self.release_surplus(runner, owner);
    }

    /// Releases earlier states that have no text, whose log another one has, or that are too many.
    fn release_surplus<B: Backend>(&mut self, runner: &mut Runner<B>, owner: ConversationId) {
        let mut room = self.max_earlier;
        for i in (0..self.kept.len()).rev() {
            let one = &self.kept[i];
            if one.owner != Some(owner) || one.worth != Worth::Earlier {
                continue;
            }
            let is_same = |(j, other): (usize, &Kept)| {
                j != i && other.owner == Some(owner) && other.context.log == one.context.log
            };
            if room == 0 || one.context.flat.is_empty() || self.kept.iter().enumerate().any(is_same) {
                runner.release(self.take(i).context.seq);
            } else {
                room -= 1;
            }
        }
    }

    /// Index of the cheapest snapshot of at most this worth; the oldest among equal ones.
    fn cheapest_index(&self, most: Worth) -> Option<usize> {
        let candidates = self.kept.iter().enumerate().filter(|(_, one)| one.worth <= most);
        candidates.min_by_key(|(_, one)| one.worth).map(|(i, _)| i)
    }

    /// The snapshot that [`Self::give_up`] would release.
    pub fn cheapest(&self, most: Worth) -> Option<&Kept> {
        self.cheapest_index(most).map(|i| &self.kept[i])
    }

    /// Releases the cheapest snapshot of at most this worth, the oldest among equal ones. Returns
    /// false if there is none.
    pub fn give_up<B: Backend>(&mut self, runner: &mut Runner<B>, most: Worth) -> bool {
        let Some(i) = self.cheapest_index(most) else { return false };
        runner.release(self.take(i).context.seq);
        true
    }

    /// Releases a conversation's snapshots of at most this worth.
    pub fn release_of<B: Backend>(&mut self, runner: &mut Runner<B>, owner: ConversationId, most: Worth) {
        self.release_if(runner, |one| one.owner == Some(owner) && one.worth <= most);
    }

    /// Notes that the far rows are there which states of a conversation awaited.
    pub fn far_rows_came(&mut self, owner: ConversationId) {
        self.kept.iter_mut().filter(|one| one.owner == Some(owner)).for_each(|one| one.context.awaits_far = false);
    }

    /// Releases the states of a conversation that await far rows.
    pub fn release_awaiting<B: Backend>(&mut self, runner: &mut Runner<B>, owner: ConversationId) {
        self.release_if(runner, |one| one.owner == Some(owner) && one.context.awaits_far);
    }

    fn release_if<B: Backend>(&mut self, runner: &mut Runner<B>, pick: impl Fn(&Kept) -> bool) {
        self.kept.extract_if(.., |one| pick(one)).for_each(|one| runner.release(one.context.seq));
    }

    /// Applies an entry that pins, unpins or drops far pages to the conversation's snapshots, one
    /// that pins to those that hold the positions. A snapshot that cannot be changed is released.
    pub fn apply<B: Backend>(&mut self, runner: &mut Runner<B>, owner: ConversationId, entry: LogEntry) {
        let end = match entry {
            LogEntry::Pin { pin: [_, end] } => end as usize,
            LogEntry::Unpin { unpin: [start, _] } => start as usize + 1,
            _ => 0,
        };
        for i in (0..self.kept.len()).rev() {
            let Kept { owner: of, context, .. } = &mut self.kept[i];
            if *of == Some(owner) && context.len(runner) >= end && context.apply(runner, entry).is_err() {
                runner.release(self.take(i).context.seq);
            }
        }
    }

    /// Releases earlier states until the pages that only they hold are within the budget. Called
    /// after a turn, which ended in `current`.
    pub fn trim<B: Backend>(&mut self, runner: &mut Runner<B>, owner: ConversationId, current: SeqId) {
        let n_earlier = self.of(owner).filter(|one| one.worth == Worth::Earlier).count();
        let budget = (self.budget_bytes / runner.cache.geometry().page_bytes() as u64) as usize;
        let (b, cache) = (runner.backend(), &runner.cache);
        // The sum over all sequences is an upper bound on these pages, and needs no page table.
        let beside = || cache.pool_stats(b).used_pages - cache.stats(b, current).pages;
        if n_earlier == 0 || beside() <= budget {
            return;
        }
        // The newest first, so that the counts say how many fit.
        let seqs = |earlier: bool| {
            let own = self.of(owner).rev().filter(move |one| (one.worth == Worth::Earlier) == earlier);
            own.map(|one| one.context.seq)
        };
        let all: Vec<SeqId> = std::iter::once(current).chain(seqs(false)).chain(seqs(true)).collect();
        let held = cache.distinct_pages(b, std::slice::from_ref(&all)).remove(0);
        let own = held[held.len() - n_earlier - 1];
        let fits = held.iter().take_while(|&&pages| pages - own.min(pages) <= budget).count();
        self.release_if(runner, |one| all[fits..].contains(&one.context.seq));
    }
}
