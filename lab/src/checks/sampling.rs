//! Checks of sampling: the same tokens as on the CPU, for all kinds of rows and all filters.

use super::{Case, Output, Random, buffer, geometry};
use dmschat::backend::{KvTables, Measure, SampleArgs, SamplingState, Span, Use};
use dmschat::cache::PAGE_SLOTS;
use dmschat::codec::Codec;
use dmschat::policy::Policy;
use dmschat::protocol::{Adjustment, SamplingParams};

/// Kinds of logits, typical and degenerate. Each step has one kind.
#[derive(Clone, Copy, Debug)]
enum Rows {
    /// Multiples of 1/8, so that there are many ties.
    Ties,
    Smooth,
    /// So close to each other that they share a histogram bin.
    Narrow,
    Equal,
    /// One token far above the others.
    Peaked,
    /// Partly NaN and infinite; the first row entirely NaN.
    Broken,
}

/// Most adjustments of a row.
const ADJUSTED: usize = 5_000;

pub struct Sample {
    vocab: usize,
    n: usize,
    params: SamplingParams,
    /// Rows but the first have a mask of allowed tokens, and all have adjusted logits.
    masked: bool,
}

pub fn all() -> Vec<Sample> {
    let base = SamplingParams { temperature: 0.8, ..SamplingParams::default() };
    let qwen = SamplingParams { temperature: 0.6, top_k: 20, top_p: 0.95, ..base.clone() };
    let filters = [
        SamplingParams::default(),
        base.clone(),
        SamplingParams { top_k: 20, ..base.clone() },
        SamplingParams { top_k: 1, ..base.clone() },
        SamplingParams { top_p: 0.9, ..base.clone() },
        // Half of equal weights is an exact threshold.
        SamplingParams { top_p: 0.5, ..base.clone() },
        SamplingParams { top_p: 0.0, ..base.clone() },
        SamplingParams { min_p: 0.05, ..base.clone() },
        SamplingParams {
            top_k: 40,
            top_p: 0.95,
            min_p: 0.02,
            temperature: 0.6,
            repetition_penalty: 1.3,
            ..base.clone()
        },
        SamplingParams { top_n_sigma: 1.0, temperature: 3.0, ..base.clone() },
        SamplingParams { top_n_sigma: 1.5, top_k: 700, top_p: 0.9, ..base.clone() },
        // More candidates than one sort handles, with the top-p threshold among them.
        SamplingParams { top_k: 700, top_p: 0.6, ..base.clone() },
        SamplingParams { temperature: 0.05, top_k: 900, ..base.clone() },
        SamplingParams { temperature: 5.0, top_p: 0.999, ..base },
    ];
    let mut cases = Vec::new();
    for vocab in [3, 131, 1000, 49_152] {
        cases.extend(filters.clone().map(|params| Sample { vocab, n: 2, params, masked: false }));
    }
    let masked = false;
    cases.push(Sample { vocab: 131, n: 32, params: filters[8].clone(), masked });
    cases.push(Sample { vocab: 4_100, n: 32, params: qwen.clone(), masked });
    // All rows greedy, by temperature and by top-k.
    cases.extend([&filters[0], &filters[3]].map(|params| Sample {
        vocab: 9_000,
        n: 3,
        params: params.clone(),
        masked,
    }));
    for vocab in [128_256, 151_936] {
        cases.extend([&qwen, &filters[4]].map(|params| Sample { vocab, n: 1, params: params.clone(), masked }));
    }
    for params in [&filters[0], &filters[1], &filters[8], &filters[9], &qwen] {
        cases.extend([131, 9_000].map(|vocab| Sample { vocab, n: 3, params: params.clone(), masked: true }));
    }
    cases.push(Sample { vocab: 151_936, n: 2, params: qwen, masked: true });
    cases
}

impl Sample {
    fn row(&self, kind: Rows, first: bool, random: &mut Random) -> Vec<f32> {
        let mut row: Vec<f32> = (0..self.vocab).map(|_| random.float()).collect();
        match kind {
            Rows::Ties => row.iter_mut().for_each(|x| *x = (*x * *x * *x * 64.0).round() / 8.0),
            Rows::Smooth => row.iter_mut().for_each(|x| *x = *x * *x * *x * 9.0),
            Rows::Narrow => row.iter_mut().for_each(|x| *x = 3.0 + *x * 1e-3),
            Rows::Equal => row.fill(-1.5),
            Rows::Peaked => row[self.vocab / 2] = 40.0,
            Rows::Broken if first => row.fill(f32::NAN),
            Rows::Broken => {
                row.iter_mut().step_by(2).for_each(|x| *x = f32::NEG_INFINITY);
                row.iter_mut().step_by(7).for_each(|x| *x = f32::NAN);
                row.iter_mut().skip(1).step_by(4).for_each(|x| *x = -0.0);
            }
        }
        row
    }
}

