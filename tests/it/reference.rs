//! The tests' own form of the rule: a transformer in f64 that sees all tokens at once, without a
//! cache, pages, slots or chunks. Eviction is a mask: who may be seen by whom.

use crate::tiny::{Form, Tiny};
use dmschat::policy::least_decision;
use dmschat::protocol::LogEntry;
use std::ops::Range;

/// How K and V are rounded by being stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    None,
    Bf16,
    Fp8,
    Int8,
    K8V4,
}

/// A policy that drops tokens by the weights of attention, as the set of tokens that each query
/// sees.
pub trait Rule {
    /// Adds the weights `[n_kv_heads][key]` of the newest of `tokens` tokens, summed over the query
    /// heads of each KV head, and drops by them from `sees`, `[n_kv_heads][key]`.
    fn after(&mut self, tokens: usize, weights: &[Vec<f64>], sees: &mut [Vec<bool>], on: bool);
    /// Drops what exceeds the budget once `tokens` tokens were fed.
    fn reduce(&mut self, tokens: usize, sees: &mut [Vec<bool>]);
}

/// Result of a log under a [`Rule`].
pub struct Seen {
    /// `[n_tokens][vocab]`
    pub logits: Vec<Vec<f64>>,
    /// `[n_layers][n_kv_heads]` positions that are still stored, in order.
    pub stored: Vec<Vec<Vec<usize>>>,
    /// `[n_tokens]` keys that each query saw, summed over layers and KV heads.
    pub reads: Vec<usize>,
    /// `[n_tokens]` tokens stored after each, summed likewise.
    pub live: Vec<usize>,
}

/// Runs a log of tokens and toggles under a rule, which `rule` makes for each layer.
pub fn run_by_weights<R: Rule>(tiny: &Tiny, log: &[LogEntry], mut rule: impl FnMut() -> R) -> Seen {
    let token = |entry: &LogEntry| if let LogEntry::Token(token) = *entry { Some(token as usize) } else { None };
    let tokens: Vec<usize> = log.iter().filter_map(token).collect();
    let (s, n) = (&tiny.spec, tokens.len());
    let embed = &tiny.weights["model.embed_tokens.weight"];
    let mut x: Vec<Vec<f64>> = tokens.iter().map(|&t| embed[t * s.hidden..(t + 1) * s.hidden].to_vec()).collect();
    let mut out = Seen { logits: Vec::new(), stored: Vec::new(), reads: vec![0; n], live: vec![0; n] };
    for l in 0..s.n_layers {
        let layer = Layer { tiny, l };
        let normed: Vec<Vec<f64>> = x.iter().map(|x| layer.norm("input_layernorm", x)).collect();
        let (q, k, v, _) = layer.project(&normed, Rounding::None);
        let (mut rule, mut on, mut t) = (rule(), true, 0);
        let mut sees = vec![vec![false; n]; s.n_kv_heads];
        for entry in log {
            if let LogEntry::Toggle { eviction } = *entry {
                if eviction && !on {
                    rule.reduce(t, &mut sees);
                }
                on = eviction;
                continue;
            }
            sees.iter_mut().for_each(|lane| lane[t] = true);
            out.reads[t] += sees.iter().flatten().filter(|sees| **sees).count();
            let mut weights = vec![vec![0.0; n]; s.n_kv_heads];
            let add_up = |head: usize, key: usize, weight: f64| weights[head][key] += weight;
            let mixed = layer.attend_weighing(t, &q[t], &k, &v, |_, key, head| sees[head][key], add_up);
            add_block(&layer, &mut x[t], &mixed);
            t += 1;
            rule.after(t, &weights, &mut sees, on);
            out.live[t - 1] += sees.iter().flatten().filter(|sees| **sees).count();
        }
        let kept = |lane: &Vec<bool>| (0..n).filter(|&key| lane[key]).collect();
        out.stored.push(sees.iter().map(kept).collect());
    }
    let head = if s.tied { embed } else { &tiny.weights["lm_head.weight"] };
    out.logits = x.iter().map(|x| matvec(head, &rms_norm(x, &tiny.weights["model.norm.weight"], s.eps))).collect();
    out
}

