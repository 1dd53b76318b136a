//! Checks of long prefill chunks over stored slots in shared pages: what every row attends to, and that the division of
//! a chunk does not matter.

use super::{
    CODECS, Case, NoRope, Output, Random, acts, buffer, make_sums_exact, poisoned, policy_name, rounded, values,
};
use dmschat::backend::{Backend, KvGeometry};
use dmschat::cache::{KvCache, SeqId};
use dmschat::codec::Codec;
use dmschat::policy::{Budget, Dms, H2o, Policy, Quest, Shift, Tova, Window};

/// Tokens before the chunk, and divisions of the chunk whose boundaries are not those of tiles and key batches.
const BEFORE: [usize; 3] = [131, 1, 90];
const DIVISIONS: [&[usize]; 2] = [&[333], &[16, 1, 1, 200, 17, 98]];
const CONTEXT: usize = 600;
const MAX_STEP: usize = 400;

pub struct Chunks {
    policy: Policy,
    codec: Codec,
    head_dim: usize,
    heads: usize,
    group: usize,
    /// Whether queries are such that the choice of pages is exact.
    exact_sums: bool,
}

/// Every group size, alternating head sizes, policies and codecs; then the head size that has kernels of its own on some
/// GPUs, with and without eviction.
pub fn all() -> Vec<Chunks> {
    let dms = |window, shift| Policy::Dms(Dms { window, shift, sinks: 0, dial: 0.0 });
    let window = Policy::Window(Window { budget: 60 });
    let policies = [dms(40, Shift::Previous), dms(7, Shift::Same), dms(0, Shift::Previous), Policy::Dense, window];
    let case = |group: usize| Chunks {
        policy: policies[group % 5],
        codec: CODECS[(group + group / 4) % CODECS.len()],
        head_dim: [32, 64, 128][group % 3],
        heads: 1 + group % 2,
        group,
        exact_sums: false,
    };
    let wide = |(codec, policy, group)| Chunks { policy, codec, head_dim: 128, heads: 2, group, exact_sums: false };
    let wide = [
        (Codec::Bf16, Policy::Dense, 4),
        (Codec::Bf16, dms(40, Shift::Previous), 2),
        (Codec::Fp8, Policy::Dense, 3),
        (Codec::Fp8, dms(150, Shift::Same), 7),
        (Codec::Int8, Policy::Dense, 1),
        (Codec::Int8, dms(7, Shift::Previous), 8),
    ]
    .map(wide);
    (1..=8).map(case).chain(wide).collect()
}

struct Run<'a, B: Backend> {
    case: &'a Chunks,
    b: &'a B,
    cache: KvCache<B>,
    /// As in a history.
    noise: f32,
    /// Keys that differ; `None`: those of all tokens.
    keys: Option<usize>,
    output: Output,
}

impl Case for Chunks {
    fn name(&self) -> String {
        let policy = policy_name(self.policy);
        format!("chunk {policy} {} {} of {} x {}", self.codec.name(), self.head_dim, self.heads, self.group)
    }

    fn limit(&self) -> f32 {
        super::BF16_STEP
    }

    fn run<B: Backend>(&self, b: &B) -> Output {
        let mut run = Run::new(self, b, 1 + DIVISIONS.len(), CONTEXT, MAX_STEP);
        let first = run.cache.create(b, true).expect("a free row");
        run.feed(first, &BEFORE);
        for division in DIVISIONS {
            let seq = run.cache.fork(b, first).expect("a free row");
            run.feed(seq, division);
            for head in 0..self.heads {
                let metas = run.cache.slot_metas(b, seq, 0, head);
                run.output.exact.extend(metas.iter().map(|m| m.0 as i64));
            }
        }
        run.output
    }
}

/// Decode over more pages than a large GPU has warps: each warp processes several, and a head has many splits.
pub struct Deep(Chunks);

const DEEP: [usize; 3] = [2048, 2048, 700];

