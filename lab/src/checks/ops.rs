//! Checks of the stateless ops.

use super::{BF16_STEP, Case, Output, Random, Stored, acts, buffer, matmul_input, poisoned, rounded, values};
use dmschat::backend::{After, Linear, Measure, Norm, Use};
use dmschat::quant::Code;
use dmschat::quant::file::FileCode;
use dmschat::tensor::{DType, Tensor};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

pub struct Embed(Stored, usize);

pub fn embeds() -> Vec<Embed> {
    DTYPES.iter().flat_map(|&dtype| [72, 96, 577].map(|width| Embed(dtype.into(), width))).collect()
}

/// Codes of matrices that are no experts.
fn dense_codes() -> impl Iterator<Item = Code> {
    Code::stored().filter(|code| !code.is_of_experts())
}

pub fn packed_embeds() -> Vec<Embed> {
    dense_codes().flat_map(|code| [64, 192, 576].map(|width| Embed(Stored::Packed(code), width))).collect()
}

impl Case for Embed {
    fn name(&self) -> String {
        format!("embed, select_rows {} width {}", self.0.name(), self.1)
    }
    fn limit(&self) -> f32 {
        0.0
    }
    fn run<B: Measure>(&self, b: &B) -> Output {
        let (mut random, width) = (Random::new(1), self.1);
        let table = b.weight(&[random.tensor(self.0, 48, width), random.tensor(self.0, 5, width)]).expect("memory");
        let mut tokens = b.alloc(5).expect("memory");
        b.write(&mut tokens, 0, &[52u32, 0, 47, 48, 7]);
        let (mut out, mut chosen) = (poisoned(b, 5, width), poisoned(b, 3, width));
        b.embed(&mut out, &table, &tokens, 1.5, 5);
        b.select_rows(&mut chosen, &out, &[4, 0, 4]);
        let (mut from, mut to) = (matmul_input(b, 5, width), matmul_input(b, 3, width));
        b.write_acts(&mut from, &rounded(random.floats(5 * width)));
        b.select_rows(&mut to, &from, &[2, 4, 3]);
        let floats = [values(b, &out, 5 * width), values(b, &chosen, 3 * width), values(b, &to, 3 * width)];
        Output { floats: floats.concat(), exact: vec![] }
    }
}

pub struct Norms {
    width: usize,
    /// Whether one row is not finite.
    bad: bool,
    /// Whether the output is a matmul input.
    matmul_input: bool,
}

pub fn norms() -> Vec<Norms> {
    let widths = [(72, false), (96, true), (577, false), (1000, false), (4096, false), (17_000, false)];
    let both = widths
        .into_iter()
        .flat_map(|(width, bad)| [false, true].map(|matmul_input| Norms { width, bad, matmul_input }));
    both.collect()
}

