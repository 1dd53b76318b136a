//! Searches for the threshold of a predictor, by forward passes over texts that the predictor was
//! not fitted to. Tokens are evicted inside the prompt as in decoding.

use super::texts::Piece;
use crate::backend::Measure;
use crate::checkpoint::adapter::card::{Figure, over_all};
use crate::cores;
use crate::engine::Runner;
use crate::policy::{Dms, Policy, Shift};
use crate::sampler::{divergence, log_softmax};
use anyhow::{Result, ensure};

/// Tokens at positions below this are never marked.
pub const SINKS: usize = 4;
/// Windows to try.
const WINDOWS: [usize; 2] = [128, 256];
/// One in this many positions is compared with the dense model.
const EACH: usize = 4;
/// Tokens per step.
const STEP: usize = 256;
/// Rounds of improving a threshold.
const ROUNDS: usize = 3;
/// Bytes that the logits of the dense model may take. If they fit, they are kept and computed once,
/// else they are computed again for each comparison.
const DENSE_BYTES: usize = 512 << 20;

/// What the threshold has to reach on the measured texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// Compression ratio: slots of a dense cache over live slots, in layers that are not local.
    Ratio(f64),
    /// KL divergence from the dense model, in nats per token.
    Kl(f64),
}

/// A threshold and the measurements at it, one per text.
#[derive(Clone, Debug)]
pub struct Found {
    pub window: usize,
    pub threshold: f32,
    pub measured: Vec<Figure>,
}

impl Found {
    /// Compression ratio and KL divergence over all texts.
    pub fn all(&self) -> (f64, f64) {
        over_all(self.measured.iter()).unwrap_or((f64::NAN, f64::NAN))
    }

    pub fn kl(&self) -> f64 {
        self.all().1
    }

    pub fn ratio(&self) -> f64 {
        self.all().0
    }
}

/// Logits of the dense model on each text, at the compared positions.
struct Dense {
    /// Whether they are kept from one comparison to the next.
    keeps: bool,
    logits: Vec<Vec<Vec<f32>>>,
}

/// Whether the dense model's logits on these texts fit in [`DENSE_BYTES`].
fn keeps_dense(texts: &[Piece], vocab: usize) -> bool {
    texts.iter().map(|text| text.tokens.len() / EACH * vocab * size_of::<f32>()).sum::<usize>() <= DENSE_BYTES
}

/// Finds the threshold at which a model reaches `goal`, and the better window. The model is loaded
/// with the predictor at threshold 0, and the dial sets the thresholds to try. `scores`: scores of
/// the fitted rows, in ascending order. `on_pass` is called before each pass over a text.
pub fn find<B: Measure>(
    runner: &mut Runner<B>,
    texts: &[Piece],
    goal: Goal,
    scores: &[f32],
    on_pass: &mut dyn FnMut(),
) -> Result<Found> {
    ensure!(!texts.is_empty(), "there is no text to measure the predictor on: give more text with --text");
    let mut best: Option<Found> = None;
    let mut dense = Dense { keeps: keeps_dense(texts, runner.config().vocab), logits: Vec::new() };
    for window in WINDOWS {
        let shortest = texts.iter().map(|text| text.tokens.len()).min().unwrap_or(0);
        if shortest < 4 * window && best.is_some() {
            continue;
        }
        runner.set_policy(Policy::Dms(Dms { window, shift: Shift::Same, sinks: SINKS, dial: 0.0 }))?;
        let found = at_window(runner, texts, goal, scores, window, &mut dense, on_pass)?;
        let better = best.as_ref().is_none_or(|best| match goal {
            Goal::Ratio(_) => found.kl() < best.kl(),
            Goal::Kl(_) => found.ratio() > best.ratio(),
        });
        if better {
            best = Some(found);
        }
    }
    best.ok_or_else(|| anyhow::anyhow!("no window fits the texts"))
}

/// Upper bound on the passes over a text that [`find`] makes, for progress. Short texts need fewer,
/// because they skip the second window.
pub fn passes(texts: &[Piece], vocab: usize, goal: Goal) -> usize {
    let (alone, compared) = match goal {
        Goal::Ratio(_) => (WINDOWS.len() * ROUNDS, WINDOWS.len()),
        Goal::Kl(_) => (0, WINDOWS.len() * (ROUNDS + 1)),
    };
    let dense = if keeps_dense(texts, vocab) { 1 } else { compared };
    texts.len() * (alone + compared + dense)
}

