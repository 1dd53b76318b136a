//! The pool of KV pages: one range of reserved addresses, mapped a granule at a time, so that pages
//! keep their addresses while memory grows and shrinks. Reference counts and the free list are in
//! device memory, where kernels allocate pages. Between steps the host grows, trims and sorts the
//! pool, so that the lowest free page is allocated first and the last granules become empty.

use super::super::{KvGeometry, OutOfMemory, PoolStats};
use super::abi::{Kept, TensorMap};
use super::driver::{Driver, out_of_memory};
use super::far_rows::FarRows;
use super::kernels::{Rows, USUAL_HEAD_DIM, padded};
use super::kinds::Kind;
use super::memory::Buf;
use super::pages::Choices;
use super::spans::Staged;
use super::tensor_map::page_map;
use super::tiles::{attend_blocks, partial_floats, unpacks};
use bytemuck::Zeroable;
use cudarc::driver::sys;
use std::cell::Cell;
use std::rc::Rc;

/// As in `kv.cuh`: the kernels know no other page size.
const PAGE_SLOTS: usize = 16;
/// Bytes that are mapped and unmapped at a time.
const GRANULE_BYTES: usize = 16 << 20;
/// Pages begin at multiples of this, for 16-byte copies.
const PAGE_ALIGN: usize = 16;
/// Bytes of a page of the unpacked copy: `UnpackedPage` in `unpacked.cuh`.
const UNPACKED_BYTES: usize = 8448;
/// Most bytes of unpacked stored slots: 21,000 slots of 8 KV heads.
const MOST_UNPACKED_BYTES: usize = 96 << 20;
/// Words of the state of 64 channels of a query head: as in `attend_merge.cuh`.
const UNIT_WORDS: usize = 68;
/// Blocks per SM of an attention launch at which its keys are not split further.
const BLOCKS_PER_SM: usize = 2;

pub struct Pool {
    driver: Rc<Driver>,
    base: u64,
    reserved_bytes: usize,
    pub(super) stride: usize,
    granule_bytes: usize,
    max_pages: usize,
    /// Whether `max_pages` is limited by the GPU's memory and below the entries of the page tables.
    bounded: bool,
    /// Granules mapped, from the first on.
    granules: usize,
    pub(super) refs: Buf<i32>,
    pub(super) free_list: Buf<i32>,
    pub(super) returned: Buf<i32>,
    /// Lengths of `free_list` and `returned`.
    pub(super) counts: Buf<i32>,
    /// Lower bound on free pages; lets `reserve` skip a device read.
    certain: Cell<usize>,
    /// Encoded K and V of a step's tokens: of a chunk in one layer, or of a decode step in all
    /// layers (`staged_at` and `staged_token_at` in `kv.cuh`). One area for each kind of layers,
    /// because lanes with other heads cannot share a page.
    pub(super) staged: Buf<u8>,
    /// Pages of an area, and those before the pages of rows that are committed later.
    area_pages: usize,
    first_kept: usize,
    /// Tokens that the running step has staged and that are not in the cache yet.
    pub(super) staged_layers: Cell<Staged>,
    /// `[staged_rows, value_width]` outputs of delta nets before their norm, for rows that are
    /// committed later.
    pub(super) delta_raw: Buf<f32>,
    /// Partial softmax results of the splits of a prefill step's keys (`attend_tiles.cuh`,
    /// `attend_wgmma.cu`).
    pub(super) partials: Buf<f32>,
    /// Softmax states of the splits of decode attention: `states` in `decode.cuh`.
    pub(super) states: Buf<f32>,
    /// Number of splits that are done (prefill) or have begun (decode), and of heads that
    /// `place_scores` has finished; all zero between launches.
    pub(super) arrivals: Buf<i32>,
    /// `[delta layers, n_seqs, key_heads]` `arrivals` in `delta_net.cu`. Empty if there is no such
    /// layer.
    pub(super) delta_arrivals: Buf<i32>,
    /// Largest logit of each query head of a decode token, and the token's own logit: `peaks` in
    /// `decode.cuh`. Empty if the policy has no scores.
    pub(super) peaks: Buf<[f32; 2]>,
    /// Logits of the tokens of a launch with the stored slots: `logits_at` in `decode.cuh`. Empty
    /// if the policy has no scores.
    pub(super) logits: Buf<f32>,
    /// Blocks whose results fit in `partials`.
    pub(super) max_blocks: usize,
    /// Blocks of `attend` that the GPU runs at once.
    pub(super) decode_blocks: usize,
    /// Output of `slot_metas` (the slots of one lane) and of `presence` (a word for each position
    /// and lane).
    pub(super) metas: Buf<i32>,
    /// Pages that decode tokens read, where the policy reads pages.
    pub(super) choices: Option<Choices>,
    /// Rows that have left their lanes, if they are kept.
    pub(super) far: Option<FarRows>,
    /// Pages of the unpacked copy that a prefill step attends to; empty if the kernels do not need
    /// it.
    unpacked: Option<Buf<u8>>,
}

