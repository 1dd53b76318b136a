//! Far rows on a GPU. What leaves a lane inside a step is appended to its near rows, which lie in
//! pages of the pool and are attended to like slots (`kernels/far.cuh`). Full pages are far: at
//! each choice those that have filled since the last one are copied to page-locked host memory, and
//! their indices stay on the GPU. Then pages are chosen, those that are no longer near
//! give their pages of the pool back, and those that were not near are copied into it
//! (`kernels/far.cu`). Which far pages there are and who holds them the host knows
//! (`far_rows`).

use super::super::far::index;
use super::super::{FarCounts, FarLane, FarPages, FarSizes, KvGeometry, KvTables, Lane, OutOfMemory, Pages};
use super::abi::Arg::{self, I32, Ptr};
use super::far_rows::{FarRows, LOST, LaneRows, MOST_JOBS, Page};
use super::gpu::Cuda;
use super::kernels::{BLOCK, Kernel};
use super::kv::{metas_of, reclaim};
use super::views::view;
use crate::policy::{Far, SlotMeta};
use std::ops::Range;
use std::rc::Rc;

/// Pages of a lane per block of `far_score`, and maximum blocks per lane.
const PAGES_OF_BLOCK: usize = 128;
const MOST_BLOCKS: usize = 16;

/// Rows of the tables that keep far rows of a sequence, by their place among its lanes.
fn far_lanes(g: &KvGeometry, seq: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
    let g = *g;
    let keeps = move |(_, lane): &(usize, Lane)| g.far_of(lane.layer).is_some();
    g.lanes().enumerate().filter(keeps).map(move |(at, lane)| (at, g.row(lane.layer, seq, lane.head)))
}

/// Sends the pages of a sequence that have filled since the last choice to the host: some while the
/// next ones are listed.
fn send_full(cuda: &Cuda, kv: &mut KvTables<Cuda>, seq: usize) {
    let (view, g) = (view(kv), kv.geometry);
    let send = |far: &mut FarRows, jobs: &mut Vec<[i32; 4]>| {
        far.jobs.write(0, jobs);
        let [list, numbers, homes] = [far.jobs.ptr(), far.numbers.ptr(), far.addresses.ptr()].map(Ptr);
        let args = [Arg::of(&view), list, numbers, I32(far.most as i32), homes];
        cuda.driver.launch(Kernel::FarSend, [jobs.len(), 1, 1], BLOCK, &args);
        jobs.clear();
    };
    let Some(far) = &mut kv.pool.far else { return };
    let (rows, mut jobs, mut fails) = (far.read_rows(), Vec::new(), false);
    for (_, row) in far_lanes(&g, seq) {
        for at in far.lanes[row].near.len()..rows[row] / Far::ROWS {
            let page = if fails { None } else { far.take() };
            let lane = &mut far.lanes[row];
            let Some(page) = page else {
                fails = true;
                lane.near.push(LOST);
                lane.dropped += Far::ROWS;
                continue;
            };
            jobs.push([row, at, page.number, lane.full.len()].map(|n| n as i32));
            lane.near.push(lane.full.len());
            lane.full.push(page);
            if jobs.len() == MOST_JOBS {
                send(far, &mut jobs);
            }
        }
    }
    if !jobs.is_empty() {
        send(far, &mut jobs);
    }
}

/// Makes the near pages of a sequence's lanes those of `lists`, one for each lane of the sequence:
/// places among the pages that are near now, and -1 - number of far pages. Returns whether there
/// was memory for the latter; if not, only the former are near.
fn set_near(cuda: &Cuda, kv: &mut KvTables<Cuda>, seq: usize, lists: &[Vec<i32>]) -> bool {
    launch_near(cuda, kv, seq, lists, false);
    reclaim(cuda, kv);
    let blocks = kv.pool.far.as_ref().map_or(0, FarRows::blocks);
    let brought = lists.iter().flatten().filter(|entry| **entry < 0).count();
    let fits = brought == 0 || kv.pool.reserve(brought * blocks).is_ok();
    if brought > 0 && fits {
        launch_near(cuda, kv, seq, lists, true);
    } else if !fits {
        let places = |list: &Vec<i32>| (0..).zip(list).filter(|(_, entry)| **entry >= 0).map(|(at, _)| at).collect();
        launch_near(cuda, kv, seq, &lists.iter().map(places).collect::<Vec<_>>(), false);
    }
    fits
}

