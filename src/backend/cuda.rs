//! The CUDA backend: one NVIDIA card through the driver alone, kernels from PTX that is part of the
//! program (`kernels/`). Weights stay as they are in the file; activations and sums are f32.
//!
//! Everything runs in order on one stream and is awaited only where the host reads. Pages are taken and
//! given back on the card; between steps the host reserves, trims and sorts. Decode steps are recorded
//! as graphs. All `unsafe` of this backend stands in `driver`, `graph`, `pinned`, `pool` and `probe`,
//! around calls of the driver.

mod driver;
mod graph;
mod kernels;
mod kv;
mod memory;
mod parts;
mod pinned;
mod pool;
mod probe;
mod spans;

use super::{
    AdapterHead, Backend, KvGeometry, KvTables, Norm, OutOfMemory, Plain, PoolStats, QkvRope, SampleArgs, Span,
    StepKind, StepResult, seen_words,
};
use crate::policy::SlotMeta;
use crate::protocol::Token;
use crate::tensor::{DType, Tensor};
use driver::Arg::{F32, I32, Ptr, U64};
use driver::Driver;
pub use driver::{CudaOptions, free_bytes, usable};
use graph::Graphs;
pub use kernels::{EARLY_START, Entry, KERNELS, Kernel, SOURCES, TARGETS};
pub use kv::VIEW_BYTES;
pub use memory::{Acts, Buf, Weight};
use parts::Parts;
use pinned::Pinned;
pub use pool::Pool;
pub use probe::{NoCuda, probe};
use spans::{Shape, Spans};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Threads of a block where nothing asks for another number.
const BLOCK: usize = 256;
/// Up to so many rows of activations the plain kernels multiply row by row of the weights.
const FEW_ROWS: usize = 8;
/// Up to so many rows `gemm_few_32` takes; it reads the weight once.
const SOME_ROWS: usize = 32;
/// Side of the tiles of `gemm`, and of `gemm_tiles`.
const TILE: usize = 64;
const WIDE_TILE: usize = 128;
/// Words of what a step posts: the fault, the free pages, and a token for each sequence.
const POST_WORDS: usize = 1024;
/// Largest head and group that the attention kernels have instances for.
pub const MAX_HEAD_DIM: usize = 128;
pub const MAX_GROUP: usize = 8;

/// Whether products of many rows with it have kernels for tensor cores.
fn on_tensor_cores(weight: &Weight) -> bool {
    weight.dtype == DType::Bf16 && weight.cols.is_multiple_of(8)
}

/// One card.
pub struct Cuda {
    graphs: Graphs,
    /// What the last step gave back.
    post: Pinned,
    spans: RefCell<Spans>,
    /// Activations on their way into a product on tensor cores.
    parts: RefCell<Parts>,
    /// Columns of the widest weight that such products have been loaded for.
    widest: Cell<usize>,
    /// After all that needs its context to be given back.
    driver: Rc<Driver>,
    /// A wrong kernel in the place of a right one, for `doctor` to find.
    planted: Cell<bool>,
}

impl Cuda {
    /// The card of that index.
    pub fn open(index: u32, options: &CudaOptions) -> Result<Self, NoCuda> {
        let driver = Rc::new(Driver::open(index, options)?);
        Ok(Self {
            // Waiting after every launch and recording launches exclude each other.
            graphs: Graphs::new(!options.no_graphs && !options.wait_always),
            post: Pinned::new(POST_WORDS * size_of::<i32>())?,
            spans: RefCell::default(),
            parts: RefCell::default(),
            widest: Cell::new(0),
            driver,
            planted: Cell::new(false),
        })
    }

    /// Puts a wrong kernel in the place of `swiglu`.
    pub fn plant(&self, on: bool) {
        self.planted.set(on);
    }

    /// Milliseconds that `work` takes on the card.
    pub fn time_ms(&self, work: impl FnOnce()) -> f32 {
        self.driver.time_ms(work)
    }

