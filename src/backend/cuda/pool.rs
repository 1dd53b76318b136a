//! Pages of card memory: one range of reserved addresses, mapped in steps, so that pages keep their
//! addresses while memory grows and shrinks. Reference counts and the free list live on the card, where
//! `place` takes pages; between steps the host grows, trims and sorts, so that the lowest free page goes
//! first and the last steps empty.

use super::super::{KvGeometry, OutOfMemory, PoolStats};
use super::driver::{Driver, out_of_memory};
use super::kv::{TILE_LINES, attend_blocks, padded};
use super::memory::Buf;
use cudarc::driver::sys;
use std::cell::Cell;
use std::rc::Rc;

/// As in `kv.cuh`: the kernels know no other page.
const PAGE_SLOTS: usize = 16;
const STEP_BYTES: usize = 16 << 20;
/// Pages begin at multiples of this, for 16-byte copies.
const PAGE_ALIGN: usize = 16;
/// Blocks of one attention launch at which its keys are no longer divided further, by multiprocessor.
const BLOCKS_PER_MULTIPROCESSOR: usize = 2;

pub struct Pool {
    driver: Rc<Driver>,
    base: u64,
    reserved_bytes: usize,
    pub(super) stride: usize,
    step_bytes: usize,
    max_pages: usize,
    /// Steps mapped, from the first on.
    steps: usize,
    pub(super) refs: Buf<i32>,
    pub(super) free_list: Buf<i32>,
    pub(super) returned: Buf<i32>,
    /// Lengths of `free_list` and `returned`.
    pub(super) counts: Buf<i32>,
    /// Free pages that no step since has had leave to take: saves asking the card.
    certain: Cell<usize>,
    /// K and V of a chunk's rows as they will be stored: `staged_at` in `kv.cuh`.
    pub(super) staged: Buf<u8>,
    /// Softmaxes over parts of the keys, see `attend.cu` and `attend_tiles.cu`, and how many of them are done.
    pub(super) partials: Buf<f32>,
    pub(super) arrivals: Buf<i32>,
    /// For each single token and KV head the first part, and how many.
    pub(super) shares: Buf<i32>,
    /// Blocks that `partials` has room for.
    pub(super) max_blocks: usize,
    /// Blocks of `attend` that the card runs side by side.
    pub(super) single_blocks: usize,
    /// One lane's slots, for `slot_metas`.
    pub(super) metas: Buf<i32>,
}

