//! Time of decode steps by the model of the paper's Appendix G: the larger of FLOPs / peak and
//! bytes / bandwidth, where peak and bandwidth are those that this machine was measured to have. No
//! launch, synchronization or sampling is in it: a lower bound.

use super::record::RESULTS;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Name of the file in the folder of a run.
pub const FILE: &str = "machine.json";

/// Cost of a model per step, and speed of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Bytes per second, read and written, of a copy within the device's memory.
    pub copy_bytes_per_s: f64,
    /// Floating-point operations per second of a large matmul.
    pub matmul_flops_per_s: f64,
    /// Bytes of the weights, which a step reads once for all its chains.
    pub weight_bytes: u64,
    /// Floating-point operations of a token, without attention.
    pub token_flops: f64,
    /// Bytes of a slot, and floating-point operations of attending to it: all query heads of a KV
    /// head, scores and values.
    pub slot_bytes: u64,
    pub slot_flops: f64,
}

impl Latency {
    /// Seconds of `steps` steps in which chains sample `tokens` tokens and read `reads` slots,
    /// summed over lanes.
    pub fn seconds(&self, steps: usize, tokens: usize, reads: u64) -> f64 {
        let flops = self.token_flops * tokens as f64 + self.slot_flops * reads as f64;
        let bytes = self.weight_bytes as f64 * steps as f64 + self.slot_bytes as f64 * reads as f64;
        (flops / self.matmul_flops_per_s).max(bytes / self.copy_bytes_per_s)
    }

    /// Keeps it in the folder of a run, whose results may be made again without the machine.
    pub fn write(&self, folder: &Path) -> Result<()> {
        RESULTS.write(&folder.join(FILE), (serde_json::to_string_pretty(self)? + "\n").as_bytes())
    }

    /// Reads what [`Self::write`] kept; `None` if there is none or another program wrote it.
    pub fn read(folder: &Path) -> Option<Self> {
        let text = dmschat::regular_file::read_text(&folder.join(FILE), 1 << 16).ok()?;
        serde_json::from_str(&text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_takes_as_long_as_its_slower_half() {
        let machine = Latency {
            copy_bytes_per_s: 1000.0,
            matmul_flops_per_s: 8000.0,
            weight_bytes: 100,
            token_flops: 400.0,
            slot_bytes: 10,
            slot_flops: 40.0,
        };
        // One chain of 10 steps and 50 slots: 1,500 bytes, 6,000 operations. Eight such chains:
        // 5,000 bytes, 48,000 operations.
        assert_eq!(machine.seconds(10, 10, 50), 1.5);
        assert_eq!(machine.seconds(10, 80, 400), 6.0);
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Latency::read(folder.path()), None);
        machine.write(folder.path()).unwrap();
        assert_eq!(Latency::read(folder.path()), Some(machine));
    }
}