    /// Bytes a second, read and written, of a copy within the card.
    pub fn copy_bytes_per_s(&self) -> Result<f64, OutOfMemory> {
        const BYTES: usize = 512 << 20;
        let (from, to) = (Buf::<u8>::new(&self.driver, BYTES)?, Buf::<u8>::new(&self.driver, BYTES)?);
        let ms = (0..5).map(|_| self.time_ms(|| self.driver.copy_within(to.ptr(), from.ptr(), BYTES)));
        Ok(2.0 * BYTES as f64 / (ms.fold(f32::INFINITY, f32::min) as f64 / 1e3))
    }

    /// Free bytes of the card, and all.
    pub fn memory(&self) -> (u64, u64) {
        self.driver.memory()
    }

    fn send(&self, spans: &[Span]) -> Shape {
        self.spans.borrow_mut().send(spans)
    }

    /// `out = x weight^T + bias`: bf16 weights of many rows go to tensor cores, all else to plain kernels.
    fn product(&self, out: u64, x: u64, weight: &Weight, bias: Option<&Buf<f32>>, n: usize) {
        use Kernel::*;
        let (rows, cols) = (weight.rows, weight.cols);
        let mut args = vec![
            Ptr(out),
            Ptr(x),
            Ptr(weight.ptr()),
            Ptr(bias.map_or(0, Buf::ptr)),
            I32(rows as i32),
            I32(cols as i32),
            I32(n as i32),
        ];
        if n > 1 && on_tensor_cores(weight) {
            if n > SOME_ROWS {
                let (high, low) = self.parts.borrow().split(&self.driver, x, n * cols);
                args[1] = Ptr(high);
                args.insert(2, Ptr(low));
                let grid = [n.div_ceil(WIDE_TILE), rows.div_ceil(WIDE_TILE), 1];
                return self.driver.launch(GemmTiles, grid, 256, &args);
            }
            let (kernel, side) = match n {
                0..=8 => (GemmFew8, 16),
                9..=16 => (GemmFew16, 32),
                _ => (GemmFew32, 32),
            };
            return self.driver.launch(kernel, [rows.div_ceil(side), 1, 1], 256, &args);
        }
        let (gemv1, gemv8, gemm) = match weight.dtype {
            DType::F32 => (Gemv1F32, Gemv8F32, GemmF32),
            DType::F16 => (Gemv1F16, Gemv8F16, GemmF16),
            DType::Bf16 => (Gemv1Bf16, Gemv8Bf16, GemmBf16),
        };
        if n <= FEW_ROWS {
            args.push(I32(cols.is_multiple_of(8) as i32));
            self.driver.launch(if n == 1 { gemv1 } else { gemv8 }, [rows.div_ceil(4), 1, 1], 128, &args);
        } else {
            self.driver.launch(gemm, [rows.div_ceil(TILE), n.div_ceil(TILE), 1], 256, &args);
        }
    }

    fn norm(&self, out: &mut Acts, x: &Acts, weight: &Buf<f32>, eps: f32, fault: Option<(usize, u64)>, n: usize) {
        out.holds(n);
        let (layer, fault) = fault.unwrap_or((0, 0));
        let args = [
            Ptr(out.ptr()),
            Ptr(x.ptr()),
            Ptr(weight.ptr()),
            F32(eps),
            I32(layer as i32),
            Ptr(fault),
            I32(x.width as i32),
        ];
        self.driver.launch(Kernel::RmsNorm, [n, 1, 1], BLOCK, &args);
    }
}

impl Backend for Cuda {
    type Buf<T: Plain> = Buf<T>;
    type Acts = Acts;
    type Weight = Weight;
    type Pool = Pool;

    fn describe(&self) -> String {
        self.driver.name.clone()
    }

    fn alloc<T: Plain>(&self, len: usize) -> Result<Buf<T>, OutOfMemory> {
        Buf::new(&self.driver, len)
    }

    fn write<T: Plain>(&self, dst: &mut Buf<T>, at: usize, src: &[T]) {
        dst.write(at, src);
    }

    fn read<T: Plain>(&self, src: &Buf<T>, at: usize, dst: &mut [T]) {
        src.read(at, dst);
    }

    fn copy<T: Plain>(&self, buf: &mut Buf<T>, from: usize, to: usize, len: usize) {
        buf.copy(from, to, len);
    }

