//! Checks of the cache's ops over random histories of steps, forks, toggles, dials, pins, releases,
//! trims, exports and imports. Compares every slot, page count and attention output; under policies
//! that read pages, also the reads and the bounds on keys.

use super::{
    Case, NoRope, Output, Random, acts, buffer, geometry, make_sums_exact, poisoned, policy_name, rounded, values,
};
use dmschat::backend::{
    Alpha, Borrowed, Columns, Measure, Mlp, Predictor, QkvRopeArgs, SampleArgs, SamplingState, Use,
};
use dmschat::cache::{KvCache, SeqId};
use dmschat::codec::Codec;
use dmschat::policy::{Far, LocalLayers, Policy, Window};
use dmschat::protocol::{LaneFilter, SamplingParams};

/// Tolerance of the logits that each step samples from.
const VOCAB: usize = 40;

const N_SEQS: usize = 4;
/// Default limits: tokens of a step and of a sequence.
const MAX_STEP: usize = 80;
const CONTEXT: usize = 600;
/// The limits for chunks longer than a thread block and than every window.
const WIDE_STEP: usize = 800;
const WIDE_CONTEXT: usize = 1600;
pub const WIDE_EVENTS: usize = 8;
pub const EVENTS: usize = 26;
/// Events of a short run, and of runs in which every row has its own launches or pages are
/// selected.
const SHORT_EVENTS: usize = 40;
const SHORT_SLOW_EVENTS: usize = 12;

/// Decisions of DMC; about half join.
const DMC_ALPHA: Alpha = Alpha { scale: 100.0, offset: 5.0, per_layer: false };

/// Factor on the queries of policies that score: logits as far apart as in a model.
const SHARP: f32 = 4.0;

/// Hidden units of gates.
const GATE_UNITS: usize = 24;

/// A shape, a policy, and the seed of a history.
pub struct History {
    pub policy: Policy,
    /// Tokens that the first layer sees, which is local; 0: it is as the others.
    pub local: usize,
    /// Pages that a choice brings near, where rows that leave are kept.
    pub far: Option<usize>,
    pub codec: Codec,
    pub head_dim: usize,
    pub heads: usize,
    pub group: usize,
    pub layers: usize,
    pub events: usize,
    pub wide: bool,
    pub seed: u64,
    /// Queries are off by this share, at random: what that changes was decided by a hair.
    pub noise: f32,
    /// Whether decisions are those of gates, and whether these have two hidden layers.
    pub gates: Option<bool>,
}

impl History {
    /// [`EVENTS`] events over two layers of `heads` KV heads of `group` query heads.
    pub fn new(policy: Policy, codec: Codec, [head_dim, heads, group]: [usize; 3], seed: u64) -> Self {
        let (local, far, layers, events, wide, noise, gates) = (0, None, 2, EVENTS, false, 0.0, None);
        Self { policy, local, far, codec, head_dim, heads, group, layers, events, wide, seed, noise, gates }
    }

    /// The same with [`WIDE_EVENTS`] long chunks.
    pub fn wide(self) -> Self {
        Self { events: WIDE_EVENTS, wide: true, ..self }
    }

    /// The history as a short run has it.
    pub fn shortened(self) -> Self {
        let slow = self.policy.scored().is_some() || self.policy.quest().is_some();
        let most = if slow { SHORT_SLOW_EVENTS } else { SHORT_EVENTS };
        Self { events: self.events.min(most), ..self }
    }

    /// Whether the softmax has sinks: every second history.
    fn sinks(&self) -> bool {
        self.seed % 2 == 1
    }

    fn max_step(&self) -> usize {
        if self.wide { WIDE_STEP } else { MAX_STEP }
    }

    fn context(&self) -> usize {
        if self.wide { WIDE_CONTEXT } else { CONTEXT }
    }
}

struct Run<'a, B: Measure> {
    case: &'a History,
    b: &'a B,
    cache: KvCache<B>,
    seqs: Vec<SeqId>,
    random: Random,
    output: Output,
}

