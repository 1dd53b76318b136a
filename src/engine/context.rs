//! A conversation as the cache holds it: the token log with its toggles, the text it stands for,
//! and the sequence that stores it. Checkpoints are the same thing, forked.

use super::runner::{Decode, Runner, StepError};
use crate::backend::Backend;
use crate::cache::{CacheError, SeqId};
use crate::protocol::{LogEntry, SamplingParams, Token};

/// The log, not the text, is the truth. `flat` is what the log was rendered from (control
/// literals set apart, see [`crate::tokenizer::flatten`]), the pending token's text included.
pub(super) struct Context {
    pub seq: SeqId,
    pub log: Vec<LogEntry>,
    /// Sampled or encoded but not fed yet; it is the first token of whatever comes next.
    pub pending: Option<Token>,
    pub flat: String,
    /// Eviction as set by the log's toggles.
    pub eviction: bool,
}

impl Context {
    /// An empty conversation. Logs begin with eviction on; off is the first entry of one that
    /// does not.
    pub fn new<B: Backend>(runner: &mut Runner<B>, eviction: bool) -> Result<Self, CacheError> {
        let seq = runner.create(eviction)?;
        let log = if eviction { Vec::new() } else { vec![LogEntry::Toggle { eviction: false }] };
        Ok(Self { seq, log, pending: None, flat: String::new(), eviction })
    }

    pub fn fork<B: Backend>(&self, runner: &mut Runner<B>) -> Result<Self, CacheError> {
        Ok(Self {
            seq: runner.fork(self.seq)?,
            log: self.log.clone(),
            pending: self.pending,
            flat: self.flat.clone(),
            eviction: self.eviction,
        })
    }

    /// Switches eviction and notes it in the log; how many slots were dropped.
    pub fn set_eviction<B: Backend>(&mut self, runner: &mut Runner<B>, on: bool) -> Result<u64, CacheError> {
        let dropped = runner.set_eviction(self.seq, on)?;
        if on != self.eviction {
            self.log.push(LogEntry::Toggle { eviction: on });
            self.eviction = on;
        }
        Ok(dropped)
    }

    /// Feeds tokens and notes them in the log.
    pub fn feed<B: Backend>(&mut self, runner: &mut Runner<B>, tokens: &[Token]) -> Result<(), StepError> {
        runner.feed(self.seq, tokens)?;
        self.log.extend(tokens.iter().map(|&t| LogEntry::Token(t)));
        Ok(())
    }

    /// Feeds a token, notes it in the log and samples the one after it.
    pub fn decode<B: Backend>(
        &mut self,
        runner: &mut Runner<B>,
        token: Token,
        sampling: &SamplingParams,
        seed: u64,
    ) -> Result<Token, StepError> {
        let next = runner.decode(&[Decode { seq: self.seq, token, sampling, seed }])?;
        self.log.push(LogEntry::Token(token));
        Ok(next[0])
    }

    /// Tokens fed.
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
