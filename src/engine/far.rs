//! Far pages between steps: how a sequence's are chosen, and how they are kept within their memory.
//! Where that is full, the oldest pages of all lanes of the conversations that work are dropped for
//! good, as an entry of their logs.

use super::chain::Chain;
use super::conversation::Conversation;
use super::loaded::Loaded;
use super::runner::Runner;
use super::scheduler::Id;
use super::worker::Worker;
use crate::backend::{Backend, FarCounts};
use crate::cache::SeqId;
use crate::protocol::{Event, LogEntry, bytes};

/// A drop frees this share of the limit beyond what is over it, so that not every step drops.
const SPARE_SHARE: u64 = 8;
/// Parts of a sequence that are dropped one after the other, the oldest first.
const PARTS: usize = 16;

impl<B: Backend> Runner<B> {
    /// Whether rows that leave the cache are kept: [`crate::policy::far`].
    pub fn keeps_far(&self) -> bool {
        self.cache.geometry().keeps_far()
    }

    /// Chooses the far pages that a sequence attends to from here on, by its newest `queries`
    /// queries. Returns how many pages of all lanes were brought near; `None` where no rows are
    /// kept.
    pub fn choose(&mut self, seq: SeqId, queries: usize) -> Option<u64> {
        self.cache.choose(&self.b, seq, queries)
    }

    /// Drops the full far pages of a sequence whose rows are all at positions below `before`.
    /// Returns the number of rows.
    pub fn drop_far(&mut self, seq: SeqId, before: usize) -> u64 {
        self.cache.drop_far(&self.b, seq, before)
    }

    /// Far rows of a sequence.
    pub fn far_counts(&self, seq: SeqId) -> FarCounts {
        self.cache.far_counts(&self.b, seq)
    }

    /// Bytes of the far pages of all sequences; shared pages count once.
    pub fn far_bytes(&self) -> u64 {
        self.cache.far_bytes(&self.b)
    }

    /// Most bytes of far pages of all sequences.
    pub fn far_limit(&self) -> Option<u64> {
        self.far_limit.filter(|_| self.keeps_far())
    }
}

impl<B: Backend> Worker<B> {
    /// Lets chains choose far pages whose answers have come to the end of a block.
    pub(super) fn choose_far(&mut self, ids: &[Id]) {
        let Self { model, conversations, .. } = self;
        let mut any_chose = false;
        for (&conversation, c) in conversations.iter_mut() {
            for (number, chain) in c.each_chain() {
                if ids.contains(&Id { conversation, number }) {
                    any_chose |= chain.choose_if_due(&mut model.runner);
                }
            }
        }
        if any_chose {
            self.limit_far();
        }
    }

    /// Drops far pages if they hold more than their limit. Conversations without work keep theirs.
    /// A chain drops only where it has just chosen, so that what it drops does not depend on how
    /// many tokens a step had, which times decide; what a replay drops is in its log.
    pub(super) fn limit_far(&mut self) {
        let Some(limit) = self.model.runner.far_limit() else { return };
        if self.model.runner.far_bytes() <= limit {
            return;
        }
        let most = limit - limit / SPARE_SHARE;
        let Self { model, conversations, .. } = self;
        let dropped: u64 = conversations.values_mut().filter(|c| c.is_busy()).map(|c| c.drop_far(model, most)).sum();
        if dropped > 0 && !std::mem::replace(&mut self.said_far_is_full, true) {
            let limit = bytes(limit);
            let text = format!(
                "the far tier is full ({limit}): its oldest pages are dropped for good; --far SIZE sets its limit"
            );
            self.broadcast(&Event::Notice(text));
        }
    }
}

impl<B: Backend> Conversation<B> {
    /// Drops its oldest far pages, in its snapshots too, until all conversations together have at
    /// most `most` bytes or nothing more is freed. Returns the number of rows.
    fn drop_far(&mut self, m: &mut Loaded<B>, most: u64) -> u64 {
        let (owner, mut dropped) = (self.id(), 0);
        let tokens = self.chain.context.len(&m.runner);
        // Chains are replayed from the end of the prompt, whose log must not change below them.
        let mut chains: Vec<&mut Chain> = match &mut self.chains {
            Some(chains) => chains.each_mut().map(|(_, chain)| chain).collect(),
            None => vec![&mut self.chain],
        };
        chains.retain(|chain| !chain.is_replaying() && chain.context.since_choice(1) == 0);
        if chains.is_empty() {
            return 0;
        }
        for part in 1..=PARTS {
            let (before, held) = (tokens * part / PARTS, m.runner.far_bytes());
            if held <= most {
                break;
            }
            let entry = LogEntry::DropFar { drop_far: before as u32 };
            let mut drop = |chain: &mut Chain| chain.context.apply(&mut m.runner, entry).map_or(0, |(_, rows)| rows);
            let rows: u64 = chains.iter_mut().map(|chain| drop(chain)).sum();
            m.snapshots.apply(&mut m.runner, owner, entry);
            dropped += rows;
            if rows > 0 && m.runner.far_bytes() == held {
                break;
            }
        }
        dropped
    }
}