pub fn deep() -> Vec<Deep> {
    let of = |policy, (codec, head_dim, group)| {
        Deep(Chunks { policy, codec, head_dim, heads: 8, group, exact_sums: policy != Policy::Dense })
    };
    let case = |shape| of(Policy::Dense, shape);
    let shapes =
        [(Codec::Fp8, 128, 1), (Codec::Bf16, 128, 1), (Codec::Fp8, 40, 2), (Codec::Bf16, 8, 1), (Codec::Int8, 128, 4)];
    let k8v4 = [(Codec::K8V4, 128, 4), (Codec::K8V4, 40, 2)];
    // From a page in 60 to a page in 4, and more than there are.
    let paged = [
        (48, (Codec::Bf16, 128, 4)),
        (512, (Codec::Fp8, 128, 8)),
        (1024, (Codec::Int8, 40, 2)),
        (256, (Codec::K8V4, 64, 3)),
        (8192, (Codec::Bf16, 64, 4)),
    ];
    let quest = |slots| Policy::Quest(Quest { budget: Budget::Slots(slots), dms: None });
    let paged = paged.into_iter().map(|(slots, shape)| of(quest(slots), shape));
    shapes.into_iter().chain(k8v4).map(case).chain(paged).collect()
}

/// Queries that may read all pages: the same numbers as of the cache that they read, bit for bit.
pub struct AllPages(Chunks);

pub fn paged() -> Vec<AllPages> {
    let dms = Policy::Dms(Dms { window: 40, shift: Shift::Previous, sinks: 0, dial: 0.0 });
    let case = |(i, &codec): (usize, &Codec)| {
        let policy = if i % 2 == 0 { Policy::Dense } else { dms };
        AllPages(Chunks {
            policy,
            codec,
            head_dim: [128, 64, 40, 128][i % 4],
            heads: 2,
            group: 1 + 3 * i % 8,
            exact_sums: false,
        })
    };
    CODECS.iter().enumerate().map(case).collect()
}

/// Queries that choose among pages, many with the same bounds: the first ones are read.
pub struct Tied {
    chunks: Chunks,
    keys: usize,
}

/// Neighbouring tokens with the same key: some pages.
const TIED: usize = 48;

pub fn tied() -> Vec<Tied> {
    let case = |(slots, keys, codec, head_dim, group)| {
        let policy = Policy::Quest(Quest { budget: Budget::Slots(slots), dms: None });
        Tied { chunks: Chunks { policy, codec, head_dim, heads: 2, group, exact_sums: true }, keys }
    };
    [(64, 1, Codec::Bf16, 128, 4), (160, 3, Codec::Int8, 64, 1), (256, 2, Codec::Bf16, 40, 7)].map(case).into()
}

impl Case for Tied {
    fn name(&self) -> String {
        format!("{} keys in {}", self.keys, self.chunks.name())
    }

    fn limit(&self) -> f32 {
        super::BF16_STEP
    }

    fn run<B: Backend>(&self, b: &B) -> Output {
        let mut run = Run::new(&self.chunks, b, 1, CONTEXT, MAX_STEP);
        run.keys = Some(self.keys);
        let seq = run.cache.create(b, true).expect("a free row");
        run.feed(seq, &[300, 1, 290, 1, 1, 1]);
        run.output.exact.push(run.cache.stats(b, seq).reads as i64);
        run.output
    }
}

/// Chunks, then single tokens.
const ALL_PAGES: [usize; 9] = [131, 1, 90, 1, 1, 200, 1, 1, 1];

impl Case for AllPages {
    fn name(&self) -> String {
        format!("all pages of {}", self.0.name())
    }

    fn limit(&self) -> f32 {
        super::BF16_STEP
    }

    fn run<B: Backend>(&self, b: &B) -> Output {
        let run = |policy| {
            let case = Chunks { policy, ..self.0 };
            let mut run = Run::new(&case, b, 1, CONTEXT, MAX_STEP);
            let seq = run.cache.create(b, true).expect("a free row");
            run.feed(seq, &ALL_PAGES);
            run.output.exact.push(run.cache.stats(b, seq).reads as i64);
            run.output
        };
        let quest = Quest { budget: Budget::Slots(CONTEXT + 16), dms: self.0.policy.rule() };
        let (mut wanted, got) = (run(self.0.policy), run(Policy::Quest(quest)));
        let differ = wanted.floats.iter().zip(&got.floats).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        // The same of the CPU is 0.
        wanted.exact.extend(got.exact);
        wanted.exact.push(differ as i64);
        wanted
    }
}

impl Case for Deep {
    fn name(&self) -> String {
        let Chunks { policy, codec, head_dim, heads, group, .. } = self.0;
        format!("deep {} {} {head_dim} of {heads} x {group}", policy_name(policy), codec.name())
    }

    fn limit(&self) -> f32 {
        super::BF16_STEP
    }