/// Where kernels find the unpacked copy of a step: `PrefillParams` in `prefill.cuh`.
#[derive(Default)]
pub(super) struct UnpackedPages {
    pub at: u64,
    pub lane_pages: usize,
    pub first_staged: usize,
}

impl Pool {
    pub(super) fn new(
        driver: &Rc<Driver>,
        g: &KvGeometry,
        table_pages: usize,
        max_step: usize,
    ) -> Result<Self, OutOfMemory> {
        assert_eq!(g.page_slots, PAGE_SLOTS, "slots of a page");
        let stride = g.page_bytes().next_multiple_of(PAGE_ALIGN);
        // Slots and near rows of a lane may both have a page that is filling. No lists for pages
        // that the GPU cannot hold.
        let near_pages = if g.keeps_far() { g.n_layers * g.n_lanes() } else { 0 };
        let table_pages = table_pages + near_pages;
        let max_pages = table_pages.min(driver.memory().1 as usize / stride);
        let granule_bytes = GRANULE_BYTES.next_multiple_of(granularity(driver)).max(stride);
        let reserved_bytes = (max_pages * stride).max(1).next_multiple_of(granule_bytes);
        let max_blocks = BLOCKS_PER_SM * driver.sm_count;
        let decode_blocks = max_blocks.min(attend_blocks(driver, g) * driver.sm_count);
        let list = || driver.allocating("page lists", || Buf::new(driver, max_pages));
        let (refs, free_list, returned) = (list()?, list()?, list()?);
        let counts = Buf::new(driver, 2)?;
        let decode_pages = (g.n_layers * g.n_lanes()).div_ceil(PAGE_SLOTS);
        let first_kept = (max_step.div_ceil(PAGE_SLOTS) * g.n_kv_heads).max(decode_pages);
        let area_pages = first_kept + g.staged_rows * decode_pages;
        let staged_bytes = Kind::all(g).count() * area_pages * stride;
        let staged = driver.allocating("staged keys and values", || Buf::new(driver, staged_bytes))?;
        let delta_raw = Buf::new(driver, g.delta.map_or(0, |d| g.staged_rows * d.value_width()))?;
        // What layers need at most, whose heads may differ.
        let most = |of: &dyn Fn(&KvGeometry) -> usize| {
            Kind::all(g).map(|(_, layer)| of(&g.of_layer(layer))).max().unwrap_or(0)
        };
        let partial_sums = max_blocks * most(&partial_floats);
        let partials = driver.allocating("partial results of attention", || Buf::new(driver, partial_sums))?;
        let group = g.n_q_heads / g.n_kv_heads;
        // Rows of decode attention.
        let rows = g.n_seqs.max(g.staged_rows);
        let state_words = most(&|g| {
            let (splits, group) = (rows * (g.n_kv_heads + 1) + decode_blocks, g.n_q_heads / g.n_kv_heads);
            // Channels that the widest instance has room for.
            splits * group * padded(g.head_dim).max(USUAL_HEAD_DIM) / 64 * UNIT_WORDS
        });
        let states = driver.allocating("softmax states of splits", || Buf::new(driver, state_words))?;
        let arrivals = Buf::new(driver, max_blocks.max(rows * g.n_kv_heads))?;
        let delta_arrivals = Buf::new(driver, g.delta.map_or(0, |d| d.n_layers * g.n_seqs * d.key_heads))?;
        let peaks = Buf::new(driver, g.policy.scored().map_or(0, |_| g.n_seqs * g.n_q_heads))?;
        let n_logits = g.n_seqs * g.n_kv_heads * group.next_multiple_of(2) * g.score_slots();
        let logits = driver.allocating("attention weights", || Buf::new(driver, n_logits))?;
        let metas = Buf::new(driver, g.max_pages * g.page_slots + g.table_lanes())?;
        let choices = g.policy.quest().map(|_| Choices::new(driver, g)).transpose()?;
        let far = g.keeps_far().then(|| FarRows::new(driver, g, stride)).transpose()?;
        let unpacked = match unpacks(driver, g, max_step) {
            true => {
                let stored = (g.n_seqs * g.n_kv_heads * g.max_pages).min(MOST_UNPACKED_BYTES / UNPACKED_BYTES);
                let pages = stored + max_step.div_ceil(PAGE_SLOTS) * g.n_kv_heads;
                let make = || Buf::new(driver, pages * UNPACKED_BYTES);
                Some(driver.allocating("unpacked keys and values", make)?)
            }
            false => None,
        };
        let mut base = 0;
        // SAFETY: a context is current; the pointer is to a live address.
        let reserved = unsafe { sys::cuMemAddressReserve(&mut base, reserved_bytes, 0, 0, 0) };
        if reserved != sys::CUresult::CUDA_SUCCESS {
            return Err(out_of_memory(reserved_bytes));
        }
        Ok(Self {
            driver: driver.clone(),
            base,
            reserved_bytes,
            stride,
            granule_bytes,
            max_pages,
            bounded: max_pages < table_pages,
            granules: 0,
            refs,
            free_list,
            returned,
            counts,
            certain: Cell::new(0),
            staged,
            area_pages,
            first_kept,
            staged_layers: Cell::default(),
            delta_raw,
            partials,
            states,
            arrivals,
            delta_arrivals,
            peaks,
            logits,
            max_blocks,
            decode_blocks,
            metas,
            choices,
            far,
            unpacked,
        })
    }

