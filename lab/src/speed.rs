//! `dmslab speed`: measures every op of a forward pass alone, at the shapes of a model, and prints
//! a Markdown table.
//!
//! The table shows the minimum of bytes or FLOP of an op and its share of the copy speed: the share
//! of the measured time that an ideal machine would need. Weights and caches exceed the device's
//! L2, so they are read from memory. Their values are random.

use crate::checks::{CODECS, Random, acts, buffer, geometry};
use crate::gpu;
use anyhow::Result;
use dmschat::backend::cuda::Cuda;
use dmschat::backend::{
    After, KvTables, Linear, Measure, Norm, QkvRopeArgs, Report as _, SampleArgs, SamplingState, Span, Use,
};
use dmschat::cache::{KvCache, SeqId};
use dmschat::checkpoint::{Checkpoint, ModelConfig};
use dmschat::cli::devices::cuda_options;
use dmschat::cli::output;
use dmschat::codec::Codec;
use dmschat::config::Gemm;
use dmschat::policy::{Dms, Policy, Shift};
use dmschat::protocol::SamplingParams;
use dmschat::tensor::{DType, Tensor};
use std::sync::Arc;

/// Free bytes that the smallest table needs.
const LEAST_BYTES: u64 = 2 << 30;
/// Free bytes and copy speed of a GPU on which the large table takes a few seconds.
const ROOMY_BYTES: u64 = 6 << 30;
const FAST_BYTES_PER_S: f64 = 50e9;
const SHAPE: &str = "qwen3-8b";
const SMALL_SHAPE: &str = "demo";

pub fn run(index: u32) -> Result<u8> {
    drop(gpu::open(index, &cuda_options(false, Gemm::Own))?);
    time_ops(index)?;
    Ok(output::OK)
}

/// Prints the speed of every op, at the shapes of a model that suits the GPU.
pub fn time_ops(index: u32) -> Result<()> {
    let cuda = Cuda::open(index, &cuda_options(true, Gemm::Own))?;
    let (free, _) = cuda.memory();
    if free < LEAST_BYTES {
        output::out("ops are not timed: the GPU has less than 2 GiB of free memory\n")?;
        return Ok(());
    }
    let copy = cuda.copy_bytes_per_s()?;
    let large = free >= ROOMY_BYTES && copy >= FAST_BYTES_PER_S;
    let (shape, sizes) = if large { (SHAPE, Sizes::large()) } else { (SMALL_SHAPE, Sizes::small()) };
    let config = Checkpoint::shape(shape)?;
    let why = if large { "" } else { ": the GPU is too small or too slow for a larger one" };
    let head = format!("\nops at the shapes of {shape}{why}; a copy within the GPU moves {:.0} GB/s\n", copy / 1e9);
    output::out(&(head + HEADER))?;
    // A closed stdout is reported by the last write.
    let report = &mut |line: String| drop(output::out(&line));
    Table { b: &cuda, c: &config, sizes: &sizes, copy_bytes_per_s: copy, report }.all()?;
    drop(cuda);
    let cuda = Cuda::open(index, &cuda_options(true, Gemm::Auto))?;
    if let Some(library) = cuda.about().library {
        output::out(&format!("\nGEMMs by {library}\n{HEADER}"))?;
        Table { b: &cuda, c: &config, sizes: &sizes, copy_bytes_per_s: copy, report }.gemms(&sizes.prefill)?;
    }
    Ok(())
}

/// The sizes to measure.
pub struct Sizes {
    /// Sequences that decode together.
    pub decode: Vec<usize>,
    /// Rows of a prefill step.
    pub prefill: Vec<usize>,
    /// Slots per head.
    pub slots: Vec<usize>,
    /// Bytes of weights, or of a cache, over which one op is measured.
    pub spread_bytes: usize,
    /// Launches of an op per CUDA graph.
    pub calls: usize,
}

impl Sizes {
    /// For a GPU: more bytes than its L2 holds.
    pub fn large() -> Self {
        Self {
            decode: vec![1, 8],
            prefill: vec![512, 1024, 2048],
            slots: vec![1024, 4096],
            spread_bytes: 160 << 20,
            calls: 8,
        }
    }

