//! The tensors of a model by their Hugging Face names: the only table of names and shapes. Checking
//! a checkpoint, making random weights and loading a model all read it.

use super::config::{DmsVariant, ModelConfig, Predictor};
use super::spec::{DeltaNet, Experts, LayerInputs, Mixer, Mlp};
use crate::policy::KvHeads;
use crate::tensor::{RowRuns, Tensor};
use anyhow::{Context, Result, ensure};

/// Users' name for the layer that predicts the token after the next one.
pub const MTP: &str = "multi-token prediction";

/// Name and shape of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    pub name: String,
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Returns `tensor` if it exists and has this shape, or an error of one line that names `place`
    /// and both shapes.
    pub fn check(&self, tensor: Option<Tensor>, place: &str) -> Result<Tensor> {
        let tensor = tensor.with_context(|| format!("{place}: tensor {} {:?} is missing", self.name, self.shape))?;
        self.check_shape(&tensor.shape, place)?;
        Ok(tensor)
    }

    /// Fails if a file has the tensor in another shape. Readers call it before they copy anything
    /// of the tensor.
    pub fn check_shape(&self, found: &[usize], place: &str) -> Result<()> {
        let Self { name, shape } = self;
        ensure!(found == shape, "{place}: tensor {name} has shape {found:?}, expected {shape:?}");
        Ok(())
    }
}

/// A linear layer.
pub struct LinearSpec {
    /// `[out, in]`
    pub weight: TensorSpec,
    /// `[out]`
    pub bias: Option<TensorSpec>,
}

/// The tensors of one transformer layer.
pub struct LayerSpec {
    pub input_norm: TensorSpec,
    pub mixer: MixerSpec,
    /// Norms of what the mixer and the MLP add to the residual stream.
    pub behind: Option<[TensorSpec; 2]>,
    /// Before the MLP.
    pub post_norm: TensorSpec,
    pub mlp: MlpSpec,
    /// Experts beside a dense block.
    pub beside: Option<BesideSpec>,
    /// What the layer does with an input of its own, if it has one.
    pub input: Option<InputSpec>,
    /// `[1]`: factor of the residual stream behind the layer.
    pub scale: Option<TensorSpec>,
}

/// The tensors with which a layer adds an [input of its own](super::spec::LayerInputs).
pub struct InputSpec {
    /// `[width, hidden]`
    pub gate: LinearSpec,
    /// `[hidden, width]`
    pub projection: LinearSpec,
    /// The norm of what is added to the residual stream.
    pub norm: TensorSpec,
}

/// The tensors that compute the inputs of all layers.
pub struct InputsSpec {
    /// `[vocab, n_layers * width]`
    pub embedding: TensorSpec,
    /// `[n_layers * width, hidden]`: of the token's embedding.
    pub projection: LinearSpec,
    /// `[width]`: the norm of each layer's part of it.
    pub norm: TensorSpec,
}

/// The tensors of a feed-forward block: dense, or experts.
pub struct MlpSpec {
    /// `[experts, hidden]`, then `[1, hidden]` of a shared expert; none of a dense block.
    pub router: Vec<LinearSpec>,
    /// Gate and up of each expert, the shared one last, or the one pair `[ffn, hidden]`.
    pub gate_up: Vec<LinearSpec>,
    /// `[hidden, ffn]`
    pub down: Vec<LinearSpec>,
}

/// The tensors of [experts beside a dense block](Mlp::DenseAndExperts).
pub struct BesideSpec {
    pub experts: MlpSpec,
    /// `[experts]`: factors of the experts' outputs.
    pub factors: TensorSpec,
    /// `[hidden]`: the norm of the router's input, to be divided by the root of `hidden`.
    pub router_norm: TensorSpec,
    /// The norms before the experts, behind the dense block, and behind the experts.
    pub norms: [TensorSpec; 3],
}

pub enum MixerSpec {
    Attention(Box<AttentionSpec>),
    DeltaNet(Box<DeltaNetSpec>),
}

