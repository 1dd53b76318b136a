//! Checks of mixtures of experts, over formats of weights and numbers of rows.

use super::{BF16_STEP, Case, Output, Random, Stored, acts, buffer, poisoned, rounded, values};
use dmschat::backend::{ExpertRows, ExpertsArgs, Measure, Use};
use dmschat::quant::Code;
use dmschat::quant::file::FileCode;
use dmschat::tensor::DType;

/// Experts of odd numbers and sizes.
pub struct Mixture {
    stored: Stored,
    count: usize,
    per_token: usize,
    /// Whether the last one is every token's.
    shared: bool,
    /// Whether router and projections have biases, and the activation is clamped.
    biased: bool,
    n: usize,
}

pub fn all() -> Vec<Mixture> {
    let plain = [DType::F32, DType::F16, DType::Bf16].map(Stored::Plain);
    let codes = [Code::Q8, Code::Q4, Code::Q4H, Code::File(FileCode::Mxfp4)];
    let formats = plain.into_iter().chain(codes.map(Stored::Packed));
    let sizes = [
        (1, 37, 5, true, false),
        (3, 5, 5, false, true),
        (6, 40, 3, false, true),
        (40, 9, 4, true, false),
        (90, 2, 1, false, true),
    ];
    let of = |stored, (n, count, per_token, shared, biased)| Mixture { stored, count, per_token, shared, biased, n };
    formats.flat_map(|stored| sizes.map(|sizes| of(stored, sizes))).collect()
}

impl Case for Mixture {
    fn name(&self) -> String {
        let shared = if self.shared { ", one of them shared" } else { "" };
        let biased = if self.biased { ", biases, clamped" } else { "" };
        format!("{} of {} experts {}{shared}{biased}, {} rows", self.per_token, self.count, self.stored.name(), self.n)
    }
    fn limit(&self) -> f32 {
        match self.stored {
            Stored::Plain(DType::F32 | DType::F16) => 1e-5,
            _ => BF16_STEP,
        }
    }
    fn run<B: Measure>(&self, b: &B) -> Output {
        const HIDDEN: usize = 320;
        let (mut random, n, pairs) = (Random::new(21), self.n, self.n * self.per_token);
        // Plain widths need not be whole tiles.
        let width = if let Stored::Plain(_) = self.stored { 80 } else { 192 };
        let mut stack = |rows, cols| {
            let parts: Vec<_> = (0..self.count).map(|_| random.tensor(self.stored, rows, cols)).collect();
            b.weight(&parts).expect("memory")
        };
        let (gate_up, down) = (stack(2 * width, HIDDEN), stack(HIDDEN, width));
        let router = b.weight(&[random.tensor(DType::F32, self.count, HIDDEN)]).expect("memory");
        // Some gates and ups are beyond the limits of a clamped activation.
        let biases = [(self.count, 1.0), (self.count * 2 * width, 8.0), (self.count * HIDDEN, 1.0)]
            .map(|(len, by)| buffer(b, &random.floats(len).iter().map(|x| x * by).collect::<Vec<f32>>()));
        let mut h = b.acts(n, HIDDEN, Use::Input(&[&gate_up])).expect("memory");
        b.write_acts(&mut h, &rounded(random.floats(n * HIDDEN)));
        let mut x = acts(b, HIDDEN, &random.floats(n * HIDDEN));
        let mut rows = ExpertRows {
            logits: poisoned(b, n, self.count),
            chosen: b.alloc(pairs).expect("memory"),
            weights: b.alloc(pairs).expect("memory"),
            order: b.alloc(2 * pairs + self.count + 1).expect("memory"),
            gate_up: poisoned(b, pairs, 2 * width),
            act: b.acts(pairs, width, Use::Input(&[&down])).expect("memory"),
            out: poisoned(b, pairs, HIDDEN),
        };
        let args = ExpertsArgs {
            router: &router,
            router_bias: self.biased.then_some(&biases[0]),
            gate_up_bias: self.biased.then_some(&biases[1]),
            down_bias: self.biased.then_some(&biases[2]),
            clamped: self.biased,
            gate_up: &gate_up,
            down: &down,
            per_token: self.per_token - usize::from(self.shared),
            normalized: self.count % 2 == 1,
            shared: self.shared,
            beside: None,
            rows: &mut rows,
        };
        b.experts(&mut x, &h, args, n);
        let mut chosen = vec![0; pairs];
        b.read(&rows.chosen, 0, &mut chosen);
        Output { floats: values(b, &x, n * HIDDEN), exact: chosen.into_iter().map(i64::from).collect() }
    }
}
