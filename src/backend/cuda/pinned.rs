//! Page-locked host memory that the GPU reads and writes: the staging buffer of copies to the GPU,
//! which nobody waits for, and of large copies from it, the words that the last kernel of a step
//! writes for the host, and far pages.

use super::super::cpu::thread_pool::{ThreadPool, Tile};
use super::error::{NoCuda, must, ready};
use crate::cores;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DeviceRepr, PinnedHostSlice, ValidAsZeroBits, result, sys};
use memmap2::MmapMut;
use std::cell::OnceCell;
use std::sync::Arc;
use std::thread;

/// Bytes of each half of the staging memory.
const HALF_BYTES: usize = 4 << 20;
/// Threads that fill a half: one copies between ordinary and page-locked memory at 5 GB/s, a tenth
/// of what the bus takes.
const COPY_THREADS: usize = 4;
/// Bytes that a thread copies at a time, and bytes from which several do.
const PART_BYTES: usize = 256 << 10;
const SHARED_BYTES: usize = 1 << 20;
/// Bytes of the smallest page of memory.
const FEWEST_PAGE_BYTES: usize = 4096;
/// Copies begin at multiples of this.
const ALIGN: usize = 64;

/// `len` values of page-locked memory, zero at first. Not write-combined: the host reads it.
fn pinned<T>(context: &Arc<CudaContext>, len: usize) -> Result<PinnedHostSlice<T>, NoCuda>
where
    T: DeviceRepr + ValidAsZeroBits + Default + Copy,
{
    // SAFETY: uninitialized until the next line fills it with numbers.
    let mut memory = ready(unsafe { context.alloc_pinned_with_flags(len, 0) }, "allocating page-locked memory")?;
    ready(memory.as_mut_slice(), "allocating page-locked memory")?.fill(T::default());
    Ok(memory)
}

/// Host memory that kernels read and write: results of a step.
pub(super) struct Mapped<T> {
    memory: PinnedHostSlice<T>,
    /// Taken once: asking for it synchronizes, which a capture forbids.
    at: u64,
}

impl<T: DeviceRepr + ValidAsZeroBits + Default + Copy> Mapped<T> {
    /// Room for `len` values.
    pub fn new(context: &Arc<CudaContext>, len: usize) -> Result<Self, NoCuda> {
        let memory: PinnedHostSlice<T> = pinned(context, len)?;
        let at = ready(memory.as_ptr(), "allocating page-locked memory")?.expose_provenance() as u64;
        Ok(Self { memory, at })
    }

    /// The address for kernels, which equals the host's address.
    pub fn ptr(&self) -> u64 {
        self.at
    }

    /// The values. The caller has synchronized with the kernels that wrote those that it reads.
    pub fn values(&self) -> &[T] {
        must(self.memory.as_slice(), "reading page-locked memory")
    }
}

/// Large host memory that kernels read and write: far pages. It is mapped and cleared here, then
/// page-locked, because the driver clears its own allocations by one thread, at 2 GB/s.
pub(super) struct Registered {
    memory: MmapMut,
    context: Arc<CudaContext>,
}

impl Registered {
    /// Allocates `len` bytes of zeros. `None` if that fails or they cannot be page-locked.
    pub fn new(context: &Arc<CudaContext>, len: usize) -> Option<Self> {
        let mut memory = MmapMut::map_anon(len).ok()?;
        // Only a hint.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        thread::scope(|scope| {
            for part in memory.chunks_mut(len.div_ceil(COPY_THREADS).max(1)) {
                // The first write to a page makes the kernel clear it.
                scope.spawn(|| part.iter_mut().step_by(FEWEST_PAGE_BYTES).for_each(|byte| *byte = 0));
            }
        });
        context.bind_to_thread().ok()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the range is mapped, and stays so until `drop` has unregistered it.
        let locked = unsafe { sys::cuMemHostRegister_v2(memory.as_mut_ptr().cast(), len, flags) };
        locked.result().ok()?;
        Some(Self { memory, context: context.clone() })
    }

    /// The address for kernels, which equals the host's address.
    pub fn ptr(&self) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64
    }

    /// The bytes. The caller has synchronized with the kernels that wrote those that it reads.
    pub fn bytes(&self) -> &[u8] {
        &self.memory
    }

    /// The bytes. The caller has synchronized with the kernels that read or wrote those that it
    /// writes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // After a GPU is lost neither succeeds, and the process ends.
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: registered by `new`; whoever frees far pages has waited for the kernels.
            let _ = unsafe { sys::cuMemHostUnregister(self.memory.as_mut_ptr().cast()) };
        }
    }
}