    fn acts(&self, rows: usize, width: usize) -> Result<Acts, OutOfMemory> {
        self.spans.borrow_mut().reserve(&self.driver, rows)?;
        if rows > SOME_ROWS {
            self.parts.borrow_mut().reserve(&self.driver, rows * self.widest.get())?;
        }
        Ok(Acts { buf: Buf::new(&self.driver, rows * width)?, width })
    }

    fn write_acts(&self, dst: &mut Acts, rows: &[f32]) {
        dst.buf.write(0, rows);
    }

    fn read_acts(&self, src: &Acts, rows: &mut [f32]) {
        src.buf.read(0, rows);
    }

    fn weight(&self, parts: &[Tensor]) -> Result<Weight, OutOfMemory> {
        let weight = Weight::new(&self.driver, parts)?;
        if on_tensor_cores(&weight) {
            self.widest.set(self.widest.get().max(weight.cols));
        }
        Ok(weight)
    }

    fn note(&self, seen: &mut Buf<u32>, vocab: usize, tokens: &Buf<Token>, spans: &[Span]) {
        let shape = self.send(spans);
        let args = [
            Ptr(seen.ptr()),
            Ptr(tokens.ptr()),
            Ptr(shape.spans),
            Ptr(shape.span_of_row),
            I32(seen_words(vocab) as i32),
            I32(shape.n_rows as i32),
        ];
        self.driver.launch(Kernel::Note, [shape.n_rows.div_ceil(BLOCK), 1, 1], BLOCK, &args);
    }

    fn embed(&self, out: &mut Acts, table: &Weight, tokens: &Buf<Token>, n: usize) {
        out.holds(n);
        let args =
            [Ptr(out.ptr()), Ptr(table.ptr()), I32(table.dtype_number()), Ptr(tokens.ptr()), I32(out.width as i32)];
        self.driver.launch(Kernel::Embed, [n, 1, 1], BLOCK, &args);
    }

    fn rms_norm(&self, out: &mut Acts, x: &Acts, norm: &Norm<'_, Self>, fault: &mut Buf<i32>, n: usize) {
        self.norm(out, x, norm.weight, norm.eps, Some((norm.layer, fault.ptr())), n);
    }

    fn add(&self, acc: &mut Acts, x: &Acts, n: usize) {
        acc.holds(n);
        let len = n * acc.width;
        let args = [Ptr(acc.ptr()), Ptr(x.ptr()), U64(len as u64)];
        self.driver.launch(Kernel::Add, [len.div_ceil(BLOCK), 1, 1], BLOCK, &args);
    }

    fn add_rms_norm(
        &self,
        out: &mut Acts,
        residual: &mut Acts,
        x: &Acts,
        norm: &Norm<'_, Self>,
        fault: &mut Buf<i32>,
        n: usize,
    ) {
        out.holds(n);
        let args = [
            Ptr(out.ptr()),
            Ptr(residual.ptr()),
            Ptr(x.ptr()),
            Ptr(norm.weight.ptr()),
            F32(norm.eps),
            I32(norm.layer as i32),
            Ptr(fault.ptr()),
            I32(x.width as i32),
        ];
        self.driver.launch(Kernel::AddRmsNorm, [n, 1, 1], BLOCK, &args);
    }

    fn linear(&self, out: &mut Acts, x: &Acts, weight: &Weight, bias: Option<&Buf<f32>>, n: usize) {
        assert_eq!((out.width, x.width), (weight.rows, weight.cols), "activations do not fit the weight");
        out.holds(n);
        self.product(out.ptr(), x.ptr(), weight, bias, n);
    }

    fn swiglu(&self, out: &mut Acts, gate_up: &Acts, n: usize) {
        out.holds(n);
        let kernel = if self.planted.get() { Kernel::SwigluWrong } else { Kernel::Swiglu };
        let args = [Ptr(out.ptr()), Ptr(gate_up.ptr()), I32(out.width as i32)];
        self.driver.launch(kernel, [out.width.div_ceil(BLOCK), n, 1], BLOCK, &args);
    }

