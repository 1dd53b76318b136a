//! Pages of host memory with reference counts. Memory comes in steps of up to 2 MiB, huge pages
//! where the system has them; the lowest free page is taken first, so that the last steps empty and
//! can be given back.

use super::super::{OutOfMemory, PoolStats};
use memmap2::MmapMut;
use std::collections::BTreeSet;

const STEP_BYTES: usize = 2 << 20;
/// Pages start at cache lines, which suits vector loads.
const LINE_BYTES: usize = 64;

pub struct Pool {
    page_bytes: usize,
    /// Distance of two pages of a step: `page_bytes` rounded up to a line.
    stride_bytes: usize,
    pages_per_step: usize,
    max_pages: usize,
    steps: Vec<MmapMut>,
    refs: Vec<u32>,
    free: BTreeSet<u32>,
}

impl Pool {
    pub(super) fn new(page_bytes: usize, max_pages: usize) -> Self {
        let stride_bytes = page_bytes.next_multiple_of(LINE_BYTES);
        let pages_per_step = (STEP_BYTES / stride_bytes).max(1);
        Self {
            page_bytes,
            stride_bytes,
            pages_per_step,
            max_pages,
            steps: Vec::new(),
            refs: Vec::new(),
            free: BTreeSet::new(),
        }
    }

    pub(super) fn reserve(&mut self, pages: usize) -> Result<(), OutOfMemory> {
        while self.free.len() < pages {
            let step_bytes = (self.pages_per_step * self.stride_bytes).next_multiple_of(STEP_BYTES);
            let error = OutOfMemory { what: "host", needed_bytes: step_bytes as u64 };
            if self.refs.len() >= self.max_pages {
                return Err(error);
            }
            let Ok(mut step) = MmapMut::map_anon(step_bytes) else { return Err(error) };
            // Decoding reads every live page once a token. A system without huge pages says no.
            #[cfg(target_os = "linux")]
            let _ = step.advise(memmap2::Advice::HugePage);
            // Touched now, so that no step pays for the system's zeroing of it.
            step.chunks_mut(4096).for_each(|page| page[0] = 0);
            self.steps.push(step);
            let first = self.refs.len() as u32;
            self.refs.resize(self.refs.len() + self.pages_per_step, 0);
            self.free.extend(first..self.refs.len() as u32);
        }
        Ok(())
    }

    /// Frees the last steps as long as no page of theirs is in use.
    pub(super) fn trim(&mut self) {
        while let Some(first) = self.steps.len().checked_sub(1).map(|s| s * self.pages_per_step) {
            if self.refs[first..].iter().any(|&r| r > 0) {
                break;
            }
            self.steps.pop();
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

    /// The lowest free page, held once. Panics when none is free: the host reserves before a step.
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

    /// `page` if nobody else holds it, else a copy that takes this holder's place.
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
        let (step, at) = self.locate(page);
        &self.steps[step][at..at + self.page_bytes]
    }

    pub(super) fn page_mut(&mut self, page: i32) -> &mut [u8] {
        let (step, at) = self.locate(page);
        let page_bytes = self.page_bytes;
        &mut self.steps[step][at..at + page_bytes]
    }

    fn locate(&self, page: i32) -> (usize, usize) {
        let page = page as usize;
        (page / self.pages_per_step, page % self.pages_per_step * self.stride_bytes)
    }
}
