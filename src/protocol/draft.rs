//! Speculative decoding: where drafts come from, and what they did for an answer.

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
    /// [`Self::Mtp`] where the model has such a layer, else a known head that was downloaded, else
    /// [`Self::Lookup`].
    #[default]
    Auto,
    /// The tokens after an earlier occurrence of the newest tokens.
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
            // A head is a path or a hub id. Any other word is a typing error.
            head if head.contains(['/', '\\', '.', '~']) => Ok(Self::Head(head.into())),
            other => Err(format!(
                "{other:?} is not a source of drafts (expected auto, lookup, mtp, off, or the folder or hub id of a head)"
            )),
        }
    }
}

text_serde!(DraftSource, "auto, lookup, mtp, off, or the folder or hub id of a head");

/// Statistics of drafts for an answer. All numbers are finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DraftReport {
    /// Steps that tried drafts, the drafts, and the drafts that became part of the answer.
    pub rounds: u64,
    pub drafted: u64,
    pub accepted: u64,
    /// Tokens that the steps added to the answer, and the cost of the steps, in steps without
    /// drafts. An infinite cost is null in files of older versions.
    pub tokens: u64,
    #[serde(deserialize_with = "or_zero")]
    pub cost: f64,
}

impl DraftReport {
    pub fn observe(&mut self, drafted: usize, accepted: usize, cost: f64) {
        self.rounds += u64::from(drafted > 0);
        self.drafted += drafted as u64;
        self.accepted += accepted as u64;
        self.tokens += accepted as u64 + 1;
        self.cost += cost;
    }

    /// Adds up what drafts did for two answers.
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

    /// How much faster the answer was than without drafts; `None` if none was tried.
    pub fn gain(&self) -> Option<f64> {
        (self.rounds > 0 && self.cost > 0.0).then(|| self.tokens as f64 / self.cost)
    }

    /// Mean number of tokens that a step with drafts added.
    pub fn accepted_length(&self) -> Option<f64> {
        (self.rounds > 0).then(|| 1.0 + self.accepted as f64 / self.rounds as f64)
    }
}