impl Case for History {
    fn name(&self) -> String {
        let policy = policy_name(self.policy);
        let many = if self.events > EVENTS { format!(", {} events", self.events) } else { String::new() };
        let wide = if self.wide { ", long chunks" } else { "" };
        let far = self.far.map_or(String::new(), |far| format!(", {far} far pages near"));
        let local = if self.local > 0 { format!(" beside a window of {}", self.local) } else { String::new() };
        let sinks = if self.sinks() { ", sinks" } else { "" };
        format!(
            "cache {policy}{local} {} {} of {} x {}{many}{wide}{far}{sinks}",
            self.codec.name(),
            self.head_dim,
            self.heads,
            self.group
        )
    }

    fn limit(&self) -> f32 {
        // Where few keys have most of the attention, the roundings of their weights do not cancel.
        if self.policy.scored().is_some() { 2.0 * super::BF16_STEP } else { super::BF16_STEP }
    }

    fn run<B: Measure>(&self, b: &B) -> Output {
        let mut geometry =
            geometry(self.policy, self.codec, [self.head_dim, self.heads, self.group], [self.layers, N_SEQS]);
        geometry.vocab = VOCAB;
        geometry.far = self.far.map(|pages| Far { pages });
        geometry.local = LocalLayers::new(self.local, (self.local > 0).then_some(0).into_iter());
        let cache = KvCache::new(b, geometry, self.context(), self.max_step()).expect("memory for a check");
        let random = Random::new(1000 + self.seed);
        let mut run = Run { case: self, b, cache, seqs: Vec::new(), random, output: Output::default() };
        for _ in 0..self.events {
            run.event();
        }
        if self.far.is_some() {
            // Among the most pages.
            (0..run.seqs.len()).for_each(|seq| run.choose(seq, Far::QUERIES));
            run.look();
        }
        run.output
    }
}

