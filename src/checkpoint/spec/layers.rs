//! The layers of a model, by number: what each mixes with, stores and computes.

use super::super::config::{ModelConfig, Rope};
use super::kinds::{LayerKind, Mixer, Mlp};
use crate::policy::{LayerLanes, LocalLayers};

impl ModelConfig {
    pub fn layer(&self, layer: usize) -> LayerKind {
        self.spec.layers[layer % self.spec.layers.len()]
    }

    /// Channels of the widest dense feed-forward block; 0 if there is none.
    pub fn dense_ffn(&self) -> usize {
        let dense = (0..self.n_layers).any(|layer| self.layer(layer).mlp == Mlp::Dense);
        if dense { self.ffn } else { 0 }
    }

    /// Number of the layers before this one that have its mixer: its number in the cache's tables.
    pub fn mixer_index(&self, layer: usize) -> usize {
        self.count(layer, self.layer(layer).mixer)
    }

    /// Layers with attention, which are the layers of the KV cache.
    pub fn attention_layers(&self) -> usize {
        self.count(self.n_layers, Mixer::Attention)
    }

    /// The local layers, by their numbers in the KV cache.
    pub fn local_layers(&self) -> LocalLayers {
        let Some(local) = self.spec.local else { return LocalLayers::default() };
        let layers = (0..self.n_layers).filter(|&layer| self.layer(layer).local).map(|layer| self.mixer_index(layer));
        LocalLayers::new(local.window, layers)
    }

    /// RoPE of the layers of the KV cache, in order: frequencies and factor.
    pub fn rotations(&self) -> impl Iterator<Item = (Vec<f32>, f32)> {
        let layers = (0..self.n_layers).map(|layer| self.layer(layer));
        layers.filter(LayerKind::attends).map(|kind| self.rotation(kind))
    }

    /// RoPE of a layer with attention: frequencies, none if it does not rotate or the model has no
    /// such layer, and the factor of cos and sin.
    pub fn rotation(&self, kind: LayerKind) -> (Vec<f32>, f32) {
        let (frequencies, factor) = match (kind.local, self.spec.local_theta()) {
            (true, Some(theta)) => Rope::plain(theta).frequencies(self.head_dim),
            (true, None) if self.spec.local.is_none() => (Vec::new(), 1.0),
            _ => {
                // The score factor is part of the norm of q. Without such a norm, its root scales
                // cos and sin of q and of k.
                let (frequencies, scale) = self.rope.frequencies(self.head_dim);
                let factor = if self.spec.qk_norm { 1.0 } else { self.score_factor().sqrt() };
                (frequencies, scale * factor)
            }
        };
        let frequencies = frequencies.into_iter().filter(|_| kind.rotates);
        (frequencies.map(|f| f as f32).collect(), factor)
    }

    /// The lanes of each layer of the KV cache, in order.
    pub fn lanes(&self) -> impl Iterator<Item = LayerLanes> + use<> {
        let local = self.local_layers();
        (0..self.attention_layers()).map(move |layer| local.lanes(layer))
    }

    /// Whether some layers of the KV cache store a window of the model, whatever the policy.
    pub fn has_windows(&self) -> bool {
        self.lanes().any(|layer| !layer.decides())
    }

    /// Layers with a state of fixed size.
    pub fn delta_layers(&self) -> usize {
        self.count(self.n_layers, Mixer::DeltaNet)
    }

    fn count(&self, layers: usize, mixer: Mixer) -> usize {
        (0..layers).filter(|&layer| self.layer(layer).mixer == mixer).count()
    }

    /// Columns of projected rows of attention: q, k, v and the output gate.
    pub fn qkv_width(&self) -> usize {
        let gates = if self.spec.output_gate { self.n_q_heads } else { 0 };
        (self.n_q_heads + 2 * self.n_kv_heads + gates) * self.head_dim
    }

    /// Ratio of [`Spec::score_scale`] to the usual 1 / sqrt(head_dim).
    pub fn score_factor(&self) -> f32 {
        self.spec.score_scale.map_or(1.0, |scale| scale * (self.head_dim as f32).sqrt())
    }
}
