//! The far rows of a cache: the tables of the kernels, host memory, and which far pages there are
//! and who holds them. [`far`](super::far) says what happens to them.

use super::super::far::is_held;
use super::super::{KvGeometry, Lane, OutOfMemory};
use super::driver::Driver;
use super::memory::Buf;
use super::pinned::Registered;
use crate::policy::far::Index;
use crate::policy::{Far, SlotMeta};
use std::cell::{Cell, OnceCell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::thread::{self, JoinHandle};

/// Queries that are kept of a sequence: `RECENT_QUERIES` in `far.cuh`.
const RECENT_QUERIES: usize = 48;
/// Bytes of the first allocation of host memory, and of the largest: each has twice those of the
/// one before.
const FIRST_BYTES: usize = 4 << 20;
const MOST_BYTES: usize = 64 << 20;
/// Bits of a far page's number within its allocation: `FarPage` in `far.cu`.
const NUMBER_BITS: usize = 16;
/// Most allocations, 256 GiB of the largest.
const MOST_HOMES: usize = 4096;
/// Most pages that one launch sends to the host: the next ones are listed meanwhile.
pub(super) const MOST_JOBS: usize = 1024;

/// Said where pages are lost.
const NO_ROOM: &str = "no memory is left for far pages, on the GPU for their index or of the host for their rows; tokens that leave the \
                       cache from here on are gone. A smaller --ctx-size or --kv k8v4 leaves room";

/// Host memory of some far pages, once one of them has rows, and memory of the GPU for their
/// indices.
struct Home {
    rows: Option<Registered>,
    index: Buf<u8>,
}

/// A far page by its number, which is free once nobody holds it.
pub(super) struct Page {
    pub number: usize,
    /// Metadata of the rows of a page that was made without them, and whether they are to come.
    metas: Box<[SlotMeta]>,
    awaits_rows: Cell<bool>,
    /// First and last position of its rows, once asked for.
    span: OnceCell<[usize; 2]>,
    free: Rc<RefCell<Vec<usize>>>,
}

impl Drop for Page {
    fn drop(&mut self) {
        self.free.borrow_mut().push(self.number);
    }
}

/// The far rows of one lane, as the last choice left them.
#[derive(Clone, Default)]
pub(super) struct LaneRows {
    /// Full pages in host memory, oldest first.
    pub full: Vec<Rc<Page>>,
    /// Indices of those that attention reads, ascending; [`LOST`] is a page without host memory.
    pub near: Vec<usize>,
    /// Rows of pages that were dropped for good.
    pub dropped: usize,
}

pub(super) const LOST: usize = usize::MAX;

/// The far rows of all lanes.
pub(super) struct FarRows {
    driver: Rc<Driver>,
    /// `[n_layers, n_lanes, max_pages]` pages of the pool with the near rows of a lane.
    near: Buf<i32>,
    /// `[n_layers, n_lanes]` near rows.
    near_rows: Buf<i32>,
    /// `[n_layers, n_seqs, RECENT_QUERIES, n_q_heads, head_dim]` newest queries in bf16.
    recent: Buf<u16>,
    /// `[n_layers, n_lanes, most]` numbers of the full pages.
    pub numbers: Buf<i32>,
    /// Most full pages of a lane.
    pub most: usize,
    /// Addresses of the host memory and of the indices of each allocation.
    pub addresses: Buf<u64>,
    /// Scratch for the lanes of one sequence: scores, chosen pages, lists of near pages and their
    /// lengths, the lists before; and the pages that are sent.
    pub scores: Buf<f32>,
    pub picks: Buf<i32>,
    pub lists: Buf<i32>,
    pub counts: Buf<i32>,
    pub old: Buf<i32>,
    pub jobs: Buf<[i32; 4]>,
    pub lanes: Vec<LaneRows>,
    homes: Vec<Home>,
    /// Host memory for this one of `homes`, which a thread allocates while steps run.
    next: Option<(usize, JoinHandle<Option<Registered>>)>,
    free: Rc<RefCell<Vec<usize>>>,
    /// Whether the user knows that there was no memory for pages.
    is_said: bool,
    /// Pages of all allocations, and bytes of a page and of a pool page.
    n_pages: usize,
    pub page_bytes: usize,
    stride: usize,
    index_bytes: usize,
}

impl FarRows {
    pub fn new(driver: &Rc<Driver>, g: &KvGeometry, stride: usize) -> Result<Self, OutOfMemory> {
        let (lanes, of_seq) = (g.n_layers * g.n_lanes(), g.seq_lanes());
        let most = (g.max_pages * g.page_slots).div_ceil(Far::ROWS);
        let k = g.far.map_or(0, |far| far.pages).min(most);
        let recent = g.n_layers * g.n_seqs * RECENT_QUERIES * g.n_q_heads * g.head_dim;
        driver.allocating("far rows", || {
            Ok(Self {
                driver: driver.clone(),
                near: Buf::new(driver, lanes * g.max_pages)?,
                near_rows: Buf::new(driver, lanes)?,
                recent: Buf::new(driver, recent)?,
                numbers: Buf::new(driver, lanes * most)?,
                most,
                addresses: Buf::new(driver, 2 * MOST_HOMES)?,
                scores: Buf::new(driver, of_seq * most)?,
                picks: Buf::new(driver, of_seq * k)?,
                lists: Buf::new(driver, of_seq * most)?,
                counts: Buf::new(driver, of_seq)?,
                old: Buf::new(driver, of_seq * g.max_pages)?,
                jobs: Buf::new(driver, MOST_JOBS)?,
                lanes: vec![LaneRows::default(); lanes],
                homes: Vec::new(),
                next: None,
                free: Rc::default(),
                is_said: false,
                n_pages: 0,
                page_bytes: Far::ROWS / g.page_slots * stride,
                stride,
                index_bytes: Index::bytes(g.head_dim),
            })
        })
    }

    /// Addresses of the near rows' pages, their numbers and the newest queries.
    pub fn tables(&self) -> [u64; 3] {
        [self.near.ptr(), self.near_rows.ptr(), self.recent.ptr()]
    }

    /// Takes host memory for a page; `None` if there is none, which a notice says.
    pub fn take(&mut self) -> Option<Rc<Page>> {
        let page = self.reserve(Box::default())?;
        match self.open(Self::place(page.number).0) {
            Some(()) => Some(page),
            None => self.no_room(),
        }
    }

    /// Takes a number and room for the index of a page whose rows, with this metadata, are to come;
    /// `None` if there is none, which a notice says.
    pub fn reserve(&mut self, metas: Box<[SlotMeta]>) -> Option<Rc<Page>> {
        if self.free.borrow().is_empty() && self.add_home().is_none() {
            return self.no_room();
        }
        let (number, awaits_rows) = (self.free.borrow_mut().pop()?, Cell::new(!metas.is_empty()));
        Some(Rc::new(Page { number, metas, awaits_rows, span: OnceCell::new(), free: Rc::clone(&self.free) }))
    }

    fn no_room(&mut self) -> Option<Rc<Page>> {
        if !std::mem::replace(&mut self.is_said, true) {
            self.driver.notice.set(Some(NO_ROOM));
        }
        None
    }

    /// Adds an allocation, of which only the indices have memory.
    fn add_home(&mut self) -> Option<()> {
        let (at, pages) = (self.homes.len(), self.pages_of(self.homes.len()));
        if at == MOST_HOMES {
            return None;
        }
        let index = self.driver.allocating("far rows", || Buf::new(&self.driver, pages * self.index_bytes)).ok()?;
        self.addresses.write(2 * at, &[0, index.ptr()]);
        self.free.borrow_mut().extend((0..pages).rev().map(|i| at << NUMBER_BITS | i));
        self.homes.push(Home { rows: None, index });
        self.n_pages += pages;
        Some(())
    }

    /// Gives an allocation its host memory, and begins to allocate that of another one.
    fn open(&mut self, home: usize) -> Option<()> {
        if self.homes[home].rows.is_some() {
            return Some(());
        }
        let is_it = |(of, _): &mut (usize, _)| *of == home;
        let thread = self.next.take_if(is_it).map(|(_, thread)| thread).or_else(|| self.allocate(home))?;
        let rows = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        self.addresses.write(2 * home, &[rows.ptr()]);
        self.homes[home].rows = Some(rows);
        if self.next.is_none() {
            let of_next = self.homes.iter().position(|home| home.rows.is_none()).unwrap_or(self.homes.len());
            self.next = self.allocate(of_next).map(|thread| (of_next, thread));
        }
        Some(())
    }

    /// Number of far pages in an allocation.
    fn pages_of(&self, home: usize) -> usize {
        let bytes = (FIRST_BYTES << home.min(usize::BITS as usize / 4)).min(MOST_BYTES);
        (bytes / self.page_bytes).clamp(1, 1 << NUMBER_BITS)
    }

    /// Allocates host memory on a thread while steps run; `None` if there is no thread, or no more
    /// memory is allowed. A capture of a step only restricts the
    /// thread that captures.
    fn allocate(&self, home: usize) -> Option<JoinHandle<Option<Registered>>> {
        if home == MOST_HOMES {
            return None;
        }
        let (context, bytes) = (self.driver.context().clone(), self.pages_of(home) * self.page_bytes);
        thread::Builder::new().name("far rows".into()).spawn(move || Registered::new(&context, bytes)).ok()
    }

    /// Near rows of all lanes. Waits for the device.
    pub fn read_rows(&self) -> Vec<usize> {
        let mut rows = vec![0; self.near_rows.len()];
        self.near_rows.read(0, &mut rows);
        rows.into_iter().map(|n: i32| n as usize).collect()
    }

    /// Allocation of a far page, and its place there.
    fn place(number: usize) -> (usize, usize) {
        (number >> NUMBER_BITS, number & ((1 << NUMBER_BITS) - 1))
    }

    /// Rows of a far page that has some. What was sent has arrived.
    pub fn bytes_of(&self, page: &Page) -> &[u8] {
        let (home, at) = Self::place(page.number);
        let rows = self.homes[home].rows.as_ref().filter(|_| !page.awaits_rows.get());
        &rows.expect("the rows of a page that is read have arrived").bytes()[at * self.page_bytes..][..self.page_bytes]
    }

    /// Number of a far page that has rows.
    pub fn number_of(page: &Page) -> usize {
        assert!(!page.awaits_rows.get(), "the rows of a page that is brought near have arrived");
        page.number
    }

    /// Fills pages that await their rows; `None` if there is no host memory for them.
    pub fn fill<'a>(&mut self, pages: impl Iterator<Item = (&'a Rc<Page>, &'a [u8])>) -> Option<()> {
        // Kernels may still read what the pages had before.
        self.driver.wait();
        for (page, rows) in pages {
            let (home, at) = Self::place(page.number);
            self.open(home)?;
            let memory = self.homes[home].rows.as_mut()?;
            memory.bytes_mut()[at * self.page_bytes..][..self.page_bytes].copy_from_slice(rows);
            page.awaits_rows.set(false);
        }
        Some(())
    }

    /// Sets the indices of pages, `[pages.len(), index_bytes]`.
    pub fn set_index(&mut self, pages: &[Rc<Page>], index: &[u8]) {
        let mut rest = index;
        for run in pages.chunk_by(|a, b| a.number + 1 == b.number) {
            let index;
            (index, rest) = rest.split_at(run.len() * self.index_bytes);
            let (home, at) = Self::place(run[0].number);
            self.homes[home].index.write(at * self.index_bytes, index);
        }
    }

    /// Indices of full pages, `[pages.len(), index_bytes]`. Waits for the device.
    pub fn index(&self, pages: &[Rc<Page>]) -> Vec<u8> {
        let mut all = vec![0; pages.len() * self.index_bytes];
        let mut rest = &mut all[..];
        for run in pages.chunk_by(|a, b| a.number + 1 == b.number) {
            let index;
            (index, rest) = rest.split_at_mut(run.len() * self.index_bytes);
            let (home, at) = Self::place(run[0].number);
            self.homes[home].index.read(at * self.index_bytes, index);
        }
        all
    }

    /// Near rows of a lane. Waits for the device.
    pub fn rows_of(&self, row: usize) -> usize {
        let mut rows = [0];
        self.near_rows.read(row, &mut rows);
        rows[0] as usize
    }

    /// Pages of the pool with the `n` near rows of a lane. Waits for the device.
    pub fn pages_of_lane(&self, row: usize, n: usize) -> Vec<i32> {
        let (of_lane, per_page) = (self.near.len() / self.near_rows.len().max(1), Far::ROWS / self.blocks());
        let mut pages = vec![0; n.div_ceil(per_page)];
        self.near.read(row * of_lane, &mut pages);
        pages
    }

    /// Sets the pages of the pool with the `n` near rows of a lane.
    pub fn set_pages_of_lane(&mut self, row: usize, n: usize, pages: &[i32]) {
        let of_lane = self.near.len() / self.near_rows.len().max(1);
        self.near.write(row * of_lane, pages);
        self.near_rows.write(row, &[n as i32]);
    }

    /// Newest queries of a lane before position `tokens`, oldest first. Waits for the device.
    pub fn queries(&self, g: &KvGeometry, seq: usize, lane: Lane, tokens: usize) -> Vec<f32> {
        let (width, of_lane) = (g.n_q_heads * g.head_dim, g.n_q_heads / g.n_kv_heads * g.head_dim);
        let mut ring = vec![0; RECENT_QUERIES * width];
        self.recent.read((lane.layer * g.n_seqs + seq) * ring.len(), &mut ring);
        let newest = tokens - tokens.min(Far::QUERIES)..tokens;
        let row = |position: usize| &ring[position % RECENT_QUERIES * width + lane.head * of_lane..][..of_lane];
        newest.flat_map(row).map(|&x| half::bf16::from_bits(x).to_f32()).collect()
    }

    /// Sets the newest queries of a lane before position `tokens`.
    pub fn set_queries(&mut self, g: &KvGeometry, seq: usize, lane: Lane, tokens: usize, queries: &[f32]) {
        let (width, of_lane) = (g.n_q_heads * g.head_dim, g.n_q_heads / g.n_kv_heads * g.head_dim);
        let newest = tokens - queries.len() / of_lane..tokens;
        for (position, row) in newest.zip(queries.chunks(of_lane)) {
            let rounded: Vec<u16> = row.iter().map(|&x| half::bf16::from_f32(x).to_bits()).collect();
            let at = (lane.layer * g.n_seqs + seq) * RECENT_QUERIES + position % RECENT_QUERIES;
            self.recent.write(at * width + lane.head * of_lane, &rounded);
        }
    }

    /// Metadata of a far page's rows. What was sent has arrived.
    pub fn metas(&self, g: &KvGeometry, page: &Page) -> impl Iterator<Item = SlotMeta> {
        let (layout, stride) = (g.page(), self.stride);
        let bytes = if page.metas.is_empty() { self.bytes_of(page) } else { &[] };
        (0..Far::ROWS).map(move |row| {
            let in_block = || layout.meta(&bytes[row / layout.page_slots * stride..], row % layout.page_slots);
            page.metas.get(row).copied().unwrap_or_else(in_block)
        })
    }

    /// Whether a far page has a row at a position in `held`. What was sent has arrived.
    pub fn is_held(&self, g: &KvGeometry, page: &Page, held: &[Range<usize>]) -> bool {
        let positions = || self.metas(g, page).map(SlotMeta::position);
        let of_all = || positions().fold([usize::MAX, 0], |[first, last], at| [first.min(at), last.max(at)]);
        let &[first, last] = page.span.get_or_init(of_all);
        held.iter().any(|range| range.start <= first && last < range.end)
            || held.iter().any(|range| range.start <= last && first < range.end) && is_held(held, positions())
    }

    pub fn fork(&mut self, g: &KvGeometry, from: usize, to: usize) {
        let (of_lanes, of_queries) = (g.n_kv_heads * self.most, RECENT_QUERIES * g.n_q_heads * g.head_dim);
        for layer in 0..g.n_layers {
            let row = |seq| g.row(layer, seq, 0);
            self.numbers.copy(row(from) * self.most, row(to) * self.most, of_lanes);
            let recent = |seq| (layer * g.n_seqs + seq) * of_queries;
            self.recent.copy(recent(from), recent(to), of_queries);
            for head in 0..g.n_kv_heads {
                self.lanes[row(to) + head] = self.lanes[row(from) + head].clone();
            }
        }
    }

    pub fn clear(&mut self, g: &KvGeometry, seq: usize) {
        g.lanes().for_each(|lane| self.lanes[g.row(lane.layer, seq, lane.head)] = LaneRows::default());
    }

    /// How often the near rows hold each of `n` pages of the pool.
    pub fn holds(&self, n: usize) -> Vec<u32> {
        let (mut near, mut holds) = (vec![0; self.near.len()], vec![0; n]);
        self.near.read(0, &mut near);
        let rows = self.read_rows();
        let of_lane = near.len() / rows.len().max(1);
        for (lane, &rows) in near.chunks_exact(of_lane.max(1)).zip(&rows) {
            lane[..rows.div_ceil(Far::ROWS / self.blocks())].iter().for_each(|&page: &i32| holds[page as usize] += 1);
        }
        holds
    }

    /// Pages of the pool that a far page has.
    pub fn blocks(&self) -> usize {
        self.page_bytes / self.stride
    }

    pub fn bytes(&self) -> u64 {
        ((self.n_pages - self.free.borrow().len()) * self.page_bytes) as u64
    }
}

impl Drop for FarRows {
    fn drop(&mut self) {
        // The host memory is freed next.
        self.driver.wait_ignoring_errors();
        drop(self.next.take().map(|(_, thread)| thread.join()));
    }
}
