//! One loaded model with its workspace and cache: feeds tokens, reads logits, decodes.

use super::EngineOptions;
use super::planner::kv_budget;
use crate::backend::{Backend, Draw, KvGeometry, SampleArgs, Span, StepKind, seen_words};
use crate::cache::{CacheError, KvCache, PAGE_SLOTS, SeqId};
use crate::checkpoint::{Checkpoint, ModelConfig};
use crate::model::{self, Model, Workspace};
use crate::protocol::{SamplingParams, Token};
use anyhow::{Context as _, Result};
use std::time::{Duration, Instant};

/// Rows of logits at once: one in a chat, more when a text is scored.
pub(super) const MAX_LOGITS: usize = 16;

/// The model's numbers overflowed or were broken to begin with; the step's token means nothing.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the model's numbers are no longer finite, first {}", layer_name(*.layer, *.n_layers))]
pub struct NonFinite {
    pub layer: usize,
    pub n_layers: usize,
}

fn layer_name(layer: usize, n_layers: usize) -> String {
    match layer {
        _ if layer == n_layers => "before the output head".to_owned(),
        _ if layer > n_layers => "in the output head".to_owned(),
        _ => format!("in layer {layer}"),
    }
}

/// A step that failed: nothing has changed, but on `NonFinite`.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error(transparent)]
    NonFinite(#[from] NonFinite),
    #[error("token id {token} is not in the model's vocabulary of {vocab}")]
    UnknownToken { token: Token, vocab: usize },
}

/// One sequence's part of a decode step: the token to feed, and how the next one is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Decode<'a> {
    pub seq: SeqId,
    pub token: Token,
    pub sampling: &'a SamplingParams,
    pub seed: u64,
}

pub struct Runner<B: Backend> {
    b: B,
    model: Model<B>,
    ws: Workspace<B>,
    pub cache: KvCache<B>,
    context: usize,
    max_step: usize,
    /// Tokens fed to each sequence, see [`SampleArgs::seen`].
    seen: B::Buf<u32>,
    draws: B::Buf<Draw>,
    /// What stands in `draws`.
    drawn: Vec<Draw>,
    /// Time that the last decode step was waited for.
    waited: Duration,
}

/// All that is allocated for a model.
struct Parts<B: Backend> {
    model: Model<B>,
    ws: Workspace<B>,
    cache: KvCache<B>,
    seen: B::Buf<u32>,
    draws: B::Buf<Draw>,
    context: usize,
    max_step: usize,
}

impl<B: Backend> Parts<B> {
    fn new(
        b: &B,
        checkpoint: &Checkpoint,
        options: &EngineOptions,
        progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<Self> {
        let model = Model::load(b, checkpoint, progress).context("cannot load the model's weights")?;
        let c = &model.config;
        let context = options.context.unwrap_or(c.context);
        let wanted = options.max_step.unwrap_or_else(|| b.step_tokens(model::step_token_bytes(c)));
        let max_step = wanted.min(context).max(1);
        let geometry = KvGeometry {
            n_layers: c.n_layers,
            n_q_heads: c.n_q_heads,
            n_kv_heads: c.n_kv_heads,
            head_dim: c.head_dim,
            n_seqs: options.max_seqs,
            page_slots: PAGE_SLOTS,
            max_pages: 0,
            codec: options.codec,
            policy: model.policy(options.policy)?,
        };
        let (max_tokens, max_logits) = (max_step.max(options.max_seqs), MAX_LOGITS.max(options.max_seqs));
        let mut ws = Workspace::new(b, &model, max_tokens, max_logits)?;
        if let Some(decision) = geometry.policy.constant_decision() {
            ws.fill_decisions(b, decision);
        }
        Ok(Self {
            cache: KvCache::new(b, geometry, context, max_tokens)?,
            ws,
            seen: b.alloc(options.max_seqs * seen_words(c.vocab))?,
            draws: b.alloc(max_logits)?,
            model,
            context,
            max_step,
        })
    }
}

/// Bytes of device memory that a model takes beside its weights and pages: told before loading by the very
/// allocations that loading makes. Absent where memory is the host's.
pub fn workspace_bytes<B: Backend>(b: &B, checkpoint: &Checkpoint, options: &EngineOptions) -> Option<u64> {
    let all = b.dry_run_bytes(|| Parts::new(b, checkpoint, options, |_, _| true))?;
    Some(all.saturating_sub(checkpoint.weight_bytes))
}

impl<B: Backend> Runner<B> {
    /// Loads a model: see [`Model::load`] for `progress`.
    pub fn new(
        b: B,
        checkpoint: &Checkpoint,
        options: &EngineOptions,
        progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<Self> {
        let Parts { model, ws, mut cache, seen, draws, context, max_step } =
            Parts::new(&b, checkpoint, options, progress)?;
        // Pages stop before memory does: a turn that is too long ends, and the process does not.
        let fixed = checkpoint.weight_bytes + options.workspace_bytes;
        cache.set_limit_bytes(kv_budget(fixed, options.kv_limit, options.memory_bytes));
        Ok(Self { b, model, ws, cache, context, max_step, seen, draws, drawn: Vec::new(), waited: Duration::ZERO })
    }

    pub fn config(&self) -> &ModelConfig {
        &self.model.config
    }

    pub fn backend(&self) -> &B {
        &self.b
    }

    /// Most tokens of a sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    pub fn max_step(&self) -> usize {
        self.max_step
    }

