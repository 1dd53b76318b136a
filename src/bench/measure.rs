//! Measures one case of a benchmark: fills sequences, decodes from them, repeats, and summarizes.

use super::{SEED, prompt, weight_bytes};
use crate::backend::Measure;
use crate::cache::SeqId;
use crate::checkpoint::Checkpoint;
use crate::codec::Codec;
use crate::engine::{Decode, Runner, Verify};
use crate::policy::Far;
use crate::protocol::{LaneFilter, SamplingParams, Token, WeightsInfo};
use crate::quant::Weights;
use crate::sampler::uniform;
use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Header of the table whose rows [`Line::text`] gives.
pub const HEADER: &str = "weights  kv    eviction    ctx  seqs   prefill tok/s           ttft ms   decode tok/s            MB/token  of copy     KV MB   live slots  ratio  host us  device MB  of one  drafts  tokens/step";

/// Lengths and settings at which speed is measured.
#[derive(Clone)]
pub struct Case {
    /// Tokens in each sequence before decoding; 0 decodes from the first token.
    pub ctx: usize,
    /// Tokens that each sequence decodes.
    pub n: usize,
    /// Sequences that decode in one step.
    pub parallel: usize,
    /// Whether they are forks of one prompt, as chains are, instead of having a prompt each.
    pub forks: bool,
    pub eviction: bool,
    pub sampling: SamplingParams,
    /// Whether the presence of every token is read while decoding, as often as the memory page of
    /// the chat does.
    pub presence: bool,
    /// Drafts that each sequence tries in a step, and the chance of each to be right.
    pub drafts: usize,
    pub accept: f64,
}

/// Interval between two reads of presence.
const PRESENCE_EVERY: Duration = Duration::from_millis(200);

/// Results of one case over several runs.
pub struct Line {
    case: Case,
    /// Tokens prefilled per second; `None` without a prefill.
    pub prefill_tok_s: Option<Spread>,
    /// Time until every sequence has its first token.
    ttft_ms: Spread,
    /// Tokens decoded per second by all sequences together.
    pub decode_tok_s: Spread,
    pub kv_bytes: u64,
    pub live_slots: u64,
    pub dense_slots: u64,
    pub bytes_per_token: f64,
    share_of_copy: f64,
    /// Host time between two steps; `None` on the CPU backend, where the host computes.
    host_us: Option<f64>,
    pub device_bytes: Option<u64>,
    /// Decode speed relative to one sequence, if that was measured before.
    of_one: Option<f64>,
    /// Mean tokens of a sequence in a step.
    tokens_per_step: f64,
    far: Option<FarFigures>,
}

/// Cost of far pages while decoding, in one run. Means are over lanes that keep far rows.
#[derive(Clone, Copy, Serialize)]
struct FarFigures {
    /// Pages that a lane reads again.
    pages: usize,
    /// Far rows of a lane, and how many of them are near, which attention reads.
    rows: f64,
    near: f64,
    bytes: u64,
    /// Pages fetched per lane and token.
    fetched: f64,
    /// Mean time of a choice for one sequence, in milliseconds.
    choice_ms: f64,
}

impl Case {
    /// Rows of a step that tries drafts; 0 where none does.
    pub fn draft_rows(&self) -> usize {
        if self.drafts > 0 { self.parallel * (1 + self.drafts) } else { 0 }
    }

    /// Number of prompts that are prefilled.
    fn prompts(&self) -> usize {
        if self.forks { 1 } else { self.parallel }
    }
}

