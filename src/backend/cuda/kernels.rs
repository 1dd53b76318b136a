//! The kernels of `kernels/`, named by their parts, and the archive of their PTX. The archive's
//! index holds the properties that the host needs (parameters, threads, shared memory);
//! `kernels/compile.py` reads them from the PTX itself.

use super::super::KernelNeeds;
use crate::codec::Codec;
pub use crate::codec::Rows;
use crate::quant::{Code, Weights, has_kernels_of_formats};
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::sync::LazyLock;

static ARCHIVE: &[u8] = include_bytes!("../../../kernels/ptx.tar");
static INDEX_TEXT: &str = include_str!("../../../kernels/ptx.txt");

/// PTX targets, oldest first. A GPU uses the newest that it runs, which the driver compiles for it.
pub const TARGETS: [Target; 4] = [
    Target { name: "compute_80", capability: (8, 0), exact: false },
    // Conversions to and from fp8 (`codec_bytes.cuh`). Files that use them are compiled for this
    // target.
    Target { name: "compute_89", capability: (8, 9), exact: false },
    Target { name: "compute_90", capability: (9, 0), exact: false },
    // Instructions that only Hopper has (`hopper.cuh`).
    Target { name: "compute_90a", capability: (9, 0), exact: true },
];
/// The first target with programmatic dependent launch (`after_previous` in `common.cuh`).
pub const PDL_TARGET: usize = 2;
/// Threads of a block of most kernels.
pub(super) const BLOCK: usize = 256;

/// Largest head and group that the attention kernels are instantiated for.
pub const MAX_HEAD_DIM: usize = 512;
/// Largest head that decode attention is instantiated for; tokens with wider heads go in tiles.
pub const MAX_DECODE_HEAD_DIM: usize = 256;

pub const MAX_GROUP: usize = 8;
/// Channels of a head that a kernel instance has room for. Heads wider than [`USUAL_HEAD_DIM`] have
/// their own files.
const HEAD_DIMS: [usize; 4] = [64, USUAL_HEAD_DIM, MAX_DECODE_HEAD_DIM, MAX_HEAD_DIM];
pub const USUAL_HEAD_DIM: usize = 128;
/// Units of a second hidden layer of retention gates that `place_scores` has room for.
pub const MAX_GATE_UNITS: usize = 2048;

/// Channels that the instance for a head size has room for.
pub fn padded(head_dim: usize) -> usize {
    HEAD_DIMS.into_iter().find(|room| head_dim <= *room).expect("a head size that `Target::check_model` admits")
}

/// Refuses policies without kernels for the model's heads.
pub fn check_needs(needs: &KernelNeeds) -> anyhow::Result<()> {
    let KernelNeeds { varies, policy, growth, far, gate_units, .. } = *needs;
    let head_dim = needs.head_dims.into_iter().max().unwrap_or(0);
    anyhow::ensure!(
        head_dim <= USUAL_HEAD_DIM || !growth,
        "on a GPU, queries that grow with their positions need heads of at most {USUAL_HEAD_DIM} channels, and this \
         model's have {head_dim}; use --device cpu"
    );
    anyhow::ensure!(
        gate_units <= MAX_GATE_UNITS,
        "policy {}: on a GPU a second hidden layer of retention gates has at most {MAX_GATE_UNITS} units, and this one has \
         {gate_units}; use --device cpu, or --adapter none",
        policy.name()
    );
    let other = policy.scored().is_some() || policy.quest().is_some() || policy.merging().is_some();
    anyhow::ensure!(
        head_dim <= USUAL_HEAD_DIM || !other,
        "policy {}: on a GPU it needs heads of at most {USUAL_HEAD_DIM} channels, and this model's have {head_dim}; use \
         --policy dms, window or dense, or --device cpu",
        policy.name()
    );
    anyhow::ensure!(
        !varies || !other,
        "policy {}: on a GPU it needs layers with the same heads, and values without norms; use --policy dms, window or \
         dense, or --device cpu",
        policy.name()
    );
    anyhow::ensure!(
        !varies || !far,
        "--far: on a GPU it needs layers with the same heads, and values without norms; use --far off or --device cpu"
    );
    Ok(())
}

