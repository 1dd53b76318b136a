//! Far rows on the CPU, the reference of the rule in [`crate::policy::far`]: rows that have left
//! their lanes, in pages that forks share, and the newest queries, which choose among them.

use super::super::far::{index, is_held};
use super::super::{FarCounts, FarLane, FarPages, FarSizes, KvGeometry, KvTables, Lane, OutOfMemory, PageLayout, Span};
use super::thread_pool::Tile;
use super::{Acts, Cpu};
use crate::policy::far::{Index, score};
use crate::policy::{Far, SlotMeta, choose as choose_pages};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A row as it is stored.
pub(super) struct RowBytes {
    pub k: Vec<u8>,
    pub v: Vec<u8>,
    pub sides: [u32; 2],
    pub meta: SlotMeta,
}

impl RowBytes {
    pub fn read(layout: &PageLayout, page: &[u8], row: usize) -> Self {
        let (k, v) = (page[layout.k(row)].to_vec(), page[layout.v(row)].to_vec());
        Self { k, v, sides: layout.sides(page, row), meta: layout.meta(page, row) }
    }

    pub fn write(&self, layout: &PageLayout, page: &mut [u8], row: usize) {
        page[layout.k(row)].copy_from_slice(&self.k);
        page[layout.v(row)].copy_from_slice(&self.v);
        layout.set_sides(page, row, self.sides);
        layout.set_meta(page, row, self.meta);
    }
}

/// A far page.
struct Page {
    /// Blocks in the layout of the pool's pages, one after the other. Not set in a page that awaits
    /// its rows.
    blocks: OnceLock<Box<[u32]>>,
    /// Metadata of the rows of a page that was imported without them.
    metas: Box<[SlotMeta]>,
    /// Its index, once a choice has asked for it.
    index: OnceLock<Index>,
    /// Bytes of all pages, and of this one.
    all: Arc<AtomicU64>,
    bytes: u64,
}

impl Page {
    /// A page of `bytes` bytes in all that has no rows yet.
    fn new(bytes: usize, all: &Arc<AtomicU64>) -> Self {
        all.fetch_add(bytes as u64, Ordering::Relaxed);
        let (blocks, metas, index) = (OnceLock::new(), Box::default(), OnceLock::new());
        Self { blocks, metas, index, all: Arc::clone(all), bytes: bytes as u64 }
    }

    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self.blocks.get().expect("the rows of a page that is read have arrived"))
    }

    fn block(&self, i: usize, block_bytes: usize) -> &[u8] {
        &self.bytes()[i * block_bytes..][..block_bytes]
    }

    fn index(&self, kv: &KvTables<Cpu>, layer: usize) -> &Index {
        self.index.get_or_init(|| index(kv, layer, self.bytes()))
    }

    /// Sets the first bytes of the blocks of a page that has none, and the others to zero.
    fn set(&self, page_bytes: usize, bytes: &[u8]) {
        let mut blocks = vec![0u32; page_bytes / size_of::<u32>()].into_boxed_slice();
        bytemuck::cast_slice_mut(&mut blocks)[..bytes.len()].copy_from_slice(bytes);
        let _ = self.blocks.set(blocks);
    }
}

