//! What a device must offer to run a model: [`Memory`], the ops of a step ([`Backend`]), and what it reports about itself
//! ([`Profile`]). Ops have the size at which kernels are fused.
//!
//! All ops write into a caller's buffer; none allocates. Shapes are `[rows, width]`, row-major. A fused op is a provided method
//! that composes plain ones, so the default is the oracle of an override. Knows policies, codecs and tensors, but no
//! model, file or conversation.
//!
//! A decode or prefill step runs inside [`Backend::step`], and its only read-back is [`Backend::read_step`]. Lengths and tables
//! are in device memory ([`KvTables`]), so that a backend can capture a step once and replay it.

pub mod cpu;
pub mod cuda;
mod kv;
mod profile;

pub use crate::protocol::SamplingState;
pub(crate) use crate::protocol::bytes as in_units;
use crate::protocol::{LaneFilter, Token};
use crate::tensor::Tensor;
pub use kv::{KvGeometry, KvTables, PageLayout, PoolStats, PresenceCounts, Span};
pub use profile::{KernelNeeds, MemoryUse, Profile, TIMED_ROUNDS};
use std::ops::{Range, RangeInclusive};

/// Elements a device buffer may hold.
pub trait Plain: bytemuck::Pod + Send + Sync + Default {}
impl<T: bytemuck::Pod + Send + Sync + Default> Plain for T {}

/// An allocation failed. The step has not run, and the engine can continue.
#[derive(Debug, thiserror::Error)]
#[error("out of {what} memory: {} more needed", in_units(*needed_bytes))]
pub struct OutOfMemory {
    pub what: &'static str,
    pub needed_bytes: u64,
}

/// The device failed during an op. Ops panic with it, because nothing on the device can be used any more; the engine's thread
/// catches it and reports it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DeviceLost(pub String);

/// Arguments of [`Backend::qkv_rope`].
pub struct QkvRopeArgs<'a, B: Backend> {
    /// Weights `[head_dim]` of the per-head RMS norms of q and k (Qwen3).
    pub qk_norm: Option<[&'a B::Buf<f32>; 2]>,
    pub rms_eps: f32,
    /// `[head_dim / 2]` radians per position.
    pub inv_freq: &'a B::Buf<f32>,
    /// Factor on cos and sin (YaRN); 1 elsewhere.
    pub rope_scale: f32,
    /// Set for models that borrow channels of q.
    pub borrowed: Option<Borrowed>,
}

impl<'a, B: Backend> QkvRopeArgs<'a, B> {
    /// RoPE alone: no norms, nothing borrowed.
    pub fn plain(inv_freq: &'a B::Buf<f32>) -> Self {
        Self { qk_norm: None, rms_eps: 0.0, inv_freq, rope_scale: 1.0, borrowed: None }
    }
}

/// Channels of q that training has freed: the last one of the first query heads of each KV head, which are zero in attention
/// under any policy. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Borrowed {
    /// Those query heads: 1 with borrowed-neuron DMS, 2 with DMC.
    pub heads: usize,
    /// Decision of the first one's channel.
    pub alpha: Alpha,
}

/// Decision of an adapter or borrowed channel: `d = value * scale - offset`; `d > 0` marks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Alpha {
    pub scale: f32,
    pub offset: f32,
    /// All KV heads use head 0's decision.
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

/// Arguments of [`Backend::sample`].
pub struct SampleArgs<'a, B: Backend> {
    /// `[n]`, one per row.
    pub draws: &'a B::Buf<SamplingState>,
    /// `[n_seqs, seen_words(vocab)]` bit sets of the tokens fed, for the repetition penalty.
    pub seen: &'a B::Buf<u32>,
    /// `[n_seqs]` tokens fed: the position of the token to sample.
    pub seq_len: &'a B::Buf<i32>,
    /// Whether all rows are [greedy](SamplingState::is_greedy).
    pub greedy: bool,
}

/// `u32` words of a bit set of tokens.
pub fn seen_words(vocab: usize) -> usize {
    vocab.div_ceil(32)
}

/// Work of a step after the forward pass. Steps of one kind with the same number of one-token spans issue the same ops on the
/// same buffers, so one captured graph serves all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// Nothing; its logits can be read afterwards.
    Feed,
    /// Computes logits, samples, and starts the copy of the tokens to the host. `greedy`: [`SampleArgs::greedy`].
    Decode { greedy: bool },
}

