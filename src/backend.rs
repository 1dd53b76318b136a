//! The contract of every op a device must offer, at the size at which kernels are fused.
//!
//! All ops write into a caller's buffer; none allocates. Shapes are `[rows, width]`, row-major.
//! A fused op is a provided method that composes plain ones, which makes the default the oracle
//! of an override. Knows policies, codecs and tensors; knows no model, no file, no conversation.
//!
//! One decode or prefill step runs inside [`Backend::step`], and the only read-back of a step is
//! [`Backend::read_step`]. Lengths and tables live in device memory ([`KvTables`]), so that a
//! backend may record a step once and replay it.

pub mod cpu;
pub mod cuda;

use crate::codec::Codec;
use crate::policy::Policy;
pub(crate) use crate::protocol::bytes as in_units;
use crate::protocol::{SamplingParams, Token};
use crate::tensor::Tensor;

/// Elements a device buffer may hold.
pub trait Plain: bytemuck::Pod + Send + Sync + Default {}
impl<T: bytemuck::Pod + Send + Sync + Default> Plain for T {}

/// Memory ran out. The engine survives it: the step has not run.
#[derive(Debug, thiserror::Error)]
#[error("out of {what} memory: {} more needed", in_units(*needed_bytes))]
pub struct OutOfMemory {
    pub what: &'static str,
    pub needed_bytes: u64,
}

/// The device stopped working in the middle of something: what an op unwinds with, for nothing that it
/// holds can be used any more. Whoever runs a model catches it and says so.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DeviceLost(pub String);

/// A run of consecutive tokens of one sequence inside a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Row of the cache's sequence tables.
    pub seq: usize,
    /// First row of the step's activations.
    pub start: usize,
    pub len: usize,
}

/// What is fixed about a KV cache when it is made.
#[derive(Clone, Copy, Debug)]
pub struct KvGeometry {
    pub n_layers: usize,
    pub n_q_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    /// Sequences the tables have rows for.
    pub n_seqs: usize,
    /// Slots in a page.
    pub page_slots: usize,
    /// Entries of one lane's page table.
    pub max_pages: usize,
    pub codec: Codec,
    pub policy: Policy,
}

impl KvGeometry {
    /// Lanes of one layer. Lane `seq * n_kv_heads + head` is one KV head of one sequence.
    pub fn n_lanes(&self) -> usize {
        self.n_seqs * self.n_kv_heads
    }

    pub fn lane(&self, seq: usize, head: usize) -> usize {
        seq * self.n_kv_heads + head
    }

    /// Index of a lane in `[n_layers, n_lanes]`.
    pub fn row(&self, layer: usize, seq: usize, head: usize) -> usize {
        layer * self.n_lanes() + self.lane(seq, head)
    }

    pub fn slot_bytes(&self) -> usize {
        self.codec.slot_bytes(self.head_dim)
    }

    pub fn page_bytes(&self) -> usize {
        self.page_slots * self.slot_bytes()
    }
}

/// The cache in device memory: pages, and who holds them. Only backend ops change it.
///
/// ```text
/// page   | K row 0..P | V row 0..P | K scales, V scales (fp8) | P x i32 position and mark |
/// table  lane -> page 0, page 1, ...        slot s = page s / P, row s % P
/// ring   token n of the newest W + 1 -> its slot, at n % (W + 1)
/// ```
pub struct KvTables<B: Backend> {
    pub geometry: KvGeometry,
    pub pool: B::Pool,
    /// `[n_layers, n_lanes, max_pages]`, -1 where there is none.
    pub page_table: B::Buf<i32>,
    /// `[n_layers, n_lanes]` stored slots.
    pub live: B::Buf<i32>,
    /// `[n_layers, n_lanes, ring_len]`.
    pub ring: B::Buf<i32>,
    /// `[n_seqs]` tokens fed before the step that is running.
    pub seq_len: B::Buf<i32>,
    /// `[n_seqs]` 1 where eviction is on.
    pub eviction: B::Buf<i32>,
    /// `[n_tokens, n_kv_heads]` the seam of policy and codec: the slot each token of the step is
    /// stored in, -1 where a later token of the same step has taken it. Of one layer, and of chunks only where a
    /// backend stores single tokens as it places them.
    pub slots: B::Buf<i32>,
}