    /// Divides the unpacked pages among `lanes` lanes and `rows` rows of a step.
    pub(super) fn unpacked_pages(&self, g: &KvGeometry, lanes: usize, rows: usize) -> UnpackedPages {
        let Some(memory) = &self.unpacked else { return UnpackedPages::default() };
        let stored = memory.len() / UNPACKED_BYTES - rows.div_ceil(PAGE_SLOTS) * g.n_kv_heads;
        let lane_pages = stored / lanes;
        UnpackedPages { at: memory.ptr(), lane_pages, first_staged: lane_pages * lanes }
    }

    /// TMA descriptors of the pool's pages and of the staged pages, whose rows are K's and then
    /// V's. For codecs other than bf16, the first describes the unpacked pages, if there are any,
    /// and the second is empty.
    pub(super) fn maps(&self, g: &KvGeometry, kind: Kind) -> [TensorMap; 2] {
        if Rows::of(g.codec) != Rows::Bf16 {
            let map = |memory: &Buf<u8>| {
                let n = memory.len() / UNPACKED_BYTES;
                page_map(memory.ptr(), n, UNPACKED_BYTES, [2 * PAGE_SLOTS, g.head_dim], PAGE_SLOTS)
            };
            return [self.unpacked.as_ref().map_or_else(TensorMap::zeroed, map), TensorMap::zeroed()];
        }
        let page = g.page();
        assert_eq!(page.v_at, PAGE_SLOTS * page.slot.k_bytes, "rows of V follow those of K");
        [(self.base, self.max_pages), (self.staged_of(g, kind), self.area_pages)]
            .map(|(at, n)| page_map(at, n, self.stride, [2 * PAGE_SLOTS, g.head_dim], PAGE_SLOTS))
    }

