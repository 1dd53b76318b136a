//! The layers of a model, by number: what each mixes with, stores and computes.

use super::super::config::{ModelConfig, Rope};
use super::kinds::{LayerKind, Mixer, Mlp};
use crate::policy::{KvHeads, LayerLanes, LocalLayers};
use std::collections::BTreeSet;

impl ModelConfig {
    pub fn layer(&self, layer: usize) -> LayerKind {
        self.spec.layers[layer % self.spec.layers.len()]
    }

    /// Channels of a layer's dense feed-forward block.
    pub fn ffn_of(&self, kind: LayerKind) -> usize {
        if kind.wide { 2 * self.ffn } else { self.ffn }
    }

    /// Whether there are experts beside dense blocks.
    pub fn has_experts_beside(&self) -> bool {
        (0..self.n_layers).any(|layer| self.layer(layer).mlp == Mlp::DenseAndExperts)
    }

    /// Different numbers of channels of the dense feed-forward blocks.
    pub fn dense_ffns(&self) -> BTreeSet<usize> {
        let layers = (0..self.n_layers).map(|layer| self.layer(layer));
        layers.filter(|kind| kind.mlp != Mlp::Experts).map(|kind| self.ffn_of(kind)).collect()
    }

    /// The layer whose K and V a layer reads: its own number, unless it [shares](LayerKind::shares)
    /// those of another.
    pub fn kv_layer(&self, layer: usize) -> usize {
        let kind = self.layer(layer);
        let lends = |of: &usize| self.layer(*of).stores() && self.layer(*of).local == kind.local;
        if kind.shares { (0..layer).rev().find(lends).unwrap_or(layer) } else { layer }
    }

    /// Whether a later layer reads the K and V of this one.
    pub fn lends(&self, layer: usize) -> bool {
        self.layer(layer).stores() && (layer + 1..self.n_layers).any(|other| self.kv_layer(other) == layer)
    }

    /// The number in the cache's tables of a layer, or of the one whose K and V it reads: how many
    /// layers before it are in the same tables.
    pub fn mixer_index(&self, layer: usize) -> usize {
        let (before, mixer) = (self.kv_layer(layer), self.layer(layer).mixer);
        self.count(before, mixer)
    }

    /// Layers of the KV cache: those that store K and V.
    pub fn attention_layers(&self) -> usize {
        self.count(self.n_layers, Mixer::Attention)
    }

    /// The local layers, by their numbers in the KV cache.
    pub fn local_layers(&self) -> LocalLayers {
        let Some(local) = self.spec.local else { return LocalLayers::default() };
        let stored = self.kv_layers().filter(|&layer| self.layer(layer).local);
        LocalLayers::new(local.window, stored.map(|layer| self.mixer_index(layer)))
    }

    /// RoPE of the layers of the KV cache, in order: frequencies and factor.
    pub fn rotations(&self) -> impl Iterator<Item = (Vec<f32>, f32)> {
        self.kv_layers().map(|layer| self.rotation(self.layer(layer)))
    }

    /// The layers that store K and V.
    fn kv_layers(&self) -> impl Iterator<Item = usize> {
        (0..self.n_layers).filter(|&layer| self.layer(layer).stores())
    }

    /// KV heads of a layer with attention.
    pub fn heads(&self, kind: LayerKind) -> KvHeads {
        let usual = KvHeads { count: self.n_kv_heads, dim: self.head_dim };
        self.spec.global_heads.filter(|_| !kind.local).unwrap_or(usual)
    }

    /// KV heads of the layers whose stored tokens a policy chooses.
    pub fn deciding_heads(&self) -> KvHeads {
        self.heads(LayerKind::ATTENTION)
    }

    /// Channels of q in a layer with attention.
    pub fn q_width(&self, kind: LayerKind) -> usize {
        self.n_q_heads * self.heads(kind).dim
    }

    /// RoPE of a layer with attention: frequencies, none if it does not rotate or the model has no
    /// such layer, and the factor of cos and sin.
    pub fn rotation(&self, kind: LayerKind) -> (Vec<f32>, f32) {
        let dim = self.heads(kind).dim;
        let (frequencies, factor) = match (kind.local, self.spec.local_theta()) {
            (true, Some(theta)) => Rope::plain(theta).frequencies(dim),
            (true, None) if self.spec.local.is_none() => (Vec::new(), 1.0),
            _ => {
                // The score factor is part of the norm of q. Without such a norm, its root scales
                // cos and sin of q and of k.
                let (frequencies, scale) = self.rope.frequencies(dim);
                let factor = if self.spec.qk_norm { 1.0 } else { self.score_factor(kind).sqrt() };
                (frequencies, scale * factor)
            }
        };
        let frequencies = frequencies.into_iter().filter(|_| kind.rotates);
        (frequencies.map(|f| f as f32).collect(), factor)
    }

    /// The lanes of each layer of the KV cache, in order.
    pub fn lanes(&self) -> impl Iterator<Item = LayerLanes> + use<> {
        let local = self.local_layers();
        let stored: Vec<_> = self.kv_layers().map(|layer| self.heads(self.layer(layer))).collect();
        stored.into_iter().enumerate().map(move |(layer, heads)| local.lanes(layer, heads))
    }

    /// Whether some layers of the KV cache store a window of the model, whatever the policy.
    pub fn has_windows(&self) -> bool {
        self.lanes().any(|layer| !layer.decides())
    }

    /// Layers with a state of fixed size.
    pub fn delta_layers(&self) -> usize {
        self.count(self.n_layers, Mixer::DeltaNet)
    }

    /// Layers of a mixer, except those that store nothing of their own.
    fn count(&self, layers: usize, mixer: Mixer) -> usize {
        let counts = |kind: LayerKind| kind.mixer == mixer && (kind.stores() || !kind.attends());
        (0..layers).filter(|&layer| counts(self.layer(layer))).count()
    }

    /// Columns of projected rows of attention: q, then k and v if the layer has its own, and the
    /// output gate.
    pub fn qkv_width(&self, kind: LayerKind) -> usize {
        let KvHeads { count, dim } = self.heads(kind);
        let gates = if self.spec.output_gate { self.n_q_heads } else { 0 };
        let stored = if kind.stores() { 2 * count } else { 0 };
        (self.n_q_heads + stored + gates) * dim
    }

    /// Columns of projected rows and of attention's output, for each different kind of layer.
    pub fn attention_widths(&self) -> BTreeSet<[usize; 2]> {
        let layers = (0..self.n_layers).map(|layer| self.layer(layer));
        layers.filter(LayerKind::attends).map(|kind| [self.qkv_width(kind), self.q_width(kind)]).collect()
    }

    /// Ratio of [`Spec::score_scale`] to the usual 1 / sqrt(head_dim).
    pub fn score_factor(&self, kind: LayerKind) -> f32 {
        self.spec.score_scale.map_or(1.0, |scale| scale * (self.heads(kind).dim as f32).sqrt())
    }
}
