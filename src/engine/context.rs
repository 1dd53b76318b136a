//! The state of a conversation in the cache: the token log with its toggles, its text, and the
//! cache sequence. A snapshot is a fork of it.

use super::runner::{Runner, StepError};
use crate::backend::Backend;
use crate::cache::{CacheError, SeqId};
use crate::policy::Far;
use crate::protocol::{LogEntry, Token};

/// The log, not the text, is the truth. The cache knows whether the sequence evicts.
pub(super) struct Context {
    pub seq: SeqId,
    pub log: Vec<LogEntry>,
    /// Sampled or encoded, but not fed yet: the first token of whatever is fed next.
    pub pending: Option<Token>,
    /// Canonical text of the log and the pending token (see [`crate::tokenizer::flatten`]).
    pub flat: String,
    /// The text ends inside a prompt that was not read to its end: where another text goes on from
    /// there, its tokens may differ, so that they are compared too.
    pub is_cut: bool,
    /// Tokens at the beginning that were fed in whole chunks of [`Runner::chunk`].
    pub chunked: usize,
    /// Far pages of it await rows from a file: see [`far_load`](super::far_load).
    pub awaits_far: bool,
}

impl Context {
    /// Creates an empty context. Logs begin with eviction on; otherwise the first entry of the log
    /// is a toggle.
    pub fn new<B: Backend>(runner: &mut Runner<B>, eviction: bool) -> Result<Self, CacheError> {
        let seq = runner.create(eviction)?;
        let log = if eviction { Vec::new() } else { vec![LogEntry::Toggle { eviction: false }] };
        let (pending, flat, is_cut, chunked, awaits_far) = (None, String::new(), false, 0, false);
        Ok(Self { seq, log, pending, flat, is_cut, chunked, awaits_far })
    }

    /// Applies an entry of a log that is not a token, and records it if it changes anything.
    /// Returns the number of tokens that are no longer pinned and the number of slots dropped.
    pub fn apply<B: Backend>(&mut self, runner: &mut Runner<B>, entry: LogEntry) -> Result<(usize, u64), CacheError> {
        let (seq, range) = (self.seq, |[start, end]: [u32; 2]| start as usize..end as usize);
        let (changes, counts) = match entry {
            LogEntry::Token(_) => (false, (0, 0)),
            LogEntry::Toggle { eviction } => {
                let was = runner.cache.eviction(seq);
                (was != eviction, (0, runner.set_eviction(seq, eviction)?))
            }
            LogEntry::Dial { dial } => (runner.set_dial(seq, dial), (0, 0)),
            LogEntry::Forget { forget } => (true, (0, runner.forget(seq, forget)?)),
            LogEntry::Pin { pin } => {
                runner.pin(seq, range(pin))?;
                (true, (0, 0))
            }
            LogEntry::Unpin { unpin } => (true, runner.unpin(seq, range(unpin))?),
            LogEntry::Drop { drop } => (true, (0, runner.drop_positions(seq, range(drop))?)),
            LogEntry::Choose { choose } => (runner.choose(seq, choose.into()).is_some(), (0, 0)),
            LogEntry::DropFar { drop_far } => {
                let dropped = runner.drop_far(seq, drop_far as usize);
                (dropped > 0, (0, dropped))
            }
        };
        if changes {
            self.log.push(entry);
        }
        Ok(counts)
    }

    /// Sets what a decision must exceed to mark.
    pub fn set_dial<B: Backend>(&mut self, runner: &mut Runner<B>, dial: f32) {
        let _ = self.apply(runner, LogEntry::Dial { dial });
    }

    /// Switches eviction. Returns the number of slots dropped.
    pub fn set_eviction<B: Backend>(&mut self, runner: &mut Runner<B>, eviction: bool) -> Result<u64, CacheError> {
        Ok(self.apply(runner, LogEntry::Toggle { eviction })?.1)
    }

    /// Whether eviction was ever other than this.
    pub fn was_switched(&self, eviction: bool) -> bool {
        self.log.iter().any(|entry| matches!(entry, LogEntry::Toggle { eviction: on } if *on != eviction))
    }

    /// Tokens fed since the far pages were last chosen, or `most` if it is that long ago.
    pub fn since_choice(&self, most: usize) -> usize {
        let newest = self.log.iter().rev().take_while(|entry| !matches!(entry, LogEntry::Choose { .. }));
        newest.filter_map(LogEntry::token).take(most).count()
    }

    /// Lets the newest `queries` queries choose the far pages that are attended to from here on.
    pub fn choose<B: Backend>(&mut self, runner: &mut Runner<B>, queries: usize) {
        let _ = self.apply(runner, LogEntry::Choose { choose: queries as u16 });
    }

    /// Takes back the choice that ends the log, before which all pages were near: there was none
    /// before it.
    pub fn take_choice_back<B: Backend>(&mut self, runner: &mut Runner<B>) -> Result<(), CacheError> {
        runner.bring_all(self.seq)?;
        self.log.pop();
        Ok(())
    }

    /// The entries of a prompt of these tokens after those of the log.
    pub fn log_of_prompt<B: Backend>(&self, runner: &Runner<B>, tokens: &[Token]) -> Vec<LogEntry> {
        let entries = runner.with_choices(tokens, runner.prompt_block(), Far::QUERIES);
        self.log.iter().copied().chain(entries).collect()
    }

    pub fn fork<B: Backend>(&self, runner: &mut Runner<B>) -> Result<Self, CacheError> {
        let seq = runner.fork(self.seq)?;
        let Self { pending, is_cut, chunked, awaits_far, .. } = *self;
        Ok(Self { seq, log: self.log.clone(), pending, flat: self.flat.clone(), is_cut, chunked, awaits_far })
    }

    /// Feeds tokens and appends them to the log.
    pub fn feed<B: Backend>(&mut self, runner: &mut Runner<B>, tokens: &[Token]) -> Result<(), StepError> {
        let before = self.len(runner);
        runner.feed(self.seq, tokens)?;
        if self.chunked == before && Some(tokens.len()) == runner.chunk() {
            self.chunked += tokens.len();
        }
        self.log.extend(tokens.iter().map(|&t| LogEntry::Token(t)));
        Ok(())
    }

    /// Whether the state has the same bits in every conversation with its log: results may depend
    /// on the chunks of a prefill.
    pub fn is_everybodys<B: Backend>(&self, runner: &Runner<B>) -> bool {
        runner.chunk().is_none() || self.chunked == self.len(runner)
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
        Some(self.log[..last].iter().filter_map(LogEntry::token).count())
    }

    pub fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        self.log.iter().filter_map(LogEntry::token)
    }
}
