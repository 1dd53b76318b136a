//! The second tier of a cache: rows that leave their lanes and can be read again, by the rule of
//! [`crate::policy::far`].

use super::kv::{KvGeometry, KvTables, Lane, Pages};
use super::memory::OutOfMemory;
use crate::codec::Place;
use crate::policy::far::Index;
use crate::policy::{Far, SlotMeta};
use std::ops::Range;

/// Far pages of a cache whose geometry [keeps them](super::KvGeometry::far_of). Rows join them
/// inside [`Ops::attention`](super::Ops::attention) and [`Ops::commit`](super::Ops::commit), or in
/// [`Pages::compact`]; forks share them. Everything here runs between steps. The defaults are those
/// of a backend without far pages.
pub trait FarPages: Pages {
    /// Far pages of a lane that were imported without their rows.
    type Awaited: Default;
    /// Whether far rows that attention reads take pages of the pool, which the caller of a step
    /// reserves: in a lane at most one page more than full ones. [`Pages::compact`] does so itself;
    /// what it moves takes as many pages as before until the next choice.
    const IN_POOL: bool = false;

    /// Chooses the pages that each lane of a sequence attends to from here on, by the newest
    /// `queries` queries, at most [`Far::QUERIES`](crate::policy::Far::QUERIES). Pages with a row
    /// at a position in `held` are near beside those. Returns how many of the pages of each of the
    /// [lanes that keep far rows](KvGeometry::far_lanes) were not near before; nothing where there
    /// was no choice.
    fn choose(&self, _kv: &mut KvTables<Self>, _seq: usize, _queries: usize, _held: &[Range<usize>]) -> Vec<u32> {
        Vec::new()
    }
    /// Makes the pages of a sequence near that have a row at a position in `held`, beside those
    /// that are. Returns their number in all lanes.
    fn bring(&self, _kv: &mut KvTables<Self>, _seq: usize, _held: &[Range<usize>]) -> u64 {
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
    /// Appends the blocks that attention reads of a lane's far rows to `blocks`, in the layout of
    /// the pool's pages: those of its near pages, oldest first, and then those that hold rows of
    /// the page that is filling. Returns everything else that its far rows are. Waits for the
    /// device.
    fn export_far(&self, _kv: &mut KvTables<Self>, _seq: usize, _lane: Lane, _blocks: &mut Vec<u8>) -> FarLane {
        FarLane::default()
    }
    /// Appends the blocks of a lane's other full pages, oldest first, to `blocks`. All rows are
    /// there. Waits for the device.
    fn export_far_rest(&self, _kv: &KvTables<Self>, _seq: usize, _lane: Lane, _blocks: &mut Vec<u8>) {}
    /// Sizes of a lane's far rows. Waits for the device.
    fn far_sizes(&self, _kv: &KvTables<Self>, _seq: usize, _lane: Lane) -> FarSizes {
        FarSizes::default()
    }
    /// Fills a lane of a sequence that `tokens` tokens were fed to, and that has no far rows: the
    /// inverse of [`Self::export_far`]. Where they are [in the pool](Self::IN_POOL), the caller has
    /// reserved a page for each block that attention reads. Full pages that are not near await
    /// their rows: until [`Self::fill_far`] nothing may make them near or export them. Fails
    /// without memory.
    fn import_far(
        &self,
        _kv: &mut KvTables<Self>,
        _seq: usize,
        _lane: Lane,
        _tokens: usize,
        _far: &FarLane,
        _blocks: &[u8],
    ) -> Result<Self::Awaited, OutOfMemory> {
        Ok(Self::Awaited::default())
    }
    /// Gives the awaited pages of a lane their rows, wherever the pages are by now: the inverse of
    /// [`Self::export_far_rest`]. Fails without memory for them.
    fn fill_far(&self, _kv: &mut KvTables<Self>, _awaited: Self::Awaited, _blocks: &[u8]) -> Result<(), OutOfMemory> {
        Ok(())
    }
}

/// Sizes of the far rows of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FarSizes {
    /// Full pages, and those of them that attention reads.
    pub full: usize,
    pub near: usize,
    /// Rows of the page that is filling.
    pub filling: usize,
}

/// The far rows of a lane, but for their blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FarLane {
    /// Full pages.
    pub full: usize,
    /// Rows of the page that is filling.
    pub filling: usize,
    /// Rows that were dropped for good.
    pub dropped: usize,
    /// Indices of the full pages that attention reads, ascending: those chosen, then those filled
    /// since.
    pub near: Vec<u32>,
    /// Indices of the full pages: [`Index::write`].
    pub index: Vec<u8>,
    /// `[full, Far::ROWS]` metadata of the rows of the full pages.
    pub metas: Vec<SlotMeta>,
    /// `[newest tokens, query heads of the lane, head_dim]` newest queries, oldest first, at most
    /// [`Far::QUERIES`].
    pub queries: Vec<f32>,
}

/// Whether a page with rows at these positions is held.
pub(super) fn is_held(held: &[Range<usize>], mut positions: impl Iterator<Item = usize>) -> bool {
    !held.is_empty() && positions.any(|position| held.iter().any(|range| range.contains(&position)))
}

/// Index of a full page in these blocks: of the mean of its keys as attention reads them.
pub(super) fn index<B: Pages>(kv: &KvTables<B>, layer: usize, blocks: &[u8]) -> Index {
    let g: KvGeometry = kv.geometry.of_layer(layer);
    let layout = g.page();
    let (mut sum, mut key) = (vec![0.0; g.head_dim], vec![0.0; g.head_dim]);
    for row in 0..Far::ROWS {
        let (block, row) = (&blocks[row / g.page_slots * g.page_bytes()..], row % g.page_slots);
        let place = Place { layer, position: layout.meta(block, row).position() };
        g.codec.read_k(kv.coder.as_deref(), place, &block[layout.k(row)], layout.sides(block, row)[0], &mut key);
        sum.iter_mut().zip(&key).for_each(|(sum, x)| *sum += x);
    }
    sum.iter_mut().for_each(|sum| *sum /= Far::ROWS as f32);
    Index::of(&sum)
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