/// A double buffer: the host works on one half while the GPU reads or writes the other.
pub(super) struct Staging {
    halves: [(PinnedHostSlice<u8>, CudaEvent); 2],
    /// The half that is being filled, and how many bytes of it are.
    half: usize,
    filled: usize,
    /// Started by the first large copy.
    threads: OnceCell<ThreadPool>,
}

impl Staging {
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, NoCuda> {
        let half = || Ok((pinned(context, HALF_BYTES)?, ready(context.new_event(None), "creating an event")?));
        Ok(Self { halves: [half()?, half()?], half: 0, filled: 0, threads: OnceCell::new() })
    }

    /// Copies in stream order; `from` may change as soon as this returns.
    ///
    /// # Safety
    /// `to` begins at least `from.len()` bytes of memory of this GPU.
    pub unsafe fn send(&mut self, stream: &CudaStream, to: u64, from: &[u8]) {
        let mut to = to;
        for chunk in from.chunks(HALF_BYTES) {
            if self.filled + chunk.len() > HALF_BYTES {
                self.switch(stream);
            }
            let half = must(self.halves[self.half].0.as_mut_slice(), "writing page-locked memory");
            let staged = &mut half[self.filled..self.filled + chunk.len()];
            copy(&self.threads, staged, chunk);
            // SAFETY: the target is the caller's word; the source is not written again before
            // `switch` has waited for this copy.
            must(unsafe { result::memcpy_htod_async(to, staged, stream.cu_stream()) }, "copying to the GPU");
            self.filled = (self.filled + chunk.len()).next_multiple_of(ALIGN);
            to += chunk.len() as u64;
        }
    }

    /// Copies to the host in stream order and waits.
    ///
    /// # Safety
    /// `from` begins at least `to.len()` bytes of memory of this GPU.
    pub unsafe fn fetch(&mut self, stream: &CudaStream, to: &mut [u8], from: u64) {
        let mut from = from;
        let mut before: Option<&mut [u8]> = None;
        for chunk in to.chunks_mut(HALF_BYTES) {
            self.switch(stream);
            // Nothing else shares a half with what the GPU writes.
            self.filled = HALF_BYTES;
            let half = must(self.halves[self.half].0.as_mut_slice(), "writing page-locked memory");
            let staged = &mut half[..chunk.len()];
            // SAFETY: the source is the caller's word; the target is not touched before its event.
            must(unsafe { result::memcpy_dtoh_async(staged, from, stream.cu_stream()) }, "copying from the GPU");
            must(self.halves[self.half].1.record(stream), "recording an event");
            if let Some(before) = before.take() {
                self.take(1 - self.half, before);
            }
            from += chunk.len() as u64;
            before = Some(chunk);
        }
        if let Some(last) = before {
            self.take(self.half, last);
        }
    }

    /// Copies what the GPU has written to a half, once it has.
    fn take(&mut self, half: usize, to: &mut [u8]) {
        let (memory, written) = &self.halves[half];
        must(written.synchronize(), "waiting for an event");
        copy(&self.threads, to, &must(memory.as_slice(), "reading page-locked memory")[..to.len()]);
    }

    /// Switches to the other half, once the GPU has read it.
    fn switch(&mut self, stream: &CudaStream) {
        must(self.halves[self.half].1.record(stream), "recording an event");
        self.half = 1 - self.half;
        self.filled = 0;
        // An event that was never recorded is not waited for.
        must(self.halves[self.half].1.synchronize(), "waiting for an event");
    }
}

/// Copies a block, a large one on several threads.
fn copy(threads: &OnceCell<ThreadPool>, to: &mut [u8], from: &[u8]) {
    if to.len() < SHARED_BYTES {
        return to.copy_from_slice(from);
    }
    let threads = threads.get_or_init(|| ThreadPool::new(COPY_THREADS.min(cores::count())));
    let bytes = to.len();
    threads.tiles(&mut Tile::new(to, 1, bytes), 1, PART_BYTES, |_, tile| {
        let range = tile.col_range();
        tile.row_mut(0).copy_from_slice(&from[range]);
    });
}
