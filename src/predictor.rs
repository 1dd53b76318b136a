//! Trains a predictor of importance for a model. Texts followed by their repetition show which
//! tokens a KV head reads again, a regression learns to predict that from the hidden state, and
//! forward passes over other texts find the threshold. No gradient goes through the model.

pub mod file;
mod random;
mod regression;
mod rows;
pub mod search;
pub mod texts;

pub use regression::Fitted;
pub use rows::Frame;

use crate::backend::Measure;
use crate::checkpoint::ModelConfig;
use crate::cores;
use crate::engine::{EngineOptions, Runner};
use crate::protocol::Token;
use anyhow::{Context, Result};
use half::bf16;
use random::Random;
use regression::fit;
use rows::{Collector, LayerRows, Rows};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use texts::Piece;

/// Tokens of a sequence: a text, its repetition and the template around them.
pub const CONTEXT: usize = 2304;
/// Units of the hidden layer.
const UNITS: usize = 256;
/// Bytes that the rows of all layers may take.
const ROW_BYTES: usize = 4 << 30;

/// Tokens of the pass that [`Speed::measure`] times.
const TIMED_TOKENS: usize = 256;
/// Rows and channels of the regression that it times.
const TIMED_ROWS: usize = 512;
const TIMED_HIDDEN: usize = 512;

/// How fast this machine works on a model, for an estimate.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// Seconds for a token of a forward pass.
    pub token_s: f64,
    /// Seconds for a row, layer and channel of the regressions, which run on all threads.
    pub fit_s: f64,
}

impl Speed {
    /// Times a short pass and a small regression.
    pub fn measure<B: Measure>(runner: &mut Runner<B>, text: &Piece) -> Result<Self> {
        let tokens = &text.tokens[..text.tokens.len().min(TIMED_TOKENS).min(runner.max_step())];
        let mut timed = |tokens: &[Token]| -> Result<f64> {
            let started = Instant::now();
            let seq = runner.create(false)?;
            runner.feed(seq, tokens)?;
            runner.check_finite()?;
            runner.release(seq);
            Ok(started.elapsed().as_secs_f64())
        };
        // The first pass loads weights and kernels.
        timed(tokens)?;
        let token_s = timed(tokens)? / tokens.len() as f64;
        let mut random = Random::new(3);
        let x = (0..TIMED_ROWS * TIMED_HIDDEN).map(|_| bf16::from_f32(random.signed())).collect();
        let rows = LayerRows { x, y: (0..TIMED_ROWS).map(|_| random.signed()).collect() };
        let started = Instant::now();
        fit(&rows, TIMED_HIDDEN, 1, UNITS, 1);
        let threads = cores::count();
        let fit_s = started.elapsed().as_secs_f64() / (TIMED_ROWS * TIMED_HIDDEN * threads) as f64;
        Ok(Self { token_s, fit_s })
    }
}

/// Part of the work that is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    pub doing: &'static str,
    pub done: usize,
    pub total: usize,
}

/// Engine options for the work: one sequence of texts, or one with and one without eviction, at
/// most as long as the model's context.
pub fn options(options: EngineOptions, config: &ModelConfig) -> EngineOptions {
    let context = CONTEXT.min(config.context);
    EngineOptions {
        context: Some(context),
        max_step: Some(context),
        max_logits: 64,
        max_seqs: 3,
        eviction: None,
        ..options
    }
}

/// Runs the texts through a dense model, and collects the rows that a predictor is fitted to.
pub fn observe<B: Measure>(
    runner: &mut Runner<B>,
    texts: &[Piece],
    frame: &Frame,
    on: &mut dyn FnMut(Progress),
) -> Result<Rows> {
    let most = ROW_BYTES / Rows::bytes(runner.config()) / texts.len().max(1);
    let mut collector = Collector::new(runner, most.max(1));
    for (done, text) in texts.iter().enumerate() {
        on(Progress { doing: "measuring attention, text", done, total: texts.len() });
        collector.add(runner, &frame.around(&text.tokens))?;
    }
    collector.finish()
}