/// The tensors of an attention block.
pub struct AttentionSpec {
    pub q: LinearSpec,
    /// `None`: the layer reads K and V of another.
    pub k: Option<LinearSpec>,
    /// `None`: it is that of k, or there is none.
    pub v: Option<LinearSpec>,
    /// The output gate, whose rows are among the rows of q in the files.
    pub gate: Option<LinearSpec>,
    pub o: LinearSpec,
    /// Norms of q and of k, each `[head_dim]`; a layer without k has only the first.
    pub q_norm: Option<TensorSpec>,
    pub k_norm: Option<TensorSpec>,
    /// A logit for each query head that joins the softmax.
    pub sinks: Option<TensorSpec>,
    /// Tensors that compute eviction decisions, if the model has its own.
    pub decisions: Option<DecisionSpec>,
}

/// The tensors of a gated delta net.
pub struct DeltaNetSpec {
    /// `[channels, hidden]`
    pub qkv: LinearSpec,
    /// The output gate `[value_width, hidden]`.
    pub z: LinearSpec,
    /// `[value_heads, hidden]`: inputs of the sigmoid that gives beta, and of the softplus of the
    /// decay.
    pub b: LinearSpec,
    pub a: LinearSpec,
    /// `[channels, 1, kernel]`
    pub conv: TensorSpec,
    /// `[value_heads]`
    pub a_log: TensorSpec,
    pub dt_bias: TensorSpec,
    /// `[value_dim]`
    pub norm: TensorSpec,
    /// `[hidden, value_width]`
    pub out: LinearSpec,
}

/// The tensors that compute a layer's eviction decisions, from the checkpoint or from an adapter
/// file: a sum of maps of the layer's normed input.
pub struct DecisionSpec {
    /// The norm of the input, if it is not the layer's own.
    pub norm: Option<TensorSpec>,
    /// `[n_kv_heads, hidden]`
    pub linear: Option<LinearSpec>,
    /// `[units, hidden]` and `[n_kv_heads, units]`, with an activation between them.
    pub mlp: Option<[LinearSpec; 2]>,
    /// `[units, units]`: the MLP's second hidden layer, if it has one.
    pub middle: Option<LinearSpec>,
}

/// `[vocab, hidden]`
pub fn embedding(c: &ModelConfig) -> TensorSpec {
    tensor("model.embed_tokens.weight", &[c.vocab, c.hidden])
}

/// The tensors that compute inputs of layers, if the model has such inputs.
pub fn layer_inputs(c: &ModelConfig) -> Option<InputsSpec> {
    let LayerInputs { width, vocab } = c.spec.layer_inputs?;
    Some(InputsSpec {
        embedding: tensor("model.embed_tokens_per_layer.weight", &[vocab, c.n_layers * width]),
        projection: linear("model.per_layer_model_projection", c.n_layers * width, c.hidden, false),
        norm: tensor("model.per_layer_projection_norm.weight", &[width]),
    })
}

/// Whether a matrix is the values' projection of an attention layer.
pub fn is_value(name: &str) -> bool {
    name.ends_with(".self_attn.v_proj.weight")
}

/// The norm after the last layer.
pub fn final_norm(c: &ModelConfig) -> TensorSpec {
    tensor("model.norm.weight", &[c.hidden])
}

/// Whether logits are a product with it: the head, or the embedding of a model where that is one.
pub fn is_head(name: &str) -> bool {
    matches!(name, "lm_head.weight" | "model.embed_tokens.weight")
}

/// `[vocab, hidden]`, or `None` if the embedding is also the output.
pub fn lm_head(c: &ModelConfig) -> Option<TensorSpec> {
    (!c.tied).then(|| tensor("lm_head.weight", &[c.vocab, c.hidden]))
}