fn at_window<B: Measure>(
    runner: &mut Runner<B>,
    texts: &[Piece],
    goal: Goal,
    scores: &[f32],
    window: usize,
    dense: &mut Dense,
    on_pass: &mut dyn FnMut(),
) -> Result<Found> {
    let tokens = texts.iter().map(|text| text.tokens.len()).sum::<usize>() as f64 / texts.len() as f64;
    let recent = (window + 1) as f64;
    // Share of the tokens beyond the window to keep for a ratio.
    let share = |ratio: f64| ((tokens / ratio - recent) / (tokens - recent).max(1.0)).clamp(0.005, 0.995);
    let threshold = |keep: f64| scores[((1.0 - keep) * (scores.len() - 1) as f64) as usize];
    // The scores of the fitted rows say which threshold keeps a share. At that threshold, other
    // texts keep a share that differs by a factor, which each round corrects.
    let mut keep = match goal {
        Goal::Ratio(ratio) => share(ratio),
        Goal::Kl(_) => 0.2,
    };
    for _ in 0..ROUNDS {
        keep = match goal {
            Goal::Ratio(ratio) => {
                let found = share(ratio_at(runner, texts, threshold(keep), on_pass)?);
                keep * share(ratio) / found
            }
            // The divergence is about inversely proportional to the square of the kept share.
            Goal::Kl(kl) => {
                let found = compare(runner, texts, window, threshold(keep), dense, on_pass)?.kl();
                keep * (found / kl).sqrt().clamp(0.4, 2.5)
            }
        }
        .clamp(0.005, 0.995);
    }
    compare(runner, texts, window, threshold(keep), dense, on_pass)
}

/// Compression ratio over all texts at a threshold.
fn ratio_at<B: Measure>(
    runner: &mut Runner<B>,
    texts: &[Piece],
    threshold: f32,
    on_pass: &mut dyn FnMut(),
) -> Result<f64> {
    let (mut dense, mut live) = (0, 0);
    for text in texts {
        on_pass();
        let seq = runner.create(true)?;
        runner.set_dial(seq, -threshold);
        for chunk in text.tokens.chunks(STEP.min(runner.max_step())) {
            runner.feed(seq, chunk)?;
        }
        let stats = runner.cache.stats(runner.backend(), seq);
        runner.release(seq);
        let (all, kept) = stats.decided(runner.cache.geometry());
        dense += all;
        live += kept;
    }
    Ok(dense as f64 / live.max(1) as f64)
}

/// Measures, at a threshold, the compression ratio and the KL divergence from the dense model.
fn compare<B: Measure>(
    runner: &mut Runner<B>,
    texts: &[Piece],
    window: usize,
    threshold: f32,
    dense: &mut Dense,
    on_pass: &mut dyn FnMut(),
) -> Result<Found> {
    let mut measured = Vec::new();
    for (i, text) in texts.iter().enumerate() {
        let seq = runner.create(true)?;
        runner.set_dial(seq, -threshold);
        // A dense sequence is fed the same chunks, unless its logits have been kept.
        let beside = if i < dense.logits.len() { None } else { Some(runner.create(false)?) };
        let (mut kl, mut known) = (Vec::new(), Vec::new());
        on_pass();
        for chunk in text.tokens.chunks(STEP.min(runner.max_step())) {
            let mut logits_of = |seq| -> Result<Vec<Vec<f32>>> {
                let mut logits = Vec::new();
                runner.feed(seq, chunk)?;
                runner.logits((EACH - 1..chunk.len()).step_by(EACH), |_, row| logits.push(row.to_vec()))?;
                Ok(logits)
            };
            let got = logits_of(seq)?;
            let fed = beside.map(logits_of).transpose()?;
            let wanted = fed.as_deref().unwrap_or_else(|| &dense.logits[i][kl.len()..]);
            let pairs: Vec<_> = wanted.iter().zip(&got).collect();
            kl.extend(cores::map(&pairs, |(wanted, got)| divergence(&log_softmax(wanted), &log_softmax(got))));
            known.extend(fed.filter(|_| dense.keeps).into_iter().flatten());
        }
        if let Some(beside) = beside {
            on_pass();
            runner.release(beside);
            if dense.keeps {
                dense.logits.push(known);
            }
        }
        let stats = runner.cache.stats(runner.backend(), seq);
        let (all, live) = stats.decided(runner.cache.geometry());
        runner.release(seq);
        measured.push(Figure {
            texts: text.kind.clone(),
            threshold,
            window,
            tokens: stats.len,
            ratio: all as f64 / live.max(1) as f64,
            kl: kl.iter().sum::<f64>() / kl.len().max(1) as f64,
        });
    }
    Ok(Found { window, threshold, measured })
}