impl Pool {
    pub(super) fn new(
        driver: &Rc<Driver>,
        g: &KvGeometry,
        max_pages: usize,
        max_step: usize,
    ) -> Result<Self, OutOfMemory> {
        assert_eq!(g.page_slots, PAGE_SLOTS, "slots of a page");
        let stride = g.page_bytes().next_multiple_of(PAGE_ALIGN);
        let step_bytes = STEP_BYTES.next_multiple_of(granularity(driver)).max(stride);
        let reserved_bytes = (max_pages * stride).max(1).next_multiple_of(step_bytes);
        let max_blocks = BLOCKS_PER_MULTIPROCESSOR * driver.multiprocessors;
        let single_blocks = max_blocks.min(attend_blocks(driver, g) * driver.multiprocessors);
        let refs = Buf::new(driver, max_pages)?;
        let free_list = Buf::new(driver, max_pages)?;
        let returned = Buf::new(driver, max_pages)?;
        let counts = Buf::new(driver, 2)?;
        let staged = Buf::new(driver, max_step.div_ceil(PAGE_SLOTS) * g.n_kv_heads * stride)?;
        let partials = Buf::new(driver, max_blocks * TILE_LINES * (padded(g.head_dim) + 8))?;
        let arrivals = Buf::new(driver, max_blocks)?;
        let shares = Buf::new(driver, 2 * g.n_seqs * g.n_kv_heads)?;
        let metas = Buf::new(driver, g.max_pages * g.page_slots)?;
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
            step_bytes,
            max_pages,
            steps: 0,
            refs,
            free_list,
            returned,
            counts,
            certain: Cell::new(0),
            staged,
            partials,
            arrivals,
            shares,
            max_blocks,
            single_blocks,
            metas,
        })
    }

    pub(super) fn base(&self) -> u64 {
        self.base
    }

    fn mapped_pages(&self) -> usize {
        (self.steps * self.step_bytes / self.stride).min(self.max_pages)
    }

    fn free_pages(&self) -> usize {
        let mut counts = [0; 2];
        self.counts.read(0, &mut counts);
        (counts[0] + counts[1]) as usize
    }

    /// So many pages are free, and nothing runs.
    pub(super) fn free_now(&self, pages: usize) {
        self.certain.set(pages);
    }

    pub(super) fn reserve(&mut self, pages: usize) -> Result<(), OutOfMemory> {
        if self.certain.get() >= pages {
            self.certain.set(self.certain.get() - pages);
            return Ok(());
        }
        let mut free = self.free_pages();
        let (before, mut failed) = (self.mapped_pages(), None);
        // Where all is mapped there is a page for whatever the tables can name: more was asked for than can be needed.
        while free < pages && self.mapped_pages() < self.max_pages {
            let had = self.mapped_pages();
            if let Err(error) = self.map_step() {
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
        self.certain.set(free.saturating_sub(pages));
        Ok(())
    }

    fn map_step(&mut self) -> Result<(), OutOfMemory> {
        let properties = properties(&self.driver);
        let mut handle = 0;
        // SAFETY: the properties and the handle are live; the size is a multiple of the granularity.
        let made = unsafe { sys::cuMemCreate(&mut handle, self.step_bytes, &properties, 0) };
        if made != sys::CUresult::CUDA_SUCCESS {
            return Err(out_of_memory(self.step_bytes));
        }
        let at = self.base + (self.steps * self.step_bytes) as u64;
        let access = sys::CUmemAccessDesc {
            location: properties.location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the range lies in the reserved addresses, behind all that is mapped; the handle is let
        // go of once it is mapped, which keeps the memory until it is unmapped.
        let mapped = unsafe {
            let mapped = sys::cuMemMap(at, self.step_bytes, 0, handle, 0);
            let _ = sys::cuMemRelease(handle);
            mapped
        };
        if mapped != sys::CUresult::CUDA_SUCCESS {
            return Err(out_of_memory(self.step_bytes));
        }
        // SAFETY: the range was just mapped, `access` is one live description.
        let allowed = unsafe { sys::cuMemSetAccess(at, self.step_bytes, &access, 1) };
        if allowed != sys::CUresult::CUDA_SUCCESS {
            // SAFETY: the range was just mapped, and nobody knows it.
            let _ = unsafe { sys::cuMemUnmap(at, self.step_bytes) };
            return Err(out_of_memory(self.step_bytes));
        }
        self.steps += 1;
        Ok(())
    }

    /// Which pages go down for the last steps to be empty: from the returned first page on, so many
    /// entries of `returned` (which holds nothing between turns) say where each goes, -1 for nowhere.
    pub(super) fn moves(&mut self) -> Option<(usize, usize)> {
        let refs = self.refs();
        let used = refs.iter().filter(|&&r| r > 0).count();
        let steps = (used * self.stride).div_ceil(self.step_bytes);
        let first = steps * self.step_bytes / self.stride;
        if first >= refs.len() || refs[first..].iter().all(|&r| r == 0) {
            return None;
        }
        let mut free = (0..first).filter(|&p| refs[p] == 0);
        let place = |&r: &u32| if r > 0 { free.next().expect("as many fit below") as i32 } else { -1 };
        let moved: Vec<i32> = refs[first..].iter().map(place).collect();
        self.returned.write(0, &moved);
        Some((first, moved.len()))
    }

    /// Unmaps the last steps as long as no page of theirs is in use.
    pub(super) fn trim(&mut self) {
        if self.steps == 0 {
            return;
        }
        let refs = self.refs();
        let used = refs.iter().rposition(|&r| r > 0).map_or(0, |last| last + 1);
        let needed = (used * self.stride).div_ceil(self.step_bytes);
        while self.steps > needed {
            self.steps -= 1;
            let at = self.base + (self.steps * self.step_bytes) as u64;
            // SAFETY: the step is mapped, no page that begins or ends in it is in use, and reading the
            // counts has waited for all that ran.
            let _ = unsafe { sys::cuMemUnmap(at, self.step_bytes) };
        }
        self.sort_free_list();
    }

    /// Writes the free list anew: highest first, for pages are taken from its end.
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
        self.driver.quiet();
        // SAFETY: nothing runs any more; what is mapped is unmapped once, then the addresses given back.
        unsafe {
            for step in 0..self.steps {
                let _ = sys::cuMemUnmap(self.base + (step * self.step_bytes) as u64, self.step_bytes);
            }
            let _ = sys::cuMemAddressFree(self.base, self.reserved_bytes);
        }
    }
}

/// Plain memory of the card.
fn properties(driver: &Driver) -> sys::CUmemAllocationProp {
    // SAFETY: a C struct of numbers and plain enums for which all zeros is a value.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = driver.device();
    properties
}

fn granularity(driver: &Driver) -> usize {
    let properties = properties(driver);
    let mut bytes = 0;
    let flags = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: both pointers are to live values.
    let asked = unsafe { sys::cuMemGetAllocationGranularity(&mut bytes, &properties, flags) };
    if asked == sys::CUresult::CUDA_SUCCESS && bytes > 0 { bytes } else { 2 << 20 }
}