fn launch_near(cuda: &Cuda, kv: &mut KvTables<Cuda>, seq: usize, lists: &[Vec<i32>], bring: bool) {
    let (view, g) = (view(kv), kv.geometry);
    let Some(far) = &mut kv.pool.far else { return };
    let stride = lists.iter().map(Vec::len).max().unwrap_or(0);
    if !bring {
        let padded = lists.iter().flat_map(|list| (0..stride).map(|at| list.get(at).copied().unwrap_or(0)));
        far.lists.write(0, &padded.collect::<Vec<_>>());
        far.counts.write(0, &lists.iter().map(|list| list.len() as i32).collect::<Vec<_>>());
    }
    let [lists, counts, homes, old] = [far.lists.ptr(), far.counts.ptr(), far.addresses.ptr(), far.old.ptr()].map(Ptr);
    let args = [Arg::of(&view), I32(seq as i32), lists, counts, I32(stride as i32), homes, old, I32(bring as i32)];
    cuda.driver.launch(Kernel::FarNear, [g.n_kv_heads, g.n_layers, 1], BLOCK, &args);
}

/// The pages of each lane of a sequence that its newest `queries` queries choose, ascending.
fn picks(cuda: &Cuda, kv: &mut KvTables<Cuda>, seq: usize, queries: usize) -> Vec<Vec<usize>> {
    let (view, g) = (view(kv), kv.geometry);
    let (Some(far), Some(rule)) = (&mut kv.pool.far, g.far) else { return Vec::new() };
    let mut counts = vec![0; g.seq_lanes()];
    far_lanes(&g, seq).for_each(|(at, row)| counts[at] = far.lanes[row].full.len());
    let k = rule.pages.min(far.most);
    let mut picks = vec![0; counts.len() * k];
    if k > 0 && counts.iter().any(|&full| full > k) {
        far.counts.write(0, &counts.iter().map(|&full| full as i32).collect::<Vec<_>>());
        let [of_lanes, numbers, homes, scores, chosen] =
            [far.counts.ptr(), far.numbers.ptr(), far.addresses.ptr(), far.scores.ptr(), far.picks.ptr()].map(Ptr);
        let [seq, queries, most, most_picks] = [seq, queries, far.most, k].map(|n| I32(n as i32));
        let longest = counts.iter().max().copied().unwrap_or(0);
        let blocks = longest.div_ceil(PAGES_OF_BLOCK).clamp(1, MOST_BLOCKS);
        let args = [Arg::of(&view), seq, queries, of_lanes, numbers, most, homes, scores, most_picks];
        cuda.driver.launch(Kernel::FarScore, [g.n_kv_heads, g.n_layers, blocks], BLOCK, &args);
        let args = [Arg::of(&view), of_lanes, most, scores, most_picks, chosen];
        cuda.driver.launch(Kernel::FarChoose, [g.n_kv_heads, g.n_layers, 1], BLOCK, &args);
        far.picks.read(0, &mut picks);
    }
    let of_lane = |(at, &full): (usize, &usize)| match full <= k {
        true => (0..full).collect(),
        false => picks[at * k..(at + 1) * k].iter().map(|&page: &i32| page as usize).collect(),
    };
    counts.iter().enumerate().map(of_lane).collect()
}

/// Adds the held pages of each lane of a sequence to `lists` of its pages, which ascend.
fn add_held(cuda: &Cuda, kv: &KvTables<Cuda>, seq: usize, lists: &mut [Vec<usize>], held: &[Range<usize>]) {
    let (g, Some(far)) = (&kv.geometry, &kv.pool.far) else { return };
    if held.is_empty() {
        return;
    }
    // What was sent arrives.
    cuda.driver.wait();
    for (at, row) in far_lanes(g, seq) {
        let pages = far.lanes[row].full.iter().enumerate();
        let list = std::mem::take(&mut lists[at]);
        let is_near = |index: &usize| list.binary_search(index).is_ok();
        let near = pages.filter(|(index, page)| is_near(index) || far.is_held(g, page, held));
        lists[at] = near.map(|(index, _)| index).collect();
    }
}

