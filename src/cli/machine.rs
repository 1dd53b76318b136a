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

/// The processor's name, where Linux tells it.
pub fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let name = text.lines().find_map(|line| line.strip_prefix("model name"))?.trim_start().strip_prefix(':')?;
    Some(name.trim().to_owned())
}

/// Release of NVIDIA's driver, such as `550.54.14`, where the kernel's module tells it.
pub fn nvidia_release() -> Option<String> {
    release_in(&fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

fn release_in(text: &str) -> Option<String> {
    let is_release = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.lines().next()?.split_whitespace().find(is_release).map(str::to_owned)
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
    /// Memory of mapped files.
    pub mapped: u64,
}

fn kilobytes(text: &str) -> Option<u64> {
    text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_of_the_driver_is_found() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\nGCC version: gcc 12.2.0";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder)";
        assert_eq!([closed, open].map(release_in), [Some("550.54.14".to_owned()), Some("580.65.06".to_owned())]);
        assert_eq!(release_in("GCC version: 12"), None);
    }
}