impl Line {
    /// Measures `case` with `runs` runs after a warm-up run. `copy_bytes_per_s`: the device's copy
    /// speed.
    pub fn measure<B: Measure>(
        runner: &mut Runner<B>,
        checkpoint: &Checkpoint,
        case: &Case,
        runs: usize,
        copy_bytes_per_s: f64,
    ) -> Result<Self> {
        // Warm-up: page faults of the weights, scratch, the pool, CPU clocks, captured graphs.
        once(runner, &Case { ctx: case.ctx.min(runner.max_step()), n: case.n.min(16), ..case.clone() })?;
        let runs = (0..runs).map(|_| once(runner, case)).collect::<Result<Vec<_>>>()?;
        runner.trim();
        let per_s = |n: usize, time: Duration| n as f64 / time.as_secs_f64();
        let decode_tok_s = Spread::of(runs.iter().map(|r| per_s(case.parallel * case.n, r.decode)));
        let last = runs.last().context("a run")?;
        let geometry = runner.cache.geometry();
        let tokens = case.ctx.max(1) + case.n;
        let dense_slots: usize = geometry.lanes().map(|lane| geometry.dense_slots(lane.layer, tokens)).sum();
        let bytes_per_step = weight_bytes(checkpoint) as f64 + last.mean_live;
        let bytes_per_token = bytes_per_step / case.parallel as f64;
        let prefilled = case.prompts() * case.ctx.saturating_sub(1);
        Ok(Self {
            prefill_tok_s: (prefilled > 0).then(|| Spread::of(runs.iter().map(|r| per_s(prefilled, r.prefill)))),
            ttft_ms: Spread::of(runs.iter().map(|r| r.first_token.as_secs_f64() * 1e3)),
            share_of_copy: decode_tok_s.median * bytes_per_token / copy_bytes_per_s,
            decode_tok_s,
            kv_bytes: last.kv_bytes,
            live_slots: last.live_slots,
            dense_slots: (case.parallel * dense_slots) as u64,
            bytes_per_token,
            host_us: last.device_bytes.map(|_| Spread::of(runs.iter().map(|r| r.host_us)).median),
            device_bytes: runs.iter().filter_map(|r| r.device_bytes).max(),
            of_one: None,
            tokens_per_step: case.n as f64 / last.steps as f64,
            far: last.far,
            case: case.clone(),
        })
    }

    /// Compares the decode speed with the last line in `lines` of the same case with one sequence.
    pub fn compare_with_one<'a>(&mut self, lines: impl IntoIterator<Item = &'a Line>) {
        let key = |case: &Case| (case.ctx, case.n, case.eviction);
        let one = |line: &&Line| line.case.parallel == 1 && line.case.drafts == 0 && key(&line.case) == key(&self.case);
        let one = lines.into_iter().filter(one).last();
        self.of_one = one.map(|one| self.decode_tok_s.median / one.decode_tok_s.median);
    }

    /// Results of a measurement.
    pub fn case(&self) -> &Case {
        &self.case
    }

    /// Compression ratio: slots of a dense cache per live slot.
    pub fn ratio(&self) -> f64 {
        self.dense_slots as f64 / self.live_slots as f64
    }

    /// One row of the table under [`HEADER`].
    pub fn text(&self, weights: Weights, codec: Codec) -> String {
        let row = format!(
            "{:<7}  {:<5} {:<8} {:>6} {:>5}   {:<21} {:>9.1}   {:<21} {:>10.1}  {:>6.1} %  {:>8.1}  {:>11}  {:>5.2}  {:>7}  {:>9}  {:>6}  {:>6}  {:>11.2}\n",
            weights.name(),
            codec.name(),
            if self.case.eviction { "on" } else { "off" },
            self.case.ctx,
            self.case.parallel,
            self.prefill_tok_s.map_or("-".to_owned(), |s| s.text()),
            self.ttft_ms.median,
            self.decode_tok_s.text(),
            self.bytes_per_token / 1e6,
            self.share_of_copy * 100.0,
            self.kv_bytes as f64 / 1e6,
            self.live_slots,
            self.ratio(),
            self.host_us.map_or("-".to_owned(), |us| format!("{us:.1}")),
            self.device_bytes.map_or("-".to_owned(), |bytes| format!("{:.0}", bytes as f64 / 1e6)),
            self.of_one.map_or("-".to_owned(), |times| format!("{times:.2}x")),
            self.case.drafts,
            self.tokens_per_step,
        );
        let far = self.far.map_or_else(String::new, |far| {
            let FarFigures { pages, rows, near, fetched, choice_ms, .. } = far;
            format!(
                "         far: {pages} pages; at the end {near:.0} of {rows:.0} far rows a head are read; {fetched:.3} pages fetched a head and token; {choice_ms:.2} ms a choice\n"
            )
        });
        row + &far
    }

    /// One object of `bench --json`'s `results`.
    pub fn json(&self, weights: &WeightsInfo, codec: Codec) -> Value {
        json!({
            "weights": weights, "kv": codec.name(), "eviction": self.case.eviction, "ctx": self.case.ctx, "gen": self.case.n,
            "parallel": self.case.parallel, "forks": self.case.forks, "of_one": self.of_one, "prefill_tok_s": self.prefill_tok_s,
            "ttft_ms": self.ttft_ms, "decode_tok_s": self.decode_tok_s,
            "bytes_per_token": self.bytes_per_token, "share_of_copy": self.share_of_copy,
            "kv_bytes": self.kv_bytes, "live_slots": self.live_slots, "dense_slots": self.dense_slots,
            "ratio": self.ratio(), "host_us_between_steps": self.host_us, "device_bytes": self.device_bytes,
            "drafts": self.case.drafts, "accept": self.case.accept, "tokens_per_step": self.tokens_per_step,
            "far": self.far,
        })
    }
}

