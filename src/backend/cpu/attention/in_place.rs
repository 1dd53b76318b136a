//! Attention of few rows: keys and values are read from their pages.

use super::super::super::Span;
use super::super::Cpu;
use super::super::simd::dots::{Rows, Slots, dots, fetch, weighted_sum, weighted_sum_of_slots};
use super::super::simd::maths;
use super::super::thread_pool::Tile;
use super::call::{Call, unpack_v, unpacked};
use super::plan::{FEW_TOKENS, Group, Scratch, format};
use super::weights::{EXTRA, Sides, normalize, scale, softmax, start};
use crate::policy::Dms;
use std::ops::Range;

/// Stored slots from which the threads share the keys of a group, and keys of a task then.
const SHARED_SLOTS: usize = 512;
const TASK_KEYS: usize = 256;
/// Columns of values of a task, a multiple of all vectors.
const TASK_COLS: usize = 32;

/// Attention of one group: `out` is `[rows, head_dim]`.
pub(super) fn attend(call: &Call<'_>, group: &Group, out: &mut Tile<'_>, scratch: &mut Scratch) {
    let Scratch { queries, scores, .. } = &mut *scratch;
    let rows = call.load_queries(group, queries);
    let n = keys(call, group);
    scores.clear();
    scores.resize(rows * (n + EXTRA), 0.0);
    let mut tile = Tile::new(scores, rows, n + EXTRA);
    score(call, group, 0..n, queries, &mut tile.narrow(0..n));
    softmax(call.isa, &mut tile, n, call.sinks_of(group));
    add_values(call, group, out, scratch);
}

/// Adds the values of a group by the weights in `scratch.scores`.
pub(super) fn add_values(call: &Call<'_>, group: &Group, out: &mut Tile<'_>, scratch: &mut Scratch) {
    let Scratch { scores, sides, codes, order, .. } = scratch;
    let width = keys(call, group) + EXTRA;
    let rows = scores.len() / width;
    let mut tile = Tile::new(scores, rows, width);
    scale_weights(call, group, &mut tile, sides);
    values(call, group, 0..call.geometry.head_dim, scores, width, out, codes, order);
}

/// Keys of a group: stored slots, then the step's own tokens.
pub(super) fn keys(call: &Call<'_>, group: &Group) -> usize {
    call.stored(group) + group.tokens.end
}

/// The keys of the largest group, if all groups are of few rows and there are too few of them for
/// all threads.
pub(super) fn shared_keys(cpu: &Cpu, call: &Call<'_>, groups: &[Group]) -> Option<usize> {
    let few = cpu.threads() > 1 && groups.len() < 8 * cpu.threads();
    let in_place = call.spans.iter().all(|span| span.len <= FEW_TOKENS);
    // Unpacking V takes longer than waiting.
    let whole_bytes = !call.geometry.codec.packs_values();
    let most = groups.iter().map(|group| keys(call, group)).max()?;
    (few && in_place && whole_bytes && most >= SHARED_SLOTS).then_some(most)
}

/// Attention of all groups, whose keys and columns the threads share. `out` is
/// `[groups, rows, head_dim]`; `rows` and `most_keys` belong to the largest group.
pub(super) fn attend_together(
    cpu: &Cpu,
    call: &Call<'_>,
    groups: &[Group],
    rows: usize,
    most_keys: usize,
    scores: &mut Vec<f32>,
    out: &mut Tile<'_>,
) {
    let (width, q_heads) = (most_keys + EXTRA, call.geometry.n_q_heads / call.geometry.n_kv_heads);
    let rows_of = |group: &Group| group.tokens.len() * q_heads;
    scores.resize(scores.len().max(groups.len() * rows * width), 0.0);
    let scores = &mut scores[..groups.len() * rows * width];
    let mut all = Tile::new(scores, groups.len() * rows, width);
    cpu.thread_pool.tiles(&mut all.narrow(0..most_keys), rows, TASK_KEYS, |worker, tile| {
        let (group, columns) = (&groups[tile.row_range().start / rows], tile.col_range());
        let columns = columns.start..columns.end.min(keys(call, group));
        if !columns.is_empty() {
            let queries = &mut cpu.scratch(worker).attention.queries;
            call.load_queries(group, queries);
            let mut tile = tile.first_rows(rows_of(group));
            score(call, group, columns.clone(), queries, &mut tile.narrow(0..columns.len()));
        }
    });
    cpu.thread_pool.tiles(&mut all, rows, width, |worker, tile| {
        let group = &groups[tile.row_range().start / rows];
        let mut tile = tile.first_rows(rows_of(group));
        softmax(call.isa, &mut tile, keys(call, group), call.sinks_of(group));
        scale_weights(call, group, &mut tile, &mut cpu.scratch(worker).attention.sides);
    });
    cpu.thread_pool.tiles(out, rows, TASK_COLS, |worker, tile| {
        let (group, columns) = (&groups[tile.row_range().start / rows], tile.col_range());
        let Scratch { codes, order, .. } = &mut cpu.scratch(worker).attention;
        let scores = &scores[tile.row_range().start * width..][..rows_of(group) * width];
        values(call, group, columns, scores, width, &mut tile.first_rows(rows_of(group)), codes, order);
    });
}

