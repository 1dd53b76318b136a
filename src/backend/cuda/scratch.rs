//! Scratch between the kernels of a step, which grows and is kept.

use super::super::OutOfMemory;
use super::abi::SAMPLE_ROW_BYTES;
use super::driver::Driver;
use super::memory::{Buf, Stored, Weight};
use crate::quant::TILE_ROWS;
use std::rc::Rc;

/// Bytes of scratch for unpacked strips; the second value is for a GPU with less than
/// [`SMALL_GPU_BYTES`] of memory.
const SCRATCH_BYTES: usize = 64 << 20;
const SMALL_SCRATCH_BYTES: usize = 16 << 20;
const SMALL_GPU_BYTES: u64 = 20 << 30;

/// Maximum unpacked rows, which is the room for their biases.
pub(super) const MAX_ROWS: usize = 8192;
/// Maximum blocks along the rows of a weight whose columns are split.
pub(super) const MAX_DIVIDED: usize = 128;

/// Scratch of the rows that are sampled in one step.
#[derive(Default)]
pub(super) struct Sampling {
    memory: Option<Buf<u8>>,
    rows: usize,
}

impl Sampling {
    /// Makes room for `rows` rows.
    pub fn reserve(&mut self, driver: &Rc<Driver>, rows: usize) -> Result<(), OutOfMemory> {
        if rows > self.rows {
            self.memory = Some(Buf::new(driver, rows * SAMPLE_ROW_BYTES)?);
            self.rows = rows;
        }
        Ok(())
    }

    /// Address of the scratch of `n` rows.
    pub fn of(&self, n: usize) -> u64 {
        assert!(n <= self.rows, "{n} rows are sampled, scratch for {}", self.rows);
        self.memory.as_ref().expect("reserved before").ptr()
    }
}

/// Scratch between two kernels: strips in bf16, followed by the biases of their rows, or partial
/// sums of the blocks of `packed_wgmma.cu`.
#[derive(Default)]
pub(super) struct Unpacked {
    memory: Option<Buf<u8>>,
    pub bytes: usize,
    /// Number of blocks that have stored their sums. All zeros between two kernels.
    arrivals: Option<Buf<i32>>,
}

impl Unpacked {
    /// Reserves memory for the strips of a weight that one launch unpacks.
    pub fn reserve(&mut self, driver: &Rc<Driver>, weight: &Weight) -> Result<(), OutOfMemory> {
        if let Stored::Plain(_) = weight.stored {
            return Ok(());
        }
        let all = weight.rows.next_multiple_of(2 * TILE_ROWS) * weight.cols * size_of::<u16>();
        let (_, total) = driver.memory();
        let most = if total < SMALL_GPU_BYTES { SMALL_SCRATCH_BYTES } else { SCRATCH_BYTES };
        let bytes = all.min(most).max(2 * TILE_ROWS * weight.cols * size_of::<u16>());
        if bytes > self.bytes {
            self.memory = Some(Buf::new(driver, bytes + MAX_ROWS * size_of::<f32>())?);
            self.bytes = bytes;
        }
        if self.arrivals.is_none() {
            self.arrivals = Some(Buf::new(driver, MAX_DIVIDED)?);
        }
        Ok(())
    }

    /// Addresses of the sums and of the arrival counts, if `bytes` bytes of sums fit.
    pub fn sums(&self, bytes: usize) -> Option<[u64; 2]> {
        let arrivals = self.arrivals.as_ref().filter(|_| bytes <= self.bytes)?;
        Some([self.at(), arrivals.ptr()])
    }

    pub fn at(&self) -> u64 {
        self.memory.as_ref().expect("reserved with the weight").ptr()
    }

    pub fn biases_at(&self) -> u64 {
        self.at() + self.bytes as u64
    }
}
