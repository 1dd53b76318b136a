//! Attention of a step's rows over stored slots and the step's own rows.
//!
//! A row's result has the same bits whatever is computed beside it: one definition serves decode
//! and prefill, for any chunks, any number of threads and any order of the slots. A score is a dot
//! product with a key as it is stored, times the key's scale. Weights are
//! `exp(score - largest score)`; their sum is exact and so has no order. Values are added in the
//! order of their positions, in every form; a key that is hidden from a row has the weight 0, which
//! changes no bit.
//!
//! A *group* is the query rows of one KV head in a run of a span's tokens; its keys are read once
//! for all of them. Two forms:
//!
//! - `in_place` (decode, few rows): keys are read from their pages, values through
//!   [`super::Pool::order`];
//! - `gathered` (prefill, many rows): keys that some row sees are copied into blocks in f32 and
//!   multiplied by GEMM. Keys that no row sees cost only a look at their mark.
//!
//! `in_order` has the form for policies that place by the weights, `paged` the choice of pages.

mod averages;
mod call;
mod gathered;
mod importance;
mod in_order;
mod in_place;
mod paged;
pub(super) mod plan;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
mod weights;

use super::super::{KvTables, QkvRopeArgs, Span};
use super::device::{Acts, Cpu};
use super::kv;
use super::thread_pool::Tile;
use call::{Call, encode, fill};
pub(super) use importance::importance;
pub(super) use in_order::attend_in_order;
pub(super) use paged::count_reads;
use plan::{FEW_TOKENS, Plan, finish};

/// Attention of a step's rows, with K and V of `qkv` or of [`QkvRopeArgs::keys_of`].
#[allow(clippy::too_many_arguments)]
pub(super) fn attend(
    cpu: &Cpu,
    out: &mut Acts,
    qkv: &Acts,
    decisions: &[f32],
    kv: &mut KvTables<Cpu>,
    layer: usize,
    spans: &[Span],
    rope: &QkvRopeArgs<'_, Cpu>,
) {
    spans.iter().for_each(|span| kv::order_slots(kv, layer, span.seq));
    let kv = &*kv;
    let g = &kv.geometry.of_layer(layer);
    let sinks = rope.sinks.map_or(&[][..], |sinks| sinks);
    let (d, q_heads) = (g.head_dim, g.n_q_heads / g.n_kv_heads);
    let n = spans.iter().map(|s| s.start + s.len).max().unwrap_or(0);
    let mut plan = cpu.plan();
    fill(&mut plan, kv, g, layer, spans);
    let Plan { groups, spans: groups_of_spans, own, orders, scores, out: results } = &mut *plan;
    encode(own, cpu, rope.keys_of.unwrap_or(qkv), kv, layer, spans);
    let (isa, layout) = (cpu.isa, g.page());
    let call = Call { isa, qkv, decisions, kv, geometry: g, layout, layer, spans, own, sinks, orders };
    if let Some(observer) = cpu.observer.as_ref().filter(|_| rope.keys_of.is_none()) {
        observer.attention(&|x, cols| averages::averages(cpu, &call, x, cols));
    }
    paged::choose(cpu, &call, groups);
    let rows = groups.iter().map(|group| group.tokens.len() * q_heads).max().unwrap_or(0);
    results.resize(results.len().max(groups.len() * rows * d), 0.0);
    let mut tiles = Tile::new(results, groups.len() * rows, d);
    if let Some(keys) = in_place::shared_keys(cpu, &call, groups) {
        in_place::attend_together(cpu, &call, groups, rows, keys, scores, &mut tiles);
    } else {
        cpu.thread_pool.tiles(&mut tiles, rows.max(1), d, |worker, tile| {
            let group = &groups[tile.row_range().start / rows];
            let scratch = &mut cpu.scratch(worker).attention;
            if spans[group.span].len <= FEW_TOKENS {
                in_place::attend(&call, group, tile, scratch);
            } else {
                gathered::attend(&call, group, tile, scratch);
            }
        });
    }
    cpu.rows(out, n, |out, i| {
        let Some(s) = spans.iter().position(|s| (s.start..s.start + s.len).contains(&i)) else { return };
        let ((first, tokens), token) = (groups_of_spans[s], i - spans[s].start);
        for (head, out) in out.chunks_exact_mut(q_heads * d).enumerate() {
            let group = first + head * spans[s].len.div_ceil(tokens) + token / tokens;
            let row = group * rows + token % tokens * q_heads;
            out.copy_from_slice(&results[row * d..][..q_heads * d]);
            finish(g.codec, out, d);
        }
    });
}