    /// Address of the area of a kind of layers in `staged`.
    pub(super) fn staged_of(&self, g: &KvGeometry, kind: Kind) -> u64 {
        let area = Kind::all(g).take_while(|(other, _)| *other != kind).count();
        self.staged.from(area * self.area_pages * self.stride)
    }

    /// Where rows of a kind of layers are staged that are committed later.
    pub(super) fn kept(&self, g: &KvGeometry, kind: Kind) -> Kept {
        let row_pages = (g.n_layers * g.n_lanes()).div_ceil(PAGE_SLOTS);
        let at = self.staged_of(g, kind) + (self.first_kept * self.stride) as u64;
        Kept { at, bytes: (row_pages * self.stride) as u64 }
    }

    pub(super) fn base(&self) -> u64 {
        self.base
    }

    fn mapped_pages(&self) -> usize {
        (self.granules * self.granule_bytes / self.stride).min(self.max_pages)
    }

    fn free_pages(&self) -> usize {
        let mut counts = [0; 2];
        self.counts.read(0, &mut counts);
        (counts[0] + counts[1]) as usize
    }

    /// Notes that `pages` pages are free and nothing runs.
    pub(super) fn free_now(&self, pages: usize) {
        self.certain.set(pages);
    }

    /// Maps granules until `pages` pages are free.
    pub(super) fn reserve(&mut self, pages: usize) -> Result<(), OutOfMemory> {
        if self.certain.get() >= pages {
            self.certain.set(self.certain.get() - pages);
            return Ok(());
        }
        let mut free = self.free_pages();
        let (before, mut failed) = (self.mapped_pages(), None);
        // A pool that is mapped to its end has a page for every entry of the page tables, unless
        // memory ran out before. More pages cannot be needed.
        while free < pages && self.mapped_pages() < self.max_pages {
            let had = self.mapped_pages();
            if let Err(error) = self.map_granule() {
                failed = Some(error);
                break;
            }
            free += self.mapped_pages() - had;
        }
        if self.mapped_pages() > before {
            self.sort_free_list();
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if free < pages && self.bounded {
            return Err(out_of_memory((pages - free) * self.stride));
        }
        self.certain.set(free.saturating_sub(pages));
        Ok(())
    }

    /// Maps one more granule.
    fn map_granule(&mut self) -> Result<(), OutOfMemory> {
        let properties = properties(&self.driver);
        let mut handle = 0;
        // SAFETY: the properties and the handle are live; the size is a multiple of the
        // granularity.
        let made = unsafe { sys::cuMemCreate(&mut handle, self.granule_bytes, &properties, 0) };
        if made != sys::CUresult::CUDA_SUCCESS {
            return Err(out_of_memory(self.granule_bytes));
        }
        let at = self.base + (self.granules * self.granule_bytes) as u64;
        let access = sys::CUmemAccessDesc {
            location: properties.location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the range lies in the reserved addresses, after everything that is mapped. The
        // handle is released once it is mapped, and the mapping keeps the memory alive.
        let mapped = unsafe {
            let mapped = sys::cuMemMap(at, self.granule_bytes, 0, handle, 0);
            let _ = sys::cuMemRelease(handle);
            mapped
        };
        if mapped != sys::CUresult::CUDA_SUCCESS {
            return Err(out_of_memory(self.granule_bytes));
        }
        // SAFETY: the range was just mapped, `access` is one live descriptor.
        let allowed = unsafe { sys::cuMemSetAccess(at, self.granule_bytes, &access, 1) };
        if allowed != sys::CUresult::CUDA_SUCCESS {
            // SAFETY: the range was just mapped, and nothing refers to it.
            let _ = unsafe { sys::cuMemUnmap(at, self.granule_bytes) };
            return Err(out_of_memory(self.granule_bytes));
        }
        self.granules += 1;
        self.driver.count_mapped(self.granule_bytes as i64);
        Ok(())
    }

    /// Takes `n` pages from the end of the free list. The caller has reserved them and sets their
    /// reference counts.
    pub(super) fn take(&mut self, n: usize) -> Vec<i32> {
        let mut free = [0];
        self.counts.read(0, &mut free);
        let left = (free[0] as usize).checked_sub(n).expect("pages were reserved before they are taken");
        let mut pages = vec![0; n];
        self.free_list.read(left, &mut pages);
        self.counts.write(0, &[left as i32]);
        pages.reverse();
        pages
    }

    /// Plans a defragmentation that empties the last granules: returns the first page to move and a
    /// number of pages. For each of them, `returned` (unused between turns) then holds the page to
    /// move it to, or -1 for a free page.
    pub(super) fn moves(&mut self) -> Option<(usize, usize)> {
        let refs = self.refs();
        let used = refs.iter().filter(|&&r| r > 0).count();
        let granules = (used * self.stride).div_ceil(self.granule_bytes);
        let first = granules * self.granule_bytes / self.stride;
        if first >= refs.len() || refs[first..].iter().all(|&r| r == 0) {
            return None;
        }
        let mut free = (0..first).filter(|&p| refs[p] == 0);
        let place = |&r: &u32| if r > 0 { free.next().expect("as many fit below") as i32 } else { -1 };
        let moved: Vec<i32> = refs[first..].iter().map(place).collect();
        self.returned.write(0, &moved);
        Some((first, moved.len()))
    }

    /// Unmaps the last granules in which no page is in use.
    pub(super) fn trim(&mut self) {
        if self.granules == 0 {
            return;
        }
        let refs = self.refs();
        let used = refs.iter().rposition(|&r| r > 0).map_or(0, |last| last + 1);
        let needed = (used * self.stride).div_ceil(self.granule_bytes);
        while self.granules > needed {
            self.granules -= 1;
            self.driver.count_mapped(-(self.granule_bytes as i64));
            let at = self.base + (self.granules * self.granule_bytes) as u64;
            // SAFETY: the granule is mapped, no page that begins or ends in it is in use, and
            // reading the counts has waited for all that ran.
            let _ = unsafe { sys::cuMemUnmap(at, self.granule_bytes) };
        }
        self.sort_free_list();
    }

    /// Rebuilds the free list, highest page first: pages are allocated from its end.
    fn sort_free_list(&mut self) {
        let refs = self.refs();
        let free: Vec<i32> = (0..refs.len()).rev().filter(|&p| refs[p] == 0).map(|p| p as i32).collect();
        self.free_list.write(0, &free);
        self.counts.write(0, &[free.len() as i32, 0]);
        self.certain.set(0);
    }

    /// Reference counts of all mapped pages.
    pub(super) fn refs(&self) -> Vec<u32> {
        let mut refs = vec![0; self.mapped_pages()];
        self.refs.read(0, &mut refs);
        refs.into_iter().map(|r| r as u32).collect()
    }

    pub(super) fn stats(&self) -> PoolStats {
        let mapped = self.mapped_pages();
        PoolStats { used_pages: mapped - self.free_pages(), mapped_pages: mapped }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.driver.wait_ignoring_errors();
        // SAFETY: nothing runs any more; all mapped memory is unmapped once, then the addresses are
        // freed.
        unsafe {
            self.driver.count_mapped(-((self.granules * self.granule_bytes) as i64));
            for granule in 0..self.granules {
                let _ = sys::cuMemUnmap(self.base + (granule * self.granule_bytes) as u64, self.granule_bytes);
            }
            let _ = sys::cuMemAddressFree(self.base, self.reserved_bytes);
        }
    }
}

/// Properties of plain device memory.
fn properties(driver: &Driver) -> sys::CUmemAllocationProp {
    // SAFETY: a C struct of numbers and plain enums for which all zeros is a value.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = driver.context().cu_device();
    properties
}

/// The driver's granularity of mappings, in bytes.
fn granularity(driver: &Driver) -> usize {
    let properties = properties(driver);
    let mut bytes = 0;
    let flags = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: both pointers are to live values.
    let asked = unsafe { sys::cuMemGetAllocationGranularity(&mut bytes, &properties, flags) };
    if asked == sys::CUresult::CUDA_SUCCESS && bytes > 0 { bytes } else { 2 << 20 }
}