    pub fn create(&mut self, eviction: bool) -> Result<SeqId, CacheError> {
        let seq = self.cache.create(&self.b, eviction)?;
        let words = seen_words(self.model.config.vocab);
        self.b.write(&mut self.seen, seq.row() * words, &vec![0; words]);
        Ok(seq)
    }

    pub fn fork(&mut self, seq: SeqId) -> Result<SeqId, CacheError> {
        let copy = self.cache.fork(&self.b, seq)?;
        let words = seen_words(self.model.config.vocab);
        self.b.copy(&mut self.seen, seq.row() * words, copy.row() * words, words);
        Ok(copy)
    }

    pub fn release(&mut self, seq: SeqId) {
        self.cache.release(&self.b, seq);
    }

    /// Gives memory that no page uses back to the system.
    pub fn trim(&mut self) {
        self.cache.trim(&self.b);
    }

    /// Returns how many slots switching on has dropped.
    pub fn set_eviction(&mut self, seq: SeqId, on: bool) -> Result<u64, CacheError> {
        self.cache.set_eviction(&self.b, seq, on)
    }

    /// Feeds up to `max_step` tokens to a sequence. On an error nothing has changed.
    pub fn feed(&mut self, seq: SeqId, tokens: &[Token]) -> Result<(), StepError> {
        let spans = [self.cache.span(seq, 0, tokens.len())];
        self.step(StepKind::Feed, tokens, &spans)
    }