impl LayerSpec {
    pub fn new(c: &ModelConfig, layer: usize) -> Self {
        let name = |name: &str| format!("model.layers.{layer}.{name}");
        let norm = |part: &str| tensor(&name(&format!("{part}.weight")), &[c.hidden]);
        Self {
            input_norm: norm("input_layernorm"),
            mixer: match (c.layer(layer).mixer, &c.spec.delta_net) {
                (Mixer::DeltaNet, Some(sizes)) => {
                    MixerSpec::DeltaNet(DeltaNetSpec::new(sizes, c.hidden, &name("linear_attn")).into())
                }
                _ => MixerSpec::Attention(AttentionSpec::new(c, layer).into()),
            },
            behind: c.spec.norms_behind.then(|| ["post_attention_layernorm", "post_feedforward_layernorm"].map(norm)),
            post_norm: norm(if c.spec.norms_behind { "pre_feedforward_layernorm" } else { "post_attention_layernorm" }),
            mlp: MlpSpec::new(c, layer, &name("mlp")),
            beside: c.spec.experts.filter(|_| c.layer(layer).mlp == Mlp::DenseAndExperts).map(|experts| BesideSpec {
                experts: MlpSpec::of_experts(c, &experts, &name("mlp"), &name("router.proj")),
                factors: tensor(&name("router.per_expert_scale"), &[experts.count]),
                router_norm: tensor(&name("router.scale"), &[c.hidden]),
                norms: ["pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"]
                    .map(norm),
            }),
            input: c.spec.layer_inputs.map(|LayerInputs { width, .. }| InputSpec {
                gate: linear(&name("per_layer_input_gate"), width, c.hidden, false),
                projection: linear(&name("per_layer_projection"), c.hidden, width, false),
                norm: norm("post_per_layer_input_norm"),
            }),
            scale: c.spec.layer_scale.then(|| tensor(&name("layer_scalar"), &[1])),
        }
    }

    /// The matrices that may be packed. Those of a stack have the same input, and one code.
    pub fn stacks(&self) -> Vec<Vec<&TensorSpec>> {
        let [first, out] = match &self.mixer {
            MixerSpec::Attention(mixer) => [mixer.projections(), vec![&mixer.o]],
            MixerSpec::DeltaNet(mixer) => [vec![&mixer.qkv, &mixer.z], vec![&mixer.out]],
        };
        let (gate, projection) = self.input.iter().map(|input| (&input.gate, &input.projection)).unzip();
        let blocks = std::iter::once(&self.mlp).chain(self.beside.iter().map(|beside| &beside.experts));
        let blocks = blocks.flat_map(|mlp| [mlp.gate_up.iter().collect(), mlp.down.iter().collect()]);
        let stacks = [first, out].into_iter().chain(blocks).chain([gate, projection]);
        stacks.map(|stack: Vec<&LinearSpec>| stack.iter().map(|linear| &linear.weight).collect()).collect()
    }

    fn into_tensors(self) -> impl Iterator<Item = TensorSpec> {
        let (mixer, decisions) = match self.mixer {
            MixerSpec::Attention(mixer) => mixer.into_tensors(),
            MixerSpec::DeltaNet(mixer) => (mixer.into_tensors(), None),
        };
        let mlp = self.mlp.into_tensors();
        let beside = self.beside.into_iter().flat_map(|BesideSpec { experts, factors, router_norm, norms }| {
            experts.into_tensors().chain([factors, router_norm]).chain(norms)
        });
        let norms = self.behind.into_iter().flatten().chain([self.post_norm]);
        let before = std::iter::once(self.input_norm).chain(mixer).chain(norms);
        let input = self.input.into_iter().flat_map(|InputSpec { gate, projection, norm }| {
            [gate, projection].into_iter().flat_map(LinearSpec::into_tensors).chain([norm])
        });
        before
            .chain(mlp)
            .chain(beside)
            .chain(input)
            .chain(self.scale)
            .chain(decisions.into_iter().flat_map(DecisionSpec::into_tensors))
    }
}

impl MlpSpec {
    fn new(c: &ModelConfig, layer: usize, name: &str) -> Self {
        match (c.layer(layer).mlp, &c.spec.experts) {
            (Mlp::Experts, Some(experts)) => {
                let router = format!("{name}.{}", if c.family.oss { "router" } else { "gate" });
                Self::of_experts(c, experts, name, &router)
            }
            _ => Self::of(c, &[name.to_owned()], c.ffn_of(c.layer(layer)), Vec::new(), c.spec.mlp_bias),
        }
    }

