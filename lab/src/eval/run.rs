//! `dmslab eval`: accuracy of a model under several policies against what they read and store.

mod answering;
mod progress;

use super::problem_file;
use crate::eval::grid::{Axes, Setting, retention, rows};
use crate::eval::language::{Language, Prompt};
use crate::eval::latency::{self, Latency};
use crate::eval::problem::Problem;
use crate::eval::record::{RESULTS, Record, Store};
use crate::eval::report;
use crate::eval::tasks::{FileProblems, Task, read_file};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueHint};
use dmschat::checkpoint::Checkpoint;
use dmschat::cli::args::Common;
use dmschat::cli::devices::{self, Target};
use dmschat::cli::output::{self, as_wrong_use, wrong_use};
use dmschat::cli::{download, spawn};
use dmschat::config::{Settings, Width};
use dmschat::engine::default_sampling;
use dmschat::policy::{Budget, PolicyKind, Trained};
use dmschat::protocol::{MAX_WIDTH, SamplingParams, count};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Most problems of a task, and tokens of a chain.
const MAX_PROBLEMS: usize = 100_000;
const MAX_LENGTH: usize = 1 << 20;
/// Least budgets: a page, and the pages that a query reads of [`PolicyKind::Quest`].
const FEWEST_SLOTS: usize = 16;
const FEWEST_READ: usize = 48;

/// `--policy` and `--width` accept several values here, such as `dense,dms` and `1,2,4,8`: a margin
/// is over the first policy, and the answers of a problem's chains vote. `--seed` makes the
/// problems too.
///
/// A stopped run continues when it is started again with the same arguments.
#[derive(Args, Debug)]
pub struct EvalArgs {
    /// Tasks: niah-1k to niah-8k, vt-1k to vt-8k, sum, equation, sort, recall, recall-4k,
    /// arithmetic, gsm, countdown, subset, factor, path; or niah, vt, search for all of a kind
    #[arg(long, value_name = "TASK,...", value_delimiter = ',')]
    pub task: Vec<String>,
    /// Problems of your own: JSON lines of {"task", "messages": [{"role", "content"}, ...],
    /// "expected"}
    ///
    /// Without --out, one JSON object is printed for each answer, and nothing is compared.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub problems: Option<PathBuf>,
    /// Folder of the results: results.json, of which lab/report.py makes frontiers, CSV and plots,
    /// and the file that a stopped run goes on from
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
    /// The values of `--keep-ratio`.
    #[arg(skip)]
    pub ratios: Vec<f64>,
    /// Longest chains, in tokens with their reasoning; they must fit in the context behind a prompt
    #[arg(long, value_name = "TOKENS,...", value_delimiter = ',', default_value = "512")]
    pub length: Vec<usize>,
    /// Problems of each task
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub n: usize,
    /// Most chains that decode in one step
    #[arg(long = "batch", alias = "parallel", value_name = "N", default_value_t = 32)]
    pub parallel: usize,
}

pub fn run(settings: &Settings, args: &EvalArgs, common: &Common) -> Result<u8> {
    let Some(out) = &args.out else {
        return match &args.problems {
            Some(file) if args.task.is_empty() => problem_file::run(settings, file),
            _ => Err(wrong_use("eval needs a folder for its results: --out DIR")),
        };
    };
    ensure!(
        common.early_stop.is_none() && common.check.is_none(),
        wrong_use("--early-stop and --check are for a chat: eval lets every chain end, and checks answers itself")
    );
    ensure!(
        common.budget.is_none() && common.eviction.is_none(),
        wrong_use("--budget and --eviction are not for eval: use --policy and --keep-ratio")
    );
    let run = Run::new(settings, args, common)?;
    let mut store = Store::open(out, &run.header(settings, args)?, &RESULT_FILES).map_err(as_wrong_use)?;
    answering::answer_all(settings, &run, out, &mut store)?;
    let results = Results::of(&run, &store, Latency::read(out))?;
    results.write(out)?;
    if common.json {
        output::out_json(&results.json)?;
    } else {
        output::out(&output::visible(&report::table(&results.rows)))?;
        let out = out.display();
        output::notice(&format!("results are in {out}; python3 lab/report.py {out} shows frontiers and margins"));
    }
    Ok(output::OK)
}