/// Adds a layer's attention output and its MLP to the residual stream.
pub fn add_block(layer: &Layer<'_>, x: &mut [f64], mixed: &[f64]) {
    add(x, &layer.linear("self_attn.o_proj", mixed));
    let h = layer.norm("post_attention_layernorm", x);
    let (gate, up) = (layer.linear("mlp.gate_proj", &h), layer.linear("mlp.up_proj", &h));
    let act: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
    add(x, &layer.linear("mlp.down_proj", &act));
}

/// Result of a log.
pub struct Outcome {
    /// `[n_tokens][vocab]`
    pub logits: Vec<Vec<f64>>,
    /// `[n_layers][n_kv_heads]` positions and marks that are still stored, in order of position.
    pub stored: Vec<Vec<Vec<(usize, bool)>>>,
    /// The smallest |decision|: how far every decision is from flipping.
    pub margin: f64,
    /// Share of decisions that mark.
    pub marked: f64,
    /// Pairs of query and key that the causal mask alone would show and the rule hides.
    pub hidden_pairs: usize,
}

impl Outcome {
    pub fn ratio(&self) -> f64 {
        let lanes: Vec<usize> = self.stored.iter().flatten().map(Vec::len).collect();
        (self.logits.len() * lanes.len()) as f64 / lanes.iter().sum::<usize>() as f64
    }
}

/// When tokens are dropped: for each query, and after the last one, the newest position that a
/// token had when eviction was on, if it ever was. Older marked tokens are gone by then, and
/// stay so.
struct Sweeps {
    at: Vec<Option<usize>>,
    end: Option<usize>,
    /// The dial at each token.
    dials: Vec<f64>,
    /// Times when memory ran out: tokens fed by then, and the least decision that was dropped.
    forgets: Vec<(usize, f64)>,
    /// Whether a decision is about the token before its own.
    shift: bool,
    /// Ranges of positions that are pinned, from the start of the log up to a number of tokens.
    pins: Vec<(Range<usize>, usize)>,
    /// Positions that were dropped, and tokens fed by then.
    drops: Vec<(Range<usize>, usize)>,
}

impl Sweeps {
    /// Whether a token was dropped for lack of memory before the query at `query`.
    fn forgot(&self, key: usize, decision: Option<f64>, query: usize, window: usize) -> bool {
        let pinned_until = self.pins.iter().filter(|(pin, _)| pin.contains(&key)).map(|(_, until)| *until).max();
        // The decision about a token that was pinned when it was made is not known.
        let decided_at = key + usize::from(self.shift);
        let gone = |&(n, least): &(usize, f64)| {
            let decision = match pinned_until {
                Some(until) if n < until => None,
                Some(until) if decided_at < until => Some(-1e-3),
                _ => decision,
            };
            n <= query && key + window + 1 < n && decision.is_some_and(|d| d >= least)
        };
        let dropped = |(range, n): &(Range<usize>, usize)| *n <= query && range.contains(&key);
        self.forgets.iter().any(gone) || self.drops.iter().any(dropped)
    }

    /// Whether the token at a position was pinned when it was decided about.
    fn pinned(&self, key: usize) -> bool {
        self.pins.iter().any(|(pin, until)| pin.contains(&key) && key + usize::from(self.shift) < *until)
    }
}

