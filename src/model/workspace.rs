//! Buffers of a forward pass, allocated once.

use super::decisions::{Decisions, Own};
use super::weights::{Attention, Layer, LayerInput, Model};
use crate::backend::{After, Backend, ExpertRows, Linear, Norm, OutOfMemory, Use};
use crate::checkpoint::{Activation, DeltaNet, Experts, ModelConfig};
use crate::policy::Window;
use crate::protocol::Token;
use std::collections::BTreeSet;

pub struct Workspace<B: Backend> {
    pub max_tokens: usize,
    pub max_logits: usize,
    hidden: usize,
    n_kv_heads: usize,
    /// Tokens of the step `[max_tokens]`, and the sampled tokens after a step that samples.
    pub tokens: B::Buf<Token>,
    /// Logits `[max_logits, vocab]` in f32.
    pub logits: B::Acts,
    /// Non-finite flag `[1]`: the first layer whose input was not finite, `i32::MAX` if all were.
    pub non_finite: B::Buf<i32>,
    /// Residual stream `[max_tokens, hidden]`.
    pub(super) x: B::Acts,
    /// Normalised input of the next block and, after the pass, of the output head
    /// `[max_tokens, hidden]`.
    pub(super) h: B::Acts,
    /// Projections `[max_tokens, (n_q_heads + 2 n_kv_heads) * head_dim]`, followed by the output
    /// gate and a predictor's columns, for each width that layers have.
    pub(super) qkv: ByWidth<B>,
    /// Attention output `[max_tokens, n_q_heads * head_dim]`.
    pub(super) att: ByWidth<B>,
    /// Projections of a delta net `[max_tokens, channels + value_width]` and
    /// `[max_tokens, 2 value_heads]`, and its output `[max_tokens, value_width]`; empty if the
    /// model has no delta net.
    pub(super) delta_rows: B::Acts,
    pub(super) delta_gates: B::Acts,
    pub(super) delta_out: B::Acts,
    /// Block output before it is added to the residual stream `[max_tokens, hidden]`.
    pub(super) proj: B::Acts,
    /// Gate and up projections `[max_tokens, 2 ffn]`; unused by backends that fuse SwiGLU into the
    /// GEMM.
    pub(super) gate_up: ByWidth<B>,
    /// SwiGLU output `[max_tokens, ffn]`.
    pub(super) act: ByWidth<B>,
    /// Inputs of all layers `[max_tokens, n_layers * width]`, their part that is projected, and one
    /// layer's after its gate `[max_tokens, width]`; empty if layers have no inputs.
    pub(super) inputs: B::Acts,
    pub(super) projected_inputs: B::Acts,
    pub(super) gated_input: B::Acts,
    /// The gate of a layer's input `[max_tokens, width]`, and the residual stream as the matmuls
    /// around inputs read it `[max_tokens, hidden]`; empty too.
    pub(super) input_gate: B::Acts,
    pub(super) stream: B::Acts,
    /// Scratch of experts, if layers have them.
    pub(super) experts: Option<ExpertRows<B>>,
    /// Of experts beside a dense block `[max_tokens, hidden]`: the normed output of the block, the
    /// router's input, and the experts' output; empty without such experts.
    pub(super) beside: [B::Acts; 3],
    /// Rows of `h` selected for logits `[max_logits, hidden]`.
    pub(super) chosen: B::Acts,
    /// Normalised input of an adapter `[max_tokens, hidden]`.
    pub(super) adapter: B::Acts,
    /// Columns of an adapter `[max_tokens, n_kv_heads]`.
    pub(super) raw: B::Acts,
    /// Eviction decisions of one layer `[max_tokens, n_kv_heads]`; a positive one marks the token.
    pub(super) decisions: B::Buf<f32>,
    /// Decisions of local layers, which are constant.
    pub(super) local_decisions: B::Buf<f32>,
    /// Input of a draft head `[max_tokens, hidden]`, with scratch: sums of maps of some layers'
    /// inputs, or the model's output. Empty without a head.
    pub features: B::Acts,
    pub(super) feature_sum: B::Acts,
    pub(super) feature_norm: B::Acts,
    /// Rows of each layer that [`commit`](super::commit) needs after a staged step, and those of
    /// layers whose K and V others read.
    pub(super) staged: Vec<Staged<B>>,
    /// Tokens sampled in a staged step.
    pub sampled: B::Buf<Token>,
}

