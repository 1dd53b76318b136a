//! Chooses what runs next. A step is a prefill chunk of one chain or a decode step of all decoding
//! chains. The two alternate, so that answers continue while a prompt is prefilled.
//!
//! A chain is admitted when the pages for its prompt are free beside those of the running chains. A
//! chain that runs alone is always admitted. The scheduler knows ids only; the worker owns the
//! chains and runs the steps.

use crate::protocol::ConversationId;
use std::collections::VecDeque;
use std::time::Duration;

/// Identifies a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    pub conversation: ConversationId,
    /// Number among the chains that answer; `None` is the conversation's own chain.
    pub number: Option<usize>,
}

/// Next step of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Prefill,
    Decode,
    Done,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Prefill(Id),
    Decode(Vec<Id>),
}

pub struct Scheduler {
    /// Chains not admitted yet, or preempted, in order.
    waiting: VecDeque<Id>,
    /// Admitted chains, in order of admission.
    running: Vec<Id>,
    prefilled_last: bool,
    /// Whether a chain was preempted and none that ran has ended since.
    full: bool,
    pub chunks: ChunkSizer,
}

impl Scheduler {
    /// Chunks have at most `max_chunk` tokens, or just `chunk` where that is known.
    pub fn new(max_chunk: usize, chunk: Option<usize>) -> Self {
        let chunks = ChunkSizer::new(max_chunk, chunk);
        Self { waiting: VecDeque::new(), running: Vec::new(), prefilled_last: false, full: false, chunks }
    }

    /// Queues a chain that has work, unless it is queued or admitted already.
    pub fn add(&mut self, id: Id) {
        if !self.running.contains(&id) && !self.waiting.contains(&id) {
            self.waiting.push_back(id);
        }
    }

    /// Removes all chains but these.
    pub fn retain(&mut self, has_work: impl Fn(Id) -> bool) {
        let before = self.running.len();
        self.waiting.retain(|&id| has_work(id));
        self.running.retain(|&id| has_work(id));
        self.full &= self.running.len() == before;
    }

    /// Whether memory is known to be short: a preempted chain would be again.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Whether chains wait for room.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Forgets that memory was short.
    pub fn has_room(&mut self) {
        self.full = false;
    }

    /// Admits waiting chains and chooses the next step. `fit`: whether the prompts of these chains
    /// fit in the cache together.
    pub fn next(&mut self, stage: impl Fn(Id) -> Stage, fit: impl Fn(&[Id]) -> bool) -> Option<Step> {
        while let Some(&id) = self.waiting.front() {
            self.running.push(id);
            if self.running.len() > 1 && !fit(&self.running) {
                self.running.pop();
                break;
            }
            self.waiting.pop_front();
        }
        let prefill = self.running.iter().copied().find(|&id| stage(id) == Stage::Prefill);
        let decode: Vec<Id> = self.running.iter().copied().filter(|&id| stage(id) == Stage::Decode).collect();
        let step = match prefill {
            Some(id) if decode.is_empty() || !self.prefilled_last => Some(Step::Prefill(id)),
            _ if !decode.is_empty() => Some(Step::Decode(decode)),
            _ => None,
        };
        self.prefilled_last = matches!(step, Some(Step::Prefill(_)));
        step
    }

    /// Moves a chain back to the front of the waiting chains and returns it, so that its pages can
    /// be released. It belongs to the conversation admitted last and has the most tokens left to
    /// generate. `None` if only one chain runs.
    pub fn preempt(&mut self, left: impl Fn(Id) -> usize) -> Option<Id> {
        let last = self.running.last().filter(|_| self.running.len() > 1)?.conversation;
        let own = self.running.iter().copied().enumerate().filter(|(_, id)| id.conversation == last);
        let (at, id) = own.max_by_key(|(_, id)| left(*id))?;
        self.running.remove(at);
        self.waiting.push_front(id);
        self.full = true;
        Some(id)
    }
}

/// Target duration of a prefill chunk. A cancel waits for one chunk at most.
const CHUNK: Duration = Duration::from_millis(100);
const SMALLEST: usize = 16;

/// Chooses the size of prefill chunks: the size that the backend fixes, else one that takes about a
/// tenth of a second.
pub struct ChunkSizer {
    max: usize,
    size: usize,
    is_fixed: bool,
}

