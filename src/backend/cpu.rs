//! The CPU backend: f32 arithmetic on a thread pool, composed of plain ops. It is the reference for
//! every other backend. Only `simd` and `thread_pool` hold `unsafe`.

mod attention;
mod delta;
mod experts;
mod kv;
mod linear;
mod merge;
mod pool;
mod predictor;
mod rope;
mod simd;
pub(super) mod thread_pool;

use super::{
    About, After, AttentionArgs, DeltaNetArgs, Device, ExpertsArgs, KvGeometry, KvTables, Linear, Measure, Norm, Ops,
    OutOfMemory, Plain, QkvRopeArgs, Queries, Report, SampleArgs, Span, StepResult, Use,
};
use crate::protocol::Token;
use crate::system;
use crate::tensor::Tensor;
pub use linear::{OnInput, Weight};
pub use pool::Pool;
use simd::{Isa, maths};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use thread_pool::{ThreadPool, Tile};

/// The host's cores.
pub struct Cpu {
    thread_pool: ThreadPool,
    isa: Isa,
    /// One per thread, grown by the first steps and kept.
    scratch: Vec<Mutex<Scratch>>,
    angles: Mutex<rope::Angles>,
    plan: Mutex<attention::Plan>,
    /// How packed weights are multiplied.
    method: simd::packed::Method,
    /// Activations of packed weights, kept from GEMM to GEMM.
    packed_inputs: Mutex<Vec<simd::packed::Input>>,
    /// Observer of [`Cpu::observing`].
    observer: Option<Mutex<linear::Observer>>,
}

/// Scratch of one thread inside an op.
#[derive(Default)]
struct Scratch {
    /// A block of weights, converted to f32.
    weights: Vec<f32>,
    attention: attention::Scratch,
}

/// Values of an element-wise op up to which one thread is faster than two.
const ALONE: usize = 16 << 10;

/// f32 activations `[rows, width]`.
pub struct Acts {
    data: Vec<f32>,
    pub width: usize,
}

impl Acts {
    #[cfg(test)]
    pub(crate) fn from_rows(data: Vec<f32>, width: usize) -> Self {
        Self { data, width }
    }

    pub(crate) fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.width..(i + 1) * self.width]
    }

    pub(crate) fn row_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.data[i * self.width..(i + 1) * self.width]
    }
}

impl Cpu {
    /// A backend with `threads` threads; 0 means one per core.
    pub fn new(threads: usize) -> Self {
        Self::with(threads, Isa::best(), None)
    }

    /// A backend that computes the same bits on every machine and with any number of threads. It is
    /// slower, and the reference for kernels of packed weights.
    pub fn exact(threads: usize) -> Self {
        Self::with(threads, Isa::EXACT, None)
    }

    /// A backend like [`Cpu::exact`] that shows the inputs of its GEMMs.
    pub fn observing(threads: usize, on_input: OnInput) -> Self {
        Self::with(threads, Isa::EXACT, Some(Mutex::new(linear::Observer::new(on_input))))
    }

    fn with(threads: usize, isa: Isa, observer: Option<Mutex<linear::Observer>>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let thread_pool = ThreadPool::new(if threads == 0 { cores } else { threads });
        let scratch = (0..thread_pool.size()).map(|_| Mutex::default()).collect();
        Self {
            thread_pool,
            isa,
            scratch,
            angles: Mutex::default(),
            plan: Mutex::default(),
            method: simd::packed::Method::best(isa),
            packed_inputs: Mutex::default(),
            observer,
        }
    }

    pub fn threads(&self) -> usize {
        self.thread_pool.size()
    }

    /// A worker's own scratch, so the lock is never contended. A panic leaves it usable.
    fn scratch(&self, worker: usize) -> MutexGuard<'_, Scratch> {
        self.scratch[worker].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn angles(&self) -> MutexGuard<'_, rope::Angles> {
        self.angles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn packed_inputs(&self) -> MutexGuard<'_, Vec<simd::packed::Input>> {
        self.packed_inputs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self) -> MutexGuard<'_, attention::Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces K and V of rows `[q | k | v]` by what storing and reading makes of them.
    fn kv_round_trip(&self, qkv: &mut Acts, g: &KvGeometry, n: usize) {
        if g.codec.is_exact() {
            return;
        }
        self.rows(qkv, n, |row, _| {
            let (k, v) = row[g.n_q_heads * g.head_dim..].split_at_mut(g.n_kv_heads * g.head_dim);
            k.chunks_exact_mut(g.head_dim).for_each(|row| g.codec.round_trip_k(row));
            v.chunks_exact_mut(g.head_dim).for_each(|row| g.codec.round_trip_v(row));
        });
    }

    /// `out = x weight^T + bias`
    fn multiply(&self, out: &mut Acts, x: &Acts, weight: &Weight, bias: Option<&Vec<f32>>, n: usize) {
        linear::linear(self, &mut out.data, &x.data[..n * weight.cols()], weight.all(), bias.map(Vec::as_slice), n);
    }

    /// Calls `gate(out row, gate, up)` for the rows `[gate | up]` of `y`.
    fn gated(&self, out: &mut Acts, y: &Acts, n: usize, gate: impl Fn(Isa, &mut [f32], &[f32], &[f32]) + Sync) {
        self.rows(out, n, |out, i| {
            let (gates, up) = y.row(i).split_at(y.width / 2);
            gate(self.isa, out, gates, up);
        });
    }

    /// Calls `row(out row, row number)` for the first `n` rows of `out`, in parallel.
    fn rows(&self, out: &mut Acts, n: usize, row: impl Fn(&mut [f32], usize) + Sync) {
        let width = out.width;
        let rows = if n * width <= ALONE { n } else { n.div_ceil(4 * self.threads()) };
        self.thread_pool.tiles(&mut Tile::new(&mut out.data, n, width), rows.max(1), width.max(1), |_, tile| {
            for i in 0..tile.rows() {
                let number = tile.row_range().start + i;
                row(tile.row_mut(i), number);
            }
        });
    }
}