/// Buffers for the same rows, one for each width that layers have.
pub(super) struct ByWidth<B: Backend>(Vec<(usize, B::Acts)>);

impl<B: Backend> ByWidth<B> {
    fn new(
        widths: impl IntoIterator<Item = usize>,
        mut new: impl FnMut(usize) -> Result<B::Acts, OutOfMemory>,
    ) -> Result<Self, OutOfMemory> {
        Ok(Self(widths.into_iter().map(|width| Ok((width, new(width)?))).collect::<Result<_, _>>()?))
    }

    pub fn of(&mut self, width: usize) -> &mut B::Acts {
        let found = self.0.iter_mut().find(|(own, _)| *own == width);
        found.map(|(_, acts)| acts).expect("a buffer for each width of the model")
    }
}

/// Rows of a layer that are committed later: `qkv` and `decisions`, or `delta_rows` and
/// `delta_gates`. Buffers that the layer does not use are empty.
pub(super) struct Staged<B: Backend> {
    pub rows: B::Acts,
    pub decisions: B::Buf<f32>,
    decisions_len: usize,
    pub gates: B::Acts,
}

/// Allocates the constant decisions of local layers.
fn constant<B: Backend>(b: &B, len: usize) -> Result<B::Buf<f32>, OutOfMemory> {
    let mut buffer = b.alloc(len)?;
    b.write(&mut buffer, 0, &vec![Window::DECISION; len]);
    Ok(buffer)
}

/// Bytes of workspace per token of a step, counted in f32.
pub fn step_token_bytes(c: &ModelConfig) -> usize {
    let widths: usize = c.attention_widths().into_iter().flatten().sum();
    let ffns: usize = c.dense_ffns().into_iter().sum();
    let inputs = c.spec.layer_inputs.map_or(0, |inputs| (2 * c.n_layers + 2) * inputs.width + c.hidden);
    let lent: usize = (0..c.n_layers).filter(|&l| c.lends(l)).map(|l| c.qkv_width(c.layer(l))).sum();
    let delta = c.spec.delta_net.map_or(0, |d| d.channels() + 2 * d.value_width() + 2 * d.value_heads);
    let of_experts = |e: Experts| e.all() + e.passed() * (4 + 3 * e.width + c.hidden);
    let experts = c.spec.experts.map_or(0, of_experts);
    let beside = if c.has_experts_beside() { 3 * c.hidden } else { 0 };
    size_of::<f32>() * (4 * c.hidden + beside + widths + lent + inputs + delta + experts + 3 * ffns)
}

impl<B: Backend> Workspace<B> {
    /// Projects the layer's input `x` to the decision columns, if they are not stacked with q, k
    /// and v.
    pub(super) fn project(&mut self, b: &B, decisions: &Decisions<B>, eps: f32, layer: usize, n: usize) {
        let Some(Own { norm, proj, bias }) = &decisions.own else { return };
        let norm = Norm { weight: norm, eps, layer, non_finite: &mut self.non_finite };
        let before = Some((norm, &mut self.adapter));
        b.linear(&mut self.raw, &self.x, Linear { weight: proj, bias: bias.as_ref(), before, after: After::Store }, n);
    }

