//! Far rows of sequences: what has left their lanes and is kept, by the rule of
//! [`crate::policy::far`].

use super::{CacheError, KvCache, SeqId};
use crate::backend::{Backend, FarCounts, Lane};
use crate::policy::{Far, SlotMeta};
use crate::protocol::LaneFilter;
use std::ops::Range;

/// All positions.
const ALL: Range<usize> = 0..usize::MAX;

impl<B: Backend> KvCache<B> {
    /// Chooses the far pages that a sequence attends to from here on, by its newest `queries`
    /// queries. Returns how many pages of all lanes were brought near; `None` if the cache keeps no
    /// far rows.
    pub fn choose(&mut self, b: &B, seq: SeqId, queries: usize) -> Option<u64> {
        let held = self.held(seq);
        let fetched = self.geometry().keeps_far().then(|| b.choose(&mut self.tables, seq.row(), queries, &held))?;
        self.used_upper_bound = self.pool_stats(b).used_pages;
        let lanes = self.geometry().far_lanes().count();
        let all = &mut self.seqs[seq.row()].fetched;
        all.resize(lanes, 0);
        all.iter_mut().zip(&fetched).for_each(|(all, pages)| *all += pages);
        Some(fetched.into_iter().map(u64::from).sum())
    }

    /// Positions whose far pages are near whatever is chosen: those that are pinned, and all while
    /// eviction is off.
    fn held(&self, seq: SeqId) -> Vec<Range<usize>> {
        if self.eviction(seq) { self.pins(seq).to_vec() } else { vec![ALL] }
    }

    /// Makes the held far pages of a sequence near, where there is room for them and `copies` more
    /// pages. Fails without room, and changes nothing.
    pub(super) fn bring_held(&mut self, b: &B, seq: SeqId, copies: usize) -> Result<(), CacheError> {
        let held = self.held(seq);
        self.bring(b, seq, &held, copies)
    }

    /// Makes all far pages of a sequence near. Fails without room, and changes nothing.
    pub fn bring_all(&mut self, b: &B, seq: SeqId) -> Result<(), CacheError> {
        self.bring(b, seq, &[ALL], 0)
    }

    fn bring(&mut self, b: &B, seq: SeqId, held: &[Range<usize>], copies: usize) -> Result<(), CacheError> {
        let g = *self.geometry();
        let brings = g.keeps_far() && !held.is_empty();
        let pages = if brings && B::IN_POOL { self.pages_to_bring(b, seq, held) } else { 0 };
        self.reserve(b, pages * Far::ROWS / g.of_far().page_slots + copies)?;
        if brings {
            b.bring(&mut self.tables, seq.row(), held);
            self.used_upper_bound = self.pool_stats(b).used_pages;
        }
        Ok(())
    }

    /// Held pages of all lanes that are not near.
    fn pages_to_bring(&self, b: &B, seq: SeqId, held: &[Range<usize>]) -> usize {
        let is_held =
            |(meta, near): &(SlotMeta, bool)| !near && held.iter().any(|range| range.contains(&meta.position()));
        let of_lane = |lane: Lane| {
            let rows = self.far_rows(b, seq, lane.layer, lane.head);
            rows.chunks(Far::ROWS).filter(|page| page.iter().any(is_held)).count()
        };
        self.geometry().far_lanes().map(of_lane).sum()
    }

    /// Drops the full far pages of a sequence that hold only positions below `before`, for good.
    /// Returns the number of dropped rows.
    pub fn drop_far(&mut self, b: &B, seq: SeqId, before: usize) -> u64 {
        b.drop_far(&mut self.tables, seq.row(), before)
    }

    /// Counts the far rows of a sequence.
    pub fn far_counts(&self, b: &B, seq: SeqId) -> FarCounts {
        b.far_counts(&self.tables, seq.row())
    }

    /// Pages of each [lane that keeps far rows](crate::backend::KvGeometry::far_lanes) that choices
    /// have brought near since the sequence was made or read from a file; empty before the first
    /// one. A fork begins with those of its source.
    pub fn far_fetched(&self, seq: SeqId) -> &[u32] {
        &self.seqs[seq.row()].fetched
    }

    /// Bytes of the far pages of all sequences; shared pages count once.
    pub fn far_bytes(&self, b: &B) -> u64 {
        b.far_counts(&self.tables, 0).all_bytes
    }

    /// Counts the lanes that have each token of a sequence in a far page, and those of them that
    /// read it; empty where no rows are kept. Waits for the device.
    pub fn far_presence(&self, b: &B, seq: SeqId, filter: LaneFilter) -> [Vec<u16>; 2] {
        let g = self.geometry();
        let tokens = if g.keeps_far() { self.len(seq) } else { 0 };
        let [mut far, mut near] = [vec![0; tokens], vec![0; tokens]];
        for lane in g.deciding_lanes().filter(|lane| tokens > 0 && filter.selects(lane.layer, lane.head)) {
            for (meta, is_near) in self.far_rows(b, seq, lane.layer, lane.head) {
                far[meta.position()] += 1;
                near[meta.position()] += u16::from(is_near);
            }
        }
        [far, near]
    }

    /// Far rows of a lane in the order in which they left, and whether attention reads them.
    pub fn far_rows(&self, b: &B, seq: SeqId, layer: usize, head: usize) -> Vec<(SlotMeta, bool)> {
        b.far_rows(&self.tables, layer, seq.row(), head)
    }
}
