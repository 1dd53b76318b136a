//! The table of kernels: the file of each, and its parameters. A test compares it with the PTX, and every launch compares
//! its arguments with it, so neither side can drift.
//!
//! Arguments by letter: `p` pointer, `i` i32, `f` f32, `l` u64, `k` the cache's view, `t` a tensor map;
//! `d`, `c`, `r`, `m`, `n` the parameter structs of decode attention, prefill attention, RoPE, merging and the norms of small-batch
//! GEMMs (`abi.rs`).

use super::super::KernelNeeds;
use crate::codec::Codec;

/// PTX targets, oldest first. A GPU uses the newest that it runs, which the driver compiles for it.
///
/// There is no compute_89: nothing here uses an instruction that it adds (fp8 codes become bf16 by a shift), so its PTX would
/// be that of compute_80 under another name.
pub const TARGETS: [Target; 3] = [
    Target { name: "compute_80", capability: (8, 0), exact: false },
    Target { name: "compute_90", capability: (9, 0), exact: false },
    // Instructions that only Hopper has (`hopper.cuh`).
    Target { name: "compute_90a", capability: (9, 0), exact: true },
];
/// The first target with programmatic dependent launch (`after_previous` in `common.cuh`).
pub const PDL_TARGET: usize = 1;

/// Channels of a head that the narrower and the wider instance of a kernel have room for.
const HEAD_DIMS: [usize; 2] = [64, super::MAX_HEAD_DIM];

/// Whether heads take the wider of the two instances.
pub fn is_wide(head_dim: usize) -> bool {
    head_dim > HEAD_DIMS[0]
}

/// Channels that the instance for a head size has room for.
pub fn padded(head_dim: usize) -> usize {
    HEAD_DIMS[is_wide(head_dim) as usize]
}

/// What a file of kernels is compiled for.
pub struct Target {
    pub name: &'static str,
    /// Lowest compute capability of a GPU that runs it, major and minor.
    pub capability: (i32, i32),
    /// Whether only GPUs of exactly that capability run it.
    pub exact: bool,
}

impl Target {
    /// Whether a GPU of that compute capability runs it.
    pub fn runs_on(&self, capability: (i32, i32)) -> bool {
        if self.exact { capability == self.capability } else { capability >= self.capability }
    }
}

/// A file of kernels, `kernels/{name}.cu`.
pub struct Source {
    pub name: &'static str,
    /// The PTX for each target that it is compiled for, terminated by a zero as the driver requires.
    pub ptx: [Option<&'static str>; TARGETS.len()],
    /// The file that this one replaces on GPUs that run it.
    pub instead_of: Option<&'static str>,
}

impl Source {
    /// The newest target that the GPU runs, and its PTX; `None` if it runs none, or if another file replaces this one.
    pub fn ptx_for(&self, capability: (i32, i32)) -> Option<(&'static str, &'static str)> {
        let newest = |source: &Self| {
            let ptx = TARGETS.iter().zip(source.ptx).filter(|(target, _)| target.runs_on(capability));
            ptx.filter_map(|(target, ptx)| Some((target.name, ptx?))).next_back()
        };
        let replaced = SOURCES.iter().any(|s| s.instead_of == Some(self.name) && newest(s).is_some());
        if replaced { None } else { newest(self) }
    }