/// Writes the scores of the keys `columns`, which begin with a page or after the stored slots.
pub(super) fn score(call: &Call<'_>, group: &Group, columns: Range<usize>, queries: &[f32], scores: &mut Tile<'_>) {
    let n = call.stored(group);
    let stored = columns.start..columns.end.min(n).max(columns.start);
    score_pages(call, group, stored.clone(), queries, &mut scores.narrow(0..stored.len()));
    for key in stored.end..columns.end {
        score_own(call, group, key - n, queries, &mut scores.narrow(key - columns.start..key - columns.start + 1));
    }
}

fn score_pages(call: &Call<'_>, group: &Group, slots: Range<usize>, queries: &[f32], scores: &mut Tile<'_>) {
    let (g, layout, isa) = (call.geometry, call.layout, call.isa);
    let mut unpacked_keys = Vec::new();
    for first in slots.clone().step_by(g.page_slots) {
        let (next, at) = (first + g.page_slots, first - slots.start);
        let mut scores = scores.narrow(at..slots.len().min(at + g.page_slots));
        if group.chosen.skips(first / g.page_slots) {
            (0..scores.rows()).for_each(|r| scores.row_mut(r).fill(f32::NEG_INFINITY));
            continue;
        }
        let (page, rows) = call.rows_of(group, first);
        let n = scores.cols();
        if rows < n {
            (0..scores.rows()).for_each(|r| scores.row_mut(r)[rows..].fill(f32::NEG_INFINITY));
        }
        let mut scores = scores.narrow(0..n.min(rows));
        let next = if next < slots.end { call.page(group, next) } else { call.page(group, slots.start) };
        // K and V of a page are adjacent: prefetch V now, though it is needed later.
        fetch(&page[layout.v_rows()]);
        let keys = call.key_rows(page, scores.cols(), &mut unpacked_keys);
        let keys = Rows::new(keys, format(g.codec), g.head_dim).slice(0..scores.cols());
        dots(isa, keys.then(&next[layout.k_rows()]), queries, &mut scores);
        if layout.has_sides() {
            let scales: &[f32] = bytemuck::cast_slice(layout.all_sides(page)[0]);
            let n = scores.cols();
            (0..scores.rows()).for_each(|r| maths::mul(isa, scores.row_mut(r), &scales[..n]));
        }
        group.chosen.hide(first / g.page_slots, &mut scores);
        hide_evicted(call, group, page, &mut scores);
    }
}

/// Masks in the scores of a page's slots the keys that eviction hides from each row.
fn hide_evicted(call: &Call<'_>, group: &Group, page: &[u8], scores: &mut Tile<'_>) {
    let span = &call.spans[group.span];
    let Some(rule) = call.rule(span) else { return };
    let q_heads = scores.rows() / group.tokens.len();
    for slot in 0..scores.cols() {
        let meta = call.layout.meta(page, slot);
        if !call.stored_mark(&rule, span, group.head, meta) {
            continue;
        }
        for (r, token) in group.tokens.clone().enumerate() {
            if !rule.visible(call.base(span) + token, meta.position(), true) {
                (r * q_heads..(r + 1) * q_heads).for_each(|r| scores.row_mut(r)[slot] = f32::NEG_INFINITY);
            }
        }
    }
}