struct Run {
    prefill: Duration,
    first_token: Duration,
    decode: Duration,
    kv_bytes: u64,
    live_slots: u64,
    /// Bytes of live slots halfway through decoding, approximately.
    mean_live: f64,
    /// Median over the steps.
    host_us: f64,
    steps: usize,
    device_bytes: Option<u64>,
    far: Option<FarFigures>,
}

/// One run: prefills every sequence with its own `ctx` tokens, or forks a prefilled one, then
/// generates `n` tokens in each.
fn once<B: Measure>(runner: &mut Runner<B>, case: &Case) -> Result<Run> {
    let vocab = runner.config().vocab;
    let mut seqs = Vec::new();
    for _ in 0..case.prompts() {
        seqs.push(runner.create(case.eviction)?);
    }
    let prompts: Vec<Vec<Token>> = (0..seqs.len()).map(|i| prompt(case.ctx.max(1), vocab, i as u64)).collect();
    let start = Instant::now();
    for (&seq, prompt) in seqs.iter().zip(&prompts) {
        runner.feed_prompt(seq, &prompt[..prompt.len() - 1])?;
    }
    while seqs.len() < case.parallel {
        seqs.push(runner.fork(seqs[0])?);
    }
    runner.backend().synchronize();
    let prefill = start.elapsed();
    let last = |i: usize| prompts[i % prompts.len()].last().copied();
    let mut tokens: Vec<Token> = (0..seqs.len()).filter_map(last).collect();
    tokens = step(runner, case, &seqs, &tokens, 0)?.0;
    let first_token = start.elapsed();
    let live = |runner: &Runner<B>| -> u64 {
        seqs.iter().map(|&seq| runner.cache.stats(runner.backend(), seq).live_slots).sum()
    };
    let live_bytes = |runner: &Runner<B>| -> u64 {
        let stats = seqs.iter().map(|&seq| runner.cache.stats(runner.backend(), seq));
        stats.map(|stats| stats.bytes(runner.cache.geometry())).sum()
    };
    let before = live_bytes(runner);
    let (start, mut host) = (Instant::now(), Vec::with_capacity(case.n));
    let mut read = start;
    let (mut steps, mut left) = (0, case.n);
    let mut choices = Choices::default();
    while left > 0 {
        if case.presence && read.elapsed() >= PRESENCE_EVERY {
            read = Instant::now();
            runner.cache.presence(runner.backend(), seqs[0], LaneFilter::default(), 0);
        }
        let began = Instant::now();
        // The same number in every sequence. A step does not cross a block's end, where pages are
        // chosen.
        let most = if runner.keeps_far() { Far::ANSWER_BLOCK - 1 - (case.n - left) % Far::ANSWER_BLOCK } else { left };
        let right = (0..case.drafts.min(left - 1).min(most))
            .take_while(|i| uniform(SEED, (steps << 8 | i) as u64) < case.accept as f32);
        let accepted;
        (tokens, accepted) = step(runner, case, &seqs, &tokens, right.count())?;
        (steps, left) = (steps + 1, left - accepted);
        choices.after(runner, &seqs, case.n - left);
        host.push((began.elapsed() - runner.waited()).as_secs_f64() * 1e6);
    }
    let decode = start.elapsed();
    let (live_slots, live_bytes) = (live(runner), live_bytes(runner));
    let pages = runner.cache.pool_stats(runner.backend()).used_pages;
    let device_bytes = runner.backend().device_bytes();
    let far = choices.figures(runner, &seqs, case.n);
    seqs.into_iter().for_each(|seq| runner.release(seq));
    Ok(Run {
        prefill,
        first_token,
        decode,
        kv_bytes: (pages * runner.cache.geometry().page_bytes()) as u64,
        live_slots,
        mean_live: (before + live_bytes) as f64 / 2.0,
        host_us: Spread::of(host.into_iter()).median,
        device_bytes,
        steps,
        far,
    })
}

