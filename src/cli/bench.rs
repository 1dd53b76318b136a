//! `dmschat bench`: reads the flags, runs [`crate::bench`] on the device and prints the results.

mod share;

use super::args::{BenchArgs, Common};
use super::devices::{self, DeviceJob, DeviceKind, DeviceOptions, Target};
use super::machine::memory;
use super::output::{StatusLine, as_wrong_use, notice, out, wrong_use};
use super::{download, interrupts, spawn};
use crate::backend::cpu::Cpu;
use crate::bench::{self, Bench, Case, HEADER, Line, Resume, set_kept_share, set_offset};
use crate::checkpoint::Checkpoint;
use crate::codec::Codec;
use crate::config::{Adapter, Settings};
use crate::engine::{EngineOptions, FarOptions, Runner, host_bytes, weights_info};
use crate::policy::PolicyRequest;
use crate::protocol::{MAX_CONTEXT, SamplingParams};
use crate::quant::Weights;
use crate::quantize::convert::{self, Importance};
use crate::ui::text::count;
use crate::unicode;
use anyhow::{Context, Result};
use serde_json::json;
use std::io::IsTerminal;

/// Most sequences or threads.
const MAX_PARALLEL: usize = 4096;

pub fn run(settings: &Settings, args: &BenchArgs, common: &Common) -> Result<u8> {
    devices::check(settings)?;
    let (mut checkpoint, target) = match &args.shape {
        Some(shape) => {
            let target = Target::new(settings)?;
            (random(shape, settings, target).map_err(as_wrong_use)?, target)
        }
        None => {
            download::ensure(settings)?;
            spawn::open_or_say(settings).map_err(as_wrong_use)?
        }
    };
    interrupts::end_on_interrupt("interrupted")?;
    let json = common.json;
    let lists = Lists::new(settings, common, target)?;
    if args.parallel.contains(&0) || args.chains.contains(&0) || args.gen_tokens == 0 || args.runs == 0 {
        return Err(wrong_use("--batch, --width, --gen and --runs must be at least 1"));
    }
    let most_drafts = args.drafts.iter().max().copied().unwrap_or(0);
    let beside = args.gen_tokens.saturating_add(1 + most_drafts);
    let longest = args.ctx.iter().max().context("a context length")?.saturating_add(beside);
    check_sizes(args, longest)?;
    if !(0.0..=1.0).contains(&args.accept) {
        return Err(wrong_use("--accept is a share from 0 to 1"));
    }
    check_context(args, settings, &checkpoint, longest)?;
    if longest > checkpoint.config.context {
        checkpoint.config.extend_yarn(longest).map_err(as_wrong_use)?;
    }
    if target == Target::Cpu {
        check_memory(args, &checkpoint, settings.policy_request(), longest)?;
    }
    let threads = args.threads.unwrap_or(0);
    let offset = set_decisions(&mut checkpoint, args).map_err(as_wrong_use)?;
    let options = DeviceOptions { threads, ..DeviceOptions::from(settings) };
    if args.resume_cache {
        for &weights in &lists.weights {
            let checkpoint = &convert(&checkpoint, weights, args, target)?;
            let far = spawn::far(settings);
            target.run(options, ResumeJob { checkpoint, lists: &lists, args, far, offset, longest, json })?;
        }
        return Ok(0);
    }
    if json && args.share {
        return Err(wrong_use("--share prints a line for people; --json has its figures"));
    }
    if !json {
        out(&format!("{HEADER}\n"))?;
    }
    let mut progress = Cases { line: StatusLine::default(), done: 0, all: lists.count(args) };
    let (mut results, mut shared, mut weight_bytes, mut device) = (Vec::new(), Vec::new(), Vec::new(), None);
    for &weights in &lists.weights {
        let converted = convert(&checkpoint, weights, args, target)?;
        let (weights, info) = (converted.weights, weights_info(&converted));
        weight_bytes.push((weights.name(), bench::weight_bytes(&converted)));
        let bench = Bench {
            checkpoint: &converted,
            cases: lists.cases(args),
            codecs: lists.codecs.clone(),
            policy: lists.policy,
            far: spawn::far(settings),
            runs: args.runs,
            context: longest,
        };
        progress.show();
        let report = |codec, line: &Line| {
            progress.line.clear();
            if !json {
                out(&line.text(weights, codec))?;
            }
            progress.done += 1;
            progress.show();
            results.push(line.json(&info, codec));
            shared.push(share::result(weights, codec, line));
            Ok(())
        };
        device = Some(target.run(options, Job { bench, report })?);
    }
    progress.line.clear();
    let device = device.context("a format of the weights")?;
    if json {
        let per_token: serde_json::Map<_, _> =
            weight_bytes.iter().map(|&(name, bytes)| (name.to_owned(), bytes.into())).collect();
        let report = json!({
            "model": checkpoint.name, "device": device.name, "library": device.library, "runs": args.runs, "keep": args.keep,
            "offset": offset, "weight_bytes_per_token": per_token, "copy_bytes_per_s": device.copy_bytes_per_s, "results": results,
        });
        out(&format!("{}\n", unicode::escape_json(&serde_json::to_string_pretty(&report)?)))?;
    } else {
        let copy = device.copy_bytes_per_s / 1e9;
        let library = device.library.as_ref().map(|l| format!(", {l}")).unwrap_or_default();
        let mb: Vec<String> =
            weight_bytes.iter().map(|&(name, bytes)| format!("{:.1} MB ({name})", bytes as f64 / 1e6)).collect();
        out(&format!(
            "{}, {}{library}; {} of weights per token; memory copy {copy:.1} GB/s\n",
            checkpoint.name,
            device.name,
            mb.join(", ")
        ))?;
    }
    if args.share {
        out(&format!("\n{}\n", share::line(target, &device, &checkpoint.name, &shared)))?;
    }
    Ok(0)
}

