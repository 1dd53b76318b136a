//! The ABI of the kernels: every struct that is passed to a kernel, and the arguments of a launch.
//! Sizes and offsets are asserted at compile time here and, with the same numbers, where `kernels/`
//! declares the struct.

use super::super::SamplingState;
use bytemuck::{Pod, Zeroable};
use std::ffi::c_void;
use std::mem::{align_of, offset_of, size_of};

/// Asserts the size of a struct and the offsets of the fields named.
macro_rules! layout {
    ($struct:ty: $size:literal { $($field:ident: $at:literal),* $(,)? }) => {
        const _: () = {
            assert!(size_of::<$struct>() == $size);
            $(assert!(offset_of!($struct, $field) == $at);)*
        };
    };
}

/// A struct that a kernel takes by value as one parameter.
pub trait Param: Pod {}

impl Param for Kv {}
impl Param for DecodeParams {}
impl Param for PrefillParams {}
impl Param for RopeParams {}
impl Param for DeltaParams {}
impl Param for Kept {}
impl Param for MergeParams {}
impl Param for ImportanceParams {}
impl Param for TensorMap {}
impl Param for Norm {}
impl Param for Results {}

/// One argument of a kernel.
#[derive(Clone, Copy)]
pub enum Arg<'a> {
    Ptr(u64),
    I32(i32),
    F32(f32),
    U64(u64),
    /// A parameter struct by value: its alignment and its bytes. [`Arg::of`] makes it.
    Struct(usize, &'a [u8]),
}

impl<'a> Arg<'a> {
    /// A parameter struct, passed by value.
    pub fn of<P: Param>(param: &'a P) -> Self {
        Self::Struct(align_of::<P>(), bytemuck::bytes_of(param))
    }

    /// Whether a kernel parameter has the argument's type, as the index of the PTX writes it:
    /// `.u64`, or `.align8.b8[40]`.
    pub(super) fn has_form(&self, form: &str) -> bool {
        let scalar = match self {
            Arg::Ptr(_) | Arg::U64(_) => ".u64",
            Arg::I32(_) => ".u32",
            Arg::F32(_) => ".f32",
            Arg::Struct(align, bytes) => {
                let form = form.strip_prefix(".align").and_then(|form| form.strip_suffix(']'));
                let numbers = form.and_then(|form| form.split_once(".b8["));
                return numbers.is_some_and(|(a, n)| a.parse() == Ok(*align) && n.parse() == Ok(bytes.len()));
            }
        };
        form == scalar
    }

    /// Where the driver reads the argument's value, as long as the argument lives.
    pub(super) fn address(&self) -> *mut c_void {
        let at: *const c_void = match self {
            Arg::Ptr(x) | Arg::U64(x) => std::ptr::from_ref(x).cast(),
            Arg::I32(x) => std::ptr::from_ref(x).cast(),
            Arg::F32(x) => std::ptr::from_ref(x).cast(),
            Arg::Struct(_, bytes) => bytes.as_ptr().cast(),
        };
        at.cast_mut()
    }
}

/// RMS norm between two small-batch GEMMs: `Norm` in `gemm_decode.cu`, where the fields are
/// explained. Addresses are device pointers.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Norm {
    pub scaled: u64,
    pub weight: u64,
    pub squares: u64,
    pub non_finite: u64,
    pub eps: f32,
    pub layer: i32,
}

layout!(Norm: 40 { eps: 32 });

/// Where sampled tokens are put: `Results` in `sample.cuh`. Addresses are device pointers.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Results {
    pub tokens: u64,
    pub host: u64,
    pub non_finite: u64,
    pub counts: u64,
}

layout!(Results: 32 {});

