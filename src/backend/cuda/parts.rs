//! Activations as the sum of two bf16 numbers, which is how tensor cores take them: split once for a
//! product, not once for every tile of it.

use super::super::OutOfMemory;
use super::BLOCK;
use super::driver::Arg::{Ptr, U64};
use super::driver::Driver;
use super::kernels::Kernel;
use super::memory::Buf;
use std::rc::Rc;

/// Values that one thread of `split_rows` takes.
const AT_ONCE: usize = 4;

/// Room for the rows of one product; the next one in stream order takes it over.
#[derive(Default)]
pub(super) struct Parts {
    memory: Option<(Buf<u16>, Buf<u16>)>,
    len: usize,
}

impl Parts {
    /// Room for `len` values: rows of a step times columns of the widest weight.
    pub fn reserve(&mut self, driver: &Rc<Driver>, len: usize) -> Result<(), OutOfMemory> {
        if len > self.len {
            self.memory = Some((Buf::new(driver, len)?, Buf::new(driver, len)?));
            self.len = len;
        }
        Ok(())
    }

    /// Addresses of the high and the low parts of `len` values at `x`.
    pub fn split(&self, driver: &Driver, x: u64, len: usize) -> (u64, u64) {
        assert!(len <= self.len, "{len} activations in room for {}: weights are loaded before them", self.len);
        let (high, low) = self.memory.as_ref().expect("there is room");
        let args = [Ptr(high.ptr()), Ptr(low.ptr()), Ptr(x), U64(len as u64)];
        driver.launch(Kernel::SplitRows, [len.div_ceil(AT_ONCE * BLOCK), 1, 1], BLOCK, &args);
        (high.ptr(), low.ptr())
    }
}
