//! Compares every op of a backend with the CPU's plain op, on random inputs of odd sizes with
//! outputs full of NaN, and checks the cache over random histories. `dmslab check` runs these
//! checks on the GPU; the test suite runs them on the CPU.

pub mod answers;
mod chunks;
mod delta;
pub mod drafts;
mod experts;
pub mod hessians;
mod histories;
mod history;
pub mod memory;
pub mod models;
mod ops;
mod report;
mod rows;
mod sampling;
pub mod steps;

use dmschat::backend::cpu::Cpu;
use dmschat::backend::{KvGeometry, Lane, Measure, Plain, QkvRopeArgs, Use};
use dmschat::cache::{KvCache, PAGE_SLOTS, SeqId};
use dmschat::checkpoint::Checkpoint;
use dmschat::codec::{Codec, ON_GPUS};
use dmschat::engine::Runner;
use dmschat::policy::{Dms, Policy, SlotMeta};
use dmschat::quant::file::random_strip;
use dmschat::quant::{Code, GROUP, TILE_ROWS};
use dmschat::random;
use dmschat::tensor::{DType, Tensor};
pub use report::{Part, Report, Scope};
use std::time::{Duration, Instant};

/// Tolerance of values that are rounded to bf16: one unit in the last place. Attention on a GPU,
/// which rounds the softmax weights, reached 2.8e-3.
const BF16_STEP: f32 = 4e-3;

/// Number of random weights, or of strips of packed rows, after which the values repeat: drawing a
/// large matrix would take longer than multiplying it. Both numbers are prime, so that rows and
/// tiles of a matrix differ.
const DRAWN_VALUES: usize = 65_521;
const DRAWN_STRIPS: usize = 61;

/// The output of a case on one backend. `exact` must be equal, `floats` close.
#[derive(Default)]
pub struct Output {
    pub floats: Vec<f32>,
    pub exact: Vec<i64>,
}

/// A check: inputs that depend on the case only, and the ops to run on them.
pub trait Case {
    fn name(&self) -> String;
    /// Largest difference allowed, relative to the largest value.
    fn limit(&self) -> f32;
    /// Whether its size is that of a large GPU, which is to have work for all SMs.
    fn is_large(&self) -> bool {
        false
    }
    fn run<B: Measure>(&self, b: &B) -> Output;
}

/// The result of a case.
pub struct Finding {
    pub name: String,
    pub error: f32,
    pub limit: f32,
    /// An exact difference, or why there is nothing to compare.
    pub broken: Option<String>,
    pub time: Duration,
}

impl Finding {
    pub fn fine(&self) -> bool {
        self.broken.is_none() && self.error <= self.limit
    }
}

/// Runs all cases. The reference CPU has another number of threads, which is a check in itself.
pub fn run_all<B: Measure>(b: &B, report: &mut Report<'_>) {
    let cpu = Cpu::new(2);
    // The CPU's fast kernels for packed weights round x, as a GPU's do.
    let exact = Cpu::exact(2);
    run(&ops::packed_embeds(), b, &exact, report);
    run(&ops::packed_linears(), b, &exact, report);
    run(&ops::packed_swiglu(), b, &exact, report);
    run(&ops::stacks(), b, &exact, report);
    run(&ops::residuals(), b, &exact, report);
    run(&ops::embeds(), b, &cpu, report);
    run(&ops::norms(), b, &cpu, report);
    run(&ops::linears(), b, &cpu, report);
    run(&ops::linear_swiglu(), b, &cpu, report);
    run(&rows::ropes(), b, &cpu, report);
    run(&rows::importance(), b, &cpu, report);
    run(&rows::round_trips(), b, &cpu, report);
    run(&delta::all(), b, &cpu, report);
    run(&experts::all(), b, &exact, report);
    run(&sampling::all(), b, &cpu, report);
    histories(histories::all(), b, &cpu, report);
    histories(histories::wide(), b, &cpu, report);
    histories(histories::local(), b, &cpu, report);
    histories(histories::far(), b, &cpu, report);
    histories(histories::scored(), b, &cpu, report);
    histories(histories::merging(), b, &cpu, report);
    histories(histories::paged(), b, &cpu, report);
    run(&chunks::paged(), b, &cpu, report);
    run(&chunks::tied(), b, &cpu, report);
    run(&chunks::all(), b, &cpu, report);
}

/// Runs the GEMM cases only, for another GEMM implementation: also of unpacked weights.
pub fn run_gemms<B: Measure>(b: &B, report: &mut Report<'_>) {
    let (cpu, exact) = (Cpu::new(2), Cpu::exact(2));
    run(&ops::linears(), b, &cpu, report);
    run(&ops::linear_swiglu(), b, &cpu, report);
    run(&ops::unpacked(), b, &exact, report);
}

