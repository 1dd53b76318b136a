//! A device's memory, and how it fails.

use super::in_units;
use super::report::KernelNeeds;
use crate::tensor::Tensor;

/// Elements a device buffer may hold.
pub trait Plain: bytemuck::Pod + Send + Sync + Default {}
impl<T: bytemuck::Pod + Send + Sync + Default> Plain for T {}

/// An allocation failed. The step has not run, and the engine can continue.
#[derive(Debug, thiserror::Error)]
#[error("out of {what} memory: {} more needed", in_units(*needed_bytes))]
pub struct OutOfMemory {
    pub what: &'static str,
    pub needed_bytes: u64,
}

/// The device failed during an op. Ops panic with it, because nothing on the device can be used any
/// more. The engine's thread catches and reports it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DeviceLost(pub String);

/// Use of activations, by which a backend chooses how to store them.
#[derive(Clone, Copy)]
pub enum Use<'a, W> {
    /// Every op reads and writes them: f32 in full.
    Any,
    /// Read only by matmuls with these weights. The buffer may have the matmul's input precision
    /// (bf16 on CUDA); ops that write it then round.
    Input(&'a [&'a W]),
    /// Gate and up projections before SwiGLU, between rows that these weights read. A backend that
    /// fuses the two needs fewer rows than a step has, or none.
    GateUp(&'a [&'a W]),
    /// Rows of logits that [`Ops::sample`] samples from, with what it needs beside them.
    Logits,
}

/// A device's memory: buffers, activations, weights, and copies between host and device. None of it
/// is called inside a step.
pub trait Device: Sized + 'static {
    /// Typed device memory.
    type Buf<T: Plain>;
    /// Activations `[rows, width]` in the precision the backend computes in.
    type Acts;
    /// A weight matrix `[out, in]` in the file's precision.
    type Weight;

    /// A buffer of `len` zeros.
    fn alloc<T: Plain>(&self, len: usize) -> Result<Self::Buf<T>, OutOfMemory>;
    /// Copies `src` to `dst[at..]`.
    fn write<T: Plain>(&self, dst: &mut Self::Buf<T>, at: usize, src: &[T]);
    /// Copies `src[at..]` to `dst`, after all work issued before.
    fn read<T: Plain>(&self, src: &Self::Buf<T>, at: usize, dst: &mut [T]);
    /// Zeroed activations `[rows, width]`.
    fn acts(&self, rows: usize, width: usize, used: Use<'_, Self::Weight>) -> Result<Self::Acts, OutOfMemory>;
    /// Reads the first rows of activations as f32.
    fn read_acts(&self, src: &Self::Acts, rows: &mut [f32]);
    /// Stacks matrices of equal width by rows (q, k and v; gate and up). The CPU shares the
    /// tensors' bytes, a GPU copies them.
    fn weight(&self, parts: &[Tensor]) -> Result<Self::Weight, OutOfMemory>;
    /// Loads the kernels of a model. `on_files` receives the number of files loaded and their
    /// total, before each of them, and returns whether to continue. Other kernels are loaded by
    /// their first use. Does nothing on a backend without kernels.
    fn load_kernels(
        &self,
        _needs: &KernelNeeds,
        _on_files: &mut dyn FnMut(usize, usize) -> bool,
    ) -> anyhow::Result<()> {
        Ok(())
    }
    /// Calls `make`, whose allocations are counted as `purpose` in [`Measure::memory_use`].
    fn allocating<T>(&self, _purpose: &'static str, make: impl FnOnce() -> T) -> T {
        make()
    }
    /// Bytes of device memory that the allocations of `make` would take, without allocating. The
    /// value that `make` returns cannot be used. `None` if device memory is the host's.
    fn dry_run_bytes<T>(&self, _make: impl FnOnce() -> T) -> Option<u64> {
        None
    }
}
