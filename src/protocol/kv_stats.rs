//! Figures of a cache.

use super::number::or_zero;
use crate::codec::Codec;
use serde::{Deserialize, Serialize};

/// Cache figures after a step. A dense cache holds `n x layers x KV heads` slots for `n` tokens, if
/// no layer has its own window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KvStats {
    pub codec: Codec,
    pub live_slots: u64,
    pub dense_slots: u64,
    /// Compression ratio `dense_slots / live_slots`; `None` (JSON null) for an empty cache.
    pub ratio: Option<f64>,
    /// Bytes of the pages in use, including snapshots. Shared pages count once.
    pub bytes: u64,
    /// Bytes of live slots.
    pub live_bytes: u64,
    /// Bytes of a dense cache with the same codec and tokens.
    pub dense_bytes: u64,
    /// Live slots `[n_layers][n_kv_heads]`; of several chains their mean.
    pub live: Vec<Vec<u32>>,
    /// Slots of one head of a dense cache, by layer. Empty in files of older versions:
    /// [`Self::dense_of`].
    #[serde(default)]
    pub dense: Vec<u32>,
    /// Slots that the decode steps of the answer attended to, per KV head and layer, over all its
    /// chains. 0 in files of older versions.
    #[serde(default, deserialize_with = "or_zero")]
    pub reads: f64,
    /// Most slots stored at a time, per KV head and layer; of several chains the sum of each one's
    /// maximum.
    #[serde(default, deserialize_with = "or_zero")]
    pub peak_slots: f64,
    /// Slots of the most pages that several chains and their prompt held at a time, per KV head and
    /// layer. Pages that they share count once. `None` for the answer of one chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_shared: Option<f64>,
    /// Rows that left the cache and are kept in host memory, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub far: Option<FarStats>,
}

/// Rows that left the cache and are kept, summed over layers and KV heads: [`crate::policy::far`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FarStats {
    pub rows: u64,
    /// Rows that attention reads.
    pub near: u64,
    /// Rows that were dropped for good, because the memory was full.
    pub dropped: u64,
    /// Host memory of the sequence's pages, and the most that those of all sequences may have.
    pub bytes: u64,
    pub limit_bytes: u64,
    /// Pages that the choices of the newest turn brought near, at the end of its prompt and in its
    /// answer. 0 in files of older versions.
    #[serde(default)]
    pub fetched: u64,
    /// Those pages `[n_layers][n_kv_heads]`, of several chains the mean of each head. `fetched` is
    /// their sum. Empty in files of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fetched_by_head: Vec<Vec<u32>>,
}

impl KvStats {
    pub fn empty(codec: Codec, n_layers: usize, n_kv_heads: usize) -> Self {
        Self { codec, live: vec![vec![0; n_kv_heads]; n_layers], dense: vec![0; n_layers], ..Self::default() }
    }

    /// Slots of one head of a layer in a dense cache.
    pub fn dense_of(&self, layer: usize) -> u64 {
        let heads: usize = self.live.iter().map(Vec::len).sum();
        let mean = || self.dense_slots.checked_div(heads as u64).unwrap_or(0);
        self.dense.get(layer).map_or_else(mean, |&dense| dense.into())
    }

    /// Tokens of the sequence: what a head of a dense cache holds at most.
    pub fn tokens(&self) -> u64 {
        (0..self.live.len()).map(|layer| self.dense_of(layer)).max().unwrap_or(0)
    }

    /// Live slots of a head relative to a dense cache; `None` before the first token.
    pub fn retention(&self, layer: usize, head: usize) -> Option<f64> {
        let (live, dense) = (*self.live.get(layer)?.get(head)?, self.dense_of(layer));
        (dense > 0).then(|| f64::from(live) / dense as f64)
    }
}
