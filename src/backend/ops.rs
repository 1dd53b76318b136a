//! The ops of a step: what each computes, on what, and where the result goes.

use super::far::FarPages;
use super::kv::{KvTables, Pages, Span};
use super::memory::Device;
use super::report::Report;
use crate::protocol::{Adjustment, SamplingState, Token};

/// Operations of [`Ops::attention`] on projected rows before attention.
pub struct QkvRopeArgs<'a, B: Device> {
    /// Weights `[head_dim]` of the per-head RMS norms of q and k (Qwen3).
    pub qk_norm: Option<[&'a B::Buf<f32>; 2]>,
    pub rms_eps: f32,
    /// Radians per position for each pair of rotated channels: channels i and `len + i` of a head.
    /// Channels from `2 len` on are not rotated; with an empty buffer, none are.
    pub inv_freq: &'a B::Buf<f32>,
    /// Factor on cos and sin (YaRN); 1 elsewhere.
    pub rope_scale: f32,
    /// Factor of q after norm and RoPE that grows with its position.
    pub growth: Option<Growth>,
    /// Whether v has a per-head RMS norm without weights (Gemma 4).
    pub v_norm: bool,
    /// Rows of an earlier layer of the step as its attention left them, with the same `layer` in
    /// the cache. Attention then reads their K and V, and the decisions of that layer; its own
    /// rows have q alone, and nothing is stored. That layer [lends](Self::lends), and `qk_norm` has
    /// its norm of k.
    pub keys_of: Option<&'a B::Acts>,
    /// Whether later layers of the step read the rows: the cache then stays as it is until
    /// [`Ops::commit`] at the end of the step.
    pub lends: bool,
    /// Set for models that borrow channels of q.
    pub borrowed: Option<Borrowed>,
    /// Set for models whose decisions are read from columns after v.
    pub predictor: Option<Predictor<'a, B>>,
    /// Whether the `n_q_heads * head_dim` columns directly after v are a gate of the output
    /// (Qwen3.5).
    pub gated: bool,
    /// Attention sinks `[n_q_heads]`: one more logit in the softmax of each head, without a value
    /// (gpt-oss).
    pub sinks: Option<&'a B::Buf<f32>>,
    /// Whether the cache stays as it is until [`Ops::commit`].
    pub staged: bool,
}

impl<'a, B: Device> QkvRopeArgs<'a, B> {
    /// RoPE alone: no norms, nothing borrowed.
    pub fn plain(inv_freq: &'a B::Buf<f32>) -> Self {
        Self {
            qk_norm: None,
            rms_eps: 0.0,
            inv_freq,
            rope_scale: 1.0,
            growth: None,
            v_norm: false,
            keys_of: None,
            lends: false,
            borrowed: None,
            predictor: None,
            gated: false,
            sinks: None,
            staged: false,
        }
    }
}

/// The factor `1 + beta * ln(1 + p / length)` of a query at position p, where p / length is a whole
/// quotient. Decisions that a query lends a channel are read without it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    pub beta: f32,
    /// At least 1.
    pub length: usize,
}

impl Growth {
    pub fn at(&self, position: usize) -> f32 {
        1.0 + self.beta * (1.0 + (position / self.length) as f32).ln()
    }
}

/// Scores of tokens, read from columns that linear maps of the layer's input have computed: a
/// predictor's columns after v in the projected rows, or rows of their own.
pub struct Predictor<'a, B: Device> {
    /// The rows of an adapter, whose input has a norm of its own.
    pub own: Option<&'a B::Acts>,
    pub columns: Columns,
    pub mlp: Option<Mlp<'a, B>>,
    pub alpha: Alpha,
}

/// Layout of a predictor's columns, the last ones of their rows. There are `copies` runs of
/// `stride` columns, each with one column per KV head if there is a linear map, then one per hidden
/// unit, then padding. Copies are added up: they are stacked if one copy would not be exact enough
/// in the format of q, k and v.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Columns {
    pub linear: bool,
    pub units: usize,
    pub stride: usize,
    pub copies: usize,
}

