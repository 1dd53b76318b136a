//! Weights of a model on the device, and their loading. Names and shapes come from [`names`] and
//! are checked there.

use super::decisions::{Decisions, Own, Rest};
use super::taps::Taps;
use crate::backend::{After, Alpha, Backend, Borrowed, Columns, DeltaNetArgs, Growth, Linear, Norm};
use crate::checkpoint::draft_head::DraftHead;
use crate::checkpoint::names::{
    self, AttentionSpec, BesideSpec, DeltaNetSpec, InputsSpec, LayerSpec, LinearSpec, MixerSpec, MlpSpec, TensorSpec,
};
use crate::checkpoint::{Checkpoint, DmsVariant, LayerKind, ModelConfig, QueryGrowth, Stacked};
use crate::tensor::Tensor;
use anyhow::{Context, Result, ensure};
use std::sync::Arc;

/// The weights of a model.
pub struct Model<B: Backend> {
    pub config: ModelConfig,
    /// Embedding table `[vocab, hidden]`. A draft head may share it with its target model, like the
    /// output head.
    pub(super) embed: Arc<B::Weight>,
    /// The weights that compute inputs of layers, if there are such inputs.
    pub(super) inputs: Option<Inputs<B>>,
    pub(super) layers: Vec<Layer<B>>,
    /// Final norm `[hidden]`.
    pub(super) norm: B::Buf<f32>,
    /// Output head `[vocab, hidden]`; `None` if tied to the embedding.
    pub(super) head: Option<Arc<B::Weight>>,
    /// RoPE frequencies in radians per position: for the model, for local layers, and an empty
    /// buffer for layers without RoPE.
    inv_freq: B::Buf<f32>,
    local_freq: B::Buf<f32>,
    no_rope: B::Buf<f32>,
    /// Factors of cos and sin, of the model and of local layers.
    rope_scale: f32,
    local_scale: f32,
    /// Inputs of the draft head, if there is one.
    pub(super) taps: Option<Taps<B>>,
}

pub(super) struct Layer<B: Backend> {
    pub input_norm: B::Buf<f32>,
    pub mixer: Mixer<B>,
    /// Norms of the outputs of the mixer and of the MLP before they are added to the residual
    /// stream, if the model has such norms.
    pub behind: Option<[B::Buf<f32>; 2]>,
    /// Norm before the MLP.
    pub post_norm: B::Buf<f32>,
    /// Router `[experts, hidden]` with the row of a shared expert; the matrices below then hold all
    /// experts. `None` for a dense layer.
    pub router: Option<B::Weight>,
    pub router_bias: Option<B::Buf<f32>>,
    /// Stacked gate and up projections `[2 ffn, hidden]`.
    pub gate_up: B::Weight,
    pub gate_up_bias: Option<B::Buf<f32>>,
    /// Down projection `[hidden, ffn]`.
    pub down: B::Weight,
    pub down_bias: Option<B::Buf<f32>>,
    /// Channels between gate and down of a dense block.
    pub ffn: usize,
    /// Experts beside the dense block.
    pub beside: Option<Beside<B>>,
    /// What the layer does with an input of its own, if it has one.
    pub input: Option<LayerInput<B>>,
    /// Factor of the residual stream behind the layer.
    pub scale: f32,
}

/// The weights of [`BesideSpec`].
pub(super) struct Beside<B: Backend> {
    pub router: B::Weight,
    pub gate_up: B::Weight,
    pub down: B::Weight,
    pub factors: B::Buf<f32>,
    pub router_norm: B::Buf<f32>,
    /// Before the experts, behind the dense block, and behind the experts.
    pub norms: [B::Buf<f32>; 3],
}

/// The weights of [`InputsSpec`].
pub(super) struct Inputs<B: Backend> {
    pub embed: B::Weight,
    pub projection: B::Weight,
    pub norm: B::Buf<f32>,
}

/// The weights of [`InputSpec`](names::InputSpec).
pub(super) struct LayerInput<B: Backend> {
    pub gate: B::Weight,
    pub projection: B::Weight,
    pub norm: B::Buf<f32>,
}

pub(super) enum Mixer<B: Backend> {
    Attention(Attention<B>),
    DeltaNet(DeltaNet<B>),
}

