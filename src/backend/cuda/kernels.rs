//! The table of kernels: which file each is in and what it takes. A test compares it with the PTX, and
//! a launch compares its arguments with the table, so neither side can drift.
//!
//! Arguments by letter: `p` pointer, `i` i32, `f` f32, `l` u64, `k` the cache's view, `t` a tensor map;
//! `d`, `c`, `r` the parameter structs of decode attention, prefill attention and RoPE (`abi.rs`).

/// What kernels are compiled for. The driver makes code for the card at hand from the newest that it can run.
///
/// None for compute_89: nothing here uses an instruction that it adds (codes of fp8 become bf16 by a shift), so its PTX
/// would be that of compute_80 under another name.
pub const TARGETS: [Target; 3] = [
    Target { name: "compute_80", capability: (8, 0), exact: false },
    Target { name: "compute_90", capability: (9, 0), exact: false },
    // Hopper's own instructions (`hopper.cuh`), which no later card has.
    Target { name: "compute_90a", capability: (9, 0), exact: true },
];
/// From this target on, a kernel may be started before the one in front of it has ended (`after_previous` in
/// `common.cuh`).
pub const EARLY_START: usize = 1;

pub struct Target {
    pub name: &'static str,
    /// Least compute capability of a card that runs it, major and minor.
    pub capability: (i32, i32),
    /// Whether other cards than those of that very capability do not run it.
    pub exact: bool,
}

impl Target {
    pub fn runs_on(&self, capability: (i32, i32)) -> bool {
        if self.exact { capability == self.capability } else { capability >= self.capability }
    }
}

/// A file of kernels.
pub struct Source {
    pub name: &'static str,
    /// For each target that it is compiled for; ends in a zero, as the driver wants it.
    pub ptx: [Option<&'static str>; TARGETS.len()],
    /// The file whose work this one does on cards that run it.
    pub instead_of: Option<&'static str>,
}

impl Source {
    /// The target that a card takes it for, and that PTX; none where another file does its work, or where it is for
    /// other cards.
    pub fn of_card(&self, capability: (i32, i32)) -> Option<(&'static str, &'static str)> {
        let newest = |source: &Self| {
            let ptx = TARGETS.iter().zip(source.ptx).filter(|(target, _)| target.runs_on(capability));
            ptx.filter_map(|(target, ptx)| Some((target.name, ptx?))).next_back()
        };
        let better = SOURCES.iter().any(|s| s.instead_of == Some(self.name) && newest(s).is_some());
        if better { None } else { newest(self) }
    }
}

macro_rules! ptx {
    ($name:literal, $target:literal) => {
        Some(concat!(include_str!(concat!("../../../kernels/ptx/", $name, ".", $target, ".ptx")), "\0"))
    };
}

macro_rules! sources {
    ($($name:literal)* | hopper: $($own:literal instead of $other:literal)*) => {
        pub const SOURCES: &[Source] = &[
            $(Source {
                name: $name,
                ptx: [ptx!($name, "compute_80"), ptx!($name, "compute_90"), None],
                instead_of: None,
            },)*
            $(Source { name: $own, ptx: [None, None, ptx!($own, "compute_90a")], instead_of: Some($other) },)*
        ];
    };
}

sources! {
    "rows" "linear" "gemv" "gemm_few" "gemm" "rope" "attend" "decode_epilogue" "attend_tiles" "place" "defrag" "kv_scatter" "sample"
    | hopper: "gemm_wgmma" instead of "gemm"
}

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
    "rows" {
        Embed "embed" "ppipi",
        Add "add" "ppl",
        RmsNorm "rms_norm" "pipppfipi",
        Swiglu "swiglu" "pipi",
        SwigluWrong "swiglu_wrong" "pipi",
        Decide "decide" "ppffiii",
    }
    "linear" {
        Gemv1F32 "gemv1_f32" "ppppiiii",
        Gemv1F16 "gemv1_f16" "ppppiiii",
        Gemv1Bf16 "gemv1_bf16" "ppppiiii",
        Gemv8F32 "gemv8_f32" "ppppiiii",
        Gemv8F16 "gemv8_f16" "ppppiiii",
        Gemv8Bf16 "gemv8_bf16" "ppppiiii",
        GemmF32 "gemm_f32" "ppppiii",
        GemmF16 "gemm_f16" "ppppiii",
        GemmBf16 "gemm_bf16" "ppppiii",
    }
    "gemv" {
        Gemv "gemv" "ppppii",
        GemvGated "gemv_gated" "ppppii",
    }
    "gemm_few" {
        GemmFew8 "gemm_few_8" "ppppiii",
        GemmFew16 "gemm_few_16" "ppppiii",
        GemmFew32 "gemm_few_32" "ppppiii",
        GemmFew8Gated "gemm_few_8_gated" "ppppiii",
        GemmFew16Gated "gemm_few_16_gated" "ppppiii",
        GemmFew32Gated "gemm_few_32_gated" "ppppiii",
        GemmFew32Deep "gemm_few_32_deep" "ppppiii",
    }
    "gemm" {
        GemmTiles "gemm_tiles" "ppppiii",
        GemmTilesGated "gemm_tiles_gated" "ppppiii",
        GemmTilesSmall "gemm_tiles_small" "ppppiii",
        GemmTilesSmallGated "gemm_tiles_small_gated" "ppppiii",
    }
    "gemm_wgmma" {
        GemmWgmma256 "gemm_wgmma_256" "pttpiii",
        GemmWgmma192 "gemm_wgmma_192" "pttpiii",
        GemmWgmma128 "gemm_wgmma_128" "pttpiii",
        GemmWgmma192Gated "gemm_wgmma_192_gated" "pttpiii",
        GemmWgmma128Gated "gemm_wgmma_128_gated" "pttpiii",
    }
    "rope" {
        QkvRopeBf16 "qkv_rope_bf16" "r",
        QkvRopeFp8 "qkv_rope_fp8" "r",
        QkvRopeInt8 "qkv_rope_int8" "r",
    }
    "attend" {
        Attend64Bf16 "attend_64_bf16" "d",
        Attend64Fp8 "attend_64_fp8" "d",
        Attend128Bf16 "attend_128_bf16" "d",
        Attend128Fp8 "attend_128_fp8" "d",
        Attend64Int8 "attend_64_int8" "d",
        Attend128Int8 "attend_128_int8" "d",
    }
    "decode_epilogue" {
        DecodeEpilogueBf16 "decode_epilogue_bf16" "d",
        DecodeEpilogueFp8 "decode_epilogue_fp8" "d",
        DecodeEpilogueInt8 "decode_epilogue_int8" "d",
    }
    "attend_tiles" {
        AttendTiles64Bf16 "attend_tiles_64_bf16" "c",
        AttendTiles64Fp8 "attend_tiles_64_fp8" "c",
        AttendTiles128Bf16 "attend_tiles_128_bf16" "c",
        AttendTiles128Fp8 "attend_tiles_128_fp8" "c",
        AttendTiles64Int8 "attend_tiles_64_int8" "c",
        AttendTiles128Int8 "attend_tiles_128_int8" "c",
    }
    "place" {
        Place "place" "kpip",
        Advance "advance" "kpi",
        ReclaimPages "reclaim_pages" "k",
        Fork "fork" "kii",
        Release "release" "ki",
        Compact "compact" "ki",
        SlotMetas "slot_metas" "pkiii",
    }
    "defrag" {
        MovePages "move_pages" "kpi",
        RenamePages "rename_pages" "kpiil",
    }
    "kv_scatter" {
        KvScatter "kv_scatter" "kippi",
    }
    "sample" {
        Note "note" "ppppii",
        Likeliest "likeliest" "ppppii",
        Weigh "weigh" "pppi",
        Border "border" "pppi",
        List "list" "pppi",
        Cut "cut" "pppppi",
        Keep "keep" "pppi",
        Choose "choose" "pppppi",
        Post "post" "ppppi",
    }
}

