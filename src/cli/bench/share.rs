//! The line of `dmschat bench --share`: results and the machine, to paste into an issue. Names no
//! user, folder or host.

use super::super::args::VERSION;
use super::super::devices::{Target, driver_version};
use super::super::machine::{self, memory};
use crate::bench::{Device, Line};
use crate::codec::Codec;
use crate::quant::Weights;
use crate::ui::text::bytes;
use crate::unicode::one_line;

/// Formats one line. `results` come from [`result`].
pub fn line(target: Target, device: &Device, model: &str, results: &[String]) -> String {
    let system = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
    let driver = matches!(target, Target::Cuda(_)).then(driver_version).flatten();
    let memory = memory("MemTotal:").map(|total| format!("{} of memory", bytes(total)));
    let machine =
        [Some(device.name.clone()), device.library.clone(), driver, machine::processor(), memory, Some(system)];
    let machine: Vec<String> = machine.into_iter().flatten().collect();
    // A folder's name says nothing of the model.
    let model = model.trim_end_matches('/').rsplit('/').next().filter(|_| model.starts_with('/')).unwrap_or(model);
    let parts = [&[format!("dmschat {VERSION}"), machine.join(", "), model.to_owned()], results].concat();
    one_line(&parts.join(" | "))
}

/// Result of one case of the benchmark.
pub fn result(weights: Weights, codec: Codec, line: &Line) -> String {
    let eviction = if line.case().eviction { "on" } else { "off" };
    let many = match line.case().parallel {
        1 => String::new(),
        n => format!(" x {n}"),
    };
    let prefill = line.prefill_tok_s.map(|s| format!("prefill {:.0} tok/s, ", s.median)).unwrap_or_default();
    let device = line.device_bytes.map(|n| format!(", {} on the GPU", bytes(n))).unwrap_or_default();
    format!(
        "{} {} eviction {eviction} ctx {}{many}: {prefill}decode {:.1} tok/s ({:.1}..{:.1}), cache {} ({:.2}x){device}",
        weights.name(),
        codec.name(),
        line.case().ctx,
        line.decode_tok_s.median,
        line.decode_tok_s.min,
        line.decode_tok_s.max,
        bytes(line.kv_bytes),
        line.ratio(),
    )
}
