//! Quest on a GPU: the kernels that choose the pages a decode token reads, their instances and
//! their scratch.

use super::super::{KvGeometry, OutOfMemory};
use super::abi::Arg::{self, I32, Ptr};
use super::abi::DecodeParams;
use super::driver::Driver;
use super::kernels::Kernel;
use super::memory::Buf;
use std::rc::Rc;

/// Threads of a block of `estimate`, and its blocks per SM.
const ESTIMATE_THREADS: usize = 128;
const ESTIMATE_BLOCKS_PER_SM: usize = 3;
/// Pages whose bounds a block of `estimate` computes at once.
const ESTIMATE_PAGES: usize = 64;
/// Threads of a block of `select_pages`.
const SELECT_THREADS: usize = 256;

/// Which pages the decode tokens of a step read in one layer.
pub(super) struct Choices {
    /// `[n_seqs, n_q_heads, max_pages]` upper bounds on the logits of a page's keys.
    bounds: Buf<f32>,
    /// `[n_seqs, n_q_heads, words]` one bit for each page that a query head reads: `words_of` in
    /// `pages.cu`.
    chosen: Buf<u32>,
    /// `[n_seqs, n_kv_heads]` query heads of a group that have chosen; 0 between launches.
    arrivals: Buf<i32>,
    /// `[n_seqs, n_kv_heads, max_pages]` pages that some head of a group reads: `chosen_page` in
    /// `pages.cuh`.
    pages: Buf<[i32; 2]>,
    /// `[n_seqs, n_kv_heads]` slots of those pages.
    slots: Buf<i32>,
}

impl Choices {
    pub fn new(driver: &Rc<Driver>, g: &KvGeometry) -> Result<Self, OutOfMemory> {
        driver.allocating("choices of pages", || {
            Ok(Self {
                bounds: Buf::new(driver, g.n_seqs * g.n_q_heads * g.max_pages)?,
                chosen: Buf::new(
                    driver,
                    g.n_seqs * g.n_q_heads * g.max_pages.div_ceil(SELECT_THREADS) * SELECT_THREADS / 32,
                )?,
                arrivals: Buf::new(driver, g.n_lanes())?,
                pages: Buf::new(driver, g.n_lanes() * g.max_pages)?,
                slots: Buf::new(driver, g.n_lanes())?,
            })
        })
    }

    /// Addresses of the lists of pages, and of their slots.
    pub fn lists(&self) -> [u64; 2] {
        [self.pages.ptr(), self.slots.ptr()]
    }

    /// Chooses the pages of the `n` tokens of a decode step. Grids depend on the longest possible
    /// lanes, so that a captured step serves all lengths.
    pub fn choose(&self, driver: &Driver, g: &KvGeometry, params: &DecodeParams, n: usize) {
        let dense = g.policy.quest().is_none_or(|quest| quest.is_dense(params.layer as usize, g.n_layers));
        let [bounds, chosen, arrivals] = [self.bounds.ptr(), self.chosen.ptr(), self.arrivals.ptr()].map(Ptr);
        if !dense {
            let enough = (ESTIMATE_BLOCKS_PER_SM * driver.sm_count).div_ceil(g.n_kv_heads * n);
            let blocks = g.max_pages.div_ceil(ESTIMATE_PAGES).min(enough).max(1);
            driver.launch(Kernel::Estimate, [blocks, g.n_kv_heads, n], ESTIMATE_THREADS, &[Arg::of(params), bounds]);
        }
        let args = [Arg::of(params), bounds, chosen, arrivals, I32(dense as i32)];
        driver.launch(Kernel::SelectPages, [g.n_q_heads, n, 1], SELECT_THREADS, &args);
    }
}
