//! Checks of what attention does to the rows of a step first: norms, decisions, RoPE, codec. The
//! checks of the cache cover attention itself.

use super::{BF16_STEP, CODECS, Case, NoRope, Output, Random, acts, buffer, geometry, poisoned, read, values};
use dmschat::backend::{
    Alpha, AttentionArgs, Borrowed, Columns, Growth, KvTables, Measure, Mlp, Predictor, QkvRopeArgs, Queries, Span,
};
use dmschat::cache::PAGE_SLOTS;
use dmschat::codec::Codec;
use dmschat::policy::Policy;

/// Rows of an adapter: the maximum of any step here.
const ROWS: usize = 32;

/// A step of a dense cache with one layer.
struct Step {
    n_q_heads: usize,
    heads: usize,
    head_dim: usize,
    codec: Codec,
    /// Tokens fed to each sequence before.
    fed: Vec<i32>,
    spans: Vec<Span>,
    /// Whether an output gate follows v, and a predictor's columns follow the gate.
    gated: bool,
    columns: usize,
    /// Compared rows of a step with single tokens: the rows of its first spans.
    single: usize,
}

impl Step {
    fn width(&self) -> usize {
        let gates = if self.gated { self.n_q_heads } else { 0 };
        (self.n_q_heads + 2 * self.heads + gates) * self.head_dim + self.columns
    }

    /// Returns the rows that `qkv_rope` computes, or the attention output of single tokens, in this
    /// step and a second one, after `stored` rows; and the decisions.
    fn run<B: Measure>(
        &self,
        b: &B,
        rows: &[f32],
        stored: Option<&[f32]>,
        rope: &QkvRopeArgs<'_, B>,
    ) -> (Vec<f32>, Vec<f32>) {
        let (n, width) = (rows.len() / self.width(), self.width());
        let before = stored.map_or(0, |rows| rows.len() / width);
        let shape = [self.head_dim, self.heads, self.n_q_heads / self.heads];
        let geometry = geometry(Policy::Dense, self.codec, shape, [1, self.fed.len()]);
        let mut kv = KvTables::new(b, geometry, PAGE_SLOTS, n.max(before)).expect("memory for a check");
        b.reserve(&mut kv, self.fed.len() * self.heads).expect("memory for a check");
        b.write(&mut kv.seq_len, 0, &self.fed);
        if let Some(rows) = stored {
            let each = before / self.spans.len();
            let at = |(i, s): (usize, &Span)| Span { seq: s.seq, start: i * each, len: each };
            let spans: Vec<Span> = self.spans.iter().enumerate().map(at).collect();
            let mut decisions = buffer(b, &vec![0.5; before * self.heads]);
            let mut out = poisoned(b, before, self.n_q_heads * self.head_dim);
            let (qkv, decisions) = (&mut acts(b, width, rows), &mut decisions);
            b.attention(&mut out, AttentionArgs { qkv, decisions, kv: &mut kv, layer: 0, spans: &spans, rope });
            b.advance(&mut kv, None, &spans);
        }
        let mut qkv = acts(b, width, rows);
        let mut decisions = buffer(b, &vec![0.5; n * self.heads]);
        let out_width = self.n_q_heads * self.head_dim;
        let mut out = poisoned(b, n, out_width);
        let args =
            AttentionArgs { qkv: &mut qkv, decisions: &mut decisions, kv: &mut kv, layer: 0, spans: &self.spans, rope };
        b.attention(&mut out, args);
        let seen_of = |out: &B::Acts| values(b, out, self.single * out_width);
        let mut seen = if self.single > 0 { seen_of(&out) } else { values(b, &qkv, n * width) };
        let decided = read(b, &decisions, n * self.heads);
        if stored.is_some() {
            // The next step attends to the slots of this one.
            b.advance(&mut kv, None, &self.spans);
            let mut next = acts(b, width, &rows.iter().map(|x| -x).collect::<Vec<_>>());
            let (qkv, decisions, kv) = (&mut next, &mut decisions, &mut kv);
            b.attention(&mut out, AttentionArgs { qkv, decisions, kv, layer: 0, spans: &self.spans, rope });
            seen.extend(seen_of(&out));
        }
        (seen, decided)
    }
}

