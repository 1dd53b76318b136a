//! `dmschat bench`: how fast this machine prefills and decodes, and how near that is to what its
//! memory allows. A real prefill fills the cache, tokens are sampled from real logits, no layer is
//! skipped; the weights may be random, since speed does not depend on their values.

mod calibrate;

use super::args::{BenchArgs, Common};
use super::output::{as_wrong_use, notice, out, wrong_use};
use super::spawn::{self, Place};
use crate::backend::Backend;
use crate::backend::cpu::Cpu;
use crate::backend::cuda::Cuda;
use crate::checkpoint::Checkpoint;
use crate::codec::Codec;
use crate::config::{Kv, Settings};
use crate::engine::{Decode, EngineOptions, Runner};
use crate::protocol::{SamplingParams, Token};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Tokens of one step of a prefill, as in a chat.
const STEP_TOKENS: usize = 512;
const SEED: u64 = 1;

pub fn run(settings: &Settings, args: &BenchArgs, common: &Common) -> Result<u8> {
    spawn::check_device(settings)?;
    let (mut checkpoint, place) = match &args.shape {
        Some(shape) => (Checkpoint::random(shape).map_err(as_wrong_use)?, spawn::device(settings)?),
        None => {
            super::download::ensure(settings)?;
            spawn::opened(settings).map_err(as_wrong_use)?
        }
    };
    let json = common.json;
    let lists = Lists::new(settings, common, place)?;
    if args.ctx.contains(&0) || args.gen_tokens == 0 || args.runs == 0 {
        return Err(wrong_use("--ctx, --gen and --runs count from 1"));
    }
    let longest = args.ctx.iter().max().context("a context length")? + args.gen_tokens + 1;
    if longest > checkpoint.config.context {
        let context = checkpoint.config.context;
        return Err(wrong_use(format!("{longest} tokens exceed the context of {context} tokens")));
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
    let Results { device, bandwidth, lines } = match place {
        Place::Cpu => bench.run(|| Ok(Cpu::new(threads)), |cpu| Ok(copy_bandwidth(cpu.threads())))?,
        Place::Card(index) => {
            let open = || Ok(Cuda::open(index, &spawn::card_options(settings.graph))?);
            bench.run(open, |card| Ok(card.copy_bytes_per_s()?))?
        }
    };
    let weights = weight_bytes(&checkpoint);
    if json {
        let report = json!({
            "model": checkpoint.name, "device": device, "runs": args.runs, "keep": args.keep,
            "weight_bytes_per_token": weights, "copy_bytes_per_s": bandwidth, "results": lines,
        });
        out(&format!("{}\n", serde_json::to_string_pretty(&report)?))?;
    } else {
        let copy = bandwidth / 1e9;
        out(&format!(
            "{}, {device}; {:.1} MB of weights a token; memory copy {copy:.1} GB/s\n",
            checkpoint.name,
            weights as f64 / 1e6
        ))?;
    }
    Ok(0)
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
    bandwidth: f64,
    lines: Vec<Value>,
}

impl Bench<'_> {
    /// `open` gives a backend for each codec; `copy` measures what its memory moves in a second.
    fn run<B: Backend>(&self, open: impl Fn() -> Result<B>, copy: impl Fn(&B) -> Result<f64>) -> Result<Results> {
        let first = open()?;
        let mut results = Results { device: first.describe(), bandwidth: copy(&first)?, lines: Vec::new() };
        drop(first);
        for &codec in &self.lists.codecs {
            let context = Some(self.longest);
            let options = EngineOptions { context, max_step: STEP_TOKENS, ..EngineOptions::new(codec) };
            let mut runner = Runner::new(open()?, self.checkpoint, &options, |_, _| {})?;
            for &eviction in &self.lists.eviction {
                for &ctx in &self.args.ctx {
                    let case = Case { ctx, n: self.args.gen_tokens, eviction, sampling: self.lists.sampling.clone() };
                    let runs = self.args.runs;
                    let line = Line::measure(&mut runner, self.checkpoint, &case, runs, results.bandwidth)?;
                    if !self.json {
                        out(&line.text(codec))?;
                    }
                    results.lines.push(line.json(codec, &case));
                }
            }
        }
        Ok(results)
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

const HEADER: &str = "kv    eviction    ctx   prefill tok/s           ttft ms   decode tok/s            MB/token  of copy     KV MB   live slots  ratio";

struct Case {
    ctx: usize,
    n: usize,
    eviction: bool,
    sampling: SamplingParams,
}

/// Figures of several runs of one case.
struct Line {
    eviction: bool,
    ctx: usize,
    prefill_tok_s: Spread,
    ttft_ms: Spread,
    decode_tok_s: Spread,
    kv_bytes: u64,
    live_slots: u64,
    dense_slots: u64,
    bytes_per_token: f64,
    share_of_copy: f64,
}

impl Line {
    fn measure<B: Backend>(
        runner: &mut Runner<B>,
        checkpoint: &Checkpoint,
        case: &Case,
        runs: usize,
        bandwidth: f64,
    ) -> Result<Self> {
        // Warm-up: pages of the weights, scratch, the pool, the clock of the cores.
        let warm = Case { ctx: case.ctx.min(STEP_TOKENS), n: case.n.min(16), sampling: case.sampling.clone(), ..*case };
        once(runner, &warm)?;
        let runs = (0..runs).map(|_| once(runner, case)).collect::<Result<Vec<_>>>()?;
        let per_s = |n: usize, time: Duration| n as f64 / time.as_secs_f64();
        let decode_tok_s = Spread::of(runs.iter().map(|r| per_s(case.n, r.decode)));
        let last = runs.last().context("a run")?;
        let c = runner.config();
        let slot_bytes = runner.cache.geometry().slot_bytes() as f64;
        let bytes_per_token = weight_bytes(checkpoint) as f64 + last.mean_live * slot_bytes;
        Ok(Self {
            eviction: case.eviction,
            ctx: case.ctx,
            prefill_tok_s: Spread::of(runs.iter().map(|r| per_s(case.ctx, r.prefill))),
            ttft_ms: Spread::of(runs.iter().map(|r| r.first_token.as_secs_f64() * 1e3)),
            share_of_copy: decode_tok_s.median * bytes_per_token / bandwidth,
            decode_tok_s,
            kv_bytes: last.kv_bytes,
            live_slots: last.live_slots,
            dense_slots: ((case.ctx + case.n) * c.n_layers * c.n_kv_heads) as u64,
            bytes_per_token,
        })
    }

    fn ratio(&self) -> f64 {
        self.dense_slots as f64 / self.live_slots as f64
    }

    fn text(&self, codec: Codec) -> String {
        format!(
            "{:<5} {:<8} {:>6}   {:<21} {:>9.1}   {:<21} {:>10.1}  {:>6.1} %  {:>8.1}  {:>11}  {:>5.2}\n",
            codec.name(),
            if self.eviction { "on" } else { "off" },
            self.ctx,
            self.prefill_tok_s.text(),
            self.ttft_ms.median,
            self.decode_tok_s.text(),
            self.bytes_per_token / 1e6,
            self.share_of_copy * 100.0,
            self.kv_bytes as f64 / 1e6,
            self.live_slots,
            self.ratio(),
        )
    }

    fn json(&self, codec: Codec, case: &Case) -> Value {
        json!({
            "kv": codec.name(), "eviction": self.eviction, "ctx": self.ctx, "gen": case.n,
            "prefill_tok_s": self.prefill_tok_s.json(), "ttft_ms": self.ttft_ms.json(),
            "decode_tok_s": self.decode_tok_s.json(), "bytes_per_token": self.bytes_per_token,
            "share_of_copy": self.share_of_copy, "kv_bytes": self.kv_bytes,
            "live_slots": self.live_slots, "dense_slots": self.dense_slots, "ratio": self.ratio(),
        })
    }
}

struct Run {
    prefill: Duration,
    first_token: Duration,
    decode: Duration,
    kv_bytes: u64,
    live_slots: u64,
    /// Live slots in the middle of decoding, about.
    mean_live: f64,
}

/// Fills a sequence with `ctx` tokens, then generates `n`.
fn once<B: Backend>(runner: &mut Runner<B>, case: &Case) -> Result<Run> {
    let vocab = runner.config().vocab;
    let tokens: Vec<Token> = prompt(case.ctx, vocab);
    let seq = runner.create(case.eviction)?;
    let start = Instant::now();
    for step in tokens[..case.ctx - 1].chunks(runner.max_step()) {
        runner.feed(seq, step)?;
    }
    runner.wait();
    let prefill = start.elapsed();
    let decode = |runner: &mut Runner<B>, token: Token| {
        Ok::<_, anyhow::Error>(runner.decode(&[Decode { seq, token, sampling: &case.sampling, seed: SEED }])?[0])
    };
    let mut token = decode(runner, tokens[case.ctx - 1])?;
    let first_token = start.elapsed();
    let before = runner.cache.stats(runner.backend(), seq).live_slots;
    let start = Instant::now();
    for _ in 0..case.n {
        token = decode(runner, token)?;
    }
    let decode = start.elapsed();
    let live_slots = runner.cache.stats(runner.backend(), seq).live_slots;
    let pages = runner.cache.pool_stats(runner.backend()).used_pages;
    let kv_bytes = (pages * runner.cache.geometry().page_bytes()) as u64;
    runner.release(seq);
    Ok(Run { prefill, first_token, decode, kv_bytes, live_slots, mean_live: (before + live_slots) as f64 / 2.0 })
}

/// The same tokens for the same length.
fn prompt(len: usize, vocab: usize) -> Vec<Token> {
    (0..len).map(|i| (crate::sampler::uniform(SEED ^ 0x5eed, i as u64) * vocab as f32) as Token).collect()
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

/// Median and range of several runs.
#[derive(Clone, Copy)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let n = values.len();
        Self { median: (values[(n - 1) / 2] + values[n / 2]) / 2.0, min: values[0], max: values[n - 1] }
    }

    fn text(&self) -> String {
        format!("{:.1} ({:.0}..{:.0})", self.median, self.min, self.max)
    }

    fn json(&self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_small_run_agree() {
        let checkpoint = Checkpoint::random("demo").unwrap();
        let options = EngineOptions { context: Some(64), ..EngineOptions::new(Codec::Bf16) };
        let mut runner = Runner::new(Cpu::new(2), &checkpoint, &options, |_, _| {}).unwrap();
        let case = Case { ctx: 40, n: 4, eviction: false, sampling: SamplingParams::default() };
        let line = Line::measure(&mut runner, &checkpoint, &case, 2, 1e9).unwrap();
        let c = &checkpoint.config;
        assert_eq!(line.live_slots, (44 * c.n_layers * c.n_kv_heads) as u64);
        assert_eq!((line.dense_slots, line.ratio()), (line.live_slots, 1.0));
        assert!(line.decode_tok_s.min > 0.0 && line.decode_tok_s.min <= line.decode_tok_s.max);
        let slots = line.live_slots as f64 * runner.cache.geometry().slot_bytes() as f64;
        assert!(line.kv_bytes as f64 >= slots && line.bytes_per_token > weight_bytes(&checkpoint) as f64);
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
