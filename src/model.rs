//! The transformer. There is one forward pass for prefill chunks, decode steps and batches: a step is a list of
//! [`Span`]s. Model families (Qwen3, Llama, SmolLM2) and the variants of DMS differ in configuration fields only.

mod weights;
mod workspace;

pub use weights::Model;
pub use workspace::{Workspace, step_token_bytes};

use crate::backend::{Backend, Next, Norm, QkvRopeArgs, Span, Sum};
use crate::cache::KvCache;
use weights::Layer;

/// Runs the tokens in `ws.tokens` through the model and stores their keys and values in the cache. Leaves the final,
/// normalised hidden states `[n, hidden]` in `ws.h`, where [`logits`] reads them.
///
/// The caller has reserved the pages ([`KvCache::reserve_step`]), so this cannot fail.
pub fn forward<B: Backend>(b: &B, model: &Model<B>, ws: &mut Workspace<B>, cache: &mut KvCache<B>, spans: &[Span]) {
    let n: usize = spans.iter().map(|s| s.len).sum();
    assert!(n > 0 && n <= ws.max_tokens, "a step of {n} tokens in a workspace for {}", ws.max_tokens);
    b.embed(&mut ws.x, &model.embed, &ws.tokens, n);
    // What the last projection adds to the residual stream, if it is not there yet.
    let mut sum = Sum::Added;
    let eps = model.config.rms_eps;
    for (l, layer) in model.layers.iter().enumerate() {
        let norm = Norm { weight: &layer.post_norm, eps, layer: l };
        attention(b, model, layer, ws, cache, l, spans, &mut sum, &norm, n);
        b.norm_linear_swiglu(
            &mut ws.act,
            &mut ws.gate_up,
            &mut ws.h,
            &mut ws.x,
            sum.pending(&ws.proj),
            &norm,
            &layer.gate_up,
            layer.gate_up_bias.as_ref(),
            &mut ws.non_finite,
            n,
        );
        let norm = model.layers.get(l + 1).map(|next| Norm { weight: &next.input_norm, eps, layer: l + 1 });
        let next = norm.as_ref().map(|norm| Next { norm, h: &mut ws.h });
        sum = b.linear_add(&mut ws.x, &mut ws.proj, &ws.act, &layer.down, layer.down_bias.as_ref(), next, n);
    }
    let norm = Norm { weight: &model.norm, eps, layer: model.layers.len() };
    b.norm_of_sum(&mut ws.h, &mut ws.x, sum.pending(&ws.proj), &norm, &mut ws.non_finite, n);
    cache.advance(b, spans);
}

/// Computes one attention block on the residual stream `ws.x`, to which `sum` of the previous block is still to be added.
/// `post_norm` is the norm of its result.
#[allow(clippy::too_many_arguments)]
fn attention<B: Backend>(
    b: &B,
    model: &Model<B>,
    layer: &Layer<B>,
    ws: &mut Workspace<B>,
    cache: &mut KvCache<B>,
    l: usize,
    spans: &[Span],
    sum: &mut Sum,
    post_norm: &Norm<'_, B>,
    n: usize,
) {
    let c = &model.config;
    let policy = cache.geometry().policy;
    b.norm_linear(
        &mut ws.qkv,
        &mut ws.h,
        &mut ws.x,
        sum.pending(&ws.proj),
        &Norm { weight: &layer.input_norm, eps: c.rms_eps, layer: l },
        &layer.qkv,
        layer.qkv_bias.as_ref(),
        &mut ws.non_finite,
        n,
    );
    let adapter = layer.adapter_head(model).filter(|_| policy.uses_decisions());
    if let Some(head) = adapter {
        b.adapter_decisions(&mut ws.decisions, &ws.x, &mut ws.adapter, &mut ws.raw, &head, n);
    }
    let args = QkvRopeArgs {
        qk_norm: layer.qk_norm.as_ref().map(|(q, k)| [q, k]),
        rms_eps: c.rms_eps,
        inv_freq: &model.inv_freq,
        rope_scale: model.rope_scale,
        borrowed: model.borrowed(&policy),
    };
    cache.attention(b, &mut ws.att, &mut ws.qkv, &mut ws.decisions, l, spans, &args);
    let next = Next { norm: post_norm, h: &mut ws.h };
    *sum = b.linear_add(&mut ws.x, &mut ws.proj, &ws.att, &layer.o, layer.o_bias.as_ref(), Some(next), n);
}

/// Computes the logits `[n, vocab]` of the first `n` rows of the last step into `ws.logits`.
pub fn logits<B: Backend>(b: &B, model: &Model<B>, ws: &mut Workspace<B>, n: usize) {
    assert!(n <= ws.max_logits, "{n} rows of logits in a workspace for {}", ws.max_logits);
    b.logits(&mut ws.logits, &ws.h, model.head(), n);
}

/// As [`logits`], for the given rows.
pub fn logits_of<B: Backend>(b: &B, model: &Model<B>, ws: &mut Workspace<B>, rows: &[usize]) {
    assert!(rows.len() <= ws.max_logits, "{} rows of logits in a workspace for {}", rows.len(), ws.max_logits);
    b.select_rows(&mut ws.chosen, &ws.h, rows);
    b.logits(&mut ws.logits, &ws.chosen, model.head(), rows.len());
}
