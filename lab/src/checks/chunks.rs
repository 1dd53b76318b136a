//! Checks of long prefill chunks over stored slots in shared pages: the attention output of every
//! row, and that it does not depend on how a chunk is divided. Also checks decode over many pages,
//! over chosen pages, and over ties between pages.

use super::{BF16_STEP, CODECS, Case, Output, Random, attend, geometry, make_sums_exact, policy_name, rounded};
use dmschat::backend::Measure;
use dmschat::cache::{KvCache, SeqId};
use dmschat::codec::Codec;
use dmschat::policy::{Budget, Dms, H2o, Policy, Quest, Shift, Tova, Window};

/// Tokens before the chunk, and divisions of the chunk at boundaries other than tiles and key
/// batches.
const BEFORE: [usize; 3] = [131, 1, 90];
const DIVISIONS: [&[usize]; 2] = [&[333], &[16, 1, 1, 200, 17, 98]];
const CONTEXT: usize = 600;
const MAX_STEP: usize = 400;
/// More pages than a large GPU has warps.
const DEEP: [usize; 3] = [2048, 2048, 700];
/// More slots than a block has threads (384), and fewer in a short run.
const DEEP_BUDGET: usize = 1500;
const SHORT_BUDGET: usize = 400;
/// Chunks, then single tokens.
const ALL_PAGES: [usize; 9] = [131, 1, 90, 1, 1, 200, 1, 1, 1];
/// Neighbouring tokens with the same key: some pages.
const TIED: usize = 48;

/// Kinds of checks: their input, and the outputs that are compared.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A chunk in several divisions.
    Chunk,
    /// Decode over [`DEEP`] tokens: each warp processes several pages, and a head has many splits.
    Deep,
    /// Policies with scores over many slots, at a budget that is reached in the end.
    DeepScored,
    /// Queries that may read all pages give the same bits as the cache that they read.
    AllPages,
    /// Queries that choose among pages, many of which have equal bounds: the first of them are
    /// read.
    Tied(usize),
}

#[derive(Clone)]
pub struct Chunks {
    kind: Kind,
    policy: Policy,
    codec: Codec,
    head_dim: usize,
    heads: usize,
    group: usize,
    /// As in a history.
    noise: f32,
}

impl Chunks {
    fn new(kind: Kind, policy: Policy, (codec, head_dim, heads, group): (Codec, usize, usize, usize)) -> Self {
        Self { kind, policy, codec, head_dim, heads, group, noise: 0.0 }
    }
}

fn dms(window: usize, shift: Shift) -> Policy {
    Policy::Dms(Dms::new(window, shift))
}

fn quest(slots: usize, dms: Option<Dms>) -> Policy {
    Policy::Quest(Quest { budget: Budget::Slots(slots), dms })
}

/// Every group size, with alternating head sizes, policies and codecs. Then the head sizes with
/// kernels of their own (some of them on some GPUs only), with and without eviction.
pub fn all() -> Vec<Chunks> {
    let window = Policy::Window(Window::new(60));
    let policies = [dms(40, Shift::Previous), dms(7, Shift::Same), dms(0, Shift::Previous), Policy::Dense, window];
    let case = |group: usize| {
        let codec = CODECS[(group + group / 4) % CODECS.len()];
        Chunks::new(Kind::Chunk, policies[group % 5], (codec, [32, 64, 128][group % 3], 1 + group % 2, group))
    };
    let wide = [
        (Codec::Bf16, 128, Policy::Dense, 4),
        (Codec::Bf16, 128, dms(40, Shift::Previous), 2),
        (Codec::Fp8, 128, Policy::Dense, 3),
        (Codec::Fp8, 128, dms(150, Shift::Same), 7),
        (Codec::Int8, 128, Policy::Dense, 1),
        (Codec::Int8, 128, dms(7, Shift::Previous), 8),
        (Codec::Bf16, 256, dms(40, Shift::Previous), 4),
        (Codec::Fp8, 200, Policy::Dense, 3),
        (Codec::Int8, 256, Policy::Dense, 6),
        (Codec::K8V4, 256, window, 8),
    ];
    let wide = wide.map(|(codec, d, policy, group)| Chunks::new(Kind::Chunk, policy, (codec, d, 2, group)));
    (1..=8).map(case).chain(wide).collect()
}