/// A task with its problems, rendered.
struct TaskProblems {
    name: String,
    problems: Vec<Problem>,
    prompts: Vec<Prompt>,
    /// The same policies, ratios and lengths for each task.
    settings: Vec<Setting>,
}

/// All that is to be answered.
struct Run {
    tasks: Vec<TaskProblems>,
    policies: Vec<PolicyKind>,
    axes: Axes,
    sampling: SamplingParams,
    language: Language,
    /// Tokens of the longest prompt and the longest chain.
    longest: usize,
    parallel: usize,
    target: Target,
    model: String,
    fingerprint: String,
    /// Digest of the file of problems.
    file: Option<String>,
}

impl Run {
    fn new(settings: &Settings, args: &EvalArgs, common: &Common) -> Result<Self> {
        let (lengths, widths) = (
            checked("--length", &args.length, MAX_LENGTH).map_err(wrong_use)?,
            checked("--width", &widths(common)?, MAX_WIDTH).map_err(wrong_use)?,
        );
        checked("--n", &[args.n], MAX_PROBLEMS).map_err(wrong_use)?;
        checked("--batch", &[args.parallel], MAX_PROBLEMS).map_err(wrong_use)?;
        if let Some(cr) = args.ratios.iter().find(|cr| !(1.0..=1000.0).contains(*cr)) {
            return Err(wrong_use(format!("--keep-ratio {cr}: expected a compression ratio of 1 to 1000")));
        }
        let seed = settings.seed.unwrap_or(1);
        let (problems, file) = problems(args, seed)?;
        devices::check(settings)?;
        download::ensure(settings)?;
        let (checkpoint, target) = spawn::open_or_say(settings).map_err(as_wrong_use)?;
        let context = settings.ctx_size.unwrap_or(checkpoint.config.usual_context()).min(checkpoint.config.context);
        let language = Language::new(&checkpoint, context, settings.think, settings.system.clone())?;
        let sampling = settings.sampling.over(&default_sampling(&checkpoint.generation));
        let widest = widths.last().copied().unwrap_or(1);
        ensure!(
            widest == 1 || sampling.temperature > 0.0,
            wrong_use(format!(
                "--width {widest}: at temperature 0 all chains are the same; give one, such as --temperature 1"
            ))
        );
        let policies = policies(common, &checkpoint)?;
        let mut tasks = Vec::new();
        let mut longest = 0;
        for (name, problems) in problems {
            let prompts: Result<Vec<Prompt>> = problems.iter().map(|problem| language.prompt(problem)).collect();
            let prompts = prompts.with_context(|| name.clone()).map_err(as_wrong_use)?;
            let most = prompts.iter().map(|p| p.tokens.len()).max().unwrap_or(0);
            ensure!(
                most < context,
                wrong_use(format!(
                    "{name}: a prompt of {} tokens leaves no room in the context of {} tokens",
                    count(most),
                    count(context)
                ))
            );
            let (length, least) = (lengths.last().copied().unwrap_or(0), prompts.iter().map(|p| p.tokens.len()).min());
            check_length(&name, length, least.unwrap_or(0), context)?;
            longest = longest.max(most + length);
            let (trained, ratio) = (checkpoint.config.trained(), checkpoint.config.target_ratio());
            let settings = settings_of(&policies, &args.ratios, &lengths, &prompts, trained, ratio)?;
            tasks.push(TaskProblems { name, problems, prompts, settings });
        }
        let lanes = checkpoint.config.attention_layers() * checkpoint.config.n_kv_heads;
        Ok(Self {
            tasks,
            policies,
            axes: Axes { lengths, widths, lanes, seed },
            sampling,
            language,
            longest: longest.min(context),
            parallel: args.parallel,
            target,
            model: checkpoint.name,
            fingerprint: checkpoint.fingerprint,
            file,
        })
    }

