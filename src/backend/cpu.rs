//! The CPU backend: f32 arithmetic on a thread pool, composed of plain ops. It is the reference for
//! every other backend. Only `simd` and `thread_pool` hold `unsafe`.

mod angles;
mod attention;
mod delta;
mod device;
mod experts;
mod far;
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
use crate::protocol::{SamplingState, Token};
use crate::tensor::Tensor;
use device::zeroed;
pub use device::{Acts, Cpu, Watch};
pub use linear::Weight;
pub use pool::Pool;
use simd::maths;
use std::sync::atomic::{AtomicBool, Ordering};

impl Cpu {
    /// `out = x weight^T + bias`
    fn multiply(&self, out: &mut Acts, x: &Acts, weight: &Weight, bias: Option<&Vec<f32>>, n: usize) {
        linear::linear(self, &mut out.data, &x.data[..n * weight.cols()], weight.all(), bias.map(Vec::as_slice), n);
    }
}

impl Report for Cpu {
    fn about(&self) -> About {
        let threads = self.threads();
        let name = format!("cpu, {threads} thread{}, {}", if threads == 1 { "" } else { "s" }, self.isa.name());
        About {
            name,
            library: None,
            step_tokens: 512..=512,
            chunk_tokens: None,
            staged_rows: 16,
            codes_of_experts: None,
        }
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

    fn rms_norm(&self, out: &mut Acts, x: &Acts, norm: Norm<'_, Self>, add: Option<f32>, n: usize) {
        let (sane, width) = (AtomicBool::new(true), norm.weight.len());
        self.rows(out, n, |out, i| {
            let mut normed = if add.is_some() { vec![0.0; out.len()] } else { Vec::new() };
            let into = if add.is_some() { &mut normed[..] } else { &mut *out };
            for (into, x) in into.chunks_exact_mut(width).zip(x.row(i).chunks_exact(width)) {
                if !maths::rms_norm(self.isa, into, x, norm.weight, norm.eps).is_finite() {
                    sane.store(false, Ordering::Relaxed);
                }
            }
            if let Some(factor) = add {
                maths::add(self.isa, out, &normed);
                if factor != 1.0 {
                    maths::scale(self.isa, out, factor);
                }
            }
        });
        if !sane.into_inner() {
            norm.non_finite[0] = norm.non_finite[0].min(norm.layer as i32);
        }
    }

    fn copy(&self, out: &mut Acts, x: &Acts, n: usize) {
        self.rows(out, n, |out, i| out.copy_from_slice(x.row(i)));
    }

    fn linear(&self, out: &mut Acts, x: &Acts, layer: Linear<'_, Self>, n: usize) {
        let x = match layer.before {
            Some((norm, normed)) => {
                self.rms_norm(normed, x, norm, None, n);
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
            After::GeluTimes { y, rows, at } => {
                multiply(y);
                self.rows(out, n, |out, i| {
                    let times = &rows.row(i)[at..at + out.len()];
                    maths::geglu(self.isa, out, y.row(i), times);
                });
            }
            After::Cap(cap) => {
                multiply(out);
                self.rows(out, n, |out, _| out.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh()));
            }
        }
    }

    fn attention(&self, out: &mut Acts, args: AttentionArgs<'_, Self>) {
        let AttentionArgs { qkv, decisions, kv, layer, spans, rope } = args;
        rope::qkv_rope(self, qkv, decisions, kv, layer, spans, rope);
        if rope.keys_of.is_none() {
            kv::round_trip(self, qkv, kv, layer, spans);
        }
        if kv.geometry.policy.scored().is_some() {
            attention::attend_in_order(self, out, qkv, decisions, kv, layer, spans, rope);
        } else {
            attention::attend(self, out, qkv, decisions, kv, layer, spans, rope);
            attention::count_reads(self, kv, spans);
            if !rope.staged && !rope.lends && rope.keys_of.is_none() {
                kv::append(kv, qkv, decisions, layer, spans);
            }
        }
        if rope.gated {
            let g = &kv.geometry.of_layer(layer);
            let behind_v = (g.n_q_heads + 2 * g.n_kv_heads) * g.head_dim;
            let n = spans.iter().map(|s| s.start + s.len).max().unwrap_or(0);
            self.rows(out, n, |out, i| maths::gate(self.isa, out, &qkv.row(i)[behind_v..]));
        }
    }

    fn commit(
        &self,
        rows: &Acts,
        decisions: &Vec<f32>,
        kv: &mut KvTables<Self>,
        layer: usize,
        spans: &[Span],
        drafts: bool,
    ) {
        let lived = kv::append(kv, rows, decisions, layer, spans);
        for (span, lived) in spans.iter().zip(lived).filter(|(span, _)| drafts && span.len > 1) {
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
        for (i, adjusts) in
            args.adjusts.iter().flat_map(|all| all.chunks(SamplingState::MOST_ADJUSTED)).take(n).enumerate()
        {
            let row = logits.row_mut(i);
            adjusts[..args.draws[i].adjusted as usize].iter().for_each(|a| row[a.token as usize] += a.add);
        }
        for (i, mask) in args.masks.iter().flat_map(|masks| masks.chunks(words)).take(n).enumerate() {
            if args.draws[i].masked != 0 {
                let row = logits.row_mut(i).iter_mut().enumerate();
                row.filter(|(t, _)| mask[t / 32] >> (t % 32) & 1 == 0).for_each(|(_, x)| *x = f32::NEG_INFINITY);
            }
        }
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
