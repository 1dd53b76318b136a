//! Which tokens of their conversations the slots held at the ends of answers.

use crate::protocol::Presence;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most answers whose tokens are kept, and most bytes of all.
const MOST: usize = 64;
const MOST_BYTES: usize = 64 << 20;

/// What slots held at the ends of the newest answers that were asked to report their cache.
#[derive(Default)]
pub struct Memories(Mutex<VecDeque<(String, Arc<Presence>)>>);

fn bytes(presence: &Presence) -> usize {
    let Presence { text, ends, kept, marked, far, near, .. } = presence;
    text.len() + 4 * ends.len() + 2 * (kept.len() + marked.len() + far.len() + near.len())
}

impl Memories {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(String, Arc<Presence>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps those of the answer with this id. The oldest make room.
    pub fn keep(&self, id: &str, presence: &Arc<Presence>) {
        let mut kept = self.lock();
        kept.push_back((id.to_owned(), Arc::clone(presence)));
        let mut held: usize = kept.iter().map(|(_, presence)| bytes(presence)).sum();
        while kept.len() > MOST || held > MOST_BYTES {
            let Some((_, oldest)) = kept.pop_front() else { return };
            held -= bytes(&oldest);
        }
    }

    pub fn find(&self, id: &str) -> Option<Arc<Presence>> {
        self.lock().iter().rev().find(|(known, _)| known == id).map(|(_, presence)| Arc::clone(presence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_make_room() {
        let memories = Memories::default();
        let presence = |n: usize| Arc::new(Presence { text: "x".repeat(n), ..Presence::default() });
        (0..=MOST).for_each(|n| memories.keep(&n.to_string(), &presence(n)));
        assert_eq!((memories.find("0"), memories.find("1").map(|one| one.text.len())), (None, Some(1)));
        memories.keep("large", &presence(MOST_BYTES - 100));
        assert_eq!(memories.find("63"), None);
        memories.keep("larger", &presence(MOST_BYTES + 1));
        assert!(memories.find("larger").is_none() && memories.lock().is_empty(), "it holds its bounds");
    }
}
