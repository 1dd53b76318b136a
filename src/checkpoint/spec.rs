//! What a model computes beyond its sizes, as data: a family's parser writes it, the forward pass reads it and knows no family.

use super::config::ModelConfig;

#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Whether q and k are RMS-normalized per head before RoPE.
    pub qk_norm: bool,
    /// Biases of q, k and v, of the output projection, and of the MLP.
    pub qkv_bias: bool,
    pub o_bias: bool,
    pub mlp_bias: bool,
    /// Factors of embedding rows, of what a block adds to the residual stream, and of logits.
    pub embedding_scale: f32,
    pub residual_scale: f32,
    pub logit_scale: f32,
    /// Factor of the products of q and k; `None`: 1 / sqrt(head_dim).
    pub score_scale: Option<f32>,
    /// The newest tokens that attention sees in every layer; `None`: all.
    pub window: Option<usize>,
    /// The layers in their order, which repeats where the model has more.
    pub layers: Vec<LayerKind>,
}

/// What may set a layer apart from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerKind {
    /// Whether q and k are rotated by their positions.
    pub rotates: bool,
}

impl Default for Spec {
    /// Layers of Llama.
    fn default() -> Self {
        Self {
            qk_norm: false,
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            score_scale: None,
            window: None,
            layers: vec![LayerKind { rotates: true }],
        }
    }
}

impl ModelConfig {
    pub fn layer(&self, layer: usize) -> LayerKind {
        self.spec.layers[layer % self.spec.layers.len()]
    }

    /// What [`Spec::score_scale`] is of the usual 1 / sqrt(head_dim).
    pub fn score_factor(&self) -> f32 {
        self.spec.score_scale.map_or(1.0, |scale| scale * (self.head_dim as f32).sqrt())
    }
}
