//! Runs steps of a loaded model: prefill, decode with sampling, and reading logits.

use super::EngineOptions;
use super::draws::Draws;
use super::head::{DraftRequest, StepSpan, Tracks};
use super::planner;
use crate::backend::{Backend, KvGeometry, Measure, OutOfMemory, SamplingState, Span, StepKind, StepResult};
use crate::cache::{CacheError, CheckedLayer, FarRest, KvCache, RestError, SeqHead, SeqId};
use crate::checkpoint::{Checkpoint, ModelConfig};
use crate::model::{self, Model, Workspace};
use crate::policy::Policy;
use crate::protocol::{SamplingParams, Token};
use anyhow::{Context as _, Result};
use std::time::{Duration, Instant};

/// A value was not finite: an overflow, or broken weights. The sampled token is meaningless.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the model's numbers are no longer finite, first {}", layer_name(*.layer, *.n_layers))]
pub struct NonFinite {
    /// First layer with such an input; `n_layers` for the final norm, `n_layers + 1` for the output
    /// head.
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

/// Why a step failed. Nothing has changed, except for `NonFinite`, after which the tokens are fed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error(transparent)]
    NonFinite(#[from] NonFinite),
    #[error("token id {token} is not in the model's vocabulary of {vocab}")]
    UnknownToken { token: Token, vocab: usize },
}

/// One row of a decode step: the token to feed to a sequence, and how the next one is sampled.
#[derive(Clone, Copy, Debug)]
pub struct Decode<'a> {
    pub seq: SeqId,
    pub token: Token,
    pub sampling: &'a SamplingParams,
    pub seed: u64,
}

/// A row of a decode step, followed by drafts of the next tokens: see [`Runner::verify`].
#[derive(Clone, Copy, Debug)]
pub struct Verify<'a> {
    pub decode: Decode<'a>,
    pub drafts: &'a [Token],
}

/// Share of the cache's limit that must be free, beside the draft head's pages, before the head
/// gets them back. With less it would lend them again in the next turn.
const SPARE_SHARE: u64 = 8;

/// A model with its workspace and cache.
pub struct Runner<B: Backend> {
    pub(super) b: B,
    model: Model<B>,
    ws: Workspace<B>,
    pub cache: KvCache<B>,
    context: usize,
    max_step: usize,
    /// [`Self::chunk`]
    chunk: Option<usize>,
    /// What pages leave to others: [`planner::fixed_bytes`].
    pub(super) fixed_bytes: u64,
    /// Most bytes of far pages; `None` without a limit.
    pub(super) far_limit: Option<u64>,
    /// How rows are sampled.
    pub(super) draws: Draws<B>,
    /// Host copy of the first of `ws.tokens`, where the last step sampled them.
    sampled: Vec<Token>,
    /// Time that the host waited for the last decode step.
    waited: Duration,
    /// Sequences and spans of a staged step; the spans' lengths are the tokens accepted so far.
    staged: Vec<(SeqId, Span)>,
    head: Option<Tracks<B>>,
    /// Spans of the last step, for the draft head.
    stepped: Vec<StepSpan>,
}

/// Everything that loading allocates.
struct Allocations<B: Backend> {
    model: Model<B>,
    ws: Workspace<B>,
    cache: KvCache<B>,
    draws: Draws<B>,
    context: usize,
    max_step: usize,
    head: Option<Tracks<B>>,
}

