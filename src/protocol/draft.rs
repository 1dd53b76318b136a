//! Speculative decoding: the sources of drafts, and the statistics of an answer's drafts.

use super::number::or_zero;
use crate::words::text_serde;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Maximum drafts of a step.
pub const MAX_DRAFTS: usize = 15;

/// Where drafts come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DraftSource {
    /// [`Self::Mtp`] if the model has a layer for multi-token prediction, else a known head that
    /// has been downloaded, else [`Self::Lookup`].
    #[default]
    Auto,
    /// Prompt lookup: the tokens after an earlier occurrence of the newest tokens.
    Lookup,
    /// No drafts: every step has one token.
    Off,
    /// The model's own layer for multi-token prediction.
    Mtp,
    /// A trained head: a folder or a hub id.
    Head(PathBuf),
}

impl DraftSource {
    pub const WORDS: [&str; 4] = ["auto", "lookup", "mtp", "off"];
}

impl fmt::Display for DraftSource {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Lookup => f.pad("lookup"),
            Self::Mtp => f.pad("mtp"),
            Self::Off => f.pad("off"),
            Self::Head(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for DraftSource {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            "lookup" => Ok(Self::Lookup),
            "mtp" => Ok(Self::Mtp),
            "off" => Ok(Self::Off),
            // A path or a hub id has one of these characters. Any other word is a typo.
            head if head.contains(['/', '\\', '.', '~']) => Ok(Self::Head(head.into())),
            other => Err(format!(
                "{other:?} is not a source of drafts (expected auto, lookup, mtp, off, or the folder or hub id of a head)"
            )),
        }
    }
}

text_serde!(DraftSource, "auto, lookup, mtp, off, or the folder or hub id of a head");

/// Statistics of an answer's drafts. All numbers are finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DraftReport {
    /// Steps that tried drafts.
    pub rounds: u64,
    /// Drafts tried.
    pub drafted: u64,
    /// Drafts accepted into the answer.
    pub accepted: u64,
    /// Tokens that all steps together added to the answer.
    pub tokens: u64,
    /// Cost of all steps together; a step without drafts costs 1. Older versions wrote null for an
    /// infinite cost.
    #[serde(deserialize_with = "or_zero")]
    pub cost: f64,
}

impl DraftReport {
    /// Records a step of the answer.
    pub fn observe(&mut self, drafted: usize, accepted: usize, cost: f64) {
        self.rounds += u64::from(drafted > 0);
        self.drafted += drafted as u64;
        self.accepted += accepted as u64;
        self.tokens += accepted as u64 + 1;
        self.cost += cost;
    }

    /// Sums the statistics of two answers.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            rounds: self.rounds + other.rounds,
            drafted: self.drafted + other.drafted,
            accepted: self.accepted + other.accepted,
            tokens: self.tokens + other.tokens,
            cost: self.cost + other.cost,
        }
    }

    /// Speedup of the answer over steps without drafts; `None` if no draft was tried.
    pub fn gain(&self) -> Option<f64> {
        (self.rounds > 0 && self.cost > 0.0).then(|| self.tokens as f64 / self.cost)
    }

    /// Mean number of tokens that a step with drafts added; `None` if no draft was tried.
    pub fn accepted_length(&self) -> Option<f64> {
        (self.rounds > 0).then(|| 1.0 + self.accepted as f64 / self.rounds as f64)
    }
}
