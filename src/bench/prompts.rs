//! Tokens of a benchmark, and bytes that it reads.

use crate::checkpoint::Checkpoint;
use crate::protocol::Token;
use crate::tensor::Tensor;

pub(super) const SEED: u64 = 1;

/// The prompt of sequence `number`: random tokens, the same on every call.
pub(super) fn prompt(len: usize, vocab: usize, number: u64) -> Vec<Token> {
    let seed = (SEED ^ 0x5eed) + (number << 32);
    (0..len).map(|i| (crate::sampler::uniform(seed, i as u64) * vocab as f32) as Token).collect()
}

/// Weights that each decoded token reads: all except an untied embedding and experts that are not
/// chosen.
pub fn read_by_token(checkpoint: &Checkpoint) -> impl Iterator<Item = &Tensor> {
    let untied = |name: &str| !checkpoint.config.tied && name.ends_with("embed_tokens.weight");
    let chosen = checkpoint.config.spec.experts.map_or(0, |experts| experts.per_token);
    let expert = |name: &str| name.split_once(".experts.")?.1.split('.').next()?.parse::<usize>().ok();
    let reads = move |name: &str| !untied(name) && expert(name).is_none_or(|expert| expert < chosen);
    checkpoint.tensors.iter().filter(move |(name, _)| reads(name)).map(|(_, tensor)| tensor)
}

/// Bytes of weights that each decoded token reads.
pub fn weight_bytes(checkpoint: &Checkpoint) -> u64 {
    read_by_token(checkpoint).map(|t| t.stored_bytes() as u64).sum()
}