impl Case for Norms {
    fn name(&self) -> String {
        let [bad, matmul_input] =
            [(self.bad, ", infinite"), (self.matmul_input, ", matmul_input")].map(|(is, t)| if is { t } else { "" });
        format!("rms_norm after a linear sum, and added, width {}{bad}{matmul_input}", self.width)
    }
    fn limit(&self) -> f32 {
        if self.matmul_input { BF16_STEP } else { 2e-6 }
    }
    fn run<B: Measure>(&self, b: &B) -> Output {
        let (mut random, width, mut floats, mut exact) = (Random::new(2), self.width, Vec::new(), Vec::new());
        let weight = buffer(b, &random.floats(width));
        // Copies column `i % K` to column `i`, so that sums are exact.
        const K: usize = 8;
        let ones: Vec<f32> = (0..width * K).map(|i| if i / K % K == i % K { 1.0 } else { 0.0 }).collect();
        let copies = b.weight(&[Tensor::from_f32("copies", vec![width, K], &ones)]).expect("memory");
        // Small batch and prefill.
        for n in [3, 35] {
            let mut rows = random.floats(n * width);
            if self.bad {
                rows[(n - 1) * width + 5] = f32::INFINITY;
            }
            let (mut acc, x) = (acts(b, width, &rows), acts(b, K, &random.floats(n * K)));
            let mut non_finite = buffer(b, &[9]);
            let out = || if self.matmul_input { matmul_input(b, n, width) } else { poisoned(b, n, width) };
            let (mut plain, mut fused, mut scratch) = (out(), out(), poisoned(b, n, width));
            let y = acts(b, width, &rows);
            let (mut first, mut second, mut third) = ([0], [0], [0]);
            let norm = Norm { weight: &weight, eps: 1e-5, layer: 11, non_finite: &mut non_finite };
            b.rms_norm(&mut plain, &acc, norm, None, n);
            b.read(&non_finite, 0, &mut first);
            // The norm reads the first sum; only the host reads the second.
            let mut add = |acc: &mut B::Acts| {
                let layer = Linear { after: After::Add(&mut scratch), ..Linear::plain(&copies) };
                b.linear(acc, &x, layer, n);
            };
            add(&mut acc);
            let norm = Norm { weight: &weight, eps: 1e-6, layer: 4, non_finite: &mut non_finite };
            b.rms_norm(&mut fused, &acc, norm, None, n);
            b.read(&non_finite, 0, &mut second);
            add(&mut acc);
            let norm = Norm { weight: &weight, eps: 1e-6, layer: 3, non_finite: &mut non_finite };
            b.rms_norm(&mut acc, &y, norm, Some(1.0), n);
            b.read(&non_finite, 0, &mut third);
            // The output of an infinite row is not compared, only the flag.
            let rows = if self.bad { n - 1 } else { n };
            floats.extend([&plain, &fused, &acc].map(|a| values(b, a, rows * width)).concat());
            exact.extend([first, second, third].map(|flag| flag[0] as i64));
        }
        Output { floats, exact }
    }
}

pub struct Matmul {
    stored: Stored,
    rows: [usize; 2],
    cols: usize,
    n: usize,
    bias: bool,
    /// Whether the activations are a matmul input.
    matmul_input: bool,
}

pub fn linears() -> Vec<Matmul> {
    let mut out = Vec::new();
    for dtype in DTYPES {
        for (i, n) in [1, 2, 8, 9, 16, 17, 32, 33, 130].into_iter().enumerate() {
            for (k, (rows, cols)) in
                [([40, 32], 96), ([96, 35], 72), ([3, 0], 131), ([200, 57], 576)].into_iter().enumerate()
            {
                let one = |matmul_input| Matmul { stored: dtype.into(), rows, cols, n, bias: i % 2 == 0, matmul_input };
                out.push(one(true));
                if dtype == DType::Bf16 && i % 4 == k {
                    out.push(one(false));
                }
            }
        }
    }
    // Enough tiles for a whole GPU.
    let wide = |n, more| Matmul {
        stored: DType::Bf16.into(),
        rows: [20_000, more],
        cols: 72,
        n,
        bias: more > 357,
        matmul_input: true,
    };
    out.extend([wide(130, 357), wide(257, 360)]);
    out
}

/// One strip, stacks with an odd last matrix, and strips enough for several blocks; tiles that do
/// not fill a set of words.
pub fn packed_linears() -> Vec<Matmul> {
    let mut out = Vec::new();
    for code in Code::ALL {
        for (i, n) in [1, 2, 8, 9, 16, 17, 32, 33, 130].into_iter().enumerate() {
            for (rows, cols) in [([16, 0], 64), ([32, 21], 192), ([48, 16], 576), ([400, 112], 256)] {
                let bias = i % 2 == 0;
                out.push(Matmul { stored: Stored::Packed(code), rows, cols, n, bias, matmul_input: true });
            }
        }
    }
    // Codes of files.
    for code in dense_codes().filter(|code| !Code::ALL.contains(code)) {
        for (n, rows, cols) in [(1, [32, 21], 192), (1, [400, 112], 576), (9, [48, 21], 576), (33, [32, 21], 192)] {
            out.push(Matmul { stored: Stored::Packed(code), rows, cols, n, bias: n == 1, matmul_input: true });
        }
    }
    let wide = |code, n, rows, cols| Matmul {
        stored: Stored::Packed(code),
        rows: [rows, 0],
        cols,
        n,
        bias: false,
        matmul_input: true,
    };
    // More columns than a block has room for. Enough rows for all SMs of a large GPU, and an odd
    // number of rows.
    let wide = |code| {
        let many = [wide(code, 1, 4096, 128), wide(code, 33, 4096, 128), wide(code, 20, 20_001, 512)];
        many.into_iter().chain([wide(code, 4, 40, 12_288)])
    };
    out.extend(Code::ALL.into_iter().flat_map(wide));
    out
}

