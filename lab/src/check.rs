//! `dmslab check [--all]`: compares every kernel of a GPU with the CPU's op and prints a table.
//! `--all` adds long cache histories, whole models and the speed of every op. `--part` and
//! `--short` bound the time of a run.

use crate::checks::{self, Finding, Part, Report, Scope, answers, drafts, hessians, memory, models, steps};
use crate::{gpu, speed};
use anyhow::Result;
use clap::Args;
use dmschat::backend::Report as _;
use dmschat::backend::cuda::{Cuda, CudaOptions};
use dmschat::cli::devices::cuda_options;
use dmschat::cli::devices::hessians::on_gpu;
use dmschat::cli::output;
use dmschat::config::Gemm;

#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Also compare long cache histories and whole models with the CPU, and measure the speed of
    /// every op
    #[arg(long)]
    pub all: bool,
    /// Run one part of the checks, such as 2/4, so that several GPUs share them; nothing is timed
    #[arg(long, value_name = "PART/PARTS")]
    pub part: Option<Part>,
    /// Fewer steps in the checks that take longest, for compute-sanitizer; nothing is timed
    #[arg(long)]
    pub short: bool,
    /// Leave out cases that have work for all SMs of a large GPU, for an emulator
    #[arg(long)]
    pub small: bool,
}

/// Runs all checks on the GPU of that index. The exit code is 1 if one failed.
pub fn run(index: u32, args: &CheckArgs) -> Result<u8> {
    let own = |graphs| cuda_options(graphs, Gemm::Own);
    let cuda = gpu::open(index, &CudaOptions { wait_always: true, ..own(false) })?;
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
    let scope = Scope { part: args.part.unwrap_or(Part::ALL), short: args.short, small: args.small };
    let report = &mut Report::new(scope, &mut each);
    checks::run_all(&cuda, report);
    memory::run_all(&cuda, report);
    drop(cuda);
    hessians::run_all(&on_gpu(index, own(false), 0), report);
    // The GEMMs again by the library, if there is one.
    let with_library = Cuda::open(index, &cuda_options(true, Gemm::Auto))?;
    if let Some(library) = with_library.about().library {
        output::out(&format!("with {library}:\n"))?;
        checks::run_gemms(&with_library, report);
    }
    drop(with_library);
    memory::run_plan(Cuda::open(index, &own(true))?, report)?;
    steps::run_all(|graphs| Cuda::open(index, &own(graphs)), report)?;
    drafts::run_all(|| Cuda::open(index, &own(true)), report)?;
    if args.all {
        checks::run_long(&Cuda::open(index, &own(true))?, report);
        models::run_all(|| Cuda::open(index, &own(true)), report)?;
        answers::run_all(|| Cuda::open(index, &own(true)), report)?;
    }
    output::out(&format!("{} of {seen} checks passed\n", seen - missed))?;
    if args.all && args.part.is_none() && !args.short {
        speed::time_ops(index)?;
    }
    Ok(if missed == 0 { output::OK } else { output::FAILED })
}
