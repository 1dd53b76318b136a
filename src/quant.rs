//! Storage of a weight matrix in 8 or 4 bits. One file per code: the meaning of a group's 16-bit
//! word, and how its codes are chosen. [`file`] has the codes of GGUF files, which have other
//! groups; [`formats`] has the table of `--weights`. Pure maths. CUDA twin: `kernels/codes.cuh`;
//! f32 kernels of the CPU: `backend/cpu/simd/packed.rs`.
//!
//! A group is 64 columns of one row. Its values are `scale * (code - zero)`, in f32 with one
//! rounding; a word holds scale and zero point, of the group or of one of its halves. Sums over a
//! group are f32 in a fixed order and never fused, so every machine chooses the same bytes.
//!
//! A packed matrix is a list of strips of 16 rows, the last padded with zero rows:
//!
//! ```text
//! strip   [cols / 64] tiles of 512 bytes, then as many of the low bits, then words
//! tile    16 rows x 64 columns, four bits of each code: chunks (4 g + t) of 16 bytes, g = 0..8, t = 0..4
//! chunk   columns 16 t .. 16 t + 15 of row g, then of row g + 8
//! u32     8 columns: nibble i is column 2 i, nibble i + 4 is column 2 i + 1
//! low     of 8-bit codes the low nibbles, likewise; of 6-bit codes two bits: chunks of 8 bytes, whose
//!         u32 hold 16 columns: byte i has bits 2 j of the codes whose nibbles are in byte i of
//!         both u32, j = 0 and 1 of the first u32's even and odd nibbles, 2 and 3 of the second's
//! halves  columns 8 i .. 8 i + 7 are of the first half if i is even, else of the second
//! words   [cols / 256, rounded up] x [g] x [4 tiles] x { row g, row g + 8 } x [1 or both halves];
//!         words of tiles that do not exist are 0
//! ```

mod code;
mod feedback;
pub mod file;
mod formats;
mod grid;
mod group;
mod halves;
mod layout;
mod q4;
mod q8;
mod vectorize;

pub use code::Code;
pub use feedback::{Column, Factor, ROWS, add_products};
pub use formats::{EXACT_FIRST, Part, Weights, formats, has_kernels_of_formats, natural};
pub use group::{EIGHT, Form, GROUP, TILE_ROWS};
pub use vectorize::vectorized;

#[cfg(test)]
mod tests;
