//! The decision offset at which a model of random weights keeps a wanted share of its tokens.

use crate::backend::cpu::Cpu;
use crate::checkpoint::Checkpoint;
use crate::codec::Codec;
use crate::engine::{EngineOptions, Runner};
use anyhow::{Context, Result, ensure};

/// Tokens beyond the window by which a share is judged.
const TOKENS: usize = 256;
/// Layers by which it is judged: random ones are all alike.
const LAYERS: usize = 4;
/// Halvings of the range: a share to about a hundredth.
const ROUNDS: usize = 8;

/// Sets the checkpoint's `alpha_offset` so that about `keep` of the tokens beyond the window are kept,
/// by the shares that short prefills leave; returns it.
pub(super) fn alpha_offset(checkpoint: &mut Checkpoint, threads: usize, keep: f64) -> Result<f32> {
    ensure!(keep > 0.0 && keep <= 1.0, "--keep {keep} is no share of tokens, expected more than 0 and at most 1");
    let scale = checkpoint.config.dms.as_ref().context("--keep: this model does not evict")?.alpha_scale;
    // Decisions are near N(0, 1) before scale and offset; a mark needs more than the offset.
    let (mut low, mut high) = (-4.0 * scale, 4.0 * scale);
    let layers = checkpoint.config.n_layers;
    checkpoint.config.n_layers = layers.min(LAYERS);
    for _ in 0..ROUNDS {
        let middle = (low + high) / 2.0;
        set(checkpoint, middle);
        if kept(checkpoint, threads)? < keep { low = middle } else { high = middle }
    }
    checkpoint.config.n_layers = layers;
    let offset = (low + high) / 2.0;
    set(checkpoint, offset);
    Ok(offset)
}

fn set(checkpoint: &mut Checkpoint, offset: f32) {
    if let Some(dms) = &mut checkpoint.config.dms {
        dms.alpha_offset = offset;
    }
}

/// Share of the tokens beyond the window that are still there.
pub(super) fn kept(checkpoint: &Checkpoint, threads: usize) -> Result<f64> {
    let c = &checkpoint.config;
    let recent = c.dms.as_ref().context("a rule")?.rule.ring_len();
    let context = recent + TOKENS;
    let options = EngineOptions { context: Some(context), ..EngineOptions::new(Codec::F32) };
    let mut runner = Runner::new(Cpu::new(threads), checkpoint, &options, |_, _| true)?;
    let seq = runner.create(true)?;
    for step in super::prompt(context, c.vocab, 0).chunks(runner.max_step()) {
        runner.feed(seq, step)?;
    }
    let lanes = c.n_layers * c.n_kv_heads;
    let live = runner.cache.stats(runner.backend(), seq).live_slots as usize;
    Ok((live - lanes * recent) as f64 / (lanes * TOKENS) as f64)
}