impl Case for Matmul {
    fn name(&self) -> String {
        let rows: usize = self.rows.iter().sum();
        let [bias, x] =
            [(self.bias, " + bias"), (!self.matmul_input, ", f32 input")].map(|(is, t)| if is { t } else { "" });
        format!("linear {} {} x {rows} x {}{bias}{x}", self.stored.name(), self.n, self.cols)
    }
    fn is_large(&self) -> bool {
        self.rows[0] >= 4096
    }
    fn limit(&self) -> f32 {
        match self.stored {
            // Tensor cores truncate their sums.
            Stored::Plain(DType::Bf16) => 5e-6,
            Stored::Plain(_) => 2e-6,
            // Small batches round values of these codes to bf16.
            Stored::Packed(Code::File(_)) if self.n > 1 => BF16_STEP,
            // x has 15 bits at least, with one factor per 64 columns, and the offset of the codes
            // is subtracted after the sum.
            Stored::Packed(_) if self.n <= 32 => 3e-5,
            // Prefill may round unpacked weights to bf16.
            Stored::Packed(_) => BF16_STEP,
        }
    }
    fn run<B: Measure>(&self, b: &B) -> Output {
        let (mut random, rows) = (Random::new(3), self.rows[0] + self.rows[1]);
        let parts: Vec<_> =
            self.rows.iter().filter(|&&r| r > 0).map(|&r| random.tensor(self.stored, r, self.cols)).collect();
        let weight = b.weight(&parts).expect("memory");
        let mut numbers = random.floats(self.n * self.cols);
        let x = if self.matmul_input {
            if matches!(self.stored, Stored::Plain(DType::Bf16) | Stored::Packed(_)) {
                numbers = rounded(numbers);
            }
            let mut x = b.acts(self.n, self.cols, Use::Input(&[&weight])).expect("memory");
            b.write_acts(&mut x, &numbers);
            x
        } else {
            acts(b, self.cols, &numbers)
        };
        let bias = self.bias.then(|| buffer(b, &random.floats(rows)));
        // One row more than is used, which must stay unchanged.
        let mut out = acts(b, rows, &vec![7.0; (self.n + 1) * rows]);
        b.linear(&mut out, &x, Linear { bias: bias.as_ref(), ..Linear::plain(&weight) }, self.n);
        Output { floats: values(b, &out, (self.n + 1) * rows), exact: vec![] }
    }
}

/// A fused SwiGLU GEMM, whose weight rows are gate and up.
pub struct FusedSwiglu {
    stored: Stored,
    ffn: usize,
    cols: usize,
    n: usize,
    bias: bool,
    /// Whether the gate is GELU.
    gelu: bool,
}

pub fn linear_swiglu() -> Vec<FusedSwiglu> {
    let mut out = Vec::new();
    for (i, n) in [1, 3, 8, 9, 16, 17, 32, 33, 130].into_iter().enumerate() {
        for (k, (ffn, cols)) in [(72, 96), (257, 72), (1000, 576)].into_iter().enumerate() {
            let stored = if i % 4 == k { DType::F32 } else { DType::Bf16 }.into();
            for gelu in if (i + k) % 3 == 0 { &[false, true][..] } else { &[false] } {
                out.push(FusedSwiglu { stored, ffn, cols, n, bias: (i + k) % 2 == 0, gelu: *gelu });
            }
        }
    }
    out
}

