//! Storage of a weight matrix in 8 or 4 bits. One file per code: the meaning of a group's 16-bit
//! word, and how its codes are chosen. [`file`] has the codes of GGUF files, which have other
//! groups; [`formats`] has the table of `--weights`. Pure maths. CUDA twin: `kernels/codes.cuh`;
//! f32 kernels of the CPU: `backend/cpu/simd/packed.rs`.
//!
//! A group is 64 columns of one row. Its values are `scale * (code - zero)`, in f32 with one
//! rounding; the word holds scale and zero point. Sums over a group are f32 in a fixed order and
//! never fused, so every machine chooses the same bytes.
//!
//! A packed matrix is a list of strips of 16 rows, the last padded with zero rows:
//!
//! ```text
//! strip   planes x [cols / 64] tiles of 512 bytes, then words
//! plane   q4 has one; q8 has the high nibbles, then the low ones
//! tile    16 rows x 64 columns: chunks (4 g + t) of 16 bytes, g = 0..8, t = 0..4
//! chunk   columns 16 t .. 16 t + 15 of row g, then of row g + 8
//! u32     8 columns: nibble i is column 2 i, nibble i + 4 is column 2 i + 1
//! words   [cols / 256, rounded up] x [g] x [4 tiles] x { row g, row g + 8 }; words of tiles that do not exist are 0
//! ```

mod code;
mod feedback;
pub mod file;
mod formats;
mod group;
mod layout;
mod q4;
mod q4k;
mod q8;
mod vectorize;

pub use code::Code;
pub use feedback::{Column, Factor, add_products};
pub use formats::{EXACT_FIRST, Weights, formats, has_kernels_of_formats, natural};
pub use group::{GROUP, TILE_ROWS};
pub use vectorize::vectorized;

#[cfg(test)]
mod tests;