/// The KV cache as kernels see it: `Kv` in `kv.cuh`, field by field. Addresses are device pointers.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Kv {
    pub pages: u64,
    pub table: u64,
    pub live: u64,
    pub ring: u64,
    pub seq_len: u64,
    pub eviction: u64,
    pub slots: u64,
    pub refs: u64,
    pub free_list: u64,
    pub returned: u64,
    pub counts: u64,
    pub staged: u64,
    pub reads: u64,
    pub peak: u64,
    pub dial: u64,
    pub pinned: u64,
    pub stride: u64,
    pub n_layers: i32,
    pub n_q_heads: i32,
    pub n_kv_heads: i32,
    pub head_dim: i32,
    pub n_seqs: i32,
    pub max_pages: i32,
    /// Bytes of an encoded row, and byte offsets inside a page. Offsets of side data are 0 if the
    /// codec has none.
    pub k_bytes: i32,
    pub v_bytes: i32,
    pub v_at: i32,
    pub k_sides_at: i32,
    pub v_sides_at: i32,
    pub meta_at: i32,
    /// The eviction rule: `Dms` in `policy_dms.cuh`. All 0 where nothing is evicted.
    pub evicts: i32,
    pub window: i32,
    pub previous: i32,
    pub sinks: i32,
    /// Bits of [`policy`], and the slots that a lane stores or a query reads: a number, or minus
    /// the units of a [`Budget::Ratio`](crate::policy::Budget). 0 without a budget.
    pub policy: i32,
    pub budget: i32,
    pub score: u64,
    /// Local layers, the tokens that they see, and the ring length of their lanes:
    /// [`LocalLayers`](crate::policy::LocalLayers).
    pub local: [u64; 4],
    pub local_window: i32,
    pub ring_len: i32,
    /// Distinguishes codes of one byte: `ByteRows` in `codec_bytes.cuh`. 0 if K has other codes.
    pub code_factor: u32,
    pub code_shift: u32,
    pub code_bits: u32,
    /// Lanes of a layer and sequence in tables, and the layers that the heads and rows above are
    /// of: one of [`layers`].
    pub table_heads: i32,
    pub layers_of: i32,
    pub unused: i32,
    /// Rows that have left their lanes, and the newest queries: `far.cuh`. All 0 where those rows
    /// are gone.
    pub near: u64,
    pub near_rows: u64,
    pub recent: u64,
}
layout!(Kv: 304 {
    table: 8,
    staged: 88,
    reads: 96,
    stride: 128,
    n_layers: 136,
    k_bytes: 160,
    meta_at: 180,
    sinks: 196,
    score: 208,
    local: 216,
    ring_len: 252,
    near: 280,
});

/// Layers that a view describes: `LayersOf` in `kv.cuh`.
pub mod layers {
    pub const ALL: i32 = 0;
    pub const LOCAL: i32 = 1;
    pub const OTHERS: i32 = 2;
}

/// Behaviour of a policy other than the eviction rule: `PolicyBits` in `kv.cuh`, and `BY_DECISION`
/// in `policy_scored.cuh`.
pub mod policy {
    pub const SCORES: i32 = 1;
    pub const BY_LAYER: i32 = 2;
    pub const SUMS_SCORES: i32 = 4;
    pub const KEEPS_NEWEST: i32 = 8;
    pub const READS_PAGES: i32 = 16;
    pub const BY_DECISION: i32 = 32;
}

/// Operations on heads before attention: `HeadParams` in `heads.cuh`. Addresses of absent norms are
/// 0.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct HeadParams {
    pub q_norm: u64,
    pub k_norm: u64,
    pub inv_freq: u64,
    pub eps: f32,
    pub rope_factor: f32,
    pub borrowed: i32,
    pub scale: f32,
    pub offset: f32,
    pub per_layer: i32,
    pub columns: u64,
    pub mlp_weight: u64,
    pub mlp_bias: u64,
    pub columns_width: i32,
    pub linear: i32,
    pub units: i32,
    pub stride: i32,
    pub copies: i32,
    pub qkv_width: i32,
    pub rotary: i32,
    pub v_norm: i32,
}
layout!(HeadParams: 104 { eps: 24, columns: 48, qkv_width: 92 });

/// Parameters of `attend.cu`, of its instances for other policies, and of the kernels around them:
/// `DecodeParams` in `decode.cuh`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct DecodeParams {
    pub kv: Kv,
    pub heads: HeadParams,
    pub out: u64,
    pub states: u64,
    pub peaks: u64,
    pub qkv: u64,
    pub decisions: u64,
    pub spans: u64,
    pub image: u64,
    pub out_is_bf16: i32,
    pub layer: i32,
    pub score_scale: f32,
    pub in_order: i32,
    pub logits: u64,
    pub arrivals: u64,
    /// The pages that are read and their slots, where a policy chooses them.
    pub chosen: u64,
    pub chosen_slots: u64,
    /// For a staged step.
    pub span_of_row: u64,
    pub kept: Kept,
    pub sinks: u64,
    /// Rows whose K and V are attended to.
    pub keys: u64,
    pub keys_width: i32,
    pub unused: i32,
}
layout!(DecodeParams: 560 { heads: 304, out: 408, layer: 468, logits: 480, keys: 544 });

/// Parameters of `attend_tiles.cuh` and `attend_wgmma.cu`: `PrefillParams` in `prefill.cuh`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct PrefillParams {
    pub kv: Kv,
    pub out: u64,
    pub partials: u64,
    pub arrivals: u64,
    pub qkv: u64,
    pub decisions: u64,
    pub spans: u64,
    pub out_is_bf16: i32,
    pub layer: i32,
    pub score_scale: f32,
    pub qkv_width: i32,
    pub unpacked: u64,
    pub lane_pages: i32,
    pub first_staged: i32,
    pub sinks: u64,
}
layout!(PrefillParams: 392 { out: 304, layer: 356, unpacked: 368 });

