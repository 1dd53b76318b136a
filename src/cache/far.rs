//! Far rows of sequences: what has left their lanes and is kept, by the rule of
//! [`crate::policy::far`].

use super::{KvCache, SeqId};
use crate::backend::{Backend, FarCounts};
use crate::policy::SlotMeta;
use crate::protocol::LaneFilter;

impl<B: Backend> KvCache<B> {
    /// Chooses the far pages that a sequence attends to from here on, by its newest `queries`
    /// queries. Returns how many pages of all lanes were brought near; `None` if the cache keeps no
    /// far rows.
    pub fn choose(&mut self, b: &B, seq: SeqId, queries: usize) -> Option<u64> {
        let fetched = self.geometry().keeps_far().then(|| b.choose(&mut self.tables, seq.row(), queries))?;
        self.used_upper_bound = self.pool_stats(b).used_pages;
        Some(fetched)
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