/// A line on a terminal that says which case is measured.
struct Cases {
    line: StatusLine,
    done: usize,
    all: usize,
}

impl Cases {
    fn show(&mut self) {
        if std::io::stderr().is_terminal() && self.done < self.all {
            self.line.show(&format!("dmschat: measuring case {} of {}", self.done + 1, self.all));
        }
    }
}

/// Random weights of a known shape, and with `--adapter random-linear` or `random-mlp` a random
/// predictor, with `random-gates` random gates.
fn random(shape: &str, settings: &Settings, target: Target) -> Result<Checkpoint> {
    let config = match &settings.adapter {
        Adapter::File(name) => {
            let predicting = Checkpoint::shape_predicting(shape, &name.to_string_lossy())?;
            predicting.context("--adapter with --shape is random-linear, random-mlp or random-gates")?
        }
        Adapter::Auto | Adapter::None => Checkpoint::shape(shape)?,
    };
    target.random_weights(shape, config)
}

/// Sets the offset of the eviction decisions as `--keep-ratio` or `--offset` ask, and returns it if
/// one of them is given.
fn set_decisions(checkpoint: &mut Checkpoint, args: &BenchArgs) -> Result<Option<f32>> {
    if let Some(offset) = args.offset {
        set_offset(checkpoint, offset)?;
        return Ok(Some(offset));
    }
    let Some(keep) = args.keep else { return Ok(None) };
    let offset = set_kept_share(checkpoint, keep, || Cpu::new(args.threads.unwrap_or(0)))?;
    // In full, because an offset that is rounded keeps other tokens.
    notice(&format!(
        "about {:.1} % of the tokens beyond the window are kept at --offset {offset}, which repeats this without measuring",
        keep * 100.0
    ));
    Ok(Some(offset))
}

/// The checkpoint with its matrices in that format, in memory.
fn convert(checkpoint: &Checkpoint, weights: Weights, args: &BenchArgs, target: Target) -> Result<Checkpoint> {
    if weights.keeps_codes() && args.shape.is_some() {
        return checkpoint.with_random_codes(target.copies_weights());
    }
    let converted =
        convert::convert(checkpoint.clone(), weights, &Importance::new(), 0, |_, _| true).map_err(as_wrong_use)?;
    converted.kept.iter().for_each(|text| notice(text));
    Ok(converted)
}

/// A benchmark on any device; `report` gets each line.
struct Job<'a, F> {
    bench: Bench<'a>,
    report: F,
}

impl<F: FnMut(Codec, &Line) -> Result<()>> DeviceJob for Job<'_, F> {
    type Output = bench::Device;

    fn run<D: DeviceKind>(self, device: &D) -> Result<bench::Device> {
        self.bench.run(|| device.open(), self.report)
    }
}

/// Measures how long conversations take to resume.
struct ResumeJob<'a> {
    checkpoint: &'a Checkpoint,
    lists: &'a Lists,
    args: &'a BenchArgs,
    far: Option<FarOptions>,
    offset: Option<f32>,
    longest: usize,
    json: bool,
}

impl DeviceJob for ResumeJob<'_> {
    type Output = ();

    fn run<D: DeviceKind>(self, device: &D) -> Result<()> {
        // A folder of its own: files of killed writes are removed where caches are written.
        let folder = std::env::temp_dir().join(format!("dmschat-bench-{}", std::process::id()));
        let path = folder.join("bench.cache");
        for &codec in &self.lists.codecs {
            let (context, policy, far) = (Some(self.longest), self.lists.policy, self.far);
            let options = EngineOptions { context, max_seqs: 2, policy, far, ..EngineOptions::new(codec) };
            let mut runner = Runner::new(device.open()?, self.checkpoint, &options, |_, _| true)?;
            for (&ctx, &eviction) in
                self.args.ctx.iter().flat_map(|n| self.lists.eviction.iter().map(move |on| (n, on)))
            {
                let resume = Resume::measure(&mut runner, ctx.max(1), eviction, &path);
                let _ = std::fs::remove_dir_all(&folder);
                let resume = resume?;
                if self.json {
                    let mut row = resume.json();
                    row["model"] = self.checkpoint.name.as_str().into();
                    row["weights"] = json!(weights_info(self.checkpoint));
                    row["kv"] = codec.name().into();
                    row["eviction"] = eviction.into();
                    row["keep"] = self.args.keep.into();
                    row["offset"] = self.offset.into();
                    out(&format!("{}\n", unicode::escape_json(&row.to_string())))?;
                    continue;
                }
                let (weights, on) = (self.checkpoint.weights.name(), if eviction { "on" } else { "off" });
                let case = format!("{weights}, {}, eviction {on}, ", codec.name());
                out(&(case + &resume.text()))?;
            }
        }
        Ok(())
    }
}