pub fn deep() -> Vec<Chunks> {
    let dense = [
        (Codec::Fp8, 128, 1),
        (Codec::Bf16, 128, 1),
        (Codec::Fp8, 40, 2),
        (Codec::Bf16, 8, 1),
        (Codec::Int8, 128, 4),
        (Codec::K8V4, 128, 4),
        (Codec::K8V4, 40, 2),
        (Codec::Bf16, 256, 4),
        (Codec::Int8, 256, 6),
    ];
    // From a page in 60 to a page in 4, and more than there are.
    let paged = [
        (48, (Codec::Bf16, 128, 4)),
        (512, (Codec::Fp8, 128, 8)),
        (1024, (Codec::Int8, 40, 2)),
        (256, (Codec::K8V4, 64, 3)),
        (8192, (Codec::Bf16, 64, 4)),
    ];
    let paged = paged.map(|(slots, shape)| (quest(slots, None), shape));
    let all = dense.map(|shape| (Policy::Dense, shape)).into_iter().chain(paged);
    all.map(|(policy, (codec, head_dim, group))| Chunks::new(Kind::Deep, policy, (codec, head_dim, 8, group))).collect()
}

pub fn paged() -> Vec<Chunks> {
    let case = |(i, &codec): (usize, &Codec)| {
        let policy = if i % 2 == 0 { Policy::Dense } else { dms(40, Shift::Previous) };
        Chunks::new(Kind::AllPages, policy, (codec, [128, 64, 40, 128][i % 4], 2, 1 + 3 * i % 8))
    };
    CODECS.iter().enumerate().map(case).collect()
}

pub fn tied() -> Vec<Chunks> {
    let case = |(slots, keys, codec, head_dim, group)| {
        Chunks::new(Kind::Tied(keys), quest(slots, None), (codec, head_dim, 2, group))
    };
    [(64, 1, Codec::Bf16, 128, 4), (160, 3, Codec::Int8, 64, 1), (256, 2, Codec::Bf16, 40, 7)].map(case).into()
}

pub fn deep_scored(short: bool) -> Vec<Chunks> {
    let budget = Budget::Slots(if short { SHORT_BUDGET } else { DEEP_BUDGET });
    let shapes = [
        (Policy::Tova(Tova { budget }), (Codec::Bf16, 128, 2, 4)),
        (Policy::H2o(H2o { budget }), (Codec::Bf16, 128, 2, 4)),
        (Policy::H2o(H2o { budget }), (Codec::K8V4, 64, 2, 3)),
    ];
    shapes.map(|(policy, shape)| Chunks::new(Kind::DeepScored, policy, shape)).into()
}

impl Case for Chunks {
    fn name(&self) -> String {
        let what = match self.kind {
            Kind::Chunk => "chunk".to_owned(),
            Kind::Deep | Kind::DeepScored => "deep".to_owned(),
            Kind::AllPages => "all pages of chunk".to_owned(),
            Kind::Tied(keys) => format!("{keys} keys in chunk"),
        };
        let Self { policy, codec, head_dim, heads, group, .. } = self;
        format!("{what} {} {} {head_dim} of {heads} x {group}", policy_name(*policy), codec.name())
    }

    fn limit(&self) -> f32 {
        BF16_STEP
    }

    fn run<B: Measure>(&self, b: &B) -> Output {
        match self.kind {
            Kind::Chunk => self.divided(b),
            Kind::Deep => {
                let tokens = DEEP.iter().sum::<usize>() + 3;
                self.fed(b, tokens, &DEEP, &[1, 1, 1])
            }
            Kind::DeepScored => {
                let before = self.policy.budget().expect("a policy with scores").at(0) - 6;
                let mut parts = vec![MAX_STEP; before / MAX_STEP];
                parts.push(before % MAX_STEP);
                self.fed(b, before + 106, &parts, &[1, 1, 1, 1, 17, 1, 1])
            }
            Kind::AllPages => {
                let mut wanted = self.fed(b, CONTEXT, &[], &ALL_PAGES);
                let quest = Self { policy: quest(CONTEXT + 16, self.policy.rule()), ..self.clone() };
                let got = quest.fed(b, CONTEXT, &[], &ALL_PAGES);
                let differ = wanted.floats.iter().zip(&got.floats).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
                // The same of the CPU is 0.
                wanted.exact.extend(got.exact);
                wanted.exact.push(differ as i64);
                wanted
            }
            Kind::Tied(_) => self.fed(b, CONTEXT, &[], &[300, 1, 290, 1, 1, 1]),
        }
    }
}

