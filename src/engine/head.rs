//! The sequences of a draft head ([`model::Head`]): one for each sequence of the model, fed the
//! same tokens with the model's hidden states, one token behind. The head drafts from them. Drafts
//! are only tried, so a head that has missed tokens does no harm: it starts again with an empty
//! sequence.

use super::{EngineOptions, planner};
use crate::backend::{Backend, KvGeometry, Span};
use crate::cache::{CacheError, PAGE_SLOTS, SeqId};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::draft_head::DraftHead;
use crate::model::{self, HEAD_ROWS, Head, Model};
use crate::policy::Policy;
use crate::protocol::{MAX_DRAFTS, Token};
use anyhow::Result;
use std::collections::HashMap;

/// Attention window of a draft head, in tokens.
pub(super) const WINDOW: usize = 2048;
/// Number of windows that the head's cache has memory for. Forks share theirs.
const WINDOWS: usize = 4;

/// Rows of the model's last step to feed to the head, and how many tokens to draft after them.
#[derive(Clone, Copy, Debug)]
pub struct DraftRequest<'a> {
    pub seq: SeqId,
    /// The token after each of the sequence's first rows of the step.
    pub next: &'a [Token],
    /// Maximum drafts.
    pub max: usize,
}

/// A span of the model's last step.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepSpan {
    pub span: Span,
    /// Position and id of the span's first token.
    pub at: usize,
    pub first: Token,
}

/// The head's sequence for a sequence of the model.
struct Track {
    seq: SeqId,
    /// Position of the next row to feed.
    next: usize,
    /// Token expected at that position.
    token: Token,
}

pub(super) struct Tracks<B: Backend> {
    head: Head<B>,
    /// By the row of the model's sequence.
    tracks: HashMap<usize, Track>,
    /// Whether the head's memory is lent to the model's cache, so that it drafts nothing.
    lent: bool,
}

/// Bytes of a checkpoint's head that are not counted with the model's. On a device that counts
/// allocations, these are only its pages.
pub(super) fn bytes(checkpoint: &Checkpoint, options: &EngineOptions, counted: bool) -> u64 {
    let Some(head) = checkpoint.draft_head.as_ref().filter(|_| options.drafts.rows > 0) else { return 0 };
    let workspace = || model::head_workspace_bytes(&head.layer.config, options.max_seqs);
    let rest = if counted { 0 } else { head.bytes() + workspace() };
    rest + max_page_bytes(head, options)
}

/// Maximum bytes of the head's pages.
fn max_page_bytes(head: &DraftHead, options: &EngineOptions) -> u64 {
    let c = &head.layer.config;
    let slots = (WINDOW + PAGE_SLOTS) * c.n_kv_heads * WINDOWS;
    (slots * options.codec.of_others().slot_bytes(c.head_dim)) as u64
}

impl<B: Backend> Tracks<B> {
    /// Loads the checkpoint's draft head. `None` if there is none, or drafts are off.
    pub fn new(
        b: &B,
        model: &Model<B>,
        checkpoint: &Checkpoint,
        options: &EngineOptions,
        context: usize,
    ) -> Result<Option<Self>> {
        let Some(head) = checkpoint.draft_head.as_ref().filter(|_| options.drafts.rows > 0) else { return Ok(None) };
        // Twice as many sequences, because each drafts in a fork.
        let policy = Policy::of_window(WINDOW);
        let geometry = planner::geometry(&head.layer.config, options, policy, 2 * options.max_seqs);
        let geometry = KvGeometry { codec: options.codec.of_others(), far: None, ..geometry };
        let context = context + MAX_DRAFTS + 1;
        let limit = max_page_bytes(head, options);
        let new = || Head::new(b, model, head, geometry, context, options.max_seqs);
        let mut head = b.allocating("the draft head", new)?;
        head.cache.set_limit_bytes(Some(limit));
        Ok(Some(Self { head, tracks: HashMap::new(), lent: false }))
    }

    /// Releases the head's sequence for a sequence of the model.
    pub fn release(&mut self, b: &B, seq: SeqId) {
        if let Some(track) = self.tracks.remove(&seq.row()) {
            self.head.cache.release(b, track.seq);
        }
    }

    /// Forks the head's sequence for a fork of the model's.
    pub fn fork(&mut self, b: &B, seq: SeqId, copy: SeqId) {
        let Some(track) = self.tracks.get(&seq.row()) else { return };
        if let Ok(fork) = self.head.cache.fork(b, track.seq) {
            let track = Track { seq: fork, ..*track };
            self.tracks.insert(copy.row(), track);
        }
    }

    /// Frees all pages, and drafts nothing until [`Self::take_back`]. Returns false if they were
    /// lent before.
    pub fn lend(&mut self, b: &B) -> bool {
        if std::mem::replace(&mut self.lent, true) {
            return false;
        }
        for (_, track) in self.tracks.drain() {
            self.head.cache.release(b, track.seq);
        }
        self.head.cache.trim(b);
        true
    }

    /// Drafts again.
    pub fn take_back(&mut self) {
        self.lent = false;
    }

