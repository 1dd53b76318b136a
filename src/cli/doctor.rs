//! `dmschat doctor [--json]`: whether a chat would start on this machine, and if not, why. With
//! `--memory`, it shows the memory use of a loaded model.

mod memory;
mod usage;

use super::args::{Common, DoctorArgs, VERSION};
use super::devices::cuda_summary;
use super::machine::{cpu_features, memory as memory_bytes};
use super::{devices, download, output, spawn};
use crate::checkpoint::{AdapterChoice, Checkpoint, ModelRef};
use crate::config::{BUILTIN_MODEL, Dirs, Settings};
use crate::cores;
use crate::protocol::bytes;
use crate::ui::keymap::Keymap;
use crate::ui::theme::AUTO;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// One fact about the machine, and its fault, if any.
struct Check {
    name: &'static str,
    value: Value,
    problem: Option<String>,
    /// Whether a chat starts with it.
    starts: bool,
}

impl Check {
    fn fact(name: &'static str, value: impl Into<Value>) -> Self {
        Self { name, value: value.into(), problem: None, starts: true }
    }

    /// The fact, or the fault of `value`.
    fn of(name: &'static str, fact: Result<impl Into<Value>>, value: impl Into<Value>) -> Self {
        fact.map_or_else(|e| Self::problem(name, value, &e), |fact| Self::fact(name, fact))
    }

    fn problem(name: &'static str, value: impl Into<Value>, error: &anyhow::Error) -> Self {
        Self { problem: Some(format!("{error:#}")), starts: false, ..Self::fact(name, value) }
    }
}

pub fn run(common: &Common, args: &DoctorArgs) -> Result<u8> {
    if args.memory {
        return memory::run(common, args);
    }
    let checks = checks(common);
    let fine = checks.iter().all(|c| c.problem.is_none());
    if common.json {
        let mut object = serde_json::Map::new();
        object.insert("ok".into(), fine.into());
        for check in &checks {
            object.insert(check.name.into(), check.value.clone());
        }
        let problems: Vec<String> =
            checks.iter().filter_map(|c| c.problem.as_ref().map(|p| format!("{}: {p}", c.name))).collect();
        object.insert("problems".into(), problems.into());
        output::out_json(&object)?;
    } else {
        for check in &checks {
            let value = match &check.value {
                Value::String(s) => s.clone(),
                Value::Null => "-".to_owned(),
                Value::Number(n) if check.name.ends_with("_bytes") => bytes(n.as_u64().unwrap_or(0)),
                Value::Array(items) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
                other => other.to_string(),
            };
            let mark = if check.problem.is_some() { "!!" } else { "ok" };
            let text = match &check.problem {
                None => value,
                // A file is named once.
                Some(problem) if problem.contains(&value) => {
                    problem.strip_prefix(check.name).unwrap_or(problem).trim_start().to_owned()
                }
                Some(problem) => format!("{value}: {problem}"),
            };
            output::out(&output::visible(&format!("{mark}  {:<15} {text}\n", check.name)))?;
        }
        let starts = checks.iter().all(|c| c.starts);
        output::out(match (starts, fine) {
            (true, true) => "a chat would start\n",
            (true, false) => "a chat would start, but it would not be saved\n",
            (false, _) => "a chat would not start\n",
        })?;
    }
    Ok(if fine { output::OK } else { output::FAILED })
}

fn checks(common: &Common) -> Vec<Check> {
    let mut checks = vec![
        Check::fact("version", VERSION),
        Check::fact("system", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
        Check::fact("cpu_features", cpu_features()),
        Check::fact("threads", cores::count()),
        Check::fact("memory_bytes", memory_bytes("MemTotal:").map_or(Value::Null, Into::into)),
        Check::fact("available_bytes", memory_bytes("MemAvailable:").map_or(Value::Null, Into::into)),
        Check::fact("cuda", cuda_summary()),
    ];
    let settings = Settings::load(&common.origin());
    checks.push(match &settings {
        Ok(settings) => {
            let file = common.config.clone().unwrap_or_else(|| settings.dirs.config_file());
            Check::fact("config", file.display().to_string())
        }
        Err(e) => Check::problem("config", Value::Null, e),
    });
    if let Ok(settings) = &settings {
        let theme = settings.theme.as_deref().unwrap_or(AUTO);
        checks.push(Check::of("theme", super::check_theme(settings).map(|()| theme), theme));
        let file = settings.keymap_file().map_or("built in".to_owned(), |file| file.display().to_string());
        checks.push(Check::of(
            "keymap",
            Keymap::load(settings.keymap, settings.keymap_file().as_deref()).map(|_| file.clone()),
            file,
        ));
        if settings.model != BUILTIN_MODEL {
            checks.push(Check::of("model", model(settings), settings.model.as_str()));
        }
    }
    if let Err(e) = settings.as_ref().map_or(Ok(()), devices::check_for_chat) {
        checks.push(Check::problem("device", Value::Null, &e));
    }
    checks.push(match Dirs::find() {
        Ok(dirs) => folder_check("data_folder", &dirs.data),
        Err(e) => Check::problem("data_folder", Value::Null, &e),
    });
    checks.push(Check::of("builtin_model", builtin_model(), Value::Null));
    checks
}

/// Whether sessions can be written to this folder, which is created if it is missing. A chat starts
/// without it, with a warning.
fn folder_check(name: &'static str, path: &Path) -> Check {
    let value = path.display().to_string();
    match writable(path) {
        Ok(()) => Check::fact(name, value),
        Err(e) => Check { starts: true, ..Check::problem(name, value, &e.context("chats would not be saved")) },
    }
}

fn writable(path: &Path) -> Result<()> {
    let path = std::path::absolute(path)?;
    let existing = path.ancestors().find(|p| p.exists()).context("no such folder")?;
    ensure!(existing.is_dir(), "{} is not a folder", existing.display());
    let probe = existing.join(format!(".dmschat-probe-{}", std::process::id()));
    let cannot = || format!("no file can be created in {}", existing.display());
    fs::OpenOptions::new().write(true).create_new(true).open(&probe).with_context(cannot)?;
    fs::remove_file(&probe)?;
    Ok(())
}

/// Opens the model of the settings, unless a chat downloads it first.
fn model(settings: &Settings) -> Result<String> {
    if download::missing(&settings.model)?.is_some() {
        return Ok(format!("{}, which is downloaded first", settings.model));
    }
    Ok(spawn::open(settings)?.name)
}

/// Opens the built-in model, which checks the range and the shape of every tensor.
fn builtin_model() -> Result<String> {
    let model = Checkpoint::open(&ModelRef::parse(BUILTIN_MODEL)?, &AdapterChoice::Auto)?;
    let (parameters, megabytes) = (model.n_params as f64 / 1e6, model.weight_bytes as f64 / 1e6);
    Ok(format!("{BUILTIN_MODEL}, {parameters:.1} M parameters, {megabytes:.1} MB"))
}