impl Chunks {
    fn divided<B: Measure>(&self, b: &B) -> Output {
        let mut run = Run::new(self, b, 1 + DIVISIONS.len(), CONTEXT, MAX_STEP);
        let first = run.cache.create(b, true).expect("a free row");
        run.feed(first, &BEFORE);
        for division in DIVISIONS {
            let seq = run.cache.fork(b, first).expect("a free row");
            run.feed(seq, division);
            run.look_at_slots(seq);
        }
        run.output
    }

    /// Returns the slots and reads at the end, and the attention output of all tokens except the
    /// first `before`. Averages over thousands of slots are small, so they have their own scale.
    fn fed<B: Measure>(&self, b: &B, context: usize, before: &[usize], parts: &[usize]) -> Output {
        let max_step = before.iter().copied().max().unwrap_or(0).max(MAX_STEP);
        let mut run = Run::new(self, b, 1, context, max_step);
        let seq = run.cache.create(b, true).expect("a free row");
        run.feed(seq, before);
        run.output.floats.clear();
        run.feed(seq, parts);
        run.look_at_slots(seq);
        run.output.exact.push(run.cache.stats(b, seq).reads as i64);
        run.output
    }
}

struct Run<'a, B: Measure> {
    case: &'a Chunks,
    b: &'a B,
    cache: KvCache<B>,
    output: Output,
}

impl<'a, B: Measure> Run<'a, B> {
    fn new(case: &'a Chunks, b: &'a B, n_seqs: usize, context: usize, max_step: usize) -> Self {
        let geometry = geometry(case.policy, case.codec, [case.head_dim, case.heads, case.group], [1, n_seqs]);
        let cache = KvCache::new(b, geometry, context, max_step).expect("memory for a check");
        Self { case, b, cache, output: Output::default() }
    }

    /// Feeds tokens whose values depend on their positions only, one step per part.
    fn feed(&mut self, seq: SeqId, parts: &[usize]) {
        let case = self.case;
        let width = (case.group + 2) * case.heads * case.head_dim;
        for &n in parts {
            let from = self.cache.len(seq);
            let tokens = || (from..from + n).map(|at| Random::new(7000 + at as u64));
            let mut rows = rounded(tokens().flat_map(|mut r| r.floats(width)).collect());
            let queries = case.group * case.heads * case.head_dim;
            for (row, mut random) in rows.chunks_exact_mut(width).zip(tokens()) {
                row[..queries].iter_mut().for_each(|q| *q *= 1.0 + case.noise * random.float());
                if case.policy.quest().is_some() && case.kind != Kind::AllPages {
                    make_sums_exact(&mut row[..queries]);
                }
            }
            if let Kind::Tied(keys) = case.kind {
                for (row, at) in rows.chunks_exact_mut(width).zip(from..) {
                    let key = Random::new(9000 + (at / TIED) as u64 % keys as u64).floats(case.heads * case.head_dim);
                    row[queries..queries + key.len()].copy_from_slice(&rounded(key));
                }
            }
            // Half of the decisions mark.
            let decided: Vec<f32> =
                tokens().flat_map(|r| Random::new(r.state() ^ 0xdec1de).floats(case.heads)).collect();
            self.output.floats.extend(attend(self.b, &mut self.cache, seq, &rows, &decided));
        }
    }

    /// Records every slot in order.
    fn look_at_slots(&mut self, seq: SeqId) {
        for head in 0..self.case.heads {
            let metas = self.cache.slot_metas(self.b, seq, 0, head);
            self.output.exact.extend(metas.iter().map(|m| m.0 as i64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmschat::backend::cpu::Cpu;

    #[test]
    #[cfg_attr(debug_assertions, ignore = "takes a minute without optimizations")]
    fn no_victim_of_the_deep_cases_is_chosen_by_a_hair() {
        let cpu = Cpu::new(2);
        for mut case in deep_scored(false).into_iter().chain(deep_scored(true)) {
            let exact = case.run(&cpu).exact;
            case.noise = 2e-5;
            assert!(case.run(&cpu).exact == exact, "{}: take other tokens", case.name());
        }
    }
}