impl Case for Sample {
    fn name(&self) -> String {
        let (p, n) = (&self.params, self.n);
        format!(
            "sample {n} x {} T {} k {} p {} min {} sigma {}{}",
            self.vocab,
            p.temperature,
            p.top_k,
            p.top_p,
            p.min_p,
            p.top_n_sigma,
            if self.masked { " masked, adjusted" } else { "" }
        )
    }
    fn limit(&self) -> f32 {
        0.0
    }
    fn run<B: Measure>(&self, b: &B) -> Output {
        let (mut random, vocab, n, mut exact) = (Random::new(8), self.vocab, self.n, Vec::new());
        let mut logits = b.acts(n, vocab, Use::Logits).expect("memory");
        let mut sampled = b.alloc(n + 1).expect("memory");
        // Row r belongs to sequence n - r. The first row's sequence was fed three tokens; no
        // sequence was fed the second one.
        let mut geometry = geometry(Policy::Dense, Codec::Bf16, [8, 1, 1], [1, n + 1]);
        geometry.vocab = vocab;
        let mut kv = KvTables::new(b, geometry, PAGE_SLOTS, 5).expect("memory");
        let mut fed = b.alloc(5).expect("memory");
        b.write(&mut fed, 0, &[1, 3, 2, 2, 0]);
        b.acts(5, 1, Use::Any).expect("memory");
        let spans = [Span { seq: 0, start: 0, len: 1 }, Span { seq: n, start: 2, len: 3 }];
        b.advance(&mut kv, Some(&fed), &spans);
        let mut draws = b.alloc(n).expect("memory");
        let other = SamplingParams { temperature: 1.3, top_k: 3, ..SamplingParams::default() };
        // The second of two rows has its own options.
        let params = |r| if (r, n) == (1, 2) { &other } else { &self.params };
        let draw = |r: usize| SamplingState {
            masked: u32::from(self.masked && r > 0),
            adjusted: if self.masked { ((r + 1) * ADJUSTED.min(vocab / 2) / n) as u32 } else { 0 },
            ..SamplingState::new(n - r, 42 + r as u64, params(r))
        };
        let states: Vec<SamplingState> = (0..n).map(draw).collect();
        let greedy = states.iter().all(SamplingState::is_greedy);
        b.write(&mut draws, 0, &states);
        let non_finite = buffer(b, &[i32::MAX]);
        // About one token of seven; of the last row a single one.
        let words = geometry.seen_words();
        let mut masks: Vec<u32> =
            (0..n * words).map(|_| (random.next() & random.next() & random.next()) as u32).collect();
        let last = &mut masks[(n - 1) * words..];
        last.fill(0);
        last[(vocab - 1) / 32] = 1 << ((vocab - 1) % 32);
        let masks = self.masked.then(|| buffer(b, &masks));
        // Every other token from a random one on, so that each is there once.
        let adjusts: Vec<Adjustment> = (0..n)
            .flat_map(|_| {
                let first = random.next() as usize % vocab;
                std::array::from_fn::<_, { SamplingState::MOST_ADJUSTED }, _>(|i| Adjustment {
                    token: ((first + 2 * i) % (vocab / 2 * 2)) as u32,
                    add: (random.next() % 7) as f32 - 3.0,
                })
            })
            .collect();
        let adjusts = self.masked.then(|| buffer(b, &adjusts));
        let kinds = [Rows::Ties, Rows::Smooth, Rows::Narrow, Rows::Equal, Rows::Peaked, Rows::Broken];
        for (position, kind) in kinds.into_iter().enumerate() {
            let rows: Vec<f32> = (0..n).flat_map(|r| self.row(kind, r == 0, &mut random)).collect();
            b.write_acts(&mut logits, &rows);
            b.write(&mut kv.seq_len, 0, &(0..=n).map(|seq| (10 * seq + position) as i32).collect::<Vec<_>>());
            let (staged, adjusts, masks) = (None, adjusts.as_ref(), masks.as_ref());
            let args = SampleArgs { draws: &draws, kv: &kv, non_finite: &non_finite, staged, greedy, adjusts, masks };
            b.sample(&mut sampled, &mut logits, &args, n);
            let mut tokens = vec![0; n + 1];
            b.read(&sampled, 0, &mut tokens);
            exact.extend(tokens.into_iter().map(i64::from));
        }
        let mut sets = vec![0; (n + 1) * geometry.seen_words()];
        b.read(&kv.seen, 0, &mut sets);
        exact.extend(sets.into_iter().map(i64::from));
        Output { floats: vec![], exact }
    }
}