impl<B: Backend> Allocations<B> {
    fn new(
        b: &B,
        checkpoint: &Checkpoint,
        options: &EngineOptions,
        progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<Self> {
        let model = b.allocating("weights", || Model::load(b, checkpoint, progress));
        let model = model.context("cannot load the model's weights")?;
        let c = &model.config;
        let context = options.context.unwrap_or(c.context);
        let wanted =
            options.max_step.unwrap_or_else(|| planner::step_tokens(checkpoint, options, b.about().step_tokens));
        let max_step = wanted.min(context).max(1);
        let policy = c.policy(options.policy)?;
        let about = b.about();
        let geometry = KvGeometry {
            delta: planner::delta_geometry(c),
            staged_rows: if policy.stages() { options.drafts.rows.min(about.staged_rows) } else { 0 },
            ..planner::geometry(c, options, policy, options.max_seqs)
        };
        let (max_tokens, max_logits) = (max_step.max(options.max_seqs), options.max_logits.max(options.max_seqs));
        let staged = geometry.staged_rows;
        let coder = options.coder(c)?;
        let mut ws = b.allocating("activations", || Workspace::new(b, &model, max_tokens, max_logits, staged))?;
        let mut cache = empty_cache(b, &mut ws, geometry, context)?;
        cache.set_coder(coder);
        Ok(Self {
            cache,
            ws,
            draws: Draws::new(b, options.max_seqs.max(staged), geometry.seen_words())?,
            head: Tracks::new(b, &model, checkpoint, options, context)?,
            model,
            context,
            max_step,
        })
    }
}

/// Creates the cache of a model, and the decisions of its policy where they are constant.
fn empty_cache<B: Backend>(
    b: &B,
    ws: &mut Workspace<B>,
    geometry: KvGeometry,
    context: usize,
) -> Result<KvCache<B>, OutOfMemory> {
    if let Some(decision) = geometry.policy.constant_decision() {
        ws.fill_decisions(b, decision);
    }
    b.allocating("page tables and rings", || KvCache::new(b, geometry, context, ws.max_tokens))
}

/// Returns the bytes of device memory that a model needs beside weights and pages, from a dry run
/// of the allocations that loading makes. `None` for host backends.
pub fn workspace_bytes<B: Backend>(b: &B, checkpoint: &Checkpoint, options: &EngineOptions) -> Option<u64> {
    let all = b.dry_run_bytes(|| Allocations::new(b, checkpoint, options, |_, _| true))?;
    Some(all.saturating_sub(checkpoint.weight_bytes))
}

impl<B: Backend> Runner<B> {
    /// Loads a model. `progress` as in [`Model::load`].
    pub fn new(
        b: B,
        checkpoint: &Checkpoint,
        options: &EngineOptions,
        progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<Self> {
        b.load_kernels(&options.kernel_needs(checkpoint, &b.about())?, &mut |_, _| true)?;
        let Allocations { model, ws, cache, draws, context, max_step, head } =
            Allocations::new(&b, checkpoint, options, progress)?;
        // Pages are limited below the free memory, so that a turn that is too long ends, and not
        // the process.
        let fixed_bytes = planner::fixed_bytes(checkpoint, options, context);
        let chunk = b.about().chunk_tokens.map(|chunk| chunk.min(max_step));
        let mut new = Self {
            b,
            model,
            ws,
            cache,
            context,
            max_step,
            chunk,
            fixed_bytes,
            far_limit: options.far.map(|far| far.limit_bytes),
            draws,
            sampled: Vec::new(),
            waited: Duration::ZERO,
            staged: Vec::new(),
            head,
            stepped: Vec::new(),
        };
        new.set_kv_budget(planner::kv_budget(fixed_bytes, options.kv_limit, options.memory_bytes));
        Ok(new)
    }

    /// Limits the bytes of the cache's pages. Pages that the draft head has lent come on top.
    pub fn set_kv_budget(&mut self, bytes: Option<u64>) {
        let lent = self.head.as_ref().map_or(0, Tracks::lent_bytes);
        self.cache.set_limit_bytes(bytes.map(|bytes| bytes + lent));
    }

    pub fn config(&self) -> &ModelConfig {
        &self.model.config
    }

    pub fn backend(&self) -> &B {
        &self.b
    }

    /// Maximum tokens of a sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Tokens of a prefill chunk, where results depend on it.
    pub fn chunk(&self) -> Option<usize> {
        self.chunk
    }

    /// Maximum tokens of a step.
    pub fn max_step(&self) -> usize {
        self.max_step
    }

    /// Replaces the cache by an empty one of another policy. No sequence may be in use. The weights
    /// stay.
    pub fn set_policy(&mut self, policy: Policy) -> Result<(), OutOfMemory> {
        let geometry = *self.cache.geometry();
        assert_eq!(self.cache.free_rows(), geometry.n_seqs, "no sequence is in use");
        if geometry.policy == policy {
            return Ok(());
        }
        // The old pages would lie beside the new tables.
        self.cache.trim(&self.b);
        let limit = self.cache.limit_bytes();
        self.cache = empty_cache(&self.b, &mut self.ws, KvGeometry { policy, ..geometry }, self.context)?;
        self.cache.set_limit_bytes(limit);
        Ok(())
    }

    /// Creates an empty sequence.
    pub fn create(&mut self, eviction: bool) -> Result<SeqId, CacheError> {
        self.cache.create(&self.b, eviction)
    }

    /// Creates a copy of a sequence that shares its pages.
    pub fn fork(&mut self, seq: SeqId) -> Result<SeqId, CacheError> {
        let copy = self.cache.fork(&self.b, seq)?;
        self.head.iter_mut().for_each(|head| head.fork(&self.b, seq, copy));
        Ok(copy)
    }

    pub fn release(&mut self, seq: SeqId) {
        self.head.iter_mut().for_each(|head| head.release(&self.b, seq));
        self.cache.release(&self.b, seq);
    }

    /// State of a sequence and the bytes of each layer's image: [`KvCache::head`].
    pub fn head(&self, seq: SeqId) -> (SeqHead, Vec<u64>) {
        self.cache.head(&self.b, seq)
    }

    /// Replaces `out` by the image of one layer of a sequence.
    pub fn export_layer(&mut self, seq: SeqId, layer: usize, out: &mut Vec<u8>) {
        self.cache.export_layer(&self.b, seq, layer, out);
    }

    /// Fills one layer of an empty sequence from its image: [`KvCache::import_layer`].
    pub fn import_layer(&mut self, seq: SeqId, image: &CheckedLayer) -> Result<Option<FarRest<B>>, CacheError> {
        self.cache.import_layer(&self.b, seq, image)
    }

    /// Fills far pages from their image: [`KvCache::import_rest`].
    pub fn import_rest(&mut self, rests: &mut Vec<FarRest<B>>, image: &CheckedLayer) -> Result<(), RestError> {
        self.cache.import_rest(&self.b, rests, image)
    }

    /// Ends the import of a sequence that `tokens` were fed to: [`KvCache::end_import`].
    pub fn end_import(
        &mut self,
        seq: SeqId,
        head: &SeqHead,
        tokens: impl Iterator<Item = Token>,
    ) -> Result<(), &'static str> {
        self.cache.end_import(&self.b, seq, head, tokens)
    }

