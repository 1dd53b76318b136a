//! One forward pass over some rows.

use super::taps::Tap;
use super::weights::Model;
use super::weights::{Attention, Beside, DeltaNet, Layer, Mixer};
use super::workspace::{Staged, Workspace};
use crate::backend::{self, After, Backend, ExpertsArgs, Linear, Norm, QkvRopeArgs, Span};
use crate::cache::KvCache;
use crate::checkpoint::{Activation, Experts};

/// One forward pass of some rows, with its inputs and outputs. The caller has reserved its pages
/// ([`KvCache::reserve_step`]), so nothing here can fail.
pub struct Step<'a, B: Backend> {
    pub b: &'a B,
    pub model: &'a Model<B>,
    pub ws: &'a mut Workspace<B>,
    pub cache: &'a mut KvCache<B>,
    pub spans: &'a [Span],
    /// Whether the step stores nothing: [`Self::commit`] then feeds as many of the tokens as the
    /// caller wants.
    pub staged: bool,
}

impl<B: Backend> Step<'_, B> {
    /// Number of rows.
    pub(super) fn n(&self) -> usize {
        self.spans.iter().map(|s| s.len).sum()
    }

    /// Runs the tokens in `ws.tokens` through the model and stores their keys and values in the
    /// cache. Leaves the final, normalised hidden states `[n, hidden]` in `ws.h`, where [`logits`]
    /// reads them.
    pub fn forward(&mut self) {
        self.forward_with(|_, _, _| {});
    }

    /// Like [`Self::forward`], with a call before each layer, whose input is in `ws.x`.
    pub(super) fn forward_with(&mut self, mut before: impl FnMut(usize, &mut Workspace<B>, &KvCache<B>)) {
        let Self { b, model, spans, staged, .. } = *self;
        let n = self.n();
        assert!(n > 0 && n <= self.ws.max_tokens, "a step of {n} tokens in a workspace for {}", self.ws.max_tokens);
        b.embed(&mut self.ws.x, &model.embed, &self.ws.tokens, model.embedding_scale(), n);
        self.inputs();
        for (l, layer) in model.layers.iter().enumerate() {
            before(l, self.ws, self.cache);
            self.tap(l);
            match &layer.mixer {
                Mixer::Attention(mixer) => {
                    self.project((l, layer, mixer), After::Store);
                    self.attention((l, layer, mixer));
                }
                Mixer::DeltaNet(mixer) => self.delta_net((l, layer, mixer)),
            }
            self.mlp((l, layer));
            self.add_input((l, layer));
        }
        self.tap(model.layers.len());
        let ws = &mut *self.ws;
        b.rms_norm(&mut ws.h, &ws.x, model.final_norm(&mut ws.non_finite), None, n);
        if model.taps.as_ref().is_some_and(|taps| taps.all.is_empty()) {
            b.rms_norm(&mut ws.features, &ws.x, model.final_norm(&mut ws.non_finite), None, n);
        }
        if !staged {
            for (layer, lent) in model.layers.iter().zip(&ws.staged) {
                if let Some(mixer) = layer.mixer.attention().filter(|mixer| mixer.lends) {
                    self.cache.commit(b, &lent.rows, &lent.decisions, mixer.index, spans, false);
                }
            }
            self.cache.advance(b, Some(&self.ws.tokens), spans);
        }
    }

    /// Feeds the first tokens of the spans of the last staged step, given by `spans`, token after
    /// token.
    pub fn commit(self) {
        let Self { b, model, ws, cache, spans, .. } = self;
        for (layer, staged) in model.layers.iter().zip(&mut ws.staged) {
            if let Some(mixer) = layer.mixer.delta_net() {
                let args = mixer.args(&staged.gates, model.config.rms_eps, false);
                cache.delta_net(b, &mut ws.delta_out, &mut staged.rows, mixer.index, spans, &args);
            }
        }
        for (layer, staged) in model.layers.iter().zip(&ws.staged) {
            if let Some(mixer) = layer.mixer.attention().filter(|mixer| mixer.reads.is_none()) {
                cache.commit(b, &staged.rows, &staged.decisions, mixer.index, spans, true);
            }
        }
        cache.advance(b, Some(&ws.tokens), spans);
    }

    /// Adds the input of layer `l` to the features for a head, where it reads that layer.
    pub(super) fn tap(&mut self, l: usize) {
        let (n, ws) = (self.n(), &mut *self.ws);
        let Some(taps) = &self.model.taps else { return };
        let Some(i) = taps.all.iter().position(|tap| tap.layer == l) else { return };
        let Tap { weight, norm, .. } = &taps.all[i];
        let norm = norm.as_ref().map(|weight| Norm { weight, eps: taps.eps, layer: l, non_finite: &mut ws.non_finite });
        let linear = Linear {
            before: norm.map(|norm| (norm, &mut ws.feature_norm)),
            after: if i == 0 { After::Store } else { After::Add(&mut ws.feature_sum) },
            ..Linear::plain(weight)
        };
        self.b.linear(&mut ws.features, &ws.x, linear, n);
    }

    /// Computes q, k and v, the output gate and a predictor's columns of layer `l` from the
    /// residual stream `ws.x`.
    pub(super) fn project(&mut self, (l, layer, mixer): (usize, &Layer<B>, &Attention<B>), after: After<'_, B::Acts>) {
        let (n, ws) = (self.n(), &mut *self.ws);
        let norm = self.model.norm(l, &layer.input_norm, &mut ws.non_finite);
        let qkv = Linear { weight: &mixer.qkv, bias: mixer.qkv_bias.as_ref(), before: Some((norm, &mut ws.h)), after };
        let is_kept = mixer.lends || self.staged && mixer.reads.is_none();
        let rows = if is_kept { &mut ws.staged[l].rows } else { ws.qkv.of(self.model.qkv_width(mixer)) };
        self.b.linear(rows, &ws.x, qkv, n);
    }

    /// Computes the attention block of layer `l` from the output of [`Self::project`] and adds it
    /// to the residual stream `ws.x`.
    pub(super) fn attention(&mut self, (l, layer, mixer): (usize, &Layer<B>, &Attention<B>)) {
        let Self { b, model, spans, staged, .. } = *self;
        let (n, ws) = (self.n(), &mut *self.ws);
        let policy = self.cache.geometry().policy_of(mixer.index);
        let alpha = model.alpha().filter(|_| policy.uses_decisions() && mixer.reads.is_none());
        if alpha.is_some() {
            ws.project(b, &mixer.decisions, model.eps(), l, n);
        }
        let (inv_freq, rope_scale) = model.rope(mixer);
        let (rows, decisions, keys_of) = match (&mut ws.staged[..], mixer.reads) {
            (all, Some(lender)) => {
                let Staged { rows, decisions, .. } = &mut all[lender];
                (ws.qkv.of(model.qkv_width(mixer)), decisions, Some(&*rows))
            }
            (all, None) if staged || mixer.lends => (&mut all[l].rows, &mut all[l].decisions, None),
            _ if !mixer.kind.decides() => (ws.qkv.of(model.qkv_width(mixer)), &mut ws.local_decisions, None),
            _ => (ws.qkv.of(model.qkv_width(mixer)), &mut ws.decisions, None),
        };
        let lender = mixer.reads.and_then(|lender| model.layers[lender].mixer.attention()).unwrap_or(mixer);
        let norms = mixer.qk_norm.as_ref().zip(lender.qk_norm.as_ref());
        let args = QkvRopeArgs {
            qk_norm: norms.map(|((q, _), (_, k))| [q, k]),
            rms_eps: model.config.rms_eps,
            inv_freq,
            rope_scale,
            growth: model.growth(),
            v_norm: model.config.spec.v_norm,
            keys_of,
            lends: mixer.lends,
            borrowed: model.borrowed(policy.constant_decision()).filter(|_| mixer.reads.is_none()),
            predictor: alpha.and_then(|alpha| mixer.decisions.predictor(&ws.raw, alpha)),
            gated: model.config.spec.output_gate,
            sinks: mixer.sinks.as_ref(),
            staged,
        };
        let att = ws.att.of(model.att_width(mixer));
        self.cache.attention(b, att, rows, decisions, mixer.index, spans, &args);
        let o = Linear { bias: mixer.o_bias.as_ref(), ..Linear::plain(&mixer.o) };
        let behind = layer.behind.as_ref().map(|[mixer, _]| model.norm(l, mixer, &mut ws.non_finite));
        add(b, [&mut ws.x, &mut ws.proj], att, o, behind, 1.0, n);
    }

    /// Like [`Self::attention`], for a gated delta net.
    pub(super) fn delta_net(&mut self, (l, layer, mixer): (usize, &Layer<B>, &DeltaNet<B>)) {
        let Self { b, model, spans, staged, .. } = *self;
        let (n, ws) = (self.n(), &mut *self.ws);
        let (rows, gates) = match &mut ws.staged[..] {
            all if staged => (&mut all[l].rows, &mut all[l].gates),
            _ => (&mut ws.delta_rows, &mut ws.delta_gates),
        };
        for (out, weight) in [(&mut *rows, &mixer.qkvz), (&mut *gates, &mixer.gates)] {
            let norm = model.norm(l, &layer.input_norm, &mut ws.non_finite);
            let before = Some((norm, &mut ws.h));
            b.linear(out, &ws.x, Linear { before, ..Linear::plain(weight) }, n);
        }
        let args = mixer.args(gates, model.config.rms_eps, staged);
        self.cache.delta_net(b, &mut ws.delta_out, rows, mixer.index, spans, &args);
        let behind = layer.behind.as_ref().map(|[mixer, _]| model.norm(l, mixer, &mut ws.non_finite));
        add(b, [&mut ws.x, &mut ws.proj], &ws.delta_out, Linear::plain(&mixer.out), behind, 1.0, n);
    }

    /// Computes the feed-forward block of layer `l` and adds it to the residual stream `ws.x`.
    pub(super) fn mlp(&mut self, (l, layer): (usize, &Layer<B>)) {
        let Self { b, model, .. } = *self;
        let (n, ws) = (self.n(), &mut *self.ws);
        let norm = model.norm(l, &layer.post_norm, &mut ws.non_finite);
        if let (Some(router), Some(sizes), Some(rows)) = (&layer.router, &model.config.spec.experts, &mut ws.experts) {
            b.rms_norm(&mut ws.h, &ws.x, norm, None, n);
            let &Experts { per_token, normalized, shared, clamped, .. } = sizes;
            let args = ExpertsArgs {
                router,
                router_bias: layer.router_bias.as_ref(),
                gate_up: &layer.gate_up,
                gate_up_bias: layer.gate_up_bias.as_ref(),
                down: &layer.down,
                down_bias: layer.down_bias.as_ref(),
                per_token,
                normalized,
                shared,
                clamped,
                beside: None,
                rows,
            };
            return b.experts(&mut ws.x, &ws.h, args, n);
        }
        let (scratch, act) = (ws.gate_up.of(2 * layer.ffn), ws.act.of(layer.ffn));
        let gate_up = Linear {
            weight: &layer.gate_up,
            bias: layer.gate_up_bias.as_ref(),
            before: Some((norm, &mut ws.h)),
            after: match model.config.spec.activation {
                Activation::Silu => After::Swiglu(scratch),
                Activation::GeluTanh => After::Geglu(scratch),
            },
        };
        b.linear(act, &ws.x, gate_up, n);
        let down = Linear { bias: layer.down_bias.as_ref(), ..Linear::plain(&layer.down) };
        let behind = layer.behind.as_ref().map(|[_, mlp]| mlp);
        let scale = if layer.input.is_none() { layer.scale } else { 1.0 };
        if let (Some(beside), Some(behind)) = (&layer.beside, behind) {
            b.linear(&mut ws.proj, act, down, n);
            self.experts_beside(l, beside);
            let ws = &mut *self.ws;
            let norm = model.norm(l, behind, &mut ws.non_finite);
            return b.rms_norm(&mut ws.x, &ws.beside[0], norm, Some(scale), n);
        }
        let behind = behind.map(|mlp| model.norm(l, mlp, &mut ws.non_finite));
        add(b, [&mut ws.x, &mut ws.proj], act, down, behind, scale, n);
    }

    /// Computes the experts beside a dense block, whose output is in `ws.proj`, and the sum of both
    /// after a norm of each.
    fn experts_beside(&mut self, l: usize, layer: &Beside<B>) {
        let Self { b, model, .. } = *self;
        let (n, ws) = (self.n(), &mut *self.ws);
        let (Some(sizes), Some(rows)) = (model.config.spec.experts, &mut ws.experts) else { return };
        let [sum, router_input, out] = &mut ws.beside;
        let [before, dense, behind] = &layer.norms;
        b.rms_norm(sum, &ws.proj, model.norm(l, dense, &mut ws.non_finite), None, n);
        b.rms_norm(&mut ws.h, &ws.x, model.norm(l, before, &mut ws.non_finite), None, n);
        b.rms_norm(router_input, &ws.x, model.norm(l, &layer.router_norm, &mut ws.non_finite), None, n);
        let args = ExpertsArgs {
            router: &layer.router,
            router_bias: None,
            gate_up: &layer.gate_up,
            gate_up_bias: None,
            down: &layer.down,
            down_bias: None,
            per_token: sizes.per_token,
            normalized: sizes.normalized,
            shared: sizes.shared,
            clamped: sizes.clamped,
            beside: Some(backend::Beside { router_input, factors: &layer.factors }),
            rows,
        };
        b.experts(out, &ws.h, args, n);
        b.rms_norm(sum, out, model.norm(l, behind, &mut ws.non_finite), Some(1.0), n);
    }

    /// Computes the inputs of all layers from the tokens and from their embeddings `ws.x`, if
    /// layers have inputs.
    fn inputs(&mut self) {
        let (b, n, ws, c) = (self.b, self.n(), &mut *self.ws, &self.model.config);
        let (Some(inputs), Some(sizes)) = (&self.model.inputs, c.spec.layer_inputs) else { return };
        b.embed(&mut ws.inputs, &inputs.embed, &ws.tokens, (sizes.width as f32).sqrt(), n);
        b.copy(&mut ws.stream, &ws.x, n);
        b.linear(&mut ws.projected_inputs, &ws.stream, Linear::plain(&inputs.projection), n);
        // The projection is defined with a factor of 1 / sqrt(hidden), which the norm cancels but
        // for its epsilon.
        let eps = c.rms_eps * c.hidden as f32;
        let norm = Norm { weight: &inputs.norm, eps, layer: 0, non_finite: &mut ws.non_finite };
        b.rms_norm(&mut ws.inputs, &ws.projected_inputs, norm, Some(std::f32::consts::FRAC_1_SQRT_2), n);
    }

    /// Adds what layer `l` makes of its own input to the residual stream `ws.x`, if it has one.
    fn add_input(&mut self, (l, layer): (usize, &Layer<B>)) {
        let (b, n, ws, model) = (self.b, self.n(), &mut *self.ws, self.model);
        let (Some(input), Some(sizes)) = (&layer.input, model.config.spec.layer_inputs) else { return };
        let after = After::GeluTimes { y: &mut ws.input_gate, rows: &ws.inputs, at: l * sizes.width };
        b.copy(&mut ws.stream, &ws.x, n);
        b.linear(&mut ws.gated_input, &ws.stream, Linear { after, ..Linear::plain(&input.gate) }, n);
        let norm = model.norm(l, &input.norm, &mut ws.non_finite);
        let projection = Linear::plain(&input.projection);
        add(b, [&mut ws.x, &mut ws.proj], &ws.gated_input, projection, Some(norm), layer.scale, n);
    }
}

