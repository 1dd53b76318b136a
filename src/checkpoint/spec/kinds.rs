//! The computation of a model beyond its sizes, as data. A family's parser writes it; the forward
//! pass reads it and knows no family.

use crate::policy::{KvHeads, LocalLayers};
use anyhow::Result;

#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Whether q and k are RMS-normalized per head before RoPE.
    pub qk_norm: bool,
    /// Whether v is RMS-normalized per head, without weights.
    pub v_norm: bool,
    /// Biases of q, k and v, of the output projection, and of the MLP.
    pub qkv_bias: bool,
    pub o_bias: bool,
    pub mlp_bias: bool,
    /// Offset added to the stored weights of norms, except inside a delta net.
    pub norm_offset: f32,
    /// Whether what attention and MLP add to the residual stream is normed first.
    pub norms_behind: bool,
    pub activation: Activation,
    /// Whether attention's output is multiplied by the sigmoid of a gate. Each head's rows of q are
    /// followed by as many rows of its gate.
    pub output_gate: bool,
    /// Whether each query head has a logit of its own, a sink, that joins the softmax and takes its
    /// share of the weights from the keys.
    pub sinks: bool,
    /// Factors of embedding rows, of what a block adds to the residual stream, and of logits.
    pub embedding_scale: f32,
    pub residual_scale: f32,
    pub logit_scale: f32,
    /// Factor of the products of q and k; `None`: 1 / sqrt(head_dim).
    pub score_scale: Option<f32>,
    /// Growth of queries with their positions; `None`: they do not grow.
    pub query_growth: Option<QueryGrowth>,
    /// Cap c of logits, which become `c * tanh(logit / c)`.
    pub logit_cap: Option<f32>,
    /// KV heads of layers that are not local, where they are not those of local layers.
    pub global_heads: Option<KvHeads>,
    /// Whether the projection of k is also that of v in layers that are not local.
    pub keys_are_values: bool,
    /// Whether the residual stream is multiplied by a factor behind each layer.
    pub layer_scale: bool,
    /// Inputs of each layer beside the residual stream; `None`: there are none.
    pub layer_inputs: Option<LayerInputs>,
    /// The newest tokens that attention sees in every layer; `None`: all.
    pub window: Option<usize>,
    /// Properties of layers that are [local](LayerKind::local).
    pub local: Option<Local>,
    /// Sizes of layers of [`Mixer::DeltaNet`]; `None`: there are none.
    pub delta_net: Option<DeltaNet>,
    /// Sizes of layers with [`Mlp::Experts`]; `None`: there are none.
    pub experts: Option<Experts>,
    /// The layers in their order, which repeats where the model has more.
    pub layers: Vec<LayerKind>,
}

/// A query at position p is multiplied by `1 + beta * ln(1 + p / length)`, where p / length is a
/// whole quotient (Llama 4, Ministral 3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    pub beta: f32,
    pub length: usize,
}

/// Sizes of the inputs that layers have of their own: rows of a table of embeddings, plus a map of
/// the token's embedding (per-layer embeddings, Gemma 3n and 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerInputs {
    /// Channels of a layer's input.
    pub width: usize,
    /// Tokens of the table.
    pub vocab: usize,
}

/// Differences between the layers of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerKind {
    pub mixer: Mixer,
    /// Whether q and k are rotated by their positions.
    pub rotates: bool,
    pub mlp: Mlp,
    /// Whether a dense feed-forward block has twice the channels.
    pub wide: bool,
    /// Whether attention sees a window of tokens, and may rotate by other angles than elsewhere.
    pub local: bool,
    /// Whether attention reads K and V of an earlier layer: of the last one that computes its own
    /// and is local, or not, as this one.
    pub shares: bool,
}

/// The feed-forward block of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mlp {
    Dense,
    /// A mixture of experts, of which a router chooses some for each token.
    Experts,
    /// Both, side by side (Gemma 4): each is normed, then their sum.
    DenseAndExperts,
}