    /// Feeds one token to each of several distinct sequences and samples the token after it.
    pub fn decode(&mut self, batch: &[Decode<'_>]) -> Result<Vec<Token>, StepError> {
        Ok(self.decode_each(batch)?.into_iter().collect::<Result<_, _>>()?)
    }

    /// As [`Self::decode`], where numbers that are not finite fail only the sequences that they belong to.
    pub fn decode_each(&mut self, batch: &[Decode<'_>]) -> Result<Vec<Result<Token, NonFinite>>, StepError> {
        let tokens: Vec<Token> = batch.iter().map(|d| d.token).collect();
        let spans: Vec<Span> = batch.iter().enumerate().map(|(i, d)| self.cache.span(d.seq, i, 1)).collect();
        let draws: Vec<Draw> = batch.iter().map(|d| Draw::new(d.seq.row(), d.seed, d.sampling)).collect();
        if self.drawn != draws {
            self.b.write(&mut self.draws, 0, &draws);
            self.drawn = draws;
        }
        self.step(StepKind::Decode, &tokens, &spans)?;
        let issued = Instant::now();
        let result = self.b.read_step(&self.ws.sampled, &self.ws.fault, self.cache.tables(), batch.len());
        self.waited = issued.elapsed();
        let Some(layer) = result.non_finite else { return Ok(result.tokens.into_iter().map(Ok).collect()) };
        self.forget_fault();
        let error = NonFinite { layer, n_layers: self.model.config.n_layers };
        let mut finite = self.finite_rows(batch.len());
        if !finite.contains(&false) {
            // A sum of squares overflowed, and the norm made zeros of its row.
            finite.fill(false);
        }
        Ok(result
            .tokens
            .into_iter()
            .zip(finite)
            .map(|(token, finite)| if finite { Ok(token) } else { Err(error) })
            .collect())
    }

    /// Whether the logits of each of the first `n` rows of the step just run are finite: a row that is not finite in
    /// some layer is not finite in any later one.
    fn finite_rows(&mut self, n: usize) -> Vec<bool> {
        let vocab = self.model.config.vocab;
        model::logits(&self.b, &self.model, &mut self.ws, n);
        let mut logits = vec![0.0; n * vocab];
        self.b.read(&self.ws.logits, 0, &mut logits);
        logits.chunks_exact(vocab).map(|row| row.iter().all(|l| l.is_finite())).collect()
    }

    /// An error where the steps fed since the last question had numbers that are not finite. Waits for the device.
    pub fn check_finite(&mut self) -> Result<(), NonFinite> {
        let mut fault = [i32::MAX];
        self.b.read(&self.ws.fault, 0, &mut fault);
        if fault[0] == i32::MAX {
            return Ok(());
        }
        self.forget_fault();
        Err(NonFinite { layer: fault[0] as usize, n_layers: self.model.config.n_layers })
    }

    fn step(&mut self, kind: StepKind, tokens: &[Token], spans: &[Span]) -> Result<(), StepError> {
        // Embedding lookups index by token id without a check of their own.
        let vocab = self.model.config.vocab;
        if let Some(&token) = tokens.iter().find(|t| **t as usize >= vocab) {
            return Err(StepError::UnknownToken { token, vocab });
        }
        let fits = |s: &Span| self.cache.len_of(s) + s.len <= self.context;
        assert!(spans.iter().all(fits), "the caller checks the context");
        self.cache.reserve_step(&self.b, spans)?;
        self.b.write(&mut self.ws.tokens, 0, tokens);
        let Self { b, model, ws, cache, seen, draws, .. } = self;
        b.step(kind, spans, |b| {
            b.note(seen, vocab, &ws.tokens, spans);
            model::forward(b, model, ws, cache, spans);
            if kind == StepKind::Decode {
                model::logits(b, model, ws, spans.len());
                let args = SampleArgs { draws, seen, seq_len: cache.seq_len() };
                b.sample(&mut ws.sampled, &mut ws.logits, vocab, &args, spans.len());
                b.post(&ws.sampled, &ws.fault, cache.tables(), spans.len());
            }
        });
        self.cache.fed(spans);
        Ok(())
    }

    /// Returns when the steps fed so far are done, for whoever measures them.
    pub fn synchronize(&self) {
        self.b.synchronize();
    }

    /// How long the host has waited for the last decode step; the rest of its time was the host's work.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Logits `[vocab]` of each row in `rows` of the step just run, handed to `each` in order. An error where
    /// they are not finite, or where what they were made from was not.
    pub fn logits(
        &mut self,
        rows: std::ops::Range<usize>,
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<(), NonFinite> {
        let vocab = self.model.config.vocab;
        let mut buffer = vec![0.0; MAX_LOGITS * vocab];
        let rows: Vec<usize> = rows.collect();
        for part in rows.chunks(MAX_LOGITS) {
            model::logits_of(&self.b, &self.model, &mut self.ws, part);
            self.b.read(&self.ws.logits, 0, &mut buffer[..part.len() * vocab]);
            for (row, logits) in part.iter().zip(buffer.chunks_exact(vocab)) {
                if !logits.iter().all(|l| l.is_finite()) {
                    self.check_finite()?;
                    let n_layers = self.model.config.n_layers;
                    return Err(NonFinite { layer: n_layers + 1, n_layers });
                }
                each(*row, logits);
            }
        }
        Ok(())
    }

    fn forget_fault(&mut self) {
        self.b.write(&mut self.ws.fault, 0, &[i32::MAX]);
    }
}
