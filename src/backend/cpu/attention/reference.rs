//! The same in plain loops, for the tests: every key decoded, every score kept.

use super::super::super::{KvTables, Span};
use super::super::{Acts, Cpu};
use crate::codec::{Place, unrotate};

pub(super) fn attend(out: &mut Acts, qkv: &Acts, decisions: &[f32], kv: &KvTables<Cpu>, layer: usize, spans: &[Span]) {
    for span in spans {
        for head in 0..kv.geometry.n_kv_heads {
            attend_lane(out, qkv, decisions, kv, layer, span, head, &|_, _| true);
        }
    }
}

/// Like [`attend`], for one lane; `reads` says whether a query head reads a stored slot.
#[allow(clippy::too_many_arguments)]
pub(super) fn attend_lane(
    out: &mut Acts,
    qkv: &Acts,
    decisions: &[f32],
    kv: &KvTables<Cpu>,
    layer: usize,
    span: &Span,
    head: usize,
    reads: &dyn Fn(usize, usize) -> bool,
) {
    let g = &kv.geometry;
    let (d, heads, group) = (g.head_dim, g.n_kv_heads, g.n_q_heads / g.n_kv_heads);
    let base = kv.seq_len[span.seq] as usize;
    let eviction = kv.eviction[span.seq] != 0;
    let decision = |i: usize| (i < span.len).then(|| decisions[(span.start + i) * heads + head]);
    let (layout, rule) = (g.page(), g.policy.rule());
    let row = g.row(layer, span.seq, head);
    let live = kv.live[row] as usize;
    // Keys: stored slots, then the step's rows.
    let mut keys = vec![0f32; (live + span.len) * d];
    let mut values = keys.clone();
    let mut metas = Vec::with_capacity(live + span.len);
    for slot in 0..live {
        let page = kv.pool.page(kv.page_table[row * g.max_pages + slot / g.page_slots]);
        let (r, [ks, vs]) = (slot % g.page_slots, layout.sides(page, slot % g.page_slots));
        let meta = layout.meta(page, r);
        let (coder, place) = (kv.coder.as_deref(), Place { layer, position: meta.position() });
        g.codec.read_k(coder, place, &page[layout.k(r)], ks, &mut keys[slot * d..(slot + 1) * d]);
        g.codec.read_v(coder, place, &page[layout.v(r)], vs, &mut values[slot * d..(slot + 1) * d]);
        let marked = rule.map_or(meta.marked(), |rule| rule.stored_mark(base, meta, decision(0)));
        metas.push((meta.position(), marked));
    }
    for i in 0..span.len {
        let x = &qkv.row(span.start + i)[(g.n_q_heads + head) * d..];
        let at = (live + i) * d;
        let (k, v) = (&mut keys[at..at + d], &mut values[at..at + d]);
        k.copy_from_slice(&x[..d]);
        v.copy_from_slice(&x[heads * d..(heads + 1) * d]);
        if let Some(coder) = &kv.coder {
            let (place, slot) = (Place { layer, position: base + i }, layout.slot);
            let (mut of_k, mut of_v) = (vec![0; slot.k_bytes], vec![0; slot.v_bytes]);
            g.codec.encode_k(k, &mut of_k);
            g.codec.encode_v(v, &mut of_v);
            coder.read_k(place, &of_k, k);
            coder.read_v(place, &of_v, v);
        }
        let marked = rule.is_some_and(|rule| rule.own_mark(base, i, decision));
        metas.push((base + i, marked));
    }
    let scale = 1.0 / (d as f32).sqrt();
    for i in 0..span.len {
        let visible = |&(position, marked): &(usize, bool)| {
            position <= base + i && rule.is_none_or(|rule| !eviction || rule.visible(base + i, position, marked))
        };
        for q_head in head * group..(head + 1) * group {
            let q = &qkv.row(span.start + i)[q_head * d..(q_head + 1) * d];
            let scores: Vec<f32> = metas
                .iter()
                .enumerate()
                .map(|(j, m)| {
                    if !visible(m) || j < live && !reads(q_head, j) {
                        return f32::NEG_INFINITY;
                    }
                    q.iter().zip(&keys[j * d..(j + 1) * d]).map(|(a, b)| a * b).sum::<f32>() * scale
                })
                .collect();
            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let o = &mut out.row_mut(span.start + i)[q_head * d..(q_head + 1) * d];
            o.fill(0.0);
            let mut sum = 0.0;
            for (j, s) in scores.iter().enumerate() {
                let p = (s - max).exp();
                sum += p;
                if p > 0.0 {
                    o.iter_mut().zip(&values[j * d..(j + 1) * d]).for_each(|(o, v)| *o += p * v);
                }
            }
            o.iter_mut().for_each(|o| *o /= sum);
            if g.codec.rotates_values() {
                unrotate(o);
            }
        }
    }
}