    /// Allocates a workspace for steps of up to `max_tokens` tokens and `max_logits` rows of
    /// logits, and for staged steps of up to `staged_rows` tokens.
    pub fn new(
        b: &B,
        model: &Model<B>,
        max_tokens: usize,
        max_logits: usize,
        staged_rows: usize,
    ) -> Result<Self, OutOfMemory> {
        let (c, max_logits) = (&model.config, max_logits.max(staged_rows));
        let rows = max_tokens.max(max_logits);
        let mut non_finite = b.alloc(1)?;
        b.write(&mut non_finite, 0, &[i32::MAX]);
        let projections =
            model.attentions().map(|l| &l.qkv).chain(model.delta_nets().flat_map(|l| [&l.qkvz, &l.gates]));
        let (of_dense, of_act) = (model.each(false, |l| &l.gate_up), model.each(false, |l| &l.down));
        let with_input = |of: fn(&LayerInput<B>) -> &B::Weight| -> Vec<&B::Weight> {
            model.layers.iter().filter_map(|l| l.input.as_ref()).map(of).collect()
        };
        let of_experts = model.each(true, |l| &l.gate_up);
        let of_beside = model.each_beside(|beside| &beside.gate_up);
        let of_h = projections.chain(of_dense).chain(of_experts).chain(of_beside).chain([model.head()]);
        let of_h: Vec<_> = of_h.collect();
        let of_routers = model.each_beside(|beside| &beside.router);
        let beside_rows = if of_routers.is_empty() { 0 } else { rows };
        let of_delta: Vec<_> = model.delta_nets().map(|l| &l.out).collect();
        let attention_widths =
            |of: &dyn Fn(&Attention<B>) -> usize| model.attentions().map(of).collect::<BTreeSet<_>>();
        let of_att = |width: usize| -> Vec<&B::Weight> {
            model.attentions().filter(|l| model.att_width(l) == width).map(|l| &l.o).collect()
        };
        let of_act_width = |width: usize| -> Vec<&B::Weight> {
            let dense = model.layers.iter().filter(|l| l.router.is_none() && l.ffn == width);
            dense.map(|l| &l.down).collect()
        };
        let delta = c.spec.delta_net.filter(|_| !of_delta.is_empty());
        let delta_rows = delta.map_or(0, |_| rows);
        let delta_width = |of: fn(&DeltaNet) -> usize| delta.as_ref().map_or(0, of);
        let delta_columns = delta_width(|d| d.channels() + d.value_width());
        let gate_columns = delta_width(|d| 2 * d.value_heads);
        let most_heads = c.lanes().map(|layer| layer.heads.count).max().unwrap_or(0);
        let ffns = match c.dense_ffns() {
            none if none.is_empty() => BTreeSet::from([0]),
            ffns => ffns,
        };
        let input = c.spec.layer_inputs.map_or(0, |inputs| inputs.width);
        let inputs = c.n_layers * input;
        let of_stream =
            [with_input(|l| &l.gate), model.inputs.iter().map(|inputs| &inputs.projection).collect::<Vec<_>>()]
                .concat();
        let around_gate_up = [&of_h[..], &of_act].concat();
        // SwiGLU is the only gate that backends fuse.
        let of_gate_up = || match c.spec.activation {
            Activation::Silu => Use::GateUp(&around_gate_up),
            Activation::GeluTanh => Use::Any,
        };
        let staged = |layer: &Layer<B>| {
            let lends = layer.mixer.attention().is_some_and(|mixer| mixer.lends);
            let staged_rows = if lends { rows } else { staged_rows };
            let attention = layer.mixer.attention();
            let attends = attention.is_some();
            let gates = if attends { 0 } else { gate_columns };
            let width = attention.map_or(delta_columns, |mixer| model.qkv_width(mixer));
            let heads = attention.map_or(0, |mixer| c.heads(mixer.kind).count);
            // A layer that reads what another stores has nothing to commit.
            let staged_rows = if attention.is_some_and(|mixer| mixer.reads.is_some()) { 0 } else { staged_rows };
            let decisions_len = staged_rows * heads;
            let fixed = attention.is_some_and(|mixer| !mixer.kind.decides());
            Ok(Staged {
                rows: b.acts(staged_rows, width, Use::Any)?,
                decisions: if fixed { constant(b, decisions_len)? } else { b.alloc(decisions_len)? },
                decisions_len,
                gates: b.acts(staged_rows, gates, Use::Any)?,
            })
        };
        let keeps = staged_rows > 0 || model.attentions().any(|mixer| mixer.lends);
        let staged = model.layers.iter().filter(|_| keeps).map(staged).collect::<Result<_, _>>()?;
        let taps: Vec<_> = model.taps.iter().flat_map(|taps| &taps.all).map(|tap| &tap.weight).collect();
        let feature_rows = if model.taps.is_some() { rows } else { 0 };
        let sum_rows = if taps.is_empty() { 0 } else { rows };
        let adapters = model.adapters();
        let adapter_rows = if adapters.is_empty() { 0 } else { rows };
        Ok(Self {
            max_tokens,
            max_logits,
            hidden: c.hidden,
            n_kv_heads: most_heads,
            h: b.acts(rows, c.hidden, Use::Input(&of_h))?,
            act: ByWidth::new(ffns.clone(), |width| b.acts(rows, width, Use::Input(&of_act_width(width))))?,
            logits: b.allocating("logits and sampling", || b.acts(max_logits, c.vocab, Use::Logits))?,
            tokens: b.alloc(rows)?,
            non_finite,
            x: b.acts(rows, c.hidden, Use::Any)?,
            qkv: ByWidth::new(attention_widths(&|l| model.qkv_width(l)), |width| b.acts(rows, width, Use::Any))?,
            att: ByWidth::new(attention_widths(&|l| model.att_width(l)), |width| {
                b.acts(rows, width, Use::Input(&of_att(width)))
            })?,
            inputs: b.acts(rows, inputs, Use::Any)?,
            projected_inputs: b.acts(rows, inputs, Use::Any)?,
            gated_input: b.acts(rows, input, Use::Input(&with_input(|l| &l.projection)))?,
            input_gate: b.acts(rows, input, Use::Any)?,
            stream: b.acts(rows, if input > 0 { c.hidden } else { 0 }, Use::Input(&of_stream))?,
            delta_rows: b.acts(delta_rows, delta_columns, Use::Any)?,
            delta_gates: b.acts(delta_rows, gate_columns, Use::Any)?,
            delta_out: b.acts(delta_rows, delta_width(DeltaNet::value_width), Use::Input(&of_delta))?,
            proj: b.acts(rows, c.hidden, Use::Any)?,
            gate_up: ByWidth::new(ffns.iter().map(|ffn| 2 * ffn), |width| b.acts(rows, width, of_gate_up()))?,
            experts: c.spec.experts.map(|sizes| expert_rows(b, model, sizes, rows)).transpose()?,
            beside: [
                b.acts(beside_rows, c.hidden, Use::Any)?,
                b.acts(beside_rows, c.hidden, Use::Input(&of_routers))?,
                b.acts(beside_rows, c.hidden, Use::Any)?,
            ],
            chosen: b.acts(max_logits, c.hidden, Use::Input(&of_h))?,
            adapter: b.acts(adapter_rows, c.hidden, Use::Input(&adapters))?,
            raw: b.acts(adapter_rows, c.deciding_heads().count, Use::Any)?,
            decisions: b.alloc(rows * most_heads)?,
            local_decisions: constant(b, if c.has_windows() { rows * most_heads } else { 0 })?,
            features: b.acts(feature_rows, c.hidden, Use::Any)?,
            feature_sum: b.acts(sum_rows, c.hidden, Use::Any)?,
            feature_norm: b.acts(sum_rows, c.hidden, Use::Input(&taps))?,
            staged,
            sampled: b.alloc(staged_rows)?,
        })
    }

