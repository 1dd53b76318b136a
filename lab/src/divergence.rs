//! Cost of eviction and of smaller cache and weight formats on a text: sequences with them are fed
//! side by side with a reference sequence, and the next-token distributions are compared.

use crate::schedule::{perplexity, ratio};
use anyhow::Result;
use dmschat::backend::Measure;
use dmschat::cache::SeqId;
use dmschat::checkpoint::Checkpoint;
use dmschat::engine::Runner;
use dmschat::policy::Far;
use dmschat::protocol::Token;
use dmschat::sampler::{argmax, divergence, log_softmax, log_softmax_at};
use serde::Serialize;

/// Tokens per step. The distributions of a step are all in memory at once.
const STEP: usize = 64;

/// The model that is compared.
#[derive(Clone, Debug, Serialize)]
pub struct Of {
    pub model: String,
    pub weights: &'static str,
    pub weight_bytes: u64,
}

impl From<&Checkpoint> for Of {
    fn from(c: &Checkpoint) -> Self {
        Self { model: c.name.clone(), weights: c.weights.name(), weight_bytes: c.weight_bytes }
    }
}

/// Which tokens are fed between two choices of far pages.
#[derive(Clone, Copy, Debug)]
pub enum Block {
    Answer,
    Prompt,
}

impl Block {
    /// Tokens between two choices.
    fn tokens(self) -> usize {
        match self {
            Self::Answer => Far::ANSWER_BLOCK,
            Self::Prompt => Far::PROMPT_BLOCK,
        }
    }

    /// Queries that choose.
    fn queries(self) -> usize {
        self.tokens().min(Far::QUERIES)
    }
}

/// Far pages of a configuration, per lane that keeps some, after the last token.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FarRow {
    /// Most pages that a choice brings near.
    pub pages: usize,
    /// Tokens between two choices.
    pub block: usize,
    /// Far rows that attention reads, and all of them.
    pub near: f64,
    pub rows: f64,
    /// Host memory, of all lanes.
    pub bytes: u64,
    /// Pages brought near, per token.
    pub fetched: f64,
}

/// One configuration compared with the reference.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub of: Of,
    pub kv: &'static str,
    pub eviction: bool,
    /// Threshold of decisions: 0 as trained.
    pub dial: f32,
    pub ppl: Option<f64>,
    /// Mean KL(reference || this), nats per token.
    pub kl: f64,
    /// KL that 99 % of the tokens do not exceed.
    pub kl_99: f64,
    /// Share of positions with the same argmax.
    pub top1_agreement: f64,
    /// Compression ratio after the last token.
    pub ratio: Option<f64>,
    /// Bytes of live slots after the last token.
    pub live_bytes: u64,
    /// `None` where rows that leave are gone.
    pub far: Option<FarRow>,
}

/// Perplexity of the dense cache, and the caches compared with it.
pub type Compared = (Option<f64>, Vec<Row>);

/// Compares eviction at a dial with none, in one runner.
pub fn eviction<B: Measure>(
    runner: &mut Runner<B>,
    of: Of,
    tokens: &[Token],
    dial: f32,
    block: Block,
) -> Result<Compared> {
    let mut off = Dense::new(runner, tokens)?;
    let mut on = Compressed::new(runner, true, block)?;
    runner.set_dial(on.seq, dial);
    while let Some(chunk) = off.feed(runner)? {
        on.feed(runner, &chunk, tokens)?;
    }
    let rows = vec![on.finish(runner, of, tokens)];
    Ok((off.finish(runner), rows))
}

/// Compares the cache of `runner`, under each of `evictions`, with the dense cache of `reference`:
/// the same model with another codec or in other weights, or another model.
pub fn formats<R: Measure, B: Measure>(
    reference: &mut Runner<R>,
    runner: &mut Runner<B>,
    of: Of,
    tokens: &[Token],
    evictions: &[bool],
    block: Block,
) -> Result<Compared> {
    let mut dense = Dense::new(reference, tokens)?;
    let beside: Result<Vec<Compressed>> = evictions.iter().map(|&on| Compressed::new(runner, on, block)).collect();
    let mut beside = beside?;
    while let Some(chunk) = dense.feed(reference)? {
        for one in &mut beside {
            one.feed(runner, &chunk, tokens)?;
        }
    }
    let rows = beside.into_iter().map(|one| one.finish(runner, of.clone(), tokens)).collect();
    Ok((dense.finish(reference), rows))
}

/// The distributions of one step of the dense sequence.
struct Chunk {
    /// Index of its first token.
    at: usize,
    /// Log-probabilities `[n_tokens][vocab]` after each token.
    rows: Vec<Vec<f64>>,
    argmax: Vec<Token>,
}

