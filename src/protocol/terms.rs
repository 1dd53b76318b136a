//! What all messages speak of: tokens, pieces of text, and how counts are written.

use crate::words::words;
use serde::Deserialize;

/// A token id.
pub type Token = u32;

/// Formats a number with commas between thousands: `12,606`.
pub fn count(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats bytes with a decimal unit: `812 B`, `3.4 MB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{n} B")
    } else if value < 99.95 {
        format!("{value:.1} {}", UNITS[unit])
    } else {
        format!("{value:.0} {}", UNITS[unit])
    }
}

/// Maximum tokens of a context: a slot stores its position in 20 bits.
pub const MAX_CONTEXT: usize = 1 << 20;

/// A piece of a rendered conversation. Only `Control` may become control tokens: text that people
/// type, paste or load is always `Text`, which is encoded without added tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The literal of an added token, written by the template: `<|im_start|>`.
    Control(String),
    /// Ordinary text. Adjacent texts are encoded as one.
    Text(String),
    /// The model's reply of `turn`, whole or without its think block. The engine reuses the
    /// generated token ids if it has them and they spell the same text.
    Reply { turn: u64, pieces: Vec<Piece> },
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended its turn.
    End,
    MaxTokens,
    ContextFull,
    CacheFull,
    Cancelled,
    Error,
}

words! { StopReason, "a reason to stop", {
    End = "end",
    MaxTokens = "max_tokens",
    ContextFull = "context_full",
    CacheFull = "cache_full",
    Cancelled = "cancelled",
    Error = "error",
} }

pub(super) fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Reads a field that is present, null or not; `serde(default)` supplies a missing one.
pub(super) fn present<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// The part of a reply that a text belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextKind {
    Reasoning,
    Answer,
}