    fn of_experts(c: &ModelConfig, experts: &Experts, name: &str, router: &str) -> Self {
        let names = (0..experts.count).map(|expert| format!("{name}.experts.{expert}"));
        let shared = experts.shared.then(|| format!("{name}.shared_expert"));
        let names: Vec<_> = names.chain(shared).collect();
        let mut routers = vec![linear(router, experts.count, c.hidden, experts.bias)];
        let gate = || linear(&format!("{name}.shared_expert_gate"), 1, c.hidden, experts.bias);
        routers.extend(experts.shared.then(gate));
        Self::of(c, &names, experts.width, routers, experts.bias)
    }

    fn of(c: &ModelConfig, names: &[String], width: usize, router: Vec<LinearSpec>, bias: bool) -> Self {
        let part = |name: &str, part, out, from| linear(&format!("{name}.{part}"), out, from, bias);
        let gate_up = |name: &String| ["gate_proj", "up_proj"].map(|of| part(name, of, width, c.hidden));
        Self {
            router,
            gate_up: names.iter().flat_map(gate_up).collect(),
            down: names.iter().map(|name| part(name, "down_proj", c.hidden, width)).collect(),
        }
    }

    fn into_tensors(self) -> impl Iterator<Item = TensorSpec> {
        let Self { router, gate_up, down } = self;
        router.into_iter().chain(gate_up).chain(down).flat_map(LinearSpec::into_tensors)
    }
}

impl AttentionSpec {
    fn new(c: &ModelConfig, layer: usize) -> Self {
        let (kind, spec) = (c.layer(layer), &c.spec);
        let KvHeads { count, dim } = c.heads(kind);
        let (q, kv) = (c.q_width(kind), count * dim);
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}");
        let rows = |part: &str, rows| linear(&name(part), rows, c.hidden, spec.qkv_bias);
        let norm = |part: &str| tensor(&name(&format!("{part}.weight")), &[dim]);
        let own_values = kind.stores() && !(kind.decides() && spec.keys_are_values);
        Self {
            q: rows("q_proj", q),
            k: kind.stores().then(|| rows("k_proj", kv)),
            v: own_values.then(|| rows("v_proj", kv)),
            gate: spec.output_gate.then(|| rows("q_gate", q)),
            o: linear(&name("o_proj"), c.hidden, q, spec.o_bias),
            q_norm: spec.qk_norm.then(|| norm("q_norm")),
            k_norm: (spec.qk_norm && kind.stores()).then(|| norm("k_norm")),
            sinks: spec.sinks.then(|| tensor(&name("sinks"), &[c.n_q_heads])),
            decisions: DecisionSpec::new(c, layer),
        }
    }

    /// Linear layers with the block's input, in the order in which they are stacked. That of k is
    /// there twice where it is also that of v: values differ from keys after norms and RoPE.
    pub fn projections(&self) -> Vec<&LinearSpec> {
        let values = self.v.as_ref().or(self.k.as_ref());
        std::iter::once(&self.q).chain(&self.k).chain(values).chain(&self.gate).collect()
    }

    fn into_tensors(self) -> (Vec<TensorSpec>, Option<DecisionSpec>) {
        let linears = std::iter::once(self.q).chain(self.k).chain(self.v).chain([self.o]).chain(self.gate);
        let norms = self.q_norm.into_iter().chain(self.k_norm);
        let tensors = linears.flat_map(LinearSpec::into_tensors).chain(norms).chain(self.sinks);
        (tensors.collect(), self.decisions)
    }
}