fn sweeps(log: &[LogEntry], shift: bool) -> (Vec<usize>, Sweeps) {
    let (mut tokens, mut at, mut newest, mut on) = (Vec::new(), Vec::new(), None, true);
    let (mut dials, mut dial, mut forgets) = (Vec::new(), 0.0, Vec::new());
    let (mut pins, mut drops) = (Vec::<(Range<usize>, usize)>::new(), Vec::new());
    let range = |ends: [u32; 2]| ends[0] as usize..ends[1] as usize;
    for entry in log {
        match *entry {
            LogEntry::Token(token) => {
                if on {
                    newest = Some(tokens.len());
                }
                at.push(newest);
                dials.push(dial);
                tokens.push(token as usize);
            }
            LogEntry::Toggle { eviction } => {
                on = eviction;
                if on && !tokens.is_empty() {
                    newest = Some(tokens.len() - 1);
                }
            }
            LogEntry::Dial { dial: now } => dial = now as f64,
            LogEntry::Forget { forget } => {
                newest = tokens.len().checked_sub(1).or(newest);
                forgets.push((tokens.len(), least_decision(forget.max(1).into()) as f64));
            }
            LogEntry::Pin { pin } => pins.push((range(pin), usize::MAX)),
            LogEntry::Unpin { unpin } => {
                let unpin = range(unpin);
                for (pin, until) in std::mem::take(&mut pins) {
                    let rest = [pin.start..pin.end.min(unpin.start), pin.start.max(unpin.end)..pin.end];
                    pins.extend(rest.map(|rest| (rest, until)));
                    let taken = pin.start.max(unpin.start)..pin.end.min(unpin.end);
                    pins.push((taken, until.min(tokens.len())));
                }
            }
            LogEntry::Drop { drop } => drops.push((range(drop), tokens.len())),
            LogEntry::Choose { .. } | LogEntry::DropFar { .. } => panic!("far_reference has far pages"),
        }
    }
    (tokens, Sweeps { at, end: newest, dials, forgets, shift, pins, drops })
}

/// Whether the token at `key` outlived a sweep when the newest token stood at `newest`.
fn survives(key: usize, marked: bool, newest: Option<usize>, window: usize) -> bool {
    !marked || newest.is_none_or(|newest| newest <= key + window)
}

pub fn run(tiny: &Tiny, log: &[LogEntry], rounding: Rounding) -> Outcome {
    run_under(tiny, log, rounding, None)
}

/// Like [`run`]. `budget`: not the model's own policy but a window of so many slots, four of them
/// for the first tokens.
pub fn run_under(tiny: &Tiny, log: &[LogEntry], rounding: Rounding, budget: Option<usize>) -> Outcome {
    let s = &tiny.spec;
    let (tokens, mut sweeps) = sweeps(log, s.shift() == 1);
    sweeps.pins.push((0..s.sinks(), usize::MAX));
    let window = budget.map_or(s.window, |budget| budget - 5);
    let embed = &tiny.weights["model.embed_tokens.weight"];
    let mut x: Vec<Vec<f64>> = tokens.iter().map(|&t| embed[t * s.hidden..(t + 1) * s.hidden].to_vec()).collect();
    let mut out =
        Outcome { logits: Vec::new(), stored: Vec::new(), margin: f64::INFINITY, marked: 0.0, hidden_pairs: 0 };
    let mut marks_seen = 0;
    for l in 0..s.n_layers {
        let layer = Layer { tiny, l };
        let (q, k, v, decisions) = layer.decide(&x, rounding);
        let mut beyond = decisions.clone();
        for (decisions, dial) in beyond.iter_mut().zip(&sweeps.dials) {
            decisions.iter_mut().for_each(|d| *d -= dial);
        }
        let mut marks = match budget {
            Some(_) => vec![(0..x.len()).map(|key| key >= 4).collect(); s.n_kv_heads],
            None => layer.marks(&beyond, x.len()),
        };
        for marks in &mut marks {
            (0..x.len()).filter(|&key| sweeps.pinned(key)).for_each(|key| marks[key] = false);
        }
        marks_seen += beyond.iter().flatten().filter(|&&d| d > 0.0).count();
        out.margin = beyond.iter().flatten().fold(out.margin, |m, d| m.min(d.abs()));
        for (_, least) in &sweeps.forgets {
            out.margin = decisions.iter().flatten().fold(out.margin, |m, d| m.min((d - least).abs()));
        }
        let forgot = |query: usize, key: usize, head: usize| {
            let decision = decisions.get(key + s.shift()).map(|d| d[if s.per_layer { 0 } else { head }]);
            sweeps.forgot(key, decision, query, window)
        };
        let sees = |query: usize, key: usize, head: usize| {
            key <= query && survives(key, marks[head][key], sweeps.at[query], window) && !forgot(query, key, head)
        };
        for (i, x) in x.iter_mut().enumerate() {
            let mixed = layer.attend(i, &q[i], &k, &v, sees);
            add_block(&layer, x, &mixed);
        }
        for head in 0..s.n_kv_heads {
            out.hidden_pairs += (0..x.len()).map(|q| (0..=q).filter(|&k| !sees(q, k, head)).count()).sum::<usize>();
        }
        let kept = |head: usize| {
            let all = marks[head].iter().copied().enumerate();
            all.filter(|&(key, marked)| survives(key, marked, sweeps.end, window) && !forgot(x.len(), key, head))
                .collect()
        };
        out.stored.push((0..s.n_kv_heads).map(kept).collect());
    }
    out.marked = marks_seen as f64 / (s.n_layers * s.n_kv_heads * x.len()) as f64;
    let head = if s.tied { embed } else { &tiny.weights["lm_head.weight"] };
    out.logits = x.iter().map(|x| matvec(head, &rms_norm(x, &tiny.weights["model.norm.weight"], s.eps))).collect();
    out
}

