//! Weights in fewer bits: converts the matrices of an opened checkpoint, keeps the result in a
//! cache of its own, and reads or asks for the importance of columns, by which 4-bit codes are
//! chosen.

pub mod calibration;
pub mod convert;
mod described;
pub mod gptq;
pub mod hessian;
pub mod imatrix;
pub mod weight_cache;
mod weight_file;