    fn qkv_rope(
        &self,
        qkv: &mut Acts,
        decisions: &mut Buf<f32>,
        seq_len: &Buf<i32>,
        spans: &[Span],
        args: &QkvRope<'_, Self>,
    ) {
        let shape = self.send(spans);
        let alpha = args.borrowed;
        let (scale, offset, per_layer) = alpha.map_or((0.0, 0.0, false), |a| (a.scale, a.offset, a.per_layer));
        let (q_norm, k_norm) = args.qk_norm.map_or((0, 0), |[q, k]| (q.ptr(), k.ptr()));
        let heads = args.n_q_heads + args.n_kv_heads;
        self.driver.launch(
            Kernel::QkvRope,
            [shape.n_rows, heads.div_ceil(4), 1],
            128,
            &[
                Ptr(qkv.ptr()),
                Ptr(decisions.ptr()),
                Ptr(seq_len.ptr()),
                Ptr(shape.spans),
                Ptr(shape.span_of_row),
                Ptr(q_norm),
                Ptr(k_norm),
                Ptr(args.inv_freq.ptr()),
                I32(args.n_q_heads as i32),
                I32(args.n_kv_heads as i32),
                I32(args.head_dim as i32),
                F32(args.rms_eps),
                F32(args.rope_scale),
                I32(alpha.is_some() as i32),
                F32(scale),
                F32(offset),
                I32(per_layer as i32),
            ],
        );
    }

    fn adapter_decisions(
        &self,
        decisions: &mut Buf<f32>,
        x: &Acts,
        scratch: &mut Acts,
        raw: &mut Acts,
        head: &AdapterHead<'_, Self>,
        n: usize,
    ) {
        self.norm(scratch, x, head.norm, head.rms_eps, None, n);
        self.linear(raw, scratch, head.proj, head.bias, n);
        let heads = head.proj.rows;
        let args = [
            Ptr(decisions.ptr()),
            Ptr(raw.ptr()),
            F32(head.alpha.scale),
            F32(head.alpha.offset),
            I32(head.alpha.per_layer as i32),
            I32(heads as i32),
            I32(n as i32),
        ];
        self.driver.launch(Kernel::Decide, [(n * heads).div_ceil(BLOCK), 1, 1], BLOCK, &args);
    }

    fn kv_round_trip(&self, qkv: &mut Acts, g: &KvGeometry, n: usize) {
        let args = [
            Ptr(qkv.ptr()),
            I32(g.n_q_heads as i32),
            I32(g.n_kv_heads as i32),
            I32(g.head_dim as i32),
            I32(kv::codec_number(g.codec)),
        ];
        self.driver.launch(Kernel::KvRoundTrip, [2 * g.n_kv_heads, n, 1], 32, &args);
    }

    fn attend(
        &self,
        out: &mut Acts,
        qkv: &Acts,
        decisions: &Buf<f32>,
        kv: &KvTables<Self>,
        layer: usize,
        spans: &[Span],
    ) {
        kv::attend(self, out, qkv, decisions, kv, layer, spans);
    }

    fn place(&self, kv: &mut KvTables<Self>, decisions: &Buf<f32>, layer: usize, spans: &[Span]) {
        kv::place(self, kv, decisions, layer, spans);
    }

    fn store(&self, kv: &mut KvTables<Self>, qkv: &Acts, layer: usize, spans: &[Span]) {
        kv::store(self, kv, qkv, layer, spans);
    }

    fn advance(&self, kv: &mut KvTables<Self>, spans: &[Span]) {
        kv::advance(self, kv, spans);
    }

    fn pool(&self, geometry: &KvGeometry, max_pages: usize) -> Result<Pool, OutOfMemory> {
        Pool::new(&self.driver, geometry, max_pages)
    }

    fn reserve(&self, kv: &mut KvTables<Self>, pages: usize) -> Result<(), OutOfMemory> {
        kv.pool.reserve(pages)
    }

    fn trim(&self, kv: &mut KvTables<Self>) {
        kv::trim(self, kv);
    }

    fn pool_stats(&self, kv: &KvTables<Self>) -> PoolStats {
        kv.pool.stats()
    }