    /// Bytes that the model's cache may use meanwhile; 0 if they are not lent.
    pub fn lent_bytes(&self) -> u64 {
        if self.lent { self.head.cache.limit_bytes().unwrap_or(0) } else { 0 }
    }

    /// Feeds the head with rows of the model's last step, whose hidden states are `features`, and
    /// drafts. Returns the drafts of each request.
    pub fn draft(
        &mut self,
        b: &B,
        vocab: usize,
        features: &B::Acts,
        step: &[StepSpan],
        requests: &[DraftRequest<'_>],
    ) -> Vec<Vec<Token>> {
        let mut drafts = vec![Vec::new(); requests.len()];
        if self.lent {
            return drafts;
        }
        // The sequences that are fed: index of the request, the head's sequence, row of the head's
        // last step.
        let mut fed: Vec<(usize, SeqId, usize)> = Vec::new();
        let (mut at, mut tokens, mut spans) = (Vec::new(), Vec::new(), Vec::new());
        let busy: Vec<usize> = requests.iter().map(|request| request.seq.row()).collect();
        for (i, request) in requests.iter().enumerate() {
            let Some(stepped) = step.iter().find(|s| s.span.seq == request.seq.row()) else { continue };
            if request.next.is_empty() {
                continue;
            }
            let Some(seq) = self.track(b, request, stepped) else { continue };
            // Many rows are fed in full chunks first. The rest shares one step with the other
            // sequences.
            let mut from = 0;
            while request.next.len() - from > HEAD_ROWS {
                let rows: Vec<usize> = (0..HEAD_ROWS).map(|j| stepped.span.start + from + j).collect();
                let span = self.head.cache.span(seq, 0, HEAD_ROWS);
                if self.reserve(b, &[span], &busy).is_err() {
                    break;
                }
                self.head.feed(b, features, &rows, &request.next[from..from + HEAD_ROWS], &[span]);
                from += HEAD_ROWS;
            }
            let rest = request.next.len() - from;
            let span = self.head.cache.span(seq, at.len(), rest);
            let all: Vec<Span> = spans.iter().copied().chain([span]).collect();
            if rest > HEAD_ROWS || at.len() + rest > HEAD_ROWS || self.reserve(b, &all, &busy).is_err() {
                self.release(b, request.seq);
                continue;
            }
            at.extend((from..request.next.len()).map(|j| stepped.span.start + j));
            tokens.extend_from_slice(&request.next[from..]);
            spans.push(span);
            fed.push((i, seq, at.len() - 1));
        }
        if fed.is_empty() {
            return drafts;
        }
        self.head.feed(b, features, &at, &tokens, &spans);
        self.draft_in_forks(b, vocab, requests, fed, &mut drafts, &busy);
        drafts
    }

    /// Drafts token after token in forks of the head's sequences, which stay as they are.
    fn draft_in_forks(
        &mut self,
        b: &B,
        vocab: usize,
        requests: &[DraftRequest<'_>],
        mut fed: Vec<(usize, SeqId, usize)>,
        drafts: &mut [Vec<Token>],
        busy: &[usize],
    ) {
        let mut forks = Vec::new();
        for round in 0.. {
            fed.retain(|&(i, ..)| drafts[i].len() == round && requests[i].max > round);
            if fed.is_empty() {
                break;
            }
            let rows: Vec<usize> = fed.iter().map(|&(.., row)| row).collect();
            let tokens = self.head.guess(b, &rows);
            let mut next = Vec::new();
            for (j, (&(i, seq, _), token)) in fed.iter().zip(tokens).enumerate() {
                let Some(token) = token.filter(|&token| (token as usize) < vocab) else { continue };
                drafts[i].push(token);
                if requests[i].max > round + 1 {
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
            // `guess` has left the hidden states in the first rows, in order. They can only be fed
            // on if no sequence between them has ended.
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

    /// Returns the head's sequence that these rows continue, or an empty one.
    fn track(&mut self, b: &B, request: &DraftRequest<'_>, step: &StepSpan) -> Option<SeqId> {
        let key = request.seq.row();
        if self.tracks.get(&key).is_some_and(|track| (track.next, track.token) != (step.at, step.first)) {
            self.release(b, request.seq);
        }
        let seq = match self.tracks.get(&key) {
            Some(track) => track.seq,
            None => self.head.cache.create(b, true).ok()?,
        };
        let token = *request.next.last()?;
        self.tracks.insert(key, Track { seq, next: step.at + request.next.len(), token });
        Some(seq)
    }

    /// Reserves the pages of a step. Sequences that are not `busy` are released to make room.
    fn reserve(&mut self, b: &B, spans: &[Span], busy: &[usize]) -> Result<(), CacheError> {
        loop {
            let Err(error) = self.head.cache.reserve_step(b, spans) else { return Ok(()) };
            let idle = self.tracks.keys().copied().find(|key| !busy.contains(key)).ok_or(error)?;
            let track = self.tracks.remove(&idle);
            track.into_iter().for_each(|track| self.head.cache.release(b, track.seq));
        }
    }
}