impl ChunkSizer {
    pub fn new(max: usize, fixed: Option<usize>) -> Self {
        Self { max, size: fixed.unwrap_or(64).min(max), is_fixed: fixed.is_some() }
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// Adjusts the size after a chunk of `tokens` that took `took`. Grows at most twofold: the
    /// first chunks touch cold pages and are slower than those that follow.
    pub fn observe(&mut self, tokens: usize, took: Duration) {
        if self.is_fixed {
            return;
        }
        let per_token = took.as_secs_f64() / tokens.max(1) as f64;
        let fits = (CHUNK.as_secs_f64() / per_token.max(1e-9)) as usize;
        self.size = fits.clamp(SMALLEST.min(self.max), (2 * self.size).min(self.max));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_and_answers_take_turns_and_the_last_admitted_is_preempted() {
        let ids = [1, 2, 3].map(|id| Id { conversation: ConversationId::of(id), number: None });
        let mut scheduler = Scheduler::new(16, None);
        ids.iter().for_each(|&id| scheduler.add(id));
        let stage = |id| if id == ids[0] { Stage::Decode } else { Stage::Prefill };
        // There is room for two.
        let fit = |running: &[Id]| running.len() < 3;
        let mut next = || scheduler.next(stage, fit);
        assert_eq!(next(), Some(Step::Prefill(ids[1])));
        assert_eq!(next(), Some(Step::Decode(vec![ids[0]])));
        assert_eq!(next(), Some(Step::Prefill(ids[1])));
        assert_eq!(scheduler.preempt(|_| 0), Some(ids[1]));
        assert_eq!(scheduler.preempt(|_| 0), None, "the only one goes on");
        // It comes before the one that has waited all the time, and no earlier than there is room.
        assert_eq!(scheduler.next(|_| Stage::Decode, |_| false), Some(Step::Decode(vec![ids[0]])));
        assert_eq!(scheduler.next(|_| Stage::Decode, fit), Some(Step::Decode(vec![ids[0], ids[1]])));
        scheduler.retain(|id| id != ids[0]);
        assert_eq!(scheduler.next(|_| Stage::Decode, fit), Some(Step::Decode(vec![ids[1], ids[2]])));
        scheduler.retain(|_| false);
        assert_eq!(scheduler.next(stage, fit), None);
    }

    #[test]
    fn of_several_chains_the_one_with_the_most_tokens_left_waits() {
        let id = |conversation, number| Id { conversation: ConversationId::of(conversation), number };
        let ids = [id(1, None), id(2, Some(0)), id(2, Some(1)), id(2, Some(2))];
        let mut scheduler = Scheduler::new(16, None);
        ids.iter().for_each(|&id| scheduler.add(id));
        scheduler.next(|_| Stage::Decode, |_| true);
        let left = |id: Id| [90, 70, 70][id.number.unwrap_or(0)];
        assert_eq!(scheduler.preempt(left), Some(ids[1]));
        assert_eq!(scheduler.preempt(left), Some(ids[3]), "of equals the last");
        assert_eq!(scheduler.next(|_| Stage::Decode, |_| false), Some(Step::Decode(vec![ids[0], ids[2]])));
        scheduler.retain(|id| id != ids[1]);
        assert!(scheduler.is_full(), "one that waits holds no pages");
        scheduler.retain(|id| id != ids[0]);
        assert!(!scheduler.is_full());
    }

    #[test]
    fn chunks_settle_at_a_tenth_of_a_second() {
        let mut sizer = ChunkSizer::new(512, None);
        for _ in 0..8 {
            let size = sizer.size();
            sizer.observe(size, Duration::from_micros(500 * size as u64));
        }
        assert_eq!(sizer.size(), 200);
        sizer.observe(200, Duration::from_secs(10));
        assert_eq!(sizer.size(), SMALLEST);
        assert_eq!(ChunkSizer::new(4, None).size(), 4);
        let mut fixed = ChunkSizer::new(512, Some(128));
        fixed.observe(128, Duration::from_secs(10));
        assert_eq!(
            (fixed.size(), ChunkSizer::new(64, Some(128)).size()),
            (128, 64),
            "time changes what the backend fixes"
        );
    }
}
