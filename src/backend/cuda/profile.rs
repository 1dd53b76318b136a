//! Reports of the GPU about itself and its work: names, notices, timings, memory.

use super::super::profile::median;
use super::super::{KernelNeeds, MemoryUse, Profile, TIMED_ROUNDS};
use super::Cuda;
use super::cublaslt::CublasLt;
use super::memory::Buf;

impl Profile for Cuda {
    fn describe(&self) -> String {
        self.driver.name.clone()
    }

    /// About a tenth of a second of an 8B model: a kernel of another tile size sums in another
    /// order.
    fn chunk_tokens(&self) -> Option<usize> {
        const MOST: usize = 4096;
        let of_an_sm = if self.driver.capability.0 >= 9 { 32 } else { 16 };
        Some((of_an_sm * self.driver.sm_count).next_power_of_two().clamp(128, MOST))
    }

    fn load_kernels(&self, needs: &KernelNeeds, on_files: &mut dyn FnMut(usize, usize) -> bool) -> anyhow::Result<()> {
        Ok(self.driver.load_kernels(|source, gpu| source.is_needed(gpu, needs), on_files)?)
    }

    fn copy_bytes_per_s(&self) -> anyhow::Result<f64> {
        const BYTES: usize = 512 << 20;
        let (from, to) = (Buf::<u8>::new(&self.driver, BYTES)?, Buf::<u8>::new(&self.driver, BYTES)?);
        let ms = (0..5).map(|_| self.time_ms(|| self.driver.copy_within(to.ptr(), from.ptr(), BYTES)));
        Ok(2.0 * BYTES as f64 / (ms.fold(f32::INFINITY, f32::min) as f64 / 1e3))
    }

    fn captured_steps(&self) -> usize {
        self.graphs.count()
    }

    fn library(&self) -> Option<String> {
        self.cublaslt.as_ref().map(CublasLt::describe)
    }

    fn notice(&self) -> Option<String> {
        self.graphs.notice()
    }

    fn synchronize(&self) {
        self.driver.wait();
    }

    fn time_us<S>(&self, calls: usize, state: &mut S, before: impl Fn(&mut S), op: impl Fn(&mut S, usize)) -> f64 {
        let round = |state: &mut S| (0..calls).for_each(|i| op(state, i));
        before(state);
        // Copies the spans to the GPU: a capture forbids copies from the host.
        round(state);
        let spans = self.spans.borrow().current().to_vec();
        let captured = self.graphs.capture(&self.driver, || round(state));
        let timed = (0..TIMED_ROUNDS).map(|_| {
            before(state);
            if !spans.is_empty() {
                self.send(&spans);
            }
            let ms = self.driver.time_ms(|| match &captured {
                Some(graph) => graph.launch_once(),
                None => round(state),
            });
            ms as f64 * 1e3 / calls as f64
        });
        median(timed.collect())
    }

    fn dry_run_bytes<T>(&self, make: impl FnOnce() -> T) -> Option<u64> {
        // Take the lazily created scratch out first, so that a dry run does not leave fake buffers
        // in it.
        let (spans, sampling, unpacked) = (self.spans.take(), self.sampling.take(), self.unpacked.take());
        let bytes = self.driver.dry_run_allocation(make);
        self.spans.replace(spans);
        self.sampling.replace(sampling);
        self.unpacked.replace(unpacked);
        Some(bytes)
    }

    fn device_bytes(&self) -> Option<u64> {
        Some(self.driver.taken_bytes())
    }

    fn allocating<T>(&self, purpose: &'static str, make: impl FnOnce() -> T) -> T {
        self.driver.allocating(purpose, make)
    }

    fn memory_use(&self) -> Option<MemoryUse> {
        Some(self.driver.memory_use())
    }
}
