//! `dmc`: Dynamic Memory Compression (arXiv 2403.09636). Each head decides for each token whether
//! it joins the newest slot, and with what weight. Both come from channels of q that training has
//! freed.

use super::MOST_MEMBERS;

/// Least weight of a token, as in the published code: no slot is divided by 0.
const LEAST_WEIGHT: f32 = 1.0 / 128.0;

/// Parameters of the weights, which come from the last channel of the second query head of each KV
/// head, before RoPE. The decisions come from the first query head, as with DMS.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dmc {
    pub weight_scale: f32,
    pub weight_offset: f32,
    /// Most tokens of a slot, up to [`MOST_MEMBERS`].
    pub most_members: usize,
}

impl Default for Dmc {
    fn default() -> Self {
        Self { weight_scale: 1.0, weight_offset: 5.0, most_members: MOST_MEMBERS }
    }
}

impl Dmc {
    /// A token's weight in its slot, above 0.
    pub fn weight(&self, channel: f32) -> f32 {
        1.0 / (1.0 + (-(channel * self.weight_scale + self.weight_offset)).exp()) + LEAST_WEIGHT
    }
}