    /// For slow or small devices: every op runs, but the figures mean little.
    pub fn small() -> Self {
        Self { decode: vec![1, 3], prefill: vec![40], slots: vec![50], spread_bytes: 0, calls: 2 }
    }
}

/// The minimum work of an op.
#[derive(Clone, Copy)]
enum Work {
    Bytes(usize),
    Flop(f64),
}

const HEADER: &str = "\
| op                              | rows |       us |   at least |   a second | of copy |
| ------------------------------- | ---: | -------: | ---------: | ---------: | ------: |
";

/// Measures ops and reports each as a line.
struct Table<'a, B: Measure> {
    b: &'a B,
    c: &'a ModelConfig,
    sizes: &'a Sizes,
    copy_bytes_per_s: f64,
    report: &'a mut dyn FnMut(String),
}

impl<B: Measure> Table<'_, B> {
    fn all(&mut self) -> Result<()> {
        self.rows()?;
        self.gemms(&self.all_rows())?;
        self.head()?;
        self.attention()?;
        self.samples()
    }

    fn report(&mut self, name: &str, rows: usize, us: f64, work: Work) {
        let per_s = 1e6 / us;
        let (least, speed, share) = match work {
            Work::Bytes(n) => {
                let speed = n as f64 * per_s;
                let share = format!("{:.0} %", 100.0 * speed / self.copy_bytes_per_s);
                (format!("{:.2} MB", n as f64 / 1e6), format!("{:.0} GB/s", speed / 1e9), share)
            }
            Work::Flop(n) => {
                (format!("{:.2} GFLOP", n / 1e9), format!("{:.1} TFLOP/s", n * per_s / 1e12), String::new())
            }
        };
        let line = format!("| {name:<31} | {rows:>4} | {us:>8.2} | {least:>10} | {speed:>10} | {share:>7} |\n");
        (self.report)(line);
    }

    fn all_rows(&self) -> Vec<usize> {
        [&self.sizes.decode[..], &self.sizes.prefill[..]].concat()
    }

    /// Time of an op without side effects, in microseconds.
    fn time<S>(&self, calls: usize, mut state: S, op: impl Fn(&mut S, usize)) -> f64 {
        self.b.time_us(calls, &mut state, |_| {}, op)
    }

    /// A matrix whose rows repeat a random block.
    fn weight(&self, rows: usize, cols: usize) -> Result<B::Weight> {
        const BLOCK: usize = 256;
        let block = Random::new(9).tensor(DType::Bf16, BLOCK.min(rows), cols);
        let bytes = Arc::new(block.bytes().to_vec());
        let part = |first: usize| {
            let n = BLOCK.min(rows - first);
            Tensor::new("random", DType::Bf16, vec![n, cols], bytes.clone(), 0..2 * n * cols)
        };
        Ok(self.b.weight(&(0..rows).step_by(BLOCK).map(part).collect::<Vec<_>>())?)
    }

    /// Random activations that are only inputs of matmuls with `reader`.
    fn matmul_input(&self, n: usize, width: usize, reader: &B::Weight) -> Result<B::Acts> {
        let mut x = self.b.acts(n, width, Use::Input(&[reader]))?;
        self.b.write_acts(&mut x, &Random::new(4).floats(n * width));
        Ok(x)
    }

    /// Row-wise ops.
    fn rows(&mut self) -> Result<()> {
        let (b, c) = (self.b, self.c);
        let table = self.weight(c.vocab, c.hidden)?;
        let norm = buffer(b, &vec![1.0f32; c.hidden]);
        for n in self.all_rows() {
            let mut random = Random::new(3);
            let tokens: Vec<u32> = (0..n).map(|_| random.below(c.vocab) as u32).collect();
            let (tokens, out) = (buffer(b, &tokens), b.acts(n, c.hidden, Use::Any)?);
            let calls = self.sizes.calls;
            let us = self.time(calls, out, |out, _| b.embed(out, &table, &tokens, 1.0, n));
            self.report("embed", n, us, Work::Bytes(n * c.hidden * 6));
            let x = acts(b, c.hidden, &random.floats(n * c.hidden));
            let state = (self.matmul_input(n, c.hidden, &table)?, b.alloc::<i32>(1)?);
            let us = self.time(calls, state, |(out, non_finite), _| {
                b.rms_norm(out, &x, Norm { weight: &norm, eps: c.rms_eps, layer: 0, non_finite }, None, n);
            });
            self.report("norm", n, us, Work::Bytes(n * c.hidden * 6));
        }
        Ok(())
    }

    fn gemms(&mut self, all_rows: &[usize]) -> Result<()> {
        let c = self.c;
        let heads = c.head_dim * (c.n_q_heads + 2 * c.n_kv_heads);
        self.matmul("qkv", heads, c.hidden, all_rows)?;
        self.matmul("o", c.hidden, c.n_q_heads * c.head_dim, all_rows)?;
        self.linear_swiglu(all_rows)?;
        self.matmul("down", c.hidden, c.ffn, all_rows)
    }

    /// Enough weights of one shape to exceed L2.
    fn copies(&self, out: usize, cols: usize) -> Result<(Vec<B::Weight>, usize)> {
        let copies = (self.sizes.spread_bytes / (2 * out * cols)).max(1);
        let weights = (0..copies).map(|_| self.weight(out, cols)).collect::<Result<Vec<_>>>()?;
        Ok((weights, copies * self.sizes.calls.div_ceil(copies)))
    }

    fn matmul(&mut self, name: &str, out: usize, cols: usize, all_rows: &[usize]) -> Result<()> {
        let b = self.b;
        let (weights, calls) = self.copies(out, cols)?;
        for &n in all_rows {
            let x = self.matmul_input(n, cols, &weights[0])?;
            let us = self.time(calls, b.acts(n, out, Use::Any)?, |y, i| {
                b.linear(y, &x, Linear::plain(&weights[i % weights.len()]), n);
            });
            self.report_matmul(name, out, cols, n, us, 2 * cols + 4 * out);
        }
        Ok(())
    }

    /// The GEMM and SwiGLU.
    fn linear_swiglu(&mut self, all_rows: &[usize]) -> Result<()> {
        let (b, c) = (self.b, self.c);
        let (weights, calls) = self.copies(2 * c.ffn, c.hidden)?;
        let down = self.weight(c.hidden, c.ffn)?;
        for &n in all_rows {
            let (x, out) = (self.matmul_input(n, c.hidden, &weights[0])?, b.acts(n, c.ffn, Use::Input(&[&down]))?);
            let scratch = b.acts(n, 2 * c.ffn, Use::GateUp(&[&weights[0], &down]))?;
            let us = self.time(calls, (out, scratch), |(out, scratch), i| {
                let after = After::Swiglu(scratch);
                b.linear(out, &x, Linear { after, ..Linear::plain(&weights[i % weights.len()]) }, n);
            });
            self.report_matmul("gate_up, gate", 2 * c.ffn, c.hidden, n, us, 2 * c.hidden + 2 * c.ffn);
        }
        Ok(())
    }

    fn head(&mut self) -> Result<()> {
        let (b, c) = (self.b, self.c);
        let head = self.weight(c.vocab, c.hidden)?;
        for n in self.sizes.decode.clone() {
            let x = self.matmul_input(n, c.hidden, &head)?;
            let out = b.acts(n, c.vocab, Use::Any)?;
            let us = self.time(self.sizes.calls, out, |out, _| b.linear(out, &x, Linear::plain(&head), n));
            self.report_matmul("lm_head", c.vocab, c.hidden, n, us, 2 * c.hidden + 4 * c.vocab);
        }
        Ok(())
    }

    /// Small batches are bound by the weight's bytes, prefill by FLOP.
    fn report_matmul(&mut self, name: &str, out: usize, cols: usize, n: usize, us: f64, row_bytes: usize) {
        let work = match self.sizes.decode.contains(&n) {
            true => Work::Bytes(2 * out * cols + n * row_bytes),
            false => Work::Flop(2.0 * (n * out * cols) as f64),
        };
        self.report(&format!("{name} {out} x {cols}"), n, us, work);
    }

    fn attention(&mut self) -> Result<()> {
        for &codec in CODECS {
            for slots in self.sizes.slots.clone() {
                for n in self.sizes.decode.clone() {
                    self.attention_of(codec, slots, n, 1)?;
                }
            }
            let past = self.sizes.slots.last().copied().unwrap_or(0);
            for n in self.sizes.prefill.clone() {
                self.attention_of(codec, 0, 1, n)?;
                self.attention_of(codec, past, 1, n)?;
            }
        }
        Ok(())
    }

    /// Attention of `n_seqs` sequences with `slots` slots per head and `len` new tokens each, over
    /// all layers. Chunks start again for every launch, because the new tokens are appended.
    fn attention_of(&mut self, codec: Codec, slots: usize, n_seqs: usize, len: usize) -> Result<()> {
        let (b, c) = (self.b, self.c);
        let lane_bytes = (slots + len) * codec.slot_bytes(c.head_dim);
        let decode = len == 1;
        let spread = (self.sizes.spread_bytes / (n_seqs * c.n_kv_heads * lane_bytes)).clamp(1, 64);
        let n_layers = if decode { spread } else { self.sizes.calls };
        let calls = n_layers * self.sizes.calls.div_ceil(n_layers);
        let trained = c.dms.as_ref().map_or(Dms::new(512, Shift::Previous), |d| d.rule);
        let shape = [c.head_dim, c.n_kv_heads, c.n_q_heads / c.n_kv_heads];
        let geometry = geometry(Policy::Dms(trained), codec, shape, [n_layers, n_seqs]);
        // Every launch of a graph appends a token to each lane.
        let more = if decode { 8 * calls.div_ceil(n_layers) } else { len };
        let fill = slots.clamp(1, 1024);
        let max_step = fill.max(n_seqs * len);
        let mut cache = KvCache::new(b, geometry, slots + more, max_step)?;
        let width = (c.n_q_heads + 2 * c.n_kv_heads) * c.head_dim;
        let mut random = Random::new(6);
        let qkv = acts(b, width, &random.floats(max_step * width));
        // No token is marked, so that all slots stay.
        let decisions = buffer(b, &vec![-1.0f32; max_step * c.n_kv_heads]);
        let out = b.acts(max_step, c.n_q_heads * c.head_dim, Use::Any)?;
        let mut seqs = Vec::new();
        for _ in 0..n_seqs {
            seqs.push(cache.create(b, true)?);
        }
        let inv_freq = buffer(b, &vec![0.01f32; c.head_dim / 2]);
        let norm = buffer(b, &vec![1.0f32; c.head_dim]);
        let rope = QkvRopeArgs {
            qk_norm: c.spec.qk_norm.then_some([&norm, &norm]),
            rms_eps: c.rms_eps,
            ..QkvRopeArgs::plain(&inv_freq)
        };
        let spans = |seqs: &[SeqId], cache: &KvCache<B>| -> Vec<Span> {
            seqs.iter().enumerate().map(|(i, &seq)| cache.span(seq, i * len, len)).collect()
        };
        let layer = |s: &mut Attention<B>, layer: usize, spans: &[Span]| {
            s.cache.attention(b, &mut s.out, &mut s.qkv, &mut s.decisions, layer, spans, &rope);
        };
        let filled = |s: &mut Attention<B>| {
            for &seq in &s.seqs.clone() {
                for at in (0..slots).step_by(fill) {
                    let chunk = [s.cache.span(seq, 0, fill.min(slots - at))];
                    s.cache.reserve_step(b, &chunk).expect("memory for a chunk");
                    (0..n_layers).for_each(|l| layer(s, l, &chunk));
                    s.cache.finish(b, &chunk);
                }
            }
            let room: Vec<Span> = s.seqs.iter().map(|&seq| s.cache.span(seq, 0, more)).collect();
            s.cache.reserve_step(b, &room).expect("memory for the timed steps");
        };
        let mut state = Attention { cache, qkv, decisions, out, seqs };
        if decode {
            filled(&mut state);
        }
        let before = |s: &mut Attention<B>| {
            if !decode {
                s.cache.release(b, s.seqs[0]);
                s.seqs[0] = s.cache.create(b, true).expect("the row that was released");
                filled(s);
            }
        };
        let us = b.time_us(calls, &mut state, before, |s, i| {
            let spans = spans(&s.seqs, &s.cache);
            layer(s, i % n_layers, &spans);
        });
        let name = format!("attention {} over {slots}", codec.name());
        let stored = n_seqs * c.n_kv_heads * slots * codec.slot_bytes(c.head_dim);
        let pairs = c.n_q_heads * (len * slots + len * (len + 1) / 2);
        let work = match decode {
            true => Work::Bytes(stored + n_seqs * 4 * (width + c.n_q_heads * c.head_dim)),
            false => Work::Flop(4.0 * (c.head_dim * pairs) as f64),
        };
        self.report(&name, n_seqs * len, us, work);
        Ok(())
    }

    fn samples(&mut self) -> Result<()> {
        let (b, vocab) = (self.b, self.c.vocab);
        let greedy = SamplingParams::default();
        let qwen = SamplingParams { temperature: 0.6, top_k: 20, top_p: 0.95, ..greedy.clone() };
        let wide = SamplingParams { temperature: 1.0, top_p: 0.95, ..greedy.clone() };
        let ways = [("sample greedy", greedy), ("sample 0.6, k 20, p 0.95", qwen), ("sample 1, p 0.95", wide)];
        for n in self.sizes.decode.clone() {
            // Approximately normal, like logits.
            let mut random = Random::new(5);
            let rows: Vec<f32> = (0..n * vocab).map(|_| (0..6).map(|_| random.float()).sum::<f32>() * 1.5).collect();
            let mut logits = b.acts(n, vocab, Use::Logits)?;
            b.write_acts(&mut logits, &rows);
            let mut geometry = geometry(Policy::Dense, CODECS[0], [8, 1, 1], [1, n]);
            geometry.vocab = vocab;
            let (kv, non_finite) = (KvTables::new(b, geometry, 1, n)?, buffer(b, &[i32::MAX]));
            for (name, params) in &ways {
                let draws: Vec<SamplingState> = (0..n).map(|i| SamplingState::new(i, i as u64, params)).collect();
                let greedy = draws.iter().all(SamplingState::is_greedy);
                let draws = buffer(b, &draws);
                let args = SampleArgs {
                    draws: &draws,
                    kv: &kv,
                    non_finite: &non_finite,
                    staged: None,
                    greedy,
                    masks: None,
                    adjusts: None,
                };
                let state = (b.alloc(n)?, &mut logits);
                let us = self.time(self.sizes.calls, state, |(sampled, logits), _| {
                    b.sample(sampled, logits, &args, n);
                });
                self.report(name, n, us, Work::Bytes(4 * n * vocab));
            }
        }
        Ok(())
    }
}

/// The inputs of attention.
struct Attention<B: Measure> {
    cache: KvCache<B>,
    qkv: B::Acts,
    decisions: B::Buf<f32>,
    out: B::Acts,
    seqs: Vec<SeqId>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmschat::backend::cpu::Cpu;
    use dmschat::checkpoint::Checkpoint;

    #[test]
    fn every_op_has_its_lines() {
        let config = Checkpoint::shape("demo").unwrap();
        let mut text = HEADER.to_owned();
        let (b, sizes, report) = (Cpu::new(2), Sizes::small(), &mut |line: String| text.push_str(&line));
        Table { b: &b, c: &config, sizes: &sizes, copy_bytes_per_s: 1e9, report }.all().unwrap();
        for op in ["embed", "norm", "qkv", "o ", "gate_up", "down", "lm_head", "attention fp8", "sample"] {
            assert!(text.contains(&format!("| {op}")), "{op} is missing:\n{text}");
        }
        assert!(text.lines().all(|l| l.chars().filter(|&c| c == '|').count() == 7), "{text}");
    }
}