/// The read-back of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepResult {
    /// One per sampled row.
    pub tokens: Vec<Token>,
    /// First layer whose input was not finite; `n_layers` for the final norm.
    pub non_finite: Option<usize>,
}

/// What reads the sum of [`Backend::linear_add`] next, for backends that prepare it: arguments of the op.
pub struct Next<'a, B: Backend> {
    pub norm: &'a Norm<'a, B>,
    pub h: &'a mut B::Acts,
}

/// Whether [`Backend::linear_add`] has added its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    Added,
    /// It is in the scratch.
    Pending,
}

impl Sum {
    /// The result that is still to be added.
    pub fn pending<A>(self, scratch: &A) -> Option<&A> {
        (self == Self::Pending).then_some(scratch)
    }
}

/// Device memory: buffers, activations, weights, and copies between host and device. Nothing of it is called inside a step.
pub trait Memory: Sized {
    /// Typed device memory.
    type Buf<T: Plain>;
    /// Activations `[rows, width]` in the precision the backend computes in.
    type Acts;
    /// A weight matrix `[out, in]` in the file's precision.
    type Weight;

    /// A buffer of `len` zeros.
    fn alloc<T: Plain>(&self, len: usize) -> Result<Self::Buf<T>, OutOfMemory>;
    /// Copies `src` to `dst[at..]`.
    fn write<T: Plain>(&self, dst: &mut Self::Buf<T>, at: usize, src: &[T]);
    /// Copies `src[at..]` to `dst`, after all work issued before.
    fn read<T: Plain>(&self, src: &Self::Buf<T>, at: usize, dst: &mut [T]);
    /// Copies `len` values within a buffer; the ranges do not overlap.
    fn copy<T: Plain>(&self, buf: &mut Self::Buf<T>, from: usize, to: usize, len: usize);
    /// Zeroed activations `[rows, width]`.
    fn acts(&self, rows: usize, width: usize) -> Result<Self::Acts, OutOfMemory>;
    /// Activations that are only used as the input of matmuls with `readers`. A backend may store them in the matmul's input
    /// precision (bf16 on CUDA); ops that write them then round.
    fn matmul_input(&self, rows: usize, width: usize, _readers: &[&Self::Weight]) -> Result<Self::Acts, OutOfMemory> {
        self.acts(rows, width)
    }
    /// Scratch `[rows, width]` of [`Backend::linear_swiglu`] of `x` into `out`. Empty where a backend fuses the two.
    fn linear_swiglu_scratch(
        &self,
        rows: usize,
        width: usize,
        _x: &Self::Acts,
        _out: &Self::Acts,
    ) -> Result<Self::Acts, OutOfMemory> {
        self.acts(rows, width)
    }
    /// Writes the first rows of activations from f32, for checks and tests.
    fn write_acts(&self, dst: &mut Self::Acts, rows: &[f32]);
    /// Reads the first rows of activations as f32, for checks and tests.
    fn read_acts(&self, src: &Self::Acts, rows: &mut [f32]);
    /// Stacks matrices of equal width by rows (q, k and v; gate and up). The CPU shares the tensors' bytes, a GPU copies them.
    fn weight(&self, parts: &[Tensor]) -> Result<Self::Weight, OutOfMemory>;
    /// Allocates what sampling from up to `rows` rows in a step needs.
    fn reserve_sampling(&self, _rows: usize) -> Result<(), OutOfMemory> {
        Ok(())
    }
}

