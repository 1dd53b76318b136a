//! The second tier of a cache: rows that leave their lanes and can be read again, by the rule of
//! [`crate::policy::far`].

use super::kv::{KvTables, Pages};
use crate::policy::SlotMeta;

/// Far pages of a cache whose geometry [keeps them](super::KvGeometry::far_of). Rows join them
/// inside [`Ops::attention`](super::Ops::attention) and [`Ops::commit`](super::Ops::commit), or in
/// [`Pages::compact`]; forks share them. Everything here runs between steps. The defaults are those
/// of a backend without far pages.
pub trait FarPages: Pages {
    /// Whether far rows that attention reads take pages of the pool, which the caller of a step
    /// reserves: in a lane at most one page more than full ones. [`Pages::compact`] does so itself;
    /// what it moves takes as many pages as before until the next choice.
    const IN_POOL: bool = false;

    /// Chooses the pages that each lane of a sequence attends to from here on, by the newest
    /// `queries` queries, at most [`Far::QUERIES`](crate::policy::Far::QUERIES). Returns how many
    /// pages of all lanes were not near before.
    fn choose(&self, _kv: &mut KvTables<Self>, _seq: usize, _queries: usize) -> u64 {
        0
    }
    /// Drops the full pages of a sequence whose rows are all at positions below `before`. Returns
    /// the number of rows.
    fn drop_far(&self, _kv: &mut KvTables<Self>, _seq: usize, _before: usize) -> u64 {
        0
    }
    /// Counts the far rows of a sequence.
    fn far_counts(&self, _kv: &KvTables<Self>, _seq: usize) -> FarCounts {
        FarCounts::default()
    }
    /// Far rows of a lane in the order in which they left, and whether attention reads them.
    fn far_rows(&self, _kv: &KvTables<Self>, _layer: usize, _seq: usize, _head: usize) -> Vec<(SlotMeta, bool)> {
        Vec::new()
    }
}

/// Far rows of a sequence, summed over its lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FarCounts {
    pub rows: u64,
    /// Rows that attention reads.
    pub near: u64,
    /// Rows that were dropped for good.
    pub dropped: u64,
    /// Host memory of its pages.
    pub bytes: u64,
    /// Host memory of the pages of all sequences; shared pages count once.
    pub all_bytes: u64,
}