pub fn packed_swiglu() -> Vec<FusedSwiglu> {
    let mut out = Vec::new();
    for code in Code::ALL {
        for (i, n) in [1, 3, 8, 9, 16, 17, 32, 33, 130].into_iter().enumerate() {
            for (k, (ffn, cols)) in [(16, 64), (48, 192), (208, 576)].into_iter().enumerate() {
                let (stored, gelu) = (Stored::Packed(code), i % 3 == 0 && k == 1);
                out.push(FusedSwiglu { stored, ffn, cols, n, bias: (i + k) % 2 == 0, gelu });
            }
        }
        // Whole groups of tiles. Then enough rows for all SMs of a large GPU, with few tokens and
        // several strips per SM.
        let stored = Stored::Packed(code);
        let whole = |n, ffn, cols| FusedSwiglu { stored, ffn, cols, n, bias: n == 17, gelu: false };
        out.extend([whole(17, 208, 512), whole(32, 16, 256), whole(29, 10_016, 256), whole(3, 10_016, 256)]);
    }
    for code in [FileCode::Q4K, FileCode::Q8_0].map(Code::File) {
        for (n, ffn, cols) in [(1, 48, 192), (3, 208, 576), (33, 48, 192)] {
            out.push(FusedSwiglu { stored: Stored::Packed(code), ffn, cols, n, bias: n == 3, gelu: false });
        }
    }
    out
}

/// Those of packed weights with so many rows that the weights are unpacked.
pub fn unpacked() -> Vec<FusedSwiglu> {
    packed_swiglu().into_iter().filter(|case| case.n > 32).collect()
}

impl Case for FusedSwiglu {
    fn name(&self) -> String {
        let bias = if self.bias { " + bias" } else { "" };
        let gate = if self.gelu { "geglu" } else { "fused swiglu" };
        format!("{gate} {} {} x {} x {}{bias}", self.stored.name(), self.n, self.ffn, self.cols)
    }
    fn is_large(&self) -> bool {
        self.ffn >= 10_000
    }
    fn limit(&self) -> f32 {
        match self.stored {
            Stored::Plain(DType::F32) => 4e-6,
            // Gate and up may both be off by the rounding of unpacked weights.
            Stored::Packed(Code::File(_)) => 2.0 * BF16_STEP,
            Stored::Packed(_) if self.n > 32 => 2.0 * BF16_STEP,
            _ => BF16_STEP,
        }
    }
    fn run<B: Measure>(&self, b: &B) -> Output {
        let (mut random, ffn, n) = (Random::new(9), self.ffn, self.n);
        let mut half = || random.tensor(self.stored, ffn, self.cols);
        let weight = b.weight(&[half(), half()]).expect("memory");
        let next = if self.stored == DType::F32.into() { DType::F32 } else { DType::Bf16 };
        let reader = b.weight(&[random.tensor(next, 1, ffn)]).expect("memory");
        let mut x = b.acts(n, self.cols, Use::Input(&[&weight])).expect("memory");
        b.write_acts(&mut x, &rounded(random.floats(n * self.cols)));
        let mut biases = random.floats(2 * ffn);
        // A gate that is closed in full.
        biases[0] = -200.0;
        let bias = self.bias.then(|| buffer(b, &biases));
        // One row more than is used, which must stay unchanged.
        let mut out = b.acts(n + 1, ffn, Use::Input(&[&reader])).expect("memory");
        b.write_acts(&mut out, &vec![7.0; (n + 1) * ffn]);
        let around = [&weight, &reader];
        let used = if self.gelu { Use::Any } else { Use::GateUp(&around) };
        let mut scratch = b.acts(n, 2 * ffn, used).expect("memory");
        let after = if self.gelu { After::Geglu(&mut scratch) } else { After::Swiglu(&mut scratch) };
        b.linear(&mut out, &x, Linear { bias: bias.as_ref(), after, ..Linear::plain(&weight) }, n);
        Output { floats: values(b, &out, (n + 1) * ffn), exact: vec![] }
    }
}

/// Linear layers of stacked matrices with several codes, with and without a norm before and SwiGLU
/// after them.
pub struct Stack {
    codes: [Code; 3],
    n: usize,
}

pub fn stacks() -> Vec<Stack> {
    let [four, six, eight] = [FileCode::Q4K, FileCode::Q6K, FileCode::Q5_1].map(Code::File);
    let all = [[four, four, six], [four, eight, Code::Q8]];
    all.into_iter().flat_map(|codes| [1, 9, 33].map(|n| Stack { codes, n })).collect()
}

