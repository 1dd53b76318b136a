//! Typed device memory: buffers, activations, weights. Each holds the driver it came from.

use super::super::{OutOfMemory, Plain};
use super::driver::Driver;
use crate::quant::{Code, TILE_ROWS};
use crate::tensor::{DType, Format, Tensor};
use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::size_of;
use std::ops::RangeInclusive;
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

/// Rows of an image: `IMAGE_ROWS` in `image.cuh`.
pub(super) const IMAGE_ROWS: usize = 32;
/// Rows for which `packed_wgmma` is faster than what reads rows.
pub(super) const IMAGE_RANGE: RangeInclusive<usize> = 17..=IMAGE_ROWS;

/// A copy of activations in the order in which `packed_wgmma` reads them (`image.cuh`).
struct Image {
    buf: Buf<u8>,
    /// Number of rows in the image if it is up to date; else 0.
    rows: Cell<usize>,
}

/// Neighbours whose squares are added up: `SQUARED` in `gemm_decode.cu`.
const SQUARED: usize = 16;
/// Rows up to which norms are left to GEMMs.
pub(super) const UNSCALED_ROWS: usize = 32;

/// Activations `[rows, width]`, in f32 or in bf16.
pub struct Acts {
    buf: Buf<u8>,
    image: Option<Image>,
    /// Room for sums of squares over [`SQUARED`] neighbouring values of a normed row, if the
    /// small-batch GEMM that reads the rows applies the norm's factors (`gemm_decode.cu`).
    squares: Option<Buf<f32>>,
    pub(super) width: usize,
    pub(super) bf16: bool,
}

impl Acts {
    pub(super) fn new(driver: &Rc<Driver>, rows: usize, width: usize, bf16: bool) -> Result<Self, OutOfMemory> {
        let value = if bf16 { size_of::<u16>() } else { size_of::<f32>() };
        Ok(Self { buf: Buf::new(driver, rows * width * value)?, image: None, squares: None, width, bf16 })
    }

    /// Makes room for an image of the first rows.
    pub(super) fn add_image(&mut self, driver: &Rc<Driver>) -> Result<(), OutOfMemory> {
        let buf = Buf::new(driver, IMAGE_ROWS * self.width * size_of::<u16>())?;
        self.image = Some(Image { buf, rows: Cell::new(0) });
        Ok(())
    }

    /// Makes room for the squares of a small batch, if a norm of that width can be left to GEMMs.
    pub(super) fn add_squares(&mut self, driver: &Rc<Driver>) -> Result<(), OutOfMemory> {
        // GEMMs read four sums at once.
        if self.width.is_multiple_of(4 * SQUARED) {
            self.squares = Some(Buf::new(driver, UNSCALED_ROWS * self.width / SQUARED)?);
        }
        Ok(())
    }

    /// Address of the room for squares of up to [`UNSCALED_ROWS`] rows, if there is any.
    pub(super) fn squares(&self) -> Option<u64> {
        self.squares.as_ref().map(Buf::ptr)
    }

    /// Address of the image, for a kernel that fills it together with `rows` rows; 0 if it has no
    /// reader.
    pub(super) fn image_to_fill(&self, rows: usize) -> u64 {
        let image = self.image.as_ref().filter(|_| IMAGE_RANGE.contains(&rows));
        image.map_or(0, |image| {
            image.rows.set(rows);
            image.buf.ptr()
        })
    }

    /// Address of the image of `rows` rows, if there is one, and whether it is up to date.
    pub(super) fn image(&self, rows: usize) -> Option<(u64, bool)> {
        let image = self.image.as_ref().filter(|_| IMAGE_RANGE.contains(&rows))?;
        Some((image.buf.ptr(), image.rows.replace(rows) == rows))
    }