/// The dense sequence.
struct Dense<'a> {
    seq: SeqId,
    tokens: &'a [Token],
    at: usize,
    logprobs: Vec<Option<f64>>,
}

impl<'a> Dense<'a> {
    fn new<B: Measure>(runner: &mut Runner<B>, tokens: &'a [Token]) -> Result<Self> {
        Ok(Self { seq: runner.create(false)?, tokens, at: 0, logprobs: Vec::with_capacity(tokens.len()) })
    }

    /// Runs the next step. `None` after the last token.
    fn feed<B: Measure>(&mut self, runner: &mut Runner<B>) -> Result<Option<Chunk>> {
        let Some(chunk) = self.tokens[self.at..].chunks(STEP).next() else { return Ok(None) };
        runner.feed(self.seq, chunk)?;
        let mut out = Chunk { at: self.at, rows: Vec::new(), argmax: Vec::new() };
        runner.logits(0..chunk.len(), |_, logits| {
            out.rows.push(log_softmax(logits));
            out.argmax.push(argmax(logits));
        })?;
        let next = self.tokens[self.at + 1..].iter();
        self.logprobs.extend(out.rows.iter().zip(next).map(|(row, &t)| Some(row[t as usize])));
        self.at += chunk.len();
        Ok(Some(out))
    }

    fn finish<B: Measure>(self, runner: &mut Runner<B>) -> Option<f64> {
        runner.release(self.seq);
        perplexity(&self.logprobs)
    }
}

/// A sequence that is compared with the dense one.
struct Compressed {
    seq: SeqId,
    eviction: bool,
    /// Which tokens are fed between two choices, and pages that choices have brought near.
    block: Block,
    fetched: u64,
    logprobs: Vec<Option<f64>>,
    /// Results of each token.
    kl: Vec<f64>,
    same: usize,
}

impl Compressed {
    fn new<B: Measure>(runner: &mut Runner<B>, eviction: bool, block: Block) -> Result<Self> {
        let (seq, logprobs, kl) = (runner.create(eviction)?, Vec::new(), Vec::new());
        Ok(Self { seq, eviction, block, fetched: 0, logprobs, kl, same: 0 })
    }

    fn feed<B: Measure>(&mut self, runner: &mut Runner<B>, chunk: &Chunk, tokens: &[Token]) -> Result<()> {
        // Longer steps read everything.
        let step = match runner.cache.geometry().policy.quest() {
            Some(_) => 1,
            None if runner.keeps_far() => STEP.min(self.block.tokens()),
            None => STEP,
        };
        let mut at = 0;
        for part in tokens[chunk.at..chunk.at + chunk.rows.len()].chunks(step) {
            runner.feed(self.seq, part)?;
            runner.logits(0..part.len(), |row, logits| {
                let row = at + row;
                self.kl.push(divergence(&chunk.rows[row], &log_softmax(logits)));
                self.same += usize::from(argmax(logits) == chunk.argmax[row]);
                self.logprobs.extend(tokens.get(chunk.at + row + 1).map(|&t| Some(log_softmax_at(logits, t))));
            })?;
            at += part.len();
            if (chunk.at + at).is_multiple_of(self.block.tokens()) {
                self.fetched += runner.choose(self.seq, self.block.queries()).unwrap_or(0);
            }
        }
        Ok(())
    }

    fn finish<B: Measure>(mut self, runner: &mut Runner<B>, of: Of, tokens: &[Token]) -> Row {
        let stats = runner.cache.stats(runner.backend(), self.seq);
        let (geometry, dial) = (*runner.cache.geometry(), runner.cache.dial(self.seq));
        let (counts, n) = (runner.far_counts(self.seq), self.kl.len());
        runner.release(self.seq);
        self.kl.sort_by(f64::total_cmp);
        let lanes = geometry.deciding_lanes().count() as f64;
        let far = geometry.kept_far().map(|far| FarRow {
            pages: far.pages,
            block: self.block.tokens(),
            near: counts.near as f64 / lanes,
            rows: counts.rows as f64 / lanes,
            bytes: counts.bytes,
            fetched: self.fetched as f64 / lanes / n as f64,
        });
        Row {
            of,
            kv: geometry.codec.name(),
            eviction: self.eviction,
            dial,
            ppl: perplexity(&self.logprobs),
            kl: self.kl.iter().sum::<f64>() / n as f64,
            kl_99: self.kl[(n * 99).div_ceil(100).saturating_sub(1)],
            top1_agreement: self.same as f64 / tokens.len() as f64,
            ratio: ratio(&stats),
            live_bytes: stats.live_slots * geometry.slot_bytes() as u64,
            far,
        }
    }
}
