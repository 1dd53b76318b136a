//! `dmschat doctor --memory`: where every MiB of a model at work goes.

use super::usage::{self, Usage};
use crate::backend::Report;
use crate::checkpoint::Checkpoint;
use crate::cli::args::{Common, DoctorArgs};
use crate::cli::devices::{self, DeviceJob, DeviceKind, DeviceOptions, Target};
use crate::cli::machine::{Resident, resident};
use crate::cli::output::{self, as_wrong_use};
use crate::cli::{download, quiet_settings, spawn};
use crate::engine::{self, EngineOptions};
use anyhow::Result;
use serde_json::json;

/// Loads the model of the settings, or random weights of a shape, and prints the table. The exit
/// code is 1 if the rows do not add up to the memory that the device reports.
pub fn run(common: &Common, args: &DoctorArgs) -> Result<u8> {
    let before = resident();
    let settings = quiet_settings(common)?;
    devices::check(&settings)?;
    let (checkpoint, target) = match &args.shape {
        Some(shape) => {
            let target = Target::new(&settings)?;
            let copies = target.copies_weights();
            let made = if copies { Checkpoint::random_shared(shape) } else { Checkpoint::random(shape) };
            (made.map_err(as_wrong_use)?, target)
        }
        None => {
            download::ensure(&settings)?;
            spawn::open_or_say(&settings).map_err(as_wrong_use)?
        }
    };
    let options = EngineOptions { max_logits: engine::CHAT_LOGITS, ..spawn::options(&settings, &checkpoint, target)? };
    let job = Measure { checkpoint, options, before };
    let (model, device, usage) = target.run(DeviceOptions::from(&settings), job)?;
    if common.json {
        output::out_json(&as_json(&model, &device, &usage))?;
    } else {
        output::out(&output::visible(&table(&model, &device, &usage)))?;
    }
    Ok(if usage.adds_up() { output::OK } else { output::FAILED })
}

struct Measure {
    checkpoint: Checkpoint,
    options: EngineOptions,
    before: Resident,
}

impl DeviceJob for Measure {
    type Output = (String, String, Usage);

    fn run<D: DeviceKind>(self, device: &D) -> Result<Self::Output> {
        let Self { checkpoint, mut options, before } = self;
        let b = device.open()?;
        let checkpoint = spawn::prepared(&b, checkpoint, &mut options)?;
        let model = format!(
            "{}, K and V as {}, {} tokens of context, steps of {}",
            checkpoint.name,
            options.codec.name(),
            options.context.unwrap_or(checkpoint.config.usual_context()),
            options.max_step.unwrap_or_else(|| *b.about().step_tokens.end())
        );
        let device = b.about().name;
        Ok((model, device, usage::measure(b, &checkpoint, &options, before, resident)?))
    }
}

fn mib(bytes: i64) -> String {
    format!("{:>10.1} MiB", bytes as f64 / (1 << 20) as f64)
}

fn table(model: &str, device: &str, usage: &Usage) -> String {
    let mut text = format!("{model}, on {device}\n");
    let mut line = |what: &str, bytes: i64| text.push_str(&format!("{what:<60} {}\n", mib(bytes)));
    usage.rows.iter().for_each(|row| line(&row.what, row.bytes));
    line("sum", usage.sum_bytes());
    line("reported for the device, or this process", usage.taken_bytes as i64);
    line("difference", usage.taken_bytes as i64 - usage.sum_bytes());
    if let Some([planned, taken]) = usage.planned_bytes {
        line("weights and workspace as planned", planned as i64);
        line("weights and workspace as loaded", taken as i64);
        let apart = (taken as f64 / planned.max(1) as f64 - 1.0) * 100.0;
        text.push_str(&format!("the plan and the device are {apart:+.2} % apart\n"));
    }
    text
}

fn as_json(model: &str, device: &str, usage: &Usage) -> serde_json::Value {
    let rows: Vec<_> = usage.rows.iter().map(|row| json!({"what": row.what, "bytes": row.bytes})).collect();
    let [planned, loaded] = usage.planned_bytes.map_or([None; 2], |p| p.map(Some));
    json!({
        "ok": usage.adds_up(), "model": model, "device": device, "rows": rows, "sum_bytes": usage.sum_bytes(),
        "taken_bytes": usage.taken_bytes, "planned_bytes": planned, "loaded_bytes": loaded,
    })
}