/// The last matrix of a predictor's MLP, whose input are hidden units after the activation.
pub struct Mlp<'a, B: Device> {
    /// Whether the activation is SiLU, and not GELU. A GPU asks where scores come from decisions.
    pub silu: bool,
    /// Weights `[units, units]` and biases `[units]` of a second hidden layer, likewise.
    pub middle: Option<[&'a B::Buf<f32>; 2]>,
    /// `[n_kv_heads, units]`
    pub weight: &'a B::Buf<f32>,
    /// `[n_kv_heads]`
    pub bias: &'a B::Buf<f32>,
}

impl Columns {
    /// Columns of all copies.
    pub fn width(&self) -> usize {
        self.copies * self.stride
    }
}

/// Channels of q that training has freed: the last channel of the first query heads of each KV
/// head. They are zero in attention under any policy. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Borrowed {
    /// Number of these query heads: 1 with borrowed-neuron DMS, 2 with DMC.
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

/// Arguments of [`Ops::sample`].
pub struct SampleArgs<'a, B: Pages> {
    /// `[n]`, one per row.
    pub draws: &'a B::Buf<SamplingState>,
    /// `seq_len` is the position of the token to sample, minus [`SamplingState::ahead`]; the
    /// penalty applies to tokens in `seen`.
    pub kv: &'a KvTables<B>,
    /// As in [`Norm`].
    pub non_finite: &'a B::Buf<i32>,
    /// Tokens of a step whose sequences are fed later. For each row, the last
    /// [`SamplingState::ahead`] tokens up to the row itself count as fed.
    pub staged: Option<&'a B::Buf<Token>>,
    /// Whether all rows are [greedy](SamplingState::is_greedy).
    pub greedy: bool,
    /// `[rows, SamplingState::MOST_ADJUSTED]`: what is added to logits before anything else, for
    /// each token once. Of a row as many are read as are [adjusted](SamplingState::adjusted);
    /// `None` where no row has any.
    pub adjusts: Option<&'a B::Buf<Adjustment>>,
    /// `[rows, KvGeometry::seen_words]`: a bit for each token that a row may sample. Read for rows
    /// that are [masked](SamplingState::masked), so `None` where none is. The logits of the others
    /// become minus infinity before penalties.
    pub masks: Option<&'a B::Buf<u32>>,
}

/// Arguments of [`Ops::delta_net`] besides rows and state. Sizes are in [`KvGeometry::delta`].
pub struct DeltaNetArgs<'a, B: Device> {
    /// Rows `[b | a]`, `[n, 2 * value_heads]`.
    pub gates: &'a B::Acts,
    /// Weights of the convolution `[kernel, channels]`, oldest input first.
    pub conv: &'a B::Buf<f32>,
    /// `[value_heads]`: -exp(A_log).
    pub decay: &'a B::Buf<f32>,
    /// `[value_heads]`
    pub dt_bias: &'a B::Buf<f32>,
    /// Weight of the norm of a head's output `[value_dim]`, and its epsilon.
    pub norm: &'a B::Buf<f32>,
    pub rms_eps: f32,
    /// Whether inputs and state stay unchanged. Running the op again without this flag, on the same
    /// rows of a span or on the first of them, then changes them.
    pub staged: bool,
}

/// Experts of one layer: arguments of [`Ops::experts`].
pub struct ExpertsArgs<'a, B: Device> {
    /// `[experts, hidden]`
    pub router: &'a B::Weight,
    /// Biases: `[experts]`, `[experts * 2 width]` and `[experts * hidden]`.
    pub router_bias: Option<&'a B::Buf<f32>>,
    pub gate_up_bias: Option<&'a B::Buf<f32>>,
    pub down_bias: Option<&'a B::Buf<f32>>,
    /// Gate and up of each expert, stacked by rows `[experts * 2 width, hidden]`.
    pub gate_up: &'a B::Weight,
    /// `[experts * hidden, width]`
    pub down: &'a B::Weight,
    /// Experts that the router chooses for a token.
    pub per_token: usize,
    /// Whether the weights of a token's experts are divided by their sum.
    pub normalized: bool,
    /// Whether the last expert is shared: every token passes it, weighted by the sigmoid of its
    /// logit.
    pub shared: bool,
    /// Whether the activation is `(up + 1) * gate * sigmoid(1.702 gate)` instead of SwiGLU, with
    /// the gate clamped to at most 7 and up to [-7, 7].
    pub clamped: bool,
    pub beside: Option<Beside<'a, B>>,
    pub rows: &'a mut ExpertRows<B>,
}