pub struct Layer<'a> {
    pub tiny: &'a Tiny,
    pub l: usize,
}

/// Rows of one projection, split into heads: `[token][head][channel]`.
pub type Heads = Vec<Vec<Vec<f64>>>;

impl Layer<'_> {
    fn weight(&self, name: &str) -> &[f64] {
        &self.tiny.weights[&format!("model.layers.{}.{name}", self.l)]
    }

    pub fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        rms_norm(x, self.weight(&format!("{name}.weight")), self.tiny.spec.eps)
    }

    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mut out = matvec(self.weight(&format!("{name}.weight")), x);
        if self.tiny.spec.bias && name.starts_with("self_attn") {
            add(&mut out, self.weight(&format!("{name}.bias")));
        }
        out
    }

    /// Decisions of one token by the separate tensors, `[n_kv_heads]`; empty where there are none.
    fn adapter(&self, x: &[f64]) -> Vec<f64> {
        let s = &self.tiny.spec;
        if !s.adapter() {
            return Vec::new();
        }
        let raw = self.linear("self_attn.dms_proj_alpha", &self.norm("self_attn.dms_proj_alpha_norm", x));
        raw.iter().map(|v| v * s.scale - s.offset).collect()
    }

    /// Decisions of one token by a predictor of its normed input, `[n_kv_heads]`.
    fn predicted(&self, normed: &[f64]) -> Vec<f64> {
        let s = &self.tiny.spec;
        let map = |name: &str, x: &[f64]| {
            let tensor = |what: &str| &self.tiny.weights[&format!("layers.{}.{name}{what}", self.l)];
            let mut out = matvec(tensor("weight"), x);
            add(&mut out, tensor("bias"));
            out
        };
        let mut score = vec![0.0; s.n_kv_heads];
        if let Form::Predictor { linear: true, .. } = s.form {
            add(&mut score, &map("", normed));
        }
        if matches!(s.form, Form::Predictor { units, .. } if units > 0) {
            let units: Vec<f64> = map("0.", normed).into_iter().map(gelu).collect();
            add(&mut score, &map("2.", &units));
        }
        score.iter().map(|v| v * s.scale - s.offset).collect()
    }

    /// Query, key and value heads of a token as they come out of the projections and norms.
    pub fn heads(&self, x: &[f64]) -> [Vec<Vec<f64>>; 3] {
        let s = &self.tiny.spec;
        ["q", "k", "v"].map(|name| {
            let row = self.linear(&format!("self_attn.{name}_proj"), x);
            let heads = row.chunks(s.head_dim);
            match name {
                "q" | "k" if s.qwen => heads.map(|h| self.norm(&format!("self_attn.{name}_norm"), h)).collect(),
                _ => heads.map(<[f64]>::to_vec).collect(),
            }
        })
    }

    /// Queries, keys and values of the layer's inputs, and the model's decisions.
    pub fn decide(&self, x: &[Vec<f64>], rounding: Rounding) -> (Heads, Heads, Heads, Vec<Vec<f64>>) {
        let normed: Vec<Vec<f64>> = x.iter().map(|x| self.norm("input_layernorm", x)).collect();
        let (q, k, v, borrowed) = self.project(&normed, rounding);
        let decisions = match self.tiny.spec.form {
            Form::Predictor { .. } => normed.iter().map(|x| self.predicted(x)).collect(),
            _ if self.tiny.spec.adapter() => x.iter().map(|x| self.adapter(x)).collect(),
            _ => borrowed,
        };
        (q, k, v, decisions)
    }

    /// Queries, keys and values ready for attention, and the decisions read from queries.
    fn project(&self, x: &[Vec<f64>], rounding: Rounding) -> (Heads, Heads, Heads, Vec<Vec<f64>>) {
        let s = &self.tiny.spec;
        let (mut q, mut k, mut v, mut decisions) = (Heads::new(), Heads::new(), Heads::new(), Vec::new());
        for (position, x) in x.iter().enumerate() {
            let [mut qs, mut ks, mut vs] = self.heads(x);
            let (group, last) = (s.n_q_heads / s.n_kv_heads, s.head_dim - 1);
            let borrow = |qs: &mut [Vec<f64>]| qs.iter_mut().step_by(group).for_each(|h| h[last] = 0.0);
            if s.borrowed() {
                decisions.push(qs.iter().step_by(group).map(|h| h[last] * s.scale - s.offset).collect());
                borrow(&mut qs);
            }
            qs.iter_mut().chain(&mut ks).for_each(|h| rotate(h, position, s.theta));
            if s.borrowed() {
                borrow(&mut qs);
            }
            ks.iter_mut().for_each(|h| round(h, rounding));
            vs.iter_mut().for_each(|h| round_value(h, rounding));
            q.push(qs);
            k.push(ks);
            v.push(vs);
        }
        (q, k, v, decisions)
    }

    /// `[n_kv_heads][n_tokens]` who is marked once all tokens have been fed.
    fn marks(&self, decisions: &[Vec<f64>], n_tokens: usize) -> Vec<Vec<bool>> {
        let s = &self.tiny.spec;
        let mark = |head: usize, key: usize| {
            decisions.get(key + s.shift()).is_some_and(|d| d[if s.per_layer { 0 } else { head }] > 0.0)
        };
        (0..s.n_kv_heads).map(|head| (0..n_tokens).map(|key| mark(head, key)).collect()).collect()
    }

    pub fn attend(
        &self,
        query: usize,
        q: &[Vec<f64>],
        k: &Heads,
        v: &Heads,
        sees: impl Fn(usize, usize, usize) -> bool,
    ) -> Vec<f64> {
        self.attend_weighing(query, q, k, v, sees, |_, _, _| {})
    }

    /// Like [`Self::attend`]; `weight` receives the KV head, the key and its weight for a query
    /// head.
    fn attend_weighing(
        &self,
        query: usize,
        q: &[Vec<f64>],
        k: &Heads,
        v: &Heads,
        sees: impl Fn(usize, usize, usize) -> bool,
        mut weight: impl FnMut(usize, usize, f64),
    ) -> Vec<f64> {
        let s = &self.tiny.spec;
        let mut out = Vec::new();
        for (q_head, q) in q.iter().enumerate() {
            let head = q_head / (s.n_q_heads / s.n_kv_heads);
            let seen: Vec<usize> = (0..=query).filter(|&key| sees(query, key, head)).collect();
            let scores: Vec<f64> = seen.iter().map(|&key| dot(q, &k[key][head]) / (s.head_dim as f64).sqrt()).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            let mut mixed = vec![0.0; s.head_dim];
            for (&key, score) in seen.iter().zip(&scores) {
                let share = (score - max).exp() / total;
                weight(head, key, share);
                mixed.iter_mut().zip(&v[key][head]).for_each(|(m, v)| *m += share * v);
            }
            out.extend(mixed);
        }
        out
    }
}

