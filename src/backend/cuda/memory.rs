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

/// Activations `[rows, width]`, in f32 or rounded to bf16.
pub struct Acts {
    buf: Buf<u8>,
    pub(super) width: usize,
    pub(super) rounded: bool,
}

impl Acts {
    pub(super) fn new(driver: &Rc<Driver>, rows: usize, width: usize, rounded: bool) -> Result<Self, OutOfMemory> {
        let value = if rounded { size_of::<u16>() } else { size_of::<f32>() };
        Ok(Self { buf: Buf::new(driver, rows * width * value)?, width, rounded })
    }

    pub(super) fn ptr(&self) -> u64 {
        self.buf.ptr()
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.width * if self.rounded { size_of::<u16>() } else { size_of::<f32>() }
    }

    pub(super) fn row(&self, row: usize) -> u64 {
        self.buf.from(row * self.row_bytes())
    }

    /// Rows there is room for.
    pub(super) fn rows(&self) -> usize {
        self.buf.len() / self.row_bytes().max(1)
    }

    /// Panics where an op is asked for more rows than there are.
    pub(super) fn holds(&self, rows: usize) {
        assert!(rows <= self.rows(), "{rows} rows of activations for {}", self.rows());
    }

    /// As [`Self::holds`], of an op that only knows f32.
    pub(super) fn holds_exact(&self, rows: usize) {
        assert!(!self.rounded, "activations in f32 are wanted");
        self.holds(rows);
    }

    pub(super) fn write(&mut self, values: &[f32]) {
        if self.rounded {
            let rounded: Vec<u16> = values.iter().map(|&x| half::bf16::from_f32(x).to_bits()).collect();
            self.buf.write(0, bytemuck::cast_slice(&rounded));
        } else {
            self.buf.write(0, bytemuck::cast_slice(values));
        }
    }

    pub(super) fn read(&self, values: &mut [f32]) {
        if self.rounded {
            let mut rounded = vec![0u16; values.len()];
            self.buf.read(0, bytemuck::cast_slice_mut(&mut rounded));
            let wide = rounded.into_iter().map(|x| half::bf16::from_bits(x).to_f32());
            values.iter_mut().zip(wide).for_each(|(to, x)| *to = x);
        } else {
            self.buf.read(0, bytemuck::cast_slice_mut(values));
        }
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
