//! Attention of policies that place by scores: one token of each sequence after the other, because
//! each changes the slots that the next one sees.

use super::super::super::{KvTables, QkvRopeArgs, Span};
use super::super::kv::{order_slots, put_by_scores};
use super::super::thread_pool::Tile;
use super::super::{Acts, Cpu};
use super::call::{Call, encode};
use super::in_place;
use super::plan::{Chosen, Group, Plan, Scratch, finish};
use super::weights::{EXTRA, softmax, totals};
use crate::policy::{Scope, Scored};

#[allow(clippy::too_many_arguments)]
pub(in super::super) fn attend_in_order(
    cpu: &Cpu,
    out: &mut Acts,
    qkv: &Acts,
    decisions: &[f32],
    kv: &mut KvTables<Cpu>,
    layer: usize,
    spans: &[Span],
    rope: &QkvRopeArgs<'_, Cpu>,
) {
    assert!(rope.keys_of.is_none(), "each row changes what the next one sees");
    let sinks = rope.sinks.map_or(&[][..], |sinks| sinks);
    let Some(rule) = kv.geometry.policy.scored() else { return };
    let (g, heads) = (kv.geometry, kv.geometry.n_kv_heads);
    for span in spans.iter().filter(|s| s.len == 1) {
        let keys = (0..heads).map(|head| kv.live[g.row(layer, span.seq, head)] as u64 + 1);
        kv.reads[span.seq] += keys.sum::<u64>();
    }
    spans.iter().for_each(|span| order_slots(kv, layer, span.seq));
    encode(&mut cpu.plan().own, cpu, qkv, kv, layer, spans);
    let mut rows = Vec::with_capacity(spans.len());
    for token in 0..spans.iter().map(|s| s.len).max().unwrap_or(0) {
        rows.clear();
        let row = |s: &Span| Span { seq: s.seq, start: s.start + token, len: 1 };
        rows.extend(spans.iter().filter(|s| token < s.len).map(row));
        step(cpu, out, qkv, decisions, kv, layer, &rows, token, &rule, sinks);
    }
}

/// One token of each sequence: the `token`-th of its span.
#[allow(clippy::too_many_arguments)]
fn step(
    cpu: &Cpu,
    out: &mut Acts,
    qkv: &Acts,
    decisions: &[f32],
    kv: &mut KvTables<Cpu>,
    layer: usize,
    rows: &[Span],
    token: usize,
    rule: &Scored,
    sinks: &[f32],
) {
    let g = kv.geometry;
    let (d, heads, q_heads) = (g.head_dim, g.n_kv_heads, g.n_q_heads / g.n_kv_heads);
    let lanes = rows.iter().flat_map(|s| (0..heads).map(|head| kv.live[g.row(layer, s.seq, head)] as usize));
    // A lane's means of the values, then the weights of its slots and of the token.
    let means = q_heads * d;
    let width = means + lanes.max().unwrap_or(0) + 1;
    let mut plan = cpu.plan();
    let Plan { own, out: results, .. } = &mut *plan;
    let n = rows.len() * heads;
    results.resize(results.len().max(n * width), 0.0);
    let (isa, layout) = (cpu.isa, g.page());
    let call = Call { isa, qkv, decisions, kv, geometry: &g, layout, layer, spans: rows, own, sinks, orders: &[] };
    cpu.thread_pool.tiles(&mut Tile::new(results, n, width), 1, width, |worker, tile| {
        let lane = tile.row_range().start;
        let group = Group { span: lane / heads, head: lane % heads, tokens: 0..1, chosen: Chosen::default() };
        let (out, weights) = tile.row_mut(0).split_at_mut(means);
        let mut out = Tile::new(out, q_heads, d);
        attend_with_weights(&call, &group, &mut out, weights, &mut cpu.scratch(worker).attention);
    });
    for (span, lanes) in rows.iter().zip(results.chunks_exact_mut(heads * width)) {
        let out = out.row_mut(span.start);
        for (lane, out) in lanes.chunks_exact(width).zip(out.chunks_exact_mut(means)) {
            out.copy_from_slice(&lane[..means]);
            finish(g.codec, out, d);
        }
        if rule.scope == Scope::Layer {
            share(lanes, width, means);
        }
        let kv_row = qkv.row(span.start)[g.n_q_heads * d..].split_at(heads * d);
        let weights = lanes.chunks_exact_mut(width).map(|lane| &mut lane[means..]);
        let at = (span.seq, kv.seq_len[span.seq] as usize + token);
        put_by_scores(kv, rule, layer, at, kv_row, &decisions[span.start * heads..][..heads], weights);
    }
}

/// Attention of one row of a lane, with the weights `[live + 1]` of its keys summed over the query
/// heads.
fn attend_with_weights(call: &Call<'_>, group: &Group, out: &mut Tile<'_>, weights: &mut [f32], scratch: &mut Scratch) {
    let Scratch { queries, scores, .. } = &mut *scratch;
    let (n, rows) = (in_place::keys(call, group), call.load_queries(group, queries));
    scores.clear();
    scores.resize(rows * (n + EXTRA), 0.0);
    let mut tile = Tile::new(scores, rows, n + EXTRA);
    in_place::score(call, group, 0..n, queries, &mut tile.narrow(0..n));
    softmax(call.isa, &mut tile, n, call.sinks_of(group));
    totals(&mut tile, &mut weights[..n]);
    in_place::add_values(call, group, out, scratch);
}

/// Replaces the weights of each lane of a layer by their sum over the lanes.
fn share(lanes: &mut [f32], width: usize, means: usize) {
    let (first, others) = lanes.split_at_mut(width);
    for lane in others.chunks_exact(width) {
        first[means..].iter_mut().zip(&lane[means..]).for_each(|(sum, weight)| *sum += weight);
    }
    for lane in others.chunks_exact_mut(width) {
        lane[means..].copy_from_slice(&first[means..]);
    }
}
