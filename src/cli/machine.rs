//! Facts about this machine: CPU features and memory.

use std::fs;

/// CPU features that matter for speed.
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

/// CPU features that matter for speed.
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
/// CPU features that matter for speed: none are known here.
pub fn cpu_features() -> Vec<&'static str> {
    Vec::new()
}

/// Bytes in a field of `/proc/meminfo`, such as `MemTotal:`; `None` outside Linux.
pub fn memory(field: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    text.lines().find_map(|l| l.strip_prefix(field)).and_then(kilobytes)
}

/// Memory of this process: nothing outside Linux.
pub fn resident() -> Resident {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)).and_then(kilobytes).unwrap_or(0);
    Resident { anonymous: field("RssAnon:") + field("RssShmem:"), mapped: field("RssFile:") }
}

/// Bytes of this process in memory, as a host's system counts them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resident {
    pub anonymous: u64,
    /// Of mapped files.
    pub mapped: u64,
}

fn kilobytes(text: &str) -> Option<u64> {
    text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
