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
mod kv;

pub(crate) use crate::protocol::bytes as in_units;
use crate::protocol::{SamplingParams, Token};
use crate::tensor::Tensor;
pub use kv::{KvGeometry, KvTables, PageLayout, PoolStats, Span};

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

/// Arguments of [`Backend::qkv_rope`].
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
pub trait Backend: Profile + Sized + 'static {
    /// Typed device memory.
    type Buf<T: Plain>;
    /// Activations `[rows, width]` in the precision the backend computes in.
    type Acts;
    /// A weight matrix `[out, in]` in the file's precision.
    type Weight;
    /// Pages, their reference counts and the free list.
    type Pool;

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

    // Attention and the cache, one layer of a step.
    /// Prepares projected rows `[q heads | k heads | v heads]` in place: per-head norms of q and k; decisions
    /// `[n, n_kv_heads]` read from the borrowed channel (last of each group's first query head), which is then zero;
    /// RoPE of q and k at `seq_len + offset in span`, after which the borrowed channel is zero again; K and V become
    /// what storing and reading makes of them.
    fn qkv_rope(
        &self,
        qkv: &mut Self::Acts,
        decisions: &mut Self::Buf<f32>,
        kv: &mut KvTables<Self>,
        spans: &[Span],
        rope: &QkvRope<'_, Self>,
    );
    /// Attention of every prepared row over its sequence's slots as they were before the step, and over the step's own
    /// rows up to itself, by the policy's rule of visibility. `out` is `[n, n_q_heads * head_dim]`. The mark of the newest
    /// stored token comes from the step's first decision (shift `Previous`).
    fn attend(
        &self,
        out: &mut Self::Acts,
        qkv: &Self::Acts,
        decisions: &Self::Buf<f32>,
        kv: &mut KvTables<Self>,
        layer: usize,
        spans: &[Span],
    );
    /// Assigns a slot to every token of the step, token after token by [`Policy::store`](crate::policy::Policy::store):
    /// writes `kv.slots`, marks, rings, live counts and slot metadata; takes pages and copies shared ones.
    fn place(&self, kv: &mut KvTables<Self>, decisions: &Self::Buf<f32>, layer: usize, spans: &[Span]);
    /// Encodes K and V of the prepared rows into the slots that [`Self::place`] assigned.
    fn store(&self, kv: &mut KvTables<Self>, qkv: &Self::Acts, layer: usize, spans: &[Span]);
    /// [`Self::qkv_rope`], [`Self::attend`], [`Self::place`], [`Self::store`]. A backend may fuse them: a single token sees
    /// exactly the slots that live once it has its own, so a fused form may leave the rows of single tokens as they are.
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
    ) {
        self.qkv_rope(qkv, decisions, kv, spans, rope);
        self.attend(out, qkv, decisions, kv, layer, spans);
        self.place(kv, decisions, layer, spans);
        self.store(kv, qkv, layer, spans);
    }
    /// Ends a step: `seq_len += len` for every span; `peak` and, for spans of one token, `reads` count the live slots.
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
}

/// What a backend says about itself and its work: names, notices, timings, memory. No op of a step is here.
pub trait Profile {
    /// `cpu, 2 threads` or the GPU's name.
    fn describe(&self) -> String;
    /// Returns when all work issued so far is done, for callers that measure time. A backend that works in the caller's
    /// thread has nothing to wait for.
    fn synchronize(&self) {}
    /// Steps captured as graphs.
    fn captured_steps(&self) -> usize {
        0
    }
    /// An external library that runs some of the ops.
    fn library(&self) -> Option<String> {
        None
    }
    /// A message for the user that came up in a step, returned once.
    fn notice(&self) -> Option<String> {
        None
    }
    /// Bytes of device memory as the driver reports them for this process.
    fn device_bytes(&self) -> Option<u64> {
        None
    }
    /// Bytes of device memory that the allocations of `make` would take, without taking any; what it returns cannot be
    /// used. `None` where memory is the host's.
    fn dry_run_bytes<T>(&self, _make: impl FnOnce() -> T) -> Option<u64> {
        None
    }
    /// Median microseconds of one of `calls` calls of `op`, which gets the call's number, over [`TIMED_ROUNDS`] rounds after
    /// one that is not timed. Each round begins with `before`, untimed. A backend may capture a round and replay it, so
    /// that the device is timed and not the host.
    fn time_us<S>(&self, calls: usize, state: &mut S, before: impl Fn(&mut S), op: impl Fn(&mut S, usize)) -> f64 {
        let mut round = || {
            before(state);
            self.synchronize();
            let started = std::time::Instant::now();
            (0..calls).for_each(|i| op(state, i));
            self.synchronize();
            started.elapsed().as_secs_f64() * 1e6 / calls as f64
        };
        round();
        median((0..TIMED_ROUNDS).map(|_| round()).collect())
    }
}

/// Rounds that [`Profile::time_us`] times.
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