/// Fits every layer, several at a time on `threads` threads. The rows of a layer are dropped once
/// it is fitted.
pub fn regress(rows: Rows, threads: usize, on: &mut dyn FnMut(Progress)) -> Result<Vec<Fitted>> {
    let (hidden, heads, total) = (rows.hidden, rows.heads, rows.layers.len());
    let layers: Vec<Mutex<Option<LayerRows>>> = rows.layers.into_iter().map(|layer| Mutex::new(Some(layer))).collect();
    let fitted: Vec<Mutex<Option<Fitted>>> = (0..total).map(|_| Mutex::default()).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // The last layers, which are fewer than the threads, share them.
    let last = total % threads.max(1);
    let threads_of = |l: usize| if l < total - last { 1 } else { threads / last };
    let work = || {
        while let l = next.fetch_add(1, Ordering::Relaxed)
            && let Some(layer) = layers.get(l)
        {
            let rows = layer.lock().ok().and_then(|mut rows| rows.take());
            if let (Some(rows), Ok(mut fitted)) = (rows, fitted[l].lock()) {
                *fitted = Some(fit(&rows, hidden, heads, UNITS, threads_of(l)));
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.clamp(1, total)).map(|_| scope.spawn(work)).collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            on(Progress { doing: "fitting, layer", done: done.load(Ordering::Relaxed), total });
            thread::sleep(Duration::from_millis(100));
        }
    });
    let layer = |fitted: Mutex<Option<Fitted>>| fitted.into_inner().ok().flatten().context("a regression failed");
    fitted.into_iter().map(layer).collect()
}

/// The scores of all fitted rows, in ascending order.
pub fn sorted_scores(layers: &[Fitted]) -> Vec<f32> {
    let mut scores: Vec<f32> = layers.iter().flat_map(|layer| &layer.scores).copied().collect();
    scores.sort_by(f32::total_cmp);
    scores
}

/// A predictor of a tiny model, from its rows to the threshold.
#[cfg(test)]
mod tests {
    use super::search::{Goal, find};
    use super::*;
    use crate::backend::cpu::Cpu;
    use crate::checkpoint::Checkpoint;
    use crate::checkpoint::adapter::Adapter;
    use crate::checkpoint::adapter::card::{Card, Header};
    use crate::codec::Codec;
    use crate::engine::EngineOptions;
    use std::sync::Arc;

    const VOCAB: usize = 120;

    fn checkpoint(n_layers: usize) -> Checkpoint {
        let small = Checkpoint::shape("smollm2-135m").unwrap();
        let config = ModelConfig {
            n_layers,
            hidden: 48,
            n_q_heads: 4,
            n_kv_heads: 2,
            head_dim: 16,
            ffn: 64,
            vocab: VOCAB,
            dms: None,
            ..small
        };
        Checkpoint::random_of("tiny", config).unwrap()
    }

    fn runner(checkpoint: &Checkpoint) -> Runner<Cpu> {
        let options =
            EngineOptions { context: Some(1300), max_step: Some(1300), max_seqs: 3, ..EngineOptions::new(Codec::F32) };
        Runner::new(Cpu::new(2), checkpoint, &options, |_, _| true).unwrap()
    }

    fn piece(seed: u64, len: usize) -> Piece {
        let mut random = Random::new(seed);
        let tokens = (0..len).map(|_| ((random.signed() + 1.0) / 2.0 * VOCAB as f32) as Token % VOCAB as Token);
        Piece { kind: format!("text {seed}"), tokens: tokens.collect() }
    }

    fn frame() -> Frame {
        Frame { before: vec![1, 2, 3, 4, 5], after: vec![6, 7] }
    }