/// Target that a file of kernels is compiled for.
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
    /// SHA-256 of what it was compiled from: `digest` in `kernels/compile.py`.
    pub digest: &'static str,
    /// SHA-256 of its PTX in the archive.
    pub packed: &'static str,
    /// Targets that it is compiled for, in the order of [`TARGETS`].
    targets: Vec<&'static Target>,
}

impl Source {
    /// Newest target that the GPU runs; `None` if it runs none, or if another file replaces this
    /// one.
    pub fn target_for(&self, capability: (i32, i32)) -> Option<&'static Target> {
        let newest = |source: &Self| source.targets.iter().copied().rfind(|target| target.runs_on(capability));
        let replaced = self.name == "gemm" && SOURCES.iter().any(|s| s.name == "gemm_wgmma" && newest(s).is_some());
        if replaced { None } else { newest(self) }
    }

    /// Its PTX as the archive has it.
    pub fn packed_bytes(&self) -> &'static [u8] {
        member(&format!("{}.lzma", self.name))
    }

    /// The PTX for one of its targets, with a zero at its end as the driver requires.
    pub fn ptx(&self, target: &Target) -> Vec<u8> {
        let reader =
            lzma_rust2::LzmaReader::new_mem_limit(self.packed_bytes(), u32::MAX, None).expect("the archive is whole");
        // The newest is first, so that new GPUs unpack nothing else.
        let mut ptxs = BufReader::new(reader).split(0);
        let at = self.targets.iter().rev().position(|t| t.name == target.name).expect("a target of the file");
        let mut ptx = ptxs.nth(at).expect("PTX for every target").expect("the archive is whole");
        ptx.push(0);
        ptx
    }

    /// Whether the steps of a model launch kernels of this file, on a GPU of that compute
    /// capability. Files that only other shapes need are loaded at their first use.
    pub fn is_needed(&self, capability: (i32, i32), needs: &KernelNeeds) -> bool {
        let KernelNeeds { head_dims, codec, weights, policy, far, delta_net, experts, growth, drafts, .. } = *needs;
        let (scored, paged) = (policy.scored().is_some(), policy.quest().is_some());
        let hopper = TARGETS.iter().any(|t| t.exact && t.runs_on(capability));
        let wgmma = |head_dim: usize| hopper && head_dim == 128 && Rows::of(codec).has_wgmma();
        let any = |of: &dyn Fn(usize) -> bool| head_dims.into_iter().any(of);
        let (usual, wide) = (any(&|dim| dim <= USUAL_HEAD_DIM), any(&|dim| padded(dim) == MAX_DECODE_HEAD_DIM));
        match self.name {
            // Weights that are not bf16 or have odd widths, packed weights if blocks have little
            // shared memory, training, and GPTQ.
            "linear" | "packed_gemm" | "importance" | "hessian" => false,
            "delta_net" => delta_net,
            "experts" => experts,
            // As `kv::decode_kernel` chooses them.
            "attend" => !scored && !paged && !far && usual,
            "attend_drafts" => drafts && policy.stages() && !far && usual,
            "attend_256" | "attend_tiles_256" => wide,
            "attend_tiles_512" | "rope_512" => any(&|dim| dim > MAX_DECODE_HEAD_DIM),
            "rope" => any(&|dim| dim <= MAX_DECODE_HEAD_DIM),
            "attend_choice" => scored || paged,
            "attend_far" => far && usual,
            "far" => far,
            "place_scores" => scored,
            "pages" => paged,
            "merge" => growth || policy.merging().is_some(),
            // Beside experts in MXFP4, other matrices may be plain.
            file if has_kernels_of_formats(file) => {
                let plain = experts && weights.keeps_codes();
                weights.has_kernels(file) || plain && Weights::default().has_kernels(file)
            }
            "attend_wgmma" => any(&wgmma),
            "attend_tiles" => any(&|dim| dim <= USUAL_HEAD_DIM && !wgmma(dim)),
            _ => true,
        }
    }
}

/// A file of the archive, which is a tar of names under 100 bytes.
fn member(name: &str) -> &'static [u8] {
    let mut rest = ARCHIVE;
    loop {
        let (head, body) = rest.split_at_checked(512).expect("the archive has the file");
        let text = |range: std::ops::Range<usize>| head[range].split(|byte| *byte == 0).next().unwrap_or_default();
        let size = std::str::from_utf8(text(124..136)).ok().and_then(|size| usize::from_str_radix(size, 8).ok());
        let size = size.expect("a size in octal");
        if text(0..100) == name.as_bytes() {
            return &body[..size];
        }
        rest = &body[size.next_multiple_of(512)..];
    }
}

