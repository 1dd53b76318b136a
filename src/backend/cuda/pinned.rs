//! Host memory that the card reads and writes by itself. What goes to the card is copied here first, so
//! that nobody waits for it; what a step gives back is written here by its last kernel.

use super::driver::{must, ready};
use super::probe::NoCuda;
use cudarc::driver::sys;
use std::ptr::null_mut;

/// Bytes of each half of the staging memory.
const HALF_BYTES: usize = 4 << 20;
/// Copies begin at multiples of this.
const ALIGN: usize = 64;

/// Page-locked memory, zero at first. The card knows it by the same address.
pub(super) struct Pinned {
    at: *mut u8,
    bytes: usize,
}

impl Pinned {
    /// A context is current.
    pub fn new(bytes: usize) -> Result<Self, NoCuda> {
        let mut at = null_mut();
        // SAFETY: a context is current; the pointer is to a live address.
        ready(unsafe { sys::cuMemHostAlloc(&mut at, bytes, 0) }, "taking memory for copies to it")?;
        // SAFETY: `bytes` at `at` were just allocated.
        unsafe { at.cast::<u8>().write_bytes(0, bytes) };
        Ok(Self { at: at.cast(), bytes })
    }

    pub fn ptr(&self) -> u64 {
        self.at.expose_provenance() as u64
    }

    /// The first `n` words. The caller has waited for the kernel that wrote them.
    pub fn words(&self, n: usize) -> Vec<i32> {
        assert!(n * size_of::<i32>() <= self.bytes, "{n} words of {} bytes", self.bytes);
        // SAFETY: the words lie inside, the memory is aligned to pages; volatile, for the card wrote them.
        (0..n).map(|i| unsafe { self.at.cast::<i32>().add(i).read_volatile() }).collect()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: it came from `cuMemHostAlloc` and is freed once; its owner has waited for the card.
        let _ = unsafe { sys::cuMemFreeHost(self.at.cast()) };
    }
}

/// Two halves: one is filled while the card reads the other.
pub(super) struct Staging {
    halves: [(Pinned, sys::CUevent); 2],
    /// The half that is being filled, and how far.
    half: usize,
    filled: usize,
}

impl Staging {
    /// A context is current.
    pub fn new() -> Result<Self, NoCuda> {
        let half = || {
            let mut event = null_mut();
            let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
            // SAFETY: a context is current; the pointer is to a live handle.
            ready(unsafe { sys::cuEventCreate(&mut event, flags) }, "making an event")?;
            Ok((Pinned::new(HALF_BYTES)?, event))
        };
        Ok(Self { halves: [half()?, half()?], half: 0, filled: 0 })
    }

    /// Copies in stream order; `from` may change as soon as this returns. The caller vouches that `to`
    /// begins at least `from.len()` bytes of memory of this card.
    pub fn send(&mut self, stream: sys::CUstream, to: u64, from: &[u8]) {
        let mut to = to;
        for part in from.chunks(HALF_BYTES) {
            if self.filled + part.len() > HALF_BYTES {
                self.turn(stream);
            }
            // SAFETY: the part fits behind what is filled, and no copy that has not ended reads from there:
            // `turn` waited for those of this half. The target is the caller's word.
            let copied = unsafe {
                let at = self.halves[self.half].0.at.add(self.filled);
                at.copy_from_nonoverlapping(part.as_ptr(), part.len());
                sys::cuMemcpyHtoDAsync_v2(to, at.cast(), part.len(), stream)
            };
            must(copied, "copying to it");
            self.filled = (self.filled + part.len()).next_multiple_of(ALIGN);
            to += part.len() as u64;
        }
    }

    /// Turns to the other half, once the card has read it.
    fn turn(&mut self, stream: sys::CUstream) {
        let full = self.halves[self.half].1;
        self.half = 1 - self.half;
        self.filled = 0;
        // SAFETY: both events and the stream are live. An event that was never recorded is no wait.
        unsafe {
            must(sys::cuEventRecord(full, stream), "recording an event");
            must(sys::cuEventSynchronize(self.halves[self.half].1), "waiting for an event");
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        for (_, event) in &self.halves {
            // SAFETY: the event is destroyed once; the driver that owns this has waited for its stream.
            let _ = unsafe { sys::cuEventDestroy_v2(*event) };
        }
    }
}
