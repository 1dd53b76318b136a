//! Chooses the decision offset at which a model with random weights keeps a given share of its
//! tokens.

use crate::backend::Measure;
use crate::checkpoint::Checkpoint;
use crate::codec::Codec;
use crate::engine::{EngineOptions, Runner};
use anyhow::{Context, Result, ensure};

/// Tokens beyond the window over which the share is measured.
const TOKENS: usize = 256;
/// Number of layers over which it is measured: layers with random weights are alike.
const LAYERS: usize = 4;
/// Bisection steps: they determine the share to about a hundredth.
const ROUNDS: usize = 8;

/// Sets the checkpoint's `alpha_offset` so that about `keep` of the tokens beyond the window stay,
/// and returns the offset. Bisects with short prefills on backends from `open`.
pub fn set_kept_share<B: Measure>(checkpoint: &mut Checkpoint, keep: f64, open: impl Fn() -> B) -> Result<f32> {
    ensure!(keep > 0.0 && keep <= 1.0, "--keep {keep} is not a share of tokens, expected more than 0 and at most 1");
    let scale = checkpoint.config.dms.as_ref().context("--keep: this model does not evict")?.alpha_scale;
    // Decision logits are near N(0, 1) before scale and offset; a token is evicted if its logit
    // exceeds the offset.
    let (mut low, mut high) = (-4.0 * scale, 4.0 * scale);
    let layers = checkpoint.config.n_layers;
    checkpoint.config.n_layers = layers.min(LAYERS);
    for _ in 0..ROUNDS {
        let middle = (low + high) / 2.0;
        set(checkpoint, middle);
        if kept(checkpoint, open())? < keep { low = middle } else { high = middle }
    }
    checkpoint.config.n_layers = layers;
    let offset = (low + high) / 2.0;
    set(checkpoint, offset);
    Ok(offset)
}

/// Sets the checkpoint's `alpha_offset` to one that [`set_kept_share`] has found before.
pub fn set_offset(checkpoint: &mut Checkpoint, offset: f32) -> Result<()> {
    ensure!(
        offset.is_finite(),
        "--offset {offset} is not an offset, expected a number that bench --keep-ratio printed"
    );
    ensure!(checkpoint.config.dms.is_some(), "--offset: this model does not evict");
    set(checkpoint, offset);
    Ok(())
}

fn set(checkpoint: &mut Checkpoint, offset: f32) {
    if let Some(dms) = &mut checkpoint.config.dms {
        dms.alpha_offset = offset;
    }
}

/// Share of the tokens beyond the window that are still in the cache after a prefill.
pub(super) fn kept<B: Measure>(checkpoint: &Checkpoint, b: B) -> Result<f64> {
    let c = &checkpoint.config;
    let recent = c.dms.as_ref().context("a DMS model")?.rule.ring_len();
    let context = recent + TOKENS;
    let options = EngineOptions { context: Some(context), ..EngineOptions::new(Codec::default()) };
    let mut runner = Runner::new(b, checkpoint, &options, |_, _| true)?;
    let seq = runner.create(true)?;
    for chunk in super::prompt(context, c.vocab, 0).chunks(runner.max_step()) {
        runner.feed(seq, chunk)?;
    }
    let lanes = runner.cache.geometry().deciding_lanes().count();
    let (_, live) = runner.cache.stats(runner.backend(), seq).decided(runner.cache.geometry());
    Ok((live as usize - lanes * recent) as f64 / (lanes * TOKENS) as f64)
}
