//! `dmschat bench`: how fast this machine prefills and decodes, and how near that is to what its
//! memory allows. A real prefill fills the cache, tokens are sampled from real logits, no layer is
//! skipped; the weights may be random, since speed does not depend on their values.

mod calibrate;
mod measure;

use super::args::{BenchArgs, Common};
use super::machine::memory;
use super::output::{as_wrong_use, notice, out, wrong_use};
use super::spawn::{self, Place};
use crate::backend::Backend;
use crate::backend::cpu::Cpu;
use crate::backend::cuda::Cuda;
use crate::checkpoint::Checkpoint;
use crate::codec::Codec;
use crate::config::{Kv, Settings};
use crate::engine::{EngineOptions, Runner, host_bytes};
use crate::protocol::{MAX_CONTEXT, SamplingParams, Token};
use crate::unicode;
use anyhow::{Context, Result};
use measure::{Case, HEADER, Line};
use serde_json::{Value, json};
use std::time::Instant;

const SEED: u64 = 1;
/// Most sequences or threads.
const MAX_MANY: usize = 4096;

pub fn run(settings: &Settings, args: &BenchArgs, common: &Common) -> Result<u8> {
    spawn::check_device(settings)?;
    let (mut checkpoint, place) = match &args.shape {
        Some(shape) => {
            let place = spawn::device(settings)?;
            // A card copies every tensor, so that they may share their bytes on the host.
            let shared = matches!(place, Place::Card(_));
            let made = if shared { Checkpoint::random_shared(shape) } else { Checkpoint::random(shape) };
            (made.map_err(as_wrong_use)?, place)
        }
        None => {
            super::download::ensure(settings)?;
            spawn::opened(settings).map_err(as_wrong_use)?
        }
    };
    let json = common.json;
    let lists = Lists::new(settings, common, place)?;
    if args.parallel.contains(&0) || args.gen_tokens == 0 || args.runs == 0 {
        return Err(wrong_use("--parallel, --gen and --runs count from 1"));
    }
    let longest = args.ctx.iter().max().context("a context length")?.saturating_add(args.gen_tokens).saturating_add(1);
    check_sizes(args, longest)?;
    if longest > checkpoint.config.context {
        checkpoint.config.extend_yarn(longest).map_err(as_wrong_use)?;
    }
    if matches!(place, Place::Cpu) {
        check_memory(args, &checkpoint, longest)?;
    }
    let threads = args.threads.unwrap_or(0);
    if let Some(keep) = args.keep {
        let offset = calibrate::alpha_offset(&mut checkpoint, threads, keep).map_err(as_wrong_use)?;
        notice(&format!("about {:.1} % of the tokens are kept beyond the window at offset {offset:.2}", keep * 100.0));
    }
    if !json {
        out(&format!("{HEADER}\n"))?;
    }
    let bench = Bench { args, json, lists, checkpoint: &checkpoint, longest };
    let Results { device, library, bandwidth, lines } = match place {
        Place::Cpu => bench.run(|| Ok(Cpu::new(threads)), |cpu| Ok(copy_bandwidth(cpu.threads())))?,
        Place::Card(index) => {
            let open = || Ok(Cuda::open(index, &spawn::card_options(settings.graph, settings.gemm))?);
            bench.run(open, |card| Ok(card.copy_bytes_per_s()?))?
        }
    };
    let weights = weight_bytes(&checkpoint);
    if json {
        let report = json!({
            "model": checkpoint.name, "device": device, "library": library, "runs": args.runs, "keep": args.keep,
            "weight_bytes_per_token": weights, "copy_bytes_per_s": bandwidth, "results": lines,
        });
        out(&format!("{}\n", unicode::escape_json(&serde_json::to_string_pretty(&report)?)))?;
    } else {
        let copy = bandwidth / 1e9;
        let library = library.map(|l| format!(", {l}")).unwrap_or_default();
        out(&format!(
            "{}, {device}{library}; {:.1} MB of weights a token; memory copy {copy:.1} GB/s\n",
            checkpoint.name,
            weights as f64 / 1e6
        ))?;
    }
    Ok(0)
}

