//! Speed of large matmuls: the peak that a model of latency needs.

use anyhow::Result;
use dmschat::backend::{Linear, Measure, Use};
use dmschat::tensor::{DType, Tensor};
use std::sync::Arc;

/// Sizes of square bf16 matmuls, from which on the next one is not tried when one takes that long.
const SIZES: [usize; 6] = [128, 256, 512, 1024, 2048, 4096];
const LONG_US: f64 = 5_000.0;

/// Floating-point operations per second of the fastest of several matmuls with bf16 weights.
pub fn matmul_flops_per_s<B: Measure>(b: &B) -> Result<f64> {
    let mut best = 0.0f64;
    for n in SIZES {
        let us = matmul_us(b, n)?;
        best = best.max(2.0 * (n as f64).powi(3) / us * 1e6);
        if us > LONG_US {
            break;
        }
    }
    Ok(best)
}

/// Microseconds of a matmul of `n x n x n`.
fn matmul_us<B: Measure>(b: &B, n: usize) -> Result<f64> {
    // bf16 values of about 1: the speed does not depend on them.
    let bytes: Vec<u8> = (0..n * n).flat_map(|i| [(i * 37 % 128) as u8, 0x3f]).collect();
    let tensor = Tensor::new("square", DType::Bf16, vec![n, n], Arc::new(bytes), 0..2 * n * n);
    let weight = b.weight(&[tensor])?;
    let mut x = b.acts(n, n, Use::Input(&[&weight]))?;
    b.write_acts(&mut x, &vec![1.0; n * n]);
    Ok(b.time_us(1, &mut b.acts(n, n, Use::Any)?, |_| {}, |y, _| b.linear(y, &x, Linear::plain(&weight), n)))
}
