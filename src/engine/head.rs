//! Where a head ([`model::Head`]) stands with each sequence. It is fed with what a sequence is fed, one token behind, and guesses
//! from there. A guess is only tried, so that a head that was not fed everything does no harm: it begins again where it can.

use super::{EngineOptions, planner};
use crate::backend::{Backend, Span};
use crate::cache::{CacheError, PAGE_SLOTS, SeqId};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::draft_head::DraftHead;
use crate::model::{self, HEAD_ROWS, Head, Model};
use crate::policy::Policy;
use crate::protocol::{MAX_DRAFTS, Token};
use anyhow::Result;
use std::collections::HashMap;

/// Newest tokens that a head attends to.
pub(super) const WINDOW: usize = 2048;
/// Sequences whose windows a head has memory for; forks share theirs.
const WINDOWS: usize = 4;

/// Rows of the model's last step, and what the head is to guess behind them.
#[derive(Clone, Copy, Debug)]
pub struct Follow<'a> {
    pub seq: SeqId,
    /// The token behind each of the sequence's first rows of the step that was fed.
    pub next: &'a [Token],
    /// Most tokens to guess.
    pub most: usize,
}

/// A span of the model's last step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stepped {
    pub span: Span,
    /// Tokens that the sequence had before, and the first of the step.
    pub at: usize,
    pub first: Token,
}

/// What a head was fed of a sequence.
struct Track {
    seq: SeqId,
    /// Position of the next row.
    next: usize,
    /// The token that it was told to be there.
    token: Token,
}

pub(super) struct Tracks<B: Backend> {
    head: Head<B>,
    /// By the model's sequence.
    tracks: HashMap<usize, Track>,
    /// It was given up for lack of memory.
    off: bool,
}

/// Bytes of the head of a checkpoint that are not counted with the model's: on a device, where allocations are counted, its pages.
pub(super) fn bytes(checkpoint: &Checkpoint, options: &EngineOptions, counted: bool) -> u64 {
    let Some(head) = checkpoint.draft_head.as_ref().filter(|_| options.drafts.rows > 0) else { return 0 };
    let workspace = || model::head_workspace_bytes(&head.layer.config, options.max_seqs);
    let rest = if counted { 0 } else { head.bytes() + workspace() };
    rest + pages_bytes(head, options)
}

/// Bytes of its pages at most.
fn pages_bytes(head: &DraftHead, options: &EngineOptions) -> u64 {
    let c = &head.layer.config;
    let slots = (WINDOW + PAGE_SLOTS) * c.n_kv_heads * WINDOWS;
    (slots * options.codec.slot_bytes(c.head_dim)) as u64
}

impl<B: Backend> Tracks<B> {
    /// The head of a checkpoint, if it has one that is in use.
    pub fn new(
        b: &B,
        model: &Model<B>,
        checkpoint: &Checkpoint,
        options: &EngineOptions,
        context: usize,
    ) -> Result<Option<Self>> {
        let Some(head) = checkpoint.draft_head.as_ref().filter(|_| options.drafts.rows > 0) else { return Ok(None) };
        // A sequence guesses in a fork.
        let policy = Policy::of_window(WINDOW);
        let geometry = planner::geometry(&head.layer.config, options, policy, 2 * options.max_seqs);
        let context = context + MAX_DRAFTS + 1;
        let limit = pages_bytes(head, options);
        let new = || Head::new(b, model, head, geometry, context, options.max_seqs);
        let mut head = b.allocating("the draft head", new)?;
        head.cache.set_limit_bytes(Some(limit));
        Ok(Some(Self { head, tracks: HashMap::new(), off: false }))
    }

    /// Releases what belongs to a sequence.
    pub fn release(&mut self, b: &B, seq: SeqId) {
        if let Some(track) = self.tracks.remove(&seq.row()) {
            self.head.cache.release(b, track.seq);
        }
    }

    /// Gives a fork of a sequence a fork of what belongs to it.
    pub fn fork(&mut self, b: &B, seq: SeqId, copy: SeqId) {
        let Some(track) = self.tracks.get(&seq.row()) else { return };
        if let Ok(fork) = self.head.cache.fork(b, track.seq) {
            let track = Track { seq: fork, ..*track };
            self.tracks.insert(copy.row(), track);
        }
    }

    /// Gives all pages back, for good. Returns their bytes at most; `None` if that was done before.
    pub fn give_up(&mut self, b: &B) -> Option<u64> {
        if std::mem::replace(&mut self.off, true) {
            return None;
        }
        for (_, track) in self.tracks.drain() {
            self.head.cache.release(b, track.seq);
        }
        self.head.cache.trim(b);
        self.head.cache.limit_bytes()
    }