    fn width(&self) -> usize {
        self.axes.widths.last().copied().unwrap_or(1)
    }

    /// All that the results depend on: the first line of the file of a run.
    fn header(&self, settings: &Settings, args: &EvalArgs) -> Result<Value> {
        let tasks: Vec<Value> = self.tasks.iter().map(|t| json!({"task": t.name, "n": t.problems.len()})).collect();
        let mut run = json!({
            "format": 2, "model": self.model, "model_fingerprint": self.fingerprint, "weights": settings.weights.name(),
            "kv": self.target.codec(settings.kv).name(), "task": tasks, "problems": self.file,
            "policy": self.policies.iter().map(|p| p.name()).collect::<Vec<_>>(), "cr": args.ratios, "length": self.axes.lengths,
            "width": self.axes.widths, "seed": self.axes.seed, "sampling": self.sampling, "think": settings.think,
            "system": settings.system, "ctx_size": settings.ctx_size,
        });
        if settings.far.bytes().is_some() {
            run["far_pages"] = json!(settings.far_pages);
        }
        if let Target::Cuda(_) = self.target {
            // Near ties may fall otherwise in steps of other sizes.
            run["device"] = json!("cuda");
            run["parallel"] = json!(self.parallel);
        }
        Ok(run)
    }
}

fn widths(common: &Common) -> Result<Vec<usize>> {
    let asked = common.width.as_ref().map_or(vec![Width::Chains(1)], |list| list.0.clone());
    let width = |width: &Width| match width {
        Width::Chains(n) => Ok(*n),
        Width::Auto => Err(wrong_use("--width auto: eval needs numbers of chains, such as 1,2,4,8")),
    };
    asked.iter().map(width).collect()
}

/// Fails if the context ends every chain before it has `length` tokens. `prompt`: tokens of the
/// task's shortest prompt. The last token of a chain is not fed.
fn check_length(task: &str, length: usize, prompt: usize, context: usize) -> Result<()> {
    let room = (context + 1).saturating_sub(prompt);
    if length <= room {
        return Ok(());
    }
    Err(wrong_use(format!(
        "{task}: --length {length} is too long: a prompt of {} tokens leaves {} in the context of {} tokens",
        count(prompt),
        count(room),
        count(context)
    )))
}

/// Values of a flag in rising order, each once. Fails on one below 1 or above `most`.
fn checked(flag: &str, values: &[usize], most: usize) -> Result<Vec<usize>, String> {
    if let Some(value) = values.iter().find(|v| !(1..=most).contains(*v)) {
        return Err(format!("{flag} {value}: expected 1 to {most}"));
    }
    let mut values = values.to_vec();
    values.sort_unstable();
    values.dedup();
    Ok(values)
}

/// The problems of the tasks and the file, and the file's digest.
fn problems(args: &EvalArgs, seed: u64) -> Result<(FileProblems, Option<String>)> {
    let (mut out, mut digest) = (FileProblems::new(), None);
    for name in args.task.iter().map(|name| name.trim()) {
        for task in Task::find(name).map_err(|why| wrong_use(format!("--task: {why}")))? {
            if out.iter().all(|(name, _)| name != task.name) {
                out.push((task.name.to_owned(), (0..args.n).map(|i| task.problem(seed, i)).collect()));
            }
        }
    }
    if let Some(path) = &args.problems {
        let file = read_file(path, args.n).map_err(as_wrong_use)?;
        if file.more > 0 {
            let more = count(file.more);
            output::notice(&format!("{}: {more} more problems are left out (--n {})", path.display(), args.n));
        }
        digest = Some(file.digest);
        for (name, problems) in file.problems {
            ensure!(
                out.iter().all(|(known, _)| *known != name),
                wrong_use(format!("{}: its task {name:?} is also one of --task", path.display()))
            );
            out.push((name, problems));
        }
    }
    ensure!(!out.is_empty(), wrong_use("eval needs problems: --task, or --problems FILE.jsonl"));
    Ok((out, digest))
}