impl Kernel {
    pub fn entry(self) -> &'static Entry {
        &KERNELS[self as usize]
    }

    /// Bytes of shared memory that a launch gives a block beside its own arrays.
    pub fn shared_bytes(self) -> usize {
        // Stages of both factors: `gemm.cu`.
        let stages = |tokens: usize, rows: usize| 3 * (tokens + rows) * 64 * size_of::<u16>();
        // As many of them as are named in `gemm_wgmma.cu`, from a multiple of 1,024 on.
        let own = |rows: usize, stages: usize| stages * (128 + rows) * 64 * size_of::<u16>() + 1024;
        // Stages of both factors: `gemm_few.cu`.
        let few = |stages: usize, tokens: usize| stages * (tokens + 32) * 256 * size_of::<u16>();
        // `Shared` in `attend_tiles.cu`.
        let tiles = |d: usize, codes: usize| (128 + 2 * 64) * d * 2 + codes + 1024 + 2 * 256 * 8 + 256 * 24 + 32;
        match self {
            Kernel::AttendTiles64Bf16 => tiles(64, 32),
            Kernel::AttendTiles64Fp8 | Kernel::AttendTiles64Int8 => tiles(64, 2 * 64 * 64),
            Kernel::AttendTiles128Bf16 => tiles(128, 32),
            Kernel::AttendTiles128Fp8 | Kernel::AttendTiles128Int8 => tiles(128, 2 * 64 * 128),
            Kernel::GemmFew8 | Kernel::GemmFew8Gated => few(4, 8),
            Kernel::GemmFew16 | Kernel::GemmFew16Gated => few(4, 16),
            Kernel::GemmFew32 | Kernel::GemmFew32Gated => few(3, 32),
            Kernel::GemmFew32Deep => few(6, 32),
            Kernel::GemmTiles | Kernel::GemmTilesGated => stages(128, 256),
            Kernel::GemmWgmma256 => own(256, 4),
            Kernel::GemmWgmma192 | Kernel::GemmWgmma192Gated => own(192, 5),
            Kernel::GemmWgmma128 | Kernel::GemmWgmma128Gated => own(128, 6),
            Kernel::GemmTilesSmall | Kernel::GemmTilesSmallGated => stages(128, 128),
            _ => 0,
        }
    }
}
