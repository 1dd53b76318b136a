//! Far pages between steps: chooses the far pages that a sequence attends to, and keeps all far
//! pages within their memory limit. If they exceed it, conversations with work drop the oldest far
//! pages of all their lanes for good. An entry of the log records each drop.

use super::chain::Chain;
use super::conversation::Conversation;
use super::loaded::Loaded;
use super::runner::{Runner, StepError};
use super::scheduler::Id;
use super::worker::Worker;
use crate::backend::{Backend, FarCounts};
use crate::cache::{CacheError, SeqId};
use crate::policy::Far;
use crate::protocol::{Event, LogEntry, Token, bytes};

/// A drop frees 1 / SPARE_SHARE of the limit beyond the excess, so that not every step drops.
const SPARE_SHARE: u64 = 8;
/// Number of parts of a sequence. Its far pages are dropped part by part, the oldest first.
const PARTS: usize = 16;

impl<B: Backend> Runner<B> {
    /// Whether rows that leave the cache are kept: [`crate::policy::far`].
    pub fn keeps_far(&self) -> bool {
        self.cache.geometry().keeps_far()
    }

    /// Prompt tokens between two choices of far pages: [`Far::prompt_block`] of its chunks.
    pub fn prompt_block(&self) -> usize {
        Far::prompt_block(self.chunk().unwrap_or(0))
    }

    /// Chooses the far pages that a sequence attends to from here on, by its newest `queries`
    /// queries. Returns how many pages of all lanes were brought near; `None` if the cache keeps no
    /// far rows.
    pub fn choose(&mut self, seq: SeqId, queries: usize) -> Option<u64> {
        self.cache.choose(&self.b, seq, queries)
    }

    /// Makes all far pages of a sequence near. Fails without room, and changes nothing.
    pub fn bring_all(&mut self, seq: SeqId) -> Result<(), CacheError> {
        self.cache.bring_all(&self.b, seq)
    }

    /// The entries of a log for these tokens, with a choice by `queries` queries after each block
    /// of `block` and at the end if far rows are kept.
    pub fn with_choices(&self, tokens: &[Token], block: usize, queries: usize) -> impl Iterator<Item = LogEntry> {
        let choice = self.keeps_far().then_some(LogEntry::Choose { choose: queries as u16 });
        tokens.chunks(block).flat_map(move |block| block.iter().map(|&t| LogEntry::Token(t)).chain(choice))
    }

    /// Feeds tokens as a prompt: in steps as long as possible, with a choice after each block and
    /// at the end.
    pub fn feed_prompt(&mut self, seq: SeqId, tokens: &[Token]) -> Result<(), StepError> {
        let block = if self.keeps_far() { self.prompt_block() } else { tokens.len().max(1) };
        for block in tokens.chunks(block) {
            for step in block.chunks(self.max_step()) {
                self.feed(seq, step)?;
            }
            self.choose(seq, Far::QUERIES);
        }
        Ok(())
    }

    /// Drops the full far pages of a sequence that hold only positions below `before`, for good.
    /// Returns the number of dropped rows.
    pub fn drop_far(&mut self, seq: SeqId, before: usize) -> u64 {
        self.cache.drop_far(&self.b, seq, before)
    }

    /// Counts the far rows of a sequence.
    pub fn far_counts(&self, seq: SeqId) -> FarCounts {
        self.cache.far_counts(&self.b, seq)
    }

    /// Bytes of the far pages of all sequences; shared pages count once.
    pub fn far_bytes(&self) -> u64 {
        self.cache.far_bytes(&self.b)
    }

    /// Limit on the bytes of the far pages of all sequences; `None` if there is no limit, or if the
    /// cache keeps no far rows.
    pub fn far_limit(&self) -> Option<u64> {
        self.far_limit.filter(|_| self.keeps_far())
    }
}

impl<B: Backend> Worker<B> {
    /// Lets each of these chains choose its far pages if its answer has reached the end of a block.
    /// Then limits the far pages.
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

    /// Drops far pages if they exceed their limit. Conversations without work keep theirs. A chain
    /// drops only right after it has chosen: choices come after fixed numbers of tokens, while the
    /// ends of steps depend on timing. A replay drops what its log says, and no more.
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
                "the far tier is full ({limit}): its oldest pages are dropped for good; raise its limit with --far SIZE"
            );
            self.broadcast(&Event::Notice(text));
        }
    }
}

impl<B: Backend> Conversation<B> {
    /// Drops the oldest far pages of its chains and of its snapshots, until the far pages of all
    /// conversations take at most `most` bytes or dropped rows free no memory. Returns the number
    /// of rows that its chains dropped.
    fn drop_far(&mut self, m: &mut Loaded<B>, most: u64) -> u64 {
        let (owner, mut dropped) = (self.id(), 0);
        let tokens = self.chain.context.len(&m.runner);
        // Several chains replay from the end of the prompt's log, so only their own logs may
        // change.
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
