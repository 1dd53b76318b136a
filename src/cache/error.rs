//! Why the cache refuses a step.

use crate::backend::{OutOfMemory, in_units};

/// Why a step or a sequence was refused. The step has not run.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// One token takes `least_bytes`: a page in every lane.
    #[error("{}", past_the_limit(*needed_bytes, *limit_bytes, *least_bytes))]
    Limit { needed_bytes: u64, limit_bytes: u64, least_bytes: u64 },
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    #[error("no sequence is free: all {0} are in use")]
    Sequences(usize),
}

fn past_the_limit(needed: u64, limit: u64, least: u64) -> String {
    let [needed, shown, fewest] = [needed, limit, least].map(in_units);
    match limit < least {
        true => format!("the KV cache's limit of {shown} is too small: one token takes {fewest}"),
        false => format!("the KV cache is full: {needed} more would pass the limit of {shown}"),
    }
}