    fn page_refs(&self, kv: &KvTables<Self>) -> Vec<u32> {
        kv.pool.refs()
    }

    fn fork(&self, kv: &mut KvTables<Self>, from: usize, to: usize) {
        kv::fork(self, kv, from, to);
    }

    fn release(&self, kv: &mut KvTables<Self>, seq: usize) {
        kv::release(self, kv, seq);
    }

    fn compact(&self, kv: &mut KvTables<Self>, seq: usize) {
        kv::compact(self, kv, seq);
    }

    fn slot_metas(&self, kv: &KvTables<Self>, layer: usize, seq: usize, head: usize) -> Vec<SlotMeta> {
        kv::slot_metas(self, kv, layer, seq, head)
    }

    fn select_rows(&self, out: &mut Acts, x: &Acts, rows: &[usize]) {
        assert_eq!(out.width, x.width, "rows of different widths");
        out.holds(rows.len());
        for (i, &row) in rows.iter().enumerate() {
            x.holds(row + 1);
            self.driver.copy_within(out.row(i), x.row(row), x.width * size_of::<f32>());
        }
    }

    fn logits(&self, out: &mut Buf<f32>, x: &Acts, head: &Weight, n: usize) {
        assert!(x.width == head.cols && n * head.rows <= out.len(), "logits do not fit");
        self.product(out.ptr(), x.ptr(), head, None, n);
    }

    fn sample(
        &self,
        sampled: &mut Buf<Token>,
        logits: &mut Buf<f32>,
        vocab: usize,
        args: &SampleArgs<'_, Self>,
        n: usize,
    ) {
        assert!(n <= sampled.len() && n * vocab <= logits.len() && n <= args.draws.len(), "{n} rows do not fit");
        let (logits, draws, words) = (logits.ptr(), args.draws.ptr(), seen_words(vocab));
        let penalty = [Ptr(logits), Ptr(draws), Ptr(args.seen.ptr()), I32(vocab as i32), I32(words as i32)];
        self.driver.launch(Kernel::Penalise, [vocab.div_ceil(BLOCK), n, 1], BLOCK, &penalty);
        let draw = [Ptr(sampled.ptr()), Ptr(logits), I32(vocab as i32), Ptr(draws), Ptr(args.seq_len.ptr())];
        self.driver.launch(Kernel::Sample, [n, 1, 1], 1024, &draw);
    }

    fn post(&self, sampled: &Buf<Token>, fault: &Buf<i32>, kv: &KvTables<Self>, n: usize) {
        assert!(n + 2 <= POST_WORDS && n <= sampled.len(), "{n} tokens of one step");
        let args =
            [Ptr(self.post.ptr()), Ptr(sampled.ptr()), Ptr(fault.ptr()), Ptr(kv.pool.counts.ptr()), I32(n as i32)];
        self.driver.launch(Kernel::Post, [1, 1, 1], BLOCK, &args);
    }

    fn read_step(&self, _: &Buf<Token>, _: &Buf<i32>, kv: &KvTables<Self>, n: usize) -> StepResult {
        self.driver.wait();
        let words = self.post.words(n + 2);
        kv.pool.free_now(words[1] as usize);
        StepResult {
            tokens: words[2..].iter().map(|&t| t as Token).collect(),
            non_finite: (words[0] != i32::MAX).then_some(words[0] as usize),
        }
    }

    fn step(&self, kind: StepKind, spans: &[Span], mut ops: impl FnMut(&Self)) {
        self.send(spans);
        let alike = spans.iter().enumerate().all(|(i, s)| (s.start, s.len) == (i, 1));
        if alike && self.graphs.wanted() {
            self.graphs.run(&self.driver, kind, spans.len(), || ops(self));
        } else {
            ops(self);
        }
    }

    fn recorded(&self) -> usize {
        self.graphs.count()
    }

    fn notice(&self) -> Option<String> {
        self.graphs.notice()
    }

    fn wait(&self) {
        self.driver.wait();
    }

    fn device_bytes(&self) -> Option<u64> {
        Some(self.driver.taken_bytes())
    }
}
