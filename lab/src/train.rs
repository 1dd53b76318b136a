//! `dmslab train`: times the work of `dmschat adapter train`, with random weights in the shape of a
//! known model.

use anyhow::Result;
use clap::Args;
use dmschat::backend::Report as _;
use dmschat::checkpoint::adapter::Adapter;
use dmschat::checkpoint::adapter::card::{Card, Header};
use dmschat::checkpoint::{Checkpoint, ModelConfig};
use dmschat::cli::devices::{DeviceJob, DeviceKind, DeviceOptions, Target};
use dmschat::cli::output::{self, as_wrong_use, notice};
use dmschat::config::{Auto, Settings};
use dmschat::cores;
use dmschat::engine::{EngineOptions, Runner};
use dmschat::predictor::search::{self, Goal};
use dmschat::predictor::texts::{MEASURED_TOKENS, Piece};
use dmschat::predictor::{self, Frame, file};
use dmschat::sampler::uniform;
use std::sync::Arc;
use std::time::Instant;

/// Tokens of a text that is fitted, and of the template around it and its repetition.
const FITTED_TOKENS: usize = 900;
const FRAME_TOKENS: usize = 30;

#[derive(Args, Debug)]
pub struct TrainArgs {
    /// qwen3-8b, llama-3.2-1b or smollm2-135m
    #[arg(long, value_name = "SHAPE", default_value = "qwen3-8b")]
    pub shape: String,
    /// Texts that are fitted, as many as are built in
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub texts: usize,
    /// Texts that are measured
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub measured: usize,
}

/// Trains a predictor of random weights on random tokens, and prints how long each part took. The
/// predictor itself is meaningless.
pub fn run(settings: &Settings, args: &TrainArgs) -> Result<u8> {
    let target = Target::new(settings)?;
    let config = ModelConfig { dms: None, ..Checkpoint::shape(&args.shape).map_err(as_wrong_use)? };
    let checkpoint = target.random_weights(&args.shape, config)?;
    let options = predictor::options(EngineOptions::new(target.codec(Auto::Auto)), &checkpoint.config);
    target.run(DeviceOptions::from(settings), Job { checkpoint, options, args })
}

struct Job<'a> {
    checkpoint: Checkpoint,
    options: EngineOptions,
    args: &'a TrainArgs,
}

impl DeviceJob for Job<'_> {
    type Output = u8;

    fn run<D: DeviceKind>(self, device: &D) -> Result<u8> {
        let Self { mut checkpoint, options, args } = self;
        let vocab = checkpoint.config.vocab;
        let started = Instant::now();
        let part =
            |name: &str, begun: Instant| output::out(&format!("{name:<36} {:>7.1} s\n", begun.elapsed().as_secs_f64()));
        let pieces = |seed: usize, n: usize, len: usize| -> Vec<Piece> {
            (0..n).map(|i| Piece { kind: "random".to_owned(), tokens: tokens((seed + i) as u64, len, vocab) }).collect()
        };
        let frame = Frame { before: tokens(1, FRAME_TOKENS, vocab), after: tokens(2, FRAME_TOKENS, vocab) };

        let begun = Instant::now();
        let mut runner = Runner::new(device.open()?, &checkpoint, &options, |_, _| true)?;
        part("load the model", begun)?;
        let begun = Instant::now();
        let fitted = pieces(10, args.texts, FITTED_TOKENS);
        let rows = predictor::observe(&mut runner, &fitted, &frame, &mut |_| {})?;
        drop(runner);
        part("measure attention", begun)?;
        let begun = Instant::now();
        let threads = cores::count();
        let layers = predictor::regress(rows, threads, &mut |_| {})?;
        part(&format!("fit {} layers on {threads} threads", layers.len()), begun)?;

        let begun = Instant::now();
        let header = Header {
            base: args.shape.clone(),
            threshold: 0.0,
            window: 256,
            sinks: search::SINKS,
            card: Card::default(),
        };
        let bytes = file::to_bytes(&checkpoint.config, &layers, &header)?;
        let adapter = Adapter::new("made", Arc::new(bytes))?;
        adapter.decide(&mut checkpoint.config)?;
        let tensors = adapter.tensors(&checkpoint.config)?;
        checkpoint.tensors.extend(tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)));
        let mut runner = Runner::new(device.open()?, &checkpoint, &options, |_, _| true)?;
        part("load it with the predictor", begun)?;
        let begun = Instant::now();
        let scores = predictor::sorted_scores(&layers);
        let texts = pieces(1000, args.measured, MEASURED_TOKENS);
        let found = search::find(&mut runner, &texts, Goal::Ratio(3.0), &scores, &mut || {})?;
        part("search the threshold", begun)?;
        part("all", started)?;
        notice(&format!("{}; reached {:.2}x with random weights", runner.backend().about().name, found.ratio()));
        Ok(output::OK)
    }
}

fn tokens(seed: u64, len: usize, vocab: usize) -> Vec<u32> {
    (0..len as u64).map(|i| (uniform(seed, i) * vocab as f32) as u32 % vocab as u32).collect()
}