impl<B: Backend> Mixer<B> {
    pub fn attention(&self) -> Option<&Attention<B>> {
        if let Self::Attention(mixer) = self { Some(mixer) } else { None }
    }

    pub fn delta_net(&self) -> Option<&DeltaNet<B>> {
        if let Self::DeltaNet(mixer) = self { Some(mixer) } else { None }
    }
}

pub(super) struct Attention<B: Backend> {
    /// Index among the layers of the KV cache.
    pub index: usize,
    pub kind: LayerKind,
    /// The layer whose K and V it reads instead of its own.
    pub reads: Option<usize>,
    /// Whether a later layer reads its K and V.
    pub lends: bool,
    /// Stacked q, k and v if the layer stores any, the output gate if there is one, and a
    /// predictor's rows `[(n_q_heads + 2 n_kv_heads) * head_dim + .. + columns, hidden]`.
    pub qkv: B::Weight,
    pub qkv_bias: Option<B::Buf<f32>>,
    /// Norms of q and k `[head_dim]` (Qwen3); that of q twice where the layer has no k.
    pub qk_norm: Option<(B::Buf<f32>, B::Buf<f32>)>,
    /// Output projection `[hidden, n_q_heads * head_dim]`.
    pub o: B::Weight,
    pub o_bias: Option<B::Buf<f32>>,
    /// Logits `[n_q_heads]` that join the softmax.
    pub sinks: Option<B::Buf<f32>>,
    pub decisions: Decisions<B>,
}

/// Weights of a gated delta net; [`DeltaNetArgs`](crate::backend::DeltaNetArgs) explains the rest.
pub(super) struct DeltaNet<B: Backend> {
    /// Index among the layers with a state.
    pub index: usize,
    /// Stacked q, k, v and the output gate z `[channels + value_width, hidden]`.
    pub qkvz: B::Weight,
    /// Stacked b and a `[2 value_heads, hidden]`, which are never packed.
    pub gates: B::Weight,
    pub conv: B::Buf<f32>,
    pub decay: B::Buf<f32>,
    pub dt_bias: B::Buf<f32>,
    pub norm: B::Buf<f32>,
    /// Output projection `[hidden, value_width]`.
    pub out: B::Weight,
}

impl<B: Backend> DeltaNet<B> {
    pub fn args<'a>(&'a self, gates: &'a B::Acts, rms_eps: f32, staged: bool) -> DeltaNetArgs<'a, B> {
        let Self { conv, decay, dt_bias, norm, .. } = self;
        DeltaNetArgs { gates, conv, decay, dt_bias, norm, rms_eps, staged }
    }
}

impl<B: Backend> Model<B> {
    /// Output head `[vocab, hidden]`.
    pub(super) fn head(&self) -> &B::Weight {
        self.head.as_ref().unwrap_or(&self.embed)
    }

