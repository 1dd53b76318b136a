//! Typed device memory: buffers, activations, weights. Each holds the driver it came from.

use super::super::{OutOfMemory, Plain};
use super::driver::Driver;
use crate::tensor::{DType, Tensor};
use std::marker::PhantomData;
use std::mem::size_of;
use std::rc::Rc;

/// A device buffer of `len` values of `T`, zero at first. Freed when dropped.
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
    /// Device address.
    pub(super) fn ptr(&self) -> u64 {
        self.at
    }

    /// Device address of value `index`.
    pub(super) fn from(&self, index: usize) -> u64 {
        self.at + (index * size_of::<T>()) as u64
    }
}

impl<T> Drop for Buf<T> {
    fn drop(&mut self) {
        self.driver.free(self.at);
    }
}

/// Activations `[rows, width]`, in f32 or in bf16.
pub struct Acts {
    buf: Buf<u8>,
    pub(super) width: usize,
    pub(super) bf16: bool,
}

impl Acts {
    pub(super) fn new(driver: &Rc<Driver>, rows: usize, width: usize, bf16: bool) -> Result<Self, OutOfMemory> {
        let value = if bf16 { size_of::<u16>() } else { size_of::<f32>() };
        Ok(Self { buf: Buf::new(driver, rows * width * value)?, width, bf16 })
    }

    pub(super) fn ptr(&self) -> u64 {
        self.buf.ptr()
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.width * if self.bf16 { size_of::<u16>() } else { size_of::<f32>() }
    }

    pub(super) fn row(&self, row: usize) -> u64 {
        self.buf.from(row * self.row_bytes())
    }

    /// Rows that fit.
    pub(super) fn rows(&self) -> usize {
        self.buf.len() / self.row_bytes().max(1)
    }

    /// Panics if fewer than `rows` rows fit.
    pub(super) fn holds(&self, rows: usize) {
        assert!(rows <= self.rows(), "{rows} rows of activations for {}", self.rows());
    }

    /// As [`Self::holds`], and panics unless the activations are f32.
    pub(super) fn holds_f32(&self, rows: usize) {
        assert!(!self.bf16, "activations have to be f32");
        self.holds(rows);
    }

    pub(super) fn write(&mut self, values: &[f32]) {
        if self.bf16 {
            let rounded: Vec<u16> = values.iter().map(|&x| half::bf16::from_f32(x).to_bits()).collect();
            self.buf.write(0, bytemuck::cast_slice(&rounded));
        } else {
            self.buf.write(0, bytemuck::cast_slice(values));
        }
    }

    pub(super) fn read(&self, values: &mut [f32]) {
        if self.bf16 {
            let mut rounded = vec![0u16; values.len()];
            self.buf.read(0, bytemuck::cast_slice_mut(&mut rounded));
            let wide = rounded.into_iter().map(|x| half::bf16::from_bits(x).to_f32());
            values.iter_mut().zip(wide).for_each(|(to, x)| *to = x);
        } else {
            self.buf.read(0, bytemuck::cast_slice_mut(values));
        }
    }
}

/// A row-major weight matrix `[rows, cols]` in the checkpoint's dtype; in f32 if stacked tensors differ in dtype.
pub struct Weight {
    buf: Buf<u8>,
    pub(super) dtype: DType,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl Weight {
    /// Copies `parts`, stacked by rows, straight from the mapped file.
    pub(super) fn new(driver: &Rc<Driver>, parts: &[Tensor]) -> Result<Self, OutOfMemory> {
        let cols = parts[0].shape[1];
        assert!(parts.iter().all(|p| p.shape.len() == 2 && p.shape[1] == cols), "stacked weights differ in width");
        let rows = parts.iter().map(|p| p.shape[0]).sum();
        let dtypes = || parts.iter().map(|p| p.dtype().expect("weights in a plain format"));
        let same = dtypes().all(|dtype| Some(dtype) == parts[0].dtype());
        let dtype = dtypes().next().filter(|_| same).unwrap_or(DType::F32);
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

    /// The value of `DType` in `common.cuh`.
    pub(super) fn dtype_number(&self) -> i32 {
        match self.dtype {
            DType::F32 => 0,
            DType::F16 => 1,
            DType::Bf16 => 2,
        }
    }
}