/// Makes these pages of each lane of a sequence near and all others not, once full pages were sent.
/// Without memory, only those of them that are near already. Returns how many of each lane that
/// keeps far rows were not near before.
fn make_near(cuda: &Cuda, kv: &mut KvTables<Cuda>, seq: usize, chosen: &[Vec<usize>]) -> Vec<u32> {
    let g = kv.geometry;
    let (mut lists, mut fetched) = (vec![Vec::new(); g.seq_lanes()], Vec::new());
    let Some(far) = &mut kv.pool.far else { return fetched };
    for (at, row) in far_lanes(&g, seq) {
        let LaneRows { full, near, .. } = &mut far.lanes[row];
        let mut place = 0;
        // Both ascend.
        let entry = |page: &usize| {
            place += near[place..].iter().take_while(|near| *near < page).count();
            if near.get(place) == Some(page) { place as i32 } else { -1 - FarRows::number_of(&full[*page]) as i32 }
        };
        lists[at] = chosen[at].iter().map(entry).collect();
        fetched.push(lists[at].iter().filter(|entry| **entry < 0).count() as u32);
        near.clone_from(&chosen[at]);
    }
    if set_near(cuda, kv, seq, &lists) {
        return fetched;
    }
    let Some(far) = &mut kv.pool.far else { return fetched };
    for (at, row) in far_lanes(&g, seq) {
        let entries = lists[at].iter();
        far.lanes[row].near =
            entries.zip(&chosen[at]).filter(|(entry, _)| **entry >= 0).map(|(_, page)| *page).collect();
    }
    vec![0; fetched.len()]
}

impl FarPages for Cuda {
    const IN_POOL: bool = true;
    type Awaited = Awaited;

    fn choose(&self, kv: &mut KvTables<Self>, seq: usize, queries: usize, held: &[Range<usize>]) -> Vec<u32> {
        if queries == 0 || kv.pool.far.is_none() {
            return Vec::new();
        }
        send_full(self, kv, seq);
        let mut chosen = picks(self, kv, seq, queries.min(Far::QUERIES));
        add_held(self, kv, seq, &mut chosen, held);
        make_near(self, kv, seq, &chosen)
    }

    fn bring(&self, kv: &mut KvTables<Self>, seq: usize, held: &[Range<usize>]) -> u64 {
        send_full(self, kv, seq);
        let g = kv.geometry;
        let Some(far) = &kv.pool.far else { return 0 };
        let mut near = vec![Vec::new(); g.seq_lanes()];
        for (at, row) in far_lanes(&g, seq) {
            near[at] = far.lanes[row].near.iter().copied().filter(|page| *page != LOST).collect();
        }
        add_held(self, kv, seq, &mut near, held);
        make_near(self, kv, seq, &near).into_iter().map(u64::from).sum()
    }

    fn drop_far(&self, kv: &mut KvTables<Self>, seq: usize, before: usize) -> u64 {
        let g = kv.geometry;
        send_full(self, kv, seq);
        self.driver.wait();
        let (mut lists, mut dropped) = (vec![Vec::new(); g.seq_lanes()], 0);
        let Some(far) = &mut kv.pool.far else { return 0 };
        for (at, row) in far_lanes(&g, seq) {
            let LaneRows { full, near, dropped: earlier } = std::mem::take(&mut far.lanes[row]);
            let goes = |page: &Page| far.metas(&g, page).all(|meta| meta.position() < before);
            let stays: Vec<usize> = (0..full.len()).filter(|&page| !goes(&full[page])).collect();
            let place = |page: &usize| near.binary_search(page).ok();
            lists[at] = stays.iter().filter_map(place).map(|place| place as i32).collect();
            let rows = (full.len() - stays.len()) * Far::ROWS;
            let is_near = |(_, page): &(usize, &usize)| place(page).is_some();
            far.lanes[row] = LaneRows {
                near: stays.iter().enumerate().filter(is_near).map(|(index, _)| index).collect(),
                full: stays.iter().map(|&page| Rc::clone(&full[page])).collect(),
                dropped: earlier + rows,
            };
            dropped += rows as u64;
            let numbers: Vec<i32> = far.lanes[row].full.iter().map(|page| page.number as i32).collect();
            far.numbers.write(row * far.most, &numbers);
        }
        set_near(self, kv, seq, &lists);
        dropped
    }