pub struct Rope {
    head_dim: usize,
    heads: usize,
    group: usize,
    norm: bool,
    decisions: Decisions,
    tokens: Tokens,
}

/// Where decisions come from, and whether one applies to all heads.
#[derive(Clone, Copy)]
enum Decisions {
    Given,
    Borrowed {
        per_layer: bool,
    },
    /// A linear map whose columns are in rows of their own.
    Adapter {
        per_layer: bool,
    },
    Predicted {
        linear: bool,
        units: usize,
        copies: usize,
    },
}

impl Decisions {
    fn name(self) -> &'static str {
        match self {
            Self::Given => "",
            Self::Borrowed { per_layer: false } => ", borrowed",
            Self::Borrowed { per_layer: true } => ", borrowed by layer",
            Self::Adapter { per_layer: false } => ", of an adapter",
            Self::Adapter { per_layer: true } => ", of an adapter by layer",
            Self::Predicted { units: 0, .. } => ", predicted",
            Self::Predicted { linear: false, .. } => ", predicted by an MLP",
            Self::Predicted { linear: true, .. } => ", predicted by both",
        }
    }

    fn columns(self, heads: usize) -> Columns {
        match self {
            Self::Given | Self::Borrowed { .. } => Columns::default(),
            Self::Adapter { .. } => Columns { linear: true, units: 0, stride: heads, copies: 1 },
            Self::Predicted { linear, units, copies } => {
                let used = units + if linear { heads } else { 0 };
                Columns { linear, units, stride: used.next_multiple_of(16), copies }
            }
        }
    }
}

/// The tokens of a step.
#[derive(Clone, Copy, PartialEq)]
enum Tokens {
    /// Rows of several tokens of each sequence.
    Chunks,
    /// Rows of one token of each sequence, whose attention a backend may fuse.
    Single,
    /// Rows of single tokens beside a chunk, which a backend may treat like the chunk.
    Mixed,
}

pub fn ropes() -> Vec<Rope> {
    let mut out = Vec::new();
    for (head_dim, groups) in [(8, 1..=8), (32, 1..=8), (64, 1..=8), (128, 1..=8), (256, 4..=6), (200, 8..=8)] {
        for group in groups {
            let heads = 1 + group % 3;
            let decisions = [
                Decisions::Given,
                Decisions::Borrowed { per_layer: false },
                Decisions::Borrowed { per_layer: true },
                Decisions::Predicted { linear: true, units: 0, copies: 2 },
                Decisions::Predicted { linear: false, units: 70, copies: 1 },
                Decisions::Predicted { linear: true, units: 48, copies: 2 },
                Decisions::Adapter { per_layer: group % 2 == 0 },
            ][(group + 3 * (head_dim / 32)) % 7];
            let norm = group % 2 == 1;
            let all = [Tokens::Chunks, Tokens::Single, Tokens::Mixed];
            out.extend(all.map(|tokens| Rope { head_dim, heads, group, norm, decisions, tokens }));
        }
    }
    out
}

impl Rope {
    /// Whether queries grow with their positions. Wide heads have no kernel for it.
    fn grows(&self) -> bool {
        self.group.is_multiple_of(3) && self.head_dim <= 128
    }
}