    /// Whether the steps of a model launch kernels of this file, on a GPU of that compute capability. What is needed for other
    /// shapes alone is left to its first use.
    pub fn is_needed(&self, capability: (i32, i32), needs: &KernelNeeds) -> bool {
        let KernelNeeds { head_dim, codec, code, policy } = *needs;
        let (scored, paged) = (policy.scored().is_some(), policy.quest().is_some());
        let hopper = TARGETS.iter().any(|t| t.exact && t.runs_on(capability));
        let wgmma = hopper && head_dim == 128 && codec != Codec::K8V4;
        match self.name {
            // Weights that are not bf16 or have odd widths; packed ones where blocks have little shared memory.
            "linear" | "packed_gemm" => false,
            // As `kv::decode_kernel` chooses them.
            "attend" => !scored && !paged,
            "attend_scores" | "place_scores" => scored,
            "pages" | "attend_pages" => paged,
            "merge" => policy.merging().is_some(),
            "gemv" | "gemm_decode" => code.is_none(),
            "packed_gemv" | "packed_resident" | "packed_wgmma" | "unpack" => code.is_some(),
            "attend_wgmma" => wgmma,
            "attend_tiles" => !wgmma,
            _ => true,
        }
    }
}

macro_rules! ptx {
    ($name:literal, $target:literal) => {
        Some(concat!(include_str!(concat!("../../../kernels/ptx/", $name, ".", $target, ".ptx")), "\0"))
    };
}

macro_rules! sources {
    ($($name:literal)* | hopper: $($own:literal instead of $other:expr),*) => {
        pub const SOURCES: &[Source] = &[
            $(Source {
                name: $name,
                ptx: [ptx!($name, "compute_80"), ptx!($name, "compute_90"), None],
                instead_of: None,
            },)*
            $(Source { name: $own, ptx: [None, None, ptx!($own, "compute_90a")], instead_of: $other },)*
        ];
    };
}

sources! {
    "elementwise" "linear" "gemv" "gemm_decode" "gemm" "packed_gemv" "packed_gemm" "packed_resident" "unpack" "rope" "merge" "attend" "attend_scores" "place_scores" "attend_tiles" "place" "presence" "defrag"
    "kv_scatter" "sample" "pages" "attend_pages"
    | hopper: "gemm_wgmma" instead of Some("gemm"), "attend_wgmma" instead of None,
             "packed_wgmma" instead of None
}

/// A kernel: its file, its name, and a letter for each parameter.
pub struct Entry {
    pub source: &'static str,
    pub name: &'static str,
    pub takes: &'static str,
}

macro_rules! kernels {
    ($($source:literal { $($kernel:ident $name:literal $takes:literal),* $(,)? })*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kernel { $($($kernel),*),* }
        impl Kernel {
            /// In the order of [`KERNELS`].
            pub fn all() -> impl Iterator<Item = Self> {
                [$($(Self::$kernel),*),*].into_iter()
            }
        }
        pub const KERNELS: &[Entry] = &[$($(Entry { source: $source, name: $name, takes: $takes }),*),*];
    };
}

kernels! {
    "elementwise" {
        Embed "embed" "ppipi",
        Add "add" "ppl",
        RmsNorm "rms_norm" "ppipppfipi",
        Swiglu "swiglu" "pipii",
        AdapterDecisions "adapter_decisions" "ppffiii",
    }
    "linear" {
        Gemv1F32 "gemv1_f32" "ppppiiii",
        Gemv1F16 "gemv1_f16" "ppppiiii",
        Gemv1Bf16 "gemv1_bf16" "ppppiiii",
        Gemv8F32 "gemv8_f32" "ppppiiii",
        Gemv8F16 "gemv8_f16" "ppppiiii",
        Gemv8Bf16 "gemv8_bf16" "ppppiiii",
        GemmF32 "gemm_f32" "ppppiiii",
        GemmF16 "gemm_f16" "ppppiiii",
        GemmBf16 "gemm_bf16" "ppppiiii",
    }
    "gemv" {
        GemvNarrow "gemv_narrow" "ppppii",
        GemvNarrowSwiglu "gemv_narrow_swiglu" "ppppii",
        GemvNarrowAdd "gemv_narrow_add" "ppppii",
        GemvNarrowNorm "gemv_narrow_norm" "pppppfipii",
        GemvNarrowNormSwiglu "gemv_narrow_norm_swiglu" "pppppfipii",
        GemvWide "gemv_wide" "ppppii",
        GemvWideSwiglu "gemv_wide_swiglu" "ppppii",
        GemvWideAdd "gemv_wide_add" "ppppii",
        GemvWideNorm "gemv_wide_norm" "pppppfipii",
        GemvWideNormSwiglu "gemv_wide_norm_swiglu" "pppppfipii",
        Gemv "gemv" "ppppii",
        GemvSwiglu "gemv_swiglu" "ppppii",
        GemvAdd "gemv_add" "ppppii",
    }
    "gemm_decode" {
        GemmDecode8 "gemm_decode_8" "ppppiiin",
        GemmDecode16 "gemm_decode_16" "ppppiiin",
        GemmDecode32 "gemm_decode_32" "ppppiiin",
        GemmDecode8Swiglu "gemm_decode_8_swiglu" "ppppiiin",
        GemmDecode16Swiglu "gemm_decode_16_swiglu" "ppppiiin",
        GemmDecode32Swiglu "gemm_decode_32_swiglu" "ppppiiin",
        GemmDecode8Deep "gemm_decode_8_deep" "ppppiiin",
        GemmDecode16Deep "gemm_decode_16_deep" "ppppiiin",
        GemmDecode16Tall "gemm_decode_16_tall" "ppppiiin",
        GemmDecode32Deep "gemm_decode_32_deep" "ppppiiin",
        GemmDecode8Long "gemm_decode_8_long" "ppppiiin",
    }
    "gemm" {
        GemmTiles "gemm_tiles" "ppppiiii",
        GemmTilesSwiglu "gemm_tiles_swiglu" "ppppiiii",
        GemmTilesSmall "gemm_tiles_small" "ppppiiii",
        GemmTilesSmallSwiglu "gemm_tiles_small_swiglu" "ppppiiii",
    }
    "packed_gemv" {
        PackedGemvQ4 "packed_gemv_q4" "ppppii",
        PackedGemvQ4Swiglu "packed_gemv_q4_swiglu" "ppppii",
        PackedGemvQ4Add "packed_gemv_q4_add" "ppppii",
        PackedGemvQ4Norm "packed_gemv_q4_norm" "pppppfipii",
        PackedGemvQ4NormSwiglu "packed_gemv_q4_norm_swiglu" "pppppfipii",
        PackedGemvQ4Small "packed_gemv_q4_small" "ppppii",
        PackedGemvQ4SmallSwiglu "packed_gemv_q4_small_swiglu" "ppppii",
        PackedGemvQ4SmallAdd "packed_gemv_q4_small_add" "ppppii",
        PackedGemvQ4SmallNorm "packed_gemv_q4_small_norm" "pppppfipii",
        PackedGemvQ4SmallNormSwiglu "packed_gemv_q4_small_norm_swiglu" "pppppfipii",
        PackedGemvQ8 "packed_gemv_q8" "ppppii",
        PackedGemvQ8Swiglu "packed_gemv_q8_swiglu" "ppppii",
        PackedGemvQ8Add "packed_gemv_q8_add" "ppppii",
        PackedGemvQ8Norm "packed_gemv_q8_norm" "pppppfipii",
        PackedGemvQ8NormSwiglu "packed_gemv_q8_norm_swiglu" "pppppfipii",
        PackedGemvQ8Small "packed_gemv_q8_small" "ppppii",
        PackedGemvQ8SmallSwiglu "packed_gemv_q8_small_swiglu" "ppppii",
        PackedGemvQ8SmallAdd "packed_gemv_q8_small_add" "ppppii",
        PackedGemvQ8SmallNorm "packed_gemv_q8_small_norm" "pppppfipii",
        PackedGemvQ8SmallNormSwiglu "packed_gemv_q8_small_norm_swiglu" "pppppfipii",
    }
    "packed_gemm" {
        PackedGemmQ4N8 "packed_gemm_q4_8" "ppppiii",
        PackedGemmQ4N8Swiglu "packed_gemm_q4_8_swiglu" "ppppiii",
        PackedGemmQ4N16 "packed_gemm_q4_16" "ppppiii",
        PackedGemmQ4N16Swiglu "packed_gemm_q4_16_swiglu" "ppppiii",
        PackedGemmQ4N32 "packed_gemm_q4_32" "ppppiii",
        PackedGemmQ4N32Swiglu "packed_gemm_q4_32_swiglu" "ppppiii",
        PackedGemmQ8N8 "packed_gemm_q8_8" "ppppiii",
        PackedGemmQ8N8Swiglu "packed_gemm_q8_8_swiglu" "ppppiii",
        PackedGemmQ8N16 "packed_gemm_q8_16" "ppppiii",
        PackedGemmQ8N16Swiglu "packed_gemm_q8_16_swiglu" "ppppiii",
        PackedGemmQ8N32 "packed_gemm_q8_32" "ppppiii",
        PackedGemmQ8N32Swiglu "packed_gemm_q8_32_swiglu" "ppppiii",
    }
    "packed_resident" {
        PackedResidentQ4N8 "packed_resident_q4_8" "ppppiiii",
        PackedResidentQ4N8Swiglu "packed_resident_q4_8_swiglu" "ppppiiii",
        PackedResidentQ4N16 "packed_resident_q4_16" "ppppiiii",
        PackedResidentQ4N16Swiglu "packed_resident_q4_16_swiglu" "ppppiiii",
        PackedResidentQ4N32 "packed_resident_q4_32" "ppppiiii",
        PackedResidentQ4N32Swiglu "packed_resident_q4_32_swiglu" "ppppiiii",
        PackedResidentQ8N8 "packed_resident_q8_8" "ppppiiii",
        PackedResidentQ8N8Swiglu "packed_resident_q8_8_swiglu" "ppppiiii",
        PackedResidentQ8N16 "packed_resident_q8_16" "ppppiiii",
        PackedResidentQ8N16Swiglu "packed_resident_q8_16_swiglu" "ppppiiii",
        PackedResidentQ8N32 "packed_resident_q8_32" "ppppiiii",
        PackedResidentQ8N32Swiglu "packed_resident_q8_32_swiglu" "ppppiiii",
    }
    "unpack" {
        EmbedQ4 "embed_q4" "pppi",
        EmbedQ8 "embed_q8" "pppi",
        UnpackQ4 "unpack_q4" "ppiiii",
        UnpackQ8 "unpack_q8" "ppiiii",
    }
    "gemm_wgmma" {
        GemmWgmma256 "gemm_wgmma_256" "pttpiiii",
        GemmWgmma192 "gemm_wgmma_192" "pttpiiii",
        GemmWgmma128 "gemm_wgmma_128" "pttpiiii",
        GemmWgmma192Swiglu "gemm_wgmma_192_swiglu" "pttpiiii",
        GemmWgmma128Swiglu "gemm_wgmma_128_swiglu" "pttpiiii",
    }
    "packed_wgmma" {
        PackedWgmmaQ4Wide "packed_wgmma_q4_wide" "pppppppiii",
        PackedWgmmaQ4WideSwiglu "packed_wgmma_q4_wide_swiglu" "pppppppiii",
        PackedWgmmaQ4Narrow "packed_wgmma_q4_narrow" "pppppppiii",
        PackedWgmmaQ4NarrowSwiglu "packed_wgmma_q4_narrow_swiglu" "pppppppiii",
        PackedWgmmaQ8Wide "packed_wgmma_q8_wide" "pppppppiii",
        PackedWgmmaQ8WideSwiglu "packed_wgmma_q8_wide_swiglu" "pppppppiii",
        PackedWgmmaQ8Narrow "packed_wgmma_q8_narrow" "pppppppiii",
        PackedWgmmaQ8NarrowSwiglu "packed_wgmma_q8_narrow_swiglu" "pppppppiii",
        MakeImage "make_image" "ppii",
    }
    "rope" {
        QkvRopeBf16 "qkv_rope_bf16" "r",
        QkvRopeFp8 "qkv_rope_fp8" "r",
        QkvRopeInt8 "qkv_rope_int8" "r",
        QkvRopeK8V4 "qkv_rope_k8v4" "r",
    }
    "merge" {
        MergeHeads "merge_heads" "m",
        MergeRows "merge_rows" "m",
    }
    "attend" {
        Attend64Bf16 "attend_64_bf16" "d",
        Attend64Fp8 "attend_64_fp8" "d",
        Attend128Bf16 "attend_128_bf16" "d",
        Attend128Fp8 "attend_128_fp8" "d",
        Attend64Int8 "attend_64_int8" "d",
        Attend128Int8 "attend_128_int8" "d",
        Attend64K8V4 "attend_64_k8v4" "d",
        Attend128K8V4 "attend_128_k8v4" "d",
    }
    "attend_scores" {
        AttendScores64Bf16 "attend_scores_64_bf16" "d",
        AttendScores64Fp8 "attend_scores_64_fp8" "d",
        AttendScores128Bf16 "attend_scores_128_bf16" "d",
        AttendScores128Fp8 "attend_scores_128_fp8" "d",
        AttendScores64Int8 "attend_scores_64_int8" "d",
        AttendScores128Int8 "attend_scores_128_int8" "d",
        AttendScores64K8V4 "attend_scores_64_k8v4" "d",
        AttendScores128K8V4 "attend_scores_128_k8v4" "d",
    }
    "place_scores" {
        PlaceScores "place_scores" "d",
    }
    "pages" {
        Estimate64 "estimate_64" "dp",
        Estimate128 "estimate_128" "dp",
        SelectPages "select_pages" "dpppppi",
        ScatterBoundsBf16 "scatter_bounds_bf16" "kippi",
        ScatterBoundsFp8 "scatter_bounds_fp8" "kippi",
        ScatterBoundsInt8 "scatter_bounds_int8" "kippi",
        LaneBoundsBf16 "lane_bounds_bf16" "ki",
        LaneBoundsFp8 "lane_bounds_fp8" "ki",
        LaneBoundsInt8 "lane_bounds_int8" "ki",
        AppendBoundsBf16 "append_bounds_bf16" "kpi",
        AppendBoundsFp8 "append_bounds_fp8" "kpi",
        AppendBoundsInt8 "append_bounds_int8" "kpi",
    }
    "attend_pages" {
        AttendPages64Bf16 "attend_pages_64_bf16" "dpp",
        AttendPages64Fp8 "attend_pages_64_fp8" "dpp",
        AttendPages128Bf16 "attend_pages_128_bf16" "dpp",
        AttendPages128Fp8 "attend_pages_128_fp8" "dpp",
        AttendPages64Int8 "attend_pages_64_int8" "dpp",
        AttendPages128Int8 "attend_pages_128_int8" "dpp",
        AttendPages64K8V4 "attend_pages_64_k8v4" "dpp",
        AttendPages128K8V4 "attend_pages_128_k8v4" "dpp",
    }
    "attend_tiles" {
        AttendTiles64Bf16 "attend_tiles_64_bf16" "c",
        AttendTiles64Fp8 "attend_tiles_64_fp8" "c",
        AttendTiles128Bf16 "attend_tiles_128_bf16" "c",
        AttendTiles128Fp8 "attend_tiles_128_fp8" "c",
        AttendTiles64Int8 "attend_tiles_64_int8" "c",
        AttendTiles128Int8 "attend_tiles_128_int8" "c",
        AttendTiles64K8V4 "attend_tiles_64_k8v4" "c",
        AttendTiles128K8V4 "attend_tiles_128_k8v4" "c",
    }
    "attend_wgmma" {
        AttendWgmma128Bf16 "attend_wgmma_128_bf16" "ctt",
        AttendWgmma128Fp8 "attend_wgmma_128_fp8" "ctt",
        AttendWgmma128Int8 "attend_wgmma_128_int8" "ctt",
        KvUnpackFp8 "kv_unpack_fp8" "c",
        KvUnpackInt8 "kv_unpack_int8" "c",
    }
    "place" {
        Place "place" "kpip",
        Append "append" "kpi",
        Advance "advance" "kpi",
        ReclaimPages "reclaim_pages" "k",
        Fork "fork" "kii",
        Release "release" "ki",
        Compact "compact" "kii",
        Reduce "reduce" "ki",
        RateSlots "rate_slots" "kiiii",
        SlotMetas "slot_metas" "pkiii",
    }
    "presence" {
        Presence "presence" "pkiiiii",
    }
    "defrag" {
        MovePages "move_pages" "kpi",
        RenamePages "rename_pages" "kpiil",
        GatherPages "gather_pages" "kp",
        ScatterPages "scatter_pages" "kp",
    }
    "kv_scatter" {
        KvScatter "kv_scatter" "kippi",
    }
    "sample" {
        MarkSeen "mark_seen" "ppppii",
        Argmax "argmax" "ppppii",
        GreedyToken "greedy_token" "ppi",
        Histogram "histogram" "pppi",
        ThresholdBin "threshold_bin" "pppi",
        Candidates "candidates" "pppi",
        NucleusCut "nucleus_cut" "pppppi",
        MaskMass "mask_mass" "pppi",
        DrawToken "draw_token" "pppppi",
        CopyToHost "copy_to_host" "ppppi",
    }
}

impl Kernel {
    pub fn entry(self) -> &'static Entry {
        &KERNELS[self as usize]
    }

