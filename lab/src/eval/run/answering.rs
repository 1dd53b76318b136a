//! Answers the open problems of a run. The model is loaded once; each policy has its own cache.

use super::progress::Progress;
use super::{Run, TaskProblems};
use crate::eval::grid::Setting;
use crate::eval::latency::Latency;
use crate::eval::matmul::matmul_flops_per_s;
use crate::eval::record::{Record, Store};
use crate::eval::sample::{Options, Sampled, sample};
use anyhow::Result;
use dmschat::backend::Measure;
use dmschat::bench;
use dmschat::cache::CacheError;
use dmschat::checkpoint::{Checkpoint, ModelConfig};
use dmschat::cli::interrupts;
use dmschat::cli::output::{self, notice, wrong_use};
use dmschat::cli::spawn::{ModelJob, far, with_options};
use dmschat::config::Settings;
use dmschat::engine::{EngineOptions, Runner, StepError, measure_dials};
use dmschat::policy::{DialTable, Policy, PolicyKind};
use dmschat::protocol::Token;
use dmschat::random::mix64;
use std::path::Path;
use std::time::Instant;

/// Tokens of the text on which the dial is measured need a context of this.
const DIAL_CONTEXT: usize = 1024;

/// A task under a setting.
type Item<'a> = (&'a TaskProblems, &'a Setting);

pub fn answer_all(settings: &Settings, run: &Run, out: &Path, store: &mut Store) -> Result<()> {
    // Settings one after another, each with all tasks, because policies without a budget share one
    // cache.
    let n_settings = run.tasks.iter().map(|task| task.settings.len()).max().unwrap_or(0);
    let items =
        (0..n_settings).flat_map(|i| run.tasks.iter().filter_map(move |task| Some((task, task.settings.get(i)?))));
    let items: Vec<Item<'_>> = items.collect();
    let answered = |store: &Store, (task, setting): &Item<'_>| {
        let name = setting.name();
        (0..task.problems.len()).filter(|i| store.get(&task.name, &name, *i).is_some()).count()
    };
    let total = items.iter().map(|item| work(run, item) * item.0.problems.len() as f64).sum();
    let before = items.iter().map(|item| work(run, item) * answered(store, item) as f64).sum();
    let mut progress = Progress::new(total, before);
    let open: Vec<Item<'_>> = items.into_iter().filter(|item| answered(store, item) < item.0.problems.len()).collect();
    if open.is_empty() {
        return Ok(());
    }
    interrupts::end_on_interrupt("interrupted; the same command continues from here")?;
    let mut slow: Vec<String> = open.iter().filter_map(|(_, setting)| setting.policy.slow_prefill()).collect();
    slow.dedup();
    slow.iter().for_each(|text| notice(text));
    let rows = run.parallel.max(run.width());
    let context = run.longest.max(DIAL_CONTEXT);
    let adjust = |options: EngineOptions, _: &ModelConfig| {
        let context = Some(options.context.map_or(context, |most| most.min(context)));
        EngineOptions { max_seqs: rows, context, far: far(settings), ..options }
    };
    let mut settings = settings.clone();
    settings.policy = PolicyKind::Auto;
    with_options(&settings, adjust, Answering { run, items: open, rows, out, store, progress: &mut progress })?;
    progress.clear();
    Ok(())
}

/// Estimated work of a problem in tokens.
fn work(run: &Run, (task, setting): &Item<'_>) -> f64 {
    let length = setting.length.or(run.axes.lengths.last().copied()).unwrap_or(0);
    let prompt = task.prompts.first().map_or(0, |p| p.tokens.len());
    prompt as f64 / 8.0 + (run.width() * length) as f64
}

struct Answering<'a> {
    run: &'a Run,
    items: Vec<Item<'a>>,
    /// Most chains in one step.
    rows: usize,
    /// The folder of the run.
    out: &'a Path,
    store: &'a mut Store,
    progress: &'a mut Progress,
}

impl ModelJob for Answering<'_> {
    type Output = u8;
    fn run<B: Measure>(self, runner: &mut Runner<B>, checkpoint: &Checkpoint) -> Result<u8> {
        let Self { run, items, rows, out, store, progress } = self;
        check_width(runner, run.width())?;
        latency(runner, checkpoint)?.write(out)?;
        let mut dials = None;
        for item in items {
            runner.set_policy(item.1.policy)?;
            let dial = dial(runner, run, &item, &mut dials)?;
            let size = (rows / run.width()).max(1);
            let problems: Vec<usize> = (0..item.0.problems.len()).collect();
            for group in problems.chunks(size) {
                let name = item.1.name();
                if group.iter().all(|i| store.get(&item.0.name, &name, *i).is_some()) {
                    continue;
                }
                let records = answer(runner, run, &item, group, dial, progress)?;
                store.add(records)?;
                progress.done(work(run, &item) * group.len() as f64);
            }
        }
        Ok(output::OK)
    }
}

/// Refuses chains whose first tokens alone do not fit into memory.
fn check_width<B: Measure>(runner: &Runner<B>, width: usize) -> Result<()> {
    match runner.cache.most_sequences(runner.backend()).filter(|&fit| fit < width) {
        Some(fit) => Err(wrong_use(format!("--width {width}: memory holds the first tokens of {fit} chains only"))),
        None => Ok(()),
    }
}