/// Experts beside a dense block (Gemma 4): their sum overwrites `x`, the gate is GELU (tanh), and
/// the router has an input of its own.
pub struct Beside<'a, B: Device> {
    /// `[n, hidden]`
    pub router_input: &'a B::Acts,
    /// `[experts]`: factors of the experts' outputs.
    pub factors: &'a B::Buf<f32>,
}

/// Scratch of [`Ops::experts`] for steps of `n` tokens with `k` experts each, a shared one among
/// them; undefined after the op.
pub struct ExpertRows<B: Device> {
    /// Logits of the router `[n, experts]`.
    pub logits: B::Acts,
    /// Experts of each token `[n, k]`, the most probable first, and their weights.
    pub chosen: B::Buf<i32>,
    pub weights: B::Buf<f32>,
    /// `[2 n k + experts + 1]`: indices of the (token, expert) pairs in order of experts, the
    /// inverse permutation, and the start of each expert's pairs.
    pub order: B::Buf<i32>,
    /// Rows of pairs in order of experts: gate and up `[n k, 2 width]`, SwiGLU `[n k, width]`, and
    /// output `[n k, hidden]`.
    pub gate_up: B::Acts,
    pub act: B::Acts,
    pub out: B::Acts,
}

/// Work of a step after the forward pass. Steps of one kind with the same number of one-token spans
/// issue the same ops on the same buffers, so one captured graph serves all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// Nothing; its logits can be read afterwards.
    Feed,
    /// Computes logits, samples, and starts the copy of the tokens to the host. `greedy`:
    /// [`SampleArgs::greedy`].
    Decode { greedy: bool },
    /// Like `Decode`, for every row of spans of several tokens. No token is fed until
    /// [`Ops::commit`].
    Verify { greedy: bool },
}

/// The read-back of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepResult {
    /// One per sampled row.
    pub tokens: Vec<Token>,
    /// First layer whose input was not finite; `n_layers` for the final norm.
    pub non_finite: Option<usize>,
}

/// Arguments of an RMS norm: `x / sqrt(mean(x^2) + eps) * weight`.
pub struct Norm<'a, B: Device> {
    /// `[width]`
    pub weight: &'a B::Buf<f32>,
    pub eps: f32,
    /// If a row is not finite, `non_finite[0]` becomes `min(non_finite[0], layer)`; `i32::MAX`
    /// means that all rows were finite.
    pub layer: usize,
    pub non_finite: &'a mut B::Buf<i32>,
}

/// A linear layer with the operations around it: arguments of [`Ops::linear`]. Its scratch is
/// undefined after the op, and a backend that fuses the operations may not write it.
pub struct Linear<'a, B: Device> {
    pub weight: &'a B::Weight,
    pub bias: Option<&'a B::Buf<f32>>,
    /// The norm of its input, and scratch for the normalised rows: an [`Use::Input`] of the weight.
    pub before: Option<(Norm<'a, B>, &'a mut B::Acts)>,
    pub after: After<'a, B::Acts>,
}

impl<'a, B: Device> Linear<'a, B> {
    /// The matmul alone.
    pub fn plain(weight: &'a B::Weight) -> Self {
        Self { weight, bias: None, before: None, after: After::Store }
    }
}

