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

sources!["rows", "linear", "gemm", "rope", "attend", "attend_tiles", "place", "move", "store", "sample"];

pub struct Entry {
    pub source: &'static str,
    pub name: &'static str,
    pub takes: &'static str,
}

macro_rules! kernels {
    ($($source:literal { $($kernel:ident $name:literal $takes:literal),* $(,)? })*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kernel { $($($kernel),*),* }
        pub const KERNELS: &[Entry] = &[$($(Entry { source: $source, name: $name, takes: $takes }),*),*];
    };
}

kernels! {
    "rows" {
        Embed "embed" "ppipi",
        Add "add" "ppl",
        RmsNorm "rms_norm" "pppfipi",
        AddRmsNorm "add_rms_norm" "ppppfipi",
        Swiglu "swiglu" "ppi",
        SwigluWrong "swiglu_wrong" "ppi",
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
    "gemm" {
        SplitRows "split_rows" "pppl",
        GemmTiles "gemm_tiles" "pppppiii",
        GemmFew8 "gemm_few_8" "ppppiii",
        GemmFew16 "gemm_few_16" "ppppiii",
        GemmFew32 "gemm_few_32" "ppppiii",
    }
    "rope" {
        QkvRope "qkv_rope" "ppppppppiiiffiffi",
    }
    "attend" {
        Attend11 "attend_1_1" "ppppkippf",
        Attend12 "attend_1_2" "ppppkippf",
        Attend14 "attend_1_4" "ppppkippf",
        Attend18 "attend_1_8" "ppppkippf",
        Attend21 "attend_2_1" "ppppkippf",
        Attend22 "attend_2_2" "ppppkippf",
        Attend24 "attend_2_4" "ppppkippf",
        Attend28 "attend_2_8" "ppppkippf",
        Attend41 "attend_4_1" "ppppkippf",
        Attend42 "attend_4_2" "ppppkippf",
        Attend44 "attend_4_4" "ppppkippf",
        Attend48 "attend_4_8" "ppppkippf",
        AttendMerge "attend_merge" "ppii",
    }
    "attend_tiles" {
        AttendTiles32 "attend_tiles_32" "ppppkipf",
        AttendTiles64 "attend_tiles_64" "ppppkipf",
        AttendTiles128 "attend_tiles_128" "ppppkipf",
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
        KvRoundTrip "kv_round_trip" "piiii",
        Store "store" "kpipp",
    }
    "sample" {
        Note "note" "ppppii",
        Penalise "penalise" "pppii",
        Sample "sample" "ppipp",
        Post "post" "ppppi",
    }
}

impl Kernel {
    pub fn entry(self) -> &'static Entry {
        &KERNELS[self as usize]
    }
}
