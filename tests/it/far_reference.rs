//! The tests' own form of the rule of far pages: in f64, token after token, with sets of positions
//! instead of a cache.

use crate::reference::{Layer, Rounding, add_block, dot, matvec, rms_norm};
use crate::tiny::Tiny;
use dmschat::policy::least_decision;
use dmschat::protocol::LogEntry;
use std::collections::BTreeSet;

/// Rows of a page.
const ROWS: usize = 32;

/// What a log gives.
pub struct Outcome {
    /// `[n_tokens][vocab]`
    pub logits: Vec<Vec<f64>>,
    /// `[n_layers][n_kv_heads]` positions in slots.
    pub stored: Vec<Vec<Vec<usize>>>,
    /// `[n_layers][n_kv_heads]` far positions in the order in which they left, and whether they are
    /// read.
    pub far: Vec<Vec<Vec<(usize, bool)>>>,
    /// Far pages of each lane that choices have made near, layer by layer.
    pub fetched: Vec<u32>,
    /// The smallest distance of a decision from its threshold, and of a score from one of a page on
    /// the other side of a choice.
    pub margin: f64,
    /// Pairs of query and key that the causal mask alone would show and the rule hides.
    pub hidden_pairs: usize,
}

/// One lane.
#[derive(Default)]
struct Lane {
    slots: BTreeSet<usize>,
    /// The last page may be filling.
    pages: Vec<(Vec<usize>, bool)>,
    fetched: u32,
}

impl Lane {
    fn leave(&mut self, positions: Vec<usize>) {
        for position in positions {
            self.slots.remove(&position);
            match self.pages.last_mut().filter(|(rows, _)| rows.len() < ROWS) {
                Some((rows, _)) => rows.push(position),
                None => self.pages.push((vec![position], true)),
            }
        }
    }

    fn sees(&self, key: usize) -> bool {
        self.slots.contains(&key) || self.pages.iter().any(|(rows, near)| *near && rows.contains(&key))
    }
}

/// The index of a page: its mean in whole sevenths of the greatest channel.
fn in_sevenths(mean: Vec<f64>) -> Vec<f64> {
    let scale = mean.iter().fold(0.0, |most: f64, x| most.max(x.abs())) / 7.0;
    mean.into_iter().map(|x| (x / scale).round() * scale).collect()
}

fn holds(rows: &[usize], pinned: &BTreeSet<usize>) -> bool {
    rows.iter().any(|row| pinned.contains(row))
}

