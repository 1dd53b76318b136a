//! Slots: conversations that answer prompts without an owner, one after the other, and keep their
//! cache in between. Knows ids only; the worker owns the conversations.

use crate::protocol::ConversationId;

/// Where a prompt is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// In this slot, which was idle.
    Idle(ConversationId),
    /// In a slot to open.
    New,
    /// All slots are taken.
    Full,
}

#[derive(Debug, Default)]
pub struct Slots {
    /// Maximum number of slots.
    max: usize,
    /// Slots without an owner, the least recently used first.
    idle: Vec<ConversationId>,
    taken: Vec<ConversationId>,
}

impl Slots {
    pub fn new(max: usize) -> Self {
        Self { max, ..Self::default() }
    }

    /// Chooses the slot that holds the longest beginning of a prompt; if none holds any, a new
    /// slot, or else the least recently used one. `held`: bytes of the prompt that a slot holds.
    pub fn choose(&self, held: impl Fn(ConversationId) -> usize) -> Choice {
        // Of equal ones the least recently used, which `max_by_key` finds from the end.
        let longest = self.idle.iter().rev().copied().max_by_key(|&id| held(id));
        match longest {
            Some(id) if held(id) > 0 => Choice::Idle(id),
            _ if self.idle.len() + self.taken.len() < self.max => Choice::New,
            Some(id) => Choice::Idle(id),
            None => Choice::Full,
        }
    }

    /// A slot is taken by `owner`. `was`: its id while it was idle; `None` if it is new.
    pub fn take(&mut self, was: Option<ConversationId>, owner: ConversationId) {
        self.idle.retain(|&id| Some(id) != was);
        self.taken.push(owner);
    }

    /// A slot is idle from now on. Returns false if the conversation is not a slot.
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
    fn the_longest_beginning_wins_and_else_a_new_slot_and_else_the_oldest() {
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
