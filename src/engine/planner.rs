//! Memory planning before anything is loaded: pure arithmetic over sizes.

use super::EngineOptions;
use crate::backend::seen_words;
use crate::cache::PAGE_SLOTS;
use crate::checkpoint::{Checkpoint, ModelConfig};
use crate::codec::Codec;
use crate::model::step_token_bytes;
use crate::policy::Policy;
use crate::protocol::{MAX_CONTEXT, Plan};

// Configurations and settings have the same bound.
const _: () = assert!(crate::checkpoint::bounds::CONTEXT == MAX_CONTEXT);

/// Minimum rows of logits in the workspace, used when a text is scored.
pub(super) const MAX_LOGITS: usize = 16;

/// Memory that is left free for other programs: this share of the memory, at most this many bytes.
const SPARE_SHARE: u64 = 16;
const SPARE_BYTES: u64 = 256 << 20;

/// The cache's policy; dense where the model cannot have it, which loading refuses later.
fn policy(c: &ModelConfig, options: &EngineOptions) -> Policy {
    options.policy.resolve(c.dms.as_ref().map(|d| d.rule)).unwrap_or(Policy::Dense)
}

/// Bytes per token of a dense cache.
pub fn dense_token_bytes(c: &ModelConfig, codec: Codec) -> u64 {
    (c.n_layers * c.n_kv_heads * codec.slot_bytes(c.head_dim)) as u64
}

/// Bytes of page table per token of context: one entry per page in every lane, used or not.
fn table_token_bytes(c: &ModelConfig, options: &EngineOptions) -> f64 {
    (c.n_layers * c.n_kv_heads * options.max_seqs * size_of::<i32>()) as f64 / PAGE_SLOTS as f64
}

/// Bytes of page tables for `context` tokens.
pub fn table_bytes(c: &ModelConfig, options: &EngineOptions, context: usize) -> u64 {
    (table_token_bytes(c, options) * context as f64) as u64
}

/// Bytes of host memory that a model needs beside weights and pages: page tables, rings, the bit sets of fed tokens, and
/// the workspace of a step.
pub fn host_bytes(c: &ModelConfig, options: &EngineOptions, context: usize) -> u64 {
    let lanes = c.n_layers * c.n_kv_heads * options.max_seqs;
    let rings = size_of::<i32>() * lanes * (policy(c, options).ring_len() + 1);
    let seen = size_of::<u32>() * options.max_seqs * seen_words(c.vocab);
    let step = options.max_step.unwrap_or(HOST_STEP).min(context).max(options.max_seqs);
    let logits = size_of::<f32>() * c.vocab * MAX_LOGITS.max(options.max_seqs);
    let scratch = step_token_bytes(c) * step.max(MAX_LOGITS);
    table_bytes(c, options, context) + (rings + seen + logits + scratch) as u64
}

/// Default tokens of a step on host backends.
const HOST_STEP: usize = 512;

/// Longest context whose dense cache and page tables fit in memory beside the weights and `beside` other bytes.
pub fn longest_context(checkpoint: &Checkpoint, options: &EngineOptions, beside: u64) -> Option<usize> {
    let c = &checkpoint.config;
    let free = kv_budget(checkpoint.weight_bytes + beside, None, options.memory_bytes)?;
    let token = dense_token_bytes(c, options.codec) as f64 + table_token_bytes(c, options);
    Some((free as f64 / token) as usize)
}

/// Bytes of free memory that are left to other programs.
pub fn spare_bytes(memory_bytes: Option<u64>) -> u64 {
    memory_bytes.map_or(0, |m| SPARE_BYTES.min(m / SPARE_SHARE))
}

/// Bytes available for KV pages: free memory less the `fixed` bytes (weights and workspace), limited by `kv_limit`.
/// `None` if neither is known.
pub fn kv_budget(fixed: u64, kv_limit: Option<u64>, memory_bytes: Option<u64>) -> Option<u64> {
    let free = memory_bytes.map(|m| m.saturating_sub(fixed + spare_bytes(memory_bytes)));
    match (free, kv_limit) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Plans memory for `context` tokens. If the free memory is unknown, everything is assumed to fit. Mapped weights count
/// fully, because they must stay resident.
pub fn plan(checkpoint: &Checkpoint, options: &EngineOptions, context: usize, kv_limit: Option<u64>) -> Plan {
    let c = &checkpoint.config;
    let token = dense_token_bytes(c, options.codec);
    let budget = kv_budget(checkpoint.weight_bytes + options.workspace_bytes, kv_limit, options.memory_bytes);
    let policy = policy(c, options);
    let trained = c.dms.as_ref().and_then(|d| d.target_ratio).unwrap_or(1.0).max(1.0);
    let ratio = match policy {
        Policy::Dense => 1.0,
        Policy::Dms(_) => trained,
        Policy::Window(window) => (context as f64 / window.budget as f64).max(1.0),
    };
    // Lanes allocate whole pages.
    let page_row = (token * PAGE_SLOTS as u64) as f64;
    let fits = |ratio: f64| {
        let tokens = |bytes: u64| (bytes as f64 * ratio / page_row) as usize * PAGE_SLOTS;
        budget.map_or(context, |bytes| tokens(bytes).min(context))
    };
    Plan {
        weight_bytes: checkpoint.weight_bytes,
        workspace_bytes: options.workspace_bytes,
        kv_budget_bytes: budget,
        dense_kv_bytes: token * context as u64,
        expected_kv_bytes: (token as f64 * context as f64 / ratio) as u64,
        certain_context: fits(1.0),
        expected_context: match policy {
            // A lane stops growing at its budget.
            Policy::Window(window) if fits(1.0) < window.budget.min(context) => fits(1.0),
            _ => fits(ratio),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_counted_in_whole_pages() {
        let checkpoint = Checkpoint::random("demo").unwrap();
        let options = EngineOptions::new(Codec::F32);
        // 32 lanes x 16 slots x 516 bytes are 264,192 bytes: three times in 1 MiB.
        assert_eq!(plan(&checkpoint, &options, 8192, Some(1 << 20)).certain_context, 48);
    }
}