/// `x` times the share of a standard normal below it, whose density is summed up by Simpson's rule.
fn gelu(x: f64) -> f64 {
    const STEPS: usize = 400;
    let density = |t: f64| (-0.5 * t * t).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let width = x / STEPS as f64;
    let weight = |i: usize| if i == 0 || i == STEPS { 1.0 } else { 2.0 + 2.0 * (i % 2) as f64 };
    let sum: f64 = (0..=STEPS).map(|i| weight(i) * density(i as f64 * width)).sum();
    x * (0.5 + sum * width / 3.0)
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(to: &mut [f64], x: &[f64]) {
    to.iter_mut().zip(x).for_each(|(t, x)| *t += x);
}

pub fn matvec(weight: &[f64], x: &[f64]) -> Vec<f64> {
    weight.chunks_exact(x.len()).map(|row| dot(row, x)).collect()
}

pub fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let scale = 1.0 / (dot(x, x) / x.len() as f64 + eps).sqrt();
    x.iter().zip(weight).map(|(x, w)| x * scale * w).collect()
}

/// Channel i turns together with channel i + half.
pub fn rotate(head: &mut [f64], position: usize, theta: f64) {
    let half = head.len() / 2;
    for i in 0..half {
        let angle = position as f64 * theta.powf(-(i as f64) / half as f64);
        let (a, b) = (head[i], head[i + half]);
        head[i] = a * angle.cos() - b * angle.sin();
        head[i + half] = b * angle.cos() + a * angle.sin();
    }
}

