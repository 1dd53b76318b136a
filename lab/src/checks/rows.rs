//! Checks of what attention does to the rows of a step first: norms, decisions, RoPE, codec. The checks of the cache
//! cover attention itself.

use super::{BF16_STEP, CODECS, Case, NoRope, Output, Random, acts, buffer, geometry, poisoned, read, values};
use dmschat::backend::{Alpha, Backend, Borrowed, KvTables, QkvRopeArgs, Span};
use dmschat::cache::PAGE_SLOTS;
use dmschat::codec::Codec;
use dmschat::policy::Policy;

/// How attention runs: as one op, which a backend may fuse, or as the ops that compose it.
#[derive(Clone, Copy)]
enum Form {
    Fused,
    Plain,
}

/// A step of a dense cache with one layer.
struct Step {
    n_q_heads: usize,
    heads: usize,
    head_dim: usize,
    codec: Codec,
    /// Tokens fed to each sequence before.
    fed: Vec<i32>,
    spans: Vec<Span>,
}

impl Step {
    fn width(&self) -> usize {
        (self.n_q_heads + 2 * self.heads) * self.head_dim
    }

    /// Rows as `qkv_rope` leaves them, or what single tokens attend to, in this step and a second one, after `stored` rows of
    /// theirs; and the decisions.
    fn run<B: Backend>(
        &self,
        b: &B,
        rows: &[f32],
        stored: Option<&[f32]>,
        rope: &QkvRopeArgs<'_, B>,
        form: Form,
    ) -> (Vec<f32>, Vec<f32>) {
        let (n, width) = (rows.len() / self.width(), self.width());
        let before = stored.map_or(0, |rows| rows.len() / width);
        let geometry = geometry(
            Policy::Dense,
            self.codec,
            [self.head_dim, self.heads, self.n_q_heads / self.heads],
            [1, self.fed.len()],
        );
        let mut kv = KvTables::new(b, geometry, PAGE_SLOTS, n.max(before)).expect("memory for a check");
        b.reserve(&mut kv, self.fed.len() * self.heads).expect("memory for a check");
        b.write(&mut kv.seq_len, 0, &self.fed);
        if let Some(rows) = stored {
            let each = before / self.spans.len();
            let at = |(i, s): (usize, &Span)| Span { seq: s.seq, start: i * each, len: each };
            let spans: Vec<Span> = self.spans.iter().enumerate().map(at).collect();
            let mut decisions = buffer(b, &vec![0.5; before * self.heads]);
            let mut out = poisoned(b, before, self.n_q_heads * self.head_dim);
            b.attention(&mut out, &mut acts(b, width, rows), &mut decisions, &mut kv, 0, &spans, rope);
            b.advance(&mut kv, &spans);
        }
        let mut qkv = acts(b, width, rows);
        let mut decisions = buffer(b, &vec![0.5; n * self.heads]);
        let out_width = self.n_q_heads * self.head_dim;
        let mut out = poisoned(b, n, out_width);
        match form {
            Form::Fused => b.attention(&mut out, &mut qkv, &mut decisions, &mut kv, 0, &self.spans, rope),
            Form::Plain => b.attention_by_ops(&mut out, &mut qkv, &mut decisions, &mut kv, 0, &self.spans, rope),
        }
        let single = self.spans.iter().all(|s| s.len == 1);
        let mut seen = if single { values(b, &out, n * out_width) } else { values(b, &qkv, n * width) };
        let decided = read(b, &decisions, n * self.heads);
        if stored.is_some() {
            // The next step attends to the slots of this one.
            b.advance(&mut kv, &self.spans);
            let mut next = acts(b, width, &rows.iter().map(|x| -x).collect::<Vec<_>>());
            b.attention(&mut out, &mut next, &mut decisions, &mut kv, 0, &self.spans, rope);
            seen.extend(values(b, &out, n * out_width));
        }
        (seen, decided)
    }
}

pub struct Rope {
    head_dim: usize,
    heads: usize,
    group: usize,
    norm: bool,
    borrowed: Option<bool>,
    single: bool,
    form: Form,
}

pub fn ropes() -> Vec<Rope> {
    let mut out = Vec::new();
    for head_dim in [8, 32, 64, 128] {
        for group in 1..=8 {
            let heads = 1 + group % 3;
            let borrowed = [None, Some(false), Some(true)][(group + head_dim / 32) % 3];
            let norm = group % 2 == 1;
            let forms = [(false, Form::Fused), (true, Form::Fused), (true, Form::Plain)];
            out.extend(forms.map(|(single, form)| Rope { head_dim, heads, group, norm, borrowed, single, form }));
        }
    }
    out
}

