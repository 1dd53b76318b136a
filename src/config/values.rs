//! Values that flags, the environment and the config file write in the same way.

use crate::protocol::{ChainsRequest, MAX_WIDTH, WhenFull};
use crate::quant::Weights;
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// `on` or `off`, also written `true` or `false`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnOff(pub bool);

impl FromStr for OnOff {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s.to_ascii_lowercase().as_str() {
            "on" | "true" | "yes" | "1" => Ok(Self(true)),
            "off" | "false" | "no" | "0" => Ok(Self(false)),
            _ => Err(format!("{s:?} is neither on nor off")),
        }
    }
}

/// Which tokens the cache drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CachePolicy {
    /// DMS where the model was trained for it, else dense.
    #[default]
    Auto,
    Dense,
    Dms,
    /// The newest tokens and a few attention sinks.
    Window,
    /// Drops what the newest query attends to least.
    Tova,
    /// Keeps the newest tokens and those with the most attention.
    H2o,
    /// Keeps everything; a query reads the pages that may match it.
    Quest,
    /// Quest over the cache of a DMS model.
    DmsQuest,
    /// Merges every so many tokens.
    Pool,
    /// Merges what a DMC model decides.
    Dmc,
}

impl CachePolicy {
    const ALL: [(&str, Self); 10] = [
        ("auto", Self::Auto),
        ("dense", Self::Dense),
        ("dms", Self::Dms),
        ("window", Self::Window),
        ("tova", Self::Tova),
        ("h2o", Self::H2o),
        ("quest", Self::Quest),
        ("dms+quest", Self::DmsQuest),
        ("pool", Self::Pool),
        ("dmc", Self::Dmc),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }

    /// Whether a budget belongs to the policy.
    pub fn has_budget(self) -> bool {
        !matches!(self, Self::Auto | Self::Dense | Self::Dms | Self::Dmc)
    }

    /// Whether what a token reads depends on the step that it comes in, so that conversations cannot have the policy.
    pub fn reads_pages(self) -> bool {
        matches!(self, Self::Quest | Self::DmsQuest)
    }
}

impl FromStr for CachePolicy {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|(name, _)| *name == s).map(|(_, policy)| policy);
        found.ok_or_else(|| {
            let expected = "auto, dense, dms, window, tova, h2o, quest, dms+quest, pool or dmc";
            format!("{s:?} is not a cache policy (expected {expected})")
        })
    }
}

/// How much a policy stores or reads in each head: slots (`512`), or a share of the tokens (`4x`: one in four).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheBudget {
    Slots(usize),
    Ratio(f32),
}

impl fmt::Display for CacheBudget {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Slots(slots) => write!(f, "{slots}"),
            Self::Ratio(ratio) => write!(f, "{ratio}x"),
        }
    }
}

impl FromStr for CacheBudget {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let budget = match s.strip_suffix('x') {
            Some(ratio) => ratio.parse().ok().filter(|r: &f32| r.is_finite()).map(Self::Ratio),
            None => s.parse().ok().map(Self::Slots),
        };
        budget.ok_or_else(|| format!("{s:?} is not a budget, expected slots such as 512 or a ratio such as 4x"))
    }
}

/// What happens where memory does not suffice for a turn: `forget`, `window` or `stop`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full(pub WhenFull);

impl FromStr for Full {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "forget" => Ok(Self(WhenFull::Forget)),
            "window" => Ok(Self(WhenFull::Window)),
            "stop" => Ok(Self(WhenFull::Stop)),
            _ => Err(format!("{s:?} is not known (expected forget, window or stop)")),
        }
    }
}

/// What is pinned unasked: `system`, the system prompt, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    None,
    System,
}

impl FromStr for Pin {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "system" => Ok(Self::System),
            "none" => Ok(Self::None),
            _ => Err(format!("{s:?} cannot be pinned, expected system or none")),
        }
    }
}

/// How many chains answer a question: a number, or `auto`, as many as fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    Auto,
    Chains(usize),
}

impl Width {
    /// What the engine is asked for; `None` is the ordinary answer.
    pub fn request(self, early_stop: bool, checked: bool) -> Option<ChainsRequest> {
        let width = match self {
            Self::Chains(1) => return None,
            Self::Chains(n) => Some(n),
            Self::Auto => None,
        };
        Some(ChainsRequest { width, early_stop, checked })
    }
}

impl FromStr for Width {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s.parse() {
            Ok(n) if (1..=MAX_WIDTH).contains(&n) => Ok(Self::Chains(n)),
            _ if s == "auto" => Ok(Self::Auto),
            _ => Err(format!("{s:?} is not a number of chains, expected 1 to {MAX_WIDTH}, or auto")),
        }
    }
}

/// The device that a model runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// A GPU if there is one, else the CPU.
    #[default]
    Auto,
    Cpu,
    /// The GPU of that index, or the first.
    Cuda(Option<u32>),
}

impl FromStr for Device {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(None)),
            _ => match s.strip_prefix("cuda:").map(str::parse) {
                Some(Ok(index)) => Ok(Self::Cuda(Some(index))),
                _ => Err(format!("{s:?} is not a device, expected auto, cpu, cuda or cuda:N")),
            },
        }
    }
}

