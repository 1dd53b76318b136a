//! The requests that a server works on, and the lines of its log, for its screen.

use crate::protocol::{Phase, Snapshot};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most lines of the log that are kept.
const MOST_LINES: usize = 500;

/// What a request is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// It waits for a slot.
    #[default]
    Waits,
    /// So many of so many new tokens of its prompt were read.
    Reads { done: usize, total: usize },
    /// It is answered.
    Answers,
}

/// A request that is worked on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// Counts the requests of the server, from 1.
    pub number: u64,
    /// The API that it came by.
    pub form: &'static str,
    pub stage: Stage,
    /// Its place among those that are answered, from 1, which is free again at its end.
    pub slot: Option<usize>,
    pub prompt_tokens: usize,
    /// Tokens of its prompt that were in the cache.
    pub cached: usize,
    /// Tokens in the cache now.
    pub tokens: usize,
    pub tok_s: Option<f64>,
    /// How much smaller its cache is.
    pub ratio: Option<f64>,
}

#[derive(Debug, Default)]
struct State {
    lines: BTreeMap<u64, Line>,
    last: u64,
    log: VecDeque<String>,
}

#[derive(Debug, Default)]
pub struct Board(Mutex<State>);

/// What there is to see.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// In the order of arrival.
    pub lines: Vec<Line>,
    /// The oldest first.
    pub log: Vec<String>,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request, until its entry is dropped.
    pub fn enter(self: &Arc<Self>, form: &'static str) -> Entry {
        let mut state = self.lock();
        state.last += 1;
        let number = state.last;
        state.lines.insert(number, Line { number, form, ..Line::default() });
        Entry { board: Arc::clone(self), number }
    }

    /// Adds a line of the log.
    pub fn say(&self, line: String) {
        let mut state = self.lock();
        state.log.push_back(line);
        if state.log.len() > MOST_LINES {
            state.log.pop_front();
        }
    }

    pub fn view(&self) -> View {
        let state = self.lock();
        View { lines: state.lines.values().cloned().collect(), log: state.log.iter().cloned().collect() }
    }
}

/// A request on the board.
#[derive(Debug)]
pub struct Entry {
    board: Arc<Board>,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.board.lock().lines.remove(&self.number);
    }
}

impl Entry {
    pub fn number(&self) -> u64 {
        self.number
    }

    fn change(&self, change: impl FnOnce(&mut Line)) {
        if let Some(line) = self.board.lock().lines.get_mut(&self.number) {
            change(line);
        }
    }

    /// Its prompt begins to be read: so many tokens, of which so many are cached.
    pub fn begins(&self, prompt_tokens: usize, cached: usize) {
        let mut state = self.board.lock();
        let taken: Vec<usize> = state.lines.values().filter_map(|line| line.slot).collect();
        let free = (1..).find(|slot| !taken.contains(slot));
        let Some(line) = state.lines.get_mut(&self.number) else { return };
        line.slot = line.slot.or(free);
        (line.prompt_tokens, line.cached, line.tokens) = (prompt_tokens, cached, cached);
        line.stage = Stage::Reads { done: 0, total: prompt_tokens.saturating_sub(cached) };
    }

    /// The engine has published its figures.
    pub fn sees(&self, now: &Snapshot) {
        self.change(|line| {
            if line.slot.is_none() {
                return;
            }
            line.stage = match now.phase {
                Phase::Prefill { done, total } => Stage::Reads { done, total },
                Phase::Decode => Stage::Answers,
                Phase::Idle | Phase::Rebuild { .. } => line.stage,
            };
            (line.tokens, line.tok_s, line.ratio) = (now.tokens, now.decode_tok_s, now.kv.ratio);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_a_place_from_its_beginning_to_its_end() {
        let board = Arc::new(Board::default());
        let [a, b] = ["messages", "chat"].map(|form| board.enter(form));
        let slots = || board.view().lines.iter().map(|line| (line.number, line.slot)).collect::<Vec<_>>();
        assert_eq!(slots(), [(1, None), (2, None)]);
        a.sees(&Snapshot { phase: Phase::Decode, ..Snapshot::default() });
        assert_eq!(board.view().lines[0].stage, Stage::Waits, "what was before in its slot");
        a.begins(10, 4);
        b.begins(7, 0);
        assert_eq!(slots(), [(1, Some(1)), (2, Some(2))]);
        a.sees(&Snapshot { phase: Phase::Prefill { done: 2, total: 6 }, tokens: 6, ..Snapshot::default() });
        let line = board.view().lines[0].clone();
        assert_eq!((line.stage, line.tokens, line.cached), (Stage::Reads { done: 2, total: 6 }, 6, 4));
        drop(a);
        let c = board.enter("chat");
        c.begins(1, 0);
        assert_eq!(slots(), [(2, Some(2)), (3, Some(1))]);
        (0..MOST_LINES + 2).for_each(|n| board.say(n.to_string()));
        let log = board.view().log;
        assert_eq!((log.len(), &*log[0]), (MOST_LINES, "2"));
    }
}