impl<B: Backend> KvTables<B> {
    /// Empty tables for sequences of up to `context` tokens, with steps of at most `max_step` tokens in all.
    pub fn new(b: &B, mut geometry: KvGeometry, context: usize, max_step: usize) -> Result<Self, OutOfMemory> {
        /// Entries that are written at once.
        const FILL: usize = 1 << 20;
        geometry.max_pages = context.div_ceil(geometry.page_slots);
        let g = geometry;
        let lanes = g.n_layers * g.n_lanes();
        // Two sequences that write to a page they share may both copy it: one is free again after the step.
        let copies = if g.n_seqs > 1 { g.policy.most_written(max_step).min(g.max_pages) } else { 0 };
        let mut page_table = b.alloc(lanes * g.max_pages)?;
        let (entries, none) = (lanes * g.max_pages, vec![-1; (lanes * g.max_pages).min(FILL)]);
        for at in (0..entries).step_by(FILL) {
            b.write(&mut page_table, at, &none[..FILL.min(entries - at)]);
        }
        Ok(Self {
            geometry,
            pool: b.pool(&g, lanes * (g.max_pages + copies), max_step)?,
            page_table,
            live: b.alloc(lanes)?,
            ring: b.alloc(lanes * g.policy.ring_len())?,
            seq_len: b.alloc(g.n_seqs)?,
            eviction: b.alloc(g.n_seqs)?,
            slots: b.alloc(max_step * g.n_kv_heads)?,
        })
    }
}

/// Pages of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Pages held by at least one table.
    pub used_pages: usize,
    /// Pages of memory taken from the system.
    pub mapped_pages: usize,
}

/// What [`Backend::attention`] does to q and k first.
pub struct QkvRope<'a, B: Backend> {
    /// Weights `[head_dim]` of the per-head RMS norms of q and k (Qwen3).
    pub qk_norm: Option<[&'a B::Buf<f32>; 2]>,
    pub rms_eps: f32,
    /// `[head_dim / 2]` radians per position.
    pub inv_freq: &'a B::Buf<f32>,
    /// Factor on cos and sin (YaRN); 1 elsewhere.
    pub rope_scale: f32,
    /// Present for borrowed-neuron DMS: decisions come from q and the channel is zeroed.
    pub borrowed: Option<Alpha>,
}

/// `d = value * scale - offset`; `d > 0` marks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alpha {
    pub scale: f32,
    pub offset: f32,
    /// Head 0's decision serves all KV heads.
    pub per_layer: bool,
}

/// Arguments of [`Backend::adapter_decisions`].
pub struct AdapterHead<'a, B: Backend> {
    /// `[hidden]`
    pub norm: &'a B::Buf<f32>,
    /// `[n_kv_heads, hidden]`
    pub proj: &'a B::Weight,
    /// `[n_kv_heads]`
    pub bias: Option<&'a B::Buf<f32>>,
    pub rms_eps: f32,
    pub alpha: Alpha,
}

/// How the token after one sequence's step is chosen. It lives in device memory, so that a step that
/// is replayed finds what is wanted now.
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Draw {
    /// With the token's position, all that the random number depends on.
    pub seed: u64,
    /// Row of the cache's sequence tables.
    pub seq: u32,
    pub top_k: u32,
    pub temperature: f32,
    pub top_p: f32,
    pub min_p: f32,
    pub repetition_penalty: f32,
}

impl Draw {
    pub fn new(seq: usize, seed: u64, p: &SamplingParams) -> Self {
        Self {
            seed,
            seq: seq as u32,
            top_k: p.top_k,
            temperature: p.temperature,
            top_p: p.top_p,
            min_p: p.min_p,
            repetition_penalty: p.repetition_penalty,
        }
    }

    pub fn params(&self) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
        }
    }
}

/// Arguments of [`Backend::sample`].
pub struct SampleArgs<'a, B: Backend> {
    /// `[n]` one for each row.
    pub draws: &'a B::Buf<Draw>,
    /// `[n_seqs, seen_words(vocab)]` a bit for each token that was fed: what the penalty counts.
    pub seen: &'a B::Buf<u32>,
    /// `[n_seqs]` tokens fed: the position of the token to be chosen.
    pub seq_len: &'a B::Buf<i32>,
}