fn zeroed<T: Plain>(len: usize) -> Result<Vec<T>, OutOfMemory> {
    let mut v = Vec::new();
    system::may_fail(|| v.try_reserve_exact(len))
        .map_err(|_| OutOfMemory { what: "host", needed_bytes: (len * std::mem::size_of::<T>()) as u64 })?;
    v.resize(len, T::default());
    Ok(v)
}

impl Report for Cpu {
    fn about(&self) -> About {
        let threads = self.threads();
        let name = format!("cpu, {threads} thread{}, {}", if threads == 1 { "" } else { "s" }, self.isa.name());
        About { name, library: None, step_tokens: 512..=512, chunk_tokens: None, staged_rows: 16, own_experts: true }
    }
}

impl Measure for Cpu {
    /// Every thread copies a block larger than its caches.
    fn copy_bytes_per_s(&self) -> anyhow::Result<f64> {
        const BLOCK: usize = 64 << 20;
        let threads = self.threads();
        let mut blocks: Vec<(Vec<u8>, Vec<u8>)> = (0..threads).map(|_| (vec![1; BLOCK], vec![2; BLOCK])).collect();
        let mut best = f64::INFINITY;
        for _ in 0..4 {
            let start = std::time::Instant::now();
            std::thread::scope(|scope| {
                for (from, to) in &mut blocks {
                    scope.spawn(move || to.copy_from_slice(std::hint::black_box(from)));
                }
            });
            best = best.min(start.elapsed().as_secs_f64());
        }
        std::hint::black_box(&blocks);
        Ok((2 * BLOCK * threads) as f64 / best)
    }

    fn write_acts(&self, dst: &mut Acts, rows: &[f32]) {
        dst.data[..rows.len()].copy_from_slice(rows);
    }

    fn page_refs(&self, kv: &KvTables<Self>) -> Vec<u32> {
        kv.pool.refs().to_vec()
    }

    fn importance(
        &self,
        out: &mut [f32],
        qkv: &mut Acts,
        geometry: &KvGeometry,
        rope: &QkvRopeArgs<'_, Self>,
        queries: &Queries<'_>,
    ) {
        attention::importance(self, out, qkv, geometry, rope, queries);
    }
}

impl Device for Cpu {
    type Buf<T: Plain> = Vec<T>;
    type Acts = Acts;
    type Weight = Weight;

    fn alloc<T: Plain>(&self, len: usize) -> Result<Vec<T>, OutOfMemory> {
        zeroed(len)
    }

    fn write<T: Plain>(&self, dst: &mut Vec<T>, at: usize, src: &[T]) {
        dst[at..at + src.len()].copy_from_slice(src);
    }

    fn read<T: Plain>(&self, src: &Vec<T>, at: usize, dst: &mut [T]) {
        dst.copy_from_slice(&src[at..at + dst.len()]);
    }

    fn acts(&self, rows: usize, width: usize, _: Use<'_, Weight>) -> Result<Acts, OutOfMemory> {
        Ok(Acts { data: zeroed(rows * width)?, width })
    }

    fn read_acts(&self, src: &Acts, rows: &mut [f32]) {
        rows.copy_from_slice(&src.data[..rows.len()]);
    }

    fn weight(&self, parts: &[Tensor]) -> Result<Weight, OutOfMemory> {
        Ok(Weight::new(parts))
    }
}

impl Ops for Cpu {
    fn embed(&self, out: &mut Acts, table: &Weight, tokens: &Vec<Token>, scale: f32, n: usize) {
        self.rows(out, n, |out, i| {
            table.row_to_f32(self.isa, tokens[i] as usize, out);
            if scale != 1.0 {
                maths::scale(self.isa, out, scale);
            }
        });
    }