    /// Called before `rows` rows are written: checks that [`Self::holds`] them, and marks an image
    /// as outdated.
    pub(super) fn fills(&self, rows: usize) {
        self.holds(rows);
        self.image.iter().for_each(|image| image.rows.set(0));
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

    /// Like [`Self::holds`], and panics unless the activations are f32.
    pub(super) fn holds_f32(&self, rows: usize) {
        assert!(!self.bf16, "activations have to be f32");
        self.holds(rows);
    }

    pub(super) fn write(&mut self, values: &[f32]) {
        self.fills(0);
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

/// How a weight is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// Row-major elements.
    Plain(DType),
    /// Strips of 16 rows (`crate::quant`), of the codes that its [`Part`]s have.
    Packed,
}

/// Rows of a packed weight, one after the other, that have one code.
pub(super) struct Part {
    pub code: Code,
    pub first: usize,
    pub rows: usize,
    /// Offset of its strips.
    pub at: usize,
}

/// A weight matrix `[rows, cols]` in the checkpoint's format, or in f32 if stacked plain tensors
/// differ in dtype.
pub struct Weight {
    buf: Buf<u8>,
    pub(super) stored: Stored,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// If it is packed, its parts: neighbours have different codes.
    pub(super) parts: Vec<Part>,
}

impl Weight {
    /// Copies `parts`, stacked by rows, directly from the mapped file. All parts are plain, or all
    /// are packed.
    pub(super) fn new(driver: &Rc<Driver>, parts: &[Tensor]) -> Result<Self, OutOfMemory> {
        let cols = parts[0].shape[1];
        assert!(parts.iter().all(|p| p.shape.len() == 2 && p.shape[1] == cols), "stacked weights differ in width");
        let rows = parts.iter().map(|p| p.shape[0]).sum();
        let stored = |part: &Tensor| match part.format {
            Format::Plain(dtype) => Stored::Plain(dtype),
            Format::Packed(_) => Stored::Packed,
            Format::Rows(_) => panic!("{} was not converted", part.name),
        };
        let same = parts.iter().all(|p| stored(p) == stored(&parts[0]));
        let stored = if same { stored(&parts[0]) } else { Stored::Plain(DType::F32) };
        let bytes = match stored {
            Stored::Plain(dtype) => rows * cols * dtype.size_bytes(),
            Stored::Packed => parts.iter().map(|p| p.format.bytes(&p.shape)).sum(),
        };
        let of_codes = packed_parts(parts);
        let mut buf = Buf::new(driver, bytes)?;
        let mut at = 0;
        for part in parts {
            if same {
                buf.write(at, part.bytes());
                at += part.bytes().len();
            } else {
                assert!(part.dtype().is_some(), "plain and packed weights are stacked");
                buf.write(at, bytemuck::cast_slice(&part.to_f32()));
                at += part.len() * DType::F32.size_bytes();
            }
        }
        Ok(Self { buf, stored, rows, cols, parts: of_codes })
    }

    pub(super) fn ptr(&self) -> u64 {
        self.buf.ptr()
    }

    /// Whether tensor-core kernels multiply with it.
    pub(super) fn on_tensor_cores(&self) -> bool {
        match self.stored {
            Stored::Plain(dtype) => dtype == DType::Bf16 && self.cols.is_multiple_of(8),
            Stored::Packed => true,
        }
    }
}

/// The codes of stacked matrices, none if they are plain.
fn packed_parts(parts: &[Tensor]) -> Vec<Part> {
    let (mut out, mut at, mut first): (Vec<Part>, usize, usize) = (Vec::new(), 0, 0);
    for part in parts {
        let Format::Packed(code) = part.format else { return Vec::new() };
        assert!(first.is_multiple_of(TILE_ROWS), "stacked packed weights are whole strips");
        let rows = part.shape[0];
        match out.last_mut() {
            Some(last) if last.code == code => last.rows += rows,
            _ => out.push(Part { code, first, rows, at }),
        }
        (at, first) = (at + code.bytes(rows, part.shape[1]), first + rows);
    }
    out
}

/// The value of `DType` in `common.cuh`.
pub(super) fn dtype_number(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Bf16 => 2,
    }
}
