//! Kinds of layers, whose heads differ.

use super::super::KvGeometry;

/// Layers that have the same heads: one kind where they do not differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Local,
    Other,
}

impl Kind {
    /// The kind of a layer.
    pub fn of(g: &KvGeometry, layer: usize) -> Self {
        if g.heads.is_none() || g.layer(layer).decides() { Self::Other } else { Self::Local }
    }

    /// The kinds that a cache has, each with its first layer.
    pub fn all(g: &KvGeometry) -> impl Iterator<Item = (Self, usize)> + use<> {
        let g = *g;
        let first = move |kind| (0..g.n_layers).find(|&layer| Self::of(&g, layer) == kind);
        [Self::Local, Self::Other].into_iter().filter_map(move |kind| Some((kind, first(kind)?)))
    }
}