/// The files of kernels.
pub static SOURCES: LazyLock<Vec<Source>> = LazyLock::new(|| {
    let lines = INDEX_TEXT.lines().filter_map(|line| line.strip_prefix("file "));
    let source = |line: &'static str| {
        let mut words = line.split(' ');
        let mut word = || words.next().expect("a name and two hashes");
        let (name, digest, packed) = (word(), word(), word());
        let targets = words.map(|word| TARGETS.iter().find(|t| t.name == word).expect("a target"));
        Source { name, digest, packed, targets: targets.collect() }
    };
    lines.map(source).collect()
});

/// Entry of a kernel in the index.
pub struct Entry {
    pub name: &'static str,
    /// The place of its file in [`SOURCES`].
    pub source: usize,
    /// Most threads of a block where the kernel fixes them, else 0.
    pub threads: usize,
    /// Dynamic shared memory of a block with the maximum number of threads, and its increase per
    /// 256 columns of the weight.
    shared_bytes: usize,
    pub shared_per_group: usize,
    /// Parameters, as [`Arg::form`](super::abi::Arg::form) has arguments.
    pub params: Vec<&'static str>,
}

/// Columns of a weight that [`Entry::shared_per_group`] is for.
const GROUP_COLS: usize = 256;

impl Entry {
    /// Dynamic shared memory of a block, with a weight of `cols` columns. If it depends on the
    /// columns, a block of fewer threads needs proportionally less.
    pub fn shared_bytes(&self, threads: usize, cols: usize) -> usize {
        match self.shared_per_group {
            0 => self.shared_bytes,
            bytes => self.shared_bytes * threads / self.threads + cols.div_ceil(GROUP_COLS) * bytes,
        }
    }
}

/// The kernels of the index, by name.
pub static ENTRIES: LazyLock<HashMap<&'static str, Entry>> = LazyLock::new(|| {
    let mut source = 0;
    let mut entry = |line: &'static str| {
        let mut words = line.split(' ');
        let kind = words.next();
        source += usize::from(kind == Some("file"));
        if kind != Some("kernel") {
            return None;
        }
        let name = words.next().expect("a name");
        let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
        let [threads, shared_bytes, shared_per_group] = std::array::from_fn(|_| number());
        let params = words.collect();
        Some((name, Entry { name, source: source - 1, threads, shared_bytes, shared_per_group, params }))
    };
    INDEX_TEXT.lines().filter_map(&mut entry).collect()
});

/// The entries of all kernels. Names are made once: launches look kernels up by their parts.
static BY_PARTS: LazyLock<HashMap<Kernel, &'static Entry>> = LazyLock::new(|| {
    let entry = |kernel: Kernel| ENTRIES.get(kernel.name().as_str()).map(|entry| (kernel, entry));
    Kernel::all().into_iter().filter_map(entry).collect()
});

/// Ops that are fused into a matmul kernel by an instance of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fused {
    Nothing,
    Swiglu,
    Norm,
    NormSwiglu,
}

impl Fused {
    /// With or without a norm before, and SwiGLU after.
    pub fn of(norm: bool, swiglu: bool) -> Self {
        match (norm, swiglu) {
            (false, false) => Self::Nothing,
            (false, true) => Self::Swiglu,
            (true, false) => Self::Norm,
            (true, true) => Self::NormSwiglu,
        }
    }

    fn suffix(self) -> &'static str {
        ["", "_swiglu", "_norm", "_norm_swiglu"][self as usize]
    }
}

/// Variants of decode attention beside the ordinary step: modes of `decode.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    Ordinary,
    Choice,
    Drafts,
    Far,
}

/// Rows that prefill attention with `wgmma` has instances for.
const WGMMA_ROWS: [Rows; 2] = [Rows::Bf16, Rows::Bytes];

impl Rows {
    pub fn of(codec: Codec) -> Self {
        codec.rows().unwrap_or_else(|| panic!("the CUDA backend does not store K and V as {codec}"))
    }