impl Clone for Page {
    fn clone(&self) -> Self {
        self.all.fetch_add(self.bytes, Ordering::Relaxed);
        let Self { blocks, metas, index, all, bytes } = self;
        let (blocks, metas, index) = (blocks.clone(), metas.clone(), index.clone());
        Self { blocks, metas, index, all: Arc::clone(all), bytes: *bytes }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The far rows of one lane.
#[derive(Clone, Default)]
struct LaneRows {
    /// Full pages, oldest first.
    full: Vec<Arc<Page>>,
    /// The page that is filling, and its rows; forks share it until one of them adds a row.
    filling: Option<Arc<Page>>,
    rows: usize,
    /// Indices of the full pages that attention reads, ascending: those chosen, then those filled
    /// since.
    near: Vec<u32>,
    /// Rows of pages that were dropped for good.
    dropped: usize,
}

/// The far rows of all lanes.
pub(super) struct FarRows {
    layout: PageLayout,
    block_bytes: usize,
    index_bytes: usize,
    /// `[n_layers, n_lanes]`
    lanes: Vec<LaneRows>,
    /// `[n_layers, n_seqs, Far::QUERIES, n_q_heads, head_dim]` queries after RoPE of each
    /// sequence's newest tokens, that of position p at p modulo [`Far::QUERIES`].
    recent: Vec<f32>,
    all: Arc<AtomicU64>,
}

impl FarRows {
    pub fn new(g: &KvGeometry) -> Self {
        let g = &g.of_far();
        assert!(Far::ROWS.is_multiple_of(g.page_slots), "far pages are whole blocks");
        Self {
            layout: g.page(),
            block_bytes: g.page_bytes(),
            index_bytes: Index::bytes(g.head_dim),
            lanes: vec![LaneRows::default(); g.n_layers * g.n_lanes()],
            recent: vec![0.0; g.n_layers * g.n_seqs * Far::QUERIES * g.n_q_heads * g.head_dim],
            all: Arc::default(),
        }
    }

    /// Blocks of a page.
    fn per_page(&self) -> usize {
        Far::ROWS / self.layout.page_slots
    }

    /// Bytes of a page's blocks.
    fn page_bytes(&self) -> usize {
        self.per_page() * self.block_bytes
    }

    /// A page without rows.
    fn page(&self) -> Page {
        Page::new(self.page_bytes() + self.index_bytes, &self.all)
    }

    /// Metadata of a row of a page.
    fn meta(&self, page: &Page, row: usize) -> SlotMeta {
        let slots = self.layout.page_slots;
        let in_block = || self.layout.meta(page.block(row / slots, self.block_bytes), row % slots);
        page.metas.get(row).copied().unwrap_or_else(in_block)
    }

    /// Appends a row that leaves a lane.
    pub fn push(&mut self, lane: usize, row: &RowBytes) {
        let slots = self.layout.page_slots;
        if self.lanes[lane].filling.is_none() {
            let page = self.page();
            page.set(self.page_bytes(), &[]);
            self.lanes[lane].filling = Some(Arc::new(page));
        }
        let far = &mut self.lanes[lane];
        let page = Arc::make_mut(far.filling.as_mut().expect("it was just made"));
        let block = far.rows / slots;
        let blocks = page.blocks.get_mut().expect("a page that is filling has its blocks");
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(blocks);
        let block = &mut bytes[block * self.block_bytes..][..self.block_bytes];
        row.write(&self.layout, block, far.rows % slots);
        far.rows += 1;
        if far.rows == Far::ROWS {
            far.near.push(far.full.len() as u32);
            far.full.extend(far.filling.take());
            far.rows = 0;
        }
    }

    /// Number of blocks of a lane that attention reads.
    pub fn blocks(&self, lane: usize) -> usize {
        let far = &self.lanes[lane];
        far.near.len() * self.per_page() + far.rows.div_ceil(self.layout.page_slots)
    }

    /// Rows of a lane that attention reads.
    pub fn near_rows(&self, lane: usize) -> usize {
        self.lanes[lane].near.len() * Far::ROWS + self.lanes[lane].rows
    }

    /// Block `i` of those that attention reads, and its rows.
    pub fn block(&self, lane: usize, i: usize) -> (&[u8], usize) {
        let (far, slots) = (&self.lanes[lane], self.layout.page_slots);
        let (page, block) = (i / self.per_page(), i % self.per_page());
        match (far.near.get(page), &far.filling) {
            (Some(&page), _) => (far.full[page as usize].block(block, self.block_bytes), slots),
            (None, Some(page)) => (page.block(block, self.block_bytes), slots.min(far.rows - block * slots)),
            (None, None) => unreachable!("block {i} of a lane that has no page for it"),
        }
    }

    pub fn fork(&mut self, from: usize, to: usize) {
        self.lanes[to] = self.lanes[from].clone();
    }

    pub fn clear(&mut self, lane: usize) {
        self.lanes[lane] = LaneRows::default();
    }

    /// Floats of a query row, and of a sequence in one layer.
    fn recent_len(g: &KvGeometry) -> (usize, usize) {
        let width = g.n_q_heads * g.head_dim;
        (width, Far::QUERIES * width)
    }

    /// Where the queries of a lane's token at `position` are kept.
    fn query_at(g: &KvGeometry, seq: usize, lane: Lane, position: usize) -> usize {
        let ((width, len), group) = (Self::recent_len(g), g.n_q_heads / g.n_kv_heads);
        (lane.layer * g.n_seqs + seq) * len + position % Far::QUERIES * width + lane.head * group * g.head_dim
    }

    /// Queries of a lane's tokens at these positions, at most [`Far::QUERIES`] of the newest.
    fn queries(&self, g: &KvGeometry, seq: usize, lane: Lane, positions: Range<usize>) -> Vec<f32> {
        let width = g.n_q_heads / g.n_kv_heads * g.head_dim;
        let row = |position| &self.recent[Self::query_at(g, seq, lane, position)..][..width];
        positions.flat_map(row).copied().collect()
    }

    pub fn fork_queries(&mut self, g: &KvGeometry, layer: usize, from: usize, to: usize) {
        let (_, len) = Self::recent_len(g);
        let at = |seq: usize| (layer * g.n_seqs + seq) * len;
        self.recent.copy_within(at(from)..at(from) + len, at(to));
    }

    /// Metadata of a lane's rows, in the order in which they left, and whether attention reads
    /// them.
    fn metas(&self, lane: usize) -> Vec<(SlotMeta, bool)> {
        let far = &self.lanes[lane];
        let full =
            far.full.iter().enumerate().map(|(i, page)| (page, Far::ROWS, far.near.binary_search(&(i as u32)).is_ok()));
        let all = full.chain(far.filling.iter().map(|page| (page, far.rows, true)));
        let rows = all.flat_map(|(page, rows, near)| (0..rows).map(move |row| (page, row, near)));
        rows.map(|(page, row, near)| (self.meta(page, row), near)).collect()
    }

    /// Positions of the rows of a full page.
    fn positions(&self, page: &Page) -> impl Iterator<Item = usize> {
        (0..Far::ROWS).map(move |row| self.meta(page, row).position())
    }

    /// The pages of `near` and those that are held, ascending.
    fn with_held(&self, full: &[Arc<Page>], near: Vec<u32>, held: &[Range<usize>]) -> Vec<u32> {
        let is_near = |page: &u32| near.binary_search(page).is_ok();
        let of_page = |page: u32| is_held(held, self.positions(&full[page as usize]));
        (0..full.len() as u32).filter(|page| is_near(page) || of_page(*page)).collect()
    }
}

/// Keeps the newest queries of a step's rows.
pub(super) fn remember(kv: &mut KvTables<Cpu>, rows: &Acts, layer: usize, spans: &[Span]) {
    let g = kv.geometry.of_layer(layer);
    let (Some(far), Some(_)) = (&mut kv.pool.far, g.far_of(layer)) else { return };
    let (width, len) = FarRows::recent_len(&g);
    for span in spans {
        let ring = &mut far.recent[(layer * g.n_seqs + span.seq) * len..][..len];
        for i in span.len.saturating_sub(Far::QUERIES)..span.len {
            let position = kv.seq_len[span.seq] as usize + i;
            let at = position % Far::QUERIES * width;
            ring[at..at + width].copy_from_slice(&rows.row(span.start + i)[..width]);
        }
    }
}

impl FarPages for Cpu {
    type Awaited = Awaited;

    fn choose(&self, kv: &mut KvTables<Self>, seq: usize, queries: usize, held: &[Range<usize>]) -> Vec<u32> {
        choose(self, kv, seq, queries, held)
    }

    fn bring(&self, kv: &mut KvTables<Self>, seq: usize, held: &[Range<usize>]) -> u64 {
        let (g, mut brought) = (kv.geometry, 0);
        let Some(all) = &mut kv.pool.far else { return 0 };
        for lane in g.far_lanes() {
            let row = g.row(lane.layer, seq, lane.head);
            let old = std::mem::take(&mut all.lanes[row].near);
            let before = old.len();
            all.lanes[row].near = all.with_held(&all.lanes[row].full, old, held);
            brought += (all.lanes[row].near.len() - before) as u64;
        }
        brought
    }

    fn drop_far(&self, kv: &mut KvTables<Self>, seq: usize, before: usize) -> u64 {
        drop_before(kv, seq, before)
    }

    fn far_counts(&self, kv: &KvTables<Self>, seq: usize) -> FarCounts {
        counts(kv, seq)
    }

    fn far_rows(&self, kv: &KvTables<Self>, layer: usize, seq: usize, head: usize) -> Vec<(SlotMeta, bool)> {
        rows(kv, layer, seq, head)
    }

    fn export_far(&self, kv: &mut KvTables<Self>, seq: usize, lane: Lane, blocks: &mut Vec<u8>) -> FarLane {
        let Some(all) = &kv.pool.far else { return FarLane::default() };
        let LaneRows { full, filling, rows, near, dropped } = &all.lanes[kv.geometry.row(lane.layer, seq, lane.head)];
        near.iter().for_each(|&page| blocks.extend_from_slice(full[page as usize].bytes()));
        let filled = rows.div_ceil(all.layout.page_slots) * all.block_bytes;
        filling.iter().for_each(|page| blocks.extend_from_slice(&page.bytes()[..filled]));
        let mut of_pages = Vec::with_capacity(full.len() * all.index_bytes);
        full.iter().for_each(|page| page.index(kv, lane.layer).write(&mut of_pages));
        let tokens = kv.seq_len[seq] as usize;
        FarLane {
            full: full.len(),
            filling: *rows,
            dropped: *dropped,
            near: near.clone(),
            index: of_pages,
            metas: full.iter().flat_map(|page| (0..Far::ROWS).map(|row| all.meta(page, row))).collect(),
            queries: all.queries(&kv.geometry.of_far(), seq, lane, tokens - tokens.min(Far::QUERIES)..tokens),
        }
    }

    fn export_far_rest(&self, kv: &KvTables<Self>, seq: usize, lane: Lane, blocks: &mut Vec<u8>) {
        let Some(all) = &kv.pool.far else { return };
        let far = &all.lanes[kv.geometry.row(lane.layer, seq, lane.head)];
        let others = (0..).zip(&far.full).filter(|(index, _)| far.near.binary_search(index).is_err());
        others.for_each(|(_, page)| blocks.extend_from_slice(page.bytes()));
    }

    fn far_sizes(&self, kv: &KvTables<Self>, seq: usize, lane: Lane) -> FarSizes {
        let Some(all) = &kv.pool.far else { return FarSizes::default() };
        let LaneRows { full, rows, near, .. } = &all.lanes[kv.geometry.row(lane.layer, seq, lane.head)];
        FarSizes { full: full.len(), near: near.len(), filling: *rows }
    }

    fn import_far(
        &self,
        kv: &mut KvTables<Self>,
        seq: usize,
        lane: Lane,
        tokens: usize,
        far: &FarLane,
        blocks: &[u8],
    ) -> Result<Awaited, OutOfMemory> {
        let g = kv.geometry.of_far();
        let Some(all) = &mut kv.pool.far else { return Ok(Awaited::default()) };
        let page_bytes = all.page_bytes();
        let mut blocks = blocks.chunks(page_bytes);
        let indices = far.index.chunks(all.index_bytes).zip(far.metas.chunks(Far::ROWS));
        let full: Vec<Arc<Page>> = (0..far.full as u32)
            .zip(indices)
            .map(|(place, (index, metas))| {
                let mut page = all.page();
                page.index = OnceLock::from(Index::read(index));
                match far.near.binary_search(&place) {
                    Ok(_) => page.set(page_bytes, blocks.next().unwrap_or_default()),
                    Err(_) => page.metas = Box::from(metas),
                }
                Arc::new(page)
            })
            .collect();
        let filling = blocks.next().map(|bytes| {
            let page = all.page();
            page.set(page_bytes, bytes);
            Arc::new(page)
        });
        let awaited = full.iter().filter(|page| page.blocks.get().is_none()).cloned().collect();
        let rows = LaneRows { full, filling, rows: far.filling, near: far.near.clone(), dropped: far.dropped };
        all.lanes[g.row(lane.layer, seq, lane.head)] = rows;
        let width = g.n_q_heads / g.n_kv_heads * g.head_dim;
        let newest = tokens - far.queries.len() / width..tokens;
        for (position, row) in newest.zip(far.queries.chunks(width)) {
            let at = FarRows::query_at(&g, seq, lane, position);
            all.recent[at..at + width].copy_from_slice(row);
        }
        Ok(Awaited(awaited))
    }

    fn fill_far(&self, kv: &mut KvTables<Self>, awaited: Awaited, blocks: &[u8]) -> Result<(), OutOfMemory> {
        let Some(all) = &kv.pool.far else { return Ok(()) };
        let page_bytes = all.page_bytes();
        awaited.0.iter().zip(blocks.chunks(page_bytes)).for_each(|(page, bytes)| page.set(page_bytes, bytes));
        Ok(())
    }
}

/// Pages of a lane that await their rows, oldest first.
#[derive(Default)]
pub struct Awaited(Vec<Arc<Page>>);

fn choose(cpu: &Cpu, kv: &mut KvTables<Cpu>, seq: usize, queries: usize, held: &[Range<usize>]) -> Vec<u32> {
    let g = kv.geometry.of_far();
    let lanes: Vec<_> = g.far_lanes().collect();
    let n = queries.min(Far::QUERIES).min(kv.seq_len[seq] as usize);
    let (Some(far), Some(all)) = (g.far.filter(|_| n > 0), &kv.pool.far) else { return Vec::new() };
    let newest = kv.seq_len[seq] as usize - n;
    let mut near: Vec<Vec<u32>> = vec![Vec::new(); lanes.len()];
    cpu.thread_pool.tiles(&mut Tile::new(&mut near, lanes.len(), 1), 1, 1, |_, tile| {
        let (lane, near) = (lanes[tile.row_range().start], &mut tile.row_mut(0)[0]);
        let full = &all.lanes[g.row(lane.layer, seq, lane.head)].full;
        let queries = all.queries(&g, seq, lane, newest..newest + n);
        let mut mean = vec![0.0; g.head_dim];
        let score = |page: &Arc<Page>| {
            page.index(kv, lane.layer).decode(&mut mean);
            score(&queries, &mean)
        };
        let scores: Vec<f32> = full.iter().map(score).collect();
        choose_pages(&scores, far.pages, &mut Vec::new(), |page| near.push(page as u32));
        near.sort_unstable();
        if !held.is_empty() {
            *near = all.with_held(full, std::mem::take(near), held);
        }
    });
    let Some(all) = &mut kv.pool.far else { return Vec::new() };
    let mut fetched = Vec::with_capacity(lanes.len());
    for (lane, near) in lanes.iter().zip(near) {
        let far = &mut all.lanes[g.row(lane.layer, seq, lane.head)];
        fetched.push(near.iter().filter(|page| far.near.binary_search(page).is_err()).count() as u32);
        far.near = near;
    }
    fetched
}

/// Drops the full pages of a sequence whose rows are all at positions below `before`.
fn drop_before(kv: &mut KvTables<Cpu>, seq: usize, before: usize) -> u64 {
    let g = kv.geometry;
    let Some(all) = &mut kv.pool.far else { return 0 };
    let mut dropped = 0;
    for lane in g.lanes() {
        let row = g.row(lane.layer, seq, lane.head);
        let goes: Vec<bool> =
            all.lanes[row].full.iter().map(|page| all.positions(page).all(|at| at < before)).collect();
        let far = &mut all.lanes[row];
        let stays = (0..far.full.len()).filter(|&page| !goes[page]);
        let near = stays.clone().enumerate().filter(|(_, page)| far.near.binary_search(&(*page as u32)).is_ok());
        let near = near.map(|(index, _)| index as u32).collect();
        let full: Vec<_> = stays.map(|page| Arc::clone(&far.full[page])).collect();
        let rows = (far.full.len() - full.len()) * Far::ROWS;
        (far.near, far.full, far.dropped) = (near, full, far.dropped + rows);
        dropped += rows;
    }
    dropped as u64
}

/// Far rows of a sequence that attention reads, summed over its lanes.
pub(super) fn near_rows(kv: &KvTables<Cpu>, seq: usize) -> u64 {
    let (g, rows) =
        (&kv.geometry, |all: &FarRows, lane: Lane| all.near_rows(kv.geometry.row(lane.layer, seq, lane.head)));
    kv.pool.far.as_ref().map_or(0, |all| g.lanes().map(|lane| rows(all, lane) as u64).sum())
}

fn counts(kv: &KvTables<Cpu>, seq: usize) -> FarCounts {
    let g = &kv.geometry;
    let Some(all) = &kv.pool.far else { return FarCounts::default() };
    let all_bytes = all.all.load(Ordering::Relaxed);
    let mut counts = FarCounts { near: near_rows(kv, seq), all_bytes, ..FarCounts::default() };
    for lane in g.lanes() {
        let row = g.row(lane.layer, seq, lane.head);
        let far = &all.lanes[row];
        counts.rows += (far.full.len() * Far::ROWS + far.rows) as u64;
        counts.dropped += far.dropped as u64;
        // All pages have one size.
        let pages = far.full.len() + usize::from(far.filling.is_some());
        counts.bytes += pages as u64 * far.full.first().or(far.filling.as_ref()).map_or(0, |page| page.bytes);
    }
    counts
}

fn rows(kv: &KvTables<Cpu>, layer: usize, seq: usize, head: usize) -> Vec<(SlotMeta, bool)> {
    kv.pool.far.as_ref().map_or(Vec::new(), |far| far.metas(kv.geometry.row(layer, seq, head)))
}
