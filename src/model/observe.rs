//! A forward pass that reports the data for fitting a predictor of importance: each layer's normed
//! input, its values, and the attention that chosen queries pay to each token.

use super::{Model, Step, Workspace};
use crate::backend::{Linear, Measure, QkvRopeArgs, Queries};
use crate::checkpoint::LayerKind;
use crate::policy::KvHeads;
use std::ops::Range;

/// Row ranges of a sequence, which is one step from its first token on.
pub struct Text {
    /// Tokens whose importance is measured.
    pub tokens: Range<usize>,
    /// Queries whose attention measures the importance.
    pub queries: Range<usize>,
}

/// Observations of `Text::tokens` in a layer of the cache that is not local.
pub struct Observed<'a> {
    /// Index among the layers of the cache.
    pub layer: usize,
    /// `[tokens, hidden]`: the layer's input after its norm.
    pub hidden: &'a [f32],
    /// `[tokens, n_kv_heads * head_dim]`, as attention adds them.
    pub values: &'a [f32],
    /// `[n_q_heads, tokens]`: largest attention that a query pays to the token, divided by the norm
    /// of the query's `hidden`.
    pub attention: &'a [f32],
}

/// Runs a dense forward pass of one sequence and calls `each` for every attention layer that is not
/// local. The model itself fixes which tokens a local layer keeps, so those are skipped. The
/// layers' projections are computed twice.
pub fn observe<B: Measure>(mut step: Step<'_, B>, text: &Text, mut each: impl FnMut(Observed<'_>)) {
    let Step { b, model, .. } = step;
    let (c, n) = (&model.config, step.n());
    let KvHeads { count, dim } = c.deciding_heads();
    let (kv_width, q_width) = (count * dim, c.n_q_heads * dim);
    let width = c.qkv_width(LayerKind::ATTENTION);
    let mut hidden = vec![0.0; n * c.hidden];
    let mut projected = vec![0.0; text.tokens.end * width];
    let mut values = vec![0.0; text.tokens.len() * kv_width];
    let (mut most, mut attention) = (vec![0.0; c.n_q_heads * text.tokens.end], Vec::new());
    step.forward_with(|l, ws, cache| {
        let layer = &model.layers[l];
        let Some(mixer) = layer.mixer.attention().filter(|mixer| mixer.kind.decides() && mixer.kind.stores()) else {
            return;
        };
        let norm = model.norm(l, &layer.input_norm, &mut ws.non_finite);
        b.rms_norm(&mut ws.h, &ws.x, norm, None, n);
        b.read_acts(&ws.h, &mut hidden);
        let qkv = Linear { bias: mixer.qkv_bias.as_ref(), ..Linear::plain(&mixer.qkv) };
        let rows = ws.qkv.of(model.qkv_width(mixer));
        b.linear(rows, &ws.h, qkv, n);
        b.read_acts(rows, &mut projected);
        for (values, i) in values.chunks_exact_mut(kv_width).zip(text.tokens.clone()) {
            values.copy_from_slice(&projected[i * width + q_width + kv_width..][..kv_width]);
            values.chunks_exact_mut(dim).filter(|_| c.spec.v_norm).for_each(|head| norm_value(head, c.rms_eps));
        }
        let norm_of = |i: usize| hidden[i * c.hidden..][..c.hidden].iter().map(|x| x * x).sum::<f32>().sqrt();
        let factors: Vec<f32> = text.queries.clone().map(|i| 1.0 / norm_of(i).max(f32::MIN_POSITIVE)).collect();
        let (inv_freq, rope_scale) = model.rope(mixer);
        let rope = QkvRopeArgs {
            qk_norm: mixer.qk_norm.as_ref().map(|(q, k)| [q, k]),
            rms_eps: c.rms_eps,
            rope_scale,
            growth: model.growth(),
            v_norm: c.spec.v_norm,
            borrowed: model.borrowed(None),
            sinks: mixer.sinks.as_ref(),
            ..QkvRopeArgs::plain(inv_freq)
        };
        let queries = Queries { rows: text.queries.clone(), factors: &factors };
        b.importance(&mut most, rows, &cache.geometry().of_layer(mixer.index), &rope, &queries);
        attention.clear();
        most.chunks_exact(text.tokens.end).for_each(|head| attention.extend_from_slice(&head[text.tokens.clone()]));
        let hidden = &hidden[text.tokens.start * c.hidden..text.tokens.end * c.hidden];
        each(Observed { layer: mixer.index, hidden, values: &values, attention: &attention });
    });
}

/// The RMS norm of a value without weights.
fn norm_value(head: &mut [f32], eps: f32) {
    let mean = head.iter().map(|x| x * x).sum::<f32>() / head.len() as f32;
    head.iter_mut().for_each(|x| *x /= (mean + eps).sqrt());
}

/// Columns of the output projection `[n_q_heads * head_dim, hidden]` of a layer of the cache, for
/// any weight format. They are computed as the projection of unit rows.
pub fn output_columns<B: Measure>(b: &B, model: &Model<B>, ws: &mut Workspace<B>, layer: usize) -> Vec<f32> {
    let mixer = model.attentions().filter(|mixer| mixer.kind.stores()).nth(layer).expect("a layer of the cache");
    let (cols, hidden) = (model.att_width(mixer), model.config.hidden);
    let mut out = vec![0.0; cols * hidden];
    let att = ws.att.of(cols);
    let mut units = Vec::new();
    for first in (0..cols).step_by(ws.max_tokens) {
        let rows = ws.max_tokens.min(cols - first);
        units.clear();
        units.resize(rows * cols, 0.0);
        (0..rows).for_each(|i| units[i * cols + first + i] = 1.0);
        b.write_acts(att, &units);
        b.linear(&mut ws.proj, att, Linear::plain(&mixer.o), rows);
        b.read_acts(&ws.proj, &mut out[first * hidden..(first + rows) * hidden]);
    }
    out
}