/// Runs a log under the model's own policy, or `budget`: a window of so many slots, four of them
/// for the first tokens. A choice brings `k` pages near.
pub fn run(tiny: &Tiny, log: &[LogEntry], k: usize, budget: Option<usize>) -> Outcome {
    let s = &tiny.spec;
    let tokens: Vec<usize> = log.iter().filter_map(LogEntry::token).map(|token| token as usize).collect();
    let embed = &tiny.weights["model.embed_tokens.weight"];
    let mut x: Vec<Vec<f64>> = tokens.iter().map(|&t| embed[t * s.hidden..(t + 1) * s.hidden].to_vec()).collect();
    let mut out = Outcome {
        logits: Vec::new(),
        stored: Vec::new(),
        far: Vec::new(),
        fetched: Vec::new(),
        margin: f64::INFINITY,
        hidden_pairs: 0,
    };
    for l in 0..s.n_layers {
        let layer = Layer { tiny, l };
        let (q, keys, v, decisions) = layer.decide(&x, Rounding::None);
        let window = budget.map_or(s.window, |budget| budget - 5);
        let decision = |head: usize, key: usize| match budget {
            Some(_) => (key >= 4).then_some(1.0),
            None if key < s.sinks() => None,
            None => decisions.get(key + s.shift()).map(|d| d[if s.per_layer { 0 } else { head }]),
        };
        if budget.is_none() {
            out.margin = decisions.iter().flatten().fold(out.margin, |m, d| m.min(d.abs()));
        }
        let mut lanes: Vec<Lane> = (0..s.n_kv_heads).map(|_| Lane::default()).collect();
        // Tokens that are pinned, and those that a pin has kept in their slots for good.
        let (mut pinned, mut kept) = (BTreeSet::new(), BTreeSet::new());
        let (mut n, mut on) = (0, true);
        for entry in log {
            for (head, lane) in lanes.iter_mut().enumerate() {
                let known = |key: &usize| budget.is_some() || key + s.shift() < n;
                let outside: Vec<usize> = lane.slots.iter().copied().filter(|key| key + window + 1 < n).collect();
                let strong = |key: &usize, least: f64| {
                    known(key) && !kept.contains(key) && decision(head, *key).is_some_and(|d| d >= least)
                };
                match *entry {
                    LogEntry::Token(_) => {
                        lane.slots.insert(n);
                        out.hidden_pairs += (0..n).filter(|&key| !lane.sees(key)).count();
                    }
                    LogEntry::Toggle { eviction: true } if !on => {
                        lane.leave(outside.into_iter().filter(|key| strong(key, f64::MIN_POSITIVE)).collect());
                    }
                    LogEntry::Toggle { eviction: true } => {}
                    LogEntry::Toggle { eviction: false } => lane.pages.iter_mut().for_each(|page| page.1 = true),
                    LogEntry::Pin { pin: [from, to] } => {
                        pinned.extend(from as usize..to as usize);
                        kept.extend(from as usize..to as usize);
                        lane.pages.iter_mut().for_each(|page| page.1 |= holds(&page.0, &pinned));
                    }
                    LogEntry::Unpin { unpin: [from, to] } => {
                        pinned.retain(|t| !(from as usize..to as usize).contains(t))
                    }
                    LogEntry::Forget { forget } => {
                        let least = f64::from(least_decision(forget.into()));
                        for key in &outside {
                            let d = decision(head, *key).unwrap_or(f64::INFINITY);
                            out.margin = out.margin.min((d - least).abs());
                        }
                        lane.leave(outside.into_iter().filter(|key| strong(key, least)).collect());
                    }
                    LogEntry::Drop { drop: [from, to] } => {
                        let dropped = from as usize..(to as usize).min(n - 1);
                        lane.leave(lane.slots.iter().copied().filter(|key| dropped.contains(key)).collect());
                    }
                    LogEntry::Choose { choose } => {
                        let group = s.n_q_heads / s.n_kv_heads;
                        let newest = n - n.min(choose.into())..n;
                        let full = lane.pages.iter().filter(|(rows, _)| rows.len() == ROWS);
                        let scores: Vec<f64> = full
                            .map(|(rows, _)| {
                                let mean: Vec<f64> = (0..s.head_dim)
                                    .map(|c| rows.iter().map(|&t| keys[t][head][c]).sum::<f64>() / ROWS as f64)
                                    .collect();
                                let mean = in_sevenths(mean);
                                let queries = newest.clone().flat_map(|t| &q[t][head * group..(head + 1) * group]);
                                queries.map(|q| dot(q, &mean)).fold(f64::NEG_INFINITY, f64::max)
                            })
                            .collect();
                        let better = |a: usize, b: usize| scores[b] > scores[a] || scores[b] == scores[a] && b < a;
                        for (page, score) in scores.iter().enumerate() {
                            let rank = (0..scores.len()).filter(|&other| better(page, other)).count();
                            let is_near = rank < k || !on || holds(&lane.pages[page].0, &pinned);
                            lane.fetched += u32::from(is_near && !lane.pages[page].1);
                            lane.pages[page].1 = is_near;
                            if rank + 1 == k || rank == k {
                                let others = scores.iter().enumerate().filter(|(other, _)| *other != page);
                                out.margin = others.fold(out.margin, |m, (_, other)| m.min((score - other).abs()));
                            }
                        }
                    }
                    LogEntry::DropFar { drop_far } => {
                        let goes = |rows: &[usize]| rows.len() == ROWS && rows.iter().all(|&t| t < drop_far as usize);
                        lane.pages.retain(|(rows, _)| !goes(rows));
                    }
                    _ => panic!("not in these logs: {entry:?}"),
                }
            }
            match *entry {
                LogEntry::Token(_) => {
                    let sees = |_, key, head: usize| lanes[head].sees(key);
                    let mixed = layer.attend(n, &q[n], &keys, &v, sees);
                    add_block(&layer, &mut x[n], &mixed);
                    n += 1;
                    for (head, lane) in lanes.iter_mut().enumerate() {
                        let leaving = n.checked_sub(window + 2).filter(|key| on && lane.slots.contains(key));
                        let marked = |key: &usize| !kept.contains(key) && decision(head, *key).is_some_and(|d| d > 0.0);
                        lane.leave(leaving.filter(marked).into_iter().collect());
                    }
                }
                LogEntry::Toggle { eviction } => on = eviction,
                _ => {}
            }
        }
        let read = |lane: &Lane| lane.pages.iter().flat_map(|(rows, near)| rows.iter().map(|&t| (t, *near))).collect();
        out.stored.push(lanes.iter().map(|lane| lane.slots.iter().copied().collect()).collect());
        out.far.push(lanes.iter().map(read).collect());
        out.fetched.extend(lanes.iter().map(|lane| lane.fetched));
    }
    let head = if s.tied { embed } else { &tiny.weights["lm_head.weight"] };
    out.logits = x.iter().map(|x| matvec(head, &rms_norm(x, &tiny.weights["model.norm.weight"], s.eps))).collect();
    out
}