impl DeltaNetSpec {
    fn new(sizes: &DeltaNet, hidden: usize, name: &str) -> Self {
        let rows = |part: &str, rows| linear(&format!("{name}.{part}"), rows, hidden, false);
        let vector = |part: &str, len| tensor(&format!("{name}.{part}"), &[len]);
        let (width, heads) = (sizes.value_width(), sizes.value_heads);
        Self {
            qkv: rows("in_proj_qkv", sizes.channels()),
            z: rows("in_proj_z", width),
            b: rows("in_proj_b", heads),
            a: rows("in_proj_a", heads),
            conv: tensor(&format!("{name}.conv1d.weight"), &[sizes.channels(), 1, sizes.kernel]),
            a_log: vector("A_log", heads),
            dt_bias: vector("dt_bias", heads),
            norm: vector("norm.weight", sizes.value_dim),
            out: linear(&format!("{name}.out_proj"), hidden, width, false),
        }
    }

    fn into_tensors(self) -> Vec<TensorSpec> {
        let linears = [self.qkv, self.z, self.b, self.a, self.out].into_iter().flat_map(LinearSpec::into_tensors);
        linears.chain([self.conv, self.a_log, self.dt_bias, self.norm]).collect()
    }
}

/// Prefix of a predictor's tensors in a checkpoint; its own files omit it.
pub const PREDICTOR: &str = "predictor.";

impl DecisionSpec {
    /// `None` for models whose decisions need no tensors, and in layers that store nothing. The
    /// maps of a predictor are numbered by layers of the KV cache.
    pub fn new(c: &ModelConfig, layer: usize) -> Option<Self> {
        let (kind, heads) = (c.layer(layer), c.heads(c.layer(layer)).count);
        if !kind.stores() {
            return None;
        }
        match (c.dms.as_ref().map(|dms| dms.variant), c.predictor()) {
            (Some(DmsVariant::Adapter), _) => {
                let name = format!("model.layers.{layer}.self_attn.dms_proj_alpha");
                Some(Self {
                    linear: Some(linear(&name, heads, c.hidden, c.spec.o_bias)),
                    norm: Some(tensor(&format!("{name}_norm.weight"), &[c.hidden])),
                    mlp: None,
                    middle: None,
                })
            }
            (_, Some(Predictor { linear: is_linear, units, deep })) => {
                // Files have maps of one size, also for local layers, whose maps decide nothing.
                let (name, heads) = (format!("{PREDICTOR}layers.{}", c.mixer_index(layer)), c.deciding_heads().count);
                let mlp = || {
                    [
                        linear(&format!("{name}.0"), units, c.hidden, true),
                        linear(&format!("{name}.2"), heads, units, true),
                    ]
                };
                Some(Self {
                    norm: None,
                    linear: is_linear.then(|| linear(&name, heads, c.hidden, true)),
                    mlp: (units > 0).then(mlp),
                    middle: deep.then(|| linear(&format!("{name}.1"), units, units, true)),
                })
            }
            _ => None,
        }
    }

    pub fn into_tensors(self) -> impl Iterator<Item = TensorSpec> {
        let (weight, bias) = self.linear.map_or((None, None), |linear| (Some(linear.weight), linear.bias));
        let mlp = self.mlp.into_iter().flatten().chain(self.middle).flat_map(LinearSpec::into_tensors);
        weight.into_iter().chain(self.norm).chain(bias).chain(mlp)
    }
}

impl LinearSpec {
    fn into_tensors(self) -> impl Iterator<Item = TensorSpec> {
        std::iter::once(self.weight).chain(self.bias)
    }
}

/// Every tensor that the forward pass reads. The first is the embedding.
pub fn all(c: &ModelConfig) -> impl Iterator<Item = TensorSpec> {
    let layers = (0..c.n_layers).flat_map(move |layer| LayerSpec::new(c, layer).into_tensors());
    let inputs = layer_inputs(c).into_iter().flat_map(|InputsSpec { embedding, projection, norm }| {
        [embedding].into_iter().chain(projection.into_tensors()).chain([norm])
    });
    std::iter::once(embedding(c)).chain(inputs).chain(layers).chain([final_norm(c)]).chain(lm_head(c))
}