/// Words of a set of tokens.
pub fn seen_words(vocab: usize) -> usize {
    vocab.div_ceil(32)
}

/// What a step issues beside the forward pass. Steps of one kind whose spans are equally many and one
/// token long issue the same ops on the same buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// Nothing: its logits may be read afterwards.
    Feed,
    /// Logits, sampling and the post of what was sampled.
    Decode,
}

/// The read-back of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepResult {
    /// One for each row that was sampled from.
    pub tokens: Vec<Token>,
    /// First layer whose input was not finite; `n_layers` for the final norm.
    pub non_finite: Option<usize>,
}

/// A device that runs the ops. A weight shares the tensor's bytes or copies them, once, at load.
pub trait Backend: Sized + 'static {
    /// Typed device memory.
    type Buf<T: Plain>;
    /// Activations `[rows, width]` in the precision the backend computes in.
    type Acts;
    /// A weight matrix `[out, in]` in the file's precision.
    type Weight;
    /// Pages, their reference counts and the free list.
    type Pool;

    /// `cpu, 2 threads` or the card's name.
    fn describe(&self) -> String;

    // Memory. Never called inside a step.
    fn alloc<T: Plain>(&self, len: usize) -> Result<Self::Buf<T>, OutOfMemory>;
    fn write<T: Plain>(&self, dst: &mut Self::Buf<T>, at: usize, src: &[T]);
    fn read<T: Plain>(&self, src: &Self::Buf<T>, at: usize, dst: &mut [T]);
    /// Copies `len` values within a buffer; the ranges do not overlap.
    fn copy<T: Plain>(&self, buf: &mut Self::Buf<T>, from: usize, to: usize, len: usize);
    fn acts(&self, rows: usize, width: usize) -> Result<Self::Acts, OutOfMemory>;
    /// Activations that nothing but products with `readers` reads. A backend may keep them in the precision in which
    /// it multiplies, so that what writes them rounds to it: norms, the gate, attention, [`Self::select_rows`].
    fn operand(&self, rows: usize, width: usize, _readers: &[&Self::Weight]) -> Result<Self::Acts, OutOfMemory> {
        self.acts(rows, width)
    }
    /// Room `[rows, width]` for what [`Self::gated`] of `x` into `out` has between its product and the gate. A backend
    /// that does both at once needs none.
    fn gate_scratch(
        &self,
        rows: usize,
        width: usize,
        _x: &Self::Acts,
        _out: &Self::Acts,
    ) -> Result<Self::Acts, OutOfMemory> {
        self.acts(rows, width)
    }
    /// The first rows of activations, in f32, for checks and tests.
    fn write_acts(&self, dst: &mut Self::Acts, rows: &[f32]);
    /// As [`Self::write_acts`], the other way.
    fn read_acts(&self, src: &Self::Acts, rows: &mut [f32]);
    /// Stacks matrices of equal width by rows (q, k and v; gate and up) without copying them on
    /// the CPU.
    fn weight(&self, parts: &[Tensor]) -> Result<Self::Weight, OutOfMemory>;

    // The transformer. `n` is the number of rows in use.
    /// Enters a step's tokens in their sequences' sets: see [`SampleArgs::seen`].
    fn note(&self, seen: &mut Self::Buf<u32>, vocab: usize, tokens: &Self::Buf<Token>, spans: &[Span]);
    /// `out[i] = table[tokens[i]]`
    fn embed(&self, out: &mut Self::Acts, table: &Self::Weight, tokens: &Self::Buf<Token>, n: usize);
    /// `out = x / sqrt(mean(x^2) + eps) * weight`; a row that is not finite records `layer` in
    /// `fault[0]` unless an earlier layer stands there (`i32::MAX`: none).
    fn rms_norm(
        &self,
        out: &mut Self::Acts,
        x: &Self::Acts,
        norm: &Norm<'_, Self>,
        fault: &mut Self::Buf<i32>,
        n: usize,
    );
    /// `acc += x`
    fn add(&self, acc: &mut Self::Acts, x: &Self::Acts, n: usize);
    fn add_rms_norm(
        &self,
        out: &mut Self::Acts,
        residual: &mut Self::Acts,
        x: &Self::Acts,
        norm: &Norm<'_, Self>,
        fault: &mut Self::Buf<i32>,
        n: usize,
    ) {
        self.add(residual, x, n);
        self.rms_norm(out, residual, norm, fault, n);
    }
    /// `out = x weight^T + bias`
    fn linear(
        &self,
        out: &mut Self::Acts,
        x: &Self::Acts,
        weight: &Self::Weight,
        bias: Option<&Self::Buf<f32>>,
        n: usize,
    );
    /// `out = silu(gate) * up` of rows `[gate | up]`
    fn swiglu(&self, out: &mut Self::Acts, gate_up: &Self::Acts, n: usize);
    /// `out = silu(gate) * up` of `[gate | up] = x weight^T + bias`; `scratch` came from [`Self::gate_scratch`].
    fn gated(
        &self,
        out: &mut Self::Acts,
        scratch: &mut Self::Acts,
        x: &Self::Acts,
        weight: &Self::Weight,
        bias: Option<&Self::Buf<f32>>,
        n: usize,
    ) {
        self.linear(scratch, x, weight, bias, n);
        self.swiglu(out, scratch, n);
    }
    /// Decisions `[n, n_kv_heads]` from the layer's input, before its input norm. `scratch` is
    /// `[n, hidden]`, `raw` is `[n, n_kv_heads]`.
    fn adapter_decisions(
        &self,
        decisions: &mut Self::Buf<f32>,
        x: &Self::Acts,
        scratch: &mut Self::Acts,
        raw: &mut Self::Acts,
        head: &AdapterHead<'_, Self>,
        n: usize,
    );

    // The cache.
    /// One layer of a step, from the projected rows `[q heads | k heads | v heads]` to attention's output:
    ///
    /// - on the rows, in place: per-head norms of q and k, decisions `[n, n_kv_heads]` read from the borrowed
    ///   channel (last of each group's first query head), that channel zeroed, RoPE of q and k at
    ///   `seq_len + offset in span`, the channel zeroed again; then K and V become what storing and reading
    ///   makes of them;
    /// - attention of every row over its sequence's slots as they were before the step, and the step's own rows
    ///   up to itself, by the policy's visibility rule. The mark of the newest stored token comes from the
    ///   step's first decision (shift `Previous`);
    /// - every token of the step gets a slot (`kv.slots`), token after token by the policy: marks, rings, live
    ///   counts and slot metadata are written, pages taken and shared ones copied; K and V are encoded into it.
    ///
    /// A single token sees exactly the slots that live once it has its own: a backend may begin with the last of these,
    /// and leave the rows of single tokens as they are.
    #[allow(clippy::too_many_arguments)]
    fn attention(
        &self,
        out: &mut Self::Acts,
        qkv: &mut Self::Acts,
        decisions: &mut Self::Buf<f32>,
        kv: &mut KvTables<Self>,
        layer: usize,
        spans: &[Span],
        rope: &QkvRope<'_, Self>,
    );
    /// `seq_len += len` for every span: the end of a step.
    fn advance(&self, kv: &mut KvTables<Self>, spans: &[Span]);

    // Between steps.
    /// An empty pool that may grow to `max_pages`, for steps of up to `max_step` rows.
    fn pool(&self, geometry: &KvGeometry, max_pages: usize, max_step: usize) -> Result<Self::Pool, OutOfMemory>;
    /// Sees to it that `pages` can be taken without growing.
    fn reserve(&self, kv: &mut KvTables<Self>, pages: usize) -> Result<(), OutOfMemory>;
    /// Gives memory that no page uses back to the system where it can; a backend may move pages for it.
    fn trim(&self, kv: &mut KvTables<Self>);
    fn pool_stats(&self, kv: &KvTables<Self>) -> PoolStats;
    /// Reference counts of the first `mapped_pages` pages (0 = free), for audits and tests.
    fn page_refs(&self, kv: &KvTables<Self>) -> Vec<u32>;
    /// `to` (which must be empty) becomes a copy of `from` that shares all its pages.
    fn fork(&self, kv: &mut KvTables<Self>, from: usize, to: usize);
    /// Empties a sequence and gives its pages back.
    fn release(&self, kv: &mut KvTables<Self>, seq: usize);
    /// Drops every marked slot outside the window and closes the gaps, in fresh pages.
    fn compact(&self, kv: &mut KvTables<Self>, seq: usize);
    /// Metadata of a lane's slots, in slot order.
    fn slot_metas(&self, kv: &KvTables<Self>, layer: usize, seq: usize, head: usize) -> Vec<crate::policy::SlotMeta>;

    // The end of a step.
    /// `out[i] = x[rows[i]]`
    fn select_rows(&self, out: &mut Self::Acts, x: &Self::Acts, rows: &[usize]);
    /// `[n, vocab]` in f32.
    fn logits(&self, out: &mut Self::Buf<f32>, x: &Self::Acts, head: &Self::Weight, n: usize);
    /// Makes room for sampling from up to `rows` rows in a step. Never called inside a step.
    fn reserve_sampling(&self, _rows: usize) -> Result<(), OutOfMemory> {
        Ok(())
    }
    /// Chooses a token from each of the first `n` rows of `logits` (which it may overwrite).
    fn sample(
        &self,
        sampled: &mut Self::Buf<Token>,
        logits: &mut Self::Buf<f32>,
        vocab: usize,
        args: &SampleArgs<'_, Self>,
        n: usize,
    );
    /// The last op of a step that samples: what [`Self::read_step`] will return starts on its way to
    /// the host. A backend whose memory is the host's has nothing to do.
    fn post(&self, _sampled: &Self::Buf<Token>, _fault: &Self::Buf<i32>, _kv: &KvTables<Self>, _n: usize) {}
    /// What the step posted, once it is done: the only read-back of a step. Takes note of how many
    /// pages are free.
    fn read_step(
        &self,
        sampled: &Self::Buf<Token>,
        fault: &Self::Buf<i32>,
        kv: &KvTables<Self>,
        n: usize,
    ) -> StepResult;
    /// Tokens of a prefill's steps that serve it best, where a token takes so many bytes of scratch.
    fn step_tokens(&self, _token_bytes: usize) -> usize {
        512
    }
    /// Runs a step. A backend with graphs records `ops` once and then replays what they issued, so they
    /// change nothing on the host; it may also call them a second time, where recording failed.
    fn step(&self, _kind: StepKind, _spans: &[Span], mut ops: impl FnMut(&Self)) {
        ops(self)
    }
    /// Kinds of steps that are replayed from a recording.
    fn recorded(&self) -> usize {
        0
    }
    /// A library of others' that does some of its ops.
    fn library(&self) -> Option<String> {
        None
    }
    /// Something the user should know that came up in a step, told once.
    fn notice(&self) -> Option<String> {
        None
    }
    /// Returns when everything asked for so far is done: for whoever measures time. A backend that
    /// works in the caller's thread has nothing to wait for.
    fn wait(&self) {}
    /// Median microseconds of one of `calls` calls of `op`, which hears its number, over several rounds: a first one
    /// that is not timed, and [`TIMED_ROUNDS`]. Each begins with `before`, untimed. A backend may record a round and
    /// replay it, so that what is timed is the device and not the host.
    fn time_us<S>(&self, calls: usize, state: &mut S, before: impl Fn(&mut S), op: impl Fn(&mut S, usize)) -> f64 {
        let mut round = || {
            before(state);
            self.wait();
            let started = std::time::Instant::now();
            (0..calls).for_each(|i| op(state, i));
            self.wait();
            started.elapsed().as_secs_f64() * 1e6 / calls as f64
        };
        round();
        median((0..TIMED_ROUNDS).map(|_| round()).collect())
    }
    /// Bytes of device memory that `make` takes, told without taking any; what it makes cannot be used. Absent where
    /// memory is the host's.
    fn rehearse<T>(&self, _make: impl FnOnce() -> T) -> Option<u64> {
        None
    }
    /// Bytes of device memory as the driver reports them for this process.
    fn device_bytes(&self) -> Option<u64> {
        None
    }
}

/// Rounds that [`Backend::time_us`] times.
pub const TIMED_ROUNDS: usize = 5;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// An RMS norm and where it stands.
pub struct Norm<'a, B: Backend> {
    /// `[width]`
    pub weight: &'a B::Buf<f32>,
    pub eps: f32,
    pub layer: usize,
}