fn check_sizes(args: &BenchArgs, longest: usize) -> Result<()> {
    let many = args.parallel.iter().chain(&args.threads).any(|&n| n > MAX_MANY);
    if longest > MAX_CONTEXT || many {
        return Err(wrong_use(format!(
            "--ctx and --gen together are at most {MAX_CONTEXT} tokens, --parallel and --threads at most {MAX_MANY}"
        )));
    }
    Ok(())
}

/// Refuses tables and scratch that the host has no memory for.
fn check_memory(args: &BenchArgs, checkpoint: &Checkpoint, longest: usize) -> Result<()> {
    let max_seqs = args.parallel.iter().copied().max().unwrap_or(1);
    let options = EngineOptions { max_seqs, ..EngineOptions::new(Codec::F32) };
    let needed = host_bytes(&checkpoint.config, &options, longest);
    match memory("MemAvailable:") {
        Some(free) if needed > free => {
            let mb = |bytes: u64| bytes as f64 / 1e6;
            Err(wrong_use(format!(
                "{max_seqs} sequences of {longest} tokens need {:.0} MB beside weights and cache, {:.0} MB are free",
                mb(needed),
                mb(free)
            )))
        }
        _ => Ok(()),
    }
}

/// What is measured, on whatever device.
struct Bench<'a> {
    args: &'a BenchArgs,
    json: bool,
    lists: Lists,
    checkpoint: &'a Checkpoint,
    longest: usize,
}

struct Results {
    device: String,
    library: Option<String>,
    bandwidth: f64,
    lines: Vec<Value>,
}

impl Bench<'_> {
    /// `open` gives a backend for each codec; `copy` measures what its memory moves in a second.
    fn run<B: Backend>(&self, open: impl Fn() -> Result<B>, copy: impl Fn(&B) -> Result<f64>) -> Result<Results> {
        let first = open()?;
        let mut results =
            Results { device: first.describe(), library: first.library(), bandwidth: copy(&first)?, lines: Vec::new() };
        drop(first);
        for &codec in &self.lists.codecs {
            let context = Some(self.longest);
            let max_seqs = self.args.parallel.iter().copied().max().unwrap_or(1);
            let options = EngineOptions { context, max_seqs, ..EngineOptions::new(codec) };
            let mut runner = Runner::new(open()?, self.checkpoint, &options, |_, _| true)?;
            for case in self.cases() {
                let line = Line::measure(&mut runner, self.checkpoint, &case, self.args.runs, results.bandwidth)?;
                if !self.json {
                    out(&line.text(codec))?;
                }
                results.lines.push(line.json(codec));
            }
        }
        Ok(results)
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &eviction in &self.lists.eviction {
            for &ctx in &self.args.ctx {
                for &parallel in &self.args.parallel {
                    let sampling = self.lists.sampling.clone();
                    cases.push(Case { ctx, n: self.args.gen_tokens, parallel, eviction, sampling });
                }
            }
        }
        cases
    }
}

/// What `--eviction`, `--kv` and the sampling flags ask for, every value of them.
struct Lists {
    eviction: Vec<bool>,
    codecs: Vec<Codec>,
    sampling: SamplingParams,
}

impl Lists {
    fn new(settings: &Settings, common: &Common, place: Place) -> Result<Self> {
        let eviction = common
            .eviction
            .as_ref()
            .map_or(vec![settings.eviction.unwrap_or(true)], |list| list.0.iter().map(|on| on.0).collect());
        let kv = common.kv.as_ref().map_or(vec![settings.kv], |list| list.0.clone());
        // At temperature 1 random weights give ever new tokens; the likeliest would soon repeat.
        let sampling = settings.sampling(&SamplingParams { temperature: 1.0, ..SamplingParams::default() });
        if let (Place::Card(_), true) = (place, kv.contains(&Kv::F32)) {
            return Err(wrong_use(spawn::NO_F32));
        }
        Ok(Self { eviction, codecs: kv.into_iter().map(|kv| spawn::codec(kv, place)).collect(), sampling })
    }
}

