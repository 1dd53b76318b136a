//! Reports of a cache: counters of sequences, pages that several sequences share, and lanes that
//! store a token. Every read waits for the device.

use super::{KvCache, SeqId};
use crate::backend::{Backend, FarCounts, KvGeometry, Lane, PresenceCounts};
use crate::policy::SlotMeta;
use crate::protocol::LaneFilter;

/// Counters of one sequence, read from the device tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeqStats {
    /// Number of tokens fed.
    pub len: usize,
    /// Live slots of the lanes of each layer.
    pub live: Vec<Vec<u32>>,
    /// Sum of `live`.
    pub live_slots: u64,
    /// Entries of the page table in use. Forks count shared pages each.
    pub pages: usize,
    /// Slots attended to by decode steps, summed over lanes.
    pub reads: u64,
    /// Maximum over steps of the slots stored, summed over lanes.
    pub peak: u32,
    /// Slots of one lane of a dense cache, by layer.
    pub dense: Vec<u32>,
    /// Rows that have left its lanes and are kept.
    pub far: FarCounts,
    /// [`KvCache::far_fetched`]
    pub fetched: Vec<u32>,
}

impl SeqStats {
    /// Slots of a dense cache, all lanes together.
    pub fn dense_slots(&self) -> u64 {
        let layers = self.dense.iter().zip(&self.live);
        layers.map(|(&dense, lanes)| u64::from(dense) * lanes.len() as u64).sum()
    }

    /// Bytes of the live slots.
    pub fn bytes(&self, geometry: &KvGeometry) -> u64 {
        let of_layer = |(layer, lanes): (usize, &Vec<u32>)| {
            lanes.iter().map(|&live| u64::from(live)).sum::<u64>() * geometry.of_layer(layer).slot_bytes() as u64
        };
        self.live.iter().enumerate().map(of_layer).sum()
    }

    /// Bytes of the slots of a dense cache.
    pub fn dense_bytes(&self, geometry: &KvGeometry) -> u64 {
        let of_layer = |(layer, (&dense, lanes)): (usize, (&u32, &Vec<u32>))| {
            u64::from(dense) * lanes.len() as u64 * geometry.of_layer(layer).slot_bytes() as u64
        };
        self.dense.iter().zip(&self.live).enumerate().map(of_layer).sum()
    }

    /// Dense and live slots of the lanes whose tokens the policy of `geometry` chooses.
    pub fn decided(&self, geometry: &KvGeometry) -> (u64, u64) {
        let lanes = geometry.deciding_lanes();
        lanes.fold((0, 0), |(dense, live), lane| {
            let (of_dense, of_live) = (self.dense[lane.layer], self.live[lane.layer][lane.head]);
            (dense + u64::from(of_dense), live + u64::from(of_live))
        })
    }
}

impl<B: Backend> KvCache<B> {
    /// Reads the counters of a sequence. Waits for the device.
    pub fn stats(&self, b: &B, seq: SeqId) -> SeqStats {
        let g = self.geometry();
        let (mut live, mut pages) = (vec![Vec::new(); g.n_layers], 0);
        for (slots, lane) in self.live_lanes(b, seq.0) {
            live[lane.layer].push(slots as u32);
            pages += slots.div_ceil(g.of_layer(lane.layer).page_slots);
        }
        let (mut reads, mut peak) = ([0], [0]);
        b.read(&self.tables.reads, seq.0, &mut reads);
        b.read(&self.tables.peak, seq.0, &mut peak);
        SeqStats {
            len: self.len(seq),
            dense: g.layers().map(|layer| layer.dense_slots(self.len(seq)) as u32).collect(),
            reads: reads[0],
            peak: peak[0],
            live_slots: live.iter().flatten().map(|&slots| u64::from(slots)).sum(),
            pages,
            live,
            far: self.far_counts(b, seq),
            fetched: self.far_fetched(seq).to_vec(),
        }
    }

    /// Reads the counters of all sequences by their rows, summed over lanes: [`SeqStats::reads`]
    /// and [`SeqStats::peak`]. Waits for the device.
    pub fn counters(&self, b: &B) -> (Vec<u64>, Vec<u32>) {
        let n = self.seqs.len();
        let (mut reads, mut peak) = (vec![0; n], vec![0; n]);
        b.read(&self.tables.reads, 0, &mut reads);
        b.read(&self.tables.peak, 0, &mut peak);
        (reads, peak)
    }