    /// Returns unused pool memory to the system.
    pub fn trim(&mut self) {
        self.cache.trim(&self.b);
    }

    /// Switches eviction for a sequence. Returns the number of slots dropped.
    pub fn set_eviction(&mut self, seq: SeqId, on: bool) -> Result<u64, CacheError> {
        self.cache.set_eviction(&self.b, seq, on)
    }

    /// Sets what a decision must exceed to mark. Returns whether it is another value than before.
    pub fn set_dial(&mut self, seq: SeqId, dial: f32) -> bool {
        let before = self.cache.dial(seq);
        if dial != before {
            self.cache.set_dial(&self.b, seq, dial);
        }
        self.cache.dial(seq) != before
    }

    /// Drops the slots outside the window whose decisions had at least this strength: see
    /// [`KvCache::forget`].
    pub fn forget(&mut self, seq: SeqId, threshold: u16) -> Result<u64, CacheError> {
        // 0 is a pinned token.
        self.cache.forget(&self.b, seq, usize::from(threshold.max(1)))
    }

    /// Pins the tokens at these positions: see [`KvCache::pin`].
    pub fn pin(&mut self, seq: SeqId, positions: std::ops::Range<usize>) -> Result<(), CacheError> {
        self.cache.pin(&self.b, seq, positions)
    }

    /// Takes pins back: see [`KvCache::unpin`].
    pub fn unpin(&mut self, seq: SeqId, positions: std::ops::Range<usize>) -> Result<(usize, u64), CacheError> {
        self.cache.unpin(&self.b, seq, positions)
    }

