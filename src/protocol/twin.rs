//! The twin: the same answer scored without eviction.

use super::number::each_or_zero;
use serde::{Deserialize, Serialize};

/// How an answer compares with a twin, a sequence without eviction that is fed the same tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TwinReport {
    /// KL(twin || conversation) of the distribution that each generated token was sampled from, in
    /// nats at temperature 1. Shorter than the answer if the twin was released.
    #[serde(deserialize_with = "each_or_zero")]
    pub kl: Vec<f32>,
    /// Number of tokens that the twin would not have chosen.
    pub differences: usize,
    /// The first of them.
    pub first: Option<TwinDifference>,
    /// Bytes of the twin's cache.
    pub bytes: u64,
}

/// A token that the twin would not have chosen, with the same sampling parameters, seed and
/// position.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TwinDifference {
    /// Index among the generated tokens.
    pub at: usize,
    /// Bytes of the answer before it; `None` in a think block, and in files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_bytes: Option<usize>,
    /// The end of the answer before it.
    pub after: String,
    /// The text of the token.
    pub said: String,
    /// The text of the twin's choice.
    pub instead: String,
}

impl TwinReport {
    /// Mean KL divergence in nats; `None` if nothing was compared.
    pub fn mean_kl(&self) -> Option<f64> {
        let sum: f64 = self.kl.iter().map(|&kl| f64::from(kl)).sum();
        (!self.kl.is_empty()).then(|| sum / self.kl.len() as f64)
    }
}