impl Case for Stack {
    fn name(&self) -> String {
        format!("linear layers of a stack of {}, {} rows", self.codes.map(Code::name).join(", "), self.n)
    }
    fn limit(&self) -> f32 {
        2.0 * BF16_STEP
    }
    fn run<B: Measure>(&self, b: &B) -> Output {
        const COLS: usize = 320;
        let (mut random, n) = (Random::new(15), self.n);
        let mut stack = |rows: [usize; 3]| {
            let parts =
                self.codes.into_iter().zip(rows).map(|(code, rows)| random.tensor(Stored::Packed(code), rows, COLS));
            b.weight(&parts.collect::<Vec<_>>()).expect("memory")
        };
        let (weight, gate_up) = (stack([96, 32, 21]), stack([64, 48, 16]));
        let reader = b.weight(&[random.tensor(DType::Bf16, 1, 64)]).expect("memory");
        let mut x = b.acts(n, COLS, Use::Input(&[&weight, &gate_up])).expect("memory");
        let rows = rounded(random.floats(n * COLS));
        b.write_acts(&mut x, &rows);
        let (bias, scale) = (buffer(b, &random.floats(149)), buffer(b, &random.floats(COLS)));
        let (mut plain, mut normed) = (poisoned(b, n, 149), poisoned(b, n, 149));
        b.linear(&mut plain, &x, Linear { bias: Some(&bias), ..Linear::plain(&weight) }, n);
        let mut gates = b.acts(n, 128, Use::GateUp(&[&weight, &gate_up, &reader])).expect("memory");
        let mut act = b.acts(n, 64, Use::Input(&[&reader])).expect("memory");
        let (residual, mut non_finite) = (acts(b, COLS, &rows), buffer(b, &[9]));
        let norm = Norm { weight: &scale, eps: 1e-5, layer: 7, non_finite: &mut non_finite };
        b.linear(&mut normed, &residual, Linear { before: Some((norm, &mut x)), ..Linear::plain(&weight) }, n);
        let norm = Norm { weight: &scale, eps: 1e-5, layer: 7, non_finite: &mut non_finite };
        let (before, after) = (Some((norm, &mut x)), After::Swiglu(&mut gates));
        b.linear(&mut act, &residual, Linear { before, after, ..Linear::plain(&gate_up) }, n);
        let [plain, normed, act] = [(&plain, 149, 1.0), (&normed, 149, 1.0), (&act, 64, 8.0)]
            .map(|(a, width, by)| values(b, a, n * width).into_iter().map(|v| v / by).collect::<Vec<_>>());
        Output { floats: [plain, normed, act].concat(), exact: vec![] }
    }
}

/// The ops around a residual stream: a projection added to it, its norm and the projections of
/// that.
pub struct Residual {
    stored: Stored,
    hidden: usize,
    ffn: usize,
    n: usize,
    bias: bool,
    /// Whether the stream is not finite.
    bad: bool,
}

pub fn residuals() -> Vec<Residual> {
    let codes =
        [Code::Q8, Code::Q4, Code::Q4H, Code::File(FileCode::Q4K), Code::File(FileCode::Q6K)].map(Stored::Packed);
    let stored = [DType::F32.into(), DType::Bf16.into()].into_iter().chain(codes);
    let one = |stored| [(1, false), (1, true), (3, false), (33, false)].map(|(n, bad)| (stored, n, bad));
    let all = stored.into_iter().flat_map(one);
    let residual = |(i, (stored, n, bad))| Residual { stored, hidden: 576, ffn: 1040, n, bias: i % 3 == 0, bad };
    // Enough rows for several rounds of a large GPU's blocks, and columns for one or several rounds
    // of a block.
    let large =
        [(1536, 1, false), (2304, 1, false), (2304, 1, true), (2304, 8, false), (1536, 16, true), (2304, 32, false)];
    let large = large.map(|(hidden, n, bad)| {
        let (stored, bias) = (DType::Bf16.into(), hidden < 2048);
        Residual { stored, hidden, ffn: 2600, n, bias, bad }
    });
    all.enumerate().map(residual).chain(large).collect()
}

