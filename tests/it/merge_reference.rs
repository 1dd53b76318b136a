//! The tests' own form of merging: the means of whole segments before RoPE, in f64, recomputed for
//! each query.

use crate::reference::{Heads, Layer, Outcome, Rounding, add_block, matvec, rms_norm, rotate, round, round_value};
use crate::tiny::{Form, Tiny};
use dmschat::protocol::LogEntry;

/// Result of a log under a policy that merges tokens.
#[derive(Default)]
pub struct Merged {
    /// `[n_tokens][vocab]`
    pub logits: Vec<Vec<f64>>,
    /// `[n_layers][n_kv_heads]` positions of the last tokens of segments, in order.
    pub stored: Vec<Vec<Vec<usize>>>,
    /// `[n_tokens]` segments that each query saw, summed over layers and KV heads.
    pub reads: Vec<usize>,
    /// The smallest |decision|.
    pub margin: f64,
    /// Length of the longest segment.
    pub longest: usize,
}

impl From<Merged> for Outcome {
    fn from(merged: Merged) -> Self {
        let unmarked = |lane: Vec<usize>| lane.into_iter().map(|position| (position, false)).collect();
        let layer = |lanes: Vec<Vec<usize>>| lanes.into_iter().map(unmarked).collect();
        let stored = merged.stored.into_iter().map(layer).collect();
        Self { logits: merged.logits, stored, margin: merged.margin, marked: 0.0, hidden_pairs: 0 }
    }
}

/// Runs a log of tokens and toggles. `every`: segments of this many tokens instead of the model's
/// own decisions.
pub fn run_merged(tiny: &Tiny, log: &[LogEntry], every: Option<usize>, rounding: Rounding) -> Merged {
    let (mut tokens, mut merges, mut on) = (Vec::new(), Vec::new(), true);
    for entry in log {
        match *entry {
            LogEntry::Token(token) => {
                tokens.push(token as usize);
                merges.push(on);
            }
            LogEntry::Toggle { eviction } => on = eviction,
            _ => panic!("{entry:?}"),
        }
    }
    let s = &tiny.spec;
    let embed = &tiny.weights["model.embed_tokens.weight"];
    let mut x: Vec<Vec<f64>> = tokens.iter().map(|&t| embed[t * s.hidden..(t + 1) * s.hidden].to_vec()).collect();
    let mut out = Merged { reads: vec![0; x.len()], margin: f64::INFINITY, ..Merged::default() };
    for l in 0..s.n_layers {
        let layer = Layer { tiny, l };
        let rows = Rows::new(&layer, &x);
        // Begins of segments, `[n_kv_heads][n_tokens]`.
        let begins: Vec<Vec<bool>> =
            (0..s.n_kv_heads).map(|head| rows.begins(head, every, &merges, &mut out)).collect();
        let (k, v) = rows.means(&begins, rounding);
        let sees = |query: usize, key: usize, head: usize| key == query || begins[head][key + 1];
        let segments = |query: usize, head: usize| (0..=query).filter(move |&key| sees(query, key, head));
        for (query, x) in x.iter_mut().enumerate() {
            out.reads[query] += (0..s.n_kv_heads).map(|head| segments(query, head).count()).sum::<usize>();
            let mixed = layer.attend(query, &rows.q[query], &k, &v, sees);
            add_block(&layer, x, &mixed);
        }
        out.stored.push((0..s.n_kv_heads).map(|head| segments(rows.q.len() - 1, head).collect()).collect());
    }
    let head = if s.tied { embed } else { &tiny.weights["lm_head.weight"] };
    out.logits = x.iter().map(|x| matvec(head, &rms_norm(x, &tiny.weights["model.norm.weight"], s.eps))).collect();
    out
}

/// Rows of a layer: queries ready for attention, keys and values before RoPE, decisions and
/// weights.
struct Rows<'a> {
    tiny: &'a Tiny,
    q: Heads,
    k: Heads,
    v: Heads,
    /// `[n_tokens][n_kv_heads]`
    decisions: Vec<Vec<f64>>,
    weights: Vec<Vec<f64>>,
}

impl<'a> Rows<'a> {
    fn new(layer: &Layer<'a>, x: &[Vec<f64>]) -> Self {
        let s = &layer.tiny.spec;
        let (group, last) = (s.n_q_heads / s.n_kv_heads, s.head_dim - 1);
        let borrowed = if s.form == Form::Dmc { 2 } else { usize::from(s.borrowed()) };
        let mut rows = Self { tiny: layer.tiny, q: vec![], k: vec![], v: vec![], decisions: vec![], weights: vec![] };
        for (position, x) in x.iter().enumerate() {
            let [mut q, k, v] = layer.heads(&layer.norm("input_layernorm", x));
            if s.form == Form::Dmc {
                rows.decisions.push(q.chunks(group).map(|group| group[0][last] * s.scale - s.offset).collect());
                let weight = |group: &[Vec<f64>]| 1.0 / (1.0 + (-group[1][last] - 0.5).exp()) + 1.0 / 128.0;
                rows.weights.push(q.chunks(group).map(weight).collect());
            } else {
                rows.weights.push(vec![1.0; s.n_kv_heads]);
            }
            for group in q.chunks_mut(group) {
                for (i, head) in group.iter_mut().enumerate() {
                    let zero = |head: &mut Vec<f64>| {
                        if i < borrowed {
                            head[last] = 0.0
                        }
                    };
                    zero(head);
                    rotate(head, position, s.theta);
                    zero(head);
                }
            }
            rows.q.push(q);
            rows.k.push(k);
            rows.v.push(v);
        }
        rows
    }

    fn begins(&self, head: usize, every: Option<usize>, merges: &[bool], out: &mut Merged) -> Vec<bool> {
        let mut length = 0;
        let begin = |t: usize| {
            let joins = match every {
                Some(every) => !t.is_multiple_of(every),
                None => {
                    let decision = self.decisions[t][head];
                    out.margin = out.margin.min(decision.abs());
                    decision > 0.0 && length < self.tiny.spec.window
                }
            };
            let begins = t == 0 || !joins || !merges[t];
            length = if begins { 1 } else { length + 1 };
            out.longest = out.longest.max(length);
            begins
        };
        (0..merges.len()).map(begin).collect()
    }

    /// Keys and values of each token's segment up to that token: a query sees the last token of
    /// each segment, its own part of the segment that it is in, and no other.
    fn means(&self, begins: &[Vec<bool>], rounding: Rounding) -> (Heads, Heads) {
        let s = &self.tiny.spec;
        let mean = |rows: &Heads, t: usize, head: usize| -> Vec<f64> {
            let begin = (0..=t).rev().find(|&t| begins[head][t]).expect("the first token begins one");
            let total: f64 = (begin..=t).map(|t| self.weights[t][head]).sum();
            let channel = |c| (begin..=t).map(|t| self.weights[t][head] * rows[t][head][c]).sum::<f64>();
            (0..s.head_dim).map(|c| channel(c) / total).collect()
        };
        let key = |t: usize, head: usize| {
            let mut key = mean(&self.k, t, head);
            rotate(&mut key, t, s.theta);
            round(&mut key, rounding);
            key
        };
        let value = |t: usize, head: usize| {
            let mut value = mean(&self.v, t, head);
            round_value(&mut value, rounding);
            value
        };
        let all = |of: &dyn Fn(usize, usize) -> Vec<f64>| {
            (0..self.k.len()).map(|t| (0..s.n_kv_heads).map(|head| of(t, head)).collect()).collect()
        };
        (all(&key), all(&value))
    }
}