/// Runs long cache histories and cases with many slots.
pub fn run_long<B: Measure>(b: &B, report: &mut Report<'_>) {
    let cpu = Cpu::new(2);
    histories(histories::long(), b, &cpu, report);
    histories(histories::long_paged(), b, &cpu, report);
    run(&chunks::deep(), b, &cpu, report);
    run(&chunks::deep_scored(report.is_short()), b, &cpu, report);
}

/// Runs histories, shortened if the report asks for a short run.
fn histories<B: Measure>(cases: Vec<history::History>, b: &B, cpu: &Cpu, report: &mut Report<'_>) {
    let short = report.is_short();
    let cases = cases.into_iter().map(|case| if short { case.shortened() } else { case });
    run(&cases.collect::<Vec<_>>(), b, cpu, report);
}

fn run<B: Measure>(cases: &[impl Case], b: &B, cpu: &Cpu, report: &mut Report<'_>) {
    let small = report.is_small();
    for case in cases.iter().filter(|case| !(small && case.is_large())) {
        if report.takes() {
            report.add(compare(case, b, cpu));
        }
    }
}

fn compare<B: Measure>(case: &impl Case, b: &B, cpu: &Cpu) -> Finding {
    let expected = case.run(cpu);
    let started = Instant::now();
    let got = case.run(b);
    let time = started.elapsed();
    let (error, broken) = difference(&got, &expected);
    Finding { name: case.name(), error, limit: case.limit(), broken, time }
}

fn difference(got: &Output, expected: &Output) -> (f32, Option<String>) {
    if (got.floats.len(), got.exact.len()) != (expected.floats.len(), expected.exact.len()) {
        return (f32::INFINITY, Some("another number of results".into()));
    }
    let largest = expected.floats.iter().fold(1e-6f32, |m, x| m.max(x.abs()));
    let mut error = 0f32;
    for (i, (a, b)) in got.floats.iter().zip(&expected.floats).enumerate() {
        if a.to_bits() != b.to_bits() && !(a - b).is_finite() {
            return (f32::INFINITY, Some(format!("value {i} is {a} instead of {b}")));
        }
        error = error.max(if a == b { 0.0 } else { (a - b).abs() / largest });
    }
    let wrong = (0..got.exact.len()).find(|&i| got.exact[i] != expected.exact[i]);
    (error, wrong.map(|i| format!("number {i} is {} instead of {}", got.exact[i], expected.exact[i])))
}

/// Random numbers of a case.
pub(super) struct Random(random::Random);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(random::Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x9e37_79b9))
    }

    /// The state, from which a case makes other generators.
    pub fn state(&self) -> u64 {
        self.0.0
    }

    pub fn next(&mut self) -> u64 {
        self.0.bits()
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.0.below(n)
    }

    /// Uniform in -1..1.
    pub fn float(&mut self) -> f32 {
        self.0.signed()
    }

    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }

    /// Random weights in that format.
    pub fn tensor(&mut self, stored: impl Into<Stored>, rows: usize, cols: usize) -> Tensor {
        let dtype = match stored.into() {
            Stored::Plain(dtype) => dtype,
            Stored::Packed(code) => return self.packed(code, rows, cols),
        };
        let values = self.floats((rows * cols).min(DRAWN_VALUES));
        let bytes: Vec<u8> = match dtype {
            DType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            DType::F16 => values.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect(),
            DType::Bf16 => values.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect(),
        };
        let len = rows * cols * dtype.size_bytes();
        let mut bytes = bytes.repeat(len.div_ceil(bytes.len().max(1)));
        bytes.truncate(len);
        Tensor::new("random", dtype, vec![rows, cols], std::sync::Arc::new(bytes), 0..len)
    }

    /// Random codes, scales and zero points, with values about as large as [`Self::floats`]. Rows
    /// that pad the last strip are zeros.
    fn packed(&mut self, code: Code, rows: usize, cols: usize) -> Tensor {
        let (len, groups) = (code.bytes(rows, cols), cols / GROUP);
        let (mut bytes, strip_bytes) = (vec![0; len], code.strip_bytes(cols));
        for strip in 0..len / strip_bytes {
            let (drawn, out) = bytes.split_at_mut(strip * strip_bytes);
            let (present, out) = (TILE_ROWS.min(rows - strip * TILE_ROWS), &mut out[..strip_bytes]);
            if strip >= DRAWN_STRIPS && present == TILE_ROWS {
                out.copy_from_slice(&drawn[strip % DRAWN_STRIPS * strip_bytes..][..strip_bytes]);
                continue;
            }
            if let Code::File(file) = code {
                random_strip(file, cols, 0.5, self.next() as u32, out);
                continue;
            }
            let (mut codes, mut scales) = (vec![0; TILE_ROWS * cols], vec![0.0; TILE_ROWS * groups]);
            let mut zeros = vec![0.0; TILE_ROWS * groups];
            let levels = 1 << code.bits();
            codes[..present * cols].iter_mut().for_each(|c| *c = self.below(levels) as u8);
            scales[..present * groups].iter_mut().for_each(|s| *s = (1.5 + self.float()) / levels as f32);
            zeros.iter_mut().for_each(|z| *z = 0.5 * self.below(32) as f32);
            code.pack_codes(&codes, &scales, &zeros, cols, out);
        }
        Tensor::packed("random", code, [rows, cols], std::sync::Arc::new(bytes), 0..len)
    }
}

