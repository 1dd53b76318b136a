//! Sampling: launches the kernels of `sample.cu`.

use super::super::SampleArgs;
use super::abi::Arg::{self, I32, Ptr};
use super::abi::Results;
use super::driver::Driver;
use super::gpu::Cuda;
use super::kernels::Kernel;
use super::memory::{Acts, Buf};
use super::scratch::Sampling;

// As in `sample.cuh`: threads of a block, logits of a block, most logits of a row.
const THREADS: usize = 512;
const SPLIT: usize = 8 * THREADS;
const MOST_LOGITS: usize = 1 << 20;

/// Samples a token of each of `n` rows of `vocab` logits, and puts them into `results`.
pub(super) fn sample(
    driver: &Driver,
    scratch: &Sampling,
    results: &Results,
    logits: &Acts,
    args: &SampleArgs<'_, Cuda>,
    n: usize,
) {
    let vocab = logits.width;
    assert!(vocab <= MOST_LOGITS, "{vocab} logits, {MOST_LOGITS} at most");
    let rows = scratch.of(n);
    let (logits, draws, count) = (logits.ptr(), args.draws.ptr(), I32(vocab as i32));
    let (all, one) = ([vocab.div_ceil(SPLIT), n, 1], [1, n, 1]);
    let run = |kernel, grid, args: &[Arg<'_>]| driver.launch(kernel, grid, THREADS, args);
    let words = I32(args.kv.geometry.seen_words() as i32);
    let (seen, tokens) = (Ptr(args.kv.seen.ptr()), Ptr(args.staged.map_or(0, Buf::ptr)));
    let (masks, adjusts) = (Ptr(args.masks.map_or(0, Buf::ptr)), Ptr(args.adjusts.map_or(0, Buf::ptr)));
    run(Kernel::Argmax, all, &[Ptr(rows), Ptr(logits), Ptr(draws), seen, tokens, masks, adjusts, count, words]);
    let look = [Ptr(rows), Ptr(logits), Ptr(draws), I32(vocab as i32)];
    let choose = [Arg::of(results), Ptr(rows), Ptr(logits), Ptr(draws), Ptr(args.kv.seq_len.ptr()), count];
    if !args.greedy {
        run(Kernel::Histogram, all, &look);
        run(Kernel::ThresholdBin, one, &look);
        run(Kernel::Candidates, all, &look);
        run(Kernel::NucleusCut, one, &choose);
        run(Kernel::MaskMass, all, &look);
    }
    run(Kernel::DrawToken, one, &choose);
}