impl Case for Rope {
    fn name(&self) -> String {
        let dms = ["", ", borrowed", ", borrowed by layer"][self.borrowed.map_or(0, |l| 1 + l as usize)];
        let norm = if self.norm { ", norms" } else { "" };
        let single = match (self.single, self.form) {
            (false, _) => "",
            (true, Form::Fused) => ", single tokens",
            (true, Form::Plain) => ", single tokens, op by op",
        };
        format!("rope {} of {} x {}{norm}{dms}{single}", self.head_dim, self.heads, self.group)
    }
    fn limit(&self) -> f32 {
        if self.single { BF16_STEP } else { 4e-6 }
    }
    fn run<B: Backend>(&self, b: &B) -> Output {
        let (mut random, d) = (Random::new(5), self.head_dim);
        let (q, k) = (buffer(b, &random.floats(d)), buffer(b, &random.floats(d)));
        let inv_freq: Vec<f32> = (0..d / 2).map(|i| 1e4f32.powf(-2.0 * i as f32 / d as f32)).collect();
        let rope = QkvRopeArgs {
            qk_norm: self.norm.then_some([&q, &k]),
            rms_eps: 1e-6,
            inv_freq: &buffer(b, &inv_freq),
            rope_scale: 1.25,
            borrowed: self
                .borrowed
                .map(|per_layer| Borrowed { heads: 1, alpha: Alpha { scale: 100.0, offset: 5.0, per_layer } }),
        };
        // Spans need not be in the order of their sequences.
        let span = |seq, start, len| Span { seq, start, len };
        let spans = if self.single { vec![span(2, 1, 1), span(1, 0, 1)] } else { vec![span(1, 2, 5), span(0, 0, 2)] };
        let n: usize = spans.iter().map(|s| s.len).sum();
        let n_q_heads = self.heads * self.group;
        let fed = vec![7, 130_001, 40_000];
        let step = Step { n_q_heads, heads: self.heads, head_dim: d, codec: Codec::Bf16, fed, spans };
        let rows = random.floats(n * step.width());
        let stored = self.single.then(|| random.floats(n * 5 * step.width()));
        let (mut rows, mut decided) = step.run(b, &rows, stored.as_deref(), &rope, self.form);
        if !self.single {
            // A difference in the last bit before the codec may be one unit of bf16 after it, so that these values are
            // scaled down.
            rows.chunks_mut(step.width()).flat_map(|row| &mut row[n_q_heads * d..]).for_each(|x| *x *= 5e-4);
        }
        decided.iter_mut().for_each(|d| *d /= 100.0);
        Output { floats: [rows, decided].concat(), exact: vec![] }
    }
}

pub struct RoundTrip {
    codec: Codec,
    head_dim: usize,
    single: bool,
}

pub fn round_trips() -> Vec<RoundTrip> {
    let mut out = Vec::new();
    for &codec in CODECS {
        for head_dim in [8, 32, 64, 128] {
            out.extend([false, true].map(|single| RoundTrip { codec, head_dim, single }));
        }
    }
    out
}

impl Case for RoundTrip {
    fn name(&self) -> String {
        format!("codec {} {}{}", self.codec.name(), self.head_dim, if self.single { ", single tokens" } else { "" })
    }
    fn limit(&self) -> f32 {
        // A single token attends to itself, with a rounded weight.
        if self.single { BF16_STEP } else { 0.0 }
    }
    fn run<B: Backend>(&self, b: &B) -> Output {
        let (mut random, d, n) = (Random::new(7), self.head_dim, 9);
        let span = |i: usize| Span { seq: i, start: i, len: 1 };
        let spans = if self.single { (0..n).map(span).collect() } else { vec![Span { seq: 0, start: 0, len: n }] };
        let step = Step { n_q_heads: 4, heads: 2, head_dim: d, codec: self.codec, fed: vec![0; n], spans };
        let mut rows = random.floats(n * step.width());
        // Values of all magnitudes, and a head of zeros.
        rows.iter_mut().for_each(|x| *x *= 2f32.powi(random.below(24) as i32 - 16));
        rows[5 * d..6 * d].fill(0.0);
        let (mut floats, _) = step.run(b, &rows, None, &NoRope::new(b, d).rope(), Form::Fused);
        let exact = if self.single { vec![] } else { floats.iter().map(|x| x.to_bits() as i64).collect() };
        // Normalize every head, so that small ones count too.
        for head in floats.chunks_mut(d).filter(|_| self.single) {
            let most = head.iter().fold(f32::MIN_POSITIVE, |m, x| m.max(x.abs()));
            head.iter_mut().for_each(|x| *x /= most);
        }
        Output { floats, exact }
    }
}