/// The format of keys and values in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kv {
    /// f32 on the CPU, bf16 on a GPU; a smaller format where the context would not fit.
    #[default]
    Auto,
    F32,
    Bf16,
    Fp8,
    Int8,
    K8V4,
}

impl FromStr for Kv {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            "fp8" => Ok(Self::Fp8),
            "int8" => Ok(Self::Int8),
            "k8v4" => Ok(Self::K8V4),
            _ => Err(format!("{s:?} is not a KV format (expected auto, f32, bf16, fp8, int8 or k8v4)")),
        }
    }
}

/// What computes the GEMMs of prefill on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gemm {
    /// cuBLASLt if it can be loaded, else dmschat's own kernels.
    #[default]
    Auto,
    Own,
    CublasLt,
}

impl FromStr for Gemm {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            "own" => Ok(Self::Own),
            "cublaslt" => Ok(Self::CublasLt),
            _ => Err(format!("{s:?} is not a GEMM method, expected auto, own or cublaslt")),
        }
    }
}

/// A number of bytes, with or without a unit: `536870912`, `512MiB`, `1.5G`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub u64);

impl FromStr for ByteSize {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let bad = || format!("{s:?} is not a size, expected bytes such as 536870912, 512MiB or 1.5GB");
        let text = s.trim();
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let unit_bytes: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" => 1000,
            "kib" => 1 << 10,
            "m" | "mb" => 1_000_000,
            "mib" => 1 << 20,
            "g" | "gb" => 1_000_000_000,
            "gib" => 1 << 30,
            "t" | "tb" => 1_000_000_000_000,
            "tib" => 1 << 40,
            _ => return Err(bad()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(unit_bytes).map(Self).ok_or_else(bad);
        }
        let part: f64 = number.parse().map_err(|_| bad())?;
        let bytes = part * unit_bytes as f64;
        if bytes.is_finite() && bytes < u64::MAX as f64 { Ok(Self(bytes as u64)) } else { Err(bad()) }
    }
}

/// Reads a value from a string, or from TOML's own type for it.
struct Spelled<T>(std::marker::PhantomData<T>, &'static str);

impl<T: FromStr<Err = String>> Visitor<'_> for Spelled<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.1)
    }
    fn visit_str<E: Error>(self, s: &str) -> Result<T, E> {
        s.parse().map_err(E::custom)
    }
    fn visit_bool<E: Error>(self, b: bool) -> Result<T, E> {
        b.to_string().parse().map_err(E::custom)
    }
    fn visit_i64<E: Error>(self, n: i64) -> Result<T, E> {
        n.to_string().parse().map_err(E::custom)
    }
}

macro_rules! spelled {
    ($($type:ty: $expected:literal),* $(,)?) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                d.deserialize_any(Spelled::<$type>(std::marker::PhantomData, $expected))
            }
        }
    )*};
}

spelled! {
    OnOff: "true or false, \"on\" or \"off\"",
    Device: "\"auto\", \"cpu\" or \"cuda:N\"",
    Kv: "\"auto\", \"f32\", \"bf16\", \"fp8\", \"int8\" or \"k8v4\"",
    Weights: "\"auto\", \"bf16\", \"int8\" or \"int4\"",
    CachePolicy: "the name of a cache policy, such as \"auto\" or \"window\"",
    CacheBudget: "slots such as 512, or a ratio such as \"4x\"",
    Full: "\"forget\", \"window\" or \"stop\"",
    Pin: "\"system\" or \"none\"",
    Width: "a number of chains, or \"auto\"",
    Gemm: "\"auto\", \"own\" or \"cublaslt\"",
    ByteSize: "bytes, such as \"512MiB\"",
}

/// How a value is written.
macro_rules! written {
    ($($type:ty: $text:expr),* $(,)?) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                let text: fn(&$type) -> String = $text;
                s.serialize_str(&text(self))
            }
        }
    )*};
}

fn lower<T: fmt::Debug>(value: &T) -> String {
    format!("{value:?}").to_ascii_lowercase()
}

written! {
    OnOff: |v| if v.0 { "on" } else { "off" }.to_owned(),
    Device: |v| match v {
        Device::Cuda(Some(index)) => format!("cuda:{index}"),
        Device::Cuda(None) => "cuda".to_owned(),
        device => lower(device),
    },
    Kv: lower,
    CachePolicy: |v| v.name().to_owned(),
    CacheBudget: ToString::to_string,
    Full: |v| lower(&v.0),
    Weights: |v| v.name().to_owned(),
    Pin: lower,
    Width: |v| match v {
        Width::Auto => "auto".to_owned(),
        Width::Chains(n) => n.to_string(),
    },
    Gemm: lower,
    ByteSize: |v| v.0.to_string(),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        for (text, bytes) in [("512MiB", 512 << 20), ("1.5 GB", 1_500_000_000), ("7", 7), ("2k", 2000)] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "x", "1.2.3", "-1", "99999999999999999999", "20000000TiB", "5 bananas"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }
}
