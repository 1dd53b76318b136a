//! Attention of many rows: blocks of the keys that some of them see are copied in f32 and
//! multiplied by GEMM.

use super::super::simd::dots::widen;
use super::super::simd::{maths, matmul};
use super::super::thread_pool::Tile;
use super::call::Call;
use super::plan::{Group, Key, Scratch, format};
use super::weights::{EXTRA, normalize, scale, softmax, start};
use crate::policy::SlotMeta;

/// Keys copied into a block.
const BLOCK_KEYS: usize = 128;

/// Attention of one group: `out` is `[rows, head_dim]`.
pub(super) fn attend(call: &Call<'_>, group: &Group, out: &mut Tile<'_>, scratch: &mut Scratch) {
    let Scratch { queries, scores, block, keys, sides, codes, .. } = scratch;
    let (g, isa, stored) = (call.geometry, call.isa, call.stored(group));
    let (d, format) = (g.head_dim, format(g.codec));
    let rows = call.load_queries(group, queries);
    list_keys(call, group, keys);
    let (n, q_heads) = (keys.len(), rows / group.tokens.len());
    let width = n + EXTRA;
    scores.resize(rows * width, 0.0);
    scores.truncate(rows * width);
    block.resize(BLOCK_KEYS * d, 0.0);
    sides.clear();
    let mut tile = Tile::new(scores, rows, width);
    for (i, block_keys) in keys.chunks(BLOCK_KEYS).enumerate() {
        let mut scores = tile.narrow(i * BLOCK_KEYS..i * BLOCK_KEYS + block_keys.len());
        let mut scales = [1.0; BLOCK_KEYS];
        for ((key, block), k_scale) in block_keys.iter().zip(block.chunks_exact_mut(d)).zip(&mut scales) {
            let (k, [k_side, v_side]) = if key.at < stored {
                let (page, row) = (call.page(group, key.at), key.at % g.page_slots);
                (call.key_row(page, row, codes), call.layout.sides(page, row))
            } else {
                let (k, _, sides) = call.own_row(group, key.at - stored);
                (k, sides)
            };
            widen(isa, k, format, 1.0, block);
            if call.layout.has_sides() {
                *k_scale = g.codec.affine_k(k_side)[0];
                sides.push(g.codec, v_side);
            }
        }
        matmul::a_bt(isa, &mut scores, queries, d, block, d, d, false);
        if call.layout.has_sides() {
            (0..rows).for_each(|r| maths::mul(isa, scores.row_mut(r), &scales[..block_keys.len()]));
        }
        for (column, key) in block_keys.iter().enumerate() {
            let (from, to) = (key.seen.0 * q_heads, key.seen.1 * q_heads);
            (0..from).chain(to..rows).for_each(|r| scores.row_mut(r)[column] = f32::NEG_INFINITY);
        }
    }
    softmax(isa, &mut tile, n, call.sinks_of(group));
    if call.layout.has_sides() {
        scale(isa, g.codec, &mut tile, sides, 0..n);
    }
    start(out, scores, width);
    let mut sums = out.first_rows(rows);
    for (i, block_keys) in keys.chunks(BLOCK_KEYS).enumerate() {
        for (key, block) in block_keys.iter().zip(block.chunks_exact_mut(d)) {
            if key.at < stored {
                let page = call.page(group, key.at);
                widen(isa, call.value_row(page, key.at % g.page_slots, codes), format, 1.0, block);
            } else {
                widen(isa, call.own_row(group, key.at - stored).1, format, 1.0, block);
            }
        }
        matmul::add_a_b(isa, &mut sums, &scores[i * BLOCK_KEYS..], width, block, d, block_keys.len());
    }
    normalize(isa, &mut sums, scores, width);
}

/// Lists the keys that some row of the group sees, in the order of their positions.
fn list_keys(call: &Call<'_>, group: &Group, keys: &mut Vec<Key>) {
    let (g, span, stored) = (call.geometry, &call.spans[group.span], call.stored(group));
    let (base, rule) = (call.base(span), call.rule(span));
    let (first, n_tokens) = (base + group.tokens.start, group.tokens.len());
    keys.clear();
    let mut push = |at: usize, position: usize, marked: bool| {
        let from = position.saturating_sub(first).min(n_tokens);
        let last = rule.filter(|_| marked).map(|rule| rule.last_to_see(position));
        let to = last.map_or(n_tokens, |last| (last + 1).saturating_sub(first).min(n_tokens));
        if from < to {
            keys.push(Key { at, seen: (from, to) });
        }
    };
    for &slot in call.order(group) {
        let slot = slot as usize;
        let meta: SlotMeta = call.layout.meta(call.page(group, slot), slot % g.page_slots);
        let marked = rule.is_some_and(|rule| call.stored_mark(&rule, span, group.head, meta));
        push(slot, meta.position(), marked);
    }
    for token in 0..group.tokens.end {
        let marked = rule.is_some_and(|rule| call.own_mark(&rule, span, token, group.head));
        push(stored + token, base + token, marked);
    }
}