    fn far_counts(&self, kv: &KvTables<Self>, seq: usize) -> FarCounts {
        let Some(far) = &kv.pool.far else { return FarCounts::default() };
        let (rows, mut counts) = (far.read_rows(), FarCounts { all_bytes: far.bytes(), ..FarCounts::default() });
        for (_, row) in far_lanes(&kv.geometry, seq) {
            let lane = &far.lanes[row];
            counts.near += rows[row] as u64;
            counts.rows += (lane.full.len() * Far::ROWS + rows[row] - lane.near.len() * Far::ROWS) as u64;
            counts.dropped += lane.dropped as u64;
            counts.bytes += (lane.full.len() * far.page_bytes) as u64;
        }
        counts
    }

    fn far_rows(&self, kv: &KvTables<Self>, layer: usize, seq: usize, head: usize) -> Vec<(SlotMeta, bool)> {
        let g = &kv.geometry;
        let (Some(far), Some(_)) = (&kv.pool.far, g.far_of(layer)) else { return Vec::new() };
        let row = g.row(layer, seq, head);
        let (lane, rows) = (&far.lanes[row], far.read_rows()[row]);
        let full = lane.full.iter().enumerate().flat_map(|(index, page)| {
            let near = lane.near.binary_search(&index).is_ok();
            far.metas(g, page).map(move |meta| (meta, near))
        });
        // Those that have left since the last choice are on the GPU.
        let first = lane.near.len() * Far::ROWS;
        let since = metas_of(self, kv, [layer, seq, head], Some(first), rows - first);
        full.chain(since.into_iter().map(|meta| (meta, true))).collect()
    }

    fn export_far(&self, kv: &mut KvTables<Self>, seq: usize, lane: Lane, blocks: &mut Vec<u8>) -> FarLane {
        let g = kv.geometry;
        let row = g.row(lane.layer, seq, lane.head);
        let Some(far) = &kv.pool.far else { return FarLane::default() };
        // What was sent has arrived once this is read.
        let rows = far.rows_of(row);
        let LaneRows { full, near, dropped } = &far.lanes[row];
        near.iter().filter(|page| **page != LOST).for_each(|&page| blocks.extend_from_slice(far.bytes_of(&full[page])));
        let mut tokens = [0];
        kv.seq_len.read(seq, &mut tokens);
        let first = near.len() * Far::ROWS;
        // Pages that have filled since the last choice are in the pool only.
        let since = (rows - first) / Far::ROWS;
        let mut out = FarLane {
            full: full.len() + since,
            filling: rows % Far::ROWS,
            dropped: *dropped,
            near: near.iter().copied().chain(full.len()..full.len() + since).map(|page| page as u32).collect(),
            index: far.index(full),
            metas: full.iter().flat_map(|page| far.metas(&g, page)).collect(),
            queries: far.queries(&g, seq, lane, tokens[0] as usize),
        };
        let (pages, at) = (far.pages_of_lane(row, rows).split_off(first / g.page_slots), blocks.len());
        blocks.resize(at + pages.len() * g.page_bytes(), 0);
        self.export_pages(kv, &pages, &mut blocks[at..]);
        let layout = g.page();
        for page in blocks[at..].chunks(Far::ROWS / g.page_slots * g.page_bytes()).take(since) {
            index(kv, lane.layer, page).write(&mut out.index);
            let meta = |row: usize| layout.meta(&page[row / g.page_slots * g.page_bytes()..], row % g.page_slots);
            out.metas.extend((0..Far::ROWS).map(meta));
        }
        out
    }