/// Chooses far pages while decoding, and counts the cost.
#[derive(Default)]
struct Choices {
    /// Tokens of each sequence up to its last choice.
    chosen: usize,
    fetched: u64,
    number: usize,
    time: Duration,
}

impl Choices {
    /// Lets the sequences choose once `fed` tokens complete a block.
    fn after<B: Measure>(&mut self, runner: &mut Runner<B>, seqs: &[SeqId], fed: usize) {
        if !runner.keeps_far() || fed < self.chosen + Far::ANSWER_BLOCK {
            return;
        }
        self.chosen += Far::ANSWER_BLOCK;
        let start = Instant::now();
        for &seq in seqs {
            self.fetched += runner.choose(seq, Far::ANSWER_BLOCK).unwrap_or(0);
            self.number += 1;
        }
        self.time += start.elapsed();
    }

    fn figures<B: Measure>(&self, runner: &Runner<B>, seqs: &[SeqId], tokens: usize) -> Option<FarFigures> {
        let geometry = runner.cache.geometry();
        let pages = geometry.kept_far()?.pages;
        let counts: Vec<_> = seqs.iter().map(|&seq| runner.far_counts(seq)).collect();
        let lanes = (geometry.deciding_lanes().count() * seqs.len()) as f64;
        Some(FarFigures {
            pages,
            rows: counts.iter().map(|c| c.rows).sum::<u64>() as f64 / lanes,
            near: counts.iter().map(|c| c.near).sum::<u64>() as f64 / lanes,
            bytes: runner.far_bytes(),
            fetched: self.fetched as f64 / lanes / tokens as f64,
            choice_ms: self.time.as_secs_f64() * 1e3 / self.number.max(1) as f64,
        })
    }
}

/// Runs a step in which the first `right` drafts count as correct, whatever the model says. Returns
/// the tokens that follow, and the number of tokens that each sequence was fed.
fn step<B: Measure>(
    runner: &mut Runner<B>,
    case: &Case,
    seqs: &[SeqId],
    tokens: &[Token],
    right: usize,
) -> Result<(Vec<Token>, usize)> {
    let one = |(i, (&seq, &token))| Decode { seq, token, sampling: &case.sampling, seed: SEED + i as u64 };
    let batch: Vec<Decode<'_>> = seqs.iter().zip(tokens).enumerate().map(one).collect();
    if case.drafts == 0 {
        return Ok((runner.decode(&batch)?, 1));
    }
    let drafts: Vec<Token> = tokens.iter().cycle().take(case.drafts).copied().collect();
    let batch: Vec<Verify<'_>> = batch.into_iter().map(|decode| Verify { decode, drafts: &drafts }).collect();
    let sampled = runner.verify(&batch)?;
    seqs.iter().for_each(|&seq| (0..=right).for_each(|_| runner.accept(seq)));
    runner.commit();
    let next = sampled.into_iter().map(|rows| rows[right]).collect::<Result<_, _>>()?;
    Ok((next, 1 + right))
}

/// Median and range over several runs.
#[derive(Clone, Copy, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let n = values.len();
        Self { median: (values[(n - 1) / 2] + values[n / 2]) / 2.0, min: values[0], max: values[n - 1] }
    }

    fn text(&self) -> String {
        format!("{:.1} ({:.0}..{:.0})", self.median, self.min, self.max)
    }
}