    /// Drops the tokens at these positions: see [`KvCache::drop_positions`].
    pub fn drop_positions(&mut self, seq: SeqId, positions: std::ops::Range<usize>) -> Result<u64, CacheError> {
        self.cache.drop_positions(&self.b, seq, positions)
    }

    /// Runs a prefill chunk: feeds up to `max_step` tokens to a sequence. On an error nothing has
    /// changed.
    pub fn feed(&mut self, seq: SeqId, tokens: &[Token]) -> Result<(), StepError> {
        let spans = [self.cache.span(seq, 0, tokens.len())];
        self.step(StepKind::Feed, tokens, &spans)
    }

    /// Runs a decode step: feeds one token to each of several distinct sequences and samples the
    /// next ones.
    pub fn decode(&mut self, batch: &[Decode<'_>]) -> Result<Vec<Token>, StepError> {
        Ok(self.decode_each(batch)?.into_iter().collect::<Result<_, _>>()?)
    }

    /// Like [`Self::decode`], with a result per row: non-finite values fail only the rows that they
    /// belong to.
    pub fn decode_each(&mut self, batch: &[Decode<'_>]) -> Result<Vec<Result<Token, NonFinite>>, StepError> {
        let tokens: Vec<Token> = batch.iter().map(|d| d.token).collect();
        let spans: Vec<Span> = batch.iter().enumerate().map(|(i, d)| self.cache.span(d.seq, i, 1)).collect();
        let draws = batch.iter().map(|d| SamplingState::new(d.seq.row(), d.seed, d.sampling)).collect();
        let greedy = self.draws.send(&self.b, draws);
        self.step(StepKind::Decode { greedy }, &tokens, &spans)?;
        let issued = Instant::now();
        let result = self.b.read_step(&self.ws.tokens, &self.ws.non_finite, self.cache.tables(), batch.len());
        self.waited = issued.elapsed();
        self.sampled.clone_from(&result.tokens);
        Ok(self.finite(result))
    }

    /// Most rows of [`Self::verify`]; 0 where the backend or the policy has no such steps.
    pub fn most_rows(&self) -> usize {
        let g = self.cache.geometry();
        if g.policy.stages() { g.staged_rows } else { 0 }
    }

    /// Runs a decode step with drafts. Each sequence has a row for its token and for each draft,
    /// together at most [`Self::most_rows`]. Returns the token sampled at every row, which equals
    /// the token of a decode step if the row's token were fed after the tokens before it. Nothing
    /// is fed yet: [`Self::accept`] accepts rows, from the first one on, and [`Self::commit`] feeds
    /// them, before any other step.
    pub fn verify(&mut self, batch: &[Verify<'_>]) -> Result<Vec<Vec<Result<Token, NonFinite>>>, StepError> {
        let (mut tokens, mut spans, mut draws) = (Vec::new(), Vec::new(), Vec::new());
        for Verify { decode, drafts } in batch {
            spans.push(self.cache.span(decode.seq, tokens.len(), 1 + drafts.len()));
            let draw = SamplingState::new(decode.seq.row(), decode.seed, decode.sampling);
            draws.extend((0..=drafts.len()).map(|i| SamplingState { ahead: i as u32 + 1, ..draw }));
            tokens.push(decode.token);
            tokens.extend_from_slice(drafts);
        }
        assert!(tokens.len() <= self.most_rows(), "{} rows of at most {}", tokens.len(), self.most_rows());
        let greedy = self.draws.send(&self.b, draws);
        self.step(StepKind::Verify { greedy }, &tokens, &spans)?;
        let issued = Instant::now();
        let result = self.b.read_step(&self.ws.sampled, &self.ws.non_finite, self.cache.tables(), tokens.len());
        self.waited = issued.elapsed();
        let mut sampled = self.finite(result).into_iter();
        let results = spans.iter().map(|span| sampled.by_ref().take(span.len).collect()).collect();
        self.staged = batch.iter().zip(spans).map(|(v, span)| (v.decode.seq, Span { len: 0, ..span })).collect();
        Ok(results)
    }

    /// Accepts the next row of a sequence of [`Self::verify`]: its token counts as fed from here
    /// on. Does nothing after a decode step, which has fed it.
    pub fn accept(&mut self, seq: SeqId) {
        if let Some((_, span)) = self.staged.iter_mut().find(|(other, _)| *other == seq) {
            self.cache.fed(&[Span { start: span.start + span.len, len: 1, ..*span }]);
            span.len += 1;
        }
    }

    /// Feeds the rows that were accepted since [`Self::verify`].
    pub fn commit(&mut self) {
        let spans: Vec<Span> = self.staged.drain(..).map(|(_, span)| span).filter(|span| span.len > 0).collect();
        if spans.is_empty() {
            return;
        }
        let Self { b, model, ws, cache, .. } = self;
        model::Step { b, model, ws, cache, spans: &spans, staged: true }.commit();
    }

    /// Whether the model has a draft head.
    pub fn has_head(&self) -> bool {
        self.head.is_some()
    }

    /// Feeds the draft head with accepted rows of the last step, and lets it draft. Returns the
    /// drafts of each request.
    pub fn draft(&mut self, requests: &[DraftRequest<'_>]) -> Vec<Vec<Token>> {
        let Self { b, model, ws, head: Some(head), stepped, .. } = self else {
            return vec![Vec::new(); requests.len()];
        };
        head.draft(b, model.config.vocab, &ws.features, stepped, requests)
    }

    /// Lends the draft head's pages to the cache. Returns an upper bound on their bytes; `None` if
    /// there are none to lend.
    pub fn lend_head(&mut self) -> Option<u64> {
        let head = self.head.as_mut().filter(|head| head.lent_bytes() == 0)?;
        head.lend(&self.b);
        let bytes = head.lent_bytes();
        let limit = self.cache.limit_bytes().map(|limit| limit + bytes);
        self.cache.set_limit_bytes(limit);
        (bytes > 0).then_some(bytes)
    }

    /// Gives the draft head its pages back if the cache can spare them and a share of its limit.
    /// Returns whether it did so.
    pub fn take_back_head(&mut self) -> bool {
        let lent = self.head.as_ref().map_or(0, Tracks::lent_bytes);
        if lent == 0 {
            return false;
        }
        let limit = self.cache.limit_bytes();
        if let (Some(limit), Some(free)) = (limit, self.cache.free_pages(&self.b)) {
            let free = free as u64 * self.cache.geometry().page_bytes() as u64;
            if free < lent + limit.saturating_sub(lent) / SPARE_SHARE {
                return false;
            }
        }
        self.cache.trim(&self.b);
        self.head.iter_mut().for_each(Tracks::take_back);
        self.cache.set_limit_bytes(limit.map(|limit| limit.saturating_sub(lent)));
        true
    }

    /// The sampled tokens of a step, or why a row has none.
    fn finite(&mut self, result: StepResult) -> Vec<Result<Token, NonFinite>> {
        let Some(layer) = result.non_finite else { return result.tokens.into_iter().map(Ok).collect() };
        self.clear_non_finite();
        let error = NonFinite { layer, n_layers: self.model.config.n_layers };
        let mut finite = self.ws.finite_rows(&self.b, result.tokens.len());
        if !finite.contains(&false) {
            // The rows cannot be distinguished.
            finite.fill(false);
        }
        let row = |(token, finite)| if finite { Ok(token) } else { Err(error) };
        result.tokens.into_iter().zip(finite).map(row).collect()
    }

    /// Reads and clears the non-finite flag of the steps since it was last read. Waits for the
    /// device.
    pub fn check_finite(&mut self) -> Result<(), NonFinite> {
        let mut non_finite = [i32::MAX];
        self.b.read(&self.ws.non_finite, 0, &mut non_finite);
        if non_finite[0] == i32::MAX {
            return Ok(());
        }
        self.clear_non_finite();
        Err(NonFinite { layer: non_finite[0] as usize, n_layers: self.model.config.n_layers })
    }

    fn step(&mut self, kind: StepKind, tokens: &[Token], spans: &[Span]) -> Result<(), StepError> {
        // Embedding lookups do not check token ids.
        let vocab = self.model.config.vocab;
        if let Some(&token) = tokens.iter().find(|t| **t as usize >= vocab) {
            return Err(StepError::UnknownToken { token, vocab });
        }
        let fits = |s: &Span| self.cache.len_of(s) + s.len <= self.context;
        assert!(spans.iter().all(fits), "the caller checks the context");
        self.cache.reserve_step(&self.b, spans)?;
        if self.cache.send_pins(&self.b, spans)
            && let Some(decision) = self.cache.geometry().policy.constant_decision()
        {
            // Rows that were pinned hold no constant.
            self.ws.fill_decisions(&self.b, decision);
        }
        // Tokens that the last step sampled are on the device.
        if !std::mem::take(&mut self.sampled).starts_with(tokens) {
            self.b.write(&mut self.ws.tokens, 0, tokens);
        }
        if self.head.is_some() {
            let of = |span: &Span| StepSpan { span: *span, at: self.cache.len_of(span), first: tokens[span.start] };
            self.stepped = spans.iter().map(of).collect();
        }
        let Self { b, model, ws, cache, draws, .. } = self;
        let (n, staged) = (tokens.len(), matches!(kind, StepKind::Verify { .. }));
        b.step(kind, spans, |b| {
            model::Step { b, model, ws, cache, spans, staged }.forward();
            let (StepKind::Verify { greedy } | StepKind::Decode { greedy }) = kind else { return };
            model::logits(b, model, ws, n);
            let (kv, non_finite) = (cache.tables(), &ws.non_finite);
            let args = |staged| draws.args(kv, non_finite, staged, greedy);
            match staged {
                true => b.sample(&mut ws.sampled, &mut ws.logits, &args(Some(&ws.tokens)), n),
                false => b.sample(&mut ws.tokens, &mut ws.logits, &args(None), n),
            }
        });
        if !staged {
            self.cache.fed(spans);
        }
        Ok(())
    }

    /// Feeds a sequence that has no tokens yet in one step, and calls `each` with the observations
    /// of every layer: see [`model::observe`].
    pub fn observe(
        &mut self,
        seq: SeqId,
        tokens: &[Token],
        text: &model::Text,
        each: impl FnMut(model::Observed<'_>),
    ) -> Result<(), StepError>
    where
        B: Measure,
    {
        let spans = [self.cache.span(seq, 0, tokens.len())];
        self.cache.reserve_step(&self.b, &spans)?;
        self.sampled.clear();
        self.b.write(&mut self.ws.tokens, 0, tokens);
        let Self { b, model, ws, cache, .. } = self;
        model::observe(model::Step { b, model, ws, cache, spans: &spans, staged: false }, text, each);
        self.cache.fed(&spans);
        Ok(self.check_finite()?)
    }

    /// Columns of a layer's output projection: [`model::output_columns`].
    pub fn output_columns(&mut self, layer: usize) -> Vec<f32>
    where
        B: Measure,
    {
        model::output_columns(&self.b, &self.model, &mut self.ws, layer)
    }

    /// Time that the host waited for the last decode step. The rest of the step's time is host
    /// overhead.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Calls `each` with the logits `[vocab]` of each row in `rows` of the last step, in order.
    /// Fails if they are not finite.
    pub fn logits(
        &mut self,
        rows: impl IntoIterator<Item = usize>,
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<(), NonFinite> {
        let vocab = self.model.config.vocab;
        let at_once = self.ws.max_logits;
        let mut buffer = vec![0.0; at_once * vocab];
        let rows: Vec<usize> = rows.into_iter().collect();
        for part in rows.chunks(at_once) {
            model::logits_of(&self.b, &self.model, &mut self.ws, part);
            self.b.read_acts(&self.ws.logits, &mut buffer[..part.len() * vocab]);
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

    fn clear_non_finite(&mut self) {
        self.b.write(&mut self.ws.non_finite, 0, &[i32::MAX]);
    }
}
