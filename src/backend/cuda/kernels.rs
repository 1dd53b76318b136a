//! The table of kernels: which file each is in and what it takes. A test compares it with the PTX, and
//! a launch compares its arguments with the table, so neither side can drift.
//!
//! Arguments by letter: `p` pointer, `i` i32, `f` f32, `l` u64, `k` the cache's view.

/// Targets that all kernels are compiled for, oldest first: the least major version of a card's compute
/// capability, and its name. The driver makes code for the card at hand from the newest that it can run.
pub const TARGETS: [(i32, &str); 2] = [(8, "compute_80"), (9, "compute_90")];
/// From this target on, a kernel may be started before the one in front of it has ended (`after_previous` in
/// `common.cuh`).
pub const EARLY_START: usize = 1;

/// A file of kernels.
pub struct Source {
    pub name: &'static str,
    /// For each target; ends in a zero, as the driver wants it.
    pub ptx: [&'static str; TARGETS.len()],
}

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        pub const SOURCES: &[Source] = &[$(Source {
            name: $name,
            ptx: [
                concat!(include_str!(concat!("../../../kernels/ptx/", $name, ".compute_80.ptx")), "\0"),
                concat!(include_str!(concat!("../../../kernels/ptx/", $name, ".compute_90.ptx")), "\0"),
            ],
        }),*];
    };
}

sources![
    "rows",
    "linear",
    "gemv",
    "gemm_few",
    "gemm",
    "rope",
    "attend",
    "take",
    "attend_tiles",
    "place",
    "move",
    "store",
    "sample"
];

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
    }
    "gemm" {
        GemmTiles "gemm_tiles" "ppppiii",
        GemmTilesGated "gemm_tiles_gated" "ppppiii",
        GemmTilesSmall "gemm_tiles_small" "ppppiii",
        GemmTilesSmallGated "gemm_tiles_small_gated" "ppppiii",
    }
    "rope" {
        QkvRope "qkv_rope" "ppkpppppffiffi",
    }
    "attend" {
        Attend64Bf16 "attend_64_bf16" "ppppkippppffiffif",
        Attend64Fp8 "attend_64_fp8" "ppppkippppffiffif",
        Attend128Bf16 "attend_128_bf16" "ppppkippppffiffif",
        Attend128Fp8 "attend_128_fp8" "ppppkippppffiffif",
    }
    "take" {
        Take "take" "pippppkippppffiffif",
    }
    "attend_tiles" {
        AttendTiles64Bf16 "attend_tiles_64_bf16" "pippppkipf",
        AttendTiles64Fp8 "attend_tiles_64_fp8" "pippppkipf",
        AttendTiles128Bf16 "attend_tiles_128_bf16" "pippppkipf",
        AttendTiles128Fp8 "attend_tiles_128_fp8" "pippppkipf",
    }
    "place" {
        Place "place" "kpip",
        Advance "advance" "kpi",
        Settle "settle" "k",
        Fork "fork" "kii",
        Release "release" "ki",
        Compact "compact" "ki",
        SlotMetas "slot_metas" "pkiii",
    }
    "move" {
        MovePages "move_pages" "kpi",
        RenamePages "rename_pages" "kpiil",
    }
    "store" {
        Store "store" "kippi",
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
        // `Shared` in `attend_tiles.cu`.
        let tiles = |d: usize, codes: usize| (128 + 2 * 64) * d * 2 + codes + 1024 + 2 * 256 * 8 + 256 * 24 + 32;
        match self {
            Kernel::AttendTiles64Bf16 => tiles(64, 32),
            Kernel::AttendTiles64Fp8 => tiles(64, 2 * 64 * 64),
            Kernel::AttendTiles128Bf16 => tiles(128, 32),
            Kernel::AttendTiles128Fp8 => tiles(128, 2 * 64 * 128),
            Kernel::GemmTiles | Kernel::GemmTilesGated => stages(128, 256),
            Kernel::GemmTilesSmall | Kernel::GemmTilesSmallGated => stages(128, 128),
            _ => 0,
        }
    }
}