    /// Returns one weight of every layer with a dense MLP, or of every layer with experts.
    pub(super) fn each<'a>(&'a self, experts: bool, of: fn(&'a Layer<B>) -> &'a B::Weight) -> Vec<&'a B::Weight> {
        self.layers.iter().filter(|layer| layer.router.is_some() == experts).map(of).collect()
    }

    /// Returns one weight of every layer with experts beside a dense block.
    pub(super) fn each_beside<'a>(&'a self, of: fn(&'a Beside<B>) -> &'a B::Weight) -> Vec<&'a B::Weight> {
        self.layers.iter().filter_map(|layer| layer.beside.as_ref()).map(of).collect()
    }

    /// The layers with attention.
    pub(super) fn attentions(&self) -> impl Iterator<Item = &Attention<B>> {
        self.layers.iter().filter_map(|l| l.mixer.attention())
    }

    /// The layers that are a gated delta net.
    pub(super) fn delta_nets(&self) -> impl Iterator<Item = &DeltaNet<B>> {
        self.layers.iter().filter_map(|l| l.mixer.delta_net())
    }

    /// Decision projections of all layers that have one.
    pub(super) fn adapters(&self) -> Vec<&B::Weight> {
        self.attentions().filter_map(|l| l.decisions.own.as_ref()).map(|own| &own.proj).collect()
    }

    /// Columns of a layer's projected rows of attention: q, k, v, the output gate and a predictor's
    /// columns.
    pub(super) fn qkv_width(&self, layer: &Attention<B>) -> usize {
        self.config.qkv_width(layer.kind) + layer.decisions.stacked_width()
    }

    /// Columns of attention's output in a layer.
    pub(super) fn att_width(&self, layer: &Attention<B>) -> usize {
        self.config.q_width(layer.kind)
    }

    /// Loads all weights. `progress` receives the bytes loaded and the total, and returns whether
    /// to continue.
    pub fn load(b: &B, checkpoint: &Checkpoint, mut progress: impl FnMut(u64, u64) -> bool) -> Result<Self> {
        let c = &checkpoint.config;
        let mut loader = Loader { b, checkpoint, done: 0, progress: &mut progress };
        let embed = loader.stacked(&[&names::embedding(c)])?.into();
        let head = names::lm_head(c).map(|head| loader.stacked(&[&head])).transpose()?.map(Arc::new);
        let taps = checkpoint.draft_head.as_ref().map(|head| Taps::new(b, head)).transpose()?;
        Self::with(loader, embed, head, taps)
    }

    /// Loads the layer of a draft head for `self`, whose embeddings and output matrix it uses if
    /// the head has none.
    pub(super) fn of_head(&self, b: &B, head: &DraftHead) -> Result<Self> {
        let own = |spec: TensorSpec| {
            let tensor = head.layer.tensors.get(&spec.name);
            tensor.map(|tensor| b.weight(std::slice::from_ref(tensor)).map(Arc::new)).transpose()
        };
        let c = &head.layer.config;
        let embed = own(names::embedding(c))?.unwrap_or_else(|| self.embed.clone());
        let theirs = || self.head.as_ref().unwrap_or(&self.embed).clone();
        let output = names::lm_head(c).map(own).transpose()?.flatten().unwrap_or_else(theirs);
        Self::with(
            Loader { b, checkpoint: &head.layer, done: 0, progress: &mut |_, _| true },
            embed,
            Some(output),
            None,
        )
    }

    fn with(
        mut loader: Loader<'_, B>,
        embed: Arc<B::Weight>,
        head: Option<Arc<B::Weight>>,
        taps: Option<Taps<B>>,
    ) -> Result<Self> {
        let (b, c) = (loader.b, &loader.checkpoint.config);
        let layers = (0..c.n_layers).map(|l| loader.layer(l)).collect::<Result<Vec<_>>>()?;
        let inputs = names::layer_inputs(c).map(|inputs| loader.inputs(&inputs)).transpose()?;
        let norm = loader.norm(&names::final_norm(c), c.spec.logit_scale)?;
        let (inv_freq, rope_scale) = c.rotation(LayerKind::ATTENTION);
        let inv_freq = loader.upload(&inv_freq)?;
        let local = LayerKind { local: true, ..LayerKind::ATTENTION };
        let (local_freq, local_scale) = c.rotation(local);
        let local_freq = loader.upload(&local_freq)?;
        let no_rope = b.alloc(0)?;
        let config = c.clone();
        Ok(Self {
            config,
            embed,
            inputs,
            layers,
            norm,
            head,
            inv_freq,
            local_freq,
            no_rope,
            rope_scale,
            local_scale,
            taps,
        })
    }

    /// Arguments of a norm in layer `layer`.
    pub(super) fn norm<'a>(
        &self,
        layer: usize,
        weight: &'a B::Buf<f32>,
        non_finite: &'a mut B::Buf<i32>,
    ) -> Norm<'a, B> {
        Norm { weight, eps: self.eps(), layer, non_finite }
    }

    pub(super) fn final_norm<'a>(&'a self, non_finite: &'a mut B::Buf<i32>) -> Norm<'a, B> {
        self.norm(self.layers.len(), &self.norm, non_finite)
    }

    /// RoPE frequencies of a layer, and the factor of cos and sin.
    pub(super) fn rope(&self, layer: &Attention<B>) -> (&B::Buf<f32>, f32) {
        match layer.kind {
            LayerKind { rotates: false, .. } => (&self.no_rope, self.rope_scale),
            LayerKind { local: true, .. } => (&self.local_freq, self.local_scale),
            _ => (&self.inv_freq, self.rope_scale),
        }
    }

    /// The matmul of logits.
    pub(super) fn output(&self) -> Linear<'_, B> {
        let after = self.config.spec.logit_cap.map_or(After::Store, After::Cap);
        Linear { after, ..Linear::plain(self.head()) }
    }

    /// Growth of queries with their positions.
    pub(super) fn growth(&self) -> Option<Growth> {
        self.config.spec.query_growth.map(|QueryGrowth { beta, length }| Growth { beta, length })
    }

    /// Factor of embedding rows. The residual stream is stored divided by the model's residual
    /// scale, so that blocks add their output unscaled. Norms cancel the division; [`Self::eps`]
    /// accounts for it.
    pub(super) fn embedding_scale(&self) -> f32 {
        self.config.spec.embedding_scale / self.config.spec.residual_scale
    }

    /// Epsilon of the norms of the residual stream, scaled like the squares of the stream.
    pub(super) fn eps(&self) -> f32 {
        self.config.rms_eps / (self.config.spec.residual_scale * self.config.spec.residual_scale)
    }

    /// How scores become decisions. Those of gates are decisions as they are.
    pub(super) fn alpha(&self) -> Option<Alpha> {
        if self.config.gates.is_some() {
            return Some(Alpha { scale: 1.0, offset: 0.0, per_layer: false });
        }
        let dms = self.config.dms.as_ref()?;
        Some(Alpha { scale: dms.alpha_scale, offset: dms.alpha_offset, per_layer: dms.per_layer })
    }

    /// Channels of q that carry decisions. A policy with a constant decision still zeroes them, as
    /// in training.
    pub(super) fn borrowed(&self, constant: Option<f32>) -> Option<Borrowed> {
        let (heads, alpha) = match (&self.config.dms, &self.config.dmc) {
            (Some(dms), _) if dms.variant == DmsVariant::Borrowed => (1, self.alpha()?),
            (None, Some(dmc)) => (2, Alpha { scale: dmc.alpha_scale, offset: dmc.alpha_offset, per_layer: false }),
            _ => return None,
        };
        let alpha = match constant {
            Some(decision) => Alpha { scale: 0.0, offset: -decision, ..alpha },
            None => alpha,
        };
        Some(Borrowed { heads, alpha })
    }
}