    fn export_far_rest(&self, kv: &KvTables<Self>, seq: usize, lane: Lane, blocks: &mut Vec<u8>) {
        // What was sent arrives.
        self.driver.wait();
        let Some(far) = &kv.pool.far else { return };
        let LaneRows { full, near, .. } = &far.lanes[kv.geometry.row(lane.layer, seq, lane.head)];
        let others = full.iter().enumerate().filter(|(index, _)| near.binary_search(index).is_err());
        others.for_each(|(_, page)| blocks.extend_from_slice(far.bytes_of(page)));
    }

    fn far_sizes(&self, kv: &KvTables<Self>, seq: usize, lane: Lane) -> FarSizes {
        let row = kv.geometry.row(lane.layer, seq, lane.head);
        let Some(far) = &kv.pool.far else { return FarSizes::default() };
        let (rows, LaneRows { full, near, .. }) = (far.rows_of(row), &far.lanes[row]);
        let near_pages = rows / Far::ROWS;
        FarSizes { full: full.len() + near_pages - near.len(), near: near_pages, filling: rows % Far::ROWS }
    }

    fn import_far(
        &self,
        kv: &mut KvTables<Self>,
        seq: usize,
        lane: Lane,
        tokens: usize,
        rows: &FarLane,
        blocks: &[u8],
    ) -> Result<Awaited, OutOfMemory> {
        let g = kv.geometry;
        let Some(far) = &mut kv.pool.far else { return Ok(Awaited::default()) };
        let row = g.row(lane.layer, seq, lane.head);
        let none = OutOfMemory { what: "far rows", needed_bytes: (rows.full * far.page_bytes) as u64 };
        let full = rows.metas.chunks(Far::ROWS).map(|metas| far.reserve(Box::from(metas)));
        let full = full.collect::<Option<Vec<_>>>().ok_or(none)?;
        far.set_index(&full, &rows.index);
        far.numbers.write(row * far.most, &full.iter().map(|page| page.number as i32).collect::<Vec<_>>());
        far.set_queries(&g, seq, lane, tokens, &rows.queries);
        let near: Vec<usize> = rows.near.iter().map(|&page| page as usize).collect();
        let near_rows = near.len() * Far::ROWS + rows.filling;
        let near_blocks = Box::from(&blocks[..near.len() * far.page_bytes]);
        let awaited = Awaited { pages: full.clone(), near: near.clone(), near_blocks };
        far.lanes[row] = LaneRows { full, near, dropped: rows.dropped };
        let pages = self.import_pages(kv, blocks);
        kv.pool.far.iter_mut().for_each(|far| far.set_pages_of_lane(row, near_rows, &pages));
        Ok(awaited)
    }

    fn fill_far(&self, kv: &mut KvTables<Self>, awaited: Awaited, blocks: &[u8]) -> Result<(), OutOfMemory> {
        let Some(far) = &mut kv.pool.far else { return Ok(()) };
        let Awaited { pages, near, near_blocks } = awaited;
        let needed_bytes = (pages.len() * far.page_bytes) as u64;
        let (mut of_near, mut of_others) = (near_blocks.chunks(far.page_bytes), blocks.chunks(far.page_bytes));
        let filled = pages.iter().enumerate().filter_map(|(index, page)| {
            let of_page = if near.binary_search(&index).is_ok() { &mut of_near } else { &mut of_others };
            Some((page, of_page.next()?))
        });
        far.fill(filled).ok_or(OutOfMemory { what: "far rows", needed_bytes })
    }
}

/// All full pages of a lane that was imported, oldest first: none has host memory before the rows
/// of all are there.
#[derive(Default)]
pub struct Awaited {
    pages: Vec<Rc<Page>>,
    /// Places of those that were near, and their blocks.
    near: Vec<usize>,
    near_blocks: Box<[u8]>,
}