impl Case for Rope {
    fn name(&self) -> String {
        let dms = self.decisions.name();
        let norm = if self.norm { ", norms" } else { "" };
        let single = match self.tokens {
            Tokens::Chunks => "",
            Tokens::Single => ", single tokens",
            Tokens::Mixed => ", single tokens beside a chunk",
        };
        let gated = if self.group % 4 == 2 { ", gated" } else { "" };
        let grown = if self.grows() { ", growth" } else { "" };
        format!("rope {} of {} x {}{norm}{dms}{gated}{grown}{single}", self.head_dim, self.heads, self.group)
    }
    fn limit(&self) -> f32 {
        if self.tokens == Tokens::Chunks { 4e-6 } else { BF16_STEP }
    }
    fn run<B: Measure>(&self, b: &B) -> Output {
        let (mut random, d) = (Random::new(5), self.head_dim);
        let (q, k) = (buffer(b, &random.floats(d)), buffer(b, &random.floats(d)));
        // Some heads are rotated in part, and some not at all.
        let rotated = [d, d, d / 2, 0][self.group % 4];
        let inv_freq = inv_freq(rotated);
        let columns = self.decisions.columns(self.heads);
        let mlp = [self.heads * columns.units, self.heads].map(|len| buffer(b, &random.floats(len.max(1))));
        let own = acts(b, self.heads, &random.floats(ROWS * self.heads));
        let (mut borrowed, mut predictor) = (None, None);
        let alpha = |per_layer| Alpha { scale: 100.0, offset: 5.0, per_layer };
        match self.decisions {
            Decisions::Given => {}
            Decisions::Borrowed { per_layer } => borrowed = Some(Borrowed { heads: 1, alpha: alpha(per_layer) }),
            Decisions::Adapter { per_layer } => {
                predictor = Some(Predictor { own: Some(&own), columns, mlp: None, alpha: alpha(per_layer) });
            }
            Decisions::Predicted { units, .. } => {
                let mlp = (units > 0).then_some(Mlp { silu: false, middle: None, weight: &mlp[0], bias: &mlp[1] });
                predictor = Some(Predictor { own: None, columns, mlp, alpha: alpha(false) });
            }
        }
        let stacked = if let Decisions::Adapter { .. } = self.decisions { 0 } else { columns.width() };
        let rope = QkvRopeArgs {
            qk_norm: self.norm.then_some([&q, &k]),
            rms_eps: 1e-6,
            inv_freq: &buffer(b, &inv_freq),
            rope_scale: 1.25,
            growth: self.grows().then_some(Growth { beta: 0.3, length: 5_000 }),
            v_norm: false,
            keys_of: None,
            lends: false,
            borrowed,
            predictor,
            gated: self.group % 4 == 2,
            sinks: None,
            staged: false,
        };
        // Spans need not be in the order of their sequences.
        let span = |seq, start, len| Span { seq, start, len };
        let (spans, single) = match self.tokens {
            Tokens::Chunks => (vec![span(1, 2, 5), span(0, 0, 2)], 0),
            Tokens::Single => (vec![span(2, 1, 1), span(1, 0, 1)], 2),
            Tokens::Mixed => (vec![span(2, 1, 1), span(1, 0, 1), span(0, 2, 2)], 2),
        };
        let n: usize = spans.iter().map(|s| s.len).sum();
        let n_q_heads = self.heads * self.group;
        let fed = vec![7, 130_001, 40_000];
        let step = Step {
            n_q_heads,
            heads: self.heads,
            head_dim: d,
            codec: Codec::Bf16,
            fed,
            spans,
            gated: rope.gated,
            columns: stacked,
            single,
        };
        let rows = random.floats(n * step.width());
        let stored = (single > 0).then(|| random.floats(step.spans.len() * 5 * step.width()));
        let (mut rows, mut decided) = step.run(b, &rows, stored.as_deref(), &rope);
        if single == 0 {
            // A difference in the last bit before the codec may be one unit of bf16 after it, so
            // that these values are scaled down.
            rows.chunks_mut(step.width()).flat_map(|row| &mut row[n_q_heads * d..]).for_each(|x| *x *= 5e-4);
        }
        decided.iter_mut().for_each(|d| *d /= 100.0);
        Output { floats: [rows, decided].concat(), exact: vec![] }
    }
}