    fn run<B: Backend>(&self, b: &B) -> Output {
        let tokens = DEEP.iter().sum::<usize>() + 3;
        let mut run = Run::new(&self.0, b, 1, tokens, DEEP[0]);
        let seq = run.cache.create(b, true).expect("a free row");
        run.feed(seq, &DEEP);
        // Averages over thousands of slots are small, so that they have their own scale.
        run.output.floats.clear();
        run.feed(seq, &[1, 1, 1]);
        run.output.exact.push(run.cache.stats(b, seq).reads as i64);
        run.output
    }
}

/// Policies with scores over more slots than a block has threads (384), at a budget that is reached in the end.
pub struct DeepScored {
    chunks: Chunks,
    noise: f32,
}

const DEEP_BUDGET: usize = 1500;
const SHORT_BUDGET: usize = 400;

pub fn deep_scored(short: bool) -> Vec<DeepScored> {
    let budget = Budget::Slots(if short { SHORT_BUDGET } else { DEEP_BUDGET });
    let case = |(policy, codec, head_dim, group)| DeepScored {
        chunks: Chunks { policy, codec, head_dim, heads: 2, group, exact_sums: false },
        noise: 0.0,
    };
    let shapes = [
        (Policy::Tova(Tova { budget }), Codec::Bf16, 128, 4),
        (Policy::H2o(H2o { budget }), Codec::Bf16, 128, 4),
        (Policy::H2o(H2o { budget }), Codec::K8V4, 64, 3),
    ];
    shapes.into_iter().map(case).collect()
}

impl Case for DeepScored {
    fn name(&self) -> String {
        self.chunks.name().replace("chunk", "deep")
    }

    fn limit(&self) -> f32 {
        super::BF16_STEP
    }

    fn run<B: Backend>(&self, b: &B) -> Output {
        let budget = self.chunks.policy.budget().expect("a policy with scores").at(0);
        let mut run = Run::new(&self.chunks, b, 1, budget + 100, MAX_STEP);
        run.noise = self.noise;
        let seq = run.cache.create(b, true).expect("a free row");
        let mut parts = vec![MAX_STEP; (budget - 6) / MAX_STEP];
        parts.push((budget - 6) % MAX_STEP);
        run.feed(seq, &parts);
        // Averages over thousands of slots are small, so that they have their own scale.
        run.output.floats.clear();
        run.feed(seq, &[1, 1, 1, 1, 17, 1, 1]);
        for head in 0..self.chunks.heads {
            let metas = run.cache.slot_metas(b, seq, 0, head);
            run.output.exact.extend(metas.iter().map(|m| m.0 as i64));
        }
        run.output
    }
}

impl<'a, B: Backend> Run<'a, B> {
    fn new(case: &'a Chunks, b: &'a B, n_seqs: usize, context: usize, max_step: usize) -> Self {
        let geometry = KvGeometry {
            n_layers: 1,
            n_q_heads: case.heads * case.group,
            n_kv_heads: case.heads,
            head_dim: case.head_dim,
            n_seqs,
            page_slots: 16,
            max_pages: 0,
            codec: case.codec,
            policy: case.policy,
        };
        let cache = KvCache::new(b, geometry, context, max_step).expect("memory for a check");
        Self { case, b, cache, noise: 0.0, keys: None, output: Output::default() }
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
                row[..queries].iter_mut().for_each(|q| *q *= 1.0 + self.noise * random.float());
                if case.exact_sums {
                    make_sums_exact(&mut row[..queries]);
                }
            }
            if let Some(keys) = self.keys {
                for (row, at) in rows.chunks_exact_mut(width).zip(from..) {
                    let key = Random::new(9000 + (at / TIED) as u64 % keys as u64).floats(case.heads * case.head_dim);
                    row[queries..queries + key.len()].copy_from_slice(&rounded(key));
                }
            }
            // Half of the decisions mark.
            let decided: Vec<f32> = tokens().flat_map(|r| Random::new(r.0 ^ 0xdec1de).floats(case.heads)).collect();
            let spans = [self.cache.span(seq, 0, n)];
            self.cache.reserve_step(self.b, &spans).expect("memory for a check");
            let (mut qkv, mut decisions) = (acts(self.b, width, &rows), buffer(self.b, &decided));
            let out_width = queries;
            let mut out = poisoned(self.b, n, out_width);
            let no_rope = NoRope::new(self.b, case.head_dim);
            self.cache.attention(self.b, &mut out, &mut qkv, &mut decisions, 0, &spans, &no_rope.rope());
            self.output.floats.extend(values(self.b, &out, n * out_width));
            self.cache.finish(self.b, &spans);
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
