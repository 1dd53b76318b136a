//! The state of a conversation in the cache: the token log with its toggles, its text, and the cache sequence. A
//! snapshot is a fork of it.

use super::runner::{Runner, StepError};
use crate::backend::Backend;
use crate::cache::{CacheError, SeqId};
use crate::protocol::{LogEntry, Token};

/// The log, not the text, is the truth. The cache knows whether the sequence evicts.
pub(super) struct Context {
    pub seq: SeqId,
    pub log: Vec<LogEntry>,
    /// Sampled or encoded, but not fed yet: the first token of whatever is fed next.
    pub pending: Option<Token>,
    /// Canonical text of the log and the pending token (see [`crate::tokenizer::flatten`]).
    pub flat: String,
}

impl Context {
    /// Creates an empty context. Logs begin with eviction on; a log that does not has a toggle as its first entry.
    pub fn new<B: Backend>(runner: &mut Runner<B>, eviction: bool) -> Result<Self, CacheError> {
        let seq = runner.create(eviction)?;
        let log = if eviction { Vec::new() } else { vec![LogEntry::Toggle { eviction: false }] };
        Ok(Self { seq, log, pending: None, flat: String::new() })
    }

    /// Applies an entry of a log that is not a token, and records it.
    pub fn apply<B: Backend>(&mut self, runner: &mut Runner<B>, entry: LogEntry) -> Result<(), CacheError> {
        match entry {
            LogEntry::Token(_) => {}
            LogEntry::Toggle { eviction } => drop(self.set_eviction(runner, eviction)?),
            LogEntry::Dial { dial } => self.set_dial(runner, dial),
            LogEntry::Forget { forget } => drop(self.forget(runner, forget)?),
            LogEntry::Pin { pin } => self.pin(runner, pin)?,
            LogEntry::Unpin { unpin } => drop(self.unpin(runner, unpin)?),
            LogEntry::Drop { drop: positions } => drop(self.drop_positions(runner, positions)?),
        }
        Ok(())
    }

    /// Sets what a decision must exceed to mark, and records it.
    pub fn set_dial<B: Backend>(&mut self, runner: &mut Runner<B>, dial: f32) {
        if runner.set_dial(self.seq, dial) {
            self.log.push(LogEntry::Dial { dial });
        }
    }

    /// Drops the tokens outside the window whose decisions had at least this strength. Returns the number of slots dropped.
    pub fn forget<B: Backend>(&mut self, runner: &mut Runner<B>, forget: u16) -> Result<u64, CacheError> {
        let dropped = runner.forget(self.seq, forget)?;
        self.log.push(LogEntry::Forget { forget });
        Ok(dropped)
    }

    /// Pins the tokens at positions from `pin[0]` to below `pin[1]`.
    pub fn pin<B: Backend>(&mut self, runner: &mut Runner<B>, pin: [u32; 2]) -> Result<(), CacheError> {
        runner.pin(self.seq, pin[0] as usize..pin[1] as usize)?;
        self.log.push(LogEntry::Pin { pin });
        Ok(())
    }

    /// Takes the pins at these positions back. Returns the numbers of tokens and of slots dropped.
    pub fn unpin<B: Backend>(&mut self, runner: &mut Runner<B>, unpin: [u32; 2]) -> Result<(usize, u64), CacheError> {
        let changed = runner.unpin(self.seq, unpin[0] as usize..unpin[1] as usize)?;
        self.log.push(LogEntry::Unpin { unpin });
        Ok(changed)
    }

    /// Drops the tokens at these positions. Returns the number of slots dropped.
    pub fn drop_positions<B: Backend>(&mut self, runner: &mut Runner<B>, drop: [u32; 2]) -> Result<u64, CacheError> {
        let dropped = runner.drop_positions(self.seq, drop[0] as usize..drop[1] as usize)?;
        self.log.push(LogEntry::Drop { drop });
        Ok(dropped)
    }

    pub fn fork<B: Backend>(&self, runner: &mut Runner<B>) -> Result<Self, CacheError> {
        let seq = runner.fork(self.seq)?;
        Ok(Self { seq, log: self.log.clone(), pending: self.pending, flat: self.flat.clone() })
    }

    /// Switches eviction and records it in the log. Returns the number of slots dropped.
    pub fn set_eviction<B: Backend>(&mut self, runner: &mut Runner<B>, on: bool) -> Result<u64, CacheError> {
        let was = runner.cache.eviction(self.seq);
        let dropped = runner.set_eviction(self.seq, on)?;
        if on != was {
            self.log.push(LogEntry::Toggle { eviction: on });
        }
        Ok(dropped)
    }

    /// Feeds tokens and appends them to the log.
    pub fn feed<B: Backend>(&mut self, runner: &mut Runner<B>, tokens: &[Token]) -> Result<(), StepError> {
        runner.feed(self.seq, tokens)?;
        self.log.extend(tokens.iter().map(|&t| LogEntry::Token(t)));
        Ok(())
    }

    /// Number of tokens fed.
    pub fn len<B: Backend>(&self, runner: &Runner<B>) -> usize {
        runner.cache.len(self.seq)
    }

    /// The entries of the log that pin or take a pin back.
    pub fn pins(&self) -> impl Iterator<Item = LogEntry> + '_ {
        self.log.iter().copied().filter(LogEntry::is_pin)
    }

    /// Number of tokens fed when some were last dropped for lack of memory.
    pub fn forgot(&self) -> Option<usize> {
        let last = self.log.iter().rposition(|e| matches!(e, LogEntry::Forget { .. } | LogEntry::Drop { .. }))?;
        Some(self.log[..last].iter().filter(|entry| matches!(entry, LogEntry::Token(_))).count())
    }

    pub fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        self.log.iter().filter_map(|entry| match entry {
            LogEntry::Token(token) => Some(*token),
            _ => None,
        })
    }
}