/// Adds a linear layer of `input` to the residual stream `x`, after a norm if there is one, and
/// then multiplies the stream by `scale`. `y`: scratch.
fn add<B: Backend>(
    b: &B,
    [x, y]: [&mut B::Acts; 2],
    input: &B::Acts,
    layer: Linear<'_, B>,
    behind: Option<Norm<'_, B>>,
    scale: f32,
    n: usize,
) {
    match behind {
        None => {
            assert_eq!(scale, 1.0, "only blocks that are normed are scaled");
            b.linear(x, input, Linear { after: After::Add(y), ..layer }, n);
        }
        Some(norm) => {
            b.linear(y, input, layer, n);
            b.rms_norm(x, y, norm, Some(scale), n);
        }
    }
}

/// Computes the logits `[n, vocab]` of the first `n` rows of the last step into `ws.logits`.
pub fn logits<B: Backend>(b: &B, model: &Model<B>, ws: &mut Workspace<B>, n: usize) {
    assert!(n <= ws.max_logits, "{n} rows of logits in a workspace for {}", ws.max_logits);
    b.linear(&mut ws.logits, &ws.h, model.output(), n);
}

/// Like [`logits`], for the given rows.
pub fn logits_of<B: Backend>(b: &B, model: &Model<B>, ws: &mut Workspace<B>, rows: &[usize]) {
    assert!(rows.len() <= ws.max_logits, "{} rows of logits in a workspace for {}", rows.len(), ws.max_logits);
    b.select_rows(&mut ws.chosen, &ws.h, rows);
    b.linear(&mut ws.logits, &ws.chosen, model.output(), rows.len());
}
