//! Merging of a step's rows under a policy that merges tokens, before RoPE: the reference for
//! parallel forms of it.

use super::super::{KvTables, Span};
use super::{Acts, Cpu};
use crate::policy::{Merging, members, merge};

/// Replaces K and V of every row by the means of its slot, the row included, and the heads'
/// decisions by [`Merging::JOINS`] or [`Merging::OPENS`].
pub(super) fn merge_rows(
    qkv: &mut Acts,
    decisions: &mut [f32],
    kv: &mut KvTables<Cpu>,
    layer: usize,
    spans: &[Span],
    merging: &Merging,
) {
    let g = kv.geometry.of_layer(layer);
    let (d, heads, group, len) = (g.head_dim, g.n_kv_heads, g.n_q_heads / g.n_kv_heads, g.sums_len());
    for span in spans {
        let (base, merges) = (kv.seq_len[span.seq] as usize, kv.eviction[span.seq] != 0);
        let first = g.row(layer, span.seq, 0) * len;
        let lanes = &mut kv.sums[first..first + heads * len];
        for i in 0..span.len {
            let (q, rest) = qkv.row_mut(span.start + i).split_at_mut(g.n_q_heads * d);
            let (k, v) = rest.split_at_mut(heads * d);
            let rows = k.chunks_exact_mut(d).zip(v.chunks_exact_mut(d)).zip(lanes.chunks_exact_mut(len));
            for (head, ((k, v), sums)) in rows.enumerate() {
                let weight = match merging {
                    Merging::Pool(_) => 1.0,
                    Merging::Learned(dmc) => dmc.weight(q[(head * group + 1) * d + d - 1]),
                };
                let decision = &mut decisions[(span.start + i) * heads + head];
                let joins = merges && merging.joins(base + i, *decision, members(sums));
                merge(sums, joins, weight, k, v);
                *decision = if joins { Merging::JOINS } else { Merging::OPENS };
            }
        }
    }
}
