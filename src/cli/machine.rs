//! What this machine has: processor features, memory, a card.

use super::libraries;
use crate::backend::cuda::{cublaslt, probe};
use std::fs;

#[cfg(target_arch = "x86_64")]
pub fn cpu_features() -> Vec<&'static str> {
    macro_rules! present {
        ($($name:tt),*) => {
            [$(($name, std::arch::is_x86_feature_detected!($name))),*]
        };
    }
    let all = present!("sse4.2", "avx", "fma", "f16c", "avx2", "avx512f", "avx512bw", "avx512bf16");
    all.into_iter().filter_map(|(name, there)| there.then_some(name)).collect()
}

#[cfg(target_arch = "aarch64")]
pub fn cpu_features() -> Vec<&'static str> {
    let all = [
        ("neon", std::arch::is_aarch64_feature_detected!("neon")),
        ("fp16", std::arch::is_aarch64_feature_detected!("fp16")),
        ("bf16", std::arch::is_aarch64_feature_detected!("bf16")),
    ];
    all.into_iter().filter_map(|(name, there)| there.then_some(name)).collect()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn cpu_features() -> Vec<&'static str> {
    Vec::new()
}

/// A line of `/proc/meminfo`, in bytes; absent elsewhere than on Linux.
pub fn memory(field: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What the probe says, in a few words.
pub fn cuda_in_words() -> String {
    match probe() {
        Ok((version, count)) => {
            let release = format!("CUDA {}.{}", version / 1000, version % 1000 / 10);
            let library =
                cublaslt(&libraries::cublaslt()).unwrap_or_else(|_| "no libcublasLt, which is not needed".to_owned());
            format!("{count} GPU{}, driver for {release}, {library}", if count == 1 { "" } else { "s" })
        }
        Err(why) => why.to_string(),
    }
}