/// The tensor that contains this one as some of its rows, and which rows: in families that fuse q,
/// k and v, or gate and up, or that have the output gate among the rows of q.
pub fn fused(c: &ModelConfig, spec: &TensorSpec) -> Option<(TensorSpec, RowRuns)> {
    let (q, kv, d) = (c.n_q_heads * c.head_dim, c.n_kv_heads * c.head_dim, c.head_dim);
    let (qkv, gate_up) = (("self_attn.qkv_proj", q + 2 * kv), ("mlp.gate_up_proj", 2 * c.ffn));
    let gated_q = ("self_attn.q_proj", 2 * q);
    let of_head = |first| RowRuns { first, run: d, stride: 2 * d };
    let fused = [
        ("self_attn.q_proj", qkv, RowRuns::one(0, q)),
        ("self_attn.k_proj", qkv, RowRuns::one(q, kv)),
        ("self_attn.v_proj", qkv, RowRuns::one(q + kv, kv)),
        ("mlp.gate_proj", gate_up, RowRuns::one(0, c.ffn)),
        ("mlp.up_proj", gate_up, RowRuns::one(c.ffn, c.ffn)),
    ];
    let gated = [("self_attn.q_proj", gated_q, of_head(0)), ("self_attn.q_gate", gated_q, of_head(d))];
    let parts = fused.iter().filter(|_| c.family.fused).chain(gated.iter().filter(|_| c.spec.output_gate));
    parts.into_iter().find_map(|&(part, (whole, rows), runs)| {
        let (layer, kind) = spec.name.split_once(part)?;
        let shape = std::iter::once(rows).chain(spec.shape[1..].iter().copied()).collect();
        Some((TensorSpec { name: format!("{layer}{whole}{kind}"), shape }, runs))
    })
}

/// The tensors that may hold the matrices of all experts in place of this one, and its rows there:
/// gate and up of an expert in one tensor, as transformers has them in memory, or one tensor per
/// kind, as in GGUF files.
pub fn of_experts(c: &ModelConfig, spec: &TensorSpec) -> Vec<(TensorSpec, RowRuns)> {
    let place = spec.name.split_once(".mlp.experts.").zip(c.spec.experts.as_ref());
    let Some(((layer, rest), experts)) = place else { return Vec::new() };
    let part = rest.split_once('.').and_then(|(expert, part)| Some((expert.parse::<usize>().ok()?, part)));
    let Some((expert, part)) = part else { return Vec::new() };
    let &[rows, cols] = &spec.shape[..] else {
        // Biases in GGUF files: one row per expert.
        let whole = tensor(&format!("{layer}.mlp.experts.{part}"), &[experts.count, spec.shape[0]]);
        return vec![(whole, RowRuns::one(expert, 1))];
    };
    let whole = |part: &str, all: usize, at: usize| {
        let spec = tensor(&format!("{layer}.mlp.experts.{part}"), &[experts.count, all, cols]);
        (spec, RowRuns::one(expert * all + at, rows))
    };
    let own = whole(part, rows, 0);
    let (stack, all, at) = match part {
        "gate_proj.weight" => ("gate_up_proj", 2 * rows, 0),
        "up_proj.weight" => ("gate_up_proj", 2 * rows, rows),
        _ => ("down_proj", rows, 0),
    };
    let mut places = vec![whole(stack, all, at), own];
    if c.layer(0).mlp == Mlp::DenseAndExperts {
        // Experts beside a dense block are no part of it.
        let (mut beside, runs) = whole(stack, all, at);
        beside.name = beside.name.replace(".mlp.experts.", ".experts.");
        places.push((beside, runs));
    }
    places
}

fn tensor(name: &str, shape: &[usize]) -> TensorSpec {
    TensorSpec { name: name.to_owned(), shape: shape.to_vec() }
}

fn linear(name: &str, out: usize, from: usize, bias: bool) -> LinearSpec {
    LinearSpec {
        weight: tensor(&format!("{name}.weight"), &[out, from]),
        bias: bias.then(|| tensor(&format!("{name}.bias"), &[out])),
    }
}
