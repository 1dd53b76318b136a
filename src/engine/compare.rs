//! What a smaller cache costs on a text: sequences that evict, or store less exactly, fed side by side
//! with a dense one, and the distributions of every next token compared.

use super::runner::Runner;
use super::score::{log_softmax, log_softmax_at, perplexity, ratio};
use crate::backend::Backend;
use crate::cache::SeqId;
use crate::protocol::Token;
use crate::sampler::argmax;
use anyhow::Result;
use serde::Serialize;

/// Tokens of a step: both distributions of all of them are held at once.
const STEP: usize = 64;

/// One cache against the dense one.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub kv: &'static str,
    pub eviction: bool,
    pub ppl: Option<f64>,
    /// Mean KL(dense || this) in nats a token.
    pub kl: f64,
    /// Share of positions whose likeliest next token is the same.
    pub top1_agreement: f64,
    /// Slots of a dense cache to slots held, after the last token.
    pub ratio: Option<f64>,
    /// Of live slots, after the last token.
    pub live_bytes: u64,
}

/// The dense cache's perplexity, and the rows compared with it.
pub type Compared = (Option<f64>, Vec<Row>);

/// Eviction on against off, in one runner.
pub fn eviction<B: Backend>(runner: &mut Runner<B>, tokens: &[Token]) -> Result<Compared> {
    let mut off = Dense::new(runner, tokens)?;
    let mut on = Beside::new(runner, true)?;
    while let Some(part) = off.feed(runner)? {
        on.feed(runner, &part, tokens)?;
    }
    let rows = vec![on.finish(runner, tokens)];
    Ok((off.finish(runner), rows))
}

/// `runner`'s cache, without and with eviction as asked, against the dense cache of `reference`: the same
/// model with another codec.
pub fn codec<R: Backend, B: Backend>(
    reference: &mut Runner<R>,
    runner: &mut Runner<B>,
    tokens: &[Token],
    evictions: &[bool],
) -> Result<Compared> {
    let mut dense = Dense::new(reference, tokens)?;
    let beside: Result<Vec<Beside>> = evictions.iter().map(|&on| Beside::new(runner, on)).collect();
    let mut beside = beside?;
    while let Some(part) = dense.feed(reference)? {
        for one in &mut beside {
            one.feed(runner, &part, tokens)?;
        }
    }
    let rows = beside.into_iter().map(|one| one.finish(runner, tokens)).collect();
    Ok((dense.finish(reference), rows))
}

/// A step of the dense sequence: where it begins, and the log-probabilities after each of its tokens.
struct Part {
    at: usize,
    rows: Vec<Vec<f64>>,
    likeliest: Vec<Token>,
}

struct Dense<'a> {
    seq: SeqId,
    tokens: &'a [Token],
    at: usize,
    logprobs: Vec<Option<f64>>,
}

impl<'a> Dense<'a> {
    fn new<B: Backend>(runner: &mut Runner<B>, tokens: &'a [Token]) -> Result<Self> {
        Ok(Self { seq: runner.create(false)?, tokens, at: 0, logprobs: Vec::with_capacity(tokens.len()) })
    }

    /// The next step; `None` after the last token.
    fn feed<B: Backend>(&mut self, runner: &mut Runner<B>) -> Result<Option<Part>> {
        let Some(part) = self.tokens[self.at..].chunks(STEP).next() else { return Ok(None) };
        runner.feed(self.seq, part)?;
        let mut out = Part { at: self.at, rows: Vec::new(), likeliest: Vec::new() };
        runner.logits(0..part.len(), |_, logits| {
            out.rows.push(log_softmax(logits));
            out.likeliest.push(argmax(logits));
        })?;
        let next = self.tokens[self.at + 1..].iter();
        self.logprobs.extend(out.rows.iter().zip(next).map(|(row, &t)| Some(row[t as usize])));
        self.at += part.len();
        Ok(Some(out))
    }

    fn finish<B: Backend>(self, runner: &mut Runner<B>) -> Option<f64> {
        runner.release(self.seq);
        perplexity(&self.logprobs)
    }
}

struct Beside {
    seq: SeqId,
    eviction: bool,
    logprobs: Vec<Option<f64>>,
    kl: f64,
    same: usize,
}

impl Beside {
    fn new<B: Backend>(runner: &mut Runner<B>, eviction: bool) -> Result<Self> {
        Ok(Self { seq: runner.create(eviction)?, eviction, logprobs: Vec::new(), kl: 0.0, same: 0 })
    }

    fn feed<B: Backend>(&mut self, runner: &mut Runner<B>, part: &Part, tokens: &[Token]) -> Result<()> {
        runner.feed(self.seq, &tokens[part.at..part.at + part.rows.len()])?;
        runner.logits(0..part.rows.len(), |row, logits| {
            let (p, q) = (&part.rows[row], log_softmax(logits));
            self.kl += p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
            self.same += usize::from(argmax(logits) == part.likeliest[row]);
            self.logprobs.extend(tokens.get(part.at + row + 1).map(|&t| Some(log_softmax_at(logits, t))));
        })?;
        Ok(())
    }

    fn finish<B: Backend>(self, runner: &mut Runner<B>, tokens: &[Token]) -> Row {
        let stats = runner.cache.stats(runner.backend(), self.seq);
        let geometry = *runner.cache.geometry();
        runner.release(self.seq);
        Row {
            kv: geometry.codec.name(),
            eviction: self.eviction,
            ppl: perplexity(&self.logprobs),
            kl: self.kl / tokens.len() as f64,
            top1_agreement: self.same as f64 / tokens.len() as f64,
            ratio: ratio(&stats),
            live_bytes: stats.live_slots * geometry.slot_bytes() as u64,
        }
    }
}