    pub fn has_wgmma(self) -> bool {
        WGMMA_ROWS.contains(&self)
    }
}

macro_rules! kernels {
    ($($(#[$doc:meta])* $single:ident $name:literal)* ; $($(#[$family_doc:meta])* $family:ident($($part:ty),*))*) => {
        /// A kernel by its parts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kernel {
            $($(#[$doc])* $single,)*
            $($(#[$family_doc])* $family($($part),*),)*
        }
        /// The kernels that have one instance.
        const SINGLES: &[(Kernel, &str)] = &[$((Kernel::$single, $name)),*];
    };
}

kernels! {
    Embed "embed"
    /// Operations of prefill on rows before attention.
    QkvRope "qkv_rope"
    /// The same for heads of more than 256 channels.
    QkvRopeWidest "qkv_rope_512"
    Add "add"
    RmsNorm "rms_norm"
    Glu "glu"
    Cap "cap"
    CopyValues "copy_values"
    /// In f32, with the weight's dtype as an argument: up to eight rows, any number.
    GemvPlain "gemv_plain"
    Gemm "gemm"
    /// GEMM of prefill.
    GemmTiles "gemm_tiles"
    GemmTilesSmall "gemm_tiles_small"
    Unpack "unpack"
    MakeImage "make_image"
    MergeHeads "merge_heads"
    MergeRows "merge_rows"
    PlaceScores "place_scores"
    Estimate "estimate"
    SelectPages "select_pages"
    ScatterBounds "scatter_bounds"
    LaneBounds "lane_bounds"
    AppendBounds "append_bounds"
    KvUnpack "kv_unpack"
    Place "place"
    Append "append"
    Advance "advance"
    Fork "fork"
    Release "release"
    Compact "compact"
    RateSlots "rate_slots"
    SlotMetas "slot_metas"
    /// Far pages: those that go to the host, the choice, and the near ones after it.
    FarSend "far_send"
    FarChoose "far_choose"
    FarScore "far_score"
    FarNear "far_near"
    Presence "presence"
    /// For training a predictor.
    ImportanceRows "importance_rows"
    Importance "importance"
    /// For GPTQ: sums of products of columns, and their Cholesky factor.
    HessianAdd "hessian_add"
    HessianDiagonal "hessian_diagonal"
    HessianRound "hessian_round"
    FactorSums "factor_sums"
    FactorGroup "factor_group"
    FactorRows "factor_rows"
    MovePages "move_pages"
    RenamePages "rename_pages"
    StagePages "stage_pages"
    KvScatter "kv_scatter"
    DeltaStep "delta_step"
    DeltaChunk "delta_chunk"
    DeltaNorm "delta_norm"
    GateRows "gate_rows"
    Route "route"
    ChooseExperts "choose_experts"
    SortExperts "sort_experts"
    /// Tiles of up to 8 pairs of a token and its expert, and of 32.
    ExpertsGemmFew "experts_gemm_8"
    ExpertsGemmMany "experts_gemm_32"
    AddExperts "add_experts"
    /// The same of a few tokens.
    GateExperts "gate_experts"
    SumExperts "sum_experts"
    Argmax "argmax"
    Histogram "histogram"
    ThresholdBin "threshold_bin"
    Candidates "candidates"
    NucleusCut "nucleus_cut"
    MaskMass "mask_mass"
    DrawToken "draw_token"
    ;
    /// One row by a bf16 weight: of up to 4,096 columns with a norm, else of any number.
    GemvBf16(Fused)
    /// Small-batch GEMM: maximum rows of activations, and the shape of blocks (`_deep`, `_tall`,
    /// `_long` or nothing).
    GemmDecode(u8, &'static str, Fused)
    /// GEMM of prefill on Hopper: rows of the weight in a tile.
    GemmWgmma(u16, Fused)
    /// One row by a packed weight, and up to eight.
    PackedGemv(Code, Fused)
    PackedGemvRows(Code)
    /// The same, and a small batch, with codes of GGUF files: bits of a code in memory.
    OwnGemv(u8, Fused)
    OwnGemm(u8)
    /// Small-batch GEMMs with a packed weight: most rows of activations.
    PackedGemm(Code, u8)
    PackedResident(Code, u8)
    /// On Hopper: `wide` or `narrow`.
    PackedWgmma(Code, &'static str)
    /// Decode attention; channels that a head has room for, as [`padded`] says.
    Attend(Mode, usize, Rows)
    /// Prefill attention, and that on Hopper for heads of 128 channels.
    AttendTiles(usize, Rows)
    AttendWgmma(Rows)
}

impl Kernel {
    /// Every instance.
    pub fn all() -> Vec<Self> {
        use Fused::{Norm, NormSwiglu, Nothing, Swiglu};
        use Kernel::*;
        let mut all: Vec<Self> = SINGLES.iter().map(|single| single.0).collect();
        let of_one_row = [Nothing, Norm, NormSwiglu];
        all.extend(of_one_row.into_iter().chain([Swiglu]).map(GemvBf16));
        all.extend([(16, "_tall"), (32, "_deep"), (8, "_long")].map(|(m, form)| GemmDecode(m, form, Nothing)));
        for fused in [Nothing, Swiglu] {
            all.extend([8, 16, 32].map(|m| GemmDecode(m, "", fused)));
            all.push(GemmWgmma(128, fused));
        }
        all.extend([GemmWgmma(192, Swiglu), GemmWgmma(256, Nothing)]);
        for code in Code::ALL {
            all.extend(of_one_row.map(|fused| PackedGemv(code, fused)));
            all.push(PackedGemvRows(code));
            all.extend([8, 16, 32].into_iter().flat_map(|m| [PackedGemm(code, m), PackedResident(code, m)]));
            all.extend(["wide", "narrow"].map(|form| PackedWgmma(code, form)));
        }
        for bits in [4, 8] {
            all.extend(of_one_row.map(|fused| OwnGemv(bits, fused)));
            all.push(OwnGemm(bits));
        }
        all.extend(WGMMA_ROWS.map(AttendWgmma));
        for rows in Rows::ALL {
            all.extend([Mode::Choice, Mode::Drafts, Mode::Far].map(|mode| Attend(mode, USUAL_HEAD_DIM, rows)));
            all.extend(HEAD_DIMS.map(|head_dim| AttendTiles(head_dim, rows)));
            let decodes = HEAD_DIMS.into_iter().filter(|head_dim| *head_dim <= MAX_DECODE_HEAD_DIM);
            all.extend(decodes.map(|head_dim| Attend(Mode::Ordinary, head_dim, rows)));
        }
        all
    }

    /// Its name in `kernels/`.
    pub fn name(self) -> String {
        use Kernel::*;
        match self {
            GemvBf16(fused) => format!("gemv{}", fused.suffix()),
            GemmDecode(m, form, fused) => format!("gemm_decode_{m}{form}{}", fused.suffix()),
            GemmWgmma(width, fused) => format!("gemm_wgmma_{width}{}", fused.suffix()),
            PackedGemv(code, fused) => format!("packed_gemv_{}{}", code.name(), fused.suffix()),
            PackedGemvRows(code) => format!("packed_gemv_{}_rows", code.name()),
            OwnGemv(bits, fused) => format!("own_gemv_{bits}{}", fused.suffix()),
            OwnGemm(bits) => format!("own_gemm_{bits}"),
            PackedGemm(code, m) => format!("packed_gemm_{}_{m}", code.name()),
            PackedResident(code, m) => format!("packed_resident_{}_{m}", code.name()),
            PackedWgmma(code, form) => format!("packed_wgmma_{}_{form}", code.name()),
            Attend(mode, head_dim, rows) => {
                let mode = ["", "choice_", "drafts_", "far_"][mode as usize];
                format!("attend_{mode}{head_dim}_{}", rows.name())
            }
            AttendTiles(head_dim, rows) => format!("attend_tiles_{head_dim}_{}", rows.name()),
            AttendWgmma(rows) => format!("attend_wgmma_128_{}", rows.name()),
            single => SINGLES.iter().find(|entry| entry.0 == single).expect("a kernel of one instance").1.to_owned(),
        }
    }

    /// Entry of the kernel in the index.
    pub fn entry(self) -> &'static Entry {
        BY_PARTS.get(&self).copied().unwrap_or_else(|| panic!("there is no kernel {}", self.name()))
    }
}
