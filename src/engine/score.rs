//! Teacher-forced scoring: how likely a text is under a schedule of prefills, decodes and toggles,
//! and what eviction changes about it.

use super::runner::Runner;
use crate::backend::Backend;
use crate::cache::SeqId;
use crate::protocol::Token;
use anyhow::{Result, bail};
use serde::Serialize;

/// One word of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// One forward pass over N tokens.
    Prefill(usize),
    /// N passes over one token each.
    Decode(usize),
    Eviction(bool),
}

/// `prefill:100,decode:20,off,prefill:80,on`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule(pub Vec<Op>);

impl Schedule {
    /// One prefill of everything.
    pub fn whole(n: usize) -> Self {
        Self(vec![Op::Prefill(n)])
    }

    /// Parses a comma list; the steps must cover `n` tokens exactly.
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

    /// Tokens the steps cover. Saturates, so that a senseless schedule is refused and not wrapped.
    pub fn tokens(&self) -> usize {
        self.0.iter().fold(0, |sum: usize, op| match op {
            Op::Prefill(n) | Op::Decode(n) => sum.saturating_add(*n),
            Op::Eviction(_) => sum,
        })
    }
}

/// The JSON of `dmschat score`.
#[derive(Debug, Serialize)]
pub struct Score {
    /// `log p(token i | tokens before it)`; null for the first.
    pub logprobs: Vec<Option<f64>>,
    /// The likeliest token after token i.
    pub argmax: Vec<Token>,
    /// `[n_layers][n_kv_heads]` slots stored after the last word of the schedule.
    pub live: Vec<Vec<u32>>,
    pub ratio: Option<f64>,
    pub ppl: Option<f64>,
}

/// Feeds `tokens` to a new sequence by the schedule.
pub fn score<B: Backend>(runner: &mut Runner<B>, tokens: &[Token], schedule: &Schedule) -> Result<Score> {
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
                argmax.push(crate::sampler::argmax(logits));
                if let Some(&next) = tokens.get(at + row + 1) {
                    logprobs[at + row + 1] = Some(log_softmax_at(logits, next));
                }
            });
            at += part.len();
        }
    }
    let stats = runner.cache.stats(runner.backend(), seq);
    let lanes = stats.live.iter().map(Vec::len).sum::<usize>();
    runner.release(seq);
    Ok(Score {
        ppl: perplexity(&logprobs),
        logprobs,
        argmax,
        ratio: (stats.live_slots > 0).then(|| (stats.len * lanes) as f64 / stats.live_slots as f64),
        live: stats.live,
    })
}

/// The JSON of `dmschat compare`: eviction on against off over the same tokens.
#[derive(Debug, Serialize)]
pub struct Comparison {
    pub tokens: usize,
    pub ppl_off: Option<f64>,
    pub ppl_on: Option<f64>,
    /// Mean KL(off || on) in nats a token.
    pub kl: f64,
    /// Share of positions whose likeliest token is the same.
    pub top1_agreement: f64,
    /// With eviction on, after the last token.
    pub ratio: Option<f64>,
}

/// Feeds both sequences side by side, in steps of up to 64 tokens.
pub fn compare<B: Backend>(runner: &mut Runner<B>, tokens: &[Token]) -> Result<Comparison> {
    let (off, on) = (runner.create(false)?, runner.create(true)?);
    let (mut lp_off, mut lp_on) = (vec![None; tokens.len()], vec![None; tokens.len()]);
    let (mut kl, mut same, mut at) = (0.0, 0usize, 0);
    for part in tokens.chunks(64.min(runner.max_step())) {
        let mut rows = Vec::new();
        feed_rows(runner, off, part, |row, logits| {
            note(&mut lp_off, tokens, at + row, logits);
            rows.push(log_softmax(logits));
        })?;
        feed_rows(runner, on, part, |row, logits| {
            note(&mut lp_on, tokens, at + row, logits);
            let q = log_softmax(logits);
            let p = &rows[row];
            kl += p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
            same += (crate::sampler::argmax(logits) == argmax_f64(p)) as usize;
        })?;
        at += part.len();
    }
    let stats = runner.cache.stats(runner.backend(), on);
    let lanes = stats.live.iter().map(Vec::len).sum::<usize>();
    runner.release(off);
    runner.release(on);
    Ok(Comparison {
        tokens: tokens.len(),
        ppl_off: perplexity(&lp_off),
        ppl_on: perplexity(&lp_on),
        kl: kl / tokens.len() as f64,
        top1_agreement: same as f64 / tokens.len() as f64,
        ratio: (stats.live_slots > 0).then(|| (stats.len * lanes) as f64 / stats.live_slots as f64),
    })
}

fn feed_rows<B: Backend>(
    runner: &mut Runner<B>,
    seq: SeqId,
    part: &[Token],
    each: impl FnMut(usize, &[f32]),
) -> Result<()> {
    runner.feed(seq, part)?;
    runner.logits(0..part.len(), each);
    Ok(())
}

fn note(logprobs: &mut [Option<f64>], tokens: &[Token], at: usize, logits: &[f32]) {
    if let Some(&next) = tokens.get(at + 1) {
        logprobs[at + 1] = Some(log_softmax_at(logits, next));
    }
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    max + logits.iter().map(|&l| (l as f64 - max).exp()).sum::<f64>().ln()
}

fn log_softmax_at(logits: &[f32], token: Token) -> f64 {
    logits[token as usize] as f64 - log_sum_exp(logits)
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let sum = log_sum_exp(logits);
    logits.iter().map(|&l| l as f64 - sum).collect()
}

fn argmax_f64(x: &[f64]) -> Token {
    let mut best = 0;
    for (i, v) in x.iter().enumerate() {
        if *v > x[best] {
            best = i;
        }
    }
    best as Token
}

fn perplexity(logprobs: &[Option<f64>]) -> Option<f64> {
    let known: Vec<f64> = logprobs.iter().flatten().copied().collect();
    let mean = known.iter().sum::<f64>() / known.len() as f64;
    (-mean).exp().is_finite().then(|| (-mean).exp())
}