    fn rms_norm(&self, out: &mut Acts, x: &Acts, norm: Norm<'_, Self>, add: bool, n: usize) {
        let sane = AtomicBool::new(true);
        self.rows(out, n, |out, i| {
            let mut normed = if add { vec![0.0; out.len()] } else { Vec::new() };
            let into = if add { &mut normed[..] } else { &mut *out };
            if !maths::rms_norm(self.isa, into, x.row(i), norm.weight, norm.eps).is_finite() {
                sane.store(false, Ordering::Relaxed);
            }
            if add {
                maths::add(self.isa, out, &normed);
            }
        });
        if !sane.into_inner() {
            norm.non_finite[0] = norm.non_finite[0].min(norm.layer as i32);
        }
    }

    fn linear(&self, out: &mut Acts, x: &Acts, layer: Linear<'_, Self>, n: usize) {
        let x = match layer.before {
            Some((norm, normed)) => {
                self.rms_norm(normed, x, norm, false, n);
                &*normed
            }
            None => x,
        };
        let multiply = |y: &mut Acts| self.multiply(y, x, layer.weight, layer.bias, n);
        match layer.after {
            After::Store => multiply(out),
            After::Add(y) => {
                multiply(y);
                self.rows(out, n, |out, i| maths::add(self.isa, out, y.row(i)));
            }
            After::Swiglu(y) => {
                multiply(y);
                self.gated(out, y, n, maths::swiglu);
            }
            After::Geglu(y) => {
                multiply(y);
                self.gated(out, y, n, maths::geglu);
            }
        }
    }

    fn attention(&self, out: &mut Acts, args: AttentionArgs<'_, Self>) {
        let AttentionArgs { qkv, decisions, kv, layer, spans, rope } = args;
        rope::qkv_rope(self, qkv, decisions, kv, layer, spans, rope);
        self.kv_round_trip(qkv, &kv.geometry, spans.iter().map(|s| s.len).sum());
        if kv.geometry.policy.scored().is_some() {
            attention::attend_in_order(self, out, qkv, kv, layer, spans);
        } else {
            attention::attend(self, out, qkv, decisions, kv, layer, spans);
            attention::count_reads(self, kv, spans);
            if !rope.staged {
                kv::place(kv, decisions, layer, spans);
                kv::store(kv, qkv, layer, spans);
            }
        }
        if rope.gated {
            let g = &kv.geometry;
            let behind_v = (g.n_q_heads + 2 * g.n_kv_heads) * g.head_dim;
            let n = spans.iter().map(|s| s.start + s.len).max().unwrap_or(0);
            self.rows(out, n, |out, i| maths::gate(self.isa, out, &qkv.row(i)[behind_v..]));
        }
    }

    fn commit(&self, rows: &Acts, decisions: &Vec<f32>, kv: &mut KvTables<Self>, layer: usize, spans: &[Span]) {
        let lived = kv::place(kv, decisions, layer, spans);
        kv::store(kv, rows, layer, spans);
        for (span, lived) in spans.iter().zip(lived).filter(|(span, _)| span.len > 1) {
            kv.reads[span.seq] += lived;
        }
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

    fn advance(&self, kv: &mut KvTables<Self>, tokens: Option<&Vec<Token>>, spans: &[Span]) {
        kv::advance(kv, tokens, spans);
    }

    fn select_rows(&self, out: &mut Acts, x: &Acts, rows: &[usize]) {
        for (i, &row) in rows.iter().enumerate() {
            out.row_mut(i).copy_from_slice(x.row(row));
        }
    }

    fn sample(&self, sampled: &mut Vec<Token>, logits: &mut Acts, args: &SampleArgs<'_, Self>, n: usize) {
        let (vocab, words) = (logits.width, args.kv.geometry.seen_words());
        for (i, draw) in args.draws[..n].iter().enumerate() {
            let (seq, ahead, params) = (draw.seq as usize, draw.ahead as usize, draw.params());
            let seen = &args.kv.seen[seq * words..(seq + 1) * words];
            let own = args.staged.map_or(&[][..], |tokens| &tokens[i + 1 - ahead..=i]);
            let fed = (0..vocab as Token).filter(|t| seen[*t as usize / 32] >> (t % 32) & 1 > 0 || own.contains(t));
            let position = args.kv.seq_len[seq] as usize + ahead;
            sampled[i] = crate::sampler::sample(logits.row_mut(i), &params, fed, draw.seed(), position as u64);
        }
    }

    fn read_step(&self, sampled: &Vec<Token>, non_finite: &Vec<i32>, _kv: &KvTables<Self>, n: usize) -> StepResult {
        let non_finite = (non_finite[0] != i32::MAX).then_some(non_finite[0] as usize);
        StepResult { tokens: sampled[..n].to_vec(), non_finite }
    }
}
