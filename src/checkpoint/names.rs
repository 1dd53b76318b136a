//! The tensors of a model by their Hugging Face names: the only table of names and shapes. Checking
//! a checkpoint, making random weights and loading a model all read it.

use super::config::{DmsVariant, ModelConfig, Predictor};
use crate::tensor::Tensor;
use anyhow::{Context, Result, ensure};

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
    pub q: LinearSpec,
    pub k: LinearSpec,
    pub v: LinearSpec,
    pub o: LinearSpec,
    /// Norms of q and of k, each `[head_dim]`.
    pub qk_norm: Option<[TensorSpec; 2]>,
    pub post_norm: TensorSpec,
    pub gate: LinearSpec,
    pub up: LinearSpec,
    pub down: LinearSpec,
    /// Tensors that compute eviction decisions, if the model has its own.
    pub decisions: Option<DecisionSpec>,
}

/// The tensors that compute a layer's eviction decisions, from the checkpoint or from an adapter
/// file: a sum of maps of the layer's normed input.
pub struct DecisionSpec {
    /// The norm of the input, if it is not the layer's own.
    pub norm: Option<TensorSpec>,
    /// `[n_kv_heads, hidden]`
    pub linear: Option<LinearSpec>,
    /// `[units, hidden]` and `[n_kv_heads, units]`, with GELU between them.
    pub mlp: Option<[LinearSpec; 2]>,
}

/// `[vocab, hidden]`
pub fn embedding(c: &ModelConfig) -> TensorSpec {
    tensor("model.embed_tokens.weight", &[c.vocab, c.hidden])
}

/// The norm after the last layer.
pub fn final_norm(c: &ModelConfig) -> TensorSpec {
    tensor("model.norm.weight", &[c.hidden])
}

/// `[vocab, hidden]`, or `None` if the embedding is also the output.
pub fn lm_head(c: &ModelConfig) -> Option<TensorSpec> {
    (!c.tied).then(|| tensor("lm_head.weight", &[c.vocab, c.hidden]))
}

impl LayerSpec {
    pub fn new(c: &ModelConfig, layer: usize) -> Self {
        let (q, kv, spec) = (c.n_q_heads * c.head_dim, c.n_kv_heads * c.head_dim, &c.spec);
        let name = |name: &str| format!("model.layers.{layer}.{name}");
        let vector = |part: &str, len: usize| tensor(&name(&format!("{part}.weight")), &[len]);
        let attention = |part: &str, out, from, bias| linear(&name(&format!("self_attn.{part}")), out, from, bias);
        let mlp = |part: &str, out, from| linear(&name(&format!("mlp.{part}")), out, from, spec.mlp_bias);
        Self {
            input_norm: vector("input_layernorm", c.hidden),
            q: attention("q_proj", q, c.hidden, spec.qkv_bias),
            k: attention("k_proj", kv, c.hidden, spec.qkv_bias),
            v: attention("v_proj", kv, c.hidden, spec.qkv_bias),
            o: attention("o_proj", c.hidden, q, spec.o_bias),
            qk_norm: spec
                .qk_norm
                .then(|| ["self_attn.q_norm", "self_attn.k_norm"].map(|part| vector(part, c.head_dim))),
            post_norm: vector("post_attention_layernorm", c.hidden),
            gate: mlp("gate_proj", c.ffn, c.hidden),
            up: mlp("up_proj", c.ffn, c.hidden),
            down: mlp("down_proj", c.hidden, c.ffn),
            decisions: DecisionSpec::new(c, layer),
        }
    }

    fn into_tensors(self) -> impl Iterator<Item = TensorSpec> {
        let attention = [self.q, self.k, self.v, self.o].into_iter().flat_map(LinearSpec::into_tensors);
        let mlp = [self.gate, self.up, self.down].into_iter().flat_map(LinearSpec::into_tensors);
        let decisions = self.decisions.into_iter().flat_map(DecisionSpec::into_tensors);
        let before = std::iter::once(self.input_norm).chain(attention).chain(self.qk_norm.into_iter().flatten());
        before.chain([self.post_norm]).chain(mlp).chain(decisions)
    }
}

/// What the tensors of a predictor are called in a checkpoint; their files leave it out.
pub const PREDICTOR: &str = "predictor.";

impl DecisionSpec {
    /// `None` for models whose decisions need no tensors.
    pub fn new(c: &ModelConfig, layer: usize) -> Option<Self> {
        match c.dms.as_ref()?.variant {
            DmsVariant::Borrowed => None,
            DmsVariant::Adapter => {
                let name = format!("model.layers.{layer}.self_attn.dms_proj_alpha");
                Some(Self {
                    linear: Some(linear(&name, c.n_kv_heads, c.hidden, c.spec.o_bias)),
                    norm: Some(tensor(&format!("{name}_norm.weight"), &[c.hidden])),
                    mlp: None,
                })
            }
            DmsVariant::Predictor(Predictor { linear: is_linear, units }) => {
                let name = format!("{PREDICTOR}layers.{layer}");
                let mlp = || {
                    [
                        linear(&format!("{name}.0"), units, c.hidden, true),
                        linear(&format!("{name}.2"), c.n_kv_heads, units, true),
                    ]
                };
                Some(Self {
                    norm: None,
                    linear: is_linear.then(|| linear(&name, c.n_kv_heads, c.hidden, true)),
                    mlp: (units > 0).then(mlp),
                })
            }
        }
    }

    pub fn into_tensors(self) -> impl Iterator<Item = TensorSpec> {
        let (weight, bias) = self.linear.map_or((None, None), |linear| (Some(linear.weight), linear.bias));
        let mlp = self.mlp.into_iter().flatten().flat_map(LinearSpec::into_tensors);
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
    std::iter::once(embedding(c)).chain(layers).chain([final_norm(c)]).chain(lm_head(c))
}

/// The tensor of which this one is some rows, and the first of them, in families that fuse q, k and v, and gate and up.
pub fn fused(c: &ModelConfig, spec: &TensorSpec) -> Option<(TensorSpec, usize)> {
    let (q, kv) = (c.n_q_heads * c.head_dim, c.n_kv_heads * c.head_dim);
    let parts = [
        ("self_attn.q_proj", 0),
        ("self_attn.k_proj", q),
        ("self_attn.v_proj", q + kv),
        ("mlp.gate_proj", 0),
        ("mlp.up_proj", c.ffn),
    ];
    parts.iter().filter(|_| c.family.fused).find_map(|&(part, first)| {
        let (layer, kind) = spec.name.split_once(part)?;
        let (whole, rows) =
            if part.starts_with("mlp") { ("mlp.gate_up_proj", 2 * c.ffn) } else { ("self_attn.qkv_proj", q + 2 * kv) };
        let shape = std::iter::once(rows).chain(spec.shape[1..].iter().copied()).collect();
        Some((TensorSpec { name: format!("{layer}{whole}{kind}"), shape }, first))
    })
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