/// Fails for more tokens than the context of a model or `--ctx-size` allows. Random weights have
/// any context.
fn check_context(args: &BenchArgs, settings: &Settings, checkpoint: &Checkpoint, longest: usize) -> Result<()> {
    let context = settings.ctx_size.unwrap_or(0).max(checkpoint.config.context);
    if args.shape.is_some() || longest <= context {
        return Ok(());
    }
    let (most, context) = (args.ctx.iter().max().copied().unwrap_or(0), count(context as u64));
    let name = &checkpoint.name;
    Err(wrong_use(format!(
        "--ctx {most} with --gen {} does not fit into the context of {name}, {context} tokens; --ctx-size extends it",
        args.gen_tokens
    )))
}

fn check_sizes(args: &BenchArgs, longest: usize) -> Result<()> {
    let many = args.parallel.iter().chain(&args.chains).chain(&args.threads).any(|&n| n > MAX_PARALLEL);
    if longest > MAX_CONTEXT || many {
        return Err(wrong_use(format!(
            "--ctx plus --gen is at most {MAX_CONTEXT} tokens, --batch, --width and --threads at most {MAX_PARALLEL}"
        )));
    }
    Ok(())
}

/// Fails if the host has not enough memory for tables and scratch.
fn check_memory(args: &BenchArgs, checkpoint: &Checkpoint, policy: PolicyRequest, longest: usize) -> Result<()> {
    let max_seqs = args.parallel().chain(args.chains.iter().copied()).max().unwrap_or(1);
    let options = EngineOptions { max_seqs, policy, ..EngineOptions::new(Codec::default()) };
    let needed = host_bytes(&checkpoint.config, &options, longest);
    match memory("MemAvailable:") {
        Some(free) if needed > free => {
            let mb = |bytes: u64| bytes as f64 / 1e6;
            Err(wrong_use(format!(
                "{max_seqs} sequences of {longest} tokens need {:.0} MB besides weights and cache, but only {:.0} MB are free",
                mb(needed),
                mb(free)
            )))
        }
        _ => Ok(()),
    }
}

/// The values of `--eviction`, `--kv` and `--weights`, and the sampling parameters.
struct Lists {
    eviction: Vec<bool>,
    codecs: Vec<Codec>,
    policy: PolicyRequest,
    weights: Vec<Weights>,
    sampling: SamplingParams,
}

impl Lists {
    fn new(settings: &Settings, common: &Common, target: Target) -> Result<Self> {
        let eviction = common
            .eviction
            .as_ref()
            .map_or(vec![settings.eviction.unwrap_or(true)], |list| list.0.iter().map(|on| on.0).collect());
        let kv = common.kv.as_ref().map_or(vec![settings.kv], |list| list.0.clone());
        // Greedy decoding with random weights soon repeats itself; temperature 1 does not.
        let sampling = settings.sampling.over(&SamplingParams { temperature: 1.0, ..SamplingParams::default() });
        target.check_kv(&kv)?;
        let weights = common.weights.as_ref().map_or(vec![settings.weights], |list| list.0.clone());
        // Memory decides nothing here: random weights keep their format.
        let weights = weights.into_iter().map(|w| w.asked().unwrap_or_default()).collect();
        let policy = settings.policy_request();
        Ok(Self { eviction, policy, codecs: kv.into_iter().map(|kv| target.codec(kv)).collect(), weights, sampling })
    }

    /// Number of cases, with every codec and format of the weights.
    fn count(&self, args: &BenchArgs) -> usize {
        self.cases(args).len() * self.codecs.len() * self.weights.len()
    }

    /// Every eviction setting with every context and number of sequences.
    fn cases(&self, args: &BenchArgs) -> Vec<Case> {
        let mut cases = Vec::new();
        for &eviction in &self.eviction {
            for &ctx in &args.ctx {
                let chains = args.chains.iter().map(|&n| (n, true));
                let all = args.parallel().map(|n| (n, false)).chain(chains);
                for ((parallel, forks), &drafts) in all.flat_map(|of| args.drafts.iter().map(move |n| (of, n))) {
                    cases.push(Case {
                        drafts,
                        accept: args.accept,
                        ctx,
                        n: args.gen_tokens,
                        parallel,
                        forks,
                        eviction,
                        sampling: self.sampling.clone(),
                        presence: args.presence,
                    });
                }
            }
        }
        cases
    }
}
