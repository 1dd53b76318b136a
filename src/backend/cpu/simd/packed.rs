//! Dot products with packed weights.

use super::super::thread_pool::Tile;
use super::Isa;
use crate::quant::{Code, GROUP, TILE_ROWS};
use std::ops::Range;

/// Rows of a packed matrix.
#[derive(Clone)]
pub(in super::super) struct Strips<'a> {
    code: Code,
    /// The whole matrix.
    bytes: &'a [u8],
    cols: usize,
    rows: Range<usize>,
}

impl<'a> Strips<'a> {
    pub fn new(code: Code, bytes: &'a [u8], cols: usize, rows: Range<usize>) -> Self {
        assert!(Code::fits(cols) && bytes.len() >= code.bytes(rows.end, cols), "a packed matrix of {cols} columns");
        Self { code, bytes, cols, rows }
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Decodes columns `cols`, which are whole groups, of all rows: `[rows, cols.len()]`.
    pub fn unpack(&self, cols: Range<usize>, out: &mut [f32]) {
        for (row, out) in self.rows.clone().zip(out.chunks_exact_mut(cols.len())) {
            self.code.unpack_groups(self.bytes, self.cols, row, cols.start / GROUP, out);
        }
    }
}

/// `out[i, r] = x[i] . rows[r]` for x `[out.rows, cols]`.
pub(in super::super) fn tile_dots(_isa: Isa, strips: &Strips<'_>, x: &[f32], out: &mut Tile<'_>) {
    assert!(out.cols() == strips.len() && x.len() >= out.rows() * strips.cols, "shapes of packed dot products");
    assert!(strips.rows.start.is_multiple_of(TILE_ROWS), "packed dot products of whole strips");
    let mut row = vec![0.0; strips.cols];
    for (r, at) in strips.rows.clone().enumerate() {
        strips.code.unpack_groups(strips.bytes, strips.cols, at, 0, &mut row);
        for i in 0..out.rows() {
            let x = &x[i * strips.cols..(i + 1) * strips.cols];
            let mut lanes = [0.0; 16];
            for (x, w) in x.as_chunks::<16>().0.iter().zip(row.as_chunks::<16>().0) {
                lanes.iter_mut().zip(x.iter().zip(w)).for_each(|(l, (x, w))| *l += x * w);
            }
            out.row_mut(i)[r] = lanes.iter().sum();
        }
    }
}
