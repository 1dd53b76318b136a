//! Teacher-forced scoring of a text under a schedule of prefills, decodes and eviction toggles.

use anyhow::{Result, bail};
use dmschat::backend::Measure;
use dmschat::cache::SeqStats;
use dmschat::engine::Runner;
use dmschat::protocol::Token;
use dmschat::sampler::{self, log_softmax_at};
use serde::Serialize;

/// One step of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// One forward pass over N tokens.
    Prefill(usize),
    /// N forward passes over one token each.
    Decode(usize),
    /// Switches eviction for the tokens that follow.
    Eviction(bool),
}

/// A list of steps, written as `prefill:100,decode:20,off,prefill:80,on`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule(pub Vec<Op>);

impl Schedule {
    /// One prefill of `n` tokens.
    pub fn whole(n: usize) -> Self {
        Self(vec![Op::Prefill(n)])
    }

    /// Parses a comma-separated list. Fails unless its steps cover exactly `n` tokens.
    pub fn parse(text: &str, n: usize) -> Result<Self> {
        let mut ops = Vec::new();
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            let op = match word.split_once(':') {
                None if word == "on" => Op::Eviction(true),
                None if word == "off" => Op::Eviction(false),
                Some((kind, count)) => match (kind, count.parse::<usize>()) {
                    ("prefill", Ok(count)) if count > 0 => Op::Prefill(count),
                    ("decode", Ok(count)) if count > 0 => Op::Decode(count),
                    _ => bail!("schedule word `{word}` is not one of prefill:N, decode:N, off, on"),
                },
                None => bail!("schedule word `{word}` is not one of prefill:N, decode:N, off, on"),
            };
            ops.push(op);
        }
        let schedule = Self(ops);
        if schedule.tokens() != n {
            bail!("the schedule covers {} tokens, and there are {n}", schedule.tokens());
        }
        Ok(schedule)
    }

    /// Number of tokens covered, saturating.
    pub fn tokens(&self) -> usize {
        self.0.iter().fold(0, |sum: usize, op| match op {
            Op::Prefill(n) | Op::Decode(n) => sum.saturating_add(*n),
            Op::Eviction(_) => sum,
        })
    }
}

/// The JSON of `dmslab score`.
#[derive(Debug, Serialize)]
pub struct Score {
    /// `log p(token i | tokens before it)`; null for the first.
    pub logprobs: Vec<Option<f64>>,
    /// `argmax p(. | tokens up to i)`.
    pub argmax: Vec<Token>,
    /// Live slots `[n_layers][n_kv_heads]` at the end.
    pub live: Vec<Vec<u32>>,
    pub ratio: Option<f64>,
    pub ppl: Option<f64>,
    /// Slots attended to by steps of one token, summed over steps, mean over lanes.
    pub reads: f64,
    /// Maximum over steps of the slots stored, mean over lanes.
    pub peak: f64,
}

/// Scores `tokens` in a new sequence, under a schedule that covers them.
pub fn score<B: Measure>(runner: &mut Runner<B>, tokens: &[Token], schedule: &Schedule) -> Result<Score> {
    let seq = runner.create(true)?;
    let mut logprobs = vec![None; tokens.len()];
    let mut argmax = Vec::with_capacity(tokens.len());
    let mut at = 0;
    for op in &schedule.0 {
        let (count, step) = match *op {
            Op::Eviction(on) => {
                runner.set_eviction(seq, on)?;
                continue;
            }
            Op::Prefill(n) => (n, n.min(runner.max_step())),
            Op::Decode(n) => (n, 1),
        };
        for part in tokens[at..at + count].chunks(step) {
            runner.feed(seq, part)?;
            runner.logits(0..part.len(), |row, logits| {
                argmax.push(sampler::argmax(logits));
                if let Some(&next) = tokens.get(at + row + 1) {
                    logprobs[at + row + 1] = Some(log_softmax_at(logits, next));
                }
            })?;
            at += part.len();
        }
    }
    let stats = runner.cache.stats(runner.backend(), seq);
    runner.release(seq);
    let lanes = stats.live.iter().map(Vec::len).sum::<usize>() as f64;
    Ok(Score {
        ppl: perplexity(&logprobs),
        logprobs,
        argmax,
        ratio: ratio(&stats),
        reads: stats.reads as f64 / lanes,
        peak: stats.peak as f64 / lanes,
        live: stats.live,
    })
}

/// Compression ratio: slots of a dense cache / live slots. `None` for an empty cache.
pub fn ratio(stats: &SeqStats) -> Option<f64> {
    (stats.live_slots > 0).then(|| stats.dense_slots() as f64 / stats.live_slots as f64)
}

pub fn perplexity(logprobs: &[Option<f64>]) -> Option<f64> {
    let known: Vec<f64> = logprobs.iter().flatten().copied().collect();
    let mean = known.iter().sum::<f64>() / known.len() as f64;
    (-mean).exp().is_finite().then(|| (-mean).exp())
}