/// The format of a random matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    Plain(DType),
    Packed(Code),
}

impl Stored {
    pub fn name(self) -> &'static str {
        match self {
            Stored::Plain(dtype) => dtype.name(),
            Stored::Packed(code) => code.name(),
        }
    }
}

impl From<DType> for Stored {
    fn from(dtype: DType) -> Self {
        Stored::Plain(dtype)
    }
}

/// Converts weights to f32. Activations are then not rounded to bf16, so results equal the CPU's up
/// to the last bits, for any number of rows.
pub(super) fn widen(checkpoint: &mut Checkpoint) {
    for tensor in checkpoint.tensors.values_mut() {
        *tensor = Tensor::from_f32(&tensor.name, tensor.shape.clone(), &tensor.to_f32());
    }
}

/// A buffer with `values`.
pub(super) fn buffer<B: Measure, T: Plain>(b: &B, values: &[T]) -> B::Buf<T> {
    let mut buffer = b.alloc(values.len()).expect("memory for a check");
    b.write(&mut buffer, 0, values);
    buffer
}

/// Activations with `values` in rows of `width`.
pub(super) fn acts<B: Measure>(b: &B, width: usize, values: &[f32]) -> B::Acts {
    let mut acts = b.acts(values.len() / width, width, Use::Any).expect("memory for a check");
    b.write_acts(&mut acts, values);
    acts
}

/// Activations full of NaN, which show values that an op does not write.
pub(super) fn poisoned<B: Measure>(b: &B, rows: usize, width: usize) -> B::Acts {
    acts(b, width, &vec![f32::NAN; rows * width])
}

/// Like [`poisoned`], for inputs of matmuls with bf16 weights only.
pub(super) fn matmul_input<B: Measure>(b: &B, rows: usize, width: usize) -> B::Acts {
    let reader = b.weight(&[Random::new(0).tensor(DType::Bf16, 1, width)]).expect("memory for a check");
    let mut acts = b.acts(rows, width, Use::Input(&[&reader])).expect("memory for a check");
    b.write_acts(&mut acts, &vec![f32::NAN; rows * width]);
    acts
}

/// Rounds values to bf16, so that storing them as bf16 is exact.
pub(super) fn rounded(mut values: Vec<f32>) -> Vec<f32> {
    values.iter_mut().for_each(|x| *x = half::bf16::from_f32(*x).to_f32());
    values
}

/// Rounds queries so that sums of their products with bf16 bounds are exact, except for bounds near
/// zero. Every backend then chooses the same pages, also among equal ones.
pub(super) fn make_sums_exact(queries: &mut [f32]) {
    queries.iter_mut().for_each(|x| *x = (*x * 16.0).round() / 16.0);
}

pub(super) fn values<B: Measure>(b: &B, acts: &B::Acts, n: usize) -> Vec<f32> {
    let mut values = vec![0.0; n];
    b.read_acts(acts, &mut values);
    values
}

pub(super) fn read<B: Measure>(b: &B, buffer: &B::Buf<f32>, n: usize) -> Vec<f32> {
    let mut values = vec![0.0; n];
    b.read(buffer, 0, &mut values);
    values
}

/// RoPE with angle 0 and no norms, for checks of later ops.
pub(super) struct NoRope<B: Measure> {
    inv_freq: B::Buf<f32>,
    sinks: Option<B::Buf<f32>>,
}

impl<B: Measure> NoRope<B> {
    pub fn new(b: &B, head_dim: usize) -> Self {
        Self { inv_freq: b.alloc(head_dim / 2).expect("memory for a check"), sinks: None }
    }

    /// The same with a sink in the softmax of each query head.
    pub fn with_sinks(b: &B, head_dim: usize, n_q_heads: usize) -> Self {
        Self { sinks: Some(buffer(b, &Random::new(31).floats(n_q_heads))), ..Self::new(b, head_dim) }
    }

