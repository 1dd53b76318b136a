//! Vector kernels of the CPU: dot products with stored rows, weighted sums of stored rows, GEMM
//! tiles, and the element-wise maths between them.
//!
//! Every kernel is written once over [`vector::Vector`] (or as a plain loop that the compiler
//! vectorises) and compiled for AVX-512, AVX2 + FMA, NEON, and portable. An [`Isa`] names one
//! that this machine can run; it can only be made by CPU detection, which makes the calls sound.
//! This backend uses `unsafe` here and in `thread_pool` only.
//!
//! [`Isa::EXACT`] is another: eight lanes with fused additions, which AVX2 and NEON have and plain
//! code imitates, so that its results have the same bits on every machine. What quantization is
//! calibrated with is computed in it.

pub(super) mod dots;
mod file_codes;
#[cfg(target_arch = "x86_64")]
mod integer;
mod isa;
pub(super) mod maths;
pub(super) mod matmul;
#[cfg(target_arch = "aarch64")]
mod neon;
pub(super) mod packed;
mod strip;
mod vector;

pub(super) use isa::{BLOCK_COLS, Format, Isa};
use isa::{Set, array_of, by_isa};
