//! `pool`: fixed memory pooling, the baseline of DMC's paper (arXiv 2403.09636), for any model and
//! without training.

/// Most tokens of a slot.
pub const MOST_MEMBERS: usize = 64;

/// A fixed number of consecutive tokens of a sequence share a slot, which holds their means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Tokens of a slot, from 1 to [`MOST_MEMBERS`]. Those at multiples of it open one.
    pub every: usize,
}