pub struct Importance {
    head_dim: usize,
    group: usize,
    norm: bool,
}

pub fn importance() -> Vec<Importance> {
    [(8, 1, true), (64, 3, false), (128, 4, true), (72, 8, false), (256, 4, true)]
        .map(|(head_dim, group, norm)| Importance { head_dim, group, norm })
        .into()
}

impl Case for Importance {
    fn name(&self) -> String {
        let norm = if self.norm { ", norms and sinks" } else { "" };
        format!("importance {} of 2 x {}{norm}", self.head_dim, self.group)
    }
    fn limit(&self) -> f32 {
        2e-5
    }
    fn run<B: Measure>(&self, b: &B) -> Output {
        // More than two tiles of queries and of keys, with ends of their own.
        let (mut random, d, tokens, queries) = (Random::new(9), self.head_dim, 101, 90..165);
        let geometry = geometry(Policy::Dense, Codec::Bf16, [d, 2, self.group], [1, 1]);
        let norms = [0; 2].map(|_| buffer(b, &random.floats(d)));
        let (inv_freq, sinks) = (buffer(b, &inv_freq(d)), buffer(b, &random.floats(geometry.n_q_heads)));
        let rope = QkvRopeArgs {
            qk_norm: self.norm.then_some([&norms[0], &norms[1]]),
            rms_eps: 1e-6,
            rope_scale: 1.25,
            sinks: self.norm.then_some(&sinks),
            growth: (self.group == 4).then_some(Growth { beta: 0.3, length: 50 }),
            ..QkvRopeArgs::plain(&inv_freq)
        };
        let width = (2 * self.group + 4) * d;
        let mut qkv = acts(b, width, &random.floats(queries.end * width));
        let factors: Vec<f32> = random.floats(queries.len()).iter().map(|x| x.abs()).collect();
        let mut out = vec![f32::NAN; geometry.n_q_heads * tokens];
        b.importance(&mut out, &mut qkv, &geometry, &rope, &Queries { rows: queries, factors: &factors });
        Output { floats: out, exact: vec![] }
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
        for head_dim in [8, 32, 64, 128, 200, 256] {
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
    fn run<B: Measure>(&self, b: &B) -> Output {
        let (mut random, d, n) = (Random::new(7), self.head_dim, 9);
        let span = |i: usize| Span { seq: i, start: i, len: 1 };
        let spans = if self.single { (0..n).map(span).collect() } else { vec![Span { seq: 0, start: 0, len: n }] };
        let single = if self.single { n } else { 0 };
        let step = Step {
            n_q_heads: 4,
            heads: 2,
            head_dim: d,
            codec: self.codec,
            fed: vec![0; n],
            spans,
            gated: false,
            columns: 0,
            single,
        };
        let mut rows = random.floats(n * step.width());
        // Values of all magnitudes, and a head of zeros.
        rows.iter_mut().for_each(|x| *x *= 2f32.powi(random.below(24) as i32 - 16));
        rows[5 * d..6 * d].fill(0.0);
        let (mut floats, _) = step.run(b, &rows, None, &NoRope::new(b, d).rope());
        let exact = if self.single { vec![] } else { floats.iter().map(|x| x.to_bits() as i64).collect() };
        // Normalize every head, so that small heads count too.
        for head in floats.chunks_mut(d).filter(|_| self.single) {
            let most = head.iter().fold(f32::MIN_POSITIVE, |m, x| m.max(x.abs()));
            head.iter_mut().for_each(|x| *x /= most);
        }
        Output { floats, exact }
    }
}

/// RoPE frequencies of `rotated` channels.
fn inv_freq(rotated: usize) -> Vec<f32> {
    (0..rotated / 2).map(|i| 1e4f32.powf(-2.0 * i as f32 / rotated as f32)).collect()
}
