//! What the lanes of each layer store, as the model was trained.

use super::cache_policy::Policy;

/// Layers whose attention sees only the newest tokens, as the model was trained, whatever the
/// policy of the other layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalLayers {
    /// Tokens that local layers see; 0 if there is no such layer.
    pub window: usize,
    /// A bit for each.
    layers: [u64; LocalLayers::MOST / 64],
}

impl LocalLayers {
    /// Most layers of a model that has some.
    pub const MOST: usize = 256;

    /// Fewer layers than [`Self::MOST`].
    pub fn new(window: usize, layers: impl Iterator<Item = usize>) -> Self {
        let mut bits = [0; Self::MOST / 64];
        layers.for_each(|layer| bits[layer / 64] |= 1 << (layer % 64));
        Self { window, layers: bits }
    }

    fn contains(&self, layer: usize) -> bool {
        self.window > 0 && self.layers[layer / 64] >> (layer % 64) & 1 == 1
    }

    /// A bit for each, the first one lowest, and their window.
    pub fn bits(&self) -> ([u64; Self::MOST / 64], usize) {
        (self.layers, self.window)
    }

    /// Number of those layers.
    pub fn count(&self) -> usize {
        self.layers.iter().map(|bits| bits.count_ones() as usize).sum()
    }

    /// The lanes of a layer with these heads.
    pub fn lanes(&self, layer: usize, heads: KvHeads) -> LayerLanes {
        LayerLanes { window: self.contains(layer).then_some(self.window), heads }
    }

    /// The policies of a cache whose other layers have this one.
    pub fn policies(&self, of_others: Policy) -> impl Iterator<Item = Policy> + use<> {
        let own = (self.window > 0).then(|| Policy::of_window(self.window));
        std::iter::once(of_others).chain(own)
    }

    /// The policies as text, by which saved caches are told apart.
    pub fn describe(&self, of_others: Policy) -> String {
        if self.window > 0 { format!("{of_others:?} {self:?}") } else { format!("{of_others:?}") }
    }
}

/// KV heads of a layer, and channels of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvHeads {
    pub count: usize,
    pub dim: usize,
}

/// The lanes of one layer, and the slots that they store if no policy drops anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerLanes {
    /// Newest tokens that attention sees, as the model was trained; `None`: all of them.
    pub window: Option<usize>,
    pub heads: KvHeads,
}

impl LayerLanes {
    /// Whether the cache's policy chooses the stored tokens. If not, the model's window does.
    pub fn decides(&self) -> bool {
        self.window.is_none()
    }

    /// The policy of the lanes, where those that decide have this one.
    pub fn policy(&self, of_others: Policy) -> Policy {
        self.window.map_or(of_others, Policy::of_window)
    }

    /// Whether tokens leave the lanes: those outside the model's window always do, others if
    /// eviction is `on`.
    pub fn evicts(&self, on: bool) -> bool {
        on || !self.decides()
    }

    /// Slots of one lane of a dense cache after `n` tokens.
    pub fn dense_slots(&self, n: usize) -> usize {
        self.window.map_or(n, |window| n.min(window))
    }

    /// Slots of all lanes of a dense cache after `n` tokens.
    pub fn all_dense_slots(&self, n: usize) -> usize {
        self.heads.count * self.dense_slots(n)
    }

    /// Sum of [`Self::dense_slots`] over the lengths from 1 to `n`: the reads of a dense cache that
    /// decodes them.
    pub fn dense_reads(&self, n: usize) -> u64 {
        let grows = self.dense_slots(n) as u64;
        grows * (grows + 1) / 2 + (n as u64 - grows) * grows
    }
}
