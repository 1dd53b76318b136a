//! The Hessian of a matrix's inputs and its Cholesky factor: `kernels/hessian.cu`, with the bits of
//! the processor. A panel is 16 columns of a matrix row by row, or 16 rows of a lower triangle
//! column by column.

use super::super::OutOfMemory;
use super::abi::Arg::{I32, Ptr};
use super::driver::Driver;
use super::gpu::Cuda;
use super::kernels::{BLOCK, Kernel};
use super::memory::Buf;
use crate::quant::TILE_ROWS;
use std::rc::Rc;

/// Panels of a group, whose columns are factored at a time: `GROUP` in `hessian.cu`.
const GROUP: usize = 4;
/// Rows and columns of a group, and threads that factor them: `SIDE` in `hessian.cu`.
const SIDE: usize = GROUP * TILE_ROWS;
/// Threads of a block that multiplies two groups: `THREADS` in `hessian.cu`.
const THREADS: usize = 256;

/// Sums of products of columns.
pub struct Hessian {
    driver: Rc<Driver>,
    panels: usize,
    /// A lower triangle.
    sums: Buf<f64>,
    /// The triangle whose factor is computed.
    factor: Buf<f32>,
    /// Panels of inputs.
    x: Buf<f32>,
    /// Products of a group and those behind it.
    products: Buf<f64>,
    /// The diagonal of the sums, and that of the triangle.
    diagonal: Buf<f64>,
    replaced: Buf<f32>,
    failed: Buf<i32>,
}

impl Hessian {
    /// Of `cols` columns, a multiple of 16, whose inputs come up to `rows` rows at a time.
    fn new(driver: &Rc<Driver>, cols: usize, rows: usize) -> Result<Self, OutOfMemory> {
        let panels = cols / TILE_ROWS;
        let triangle = TILE_ROWS * TILE_ROWS / 2 * panels * (panels + 1);
        Ok(Self {
            driver: driver.clone(),
            panels,
            sums: Buf::new(driver, triangle)?,
            factor: Buf::new(driver, triangle)?,
            x: Buf::new(driver, cols * rows)?,
            products: Buf::new(driver, panels.div_ceil(GROUP) * SIDE * SIDE)?,
            diagonal: Buf::new(driver, cols)?,
            replaced: Buf::new(driver, cols)?,
            failed: Buf::new(driver, 1)?,
        })
    }

    /// Adds the products of inputs' columns: `panels` of `[n, 16]`, of the same n.
    pub fn add(&mut self, panels: &[Vec<[f32; TILE_ROWS]>]) {
        assert_eq!(panels.len(), self.panels, "panels of inputs");
        let rows = panels.first().map_or(0, Vec::len);
        for (p, panel) in panels.iter().enumerate() {
            assert_eq!(panel.len(), rows, "rows of a panel");
            self.x.write(p * rows * TILE_ROWS, panel.as_flattened());
        }
        let groups = self.panels.div_ceil(GROUP);
        let args = [Ptr(self.sums.ptr()), Ptr(self.x.ptr()), I32(rows as i32), I32(self.panels as i32)];
        self.driver.launch(Kernel::HessianAdd, [groups, groups, 1], THREADS, &args);
        self.driver.wait();
    }

    /// The diagonal of the sums.
    pub fn diagonal(&self) -> Vec<f64> {
        let cols = self.panels * TILE_ROWS;
        let args = [Ptr(self.diagonal.ptr()), Ptr(self.sums.ptr()), I32(cols as i32)];
        self.driver.launch(Kernel::HessianDiagonal, [cols.div_ceil(BLOCK), 1, 1], BLOCK, &args);
        let mut out = vec![0.0; cols];
        self.diagonal.read(0, &mut out);
        out
    }

    /// The Cholesky factor of the sums with another diagonal, a lower triangle. `None` if they are
    /// not positive definite with it.
    pub fn factor(&mut self, diagonal: &[f32]) -> Option<Vec<[f32; TILE_ROWS]>> {
        let [factor, products, failed] = [self.factor.ptr(), self.products.ptr(), self.failed.ptr()].map(Ptr);
        let panels = I32(self.panels as i32);
        self.replaced.write(0, diagonal);
        self.failed.write(0, &[0]);
        let args = [factor, Ptr(self.sums.ptr()), Ptr(self.replaced.ptr())];
        self.driver.launch(Kernel::HessianRound, [self.panels, self.panels, 1], TILE_ROWS * TILE_ROWS, &args);
        let groups = self.panels.div_ceil(GROUP);
        for group in 0..groups {
            let (first, below) = (I32((group * GROUP) as i32), groups - group - 1);
            let args = [products, factor, first, panels];
            self.driver.launch(Kernel::FactorSums, [below + 1, 1, 1], THREADS, &args);
            let args = [factor, products, first, panels];
            self.driver.launch(Kernel::FactorGroup, [1, 1, 1], SIDE, &[&args[..], &[failed]].concat());
            if below > 0 {
                self.driver.launch(Kernel::FactorRows, [below, 1, 1], SIDE, &args);
            }
        }
        let mut is_failed = [0];
        self.failed.read(0, &mut is_failed);
        if is_failed != [0] {
            return None;
        }
        let mut out = vec![[0.0; TILE_ROWS]; self.factor.len() / TILE_ROWS];
        self.factor.read(0, out.as_flattened_mut());
        Some(out)
    }
}

impl Cuda {
    /// Sums of products of `cols` columns, a multiple of 16, for inputs of up to `rows` rows at a
    /// time.
    pub fn hessian(&self, cols: usize, rows: usize) -> Result<Hessian, OutOfMemory> {
        Hessian::new(&self.driver, cols, rows)
    }
}