/// The policies to compare: by default dense, and dms, dmc or trimkv where the model was trained
/// for it.
fn policies(common: &Common, checkpoint: &Checkpoint) -> Result<Vec<PolicyKind>> {
    let trained = checkpoint.config.trained();
    let asked = common.policy.as_ref().map_or(vec![PolicyKind::Auto], |list| list.0.clone());
    let mut out = Vec::new();
    for policy in asked {
        let these = match policy {
            PolicyKind::Auto => match trained {
                Some(Trained::Dms(_)) => vec![PolicyKind::Dense, PolicyKind::Dms],
                Some(Trained::Dmc(_)) => vec![PolicyKind::Dense, PolicyKind::Dmc],
                Some(Trained::Gates(_)) => vec![PolicyKind::Dense, PolicyKind::TrimKv],
                Some(Trained::Window(_)) => vec![PolicyKind::Window],
                None => vec![PolicyKind::Dense],
            },
            PolicyKind::Dms | PolicyKind::DmsQuest if !matches!(trained, Some(Trained::Dms(_))) => {
                let (policy, model) = (policy.name(), &checkpoint.name);
                return Err(wrong_use(format!("--policy {policy}: {model} was not trained to evict")));
            }
            PolicyKind::Dmc if !matches!(trained, Some(Trained::Dmc(_))) => {
                let model = &checkpoint.name;
                return Err(wrong_use(format!("--policy dmc: {model} was not trained to merge tokens")));
            }
            policy => vec![policy],
        };
        for policy in these {
            if !out.contains(&policy) {
                out.push(policy);
            }
        }
    }
    Ok(out)
}

/// The settings of a task: each policy at each ratio, and at each length if the budget depends on
/// it. `trained`: the policy that the model was trained for, at dmc's only `ratio`.
fn settings_of(
    policies: &[PolicyKind],
    crs: &[f64],
    lengths: &[usize],
    prompts: &[Prompt],
    trained: Option<Trained>,
    ratio: Option<f64>,
) -> Result<Vec<Setting>> {
    let prompt = prompts.iter().map(|p| p.tokens.len()).sum::<usize>().div_ceil(prompts.len().max(1));
    let mut out = Vec::new();
    for &policy in policies {
        let setting = |cr, length, budget| {
            let rule = policy.with(budget).resolve(trained);
            let policy = rule.with_context(|| format!("--policy {}: the model has none", policy.name()))?;
            Ok::<_, anyhow::Error>(Setting { policy, cr, length })
        };
        if policy == PolicyKind::Dense {
            out.push(setting(1.0, None, Budget::Slots(0))?);
            continue;
        }
        if policy == PolicyKind::Dmc {
            out.push(setting(ratio.unwrap_or(1.0), None, Budget::Slots(0))?);
            continue;
        }
        let above: Vec<f64> = crs.iter().copied().filter(|cr| *cr > 1.0).collect();
        ensure!(!above.is_empty(), wrong_use(format!("--policy {}: give a --keep-ratio above 1", policy.name())));
        for cr in above {
            if policy == PolicyKind::Dms {
                out.push(setting(cr, None, Budget::Slots(0))?);
                continue;
            }
            if policy == PolicyKind::Pool {
                let budget = Budget::of_ratio(cr as f32);
                if let Some(why) = policy.budget_refusal(budget) {
                    return Err(wrong_use(format!("--keep-ratio {cr}: {why}")));
                }
                out.push(setting(cr, None, budget)?);
                continue;
            }
            let least = if policy.reads_pages() { FEWEST_READ } else { FEWEST_SLOTS };
            for &length in lengths {
                let budget = (((prompt + length) as f64 / cr).ceil() as usize).max(least);
                out.push(setting(cr, Some(length), Budget::Slots(budget))?);
            }
        }
    }
    Ok(out)
}