/// Measures the machine.
fn latency<B: Measure>(runner: &Runner<B>, checkpoint: &Checkpoint) -> Result<Latency> {
    let (b, g) = (runner.backend(), runner.cache.geometry());
    Ok(Latency {
        copy_bytes_per_s: b.copy_bytes_per_s()?,
        matmul_flops_per_s: matmul_flops_per_s(b)?,
        weight_bytes: bench::weight_bytes(checkpoint),
        // A multiplication and an addition for each weight.
        token_flops: 2.0 * bench::read_by_token(checkpoint).map(|t| t.len() as f64).sum::<f64>(),
        slot_bytes: g.slot_bytes() as u64,
        // Each query head multiplies and adds each channel of K, and of V.
        slot_flops: (4 * g.head_dim * g.n_q_heads / g.n_kv_heads) as f64,
    })
}

/// Threshold of decisions under this setting. It is 0, as trained, also for dms+quest, whose ratio
/// is Quest's budget.
fn dial<B: Measure>(runner: &mut Runner<B>, run: &Run, item: &Item<'_>, dials: &mut Option<DialTable>) -> Result<f32> {
    if !matches!(item.1.policy, Policy::Dms(_)) {
        return Ok(0.0);
    }
    let table = match dials {
        Some(table) => table,
        None => dials.insert(measure_dials(runner, run.language.tokenizer()).map_err(unmeasured)?),
    };
    Ok(table.setting(item.1.cr))
}

/// Answers a group of problems in one batch.
fn answer<B: Measure>(
    runner: &mut Runner<B>,
    run: &Run,
    &(task, setting): &Item<'_>,
    group: &[usize],
    dial: f32,
    progress: &mut Progress,
) -> Result<Vec<Record>> {
    let own = setting.length.map(|length| vec![length]);
    let lengths = own.as_deref().unwrap_or(&run.axes.lengths);
    let options = Options {
        width: run.width(),
        max_tokens: lengths.last().copied().unwrap_or(0),
        lengths,
        widths: &run.axes.widths,
        sampling: &run.sampling,
        eos: &run.language.eos,
        eviction: setting.policy != Policy::Dense,
        dial,
    };
    let problems: Vec<(&[Token], u64)> = group
        .iter()
        .map(|&i| (&*task.prompts[i].tokens, mix64(run.axes.seed.wrapping_add(mix64(i as u64))) >> 32))
        .collect();
    let started = Instant::now();
    let doing = format!("{}, {}", task.name, setting.name());
    let sampled = match sample(runner, &problems, &options, |n| progress.step(&doing, n)) {
        Ok(sampled) => sampled,
        Err(error) => {
            let longest = problems.iter().map(|(prompt, _)| prompt.len()).max().unwrap_or(0) + options.max_tokens;
            let fit = chains_that_fit(runner, longest);
            return Err(explained(error, group.len() > 1, options.width > 1, fit));
        }
    };
    let seconds = started.elapsed().as_secs_f64() / group.len() as f64;
    let decode_seconds: Vec<f64> = sampled.seconds.iter().map(|s| s / group.len() as f64).collect();
    let record = |(&i, sampled): (&usize, Sampled)| {
        let (prompt, goal) = (&task.prompts[i], &task.problems[i].goal);
        let read = |tokens: &[Token]| {
            let (reasoning, answer) = run.language.reply(tokens, prompt.thinks)?;
            let answer = goal.read(&answer, &reasoning);
            let right = answer.as_deref().is_some_and(|answer| goal.is_right(answer));
            Ok((answer, right))
        };
        let names = [task.name.as_str(), &setting.name()];
        Ok(Record {
            seconds,
            decode_seconds: decode_seconds.clone(),
            ..Record::new(names, i, prompt.tokens.len(), sampled, read)?
        })
    };
    group.iter().zip(sampled.problems).map(record).collect()
}

/// Chains of `tokens` tokens that fit in memory if they keep everything and share nothing.
fn chains_that_fit<B: Measure>(runner: &Runner<B>, tokens: usize) -> Option<usize> {
    let g = runner.cache.geometry();
    let pages = tokens.min(runner.context()).div_ceil(g.page_slots) * g.n_layers * g.n_kv_heads;
    Some(runner.cache.free_pages(runner.backend())? / pages.max(1))
}

/// The cache's refusal of a step or a sequence, if that is what failed.
fn refusal(error: &anyhow::Error) -> Option<&CacheError> {
    error.chain().find_map(|e| match e.downcast_ref() {
        Some(StepError::Cache(why)) => Some(why),
        _ => e.downcast_ref(),
    })
}

/// Suggests a remedy if chains do not fit in memory. `several`: problems decode together. `wide`:
/// so do the chains of a problem.
fn explained(error: anyhow::Error, several: bool, wide: bool, fit: Option<usize>) -> anyhow::Error {
    let Some(why) = refusal(&error) else { return error };
    let help = [
        (matches!(why, CacheError::Limit { .. }), "a larger --kv-limit"),
        (several, "a smaller --batch"),
        (wide, "a smaller --width"),
        (true, "a shorter --length"),
    ];
    let help: Vec<&str> = help.into_iter().filter(|(helps, _)| *helps).map(|(_, text)| text).collect();
    let fit = fit.map_or(String::new(), |fit| format!(" ({fit} chains of this length fit if they keep everything)"));
    wrong_use(format!("{error:#}; give {}{fit}", help.join(" or ")))
}

/// Suggests a remedy if the dial of dms cannot be measured. The number and length of chains do not
/// matter for that.
fn unmeasured(error: anyhow::Error) -> anyhow::Error {
    let help = match refusal(&error) {
        Some(CacheError::Limit { .. }) => "give a larger --kv-limit or a smaller --kv format",
        Some(_) => "give a smaller --kv format",
        None => return error.context("the dial of --policy dms cannot be measured"),
    };
    wrong_use(format!("measuring the dial of --policy dms stores all of a sample text: {error:#}; {help}"))
}
