//! Reports of a backend about itself and its work: names, notices, timings, memory. No op of a step
//! is here.

use crate::codec::Codec;
use crate::policy::Policy;
use crate::quant::Code;

/// Facts that decide which kernels the steps of a model launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelNeeds {
    /// Channels of a head.
    pub head_dim: usize,
    /// Format of K and V in the cache.
    pub codec: Codec,
    /// Code of packed weights.
    pub code: Option<Code>,
    /// Policy of the cache.
    pub policy: Policy,
}

/// Report of a backend about itself, for notices, `doctor`, `bench` and the panel.
pub trait Profile {
    /// `cpu, 2 threads` or the GPU's name.
    fn describe(&self) -> String;
    /// Loads the kernels of a model. `on_files` gets the number of files loaded and their total,
    /// before each of them, and returns whether to continue. Kernels not loaded here are loaded by
    /// their first use. Does nothing on a backend without kernels.
    fn load_kernels(
        &self,
        _needs: &KernelNeeds,
        _on_files: &mut dyn FnMut(usize, usize) -> bool,
    ) -> anyhow::Result<()> {
        Ok(())
    }
    /// Tokens of a prefill chunk, a function of the device alone, where a row's results depend on
    /// the rows beside it: the chunks of a prompt or a replay must then follow from its log. `None`
    /// where they do not, so that any chunks give the same state.
    fn chunk_tokens(&self) -> Option<usize> {
        None
    }
    /// Bytes read and written per second by a copy within the device's memory.
    fn copy_bytes_per_s(&self) -> anyhow::Result<f64>;
    /// Returns when all work issued so far is done, for callers that measure time. A backend that
    /// works in the caller's thread has nothing to wait for.
    fn synchronize(&self) {}
    /// Steps captured as graphs.
    fn captured_steps(&self) -> usize {
        0
    }
    /// An external library that runs some of the ops.
    fn library(&self) -> Option<String> {
        None
    }
    /// A message for the user that came up in a step, returned once.
    fn notice(&self) -> Option<String> {
        None
    }
    /// Bytes of device memory as the driver reports them for this process.
    fn device_bytes(&self) -> Option<u64> {
        None
    }
    /// Calls `make`, whose allocations are counted as `purpose` in [`Self::memory_use`].
    fn allocating<T>(&self, _purpose: &'static str, make: impl FnOnce() -> T) -> T {
        make()
    }
    /// Contents of the device's memory; `None` where it is the host's.
    fn memory_use(&self) -> Option<MemoryUse> {
        None
    }
    /// Bytes of device memory that the allocations of `make` would take, without taking any; what
    /// it returns cannot be used. `None` where memory is the host's.
    fn dry_run_bytes<T>(&self, _make: impl FnOnce() -> T) -> Option<u64> {
        None
    }
    /// Median microseconds of one of `calls` calls of `op`, which gets the call's number, over
    /// [`TIMED_ROUNDS`] rounds after one that is not timed. Each round begins with `before`,
    /// untimed. A backend may capture a round and replay it, so that the device is timed and not
    /// the host.
    fn time_us<S>(&self, calls: usize, state: &mut S, before: impl Fn(&mut S), op: impl Fn(&mut S, usize)) -> f64 {
        let mut round = || {
            before(state);
            self.synchronize();
            let started = std::time::Instant::now();
            (0..calls).for_each(|i| op(state, i));
            self.synchronize();
            started.elapsed().as_secs_f64() * 1e6 / calls as f64
        };
        round();
        median((0..TIMED_ROUNDS).map(|_| round()).collect())
    }
}

/// Contents of a device's memory, as its driver and the backend count it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Taken by other programs and by the driver for this one, before anything was loaded.
    pub before_bytes: u64,
    /// Taken by loading the kernels.
    pub kernel_bytes: u64,
    /// Taken now, in all.
    pub taken_bytes: u64,
    /// Live allocations by purpose, in the driver's granules.
    pub allocated: Vec<(&'static str, u64)>,
}

/// Rounds that [`Profile::time_us`] times.
pub const TIMED_ROUNDS: usize = 5;

pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