/// The same tokens for the same length and number.
fn prompt(len: usize, vocab: usize, number: u64) -> Vec<Token> {
    let seed = (SEED ^ 0x5eed) + (number << 32);
    (0..len).map(|i| (crate::sampler::uniform(seed, i as u64) * vocab as f32) as Token).collect()
}

/// Bytes of weights that every decoded token reads: all but an embedding of its own.
fn weight_bytes(checkpoint: &Checkpoint) -> u64 {
    let own = |name: &str| !checkpoint.config.tied && name.ends_with("embed_tokens.weight");
    let read = checkpoint.tensors.iter().filter(|(name, _)| !own(name));
    read.map(|(_, t)| t.bytes().len() as u64).sum()
}

/// Bytes a second, read and written, of copying blocks too large for any cache.
fn copy_bandwidth(threads: usize) -> f64 {
    const BLOCK: usize = 64 << 20;
    let mut blocks: Vec<(Vec<u8>, Vec<u8>)> = (0..threads).map(|_| (vec![1; BLOCK], vec![2; BLOCK])).collect();
    let mut best = f64::INFINITY;
    for _ in 0..4 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for (from, to) in &mut blocks {
                scope.spawn(move || to.copy_from_slice(std::hint::black_box(from)));
            }
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    std::hint::black_box(&blocks);
    (2 * BLOCK * threads) as f64 / best
}

#[cfg(test)]
mod tests {
    use super::measure::Spread;
    use super::*;

    #[test]
    fn figures_of_a_small_run_agree() {
        let checkpoint = Checkpoint::random("demo").unwrap();
        let options = EngineOptions { context: Some(64), ..EngineOptions::new(Codec::Bf16) };
        let mut runner = Runner::new(Cpu::new(2), &checkpoint, &options, |_, _| true).unwrap();
        for (parallel, ctx) in [(1, 40), (3, 40), (2, 0)] {
            let case = Case { ctx, n: 4, parallel, eviction: false, sampling: SamplingParams::default() };
            let line = Line::measure(&mut runner, &checkpoint, &case, 2, 1e9).unwrap();
            let c = &checkpoint.config;
            assert_eq!(line.live_slots, (parallel * (ctx.max(1) + 4) * c.n_layers * c.n_kv_heads) as u64);
            assert_eq!((line.dense_slots, line.ratio()), (line.live_slots, 1.0));
            assert_eq!(line.prefill_tok_s.is_some(), ctx > 1);
            assert!(line.decode_tok_s.min > 0.0 && line.decode_tok_s.min <= line.decode_tok_s.max);
            let slots = line.live_slots as f64 * runner.cache.geometry().slot_bytes() as f64;
            let weights = weight_bytes(&checkpoint) as f64 / parallel as f64;
            assert!(line.kv_bytes as f64 >= slots && line.bytes_per_token > weights);
        }
        assert_eq!(runner.cache.pool_stats(runner.backend()).used_pages, 0, "a run gives its pages back");
    }

    #[test]
    fn the_offset_leaves_the_share_that_was_asked_for() {
        let mut checkpoint = Checkpoint::random("demo").unwrap();
        calibrate::alpha_offset(&mut checkpoint, 2, 0.3).unwrap();
        let kept = calibrate::kept(&checkpoint, 2).unwrap();
        assert!((kept - 0.3).abs() < 0.05, "{kept} kept");
        assert!(calibrate::alpha_offset(&mut checkpoint, 2, 0.0).is_err());
    }

    #[test]
    fn spreads_are_medians_and_ranges() {
        let s = Spread::of([3.0, 1.0, 2.0, 10.0].into_iter());
        assert_eq!((s.median, s.min, s.max), (2.5, 1.0, 10.0));
        assert_eq!(Spread::of(std::iter::once(4.0)).median, 4.0);
    }
}
