//! A GPU that helps GPTQ: a thread that owns it sums and factors the Hessians of wide matrices,
//! with the processor's bits.

use crate::backend::cuda::{self, Cuda, CudaOptions};
use crate::quantize::hessian::{OpenTriangle, Panel, Triangle};
use anyhow::{Context, Result};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

/// Columns from which a GPU is faster than the processor, by the time of the copies.
pub const WIDE: usize = 1024;

/// Opens triangles of `least` columns or more on the GPU of that index, in a thread that begins
/// with the first one. The processor does all others, and these too where the GPU cannot be opened
/// or has no room.
pub fn on_gpu(index: u32, options: CudaOptions, least: usize) -> OpenTriangle {
    let gpu: Mutex<Option<Arc<Gpu>>> = Mutex::default();
    Arc::new(move |cols, rows| {
        if cols < least {
            return None;
        }
        let mut gpu = gpu.lock().unwrap_or_else(PoisonError::into_inner);
        let gpu = gpu.get_or_insert_with(|| Arc::new(Gpu::new(index, options.clone()))).clone();
        let is_open = gpu.ask(move |cuda, hessian| {
            // The memory of the one before goes first.
            *hessian = None;
            *hessian = cuda.hessian(cols, rows).ok();
            hessian.is_some()
        });
        is_open.unwrap_or(false).then(|| Box::new(OnGpu(gpu)) as Box<dyn Triangle>)
    })
}

/// The triangle that was opened last.
struct OnGpu(Arc<Gpu>);

impl Triangle for OnGpu {
    fn add(&mut self, x: Vec<Panel>) -> Result<()> {
        self.0.ask(move |_, hessian| hessian.as_mut().map(|hessian| hessian.add(&x))).flatten().context(FAILED)
    }

    fn diagonal(&mut self) -> Result<Vec<f64>> {
        self.0.ask(|_, hessian| hessian.as_ref().map(cuda::Hessian::diagonal)).flatten().context(FAILED)
    }

    fn cholesky(&mut self, diagonal: Vec<f32>) -> Result<Option<Panel>> {
        self.0.ask(move |_, hessian| hessian.as_mut().map(|h| h.factor(&diagonal))).flatten().context(FAILED)
    }
}

const FAILED: &str = "the GPU failed while it factored a Hessian; with --device cpu the processor does it";

type Work = Box<dyn FnOnce(&Cuda, &mut Option<cuda::Hessian>) + Send>;

/// A thread that owns a GPU. It ends, and the GPU's memory is free, when this is dropped.
struct Gpu {
    work: Option<mpsc::Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl Gpu {
    fn new(index: u32, options: CudaOptions) -> Self {
        let (sender, work) = mpsc::channel::<Work>();
        let thread = thread::spawn(move || {
            let Ok(cuda) = Cuda::open(index, &options) else { return };
            let mut hessian = None;
            work.into_iter().for_each(|work| work(&cuda, &mut hessian));
        });
        Self { work: Some(sender), thread: Some(thread) }
    }

    /// What the thread answers; `None` if it has ended, since the GPU was not opened or has failed.
    fn ask<R: Send + 'static>(
        &self,
        of: impl FnOnce(&Cuda, &mut Option<cuda::Hessian>) -> R + Send + 'static,
    ) -> Option<R> {
        let (sender, answer) = mpsc::channel();
        let work: Work = Box::new(move |cuda, hessian| {
            // Nobody has stopped to wait.
            let _ = sender.send(of(cuda, hessian));
        });
        self.work.as_ref()?.send(work).ok()?;
        answer.recv().ok()
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.work = None;
        // A thread that has failed has said so to whoever asked.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
