//! The CUDA backend: one NVIDIA GPU through the driver alone, with kernels from PTX that is
//! embedded in the program (`kernels/`). Weights keep the checkpoint's dtype. Activations and
//! accumulators are f32, except matmul inputs for bf16 weights, which are written as bf16.
//!
//! Everything runs in order on one stream; the host synchronizes only when it reads. Kernels
//! allocate and free pages; between steps the host reserves, trims and sorts them. Decode steps are
//! captured as CUDA graphs. All `unsafe` of this backend is in `cublaslt`, `driver`, `library`,
//! `pinned`, `pool`, `probe` and `tensor_map`, around calls of the driver and of cuBLASLt.

mod abi;
mod cublaslt;
mod delta;
mod driver;
mod error;
mod experts;
mod far;
mod far_rows;
mod gemm;
mod gemv;
mod gpu;
mod graph;
mod hessian;
mod kernels;
mod kinds;
mod kv;
mod library;
mod matmul;
mod memory;
mod merge;
mod nvml;
mod packed;
mod pages;
mod pinned;
mod pool;
mod probe;
mod report;
mod sampling;
mod scratch;
mod spans;
mod tensor_map;
mod tiles;
mod views;

use super::{
    AttentionArgs, DeltaNetArgs, Device, ExpertsArgs, KernelNeeds, KvTables, Linear, Norm, Ops, OutOfMemory, Plain,
    SampleArgs, Span, StepKind, StepResult, Use,
};
use crate::protocol::Token;
use crate::tensor::Tensor;
use abi::Arg::{F32, I32, Ptr, U64};
pub use cublaslt::cublaslt;
pub use delta::has_delta_net;
pub use driver::{CudaOptions, free_bytes, usable};
pub use error::NoCuda;
pub use experts::has_experts;
pub use gpu::Cuda;
use gpu::MAILBOX_WORDS;
pub use hessian::Hessian;
use kernels::BLOCK;
pub use kernels::{ENTRIES, Kernel, MAX_GROUP, MAX_HEAD_DIM, SOURCES, TARGETS, check_needs};
pub use memory::{Acts, Buf, Weight};
use memory::{Stored, dtype_number};
pub use pool::Pool;
pub use probe::probe;

impl Cuda {
    /// Inputs of matmuls on tensor cores, with what their kernels read beside the rows.
    fn bf16_input(&self, rows: usize, width: usize, readers: &[&Weight]) -> Result<Acts, OutOfMemory> {
        let mut acts = Acts::new(&self.driver, rows, width, true)?;
        if packed::reads_images(&self.driver, rows, width, readers) {
            acts.add_image(&self.driver)?;
        }
        if readers.iter().all(|w| matches!(w.stored, Stored::Plain(_))) {
            acts.add_squares(&self.driver)?;
        }
        Ok(acts)
    }
}

impl Device for Cuda {
    type Buf<T: Plain> = Buf<T>;
    type Acts = Acts;
    type Weight = Weight;

    fn alloc<T: Plain>(&self, len: usize) -> Result<Buf<T>, OutOfMemory> {
        Buf::new(&self.driver, len)
    }

    fn write<T: Plain>(&self, dst: &mut Buf<T>, at: usize, src: &[T]) {
        dst.write(at, src);
    }

    fn read<T: Plain>(&self, src: &Buf<T>, at: usize, dst: &mut [T]) {
        src.read(at, dst);
    }

    fn acts(&self, rows: usize, width: usize, used: Use<'_, Weight>) -> Result<Acts, OutOfMemory> {
        let are_stacked = |around: &[&Weight]| around.iter().any(|w| w.rows == width && w.parts.len() > 1);
        let on_tensor_cores = |readers: &[&Weight]| !readers.is_empty() && readers.iter().all(|w| w.on_tensor_cores());
        let rows = match used {
            Use::Input(readers) if on_tensor_cores(readers) => return self.bf16_input(rows, width, readers),
            // Our own kernels fuse SwiGLU if gate and up have one code. After the library's GEMM it
            // is applied to a few rows at a time.
            Use::GateUp(around) if on_tensor_cores(around) && self.cublaslt.is_none() && !are_stacked(around) => 0,
            Use::GateUp(around) if on_tensor_cores(around) => rows.min(gemm::SWIGLU_ROWS),
            Use::Logits => {
                self.sampling.borrow_mut().reserve(&self.driver, rows)?;
                return Acts::new(&self.driver, rows, width, false);
            }
            Use::Any | Use::Input(_) | Use::GateUp(_) => rows,
        };
        self.spans.borrow_mut().reserve(&self.driver, rows)?;
        Acts::new(&self.driver, rows, width, false)
    }

    fn read_acts(&self, src: &Acts, rows: &mut [f32]) {
        self.settle();
        src.read(rows);
    }

    fn weight(&self, parts: &[Tensor]) -> Result<Weight, OutOfMemory> {
        let weight = Weight::new(&self.driver, parts)?;
        self.unpacked.borrow_mut().reserve(&self.driver, &weight)?;
        Ok(weight)
    }

    fn load_kernels(&self, needs: &KernelNeeds, on_files: &mut dyn FnMut(usize, usize) -> bool) -> anyhow::Result<()> {
        check_needs(needs)?;
        Ok(self.driver.load_kernels(|source, gpu| source.is_needed(gpu, needs), on_files)?)
    }

    fn allocating<T>(&self, purpose: &'static str, make: impl FnOnce() -> T) -> T {
        self.driver.allocating(purpose, make)
    }

    fn dry_run_bytes<T>(&self, make: impl FnOnce() -> T) -> Option<u64> {
        // Take the lazily created scratch out first, so that a dry run does not leave fake buffers
        // in it.
        let (spans, sampling, unpacked) = (self.spans.take(), self.sampling.take(), self.unpacked.take());
        let bytes = self.driver.dry_run_allocation(make);
        self.spans.replace(spans);
        self.sampling.replace(sampling);
        self.unpacked.replace(unpacked);
        Some(bytes)
    }
}

