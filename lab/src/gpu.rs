//! The GPU that `check` and `speed` work on.

use anyhow::Result;
use dmschat::backend::Report as _;
use dmschat::backend::cuda::{Cuda, CudaOptions, free_bytes};
use dmschat::cli::args::Common;
use dmschat::cli::output::{self, wrong_use};
use dmschat::config::Device;
use std::time::Instant;

/// The index of the GPU to work on.
pub fn index(common: &Common) -> Result<u32> {
    match common.device {
        None | Some(Device::Auto | Device::Cuda(None)) => Ok(0),
        Some(Device::Cuda(Some(index))) => Ok(index),
        Some(Device::Cpu) => Err(wrong_use("check and speed work on a GPU: give --device cuda or cuda:N")),
    }
}

/// Opens the GPU of that index with `options`, and prints its name and what its memory holds
/// already.
pub fn open(index: u32, options: &CudaOptions) -> Result<Cuda> {
    let free = free_bytes(index);
    let started = Instant::now();
    let cuda = Cuda::open(index, options).map_err(|why| wrong_use(format!("--device cuda: {why}")))?;
    cuda.load_all_kernels()?;
    let ms = started.elapsed().as_millis();
    let (_, all) = cuda.memory();
    output::out(&format!("{}, {} MiB, kernels loaded in {ms} ms\n", cuda.about().name, all >> 20))?;
    if let Some(free) = free {
        output::out(&format!("in use by an empty context and other programs: {} MiB\n", (all - free) >> 20))?;
    }
    Ok(cuda)
}