struct Loader<'a, B: Backend> {
    b: &'a B,
    checkpoint: &'a Checkpoint,
    done: u64,
    progress: &'a mut dyn FnMut(u64, u64) -> bool,
}

impl<B: Backend> Loader<'_, B> {
    fn inputs(&mut self, t: &InputsSpec) -> Result<Inputs<B>> {
        Ok(Inputs {
            embed: self.stacked(&[&t.embedding])?,
            projection: self.matrix(&[&t.projection])?,
            norm: self.norm(&t.norm, 1.0)?,
        })
    }

    fn layer(&mut self, l: usize) -> Result<Layer<B>> {
        let c = &self.checkpoint.config;
        let (t, ffn) = (LayerSpec::new(c, l), c.ffn_of(c.layer(l)));
        let scale = t.scale.as_ref().map(|scale| self.tensor(scale)).transpose()?;
        Ok(Layer {
            ffn,
            scale: scale.map_or(1.0, |scale| scale.to_f32()[0]),
            beside: t.beside.as_ref().map(|t| self.beside(t)).transpose()?,
            input: match &t.input {
                Some(t) => Some(LayerInput {
                    gate: self.matrix(&[&t.gate])?,
                    projection: self.matrix(&[&t.projection])?,
                    norm: self.norm(&t.norm, 1.0)?,
                }),
                None => None,
            },
            input_norm: self.norm(&t.input_norm, 1.0)?,
            mixer: match &t.mixer {
                MixerSpec::Attention(t) => Mixer::Attention(self.attention(t, l)?),
                MixerSpec::DeltaNet(t) => Mixer::DeltaNet(self.delta_net(t, l)?),
            },
            behind: match &t.behind {
                Some([mixer, mlp]) => Some([self.norm(mixer, 1.0)?, self.norm(mlp, 1.0)?]),
                None => None,
            },
            post_norm: self.norm(&t.post_norm, 1.0)?,
            router: match &t.mlp.router[..] {
                [] => None,
                router => Some(self.matrix(&router.iter().collect::<Vec<_>>())?),
            },
            router_bias: self.bias(&t.mlp.router.iter().collect::<Vec<_>>())?,
            gate_up: self.matrix(&t.mlp.gate_up.iter().collect::<Vec<_>>())?,
            gate_up_bias: self.bias(&t.mlp.gate_up.iter().collect::<Vec<_>>())?,
            down: self.matrix(&t.mlp.down.iter().collect::<Vec<_>>())?,
            down_bias: self.bias(&t.mlp.down.iter().collect::<Vec<_>>())?,
        })
    }

    fn beside(&mut self, t: &BesideSpec) -> Result<Beside<B>> {
        let MlpSpec { router, gate_up, down } = &t.experts;
        let mut matrix = |stack: &[LinearSpec]| self.matrix(&stack.iter().collect::<Vec<_>>());
        let [router, gate_up, down] = [matrix(router)?, matrix(gate_up)?, matrix(down)?];
        let factors = self.tensor(&t.factors)?.to_f32();
        let root = (self.checkpoint.config.hidden as f32).sqrt();
        let [before, dense, behind] = &t.norms;
        Ok(Beside {
            router,
            gate_up,
            down,
            factors: self.upload(&factors)?,
            router_norm: self.norm(&t.router_norm, root.recip())?,
            norms: [self.norm(before, 1.0)?, self.norm(dense, 1.0)?, self.norm(behind, 1.0)?],
        })
    }

    fn attention(&mut self, t: &AttentionSpec, l: usize) -> Result<Attention<B>> {
        let (qkv, qkv_bias, decisions) = self.projection(t)?;
        let config = &self.checkpoint.config;
        let kind = config.layer(l);
        Ok(Attention {
            index: config.mixer_index(l),
            kind,
            reads: kind.shares.then(|| config.kv_layer(l)),
            lends: config.lends(l),
            qkv,
            qkv_bias,
            qk_norm: match (&t.q_norm, &t.k_norm) {
                (Some(q), k) => {
                    let factor = config.score_factor(kind);
                    Some((self.norm(q, factor)?, self.norm(k.as_ref().unwrap_or(q), 1.0)?))
                }
                _ => None,
            },
            o: self.matrix(&[&t.o])?,
            o_bias: self.bias(&[&t.o])?,
            sinks: t.sinks.as_ref().map(|sinks| self.vector(sinks)).transpose()?,
            decisions,
        })
    }

    fn delta_net(&mut self, t: &DeltaNetSpec, l: usize) -> Result<DeltaNet<B>> {
        // The file is ordered by channel, the device buffer by token.
        let (conv, kernel) = (self.tensor(&t.conv)?.to_f32(), t.conv.shape[2]);
        let conv: Vec<f32> = (0..kernel).flat_map(|i| conv.iter().skip(i).step_by(kernel).copied()).collect();
        let decay: Vec<f32> = self.tensor(&t.a_log)?.to_f32().iter().map(|&log| -f64::from(log).exp() as f32).collect();
        Ok(DeltaNet {
            index: self.checkpoint.config.mixer_index(l),
            qkvz: self.matrix(&[&t.qkv, &t.z])?,
            gates: self.matrix(&[&t.b, &t.a])?,
            conv: self.upload(&conv)?,
            decay: self.upload(&decay)?,
            dt_bias: self.vector(&t.dt_bias)?,
            norm: self.vector(&t.norm)?,
            out: self.matrix(&[&t.out])?,
        })
    }

    /// Loads stacked q, k, v and output gate with the rows of a predictor, their biases, and the
    /// other tensors of decisions.
    #[allow(clippy::type_complexity)]
    fn projection(&mut self, t: &AttentionSpec) -> Result<(B::Weight, Option<B::Buf<f32>>, Decisions<B>)> {
        let linears = &t.projections()[..];
        let Some(rows) = self.checkpoint.stacked_decisions(t)? else {
            return Ok((self.matrix(linears)?, self.bias(linears)?, self.adapter(t)?));
        };
        let decisions = t.decisions.as_ref().context("rows of a predictor")?;
        let mut parts = Vec::new();
        for linear in linears {
            parts.push(self.tensor(&linear.weight)?);
        }
        parts.extend(rows.parts);
        let mut bias = Vec::new();
        for LinearSpec { weight, bias: own } in linears {
            match own {
                Some(own) => bias.extend(self.tensor(own)?.to_f32()),
                None => bias.resize(bias.len() + weight.shape[0], 0.0),
            }
        }
        let end = bias.len() + rows.copies * rows.stride;
        for own in decisions.linear.iter().chain(decisions.mlp.iter().map(|[first, _]| first)) {
            self.tensor(&own.weight)?;
            bias.extend(own.bias.as_ref().map(|spec| self.tensor(spec)).transpose()?.iter().flat_map(Tensor::to_f32));
        }
        bias.resize(end, 0.0);
        let middle = match &decisions.middle {
            Some(LinearSpec { weight, bias: Some(bias) }) => Some([self.vector(weight)?, self.vector(bias)?]),
            _ => None,
        };
        let mlp = match &decisions.mlp {
            Some([_, LinearSpec { weight, bias: Some(bias) }]) => {
                let silu = self.checkpoint.config.gates.is_some();
                Some(Rest { silu, middle, weight: self.vector(weight)?, bias: self.vector(bias)? })
            }
            _ => None,
        };
        let units = decisions.mlp.as_ref().map_or(0, |[first, _]| first.weight.shape[0]);
        let Stacked { stride, copies, .. } = rows;
        let columns = Columns { linear: decisions.linear.is_some(), units, stride, copies };
        Ok((self.b.weight(&parts)?, Some(self.upload(&bias)?), Decisions { columns, mlp, own: None }))
    }

    fn adapter(&mut self, t: &AttentionSpec) -> Result<Decisions<B>> {
        let Some((norm, proj)) = t.decisions.as_ref().and_then(|d| d.norm.as_ref().zip(d.linear.as_ref())) else {
            return Ok(Decisions::NONE);
        };
        let columns = Columns { linear: true, units: 0, stride: proj.weight.shape[0], copies: 1 };
        let own = Own { norm: self.vector(norm)?, proj: self.matrix(&[proj])?, bias: self.bias(&[proj])? };
        Ok(Decisions { columns, own: Some(own), mlp: None })
    }

    fn tensor(&mut self, spec: &TensorSpec) -> Result<Tensor> {
        let tensor = self.checkpoint.tensor(spec)?;
        self.done += tensor.stored_bytes() as u64;
        ensure!((self.progress)(self.done, self.checkpoint.weight_bytes), "loading was stopped");
        Ok(tensor)
    }

    /// Loads weights `[out, in]` of linear layers with the same input, stacked by rows.
    fn matrix(&mut self, linears: &[&LinearSpec]) -> Result<B::Weight> {
        self.stacked(&linears.iter().map(|linear| &linear.weight).collect::<Vec<_>>())
    }

    /// Loads matrices with the same number of columns, stacked by rows.
    fn stacked(&mut self, specs: &[&TensorSpec]) -> Result<B::Weight> {
        let tensors = specs.iter().map(|spec| self.tensor(spec)).collect::<Result<Vec<_>>>()?;
        Ok(self.b.weight(&tensors)?)
    }

    fn vector(&mut self, spec: &TensorSpec) -> Result<B::Buf<f32>> {
        let values = self.tensor(spec)?.to_f32();
        self.upload(&values)
    }

    /// Loads the weights of a norm in f32, with its offset added, times a factor.
    fn norm(&mut self, spec: &TensorSpec, factor: f32) -> Result<B::Buf<f32>> {
        let (mut values, offset) = (self.tensor(spec)?.to_f32(), self.checkpoint.config.spec.norm_offset);
        values.iter_mut().for_each(|value| *value = (*value + offset) * factor);
        self.upload(&values)
    }

    /// Loads biases `[out]` of linear layers, concatenated; `None` if the model has none.
    fn bias(&mut self, linears: &[&LinearSpec]) -> Result<Option<B::Buf<f32>>> {
        let mut values = Vec::new();
        for bias in linears.iter().filter_map(|linear| linear.bias.as_ref()) {
            values.extend(self.tensor(bias)?.to_f32());
        }
        if values.is_empty() { Ok(None) } else { Ok(Some(self.upload(&values)?)) }
    }

    fn upload(&self, values: &[f32]) -> Result<B::Buf<f32>> {
        let mut buffer = self.b.alloc(values.len())?;
        self.b.write(&mut buffer, 0, values);
        Ok(buffer)
    }
}