    /// Reads whether the residual stream of each of the first `n` rows of the last step is finite,
    /// as the final norm sees it. A row that is not finite in one layer is not finite in any later
    /// layer.
    pub fn finite_rows(&self, b: &B, n: usize) -> Vec<bool> {
        let mut rows = vec![0.0; n * self.hidden];
        b.read_acts(&self.x, &mut rows);
        let is_finite = |row: &[f32]| row.iter().map(|x| x * x).sum::<f32>().is_finite();
        rows.chunks_exact(self.hidden).map(is_finite).collect()
    }

    /// Sets the decision of every token, for policies with constant decisions.
    pub fn fill_decisions(&mut self, b: &B, decision: f32) {
        let rows = self.max_tokens.max(self.max_logits);
        b.write(&mut self.decisions, 0, &vec![decision; rows * self.n_kv_heads]);
        for staged in &mut self.staged {
            b.write(&mut staged.decisions, 0, &vec![decision; staged.decisions_len]);
        }
    }
}

/// Allocates scratch for `rows` tokens in layers with experts.
fn expert_rows<B: Backend>(b: &B, model: &Model<B>, sizes: Experts, rows: usize) -> Result<ExpertRows<B>, OutOfMemory> {
    let (pairs, all) = (rows * sizes.passed(), sizes.all());
    let of_act = [model.each(true, |l| &l.down), model.each_beside(|beside| &beside.down)].concat();
    Ok(ExpertRows {
        logits: b.acts(rows, all, Use::Any)?,
        chosen: b.alloc(pairs)?,
        weights: b.alloc(pairs)?,
        order: b.alloc(2 * pairs + all + 1)?,
        gate_up: b.acts(pairs, 2 * sizes.width, Use::Any)?,
        act: b.acts(pairs, sizes.width, Use::Input(&of_act))?,
        out: b.acts(pairs, model.config.hidden, Use::Any)?,
    })
}
