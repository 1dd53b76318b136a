//! Far pages between steps: how a sequence's are chosen, and how they are kept within their memory.
//! Where that is full, the oldest pages of all lanes of the conversations that work are dropped for
//! good, as an entry of their logs.

use super::context::Context;
use super::conversation::Conversation;
use super::loaded::Loaded;
use super::runner::Runner;
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
    /// Drops far pages if they hold more than their limit. Conversations without work keep theirs.
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
        let drop = |m: &mut Loaded<B>, context: &mut Context, before: usize| {
            let entry = LogEntry::DropFar { drop_far: before as u32 };
            context.apply(&mut m.runner, entry).map_or(0, |(_, rows)| rows)
        };
        let tokens = self.chain.context.len(&m.runner);
        for part in 1..=PARTS {
            let (before, held) = (tokens * part / PARTS, m.runner.far_bytes());
            if held <= most {
                break;
            }
            // Chains are replayed from the end of the prompt, whose log must not change below them.
            let rows: u64 = match &mut self.chains {
                Some(chains) => chains.each_mut().map(|(_, chain)| drop(m, &mut chain.context, before)).sum(),
                None => drop(m, &mut self.chain.context, before),
            };
            m.snapshots.apply(&mut m.runner, owner, LogEntry::DropFar { drop_far: before as u32 });
            dropped += rows;
            if rows > 0 && m.runner.far_bytes() == held {
                break;
            }
        }
        dropped
    }
}
