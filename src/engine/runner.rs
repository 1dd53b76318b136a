//! One loaded model with its workspace and cache: feeds steps, reads logits, samples.

use super::EngineOptions;
use super::planner::kv_budget;
use crate::backend::{Backend, KvGeometry, SampleArgs, StepResult};
use crate::cache::{CacheError, KvCache, PAGE_SLOTS, SeqId};
use crate::checkpoint::{Checkpoint, ModelConfig};
use crate::model::{self, Model, Workspace};
use crate::protocol::Token;
use anyhow::{Context as _, Result};

/// The conversation, two checkpoints of the last turn, and a rebuild beside them.
const N_SEQS: usize = 4;
/// Rows of logits at once: one in a chat, more when a text is scored.
const MAX_LOGITS: usize = 16;

/// The model's numbers overflowed or were broken to begin with; the step's token means nothing.
#[derive(Debug, thiserror::Error)]
#[error("the model's numbers are no longer finite, first {}", layer_name(*.layer, *.n_layers))]
pub struct NonFinite {
    pub layer: usize,
    pub n_layers: usize,
}

fn layer_name(layer: usize, n_layers: usize) -> String {
    if layer == n_layers { "before the output head".to_owned() } else { format!("in layer {layer}") }
}

pub struct Runner<B: Backend> {
    b: B,
    model: Model<B>,
    ws: Workspace<B>,
    pub cache: KvCache<B>,
    context: usize,
    /// Rows of the last step.
    rows: usize,
}

impl<B: Backend> Runner<B> {
    pub fn new(b: B, checkpoint: &Checkpoint, options: &EngineOptions, progress: impl FnMut(u64, u64)) -> Result<Self> {
        let model = Model::load(&b, checkpoint, progress).context("cannot load the model's weights")?;
        let c = &model.config;
        let context = options.context.unwrap_or(c.context);
        let max_step = options.max_step.min(context).max(1);
        let geometry = KvGeometry {
            n_layers: c.n_layers,
            n_q_heads: c.n_q_heads,
            n_kv_heads: c.n_kv_heads,
            head_dim: c.head_dim,
            n_seqs: N_SEQS,
            page_slots: PAGE_SLOTS,
            max_pages: 0,
            codec: options.codec,
            policy: model.policy(),
        };
        let mut cache = KvCache::new(&b, geometry, context, max_step)?;
        // Pages stop before memory does: a turn that is too long ends, and the process does not.
        cache.set_limit_bytes(kv_budget(checkpoint.weight_bytes, options.kv_limit, options.memory_bytes));
        let ws = Workspace::new(&b, c, max_step, MAX_LOGITS)?;
        Ok(Self { b, model, ws, cache, context, rows: 0 })
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
        self.ws.max_tokens
    }

    pub fn create(&mut self, eviction: bool) -> Result<SeqId, CacheError> {
        self.cache.create(&self.b, eviction)
    }

    pub fn fork(&mut self, seq: SeqId) -> Result<SeqId, CacheError> {
        self.cache.fork(&self.b, seq)
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
    pub fn feed(&mut self, seq: SeqId, tokens: &[Token]) -> Result<(), CacheError> {
        assert!(self.cache.len(seq) + tokens.len() <= self.context, "the caller checks the context");
        let spans = [self.cache.span(seq, 0, tokens.len())];
        self.cache.reserve_step(&self.b, &spans)?;
        self.b.write(&mut self.ws.tokens, 0, tokens);
        let Self { b, model, ws, cache, .. } = self;
        b.step(&spans, |b| model::forward(b, model, ws, cache, &spans));
        self.rows = tokens.len();
        Ok(())
    }

    /// Returns when the steps fed so far are done, for whoever measures them.
    pub fn wait(&self) {
        self.b.wait();
    }

    /// Logits `[vocab]` of each row in `rows` of the step just run, handed to `each` in order.
    pub fn logits(&mut self, rows: std::ops::Range<usize>, mut each: impl FnMut(usize, &[f32])) {
        let vocab = self.model.config.vocab;
        let mut buffer = vec![0.0; MAX_LOGITS * vocab];
        let rows: Vec<usize> = rows.collect();
        for part in rows.chunks(MAX_LOGITS) {
            model::logits(&self.b, &self.model, &mut self.ws, part);
            self.b.read(&self.ws.logits, 0, &mut buffer[..part.len() * vocab]);
            for (row, logits) in part.iter().zip(buffer.chunks_exact(vocab)) {
                each(*row, logits);
            }
        }
    }

    /// Samples the token after the last row of the step just run.
    pub fn sample(&mut self, args: &SampleArgs<'_>) -> Result<Token, NonFinite> {
        let last = self.rows - 1;
        model::logits(&self.b, &self.model, &mut self.ws, &[last]);
        self.b.sample(&mut self.ws.sampled, &mut self.ws.logits, self.model.config.vocab, 0, args);
        let StepResult { token, non_finite } = self.b.read_step(&self.ws.sampled, 0, &self.ws.fault);
        match non_finite {
            None => Ok(token),
            Some(layer) => {
                self.forget_fault();
                Err(NonFinite { layer, n_layers: self.model.config.n_layers })
            }
        }
    }

    /// Forgets numbers that were not finite in steps nobody sampled from: a prefill that was given up.
    pub fn forget_fault(&mut self) {
        self.b.write(&mut self.ws.fault, 0, &[i32::MAX]);
    }
}