    /// Feeds the head with rows of the model's last step, whose `features` are these, and guesses. Returns the guesses of each.
    pub fn follow(
        &mut self,
        b: &B,
        vocab: usize,
        features: &B::Acts,
        step: &[Stepped],
        rows: &[Follow<'_>],
    ) -> Vec<Vec<Token>> {
        let mut guesses = vec![Vec::new(); rows.len()];
        if self.off {
            return guesses;
        }
        // The sequences of the step that could be fed: number of the request, sequence, row of the head's last step.
        let mut fed: Vec<(usize, SeqId, usize)> = Vec::new();
        let (mut at, mut tokens, mut spans) = (Vec::new(), Vec::new(), Vec::new());
        let busy: Vec<usize> = rows.iter().map(|row| row.seq.row()).collect();
        for (i, row) in rows.iter().enumerate() {
            let Some(stepped) = step.iter().find(|s| s.span.seq == row.seq.row()) else { continue };
            if row.next.is_empty() {
                continue;
            }
            let Some(seq) = self.track(b, row, stepped) else { continue };
            // All but the last rows go through at once where they are many.
            let mut from = 0;
            while row.next.len() - from > HEAD_ROWS {
                let all: Vec<usize> = (0..HEAD_ROWS).map(|j| stepped.span.start + from + j).collect();
                let span = self.head.cache.span(seq, 0, HEAD_ROWS);
                if self.reserve(b, &[span], &busy).is_err() {
                    break;
                }
                self.head.feed(b, features, &all, &row.next[from..from + HEAD_ROWS], &[span]);
                from += HEAD_ROWS;
            }
            let rest = row.next.len() - from;
            let span = self.head.cache.span(seq, at.len(), rest);
            let all: Vec<Span> = spans.iter().copied().chain([span]).collect();
            if rest > HEAD_ROWS || at.len() + rest > HEAD_ROWS || self.reserve(b, &all, &busy).is_err() {
                self.release(b, row.seq);
                continue;
            }
            at.extend((from..row.next.len()).map(|j| stepped.span.start + j));
            tokens.extend_from_slice(&row.next[from..]);
            spans.push(span);
            fed.push((i, seq, at.len() - 1));
        }
        if fed.is_empty() {
            return guesses;
        }
        self.head.feed(b, features, &at, &tokens, &spans);
        self.guess(b, vocab, rows, fed, &mut guesses, &busy);
        guesses
    }

    /// Guesses token after token, in forks of the sequences.
    fn guess(
        &mut self,
        b: &B,
        vocab: usize,
        rows: &[Follow<'_>],
        mut fed: Vec<(usize, SeqId, usize)>,
        guesses: &mut [Vec<Token>],
        busy: &[usize],
    ) {
        let mut forks = Vec::new();
        for round in 0.. {
            fed.retain(|&(i, ..)| guesses[i].len() == round && rows[i].most > round);
            if fed.is_empty() {
                break;
            }
            let from: Vec<usize> = fed.iter().map(|&(.., row)| row).collect();
            let tokens = self.head.guess(b, &from);
            let mut next = Vec::new();
            for (j, (&(i, seq, _), token)) in fed.iter().zip(tokens).enumerate() {
                let Some(token) = token.filter(|&token| (token as usize) < vocab) else { continue };
                guesses[i].push(token);
                if rows[i].most > round + 1 {
                    next.push((i, seq, j, token));
                }
            }
            if round == 0 {
                for (_, seq, ..) in &mut next {
                    let Ok(fork) = self.head.cache.fork(b, *seq) else { break };
                    *seq = fork;
                    forks.push(fork);
                }
                next.truncate(forks.len());
            }
            // The rows that go on are the first ones, in order, only if none between them ends.
            if next.is_empty() || next.iter().enumerate().any(|(j, &(_, _, row, _))| row != j) {
                break;
            }
            let spans: Vec<Span> = next.iter().enumerate().map(|(j, n)| self.head.cache.span(n.1, j, 1)).collect();
            if self.reserve(b, &spans, busy).is_err() {
                break;
            }
            let tokens: Vec<Token> = next.iter().map(|&(.., token)| token).collect();
            self.head.feed_own(b, &tokens, &spans);
            fed = next.into_iter().map(|(i, seq, row, _)| (i, seq, row)).collect();
        }
        forks.into_iter().for_each(|fork| self.head.cache.release(b, fork));
    }

    /// The head's sequence for rows that follow what it was fed, or an empty one.
    fn track(&mut self, b: &B, row: &Follow<'_>, step: &Stepped) -> Option<SeqId> {
        let key = row.seq.row();
        if self.tracks.get(&key).is_some_and(|track| (track.next, track.token) != (step.at, step.first)) {
            self.release(b, row.seq);
        }
        let seq = match self.tracks.get(&key) {
            Some(track) => track.seq,
            None => self.head.cache.create(b, true).ok()?,
        };
        let token = *row.next.last()?;
        self.tracks.insert(key, Track { seq, next: step.at + row.next.len(), token });
        Some(seq)
    }

    /// Reserves pages of a step. If there are none, sequences that are not busy give theirs up.
    fn reserve(&mut self, b: &B, spans: &[Span], busy: &[usize]) -> Result<(), CacheError> {
        loop {
            let Err(error) = self.head.cache.reserve_step(b, spans) else { return Ok(()) };
            let idle = self.tracks.keys().copied().find(|key| !busy.contains(key)).ok_or(error)?;
            let track = self.tracks.remove(&idle);
            track.into_iter().for_each(|track| self.head.cache.release(b, track.seq));
        }
    }
}