impl Ops for Cuda {
    fn step(&self, kind: StepKind, spans: &[Span], mut ops: impl FnMut(&Self)) {
        self.send(spans);
        let mut issue = || {
            // Attention reads tables before it waits, so everything that changed them since the
            // last step must end first.
            self.driver.separate();
            ops(self);
            self.settle();
        };
        let one_token_each = spans.iter().enumerate().all(|(i, s)| (s.start, s.len) == (i, 1));
        // The launches depend on nothing else of the spans.
        let shape = match (kind, spans) {
            (StepKind::Verify { .. }, [one]) => Some(one.len),
            (StepKind::Verify { .. }, _) => None,
            _ => one_token_each.then_some(spans.len()),
        };
        match shape.filter(|_| self.graphs.enabled()) {
            Some(n) => self.graphs.run(&self.driver, kind, n, issue),
            None => issue(),
        }
    }

    fn embed(&self, out: &mut Acts, table: &Weight, tokens: &Buf<Token>, scale: f32, n: usize) {
        self.settle();
        out.holds_f32(n);
        let (bits, words) = match table.stored {
            Stored::Plain(dtype) => (0, I32(dtype_number(dtype))),
            Stored::Packed => {
                let [part] = &table.parts[..] else { panic!("an embedding has one code") };
                (part.code.bits(), packed::words(part.code))
            }
        };
        let (tokens, width) = (Ptr(tokens.ptr()), I32(out.width as i32));
        let args = [Ptr(out.ptr()), Ptr(table.ptr()), tokens, F32(scale), width, I32(bits as i32), words];
        self.driver.launch(Kernel::Embed, [n, 1, 1], BLOCK, &args);
    }

    fn rms_norm(&self, out: &mut Acts, x: &Acts, norm: Norm<'_, Self>, add: Option<f32>, n: usize) {
        let Some(factor) = add else { return matmul::rms_norm(self, out, x, norm, n) };
        self.settle();
        out.holds_f32(n);
        self.norm(out, x, 0, &norm, factor, n);
    }

    fn copy(&self, out: &mut Acts, x: &Acts, n: usize) {
        self.settle();
        assert_eq!(out.width, x.width, "a copy of another width");
        out.fills(n);
        x.holds_f32(n);
        let args = [Ptr(out.ptr()), I32(out.bf16 as i32), Ptr(x.ptr()), U64((n * x.width) as u64)];
        self.driver.launch(Kernel::CopyValues, [(n * x.width).div_ceil(4 * BLOCK), 1, 1], BLOCK, &args);
    }

    fn linear(&self, out: &mut Acts, x: &Acts, layer: Linear<'_, Self>, n: usize) {
        matmul::linear(self, out, x, layer, n);
    }

    fn attention(&self, out: &mut Acts, mut args: AttentionArgs<'_, Self>) {
        self.settle();
        kv::attention(self, out, &mut args);
        if args.rope.gated {
            delta::gate(self, out, args.qkv, &args.kv.geometry.of_layer(args.layer), args.spans);
        }
    }

    fn commit(
        &self,
        rows: &Acts,
        decisions: &Buf<f32>,
        kv: &mut KvTables<Self>,
        layer: usize,
        spans: &[Span],
        drafts: bool,
    ) {
        kv::commit(self, rows, decisions, kv, layer, spans, drafts);
    }

    fn delta_net(
        &self,
        out: &mut Acts,
        rows: &mut Acts,
        kv: &mut KvTables<Self>,
        layer: usize,
        spans: &[Span],
        args: &DeltaNetArgs<'_, Self>,
    ) {
        delta::delta_net(self, out, rows, kv, layer, spans, args);
    }

    fn experts(&self, x: &mut Acts, h: &Acts, args: ExpertsArgs<'_, Self>, n: usize) {
        experts::experts(self, x, h, args, n);
    }

    fn advance(&self, kv: &mut KvTables<Self>, tokens: Option<&Buf<Token>>, spans: &[Span]) {
        kv::advance(self, kv, tokens, spans);
    }

    fn select_rows(&self, out: &mut Acts, x: &Acts, rows: &[usize]) {
        self.settle();
        assert_eq!((out.width, out.bf16), (x.width, x.bf16), "rows of different kinds");
        out.fills(rows.len());
        for (i, &row) in rows.iter().enumerate() {
            x.holds(row + 1);
            self.driver.copy_within(out.row(i), x.row(row), x.row_bytes());
        }
    }

    fn sample(&self, sampled: &mut Buf<Token>, logits: &mut Acts, args: &SampleArgs<'_, Self>, n: usize) {
        logits.holds_f32(n);
        assert!(n <= sampled.len() && n <= args.draws.len() && n + 2 <= MAILBOX_WORDS, "{n} rows do not fit");
        let results = abi::Results {
            tokens: sampled.ptr(),
            host: self.mailbox.ptr(),
            non_finite: args.non_finite.ptr(),
            counts: args.kv.pool.counts.ptr(),
        };
        sampling::sample(&self.driver, &self.sampling.borrow(), &results, logits, args, n);
    }

    fn read_step(&self, _: &Buf<Token>, _: &Buf<i32>, kv: &KvTables<Self>, n: usize) -> StepResult {
        self.driver.wait();
        let words = &self.mailbox.values()[..n + 2];
        kv.pool.free_now(words[1] as usize);
        StepResult {
            tokens: words[2..].iter().map(|&t| t as Token).collect(),
            non_finite: (words[0] != i32::MAX).then_some(words[0] as usize),
        }
    }
}
