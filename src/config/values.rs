//! Values that flags, the environment and the config file write in the same way.

use crate::codec::Codec;
use crate::policy::{Budget, PolicyKind};
use crate::protocol::{ChainsRequest, DraftSource, MAX_WIDTH, WhenFull};
use crate::quant::Weights;
use crate::words::{text_serde, words};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::path::PathBuf;
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

impl fmt::Display for OnOff {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(if self.0 { "on" } else { "off" })
    }
}

/// A value, or `auto`: what suits the device and the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auto<T> {
    #[default]
    Auto,
    Is(T),
}

impl<T: fmt::Display> fmt::Display for Auto<T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Is(value) => value.fmt(f),
        }
    }
}

impl<T: FromStr<Err = String>> FromStr for Auto<T> {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            s => s.parse().map(Self::Is).map_err(|why: String| why.replacen("(expected ", "(expected auto, ", 1)),
        }
    }
}

/// Text that is pinned by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    System,
    None,
}

words! { Pin, "known", { System = "system", None = "none" } }

/// The keymaps that ship.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeymapName {
    #[default]
    Default,
    Vim,
}

words! { KeymapName, "a keymap", { Default = "default", Vim = "vim" } }

/// How many chains answer a question: a number, or `auto`, as many as fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    Auto,
    Chains(usize),
}

impl Width {
    /// Number of chains asked of the engine; `None` is the ordinary answer.
    pub fn request(self, early_stop: bool, checked: bool) -> Option<ChainsRequest> {
        let width = match self {
            Self::Chains(1) => return None,
            Self::Chains(n) => Some(n),
            Self::Auto => None,
        };
        Some(ChainsRequest { width, early_stop, checked, may_equal: false })
    }
}

impl fmt::Display for Width {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Chains(n) => n.fmt(f),
        }
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

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(None) => f.write_str("cuda"),
            Self::Cuda(Some(index)) => write!(f, "cuda:{index}"),
        }
    }
}

/// Library or kernels that compute the GEMMs of prefill on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gemm {
    /// cuBLASLt if it can be loaded, else dmschat's own kernels.
    #[default]
    Auto,
    Own,
    CublasLt,
}

words! { Gemm, "a GEMM method", { Auto = "auto", Own = "own", CublasLt = "cublaslt" } }

/// The adapter to use with the model: `auto`, `none`, a file, a folder or a hub id.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum Adapter {
    /// No adapter file: the model's own DMS, or a built-in one, if any.
    #[default]
    Auto,
    None,
    File(PathBuf),
}

/// By what 4-bit codes are chosen: `auto`, `measured`, `gptq`, or a file of llama.cpp's imatrix
/// tool.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum Importance {
    /// The importance matrix that was published with the model if it is on this machine, else
    /// measured; and GPTQ for small models.
    #[default]
    Auto,
    Measured,
    /// As `auto`, with GPTQ for a model of any size.
    Gptq,
    File(PathBuf),
}

/// Text form of an enum of words and `File`, which any other text is.
macro_rules! words_or_file {
    ($type:ident { $($variant:ident = $word:literal),* }) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
                match self {
                    $(Self::$variant => f.write_str($word),)*
                    Self::File(path) => path.display().fmt(f),
                }
            }
        }

        impl FromStr for $type {
            type Err = String;
            fn from_str(s: &str) -> Result<Self, String> {
                Ok(match s {
                    $($word => Self::$variant,)*
                    file => Self::File(file.into()),
                })
            }
        }
    };
}

words_or_file! { Adapter { Auto = "auto", None = "none" } }
words_or_file! { Importance { Auto = "auto", Measured = "measured", Gptq = "gptq" } }

/// Comma-separated values of a flag. Only commands that compare accept more than one.
#[derive(Clone, Debug, PartialEq)]
pub struct List<T>(pub Vec<T>);

impl<T> List<T> {
    pub fn of(value: T) -> Self {
        Self(vec![value])
    }
}

impl<T: FromStr> FromStr for List<T> {
    type Err = T::Err;
    fn from_str(s: &str) -> Result<Self, T::Err> {
        // Splitting gives at least one part, so there is a first value.
        s.split(',').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        T::deserialize(d).map(Self::of)
    }
}

impl<T: Serialize> Serialize for List<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0[0].serialize(s)
    }
}

/// Type of a setting once all sources are merged.
pub trait Setting {
    type Is;
    fn resolve(self) -> Self::Is;
    /// Number of values.
    fn count(&self) -> usize {
        1
    }
}

impl<T: Setting> Setting for List<T> {
    type Is = T::Is;
    fn resolve(mut self) -> T::Is {
        self.0.swap_remove(0).resolve()
    }
    fn count(&self) -> usize {
        self.0.len()
    }
}

macro_rules! resolves {
    ($($type:ty => $is:ty: $value:expr;)*) => {$(
        impl Setting for $type {
            type Is = $is;
            fn resolve(self) -> $is {
                let value: fn(Self) -> $is = $value;
                value(self)
            }
        }
    )*};
    ($($type:ty),* $(,)?) => { resolves! { $($type => $type: |v| v;)* } };
}

resolves! { OnOff => bool: |on| on.0; ByteSize => u64: |bytes| bytes.0; }
resolves! { String, PathBuf, usize, u64, f64, Adapter, Importance, Device, Weights, Gemm, Auto<Codec>, PolicyKind, Budget, WhenFull, Pin, KeymapName, DraftSource, Width, FarSize }

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

/// Host memory for what leaves the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FarSize {
    /// As much as the model needs, or none.
    Auto,
    Off,
    Bytes(ByteSize),
}

impl FarSize {
    /// The bytes that are asked for.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Bytes(size) => Some(size.0),
            Self::Auto | Self::Off => None,
        }
    }
}

impl FromStr for FarSize {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            s => s.parse().map(Self::Bytes).map_err(|_| format!("{s:?} is neither auto, off nor a size such as 2GiB")),
        }
    }
}

impl fmt::Display for FarSize {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Bytes(size) => size.fmt(f),
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1, "")];
        let (unit, name) =
            units.into_iter().find(|(unit, _)| self.0 > 0 && self.0.is_multiple_of(*unit)).unwrap_or((1, ""));
        write!(f, "{}{name}", self.0 / unit)
    }
}

text_serde!(OnOff, "true or false, \"on\" or \"off\"");
text_serde!(Auto<Codec>, "\"auto\" or the name of a KV format");
text_serde!(Adapter, "\"none\", a file, a folder or a hub id");
text_serde!(Importance, "\"auto\", \"measured\", \"gptq\" or a file");
text_serde!(Device, "\"auto\", \"cpu\" or \"cuda:N\"");
text_serde!(Width, "a number of chains, or \"auto\"");
text_serde!(FarSize, "\"auto\", \"off\", or bytes such as \"2GiB\"");
text_serde!(ByteSize, "bytes, such as \"512MiB\"");

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
            assert!(text.parse::<FarSize>().is_err(), "{text}");
        }
        assert_eq!(("auto".parse(), "off".parse()), (Ok(FarSize::Auto), Ok(FarSize::Off)));
        assert_eq!("2GiB".parse(), Ok(FarSize::Bytes(ByteSize(2 << 30))));
    }
}
