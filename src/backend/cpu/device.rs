//! The host's cores: threads, and what they keep between ops.

use super::super::{OutOfMemory, Plain};
use super::angles::Angles;
use super::attention::plan::{self, Plan};
use super::simd::{self, Isa};
use super::thread_pool::{ThreadPool, Tile};
use crate::cores;
use crate::system;
use crate::tensor::Tensor;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The host's cores.
pub struct Cpu {
    pub(super) thread_pool: ThreadPool,
    pub(super) isa: Isa,
    /// One per thread, grown by the first steps and kept.
    pub(super) scratch: Vec<Mutex<Scratch>>,
    pub(super) angles: Mutex<Angles>,
    pub(super) plan: Mutex<Plan>,
    /// How packed weights are multiplied.
    pub(super) method: simd::packed::Method,
    /// Activations of packed weights, kept from GEMM to GEMM.
    pub(super) packed_inputs: Mutex<Vec<simd::packed::Input>>,
    /// Observer of [`Cpu::observing`].
    pub(super) observer: Option<Observer>,
}

/// Scratch of one thread inside an op.
#[derive(Default)]
pub(super) struct Scratch {
    /// A block of weights, converted to f32.
    pub(super) weights: Vec<f32>,
    pub(super) attention: plan::Scratch,
}

/// Values of an element-wise op up to which one thread is faster than two.
pub(super) const ALONE: usize = 16 << 10;

/// f32 activations `[rows, width]`.
pub struct Acts {
    pub(super) data: Vec<f32>,
    pub width: usize,
}

impl Acts {
    #[cfg(test)]
    pub(crate) fn from_rows(data: Vec<f32>, width: usize) -> Self {
        Self { data, width }
    }

    pub(crate) fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.width..(i + 1) * self.width]
    }

    pub(crate) fn row_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.data[i * self.width..(i + 1) * self.width]
    }
}

impl Cpu {
    /// A backend with `threads` threads; 0 means one per core.
    pub fn new(threads: usize) -> Self {
        Self::with(threads, Isa::best(), None)
    }

    /// A backend that computes the same bits on every machine and with any number of threads. It is
    /// slower, and the reference for kernels of packed weights.
    pub fn exact(threads: usize) -> Self {
        Self::with(threads, Isa::EXACT, None)
    }

    /// A backend like [`Cpu::exact`] that shows the inputs of its GEMMs, and its attention.
    pub fn observing(threads: usize, watch: Box<dyn Watch>) -> Self {
        Self::with(threads, Isa::EXACT, Some(Observer::new(watch)))
    }

    pub(super) fn with(threads: usize, isa: Isa, observer: Option<Observer>) -> Self {
        let thread_pool = ThreadPool::new(cores::threads(threads));
        let scratch = (0..thread_pool.size()).map(|_| Mutex::default()).collect();
        Self {
            thread_pool,
            isa,
            scratch,
            angles: Mutex::default(),
            plan: Mutex::default(),
            method: simd::packed::Method::best(isa),
            packed_inputs: Mutex::default(),
            observer,
        }
    }

    pub fn threads(&self) -> usize {
        self.thread_pool.size()
    }

    /// A worker's own scratch, so the lock is never contended. A panic leaves it usable.
    pub(super) fn scratch(&self, worker: usize) -> MutexGuard<'_, Scratch> {
        self.scratch[worker].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn angles(&self) -> MutexGuard<'_, Angles> {
        self.angles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn packed_inputs(&self) -> MutexGuard<'_, Vec<simd::packed::Input>> {
        self.packed_inputs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `gate(out row, gate, up)` for the rows `[gate | up]` of `y`.
    pub(super) fn gated(
        &self,
        out: &mut Acts,
        y: &Acts,
        n: usize,
        gate: impl Fn(Isa, &mut [f32], &[f32], &[f32]) + Sync,
    ) {
        self.rows(out, n, |out, i| {
            let (gates, up) = y.row(i).split_at(y.width / 2);
            gate(self.isa, out, gates, up);
        });
    }

    /// Calls `row(out row, row number)` for the first `n` rows of `out`, in parallel.
    pub(super) fn rows(&self, out: &mut Acts, n: usize, row: impl Fn(&mut [f32], usize) + Sync) {
        let width = out.width;
        let rows = if n * width <= ALONE { n } else { n.div_ceil(4 * self.threads()) };
        self.thread_pool.tiles(&mut Tile::new(&mut out.data, n, width), rows.max(1), width.max(1), |_, tile| {
            for i in 0..tile.rows() {
                let number = tile.row_range().start + i;
                row(tile.row_mut(i), number);
            }
        });
    }
}

pub(super) fn zeroed<T: Plain>(len: usize) -> Result<Vec<T>, OutOfMemory> {
    let mut v = Vec::new();
    system::may_fail(|| v.try_reserve_exact(len))
        .map_err(|_| OutOfMemory { what: "host", needed_bytes: (len * std::mem::size_of::<T>()) as u64 })?;
    v.resize(len, T::default());
    Ok(v)
}

/// What is shown of a forward pass. `input` and `attention` return whether to continue; after a
/// false, GEMMs do nothing, so that an abandoned step ends soon.
pub trait Watch: Send {
    /// The input `x [n, cols]` of stacked matrices.
    fn input(&mut self, parts: &[Tensor], x: &[f32]) -> bool;

    /// Whether the product with these matrices is needed after that. Else its result is left as it
    /// was.
    fn wants_product(&self, _parts: &[Tensor]) -> bool {
        true
    }

    /// The attention of a layer whose q, k and v were shown last. `average` of rows
    /// `x [n, cols]` has, for each token, their average by the attention of one of its heads.
    fn attention(&mut self, _average: &dyn Fn(&[f32], usize) -> Vec<f32>) -> bool {
        true
    }
}

impl<F: FnMut(&[Tensor], &[f32]) -> bool + Send> Watch for F {
    fn input(&mut self, parts: &[Tensor], x: &[f32]) -> bool {
        self(parts, x)
    }
}

/// An observer that may have had enough.
pub(super) struct Observer(Mutex<(Box<dyn Watch>, bool)>);

impl Observer {
    fn new(watch: Box<dyn Watch>) -> Self {
        Self(Mutex::new((watch, true)))
    }

    /// Returns whether the GEMM is wanted.
    pub(super) fn input(&self, parts: &[Tensor], x: &[f32]) -> bool {
        let mut wanted = true;
        let goes_on = self.show(|watch| {
            wanted = watch.wants_product(parts);
            watch.input(parts, x)
        });
        goes_on && wanted
    }

    pub(super) fn attention(&self, average: &dyn Fn(&[f32], usize) -> Vec<f32>) {
        self.show(|watch| watch.attention(average));
    }

    fn show(&self, event: impl FnOnce(&mut dyn Watch) -> bool) -> bool {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.1 = inner.1 && event(&mut *inner.0);
        inner.1
    }
}
