//! Attention of policies that place by the attention weights: one token of each sequence after the other, because each
//! changes the slots that the next one sees.

use super::super::super::{KvTables, Span};
use super::super::kv::put_by_scores;
use super::super::simd::Format;
use super::super::simd::dots::{Rows, dots};
use super::super::thread_pool::Tile;
use super::super::{Acts, Cpu};
use super::softmax::OnlineSoftmax;
use super::{Call, Chosen, Group, Scratch, add_values, finish, score_pages};
use crate::policy::{Scope, Scored};

pub(in super::super) fn attend_in_order(
    cpu: &Cpu,
    out: &mut Acts,
    qkv: &Acts,
    kv: &mut KvTables<Cpu>,
    layer: usize,
    spans: &[Span],
) {
    let Some(rule) = kv.geometry.policy.scored() else { return };
    let (g, heads) = (kv.geometry, kv.geometry.n_kv_heads);
    for span in spans.iter().filter(|s| s.len == 1) {
        let keys = (0..heads).map(|head| kv.live[g.row(layer, span.seq, head)] as u64 + 1);
        kv.reads[span.seq] += keys.sum::<u64>();
    }
    let mut rows = Vec::with_capacity(spans.len());
    for token in 0..spans.iter().map(|s| s.len).max().unwrap_or(0) {
        rows.clear();
        let row = |s: &Span| Span { seq: s.seq, start: s.start + token, len: 1 };
        rows.extend(spans.iter().filter(|s| token < s.len).map(row));
        step(cpu, out, qkv, kv, layer, &rows, token, &rule);
    }
}

/// One token of each sequence: the `token`-th of its span.
#[allow(clippy::too_many_arguments)]
fn step(
    cpu: &Cpu,
    out: &mut Acts,
    qkv: &Acts,
    kv: &mut KvTables<Cpu>,
    layer: usize,
    rows: &[Span],
    token: usize,
    rule: &Scored,
) {
    let g = kv.geometry;
    let (d, heads, q_heads) = (g.head_dim, g.n_kv_heads, g.n_q_heads / g.n_kv_heads);
    let lanes = rows.iter().flat_map(|s| (0..heads).map(|head| kv.live[g.row(layer, s.seq, head)] as usize));
    // A lane's online softmax, then the weights of its slots and of the token.
    let state = OnlineSoftmax::len(q_heads, d);
    let width = state + lanes.max().unwrap_or(0) + 1;
    let mut plan = cpu.plan();
    let (partials, n) = (&mut plan.partials, rows.len() * heads);
    if partials.len() < n * width {
        partials.resize(n * width, 0.0);
    }
    let call = Call::new(cpu, qkv, &[], kv, layer, rows);
    cpu.thread_pool.tiles(&mut Tile::new(partials, n, width), 1, width, |worker, tile| {
        let lane = tile.row_range().start;
        let (span, head) = (lane / heads, lane % heads);
        let group = Group { span, head, tokens: 0..1, splits: 0..1, chosen: Chosen::default() };
        let (state, weights) = tile.row_mut(0).split_at_mut(state);
        attend_with_weights(&call, &group, state, weights, &mut cpu.scratch(worker).attention);
    });
    for (span, lanes) in rows.iter().zip(partials.chunks_exact_mut(heads * width)) {
        let out = out.row_mut(span.start);
        for (head, lane) in lanes.chunks_exact(width).enumerate() {
            for q in 0..q_heads {
                let out = &mut out[(head * q_heads + q) * d..][..d];
                finish(cpu.isa, g.codec, out, &lane[..state], state, q_heads, q);
            }
        }
        if rule.scope == Scope::Layer {
            share(lanes, width, state);
        }
        let kv_row = qkv.row(span.start)[g.n_q_heads * d..].split_at(heads * d);
        let weights = lanes.chunks_exact_mut(width).map(|lane| &mut lane[state..]);
        put_by_scores(kv, rule, layer, span.seq, kv.seq_len[span.seq] as usize + token, kv_row, weights);
    }
}

/// Attention of one row of a lane, with the weights `[live + 1]` of its keys summed over the query heads.
fn attend_with_weights(call: &Call<'_>, group: &Group, state: &mut [f32], weights: &mut [f32], scratch: &mut Scratch) {
    let (span, d, isa) = (&call.spans[group.span], call.geometry.head_dim, call.isa);
    let (live, rows) = (call.live(span, group.head), call.load_queries(group, scratch));
    let (n, mut softmax) = (live + 1, OnlineSoftmax::start(state, rows, d));
    scratch.scores.clear();
    scratch.scores.resize(rows * n, 0.0);
    score_pages(call, group, 0..live, n, scratch);
    let row = |of| Rows::new(bytemuck::cast_slice(of), Format::F32, d);
    let (k, v) = call.own_row(span, 0, group.head);
    dots(isa, row(k), &scratch.queries, &mut Tile::new(&mut scratch.scores, rows, n).narrow(live..n));
    softmax.rescale(isa, &mut scratch.scores);
    weights[..n].fill(0.0);
    for (scores, sum) in scratch.scores.chunks_exact(n).zip(softmax.sums()) {
        weights.iter_mut().zip(scores).for_each(|(weight, score)| *weight += score / sum);
    }
    add_values(call, group, 0..live, n, live, &mut softmax, scratch);
    softmax.add_stored(isa, &scratch.scores[live..], n, row(v));
}

/// Replaces the weights of each lane of a layer by their sum over the lanes.
fn share(lanes: &mut [f32], width: usize, state: usize) {
    let (first, others) = lanes.split_at_mut(width);
    for lane in others.chunks_exact(width) {
        first[state..].iter_mut().zip(&lane[state..]).for_each(|(sum, weight)| *sum += weight);
    }
    for lane in others.chunks_exact_mut(width) {
        lane[state..].copy_from_slice(&first[state..]);
    }
}