    /// Sum of the pages that these sequences hold. Shared pages count once per holder: an upper
    /// bound on the distinct pages that needs no page table.
    pub fn held_pages(&self, b: &B, seqs: &[SeqId]) -> usize {
        let (g, live) = (self.geometry(), self.live_slots(b));
        let of_lane = |lane: Lane, seq: &SeqId| {
            live[g.row(lane.layer, seq.0, lane.head)].div_ceil(g.of_layer(lane.layer).page_slots)
        };
        seqs.iter().map(|seq| g.lanes().map(|lane| of_lane(lane, seq)).sum::<usize>()).sum()
    }

    /// Returns, for each group, the numbers of distinct pages that its first sequence, its first
    /// two, ... and all of them hold. Copies the page tables of a whole layer at once, including
    /// unused entries, because a copy for each lane would wait for the device each time.
    pub fn distinct_pages(&self, b: &B, groups: &[Vec<SeqId>]) -> Vec<Vec<usize>> {
        let g = *self.geometry();
        let mut counts: Vec<Vec<usize>> = groups.iter().map(|group| vec![0; group.len()]).collect();
        let rows = || groups.iter().flatten().map(|seq| seq.0);
        let (Some(first), Some(last)) = (rows().min(), rows().max()) else { return counts };
        let (live, of_seq) = (self.live_slots(b), g.lane(1, 0) * g.max_pages);
        let mut tables = vec![0; (last + 1 - first) * of_seq];
        // The group, from 1, that was last seen to hold a page. Pages belong to one layer.
        let mut holder: Vec<usize> = Vec::new();
        for layer in 0..g.n_layers {
            let page_slots = g.of_layer(layer).page_slots;
            b.read(&self.tables.page_table, g.row(layer, first, 0) * g.max_pages, &mut tables);
            for (i, group) in groups.iter().enumerate() {
                for (seq, count) in group.iter().zip(&mut counts[i]) {
                    let lanes = tables[(seq.0 - first) * of_seq..][..of_seq].chunks_exact(g.max_pages);
                    let held = (0..).map(|head| live[g.row(layer, seq.0, head)].div_ceil(page_slots));
                    for page in lanes.zip(held).flat_map(|(pages, held)| &pages[..held]) {
                        let page = *page as usize;
                        holder.resize(holder.len().max(page + 1), 0);
                        *count += usize::from(holder[page] != i + 1);
                        holder[page] = i + 1;
                    }
                }
            }
        }
        for group in &mut counts {
            let mut sum = 0;
            group.iter_mut().for_each(|count| {
                sum += *count;
                *count = sum;
            });
        }
        counts
    }

    /// Counts the lanes that store each token of a sequence: [`Self::counted_lanes`]. Waits for the
    /// device.
    pub fn presence(&self, b: &B, seq: SeqId, filter: LaneFilter, position: usize) -> PresenceCounts {
        let (g, n) = (self.geometry(), self.len(seq));
        let mut counts = b.presence(&self.tables, seq.0, n, filter, position);
        // Lanes that are not counted store and mark the newest tokens, whatever they are.
        for lane in self.split_lanes(filter).1 {
            let newest = n - g.dense_slots(lane.layer, n)..n;
            counts.kept[newest.clone()].iter_mut().for_each(|kept| *kept -= 1);
            counts.marked[newest].iter_mut().for_each(|marked| *marked -= 1);
        }
        counts
    }

    /// Number of lanes that [`Self::presence`] counts: the selected lanes whose tokens the policy
    /// chooses, or all selected lanes if there are none.
    pub fn counted_lanes(&self, filter: LaneFilter) -> usize {
        self.split_lanes(filter).0.len()
    }

    /// The selected lanes that are counted, and the others.
    fn split_lanes(&self, filter: LaneFilter) -> (Vec<Lane>, Vec<Lane>) {
        let g = self.geometry();
        let selected = g.lanes().filter(|lane| filter.selects(lane.layer, lane.head));
        let (deciding, others): (Vec<_>, Vec<_>) = selected.partition(|lane| g.layer(lane.layer).decides());
        if deciding.is_empty() { (others, deciding) } else { (deciding, others) }
    }

    /// Positions and marks of the slots stored in a lane, in slot order.
    pub fn slot_metas(&self, b: &B, seq: SeqId, layer: usize, head: usize) -> Vec<SlotMeta> {
        b.slot_metas(&self.tables, layer, seq.0, head)
    }
}
