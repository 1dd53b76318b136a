//! The formats that a model's weights may have: bytes, the context that each leaves, and what is quantized already.

use super::devices::{DeviceJob, DeviceKind, DeviceOptions, Target};
use super::{quantized, spawn};
use crate::checkpoint::{Checkpoint, EXACT_FIRST};
use crate::config::Settings;
use crate::engine::{EngineOptions, Fit};
use crate::protocol::{bytes, count};
use anyhow::Result;
use serde_json::{Value, json};
use std::path::PathBuf;

/// The formats of one model, the most exact first.
#[derive(Default)]
pub struct Formats {
    formats: Vec<(Fit, Option<PathBuf>)>,
    ratio: Option<f64>,
    free_bytes: Option<u64>,
}

impl Formats {
    pub fn new(settings: &Settings, checkpoint: &Checkpoint, target: Target) -> Result<Self> {
        let options = spawn::options(settings, &checkpoint.config, target)?;
        let plans = Plans { checkpoint, options: &options };
        let fits = target.run(DeviceOptions::from(settings), plans)?;
        let cached = |fit: &Fit| {
            if checkpoint.cached {
                return quantized::in_place_of(&settings.model, settings.weights, settings.device).map(|c| c.path);
            }
            let weights = &options.weights;
            weights.cache.as_ref()?.file_of(checkpoint, fit.weights, &weights.importance)
        };
        Ok(Self {
            formats: fits.into_iter().map(|fit| (fit.clone(), cached(&fit))).collect(),
            ratio: checkpoint.config.dms.as_ref().and_then(|d| d.target_ratio),
            free_bytes: options.memory_bytes,
        })
    }

    pub fn json(&self) -> Value {
        let format = |(fit, cached): &(Fit, Option<PathBuf>)| {
            json!({
                "format": fit.weights.name(), "bytes": fit.plan.weight_bytes, "workspace_bytes": fit.plan.workspace_bytes,
                "fits": fit.plan.expected_context > 0, "context": fit.plan.certain_context,
                "expected_context": fit.plan.expected_context, "cached": cached,
            })
        };
        self.formats.iter().map(format).collect()
    }

    /// One line for each format: its name and what it leaves.
    pub fn lines(&self) -> Vec<(String, String)> {
        let line = |(fit, cached): &(Fit, Option<PathBuf>)| {
            let plan = &fit.plan;
            let mut text = bytes(plan.weight_bytes);
            if plan.expected_context > 0 {
                text += &format!(", fits {} tokens (worst case)", count(plan.certain_context));
                if let Some(ratio) = self.ratio.filter(|_| plan.expected_context > plan.certain_context) {
                    text += &format!(", about {} at {ratio}x", count(plan.expected_context));
                }
            } else {
                let free = self.free_bytes.map(|free| format!(" ({} are free)", bytes(free))).unwrap_or_default();
                text += &format!(", does not fit{free}");
            }
            if let Some(path) = cached {
                text += &format!("; quantized in {}", path.display());
            }
            (format!("weights {}", fit.weights.name()), text)
        };
        self.formats.iter().map(line).collect()
    }
}

/// Plans a model in each of its formats.
struct Plans<'a> {
    checkpoint: &'a Checkpoint,
    options: &'a EngineOptions,
}

impl DeviceJob for Plans<'_> {
    type Output = Vec<Fit>;

    fn run<D: DeviceKind>(self, device: &D) -> Result<Vec<Fit>> {
        let b = device.open()?;
        let formats = EXACT_FIRST.into_iter().filter(|weights| self.checkpoint.can_be(*weights));
        formats.map(|weights| Fit::new(&b, self.checkpoint, self.options, weights)).collect()
    }
}