/// Parameters of `rope.cu`: `RopeParams` there.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct RopeParams {
    pub kv: Kv,
    pub heads: HeadParams,
    pub qkv: u64,
    pub decisions: u64,
    pub spans: u64,
    pub span_of_row: u64,
    /// [`Rows`](super::kernels::Rows) as a number.
    pub rows: i32,
    pub layer: i32,
    pub kept: Kept,
    /// Rows whose K and V are prepared already; 0: those of `qkv`.
    pub keys: u64,
    pub keys_width: i32,
    pub unused: i32,
}
layout!(RopeParams: 480 { heads: 304, qkv: 408, kept: 448, keys: 464 });

/// Where rows are staged until they are committed: `Kept` in `kv.cuh`. The default is nowhere.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Kept {
    pub at: u64,
    pub bytes: u64,
}
layout!(Kept: 16 { bytes: 8 });

/// Parameters of `importance.cu`: `ImportanceParams` there.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct ImportanceParams {
    pub heads: HeadParams,
    pub qkv: u64,
    pub factors: u64,
    pub out: u64,
    pub n_q_heads: i32,
    pub n_kv_heads: i32,
    pub head_dim: i32,
    pub first: i32,
    pub end: i32,
    pub tokens: i32,
    pub sinks: u64,
    pub growth: Growth,
}
layout!(ImportanceParams: 168 { qkv: 104, n_q_heads: 128 });

/// Parameters of `delta_net.cu`: `DeltaParams` there.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct DeltaParams {
    pub rows: u64,
    pub gates: u64,
    pub conv: u64,
    pub decay: u64,
    pub dt_bias: u64,
    pub norm: u64,
    pub inputs: u64,
    pub state: u64,
    pub arrivals: u64,
    pub seq_len: u64,
    pub spans: u64,
    pub raw: u64,
    pub out: u64,
    pub image: u64,
    pub raw_width: i32,
    pub staged: i32,
    pub out_is_bf16: i32,
    pub key_heads: i32,
    pub value_heads: i32,
    pub key_dim: i32,
    pub value_dim: i32,
    pub tiled: i32,
    pub eps: f32,
    pub n: i32,
}
layout!(DeltaParams: 152 { inputs: 48, out: 96, eps: 144 });

/// Parameters of `merge.cu`: `MergeParams` there.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct MergeParams {
    pub heads: HeadParams,
    pub qkv: u64,
    pub decisions: u64,
    pub sums: u64,
    pub seq_len: u64,
    pub eviction: u64,
    pub spans: u64,
    pub span_of_row: u64,
    pub layer: i32,
    pub n_q_heads: i32,
    pub n_kv_heads: i32,
    pub head_dim: i32,
    pub n_seqs: i32,
    pub every: i32,
    pub most_members: i32,
    pub weight_scale: f32,
    pub weight_offset: f32,
    pub growth: Growth,
    pub unused: i32,
}
layout!(MergeParams: 208 { qkv: 104, layer: 160, weight_scale: 188, growth: 196 });

/// Growth of queries with their positions: `Growth` in `growth.cuh`. The default is none.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Growth {
    pub beta: f32,
    /// 0: none.
    pub length: i32,
}
layout!(Growth: 8 { length: 4 });

/// A matrix described for TMA copies: `TensorMap` in `hopper.cuh`, the driver's `CUtensorMap`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct TensorMap {
    pub words: [u64; 16],
}
layout!(TensorMap: 128 { words: 0 });
const _: () = assert!(align_of::<TensorMap>() == 64);

/// Consecutive rows of one sequence in a step: `Span` in `kv.cuh`. Kernels read an array of them.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Span {
    pub seq: i32,
    pub start: i32,
    pub len: i32,
    /// Rows of the sequence that the step has fed already: 0 but under policies with scores.
    pub before: i32,
}
layout!(Span: 16 { seq: 0, start: 4, len: 8, before: 12 });

// How one row is sampled: `SamplingState` in `sample.cuh`. Kernels read an array of them.
layout!(SamplingState: 48 { seed: 0, seq: 8, ahead: 12, masked: 16, adjusted: 20, top_k: 24, temperature: 28, repetition_penalty: 40, top_n_sigma: 44 });

/// Bytes of `Row` in `sample.cuh`: the data that sampling kernels keep for one row of logits within
/// a step.
pub const SAMPLE_ROW_BYTES: usize = 139_328;
