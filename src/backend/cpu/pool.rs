//! Pages of host memory with reference counts. Memory is mapped in granules of up to 2 MiB, as huge
//! pages where the system has them. The lowest free page is allocated first, so that the last
//! granules become empty and can be unmapped.

use super::super::{KvGeometry, OutOfMemory, PoolStats};
use super::far::FarRows;
use memmap2::MmapMut;
use std::collections::BTreeSet;

const GRANULE_BYTES: usize = 2 << 20;
/// Pages start at cache lines, which suits vector loads.
const LINE_BYTES: usize = 64;

pub struct Pool {
    /// `[n_layers, n_lanes]` slots by the positions of their tokens: the order in which attention
    /// adds values. Updated when tokens are placed, and rebuilt from the positions if its length
    /// differs from the lane's.
    orders: Vec<Vec<u32>>,
    /// Rows that have left the lanes, if they are kept.
    pub(super) far: Option<FarRows>,
    page_bytes: usize,
    /// Distance of two pages: `page_bytes` rounded up to a cache line.
    stride_bytes: usize,
    pages_per_granule: usize,
    max_pages: usize,
    granules: Vec<MmapMut>,
    refs: Vec<u32>,
    free: BTreeSet<u32>,
}

impl Pool {
    pub(super) fn new(g: &KvGeometry, max_pages: usize) -> Self {
        let (page_bytes, lanes) = (g.page_bytes(), g.n_layers * g.n_lanes());
        let stride_bytes = page_bytes.next_multiple_of(LINE_BYTES);
        let pages_per_granule = (GRANULE_BYTES / stride_bytes).max(1);
        Self {
            orders: vec![Vec::new(); lanes],
            far: g.far.map(|_| FarRows::new(g)),
            page_bytes,
            stride_bytes,
            pages_per_granule,
            max_pages,
            granules: Vec::new(),
            refs: Vec::new(),
            free: BTreeSet::new(),
        }
    }

    pub(super) fn order(&self, lane: usize) -> &[u32] {
        &self.orders[lane]
    }

    pub(super) fn order_mut(&mut self, lane: usize) -> &mut Vec<u32> {
        &mut self.orders[lane]
    }

    pub(super) fn reserve(&mut self, pages: usize) -> Result<(), OutOfMemory> {
        while self.free.len() < pages {
            let granule_bytes = (self.pages_per_granule * self.stride_bytes).next_multiple_of(GRANULE_BYTES);
            let error = OutOfMemory { what: "host", needed_bytes: granule_bytes as u64 };
            if self.refs.len() >= self.max_pages {
                return Err(error);
            }
            let Ok(mut granule) = MmapMut::map_anon(granule_bytes) else { return Err(error) };
            // Decoding reads every live page once a token. Fails harmlessly on systems without huge
            // pages.
            #[cfg(target_os = "linux")]
            let _ = granule.advise(memmap2::Advice::HugePage);
            // Touch every page now, so that no step pays for the system's zeroing.
            granule.chunks_mut(4096).for_each(|page| page[0] = 0);
            self.granules.push(granule);
            let first = self.refs.len() as u32;
            self.refs.resize(self.refs.len() + self.pages_per_granule, 0);
            self.free.extend(first..self.refs.len() as u32);
        }
        Ok(())
    }

    /// Unmaps the last granules as long as none of their pages is in use.
    pub(super) fn trim(&mut self) {
        while let Some(first) = self.granules.len().checked_sub(1).map(|s| s * self.pages_per_granule) {
            if self.refs[first..].iter().any(|&r| r > 0) {
                break;
            }
            self.granules.pop();
            self.refs.truncate(first);
            self.free.split_off(&(first as u32));
        }
    }

    pub(super) fn stats(&self) -> PoolStats {
        PoolStats { used_pages: self.refs.len() - self.free.len(), mapped_pages: self.refs.len() }
    }

    pub(super) fn refs(&self) -> &[u32] {
        &self.refs
    }

    /// Allocates the lowest free page with one reference. Panics if none is free: the engine
    /// reserves before a step.
    pub(super) fn take(&mut self) -> i32 {
        let page = self.free.pop_first().expect("a page was reserved before the step");
        self.refs[page as usize] = 1;
        page as i32
    }

    pub(super) fn share(&mut self, page: i32) {
        self.refs[page as usize] += 1;
    }

    pub(super) fn release(&mut self, page: i32) {
        let refs = &mut self.refs[page as usize];
        *refs -= 1;
        if *refs == 0 {
            self.free.insert(page as u32);
        }
    }

    /// Returns `page` if it has one reference, else drops one and returns a copy of it.
    pub(super) fn make_unique(&mut self, page: i32) -> i32 {
        if self.refs[page as usize] == 1 {
            return page;
        }
        let copy = self.take();
        self.refs[page as usize] -= 1;
        let bytes = self.page(page).to_vec();
        self.page_mut(copy).copy_from_slice(&bytes);
        copy
    }

    pub(super) fn page(&self, page: i32) -> &[u8] {
        let (granule, at) = self.locate(page);
        &self.granules[granule][at..at + self.page_bytes]
    }

    pub(super) fn page_mut(&mut self, page: i32) -> &mut [u8] {
        let (granule, at) = self.locate(page);
        let page_bytes = self.page_bytes;
        &mut self.granules[granule][at..at + page_bytes]
    }

    fn locate(&self, page: i32) -> (usize, usize) {
        let page = page as usize;
        (page / self.pages_per_granule, page % self.pages_per_granule * self.stride_bytes)
    }
}