/// The ops of a step, and the upkeep of the cache between steps.
pub trait Backend: Memory + Profile + 'static {
    /// Pages, their reference counts and the free list.
    type Pool;

    // The transformer. `n` is the number of rows in use.
    /// Adds a step's tokens to their sequences' bit sets: see [`SampleArgs::seen`].
    fn mark_seen(&self, seen: &mut Self::Buf<u32>, vocab: usize, tokens: &Self::Buf<Token>, spans: &[Span]);
    /// `out[i] = table[tokens[i]]`
    fn embed(&self, out: &mut Self::Acts, table: &Self::Weight, tokens: &Self::Buf<Token>, n: usize);
    /// `out = x / sqrt(mean(x^2) + eps) * weight`. If a row is not finite, `non_finite[0] = min(non_finite[0], layer)`;
    /// `i32::MAX` means that none was.
    fn rms_norm(
        &self,
        out: &mut Self::Acts,
        x: &Self::Acts,
        norm: &Norm<'_, Self>,
        non_finite: &mut Self::Buf<i32>,
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
        non_finite: &mut Self::Buf<i32>,
        n: usize,
    ) {
        self.add(residual, x, n);
        self.rms_norm(out, residual, norm, non_finite, n);
    }
    /// `out = x weight^T + bias`: a GEMM with M = `n`, N = rows of the weight, K = its columns.
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
    /// `out = silu(gate) * up` of `[gate | up] = x weight^T + bias`; `scratch` is from
    /// [`Memory::linear_swiglu_scratch`].
    fn linear_swiglu(
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
    /// `acc += x weight^T + bias`, now or with the next norm: where a backend does not fuse the two, `scratch` gets
    /// the result, and whoever reads `acc` next has to add it. Where `next` is given, [`Self::norm_linear`] or
    /// [`Self::norm_linear_swiglu`] with those arguments reads `acc` before anything else writes it or `h`.
    #[allow(clippy::too_many_arguments)]
    fn linear_add(
        &self,
        _acc: &mut Self::Acts,
        scratch: &mut Self::Acts,
        x: &Self::Acts,
        weight: &Self::Weight,
        bias: Option<&Self::Buf<f32>>,
        _next: Option<Next<'_, Self>>,
        n: usize,
    ) -> Sum {
        self.linear(scratch, x, weight, bias, n);
        Sum::Pending
    }
    /// `out = rms_norm(residual) weight^T + bias`, after `residual += more`. `h` is scratch for the normalised rows; the
    /// non-finite flag is that of [`Self::rms_norm`].
    #[allow(clippy::too_many_arguments)]
    fn norm_linear(
        &self,
        out: &mut Self::Acts,
        h: &mut Self::Acts,
        residual: &mut Self::Acts,
        more: Option<&Self::Acts>,
        norm: &Norm<'_, Self>,
        weight: &Self::Weight,
        bias: Option<&Self::Buf<f32>>,
        non_finite: &mut Self::Buf<i32>,
        n: usize,
    ) {
        self.norm_of_sum(h, residual, more, norm, non_finite, n);
        self.linear(out, h, weight, bias, n);
    }
    /// `out = silu(gate) * up` of `[gate | up] = rms_norm(residual) weight^T + bias`, after `residual += more`; `scratch`
    /// as for [`Self::linear_swiglu`], the rest as for [`Self::norm_linear`].
    #[allow(clippy::too_many_arguments)]
    fn norm_linear_swiglu(
        &self,
        out: &mut Self::Acts,
        scratch: &mut Self::Acts,
        h: &mut Self::Acts,
        residual: &mut Self::Acts,
        more: Option<&Self::Acts>,
        norm: &Norm<'_, Self>,
        weight: &Self::Weight,
        bias: Option<&Self::Buf<f32>>,
        non_finite: &mut Self::Buf<i32>,
        n: usize,
    ) {
        self.norm_of_sum(h, residual, more, norm, non_finite, n);
        self.linear_swiglu(out, scratch, h, weight, bias, n);
    }
    /// `residual += more`, `out = rms_norm(residual)`.
    fn norm_of_sum(
        &self,
        out: &mut Self::Acts,
        residual: &mut Self::Acts,
        more: Option<&Self::Acts>,
        norm: &Norm<'_, Self>,
        non_finite: &mut Self::Buf<i32>,
        n: usize,
    ) {
        match more {
            Some(more) => self.add_rms_norm(out, residual, more, norm, non_finite, n),
            None => self.rms_norm(out, residual, norm, non_finite, n),
        }
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
    /// `[n, n_kv_heads]` read from the borrowed channel (last of each group's first query head), minus infinity where
    /// `kv.pinned` says so; where the policy merges tokens, K and V become the means of each row's slot by
    /// [`merge`](crate::policy::merge), in order of the rows, which changes `kv.sums` and sets the decisions; borrowed channels are zeroed;
    /// RoPE of q and k at `seq_len + offset in span`, after which borrowed channels are zero again; K and V become what storing
    /// and reading makes of them, V rotated where the codec rotates it.
    #[allow(clippy::too_many_arguments)]
    fn qkv_rope(
        &self,
        qkv: &mut Self::Acts,
        decisions: &mut Self::Buf<f32>,
        kv: &mut KvTables<Self>,
        layer: usize,
        spans: &[Span],
        rope: &QkvRopeArgs<'_, Self>,
    );
    /// Attention of every prepared row over its sequence's slots as they were before the step, and over the step's own
    /// rows up to itself, by the policy's rule of visibility. `out` is `[n, n_q_heads * head_dim]`. The mark of the newest
    /// stored token comes from the step's first decision (shift `Previous`). Undoes the codec's rotation of values. Where the
    /// policy reads pages, spans of one token do, and what they read is added to `kv.reads`.
    fn attend(
        &self,
        out: &mut Self::Acts,
        qkv: &Self::Acts,
        decisions: &Self::Buf<f32>,
        kv: &mut KvTables<Self>,
        layer: usize,
        spans: &[Span],
    );
    /// Attention, placing and storing under a policy whose victims the weights choose, of prepared rows, token after token:
    /// each row attends to the slots as the row before it left them and to itself, its weights change `kv.score`, and it
    /// takes the slot that [`Scored::place`](crate::policy::Scored::place) gives it. Adds the keys that spans of one token
    /// attend to to `kv.reads`. Called by [`Self::attention_by_ops`] only: a backend that fuses attention does without.
    fn attend_in_order(
        &self,
        out: &mut Self::Acts,
        qkv: &Self::Acts,
        kv: &mut KvTables<Self>,
        layer: usize,
        spans: &[Span],
    );
    /// Assigns a slot to every token of the step, token after token by [`Policy::store`](crate::policy::Policy::store):
    /// writes `kv.slots`, marks, rings, live counts and slot metadata; takes pages and copies shared ones.
    fn place(&self, kv: &mut KvTables<Self>, decisions: &Self::Buf<f32>, layer: usize, spans: &[Span]);
    /// Encodes K and V of the prepared rows into the slots that [`Self::place`] assigned.
    fn store(&self, kv: &mut KvTables<Self>, qkv: &Self::Acts, layer: usize, spans: &[Span]);
    /// [`Self::qkv_rope`], [`Self::attend`], [`Self::place`], [`Self::store`], or [`Self::attend_in_order`] instead of the last
    /// three where weights choose victims. A backend may fuse them: a single token sees
    /// exactly the slots that live once it has its own, so a fused form may leave the rows of single tokens as they are, and may
    /// leave it to [`Self::advance`] to place and store them.
    #[allow(clippy::too_many_arguments)]
    fn attention(
        &self,
        out: &mut Self::Acts,
        qkv: &mut Self::Acts,
        decisions: &mut Self::Buf<f32>,
        kv: &mut KvTables<Self>,
        layer: usize,
        spans: &[Span],
        rope: &QkvRopeArgs<'_, Self>,
    ) {
        self.attention_by_ops(out, qkv, decisions, kv, layer, spans, rope);
    }
    /// The composition: what [`Self::attention`] means, and what a fused form is checked against.
    #[allow(clippy::too_many_arguments)]
    fn attention_by_ops(
        &self,
        out: &mut Self::Acts,
        qkv: &mut Self::Acts,
        decisions: &mut Self::Buf<f32>,
        kv: &mut KvTables<Self>,
        layer: usize,
        spans: &[Span],
        rope: &QkvRopeArgs<'_, Self>,
    ) {
        self.qkv_rope(qkv, decisions, kv, layer, spans, rope);
        if kv.geometry.policy.scored().is_some() {
            return self.attend_in_order(out, qkv, kv, layer, spans);
        }
        self.attend(out, qkv, decisions, kv, layer, spans);
        self.place(kv, decisions, layer, spans);
        self.store(kv, qkv, layer, spans);
    }
    /// Ends a step: `seq_len += len` for every span; `peak` counts the live slots, and for spans of one token `reads` does too,
    /// unless attention has counted them.
    fn advance(&self, kv: &mut KvTables<Self>, spans: &[Span]);

    // Between steps.
    /// An empty pool that may grow to `max_pages`, for steps of up to `max_step` rows.
    fn pool(&self, geometry: &KvGeometry, max_pages: usize, max_step: usize) -> Result<Self::Pool, OutOfMemory>;
    /// Grows the pool until `pages` are free, so that a step can allocate them.
    fn reserve(&self, kv: &mut KvTables<Self>, pages: usize) -> Result<(), OutOfMemory>;
    /// Returns unused memory to the system. A backend may move pages for that.
    fn trim(&self, kv: &mut KvTables<Self>);
    fn pool_stats(&self, kv: &KvTables<Self>) -> PoolStats;
    /// Reference counts of the first `mapped_pages` pages (0 = free), for audits and tests.
    fn page_refs(&self, kv: &KvTables<Self>) -> Vec<u32>;
    /// Makes the empty sequence `to` a copy of `from` that shares all its pages.
    fn fork(&self, kv: &mut KvTables<Self>, from: usize, to: usize);
    /// Empties a sequence and frees its pages.
    fn release(&self, kv: &mut KvTables<Self>, seq: usize);
    /// Drops the slots outside the window that are marked or whose strength is at least `threshold`, and closes the gaps:
    /// [`crate::policy::Policy::drops`]. Under a policy with scores, drops what exceeds the budget:
    /// [`crate::policy::Scored::keep`].
    fn compact(&self, kv: &mut KvTables<Self>, seq: usize, threshold: usize);
    /// Sets strength and mark of the stored tokens at these positions.
    fn rate_slots(&self, kv: &mut KvTables<Self>, seq: usize, positions: Range<usize>, strength: usize, marked: bool);
    /// Counts the lanes that store each of the first `n` positions of a sequence, in one pass over the metadata of its
    /// slots, and the state of position `at` in every lane. Waits for the device; never part of a step.
    fn presence(&self, kv: &KvTables<Self>, seq: usize, n: usize, filter: LaneFilter, at: usize) -> PresenceCounts;
    /// Copies pages to the host, `[pages.len(), page_bytes]`, after all work issued before.
    fn export_pages(&self, kv: &mut KvTables<Self>, pages: &[i32], bytes: &mut [u8]);
    /// Takes a free page for each `page_bytes` of `bytes`, with a reference count of 1, and fills it: the inverse of
    /// [`Self::export_pages`]. The caller has reserved as many, and enters them in the page tables.
    fn import_pages(&self, kv: &mut KvTables<Self>, bytes: &[u8]) -> Vec<i32>;
    /// Metadata of a lane's slots, in slot order.
    fn slot_metas(&self, kv: &KvTables<Self>, layer: usize, seq: usize, head: usize) -> Vec<crate::policy::SlotMeta>;

    // The end of a step.
    /// `out[i] = x[rows[i]]`
    fn select_rows(&self, out: &mut Self::Acts, x: &Self::Acts, rows: &[usize]);
    /// `out [n, vocab] = x head^T` in f32.
    fn logits(&self, out: &mut Self::Buf<f32>, x: &Self::Acts, head: &Self::Weight, n: usize);
    /// Samples a token from each of the first `n` rows of `logits`, which it may overwrite.
    fn sample(
        &self,
        sampled: &mut Self::Buf<Token>,
        logits: &mut Self::Buf<f32>,
        vocab: usize,
        args: &SampleArgs<'_, Self>,
        n: usize,
    );
    /// Last op of a step that samples: starts the copy of the result of [`Self::read_step`] to the host.
    fn copy_to_host(&self, _sampled: &Self::Buf<Token>, _fault: &Self::Buf<i32>, _kv: &KvTables<Self>, _n: usize) {}
    /// Waits for the step and returns its result, the only read-back of a step. Updates the host's count of free pages.
    fn read_step(
        &self,
        sampled: &Self::Buf<Token>,
        non_finite: &Self::Buf<i32>,
        kv: &KvTables<Self>,
        n: usize,
    ) -> StepResult;
    /// Fewest and most tokens of a prefill step that suit the backend; memory decides between them.
    fn step_sizes(&self) -> RangeInclusive<usize> {
        512..=512
    }
    /// Runs a step. A backend with graphs captures `ops` once and replays the graph, so `ops` must not change host state; they
    /// run a second time if the capture fails.
    fn step(&self, _kind: StepKind, _spans: &[Span], mut ops: impl FnMut(&Self)) {
        ops(self)
    }
}

/// Arguments of an RMS norm.
pub struct Norm<'a, B: Backend> {
    /// `[width]`
    pub weight: &'a B::Buf<f32>,
    pub eps: f32,
    /// Reported if the input is not finite.
    pub layer: usize,
}