/// Like [`round`], for a row of V.
pub fn round_value(row: &mut [f64], rounding: Rounding) {
    if rounding == Rounding::K8V4 { round_v4(row) } else { round(row, rounding) }
}

pub fn round(row: &mut [f64], rounding: Rounding) {
    match rounding {
        Rounding::None => {}
        Rounding::Bf16 => row.iter_mut().for_each(|x| *x = to_bits(*x, 8, -126)),
        Rounding::Fp8 => {
            let max = row.iter().fold(0f64, |m, x| m.max(x.abs()));
            let scale = if max == 0.0 { 1.0 } else { max / 448.0 };
            row.iter_mut().for_each(|x| *x = to_bits(*x / scale, 4, -6).clamp(-448.0, 448.0) * scale);
        }
        Rounding::Int8 | Rounding::K8V4 => {
            let max = row.iter().fold(0f64, |m, x| m.max(x.abs()));
            let scale = if max == 0.0 { 1.0 } else { max / 127.0 };
            row.iter_mut().for_each(|x| *x = (*x / scale).round_ties_even() * scale);
        }
    }
}

/// Rotates a row, rounds it to 16 steps between its least and largest value, and rotates it back.
fn round_v4(row: &mut [f64]) {
    const SIGNS: [u32; 4] = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
    assert!(row.len().is_power_of_two() && row.len() <= 128);
    let sign = |i: usize| if SIGNS[i / 32] >> (i % 32) & 1 == 1 { -1.0 } else { 1.0 };
    let entry = |i: usize, j: usize| if (i & j).count_ones() % 2 == 1 { -1.0 } else { 1.0 } / (row.len() as f64).sqrt();
    let rotated = (0..row.len()).map(|i| (0..row.len()).map(|j| entry(i, j) * sign(j) * row[j]).sum());
    let mut rotated: Vec<f64> = rotated.collect();
    let least = to_bits(rotated.iter().copied().fold(f64::INFINITY, f64::min), 11, -14);
    let range = rotated.iter().copied().fold(f64::NEG_INFINITY, f64::max) - least;
    let step = to_bits((range / 15.0).max(least.abs() / 512.0).max(2f64.powi(-18)), 11, -14);
    rotated.iter_mut().for_each(|x| *x = ((*x - least) / step).round_ties_even().clamp(0.0, 15.0) * step + least);
    let back: Vec<f64> =
        (0..row.len()).map(|j| sign(j) * (0..row.len()).map(|i| entry(i, j) * rotated[i]).sum::<f64>()).collect();
    row.copy_from_slice(&back);
}

/// Rounds to `digits` binary digits, ties to even, with exponents from `least` up.
fn to_bits(x: f64, digits: i32, least: i32) -> f64 {
    if x == 0.0 {
        return 0.0;
    }
    let unit = 2f64.powi((x.abs().log2().floor() as i32).max(least) - (digits - 1));
    (x / unit).round_ties_even() * unit
}
