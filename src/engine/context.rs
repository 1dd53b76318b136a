//! The state of a conversation in the cache: the token log with its toggles, its text, and the cache sequence. A
//! checkpoint is a fork of it.

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

    pub fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        self.log.iter().filter_map(|entry| match entry {
            LogEntry::Token(token) => Some(*token),
            LogEntry::Toggle { .. } => None,
        })
    }
}
