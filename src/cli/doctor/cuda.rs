//! `dmschat doctor --device cuda [--all]`: compares every kernel with the CPU's op and prints a table. `--all` adds
//! whole models and the speed of every op. `--part` and `--short` bound the time of a run.

use crate::backend::Profile;
use crate::backend::cuda::{Cuda, CudaOptions, free_bytes};
use crate::checkpoint::Checkpoint;
use crate::checks::{self, Finding, Part, Report, answers, memory, models, speed, steps};
use crate::cli::args::DoctorArgs;
use crate::cli::devices::cuda_options;
use crate::cli::output;
use crate::config::Gemm;
use anyhow::Result;
use std::time::Instant;

/// Runs all checks on the GPU of that index. The exit code is 1 if one failed.
pub fn check(index: u32, args: &DoctorArgs) -> Result<u8> {
    let free = free_bytes(index);
    let started = Instant::now();
    let own = |graphs| cuda_options(graphs, Gemm::Own);
    let careful = CudaOptions { wait_always: true, ..own(false) };
    let cuda = Cuda::open(index, &careful).map_err(|why| output::wrong_use(format!("--device cuda: {why}")))?;
    cuda.load_all_kernels()?;
    let ms = started.elapsed().as_millis();
    let (_, all) = cuda.memory();
    output::out(&format!("{}, {} MiB, kernels loaded in {ms} ms\n", cuda.describe(), all >> 20))?;
    if let Some(free) = free {
        output::out(&format!("in use by an empty context and other programs: {} MiB\n", (all - free) >> 20))?;
    }
    if args.speed {
        drop(cuda);
        time_ops(index)?;
        return Ok(output::OK);
    }
    let (mut seen, mut missed) = (0, 0);
    let mut each = |finding: Finding| {
        seen += 1;
        missed += usize::from(!finding.fine());
        let mark = if finding.fine() { "ok" } else { "!!" };
        let why = finding.broken.map(|b| format!(": {b}")).unwrap_or_default();
        let ms = finding.time.as_secs_f64() * 1e3;
        let line = format!(
            "{mark}  {:<56} {:>9.1e} of {:>7.0e} {ms:>9.1} ms{why}\n",
            finding.name, finding.error, finding.limit
        );
        // A closed stdout is reported by the last write.
        let _ = output::out(&line);
    };
    let report = &mut Report::new(args.part.unwrap_or(Part::ALL), args.short, &mut each);
    checks::run_all(&cuda, report);
    memory::run_all(&cuda, report);
    drop(cuda);
    // The GEMMs again by the library, if there is one.
    let with_library = Cuda::open(index, &cuda_options(true, Gemm::Auto))?;
    if let Some(library) = with_library.library() {
        output::out(&format!("with {library}:\n"))?;
        checks::run_gemms(&with_library, report);
    }
    drop(with_library);
    memory::run_plan(Cuda::open(index, &own(true))?, report)?;
    steps::run_all(|graphs| Cuda::open(index, &own(graphs)), report)?;
    if args.all {
        checks::run_long(&Cuda::open(index, &own(true))?, report);
        models::run_all(|| Cuda::open(index, &own(true)), report)?;
        answers::run_all(|| Cuda::open(index, &own(true)), report)?;
    }
    output::out(&format!("{} of {seen} checks passed\n", seen - missed))?;
    if args.all && args.part.is_none() && !args.short {
        time_ops(index)?;
    }
    Ok(if missed == 0 { output::OK } else { output::FAILED })
}

/// Free bytes that the smallest table needs.
const LEAST_BYTES: u64 = 2 << 30;
/// Free bytes and copy speed of a GPU on which the large table takes a few seconds.
const ROOMY_BYTES: u64 = 6 << 30;
const FAST_BYTES_PER_S: f64 = 50e9;
const SHAPE: &str = "qwen3-8b";
const SMALL_SHAPE: &str = "demo";

/// Prints the speed of every op, at the shapes of a model that suits the GPU.
fn time_ops(index: u32) -> Result<()> {
    let cuda = Cuda::open(index, &cuda_options(true, Gemm::Own))?;
    let (free, _) = cuda.memory();
    if free < LEAST_BYTES {
        output::out("ops are not timed: the GPU has less than 2 GiB of free memory\n")?;
        return Ok(());
    }
    let copy = cuda.copy_bytes_per_s()?;
    let large = free >= ROOMY_BYTES && copy >= FAST_BYTES_PER_S;
    let (shape, sizes) = if large { (SHAPE, speed::Sizes::large()) } else { (SMALL_SHAPE, speed::Sizes::small()) };
    let config = Checkpoint::shape(shape)?;
    let why = if large { "" } else { ": the GPU is too small or too slow for a larger one" };
    let head = format!("\nops at the shapes of {shape}{why}; a copy within the GPU moves {:.0} GB/s\n", copy / 1e9);
    output::out(&(head + speed::HEADER))?;
    // A closed stdout is reported by the last write.
    let print = |line: String| drop(output::out(&line));
    speed::run_all(&cuda, &config, &sizes, copy, print)?;
    drop(cuda);
    let cuda = Cuda::open(index, &cuda_options(true, Gemm::Auto))?;
    if let Some(library) = cuda.library() {
        output::out(&format!("\nGEMMs by {library}\n{}", speed::HEADER))?;
        speed::run_gemms(&cuda, &config, &sizes, copy, print)?;
    }
    Ok(())
}
