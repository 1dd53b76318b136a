//! Slots of the server, not of a lane: conversations that answer independent prompts one after
//! another and keep their cache in between. Holds ids only; the worker owns the conversations.

use crate::protocol::{CacheFile, ConversationId};
use std::path::PathBuf;

/// Where a prompt is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// In this idle slot.
    Idle(ConversationId),
    /// In a new slot, which has to be opened.
    New,
    /// All slots are taken.
    Full,
}

/// Where the caches of slots are kept: [`kept_slots`](super::kept_slots).
#[derive(Debug)]
pub struct KeptSlots {
    pub folder: PathBuf,
    /// Maximum bytes of the files in it.
    pub limit_bytes: u64,
}

impl KeptSlots {
    pub fn file(&self, path: PathBuf) -> CacheFile {
        CacheFile { path, limit_bytes: self.limit_bytes, has_log: true }
    }
}

/// Which slots there are, and which of them answer a prompt.
#[derive(Debug, Default)]
pub struct Slots {
    /// Maximum number of slots.
    max: usize,
    /// Slots that answer no prompt, the least recently used first.
    idle: Vec<ConversationId>,
    taken: Vec<ConversationId>,
}

impl Slots {
    pub fn new(max: usize) -> Self {
        Self { max, ..Self::default() }
    }

    /// Chooses the idle slot whose cache holds the longest prefix of a prompt. If no cache holds
    /// any of it, chooses a new slot, or else the least recently used idle one. `held`: bytes of
    /// the prefix that a slot holds.
    pub fn choose(&self, held: impl Fn(ConversationId) -> usize) -> Choice {
        // `max_by_key` returns the last maximum: in reverse order, the least recently used slot.
        let longest = self.idle.iter().rev().copied().max_by_key(|&id| held(id));
        match longest {
            Some(id) if held(id) > 0 => Choice::Idle(id),
            _ if self.idle.len() + self.taken.len() < self.max => Choice::New,
            Some(id) => Choice::Idle(id),
            None => Choice::Full,
        }
    }

    /// Marks a slot as taken by `owner`. `was`: its id while it was idle; `None` if it is new.
    pub fn take(&mut self, was: Option<ConversationId>, owner: ConversationId) {
        self.idle.retain(|&id| Some(id) != was);
        self.taken.push(owner);
    }

    /// Marks a slot as idle. Returns false if the conversation is not a taken slot.
    pub fn free(&mut self, id: ConversationId) -> bool {
        let Some(at) = self.taken.iter().position(|&taken| taken == id) else { return false };
        self.idle.push(self.taken.remove(at));
        true
    }

    /// Number of idle slots.
    pub fn n_idle(&self) -> usize {
        self.idle.len()
    }

    /// Removes the least recently used idle slot.
    pub fn give_up(&mut self) -> Option<ConversationId> {
        (!self.idle.is_empty()).then(|| self.idle.remove(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_wins_then_a_new_slot_then_the_least_recently_used() {
        let [a, b, c] = [1, 2, 3].map(ConversationId::of);
        let mut slots = Slots::new(2);
        assert_eq!(slots.choose(|_| 0), Choice::New);
        slots.take(None, a);
        slots.take(None, b);
        assert_eq!(slots.choose(|_| 9), Choice::Full);
        assert!(slots.free(b) && slots.free(a) && !slots.free(c));
        assert_eq!(slots.choose(|_| 0), Choice::Idle(b), "the least recently used");
        assert_eq!(slots.choose(|_| 5), Choice::Idle(b), "of equal ones too");
        assert_eq!(slots.choose(|id| if id == a { 7 } else { 6 }), Choice::Idle(a));
        slots.take(Some(a), c);
        assert_eq!((slots.n_idle(), slots.choose(|_| 0)), (1, Choice::Idle(b)));
        assert_eq!((slots.give_up(), slots.give_up()), (Some(b), None));
        assert_eq!(slots.choose(|_| 0), Choice::New);
        assert_eq!(Slots::new(0).choose(|_| 0), Choice::Full);
    }
}