/// Sizes of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    pub count: usize,
    pub per_token: usize,
    /// Channels of an expert between its projections.
    pub width: usize,
    /// Whether the weights of a token's experts are divided by their sum.
    pub normalized: bool,
    /// Whether every token also passes a shared expert, the last one, weighted by the sigmoid of
    /// its logit.
    pub shared: bool,
    /// Whether the router and the projections have biases.
    pub bias: bool,
    /// Whether the activation is `(up + 1) * gate * sigmoid(1.702 gate)`, of a gate of at most 7
    /// and an up between -7 and 7.
    pub clamped: bool,
}

impl Experts {
    /// Number of experts, the shared one included.
    pub fn all(&self) -> usize {
        self.count + usize::from(self.shared)
    }

    /// Experts that a token passes, the shared one included.
    pub fn passed(&self) -> usize {
        self.per_token + usize::from(self.shared)
    }
}

/// Attention of local layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Local {
    /// The newest tokens that it sees.
    pub window: usize,
    /// Base of its RoPE, which is not scaled; `None`: it rotates as other layers do.
    pub theta: Option<f64>,
}

/// The function of the gate in an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Silu,
    /// GELU by its approximation with tanh.
    GeluTanh,
}

/// The part of a layer that mixes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    Attention,
    /// Linear attention with a state of fixed size: Gated Delta Networks (arXiv 2412.06464).
    DeltaNet,
}

/// Sizes of a gated delta net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNet {
    /// Heads of q and k, of which each serves several value heads.
    pub key_heads: usize,
    pub value_heads: usize,
    /// Channels of a head of q or k, and of one of v.
    pub key_dim: usize,
    pub value_dim: usize,
    /// Tokens that the convolution sees.
    pub kernel: usize,
    /// Whether value head h has key head `h % key_heads`, as in GGUF files, and not
    /// `h / (value_heads / key_heads)`.
    pub tiled: bool,
}

impl DeltaNet {
    /// Channels of v.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of q, k and v, which the convolution mixes.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_width()
    }
}

impl LayerKind {
    pub const ATTENTION: Self =
        Self { mixer: Mixer::Attention, rotates: true, mlp: Mlp::Dense, wide: false, local: false, shares: false };
    pub const DELTA_NET: Self = Self { mixer: Mixer::DeltaNet, ..Self::ATTENTION };

    /// Whether the cache's policy chooses the tokens that it stores, and not a window of the model.
    pub fn decides(&self) -> bool {
        !self.local
    }

    /// Whether it computes K and V and stores them in the KV cache.
    pub fn stores(&self) -> bool {
        self.attends() && !self.shares
    }

    /// Whether its mixer is attention.
    pub fn attends(&self) -> bool {
        self.mixer == Mixer::Attention
    }
}

impl Spec {
    /// Most layers of a model of which some see a window.
    pub const MOST_WITH_WINDOWS: usize = LocalLayers::MOST;

    /// Layers of attention, some of which see all tokens and the others, if any, what `local` says.
    pub fn set_local(&mut self, sees_all: &[bool], local: impl FnOnce() -> Result<Local>) -> Result<()> {
        self.layers = sees_all.iter().map(|all| LayerKind { local: !all, ..LayerKind::ATTENTION }).collect();
        if sees_all.contains(&false) {
            self.local = Some(local()?);
        }
        Ok(())
    }

    /// The windows that attention has as the model was trained.
    pub fn windows_mut(&mut self) -> impl Iterator<Item = &mut usize> {
        self.local.iter_mut().map(|local| &mut local.window).chain(&mut self.window)
    }

    /// Base of the RoPE of layers that see a window, which is not scaled, if it is not the others'.
    pub fn local_theta(&self) -> Option<f64> {
        self.local.and_then(|local| local.theta)
    }
}

impl Default for Spec {
    /// Layers of Llama.
    fn default() -> Self {
        Self {
            qk_norm: false,
            v_norm: false,
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
            norm_offset: 0.0,
            norms_behind: false,
            activation: Activation::Silu,
            output_gate: false,
            sinks: false,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            score_scale: None,
            query_growth: None,
            logit_cap: None,
            global_heads: None,
            keys_are_values: false,
            layer_scale: false,
            layer_inputs: None,
            window: None,
            local: None,
            delta_net: None,
            experts: None,
            layers: vec![LayerKind::ATTENTION],
        }
    }
}
