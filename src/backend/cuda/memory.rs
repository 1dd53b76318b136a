//! Typed memory of the card: buffers, activations, weights. Each holds the driver it came from.

use super::super::{OutOfMemory, Plain};
use super::driver::Driver;
use crate::tensor::{DType, Tensor};
use std::marker::PhantomData;
use std::mem::size_of;
use std::rc::Rc;

/// `len` values of `T`, zero at first.
pub struct Buf<T> {
    driver: Rc<Driver>,
    at: u64,
    len: usize,
    of: PhantomData<T>,
}

impl<T: Plain> Buf<T> {
    pub(super) fn new(driver: &Rc<Driver>, len: usize) -> Result<Self, OutOfMemory> {
        let at = driver.alloc(len * size_of::<T>())?;
        Ok(Self { driver: driver.clone(), at, len, of: PhantomData })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn write(&mut self, at: usize, src: &[T]) {
        assert!(at + src.len() <= self.len, "{} values at {at} of a buffer of {}", src.len(), self.len);
        self.driver.copy_in(self.from(at), bytemuck::cast_slice(src));
    }

    pub(super) fn copy(&mut self, from: usize, to: usize, len: usize) {
        assert!(from.max(to) + len <= self.len && from.abs_diff(to) >= len, "{len} values from {from} to {to}");
        self.driver.copy_within(self.from(to), self.from(from), len * size_of::<T>());
    }

    pub(super) fn read(&self, at: usize, dst: &mut [T]) {
        assert!(at + dst.len() <= self.len, "{} values at {at} of a buffer of {}", dst.len(), self.len);
        self.driver.copy_out(bytemuck::cast_slice_mut(dst), self.from(at));
    }
}

impl<T> Buf<T> {
    /// Address on the card.
    pub(super) fn ptr(&self) -> u64 {
        self.at
    }

    pub(super) fn from(&self, index: usize) -> u64 {
        self.at + (index * size_of::<T>()) as u64
    }
}

impl<T> Drop for Buf<T> {
    fn drop(&mut self) {
        self.driver.free(self.at);
    }
}

/// f32 activations `[rows, width]`.
pub struct Acts {
    pub(super) buf: Buf<f32>,
    pub(super) width: usize,
}

impl Acts {
    pub(super) fn ptr(&self) -> u64 {
        self.buf.ptr()
    }

    pub(super) fn row(&self, row: usize) -> u64 {
        self.buf.from(row * self.width)
    }

    /// Panics where an op is asked for more rows than there are.
    pub(super) fn holds(&self, rows: usize) {
        assert!(rows * self.width <= self.buf.len(), "{rows} rows of activations for {}", self.buf.len() / self.width);
    }
}

/// A matrix `[rows, cols]` in the file's precision; in f32 where its parts differ.
pub struct Weight {
    buf: Buf<u8>,
    pub(super) dtype: DType,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl Weight {
    /// Copies the parts one below the other, straight from where they lie.
    pub(super) fn new(driver: &Rc<Driver>, parts: &[Tensor]) -> Result<Self, OutOfMemory> {
        let cols = parts[0].shape[1];
        assert!(parts.iter().all(|p| p.shape.len() == 2 && p.shape[1] == cols), "stacked weights differ in width");
        let rows = parts.iter().map(|p| p.shape[0]).sum();
        let same = parts.iter().all(|p| p.dtype == parts[0].dtype);
        let dtype = if same { parts[0].dtype } else { DType::F32 };
        let mut buf = Buf::new(driver, rows * cols * dtype.size_bytes())?;
        let mut at = 0;
        for part in parts {
            let len = part.len() * dtype.size_bytes();
            if same {
                buf.write(at, part.bytes());
            } else {
                buf.write(at, bytemuck::cast_slice(&part.to_f32()));
            }
            at += len;
        }
        Ok(Self { buf, dtype, rows, cols })
    }

    pub(super) fn ptr(&self) -> u64 {
        self.buf.ptr()
    }

    /// As `DType` in `common.cuh` counts.
    pub(super) fn dtype_number(&self) -> i32 {
        match self.dtype {
            DType::F32 => 0,
            DType::F16 => 1,
            DType::Bf16 => 2,
        }
    }
}