impl<B: Measure> Run<'_, B> {
    fn event(&mut self) {
        let seq = (!self.seqs.is_empty()).then(|| self.random.below(self.seqs.len()));
        match (self.random.below(17), seq) {
            (0, _) | (_, None) if self.seqs.len() < N_SEQS => {
                let eviction = self.random.below(4) > 0;
                self.seqs.push(self.cache.create(self.b, eviction).expect("a free row"));
            }
            (1..=2, Some(seq)) if self.seqs.len() < N_SEQS => {
                self.seqs.push(self.cache.fork(self.b, self.seqs[seq]).expect("a free row"));
            }
            (3, Some(seq)) => {
                self.cache.release(self.b, self.seqs.remove(seq));
                self.cache.trim(self.b);
            }
            (4..=5, Some(seq)) => {
                let on = !self.cache.eviction(self.seqs[seq]);
                let dropped = self.cache.set_eviction(self.b, self.seqs[seq], on).expect("memory for a check");
                self.output.exact.push(dropped as i64);
            }
            (6, Some(seq)) => {
                let dial = [-0.5, 0.0, 0.5][self.random.below(3)];
                self.cache.set_dial(self.b, self.seqs[seq], dial);
            }
            (7, Some(seq)) => {
                // Decisions are within 1 of 0.
                let threshold = 960 + self.random.below(128);
                let dropped = self.cache.forget(self.b, self.seqs[seq], threshold).expect("memory for a check");
                self.output.exact.push(dropped as i64);
            }
            (8, Some(seq)) => {
                let from = self.random.below(self.cache.len(self.seqs[seq]) + 10);
                let positions = from..from + 1 + self.random.below(20);
                self.cache.pin(self.b, self.seqs[seq], positions).expect("memory for a check");
            }
            (9, Some(seq)) if self.seqs.len() < N_SEQS => self.import(seq),
            (10, Some(seq)) => {
                let from = self.random.below(self.cache.len(self.seqs[seq]) + 1);
                let positions = from..from + 1 + self.random.below(40);
                let (tokens, dropped) =
                    self.cache.unpin(self.b, self.seqs[seq], positions).expect("memory for a check");
                self.output.exact.extend([tokens as i64, dropped as i64]);
            }
            (11, Some(seq)) if self.random.below(2) == 0 => {
                let from = self.random.below(self.cache.len(self.seqs[seq]) + 1);
                let positions = from..from + 1 + self.random.below(20);
                let dropped = self.cache.drop_positions(self.b, self.seqs[seq], positions).expect("memory for a check");
                self.output.exact.push(dropped as i64);
            }
            (12..=14, Some(seq)) if self.case.far.is_some() => {
                let queries = 1 + self.random.below(Far::QUERIES);
                self.choose(seq, queries);
            }
            (15, Some(seq)) if self.case.far.is_some() && self.random.below(3) == 0 => {
                let before = self.random.below(self.cache.len(self.seqs[seq]) + 1);
                self.output.exact.push(self.cache.drop_far(self.b, self.seqs[seq], before) as i64);
            }
            _ => self.step(),
        }
        self.look();
    }

    /// Chooses far pages, and records how many of each lane were fetched.
    fn choose(&mut self, seq: usize, queries: usize) {
        let fetched = self.cache.choose(self.b, self.seqs[seq], queries);
        self.output.exact.push(fetched.map_or(-1, |pages| pages as i64));
        let by_head = self.cache.far_fetched(self.seqs[seq]).iter().copied();
        self.output.exact.extend(by_head.map(i64::from));
    }

    /// Replaces a sequence by one that is made of its image.
    fn import(&mut self, seq: usize) {
        let (b, old) = (self.b, self.seqs[seq]);
        let (head, bytes) = self.cache.head(b, old);
        let new = self.cache.create(b, false).expect("a free row");
        let (mut images, mut again, mut rests) = (vec![Vec::new(); bytes.len()], Vec::new(), Vec::new());
        for (layer, image) in images.iter_mut().enumerate() {
            self.cache.export_layer(b, old, layer, image);
            let checked = self.cache.layer_check(head.len).check(layer, image.clone());
            let checked = checked.expect("an image that was just made");
            if layer < self.cache.first_rest() {
                rests.extend(self.cache.import_layer(b, new, &checked).expect("memory for a check"));
            } else {
                self.cache.import_rest(b, &mut rests, &checked).expect("its far rows");
            }
        }
        for (layer, (image, &bytes)) in images.iter().zip(&bytes).enumerate() {
            self.cache.export_layer(b, new, layer, &mut again);
            self.output.exact.extend([(image.len() as u64 == bytes) as i64, (*image == again) as i64, bytes as i64]);
        }
        self.cache.end_import(b, new, &head, std::iter::empty()).expect("images of one sequence");
        self.cache.release(b, old);
        self.seqs[seq] = new;
    }

    /// Feeds all or some of the sequences, one or many tokens each.
    fn step(&mut self) {
        let (mut spans, mut n) = (Vec::new(), 0);
        for &seq in self.seqs.iter().rev() {
            let most = (self.case.max_step() - n).min(self.case.context() - self.cache.len(seq));
            let lens = if self.case.wide { [1, 17, 290, 700] } else { [1, 1, 17, 40] };
            let len = lens[self.random.below(4)].min(most);
            if len > 0 && self.random.below(5) > 0 {
                spans.push(self.cache.span(seq, n, len));
                n += len;
            }
        }
        if n == 0 {
            return;
        }
        let case = self.case;
        let (width, out_width) =
            ((case.group + 2) * case.heads * case.head_dim, case.group * case.heads * case.head_dim);
        self.cache.reserve_step(self.b, &spans).expect("memory for a check");
        self.cache.send_pins(self.b, &spans);
        let no_rope = match case.sinks() {
            true => NoRope::with_sinks(self.b, case.head_dim, case.heads * case.group),
            false => NoRope::new(self.b, case.head_dim),
        };
        let merges = matches!(case.policy, Policy::Dmc(_));
        let borrowed = merges.then_some(Borrowed { heads: 2, alpha: DMC_ALPHA });
        for layer in 0..case.layers {
            let mut rows = self.rows(n, width);
            if case.policy.quest().is_some() {
                rows.chunks_exact_mut(width).for_each(|row| make_sums_exact(&mut row[..out_width]));
            }
            let mut qkv = acts(self.b, width, &rows);
            let mut decided = self.random.floats(n * case.heads);
            if !self.cache.geometry().layer(layer).decides() {
                decided.fill(Window::DECISION);
            }
            let mut noise = Random::new(self.random.state());
            decided.iter_mut().for_each(|d| *d += case.noise * noise.float());
            let mut decisions = buffer(self.b, &decided);
            let units = case.gates.map_or(0, |_| GATE_UNITS);
            let mut drawn = |len| if len > 0 { self.random.floats(len) } else { vec![0.0] };
            let own = acts(self.b, units.max(1), &drawn(n * units));
            let of_gates = [units * units, units, case.heads * units, case.heads * units.min(1)];
            let mlp = of_gates.map(|len| buffer(self.b, &drawn(len)));
            let predictor = case.gates.map(|deep| {
                let middle = deep.then_some([&mlp[0], &mlp[1]]);
                let mlp = Some(Mlp { silu: true, middle, weight: &mlp[2], bias: &mlp[3] });
                let columns = Columns { linear: false, units, stride: units, copies: 1 };
                Predictor { own: Some(&own), columns, mlp, alpha: Alpha { scale: 1.0, offset: 0.0, per_layer: false } }
            });
            let rope = QkvRopeArgs { borrowed, predictor, ..no_rope.rope() };
            let mut out = poisoned(self.b, n, out_width);
            self.cache.attention(self.b, &mut out, &mut qkv, &mut decisions, layer, &spans, &rope);
            self.output.floats.extend(values(self.b, &out, n * out_width));
        }
        self.cache.finish(self.b, &spans);
        let (mut sampled, non_finite) = (self.b.alloc(3).expect("memory"), buffer(self.b, &[i32::MAX, 2][n % 2..]));
        let mut logits = self.b.acts(2, VOCAB, Use::Logits).expect("memory");
        self.b.write_acts(&mut logits, &self.random.floats(2 * VOCAB));
        let draws = buffer(self.b, &[SamplingState::new(0, 0, &SamplingParams::default()); 2]);
        let (draws, kv, non_finite) = (&draws, self.cache.tables(), &non_finite);
        self.b.sample(
            &mut sampled,
            &mut logits,
            &SampleArgs { draws, kv, non_finite, staged: None, greedy: true, adjusts: None, masks: None },
            2,
        );
        let result = self.b.read_step(&sampled, non_finite, kv, 2);
        self.output.exact.extend(result.tokens.iter().map(|&t| t as i64));
        self.output.exact.push(result.non_finite.map_or(-1, |l| l as i64));
    }

    /// `n` rows of queries, keys and values, `width` values each.
    fn rows(&mut self, n: usize, width: usize) -> Vec<f32> {
        let case = self.case;
        let mut rows = rounded(self.random.floats(n * width));
        if case.policy.scored().is_some() {
            // Noise has numbers of its own, so that it changes nothing else.
            let mut random = Random::new(self.random.state());
            for row in rows.chunks_exact_mut(width) {
                let queries = &mut row[..case.heads * case.group * case.head_dim];
                queries.iter_mut().for_each(|q| *q *= SHARP * (1.0 + case.noise * random.float()));
            }
        }
        rows
    }

    /// Records the scores of a lane's slots, as shares of their sum.
    fn look_at_scores(&mut self, seq: SeqId, layer: usize, head: usize, live: usize) {
        let tables = self.cache.tables();
        let g = &tables.geometry;
        if g.score_slots() > 0 {
            let mut scores = vec![0.0; live];
            self.b.read(&tables.score, g.row(layer, seq.row(), head) * g.score_slots(), &mut scores);
            let sum = scores.iter().map(|score| score.abs()).sum::<f32>().max(f32::MIN_POSITIVE);
            self.output.floats.extend(scores.iter().map(|score| score / sum));
        }
    }

    /// Records how many lanes store each token, of all lanes and of some.
    fn look_at_presence(&mut self, seq: SeqId, len: usize) {
        let filters = [(None, None), (Some(1), None), (None, Some(0)), (Some(0), Some(self.case.heads - 1))];
        for (layer, head) in filters {
            let found = self.cache.presence(self.b, seq, LaneFilter { layer, head }, len / 2);
            let counts = found.kept.iter().chain(&found.marked).map(|&n| i64::from(n));
            self.output.exact.extend(counts.chain(found.of_position.iter().map(|&state| state as i64)));
        }
    }

    /// Records the bounds on the keys of each page, as a sum over their bits.
    fn look_at_bounds(&mut self, seq: SeqId) {
        let g = *self.cache.geometry();
        if g.policy.quest().is_none() {
            return;
        }
        let mut image = Vec::new();
        for layer in 0..self.case.layers {
            self.cache.export_layer(self.b, seq, layer, &mut image);
            let tables = (1 + g.n_kv_heads * (1 + g.ring_len())) * size_of::<i32>();
            for page in image[tables..].chunks_exact(g.page_bytes()) {
                let bounds = page[g.page().bounds_at..].chunks_exact(2).map(|b| u16::from_ne_bytes([b[0], b[1]]));
                // 0 has two forms.
                let bits = bounds.map(|bits| if bits == 0x8000 { 0 } else { u64::from(bits) });
                let sum = bits.fold(0u64, |sum, bits| sum.wrapping_mul(0x100_0000_01b3).wrapping_add(bits));
                self.output.exact.push(sum as i64);
            }
        }
    }

    /// Records the far rows of a lane, and which of them are read.
    fn look_at_far(&mut self, seq: SeqId, layer: usize, head: usize) {
        let rows = self.cache.far_rows(self.b, seq, layer, head);
        self.output.exact.extend(rows.iter().map(|(meta, near)| i64::from(meta.0) << 1 | i64::from(*near)));
    }

    /// Records every slot of every lane in order, the pages in use, and the counters.
    fn look(&mut self) {
        for seq in self.seqs.clone() {
            let stats = self.cache.stats(self.b, seq);
            let far = &stats.far;
            self.output.exact.extend([stats.len as i64, stats.pages as i64]);
            self.output.exact.extend([far.rows, far.near, far.dropped].map(|rows| rows as i64));
            for layer in 0..self.case.layers {
                for head in 0..self.case.heads {
                    let metas = self.cache.slot_metas(self.b, seq, layer, head);
                    self.output.exact.extend(metas.iter().map(|m| m.0 as i64));
                    self.look_at_scores(seq, layer, head, metas.len());
                    self.look_at_far(seq, layer, head);
                }
            }
            self.look_at_presence(seq, stats.len);
            self.look_at_bounds(seq);
        }
        let (mut reads, mut peak) = ([0; N_SEQS], [0; N_SEQS]);
        self.b.read(&self.cache.tables().reads, 0, &mut reads);
        self.b.read(&self.cache.tables().peak, 0, &mut peak);
        self.output.exact.extend(reads.iter().map(|&n| n as i64).chain(peak.map(i64::from)));
        // A backend may keep far rows in pages, but not those of sequences that were released.
        let some_far = self.case.far.is_some() && !self.seqs.is_empty();
        let used = if some_far { 0 } else { self.cache.pool_stats(self.b).used_pages };
        let counted = self.cache.audit(self.b).map_or(-1, |pages| pages as i64);
        self.output.exact.extend([used as i64, counted]);
    }
}
