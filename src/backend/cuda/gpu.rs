//! One GPU: its driver, and what the ops of a step share.

use super::super::{Norm, Span};
use super::abi::Arg::{F32, I32, Ptr};
use super::cublaslt::{CublasLt, Gemm};
use super::driver::{CudaOptions, Driver, energy_of};
use super::error::NoCuda;
use super::graph::Graphs;
use super::kernels::Kernel;
use super::memory::Acts;
use super::nvml::Counter;
use super::pinned::Mapped;
use super::scratch::{Sampling, Unpacked};
use super::spans::{Shape, Spans};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// GPUs with less memory do without an external library unless it is asked for.
const SMALL_GPU_BYTES: u64 = 12 << 30;
/// Most threads of a block of `rms_norm`.
const NORM_THREADS: usize = 1024;

/// Maximum rows for which `rms_norm` uses the most threads per row; with more, rows share an SM.
const FEW_NORMS: usize = 32;

/// Words that a step copies to the host: the non-finite flag, the number of free pages, and a token
/// for each sequence.
pub(super) const MAILBOX_WORDS: usize = 1024;

/// One GPU.
pub struct Cuda {
    pub(super) graphs: Graphs,
    /// Results that the last step copied to the host.
    pub(super) mailbox: Mapped<i32>,
    pub(super) spans: RefCell<Spans>,
    pub(super) cublaslt: Option<CublasLt>,
    pub(super) sampling: RefCell<Sampling>,
    pub(super) unpacked: RefCell<Unpacked>,
    pub(super) pending: Cell<Option<Pending>>,
    pub(super) energy: Option<Counter>,
    /// Declared last: fields drop in order, and those above need the CUDA context.
    pub(super) driver: Rc<Driver>,
}

impl Cuda {
    /// Opens the GPU of that index.
    pub fn open(index: u32, options: &CudaOptions) -> Result<Self, NoCuda> {
        let driver = Rc::new(Driver::open(index, options)?);
        // The library and its scratch take 80 MiB, which a small GPU has better uses for.
        let small = driver.memory().1 < SMALL_GPU_BYTES && !options.cublaslt_needed;
        let cublaslt = CublasLt::open(&driver, if small { &[] } else { &options.cublaslt });
        if let (Err(why), true) = (&cublaslt, options.cublaslt_needed) {
            return Err(NoCuda::NoCublasLt(why.clone()));
        }
        Ok(Self {
            // A capture forbids to synchronize after every launch.
            graphs: Graphs::new(!options.no_graphs && !options.wait_always),
            mailbox: Mapped::new(driver.context(), MAILBOX_WORDS)?,
            spans: RefCell::default(),
            cublaslt: cublaslt.ok(),
            sampling: RefCell::default(),
            unpacked: RefCell::default(),
            pending: Cell::default(),
            energy: energy_of(index),
            driver,
        })
    }

    /// Loads all kernels that this GPU runs, for all models.
    pub fn load_all_kernels(&self) -> Result<(), NoCuda> {
        self.driver.load_kernels(|_, _| true, &mut |_, _| true)
    }

    /// Milliseconds that `work` takes on the GPU.
    pub fn time_ms(&self, work: impl FnOnce()) -> f32 {
        self.driver.time_ms(work)
    }

    /// Free and total bytes of the GPU's memory.
    pub fn memory(&self) -> (u64, u64) {
        self.driver.memory()
    }

    pub(super) fn send(&self, spans: &[Span]) -> Shape {
        self.spans.borrow_mut().send(spans)
    }

    /// Computes `x += more` if `more` is not 0 (an address), then `out = rms_norm(x)`, or if `add`
    /// is not 0, `out = add * (out + rms_norm(x))`. Rows are normed in runs of the norm's width.
    pub(super) fn norm(&self, out: &mut Acts, x: &Acts, more: u64, norm: &Norm<'_, Self>, add: f32, n: usize) {
        out.fills(n);
        x.holds_f32(n);
        let width = norm.weight.len();
        assert!(x.width.is_multiple_of(width) && out.width == x.width, "a norm of {width} of {} columns", x.width);
        let image = if width == x.width { out.image_to_fill(n) } else { 0 };
        let n = n * (x.width / width);
        let args = [
            Ptr(out.ptr()),
            Ptr(image),
            I32(out.bf16 as i32),
            Ptr(x.ptr()),
            Ptr(more),
            Ptr(norm.weight.ptr()),
            F32(norm.eps),
            I32(norm.layer as i32),
            Ptr(norm.non_finite.ptr()),
            I32(width as i32),
            F32(add),
        ];
        self.driver.launch(Kernel::RmsNorm, [n, 1, 1], norm_threads(width, n), &args);
    }
}

/// Threads to a row of a norm: four values to a thread; where rows are many, sixteen.
fn norm_threads(width: usize, n: usize) -> usize {
    let values = if n <= FEW_NORMS { 4 } else { 16 };
    width.div_ceil(values).next_multiple_of(32).min(NORM_THREADS)
}

/// A result that is still to be added to a residual stream.
pub(super) struct Pending {
    /// Address of the residual stream.
    pub acc: u64,
    /// The matmul into scratch, and whether it has been launched. If not, its inputs are bf16 and
    /// it has 2 to [`UNSCALED_ROWS`] rows.
    pub gemm: Gemm,
    pub launched: bool,
}