    pub fn rope(&self) -> QkvRopeArgs<'_, B> {
        QkvRopeArgs { sinks: self.sinks.as_ref(), ..QkvRopeArgs::plain(&self.inv_freq) }
    }
}

/// Feeds rows of queries, keys and values to the first layer of a sequence. Returns the attention
/// output.
pub(super) fn attend<B: Measure>(
    b: &B,
    cache: &mut KvCache<B>,
    seq: SeqId,
    rows: &[f32],
    decisions: &[f32],
) -> Vec<f32> {
    let g = *cache.geometry();
    let (width, out_width) = ((g.n_q_heads + 2 * g.n_kv_heads) * g.head_dim, g.n_q_heads * g.head_dim);
    let n = rows.len() / width;
    let spans = [cache.span(seq, 0, n)];
    cache.reserve_step(b, &spans).expect("memory for a check");
    let (mut qkv, mut decisions, mut out) = (acts(b, width, rows), buffer(b, decisions), poisoned(b, n, out_width));
    cache.attention(b, &mut out, &mut qkv, &mut decisions, 0, &spans, &NoRope::new(b, g.head_dim).rope());
    cache.finish(b, &spans);
    values(b, &out, n * out_width)
}

/// The slots of every lane of a sequence.
pub(super) fn slots_of<B: Measure>(runner: &Runner<B>, seq: SeqId) -> Vec<Vec<SlotMeta>> {
    let metas = |lane: Lane| runner.cache.slot_metas(runner.backend(), seq, lane.layer, lane.head);
    runner.cache.geometry().lanes().map(metas).collect()
}

/// The geometry of a cache. `shape`: size of a head, KV heads, and query heads of each.
pub(super) fn geometry(
    policy: Policy,
    codec: Codec,
    [head_dim, heads, group]: [usize; 3],
    [n_layers, n_seqs]: [usize; 2],
) -> KvGeometry {
    KvGeometry {
        n_layers,
        n_q_heads: heads * group,
        n_kv_heads: heads,
        head_dim,
        heads: None,
        n_seqs,
        page_slots: PAGE_SLOTS,
        same_slots: false,
        max_pages: 0,
        codec,
        policy,
        far: None,
        delta: None,
        vocab: 0,
        staged_rows: 0,
        local: Default::default(),
    }
}

/// The codecs that every device supports: all but f32, the first, which only the CPU has.
pub(super) const CODECS: &[Codec] = &ON_GPUS;

/// The name of a policy in names of checks.
fn policy_name(policy: Policy) -> String {
    match policy {
        Policy::Dense => "dense".to_owned(),
        Policy::Dms(Dms { window, shift, .. }) => format!("dms {window} {shift:?}").to_lowercase(),
        policy => policy.budget().map_or(policy.name().to_owned(), |budget| format!("{} {budget}", policy.name())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs one part of the checks, all of which must pass. Returns their number and the number of
    /// checks in all parts.
    pub(super) fn all_fine(part: Part, run: impl FnOnce(&mut Report<'_>)) -> [usize; 2] {
        let mut seen = 0;
        let each = &mut |f: Finding| {
            seen += 1;
            assert!(f.fine(), "{}: {} of {}, {:?}", f.name, f.error, f.limit, f.broken);
        };
        let mut report = Report::new(Scope { part, short: false, small: false }, each);
        run(&mut report);
        let all = report.seen;
        [seen, all]
    }

    #[test]
    fn the_cpu_passes_with_any_number_of_threads_and_parts_are_all_of_it() {
        let part = |part: &str| all_fine(part.parse().unwrap(), |report| run_all(&Cpu::new(1), report));
        let parts = ["1/3", "2/3", "3/3"].map(part);
        let run = parts.iter().map(|[run, _]| run).sum::<usize>();
        assert!(parts.iter().all(|[_, all]| *all == run) && run > 100, "{parts:?}");
    }

    #[test]
    fn what_differs_is_found() {
        let output = |floats: &[f32], exact: &[i64]| Output { floats: floats.to_vec(), exact: exact.to_vec() };
        let expected = output(&[1.0, -2.0], &[3]);
        assert_eq!(difference(&output(&[1.0, -2.0], &[3]), &expected), (0.0, None));
        assert_eq!(difference(&output(&[1.0, -1.0], &[3]), &expected), (0.5, None));
        assert!(difference(&output(&[1.0, f32::NAN], &[3]), &expected).1.is_some());
        assert!(difference(&output(&[1.0, -2.0], &[4]), &expected).1.is_some());
        assert!(difference(&output(&[1.0], &[3]), &expected).1.is_some());
    }
}