    /// The importance in the first layer, in f64 from the weights by its definition.
    #[test]
    fn rows_are_the_importance_that_its_definition_gives() {
        let checkpoint = checkpoint(1);
        let c = checkpoint.config.clone();
        let text = piece(3, 20);
        let rows = observe(&mut runner(&checkpoint), std::slice::from_ref(&text), &frame(), &mut |_| {}).unwrap();
        let repetition = frame().around(&text.tokens);
        let matrix = |name: &str| checkpoint.tensors[&format!("model.{name}.weight")].to_f32();
        let times = |matrix: &[f32], x: &[f64]| -> Vec<f64> {
            matrix.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
        };
        let embedding = matrix("embed_tokens");
        let normed: Vec<Vec<f64>> = repetition
            .tokens
            .iter()
            .map(|&token| {
                let x: Vec<f64> =
                    embedding[token as usize * c.hidden..][..c.hidden].iter().map(|&x| f64::from(x)).collect();
                let mean = x.iter().map(|x| x * x).sum::<f64>() / c.hidden as f64;
                x.iter().map(|x| x / (mean + f64::from(c.rms_eps)).sqrt()).collect()
            })
            .collect();
        let part = |name: &str| matrix(&format!("layers.0.self_attn.{name}_proj"));
        let (q, k, v, o) = (part("q"), part("k"), part("v"), part("o"));
        let (frequencies, _) = c.rope.frequencies(c.head_dim);
        let turned = |rows: &[f32], head: usize, at: usize| -> Vec<f64> {
            let (d, half) = (c.head_dim, c.head_dim / 2);
            let x = &times(rows, &normed[at])[head * d..][..d];
            let mut out = vec![0.0; d];
            for i in 0..half {
                let (sin, cos) = (at as f64 * frequencies[i]).sin_cos();
                (out[i], out[i + half]) = (x[i] * cos - x[i + half] * sin, x[i + half] * cos + x[i] * sin);
            }
            out
        };
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let mut want = vec![0f64; text.tokens.len() * c.n_kv_heads];
        for head in 0..c.n_q_heads {
            let group = head / (c.n_q_heads / c.n_kv_heads);
            for i in repetition.answer.clone() {
                let query = turned(&q, head, i);
                let score = |t: usize| (dot(&query, &turned(&k, group, t)) / (c.head_dim as f64).sqrt()).exp();
                let scores: Vec<f64> = (0..=i).map(score).collect();
                for (at, t) in repetition.text.clone().enumerate() {
                    // The head's part of the output, of this value alone.
                    let mut value = vec![0.0; c.n_q_heads * c.head_dim];
                    let own = &times(&v, &normed[t])[group * c.head_dim..][..c.head_dim];
                    value[head * c.head_dim..][..c.head_dim].copy_from_slice(own);
                    let out = times(&o, &value);
                    let importance = scores[t] / scores.iter().sum::<f64>() * dot(&out, &out).sqrt()
                        / dot(&normed[i], &normed[i]).sqrt();
                    let most = &mut want[at * c.n_kv_heads + group];
                    *most = most.max(importance);
                }
            }
        }
        for (got, want) in rows.layers[0].y.iter().zip(&want) {
            assert!((f64::from(*got) - want.ln()).abs() < 1e-3, "{got} {}", want.ln());
        }
        assert_eq!(rows.layers[0].y.len(), want.len());
    }

    #[test]
    fn the_threshold_reaches_the_ratio_on_other_texts() {
        let mut checkpoint = checkpoint(2);
        let texts: Vec<Piece> = (0..6).map(|seed| piece(seed, 500)).collect();
        let rows = observe(&mut runner(&checkpoint), &texts, &frame(), &mut |_| {}).unwrap();
        let layers: Vec<Fitted> = regress(rows, 2, &mut |_| {}).unwrap();
        let scores = sorted_scores(&layers);
        let header = Header { base: "tiny".to_owned(), threshold: 0.0, window: 128, sinks: 4, card: Card::default() };
        let bytes = file::to_bytes(&checkpoint.config, &layers, &header).unwrap();
        let adapter = Adapter::new("made", Arc::new(bytes)).unwrap();
        adapter.decide(&mut checkpoint.config).unwrap();
        let tensors = adapter.tensors(&checkpoint.config).unwrap();
        checkpoint.tensors.extend(tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)));
        let measured = [piece(20, 1200), piece(21, 1000)];
        let mut runner = runner(&checkpoint);
        for wanted in [2.0, 3.5] {
            let found = find(&mut runner, &measured, Goal::Ratio(wanted), &scores, &mut || {}).unwrap();
            assert!((found.ratio() - wanted).abs() < 0.1 * wanted, "{} for {wanted}", found.ratio());
            assert!(found.kl() > 0.0 && found.measured.len() == 2, "{:?}", found.measured);
        }
        // Nothing lives on from the passes.
        assert_eq!(runner.cache.pool_stats(runner.backend()).used_pages, 0);
    }
}