/// Writes the scores of the step's token `key` of the span.
fn score_own(call: &Call<'_>, group: &Group, key: usize, queries: &[f32], scores: &mut Tile<'_>) {
    let (g, span): (_, &Span) = (call.geometry, &call.spans[group.span]);
    let (k, _, [side, _]) = call.own_row(group, key);
    dots(call.isa, Rows::new(k, format(g.codec), g.head_dim), queries, scores);
    let rule = call.rule(span);
    let hidden = |rule: &Dms, query| !rule.visible(query, key, call.own_mark(rule, span, key, group.head));
    let q_heads = scores.rows() / group.tokens.len();
    for r in 0..scores.rows() {
        let (query, score) = (group.tokens.start + r / q_heads, &mut scores.row_mut(r)[0]);
        if key > query || rule.as_ref().is_some_and(|rule| hidden(rule, query)) {
            *score = f32::NEG_INFINITY;
        } else if call.layout.has_sides() {
            *score *= g.codec.affine_k(side)[0];
        }
    }
}

/// Multiplies weights by the scales of the values.
fn scale_weights(call: &Call<'_>, group: &Group, scores: &mut Tile<'_>, sides: &mut Sides) {
    if !call.layout.has_sides() {
        return;
    }
    let (g, n) = (call.geometry, call.stored(group));
    sides.clear();
    for first in (0..n).step_by(g.page_slots) {
        let (page, rows) = call.rows_of(group, first);
        let stored = call.layout.all_sides(page)[1].iter().take(rows).copied().chain(std::iter::repeat(0));
        stored.take(g.page_slots.min(n - first)).for_each(|side| sides.push(g.codec, side));
    }
    (0..group.tokens.end).for_each(|token| sides.push(g.codec, call.own_row(group, token).2[1]));
    let in_order = call.order(group).iter().map(|&key| key as usize).chain(n..n + group.tokens.end);
    scale(call.isa, g.codec, scores, sides, in_order);
}

/// Writes `columns` of the weighted means of the values to `out [rows, columns]`. `scores` has rows
/// of `width`.
#[allow(clippy::too_many_arguments)]
fn values(
    call: &Call<'_>,
    group: &Group,
    columns: Range<usize>,
    scores: &[f32],
    width: usize,
    out: &mut Tile<'_>,
    codes: &mut Vec<f32>,
    order: &mut Vec<u32>,
) {
    let (g, layout, n) = (call.geometry, call.layout, call.stored(group));
    let (size, d) = (format(g.codec).size_bytes(), g.head_dim);
    let bytes = columns.start * size..columns.end * size;
    start(out, scores, width);
    let mut out = out.first_rows(scores.len() / width);
    let stored = (0..n).step_by(g.page_slots).map(|first| call.page(group, first));
    let pages: Vec<&[u8]> = if g.codec.packs_values() {
        let codes = unpacked(codes, n.next_multiple_of(g.page_slots) * d * size);
        for (first, rows) in (0..n).step_by(g.page_slots).zip(codes.chunks_exact_mut(g.page_slots * d * size)) {
            let (page, used) = call.rows_of(group, first);
            for (row, out) in rows.chunks_exact_mut(d * size).enumerate().take(used) {
                unpack_v(call.kv, call.place(page, row), &page[layout.v(row)], out);
            }
        }
        codes.chunks_exact(g.page_slots * d * size).map(|page| &page[bytes.start..]).collect()
    } else {
        stored.map(|page| &page[layout.v_rows()][bytes.start..]).collect()
    };
    let mut in_order = call.order(group);
    if group.chosen.is_choice() {
        order.clear();
        order.extend(in_order.iter().filter(|&&slot| !group.chosen.skips(slot as usize / g.page_slots)));
        in_order = order;
    }
    let slots = Slots { pages: &pages, page_slots: g.page_slots, format: format(g.codec), row_bytes: d * size };
    weighted_sum_of_slots(call.isa, slots, in_order, scores, width, &mut out);
    for token in 0..group.tokens.end {
        let v = Rows::new(&call.own_row(group, token).1[bytes.clone()], format(g.codec), columns.len());
        weighted_sum(call.isa, v, &scores[n + token..], width, &mut out);
    }
    normalize(call.isa, &mut out, scores, width);
}