    /// The place of its file in [`SOURCES`].
    pub fn source(self) -> usize {
        let name = self.entry().source;
        SOURCES.iter().position(|s| s.name == name).expect("every kernel's file is listed")
    }

    /// Whether a launch says how much dynamic shared memory a block has: up to all there is.
    pub fn shares_what_it_is_given(self) -> bool {
        self != Self::MakeImage && matches!(self.entry().source, "packed_gemv" | "packed_resident" | "packed_wgmma")
    }

    /// Bytes of dynamic shared memory of a block, if it is the same for every launch.
    pub fn shared_bytes(self) -> usize {
        // Stages of both inputs: `gemm.cu`.
        let stages = |tokens: usize, rows: usize| 3 * (tokens + rows) * 64 * size_of::<u16>();
        // `gemm_wgmma.cu`, aligned to 1,024 bytes.
        let own = |rows: usize, stages: usize| stages * (128 + rows) * 64 * size_of::<u16>() + 1024;
        // Stages of both inputs, 32 columns a warp, and a factor for each token: `gemm_decode.cu`.
        let few = |stages: usize, tokens: usize, rows: usize, warps: usize| {
            stages * (tokens + rows) * 32 * warps * size_of::<u16>() + tokens * size_of::<f32>()
        };
        // Stages of both inputs, or the partial sums: `packed_gemm.cu`.
        let packed = |planes: usize, tokens: usize, strips: usize, k_warps: usize, stages: usize| {
            let stage = strips * k_warps * (planes * 512 + 32) + tokens * k_warps * 128;
            (stages * stage).max(k_warps * tokens * (strips * 16 + 1) * size_of::<f32>())
        };
        // `Shared` in `attend_tiles.cu`: tiles of Q, K and V, then `codes` bytes of codes in flight and of offsets.
        let tiles = |d: usize, codes: usize| (128 + 2 * 64) * d * 2 + codes + 1024 + 256 * 8 + 256 * 16 + 32;
        // `Shared` in `attend_wgmma.cu`, aligned to 1,024 bytes.
        let wgmma = |codes: usize, scales: usize| (128 + 4 * 128) * 128 * 2 + codes + scales + 16 * 1024;
        match self {
            Kernel::AttendWgmma128Bf16 => wgmma(0, 0),
            Kernel::AttendWgmma128Fp8 | Kernel::AttendWgmma128Int8 => wgmma(2 * 128 * 128, 4 * 2 * 128 * 4),
            Kernel::AttendTiles64Bf16 => tiles(64, 48),
            Kernel::AttendTiles64Fp8 | Kernel::AttendTiles64Int8 => tiles(64, 2 * 64 * 64 + 16),
            Kernel::AttendTiles64K8V4 => tiles(64, 64 * 64 + 64 * 32 + 256),
            Kernel::AttendTiles128Bf16 => tiles(128, 48),
            Kernel::AttendTiles128Fp8 | Kernel::AttendTiles128Int8 => tiles(128, 2 * 64 * 128 + 16),
            Kernel::AttendTiles128K8V4 => tiles(128, 64 * 128 + 64 * 64 + 256),
            Kernel::GemmDecode8 | Kernel::GemmDecode8Swiglu => few(6, 8, 16, 8),
            Kernel::GemmDecode16 | Kernel::GemmDecode16Swiglu => few(4, 16, 16, 8),
            Kernel::GemmDecode32 | Kernel::GemmDecode32Swiglu => few(3, 32, 32, 8),
            Kernel::GemmDecode8Deep => few(6, 8, 16, 16),
            Kernel::GemmDecode16Deep => few(6, 16, 16, 16),
            Kernel::GemmDecode16Tall => few(6, 16, 32, 8),
            Kernel::GemmDecode8Long => few(8, 8, 16, 8),
            Kernel::GemmDecode32Deep => few(6, 32, 32, 8),
            Kernel::GemmTiles | Kernel::GemmTilesSwiglu => stages(128, 256),
            Kernel::PackedGemmQ4N8 | Kernel::PackedGemmQ4N8Swiglu => packed(1, 8, 2, 8, 4),
            Kernel::PackedGemmQ4N16 | Kernel::PackedGemmQ4N16Swiglu => packed(1, 16, 2, 8, 3),
            Kernel::PackedGemmQ4N32 | Kernel::PackedGemmQ4N32Swiglu => packed(1, 32, 4, 4, 3),
            Kernel::PackedGemmQ8N8 | Kernel::PackedGemmQ8N8Swiglu => packed(2, 8, 2, 8, 3),
            Kernel::PackedGemmQ8N16 | Kernel::PackedGemmQ8N16Swiglu => packed(2, 16, 2, 8, 3),
            Kernel::PackedGemmQ8N32 | Kernel::PackedGemmQ8N32Swiglu => packed(2, 32, 4, 4, 3),
            Kernel::GemmWgmma256 => own(256, 4),
            Kernel::GemmWgmma192 | Kernel::GemmWgmma192Swiglu => own(192, 5),
            Kernel::GemmWgmma128 | Kernel::GemmWgmma128Swiglu => own(128, 6),
            Kernel::GemmTilesSmall | Kernel::GemmTilesSmallSwiglu => stages(128, 128),
            _ => 0,
        }
    }
}