/// Use of a linear layer's result `y`.
pub enum After<'a, A> {
    /// `out = y`
    Store,
    /// `out += y`, with scratch of the size of `y`.
    Add(&'a mut A),
    /// `out = silu(gate) * up` of `y = [gate | up]`, with scratch for [`Use::GateUp`].
    Swiglu(&'a mut A),
    /// SwiGLU with GELU (tanh approximation) instead of SiLU. Its scratch is [`Use::Any`].
    Geglu(&'a mut A),
    /// `out = gelu(y) * columns`, as many columns of `rows` from `at` on, with scratch for `y`.
    /// GELU is its tanh approximation.
    GeluTimes { y: &'a mut A, rows: &'a A, at: usize },
    /// `out = cap * tanh(y / cap)`
    Cap(f32),
}

/// Arguments of [`Ops::attention`].
pub struct AttentionArgs<'a, B: Pages> {
    pub qkv: &'a mut B::Acts,
    pub decisions: &'a mut B::Buf<f32>,
    pub kv: &'a mut KvTables<B>,
    pub layer: usize,
    pub spans: &'a [Span],
    pub rope: &'a QkvRopeArgs<'a, B>,
}

/// The ops of a step. `n` is the number of rows in use.
pub trait Ops: Pages {
    /// Runs a step. A backend with graphs captures `ops` once and replays the graph, so `ops` must
    /// not change host state; it runs a second time if the capture fails.
    fn step(&self, _kind: StepKind, _spans: &[Span], mut ops: impl FnMut(&Self)) {
        ops(self)
    }
    /// `out[i] = scale * table[tokens[i]]`
    fn embed(&self, out: &mut Self::Acts, table: &Self::Weight, tokens: &Self::Buf<Token>, scale: f32, n: usize);
    /// `out = rms_norm(x)`; with `add`, `out = add * (out + rms_norm(x))`. A norm of fewer channels
    /// than a row is that of each run of as many.
    fn rms_norm(&self, out: &mut Self::Acts, x: &Self::Acts, norm: Norm<'_, Self>, add: Option<f32>, n: usize);
    /// `out = x`, in the precision in which `out` is stored.
    fn copy(&self, out: &mut Self::Acts, x: &Self::Acts, n: usize);
    /// `y = x weight^T + bias`, of the norm of `x` where there is one; then what [`After`] says.
    fn linear(&self, out: &mut Self::Acts, x: &Self::Acts, layer: Linear<'_, Self>, n: usize);
    /// Attention and cache update of one layer. The input is projected rows
    /// `[q heads | k heads | v heads | output gate | a predictor's columns]`, which may be
    /// overwritten; `out` is `[n, n_q_heads * head_dim]`. In this order:
    ///
    /// 1. Applies per-head norms to q and k. Decisions `[n, n_kv_heads]` are read from the borrowed
    ///    channel (last of each group's first query head) or computed from a predictor's columns,
    ///    and are minus infinity if `kv.pinned` says so. If the policy merges tokens, K and V
    ///    become the means of each row's slot by [`merge`](crate::policy::merge), in order of the
    ///    rows, which changes `kv.sums` and sets the decisions. Borrowed channels are zeroed before
    ///    and after RoPE of q and k at `seq_len + offset in span`. K and V are replaced by their
    ///    values after storing and reading, with V rotated if the codec rotates it.
    /// 2. Every row attends to its sequence's slots as they were before the step, and to the step's
    ///    own rows up to itself, by the policy's rule of visibility. The mark of the newest stored
    ///    token comes from the step's first decision (shift `Previous`). The codec's rotation of
    ///    values is undone. If the policy reads pages, spans of one token read only those, and
    ///    their reads are added to `kv.reads`.
    /// 3. Every token gets a slot, token after token by
    ///    [`Policy::store`](crate::policy::Policy::store): `kv.slots`, marks, rings, live counts
    ///    and slot metadata are written, pages are taken, and shared pages are copied. K and V are
    ///    encoded into the slots.
    ///
    /// 4. Where rows are [gated](QkvRopeArgs::gated), `out *= sigmoid(gate)`.
    ///
    /// Where there are [sinks](QkvRopeArgs::sinks), each head's softmax has one more score, whose
    /// value is zero and which no policy counts.
    ///
    /// Under a policy whose victims depend on attention weights, 2 and 3 run row after row: each
    /// row attends to itself and to the slots that the row before it left. Its weights change
    /// `kv.score`, and it takes the slot that [`Scored::place`](crate::policy::Scored::place)
    /// chooses. The keys that spans of one token attend to are added to `kv.reads`.
    ///
    /// A single token sees exactly the slots that live once it has its own slot, so a backend may
    /// leave placing and storing single tokens to [`Self::advance`].
    fn attention(&self, out: &mut Self::Acts, args: AttentionArgs<'_, Self>);
    /// Step 3 of a [staged](QkvRopeArgs::staged) [`Self::attention`] for the first rows of its
    /// spans, given by `spans` with the same starts, or of one that [lends](QkvRopeArgs::lends),
    /// for all rows. `rows` and `decisions` are the output of that step. If they are `drafts`,
    /// `kv.reads` counts for spans of several rows the slots that live once each row has its own
    /// slot. The caller then calls [`Self::advance`].
    fn commit(
        &self,
        rows: &Self::Acts,
        decisions: &Self::Buf<f32>,
        kv: &mut KvTables<Self>,
        layer: usize,
        spans: &[Span],
        drafts: bool,
    );
    /// Gated delta net of one layer: mixes each sequence's rows with its state, and stores the
    /// state after the last row. `rows` is `[n, channels + value_width]`:
    /// `[q heads | k heads | v heads | z heads]`, and may be overwritten; `out` is
    /// `[n, value_width]`. All values are f32. `layer` counts layers of this kind. For each row of
    /// a span, in order:
    ///
    /// 1. `[q k v] = silu(sum over t of conv[t] * input[t])`, by channel, over the newest `kernel`
    ///    inputs: those in `kv.delta_inputs`, then the span's own `[q | k | v]` as they are in
    ///    `rows`.
    /// 2. q and k of each key head become `x / sqrt(sum(x^2) + 1e-6)`, and q is divided by
    ///    sqrt(key_dim) as well.
    /// 3. By value head h, with q and k of its [key head](DeltaGeometry::key_head),
    ///    `beta = sigmoid(b[h])`, `g = decay[h] * softplus(a[h] + dt_bias[h])` and S its state
    ///    `[key_dim, value_dim]` in `kv.delta_state`:
    ///    `S *= exp(g); S += k (beta * (v - S^T k))^T; o = S^T q`.
    /// 4. `out[h] = rms_norm(o) * silu(z[h])`, the norm over `value_dim` with `args.norm`.
    ///
    /// A sequence whose `kv.seq_len` is 0 begins with zero inputs and a zero state.
    /// `kv.delta_inputs` receives the newest inputs. Spans of a step are of different sequences. A
    /// backend may sum in another order, for example over chunks of a prefill; on the CPU a row's
    /// result has the same bits in any chunks.
    fn delta_net(
        &self,
        out: &mut Self::Acts,
        rows: &mut Self::Acts,
        kv: &mut KvTables<Self>,
        layer: usize,
        spans: &[Span],
        args: &DeltaNetArgs<'_, Self>,
    );
    /// Mixture of experts: `x += sum over j of weight[j] * down(silu(gate(h)) * up(h))` for the
    /// experts j that the router chooses for each row of `h`. These are the `per_token` most
    /// probable experts by the softmax of `router h`; equal ones are chosen by lower number. The
    /// sum begins with the most probable expert and ends with a shared one, whose logit is not in
    /// the softmax.
    fn experts(&self, x: &mut Self::Acts, h: &Self::Acts, args: ExpertsArgs<'_, Self>, n: usize);
    /// Ends the layers of a step: `seq_len += len` for every span; `seen` gets the step's tokens if
    /// they are given; `peak` counts the live slots, and `reads` counts them for spans of one
    /// token, unless attention has counted them.
    fn advance(&self, kv: &mut KvTables<Self>, tokens: Option<&Self::Buf<Token>>, spans: &[Span]);
    /// `out[i] = x[rows[i]]`
    fn select_rows(&self, out: &mut Self::Acts, x: &Self::Acts, rows: &[usize]);
    /// Samples a token from each of the first `n` rows of `logits`, which it may overwrite. This is
    /// the last op of a step. It starts copying the result of [`Self::read_step`] to the host.
    fn sample(&self, sampled: &mut Self::Buf<Token>, logits: &mut Self::Acts, args: &SampleArgs<'_, Self>, n: usize);
    /// Waits for the step and returns its result, the only read-back of a step. Updates the host's
    /// count of free pages.
    fn read_step(
        &self,
        sampled: &Self::Buf<Token>,
        non_finite: &Self::Buf<i32>,
        kv: &KvTables<Self>,
        n: usize,
    ) -> StepResult;
}

/// All that a model needs of a device.
pub trait Backend: Ops + FarPages + Report {}
impl<B: Ops + FarPages + Report> Backend for B {}
