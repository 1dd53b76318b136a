//! Weight formats that a model may have: their bytes, the context that each allows, and whether it
//! is quantized already.

use super::devices::{DeviceJob, DeviceKind, DeviceOptions, Target};
use super::{quantized, spawn};
use crate::checkpoint::Checkpoint;
use crate::codec::Codec;
use crate::config::Settings;
use crate::engine::{EngineOptions, Fit, resolve_context};
use crate::protocol::{Plan, bytes, count};
use crate::quant::{EXACT_FIRST, Weights};
use anyhow::Result;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Room that a format of the weights leaves, with the codec that a start would take.
struct Offer {
    weights: Weights,
    /// Decided as at a start.
    plan: Plan,
    codec: Codec,
    fits: bool,
    cached: Option<PathBuf>,
}

/// The formats of one model, the most exact first.
#[derive(Default)]
pub struct Formats {
    offers: Vec<Offer>,
    ratio: Option<f64>,
    free_bytes: Option<u64>,
}

impl Formats {
    pub fn new(settings: &Settings, checkpoint: &Checkpoint, target: Target) -> Result<Self> {
        let options = spawn::options(settings, checkpoint, target)?;
        let plans = Plans { checkpoint, options: &options };
        let mut offers = target.run(DeviceOptions::from(settings), plans)?;
        for offer in &mut offers {
            let weights = &options.weights;
            offer.cached = if checkpoint.cached {
                quantized::in_place_of(&settings.model, settings.weights, settings.device).map(|c| c.path)
            } else {
                let cache = weights.cache.as_ref();
                cache.and_then(|cache| cache.file_of(checkpoint, offer.weights, &weights.calibration))
            };
        }
        Ok(Self { offers, ratio: checkpoint.config.target_ratio(), free_bytes: options.memory_bytes })
    }

    pub fn json(&self) -> Value {
        let format = |Offer { weights, plan, codec, fits, cached }: &Offer| {
            json!({
                "format": weights.name(), "bytes": plan.weight_bytes, "workspace_bytes": plan.workspace_bytes,
                "fits": fits, "kv": codec.name(), "context": plan.certain_context,
                "expected_context": plan.expected_context, "cached": cached,
            })
        };
        self.offers.iter().map(format).collect()
    }

    /// One line for each format: its name and what it leaves.
    pub fn lines(&self) -> Vec<(String, String)> {
        let line = |Offer { weights, plan, codec, fits, cached }: &Offer| {
            let mut text = bytes(plan.weight_bytes);
            if *fits {
                let codec = codec.name();
                text += &format!(", fits {} tokens with {codec} slots (worst case)", count(plan.certain_context));
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
            (format!("weights {}", weights.name()), text)
        };
        self.offers.iter().map(line).collect()
    }
}

/// Plans a model in each of its formats.
struct Plans<'a> {
    checkpoint: &'a Checkpoint,
    options: &'a EngineOptions,
}

impl DeviceJob for Plans<'_> {
    type Output = Vec<Offer>;

    fn run<D: DeviceKind>(self, device: &D) -> Result<Vec<Offer>> {
        let b = device.open()?;
        let offer = |weights| {
            let (mut described, mut options) = (self.checkpoint.described(weights)?, self.options.clone());
            let (plan, codec, fits) = match resolve_context(&b, &mut described, &mut options, |_| ()) {
                Ok(plan) => (plan, options.codec, true),
                Err(_) => (Fit::new(&b, self.checkpoint, self.options, weights)?.plan, self.options.codec, false),
            };
            Ok(Offer { weights, plan, codec, fits, cached: None })
        };
        let own = self.checkpoint.own_format();
        let formats = EXACT_FIRST.into_iter().filter(|weights| self.checkpoint.can_be(*weights));
        own.into_iter().chain(formats).map(offer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Auto;

    #[test]
    fn a_format_is_planned_with_the_codec_that_a_chat_would_take() {
        let source = Checkpoint::random("smollm2-135m").unwrap();
        let offers = |smaller_codecs, memory| {
            let options =
                EngineOptions { smaller_codecs, memory_bytes: Some(memory), ..EngineOptions::new(Codec::F32) };
            let device = DeviceOptions { threads: 1, graphs: false, gemm: Default::default() };
            Target::Cpu.run(device, Plans { checkpoint: &source, options: &options }).unwrap()
        };
        let smaller = Target::Cpu.smaller_codecs(Auto::Auto);
        // The least memory, to 8 MB, in which int4 weights start.
        let memory = (1..500).map(|n| n * 8_000_000).find(|memory| offers(smaller, *memory)[2].fits).unwrap();
        let (with, without) = (offers(smaller, memory), offers(&[], memory));
        assert_eq!((with[2].codec, without[2].codec), (Codec::K8V4, Codec::F32));
        let context = |offers: &[Offer]| offers[2].plan.certain_context;
        assert!(context(&with) > 3 * context(&without), "{} and {}", context(&with), context(&without));
        assert!(!with[0].fits && with[0].plan.weight_bytes > with[2].plan.weight_bytes);
    }
}