const RESULTS_JSON: &str = "results.json";

/// Names of all files that a run writes beside its records.
const RESULT_FILES: [&str; 2] = [latency::FILE, RESULTS_JSON];

/// Results of a run.
struct Results {
    rows: Vec<crate::eval::grid::Row>,
    json: Value,
}

impl Results {
    fn of(run: &Run, store: &Store, latency: Option<Latency>) -> Result<Self> {
        let (mut all, mut heads, mut seconds) = (Vec::new(), Vec::new(), Vec::new());
        for task in &run.tasks {
            for setting in &task.settings {
                let name = setting.name();
                let records: Option<Vec<&Record>> =
                    (0..task.problems.len()).map(|i| store.get(&task.name, &name, i)).collect();
                let records = records.context("a problem was not answered")?;
                all.extend(rows(&task.name, setting, &records, &run.axes, latency.as_ref()));
                heads.push(
                    json!({"task": task.name, "setting": name, "policy": setting.policy.name(), "cr": setting.cr,
                                  "length": setting.length, "heads": retention(&records)}),
                );
                let time: f64 = records.iter().map(|r| r.seconds).sum();
                seconds.push(json!({"task": task.name, "setting": name, "seconds": time}));
            }
        }
        let about = json!({"model": run.model, "seed": run.axes.seed, "sampling": run.sampling, "lanes": run.axes.lanes, "latency": latency});
        let json = json!({"run": about, "rows": all, "retention": heads, "seconds": seconds});
        Ok(Self { rows: all, json })
    }

    fn write(&self, folder: &Path) -> Result<()> {
        // Whole at any moment, as a run may be stopped at any moment.
        RESULTS.write(&folder.join(RESULTS_JSON), (serde_json::to_string_pretty(&self.json)? + "\n").as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmschat::policy::{Dmc, Dms, Shift};

    #[test]
    fn budgets_follow_from_prompt_and_length() {
        let prompt = |n| Prompt { tokens: vec![0; n], thinks: false };
        let trained = Trained::Dms(Dms::new(64, Shift::Same));
        let prompts = [prompt(10), prompt(21)];
        let of = |policies: &[PolicyKind], crs: &[f64], trained| {
            settings_of(policies, crs, &[100, 300], &prompts, Some(trained), Some(3.5))
        };
        let policies = [PolicyKind::Dense, PolicyKind::Dms, PolicyKind::Window, PolicyKind::Pool];
        let mut settings = of(&policies, &[1.0, 4.0], trained).unwrap();
        settings.extend(of(&[PolicyKind::Dmc], &[1.0, 4.0], Trained::Dmc(Dmc::default())).unwrap());
        let names: Vec<(String, Option<usize>)> = settings.iter().map(|s| (s.name(), s.budget())).collect();
        let expected = [
            ("dense 1x", None),
            ("dms 4x", None),
            ("window 4x 100", Some(29)),
            ("window 4x 300", Some(79)),
            ("pool 4x", None),
            ("dmc 3.5x", None),
        ];
        assert_eq!(names, expected.map(|(name, budget)| (name.to_owned(), budget)));
        assert!(of(&policies, &[1.0], trained).is_err());
        let error = of(&[PolicyKind::Pool], &[2.5], trained).unwrap_err().to_string();
        assert!(error.starts_with("--keep-ratio 2.5: policy pool takes a whole ratio"), "{error}");
        assert_eq!(checked("--width", &[4, 1, 4], 9), Ok(vec![1, 4]));
        assert!(checked("--width", &[0], 9).unwrap_err().contains("--width 0"));
    }
}