impl Case for Residual {
    fn name(&self) -> String {
        let [bias, bad] = [(self.bias, " + bias"), (self.bad, ", infinite")].map(|(is, t)| if is { t } else { "" });
        let (stored, hidden, n) = (self.stored.name(), self.hidden, self.n);
        format!("linear layers around a sum {stored} {n} x {hidden}{bias}{bad}")
    }
    fn is_large(&self) -> bool {
        self.ffn >= 2600
    }
    fn limit(&self) -> f32 {
        if self.stored == DType::F32.into() { 4e-6 } else { 2.0 * BF16_STEP }
    }
    fn run<B: Measure>(&self, b: &B) -> Output {
        let (mut random, hidden, ffn, n) = (Random::new(12), self.hidden, self.ffn, self.n);
        let mut weight = |rows, cols| b.weight(&[random.tensor(self.stored, rows, cols)]).expect("memory");
        let (projection, next, gate_up) = (weight(hidden, 192), weight(400, hidden), weight(2 * ffn, hidden));
        let mut random = Random::new(13);
        let mut x = b.acts(n, 192, Use::Input(&[&projection])).expect("memory");
        b.write_acts(&mut x, &rounded(random.floats(n * 192)));
        let mut rows = random.floats(n * hidden);
        if self.bad {
            rows[hidden - 1] = f32::INFINITY;
        }
        let mut residual = acts(b, hidden, &rows);
        let [of_out, of_next, of_gate] = [hidden, 400, 2 * ffn].map(|len| buffer(b, &random.floats(len)));
        let bias = |buffer| if self.bias { Some(buffer) } else { None };
        let (mut sum, mut out) = (poisoned(b, n, hidden), poisoned(b, n, 400));
        let scale = buffer(b, &random.floats(hidden));
        let mut non_finite = buffer(b, &[9]);
        let mut h = b.acts(n, hidden, Use::Input(&[&next, &gate_up])).expect("memory");
        let reader = b.weight(&[random.tensor(self.stored, 16, ffn.next_multiple_of(64))]).expect("memory");
        let mut act = b.acts(n, ffn, Use::Input(&[&reader])).expect("memory");
        let around = [&next, &gate_up, &reader];
        let (mut gates, mut acts_seen) = (b.acts(n, 2 * ffn, Use::GateUp(&around)).expect("memory"), vec![]);
        let mut add = |residual: &mut B::Acts| {
            let (bias, after) = (bias(&of_out), After::Add(&mut sum));
            b.linear(residual, &x, Linear { weight: &projection, bias, before: None, after }, n);
        };
        add(&mut residual);
        let norm = Norm { weight: &scale, eps: 1e-5, layer: 7, non_finite: &mut non_finite };
        let before = Some((norm, &mut h));
        let layer = Linear { weight: &next, bias: bias(&of_next), before, after: After::Store };
        b.linear(&mut out, &residual, layer, n);
        let mut of_gelu = b.acts(n, 2 * ffn, Use::Any).expect("memory");
        // The norm of the same residual stream, and of one to which the projection is added again.
        for (again, gelu) in [(false, false), (false, true), (true, false), (true, true)] {
            if again {
                add(&mut residual);
            }
            let norm = Norm { weight: &scale, eps: 1e-5, layer: 8, non_finite: &mut non_finite };
            let after = if gelu { After::Geglu(&mut of_gelu) } else { After::Swiglu(&mut gates) };
            let before = Some((norm, &mut h));
            b.linear(&mut act, &residual, Linear { weight: &gate_up, bias: bias(&of_gate), before, after }, n);
            acts_seen.push(values(b, &act, n * ffn));
        }
        let mut flag = [0];
        b.read(&non_finite, 0, &mut flag);
        // Nothing is compared of a row that is not finite but the flag.
        let floats = if self.bad {
            vec![]
        } else {
            // The outputs differ in size, so each is scaled by its own largest value.
            let all = [values(b, &residual, n * hidden), values(b, &out, n * 400)].into_iter().chain(acts_seen);
            let scaled = |values: Vec<f32>, by: f32| values.into_iter().map(move |v| v / by);
            all.zip([8.0, 40.0, 400.0, 400.0]).flat_map(|(v, by)| scaled(v, by)).collect()
        };
        Output { floats, exact: vec![flag[0] as i64] }
    }
}
