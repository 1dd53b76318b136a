//! What fits, said before anything is loaded: pure arithmetic over sizes.

use super::EngineOptions;
use crate::checkpoint::{Checkpoint, ModelConfig};
use crate::codec::Codec;
use crate::protocol::Plan;

/// Kept free of all that is planned, for everything else that runs: a share of the memory, and at most so much.
const SPARE_SHARE: u64 = 16;
const SPARE_BYTES: u64 = 256 << 20;

/// Bytes one token takes in a dense cache.
pub fn dense_token_bytes(c: &ModelConfig, codec: Codec) -> u64 {
    (c.n_layers * c.n_kv_heads * codec.slot_bytes(c.head_dim)) as u64
}

/// Bytes that KV pages may take: what memory is left beside what is `fixed` (weights and workspace), or less
/// where the user says so. Absent when neither is known.
pub fn kv_budget(fixed: u64, kv_limit: Option<u64>, memory_bytes: Option<u64>) -> Option<u64> {
    let free = memory_bytes.map(|m| m.saturating_sub(fixed + SPARE_BYTES.min(m / SPARE_SHARE)));
    match (free, kv_limit) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Plans for `context` tokens. Where it is not known what memory is free, everything is taken to fit. Weights in a
/// mapped file count fully: they must stay resident.
pub fn plan(checkpoint: &Checkpoint, options: &EngineOptions, context: usize, kv_limit: Option<u64>) -> Plan {
    let c = &checkpoint.config;
    let token = dense_token_bytes(c, options.codec);
    let budget = kv_budget(checkpoint.weight_bytes + options.workspace_bytes, kv_limit, options.memory_bytes);
    let ratio = c.dms.as_ref().and_then(|d| d.target_ratio).unwrap_or(1.0).max(1.0);
    let fits = |ratio: f64| budget.map_or(context, |b| ((b as f64 * ratio / token as f64) as usize).min(context));
    Plan {
        weight_bytes: checkpoint.weight_bytes,
        workspace_bytes: options.workspace_bytes,
        kv_budget_bytes: budget,
        dense_kv_bytes: token * context as u64,
        expected_kv_bytes: (token as f64 * context as f64 / ratio) as u64,
        certain_context: fits(1.0),
        expected_context: fits(ratio),
    }
}
