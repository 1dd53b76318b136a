//! Query and key rows after their projections: per-head norms, eviction decisions, merging, RoPE.

use super::super::{Borrowed, KvGeometry, KvTables, QkvRopeArgs, Span};
use super::kv::positions;
use super::simd::maths;
use super::{Acts, Cpu, merge, predictor};

pub(super) fn qkv_rope(
    cpu: &Cpu,
    qkv: &mut Acts,
    decisions: &mut [f32],
    kv: &mut KvTables<Cpu>,
    layer: usize,
    spans: &[Span],
    args: &QkvRopeArgs<'_, Cpu>,
) {
    let g = kv.geometry.of_layer(layer);
    let (d, group) = (g.head_dim, g.n_q_heads / g.n_kv_heads);
    let n = spans.iter().map(|s| s.start + s.len).max().unwrap_or(0);
    norm_heads(cpu, qkv, &g, args, n);
    if args.keys_of.is_some() {
        return rotate_heads(cpu, qkv, &g, args, positions(kv, spans).into_iter());
    }
    if let Some(Borrowed { alpha, .. }) = args.borrowed {
        for (i, decisions) in decisions.chunks_exact_mut(g.n_kv_heads).enumerate().take(n) {
            for (h, decision) in decisions.iter_mut().enumerate() {
                let from = if alpha.per_layer { 0 } else { h };
                *decision = qkv.row(i)[from * group * d + d - 1] * alpha.scale - alpha.offset;
            }
        }
    }
    if let Some(predictor) = &args.predictor {
        predictor::decide(cpu, &mut decisions[..n * g.n_kv_heads], g.n_kv_heads, qkv, predictor);
    }
    let pinned = if g.layer(layer).decides() { &kv.pinned[..n] } else { &[][..] };
    for (decisions, _) in decisions.chunks_exact_mut(g.n_kv_heads).zip(pinned).filter(|(_, pinned)| **pinned != 0) {
        decisions.fill(f32::NEG_INFINITY);
    }
    if let Some(merging) = g.policy.merging() {
        merge::merge_rows(qkv, decisions, kv, layer, spans, &merging);
    }
    rotate_heads(cpu, qkv, &g, args, positions(kv, spans).into_iter());
}

/// Heads of q, and of k where the rows have it.
fn heads(g: &KvGeometry, args: &QkvRopeArgs<'_, Cpu>) -> usize {
    g.n_q_heads + if args.keys_of.is_none() { g.n_kv_heads } else { 0 }
}

/// Applies the RMSNorm of each head of q and k, if the model has one, and of v.
pub(super) fn norm_heads(cpu: &Cpu, qkv: &mut Acts, g: &KvGeometry, args: &QkvRopeArgs<'_, Cpu>, n: usize) {
    let Some([q_norm, k_norm]) = args.qk_norm else { return };
    let (d, qk) = (g.head_dim, heads(g, args));
    let ones = vec![1.0; if args.v_norm { d } else { 0 }];
    let normed = qk + if args.v_norm { qk - g.n_q_heads } else { 0 };
    cpu.rows(qkv, n, |row, _| {
        for (h, head) in row[..normed * d].chunks_exact_mut(d).enumerate() {
            let weight = match h {
                _ if h < g.n_q_heads => q_norm,
                _ if h < qk => k_norm,
                _ => &ones,
            };
            maths::rms_norm_in_place(cpu.isa, head, weight, args.rms_eps);
        }
    });
}

/// Applies RoPE to q and k of rows at these positions, and the growth of q. RoPE mixes pairs of
/// channels, so borrowed channels are zeroed before it and again after it.
pub(super) fn rotate_heads(
    cpu: &Cpu,
    qkv: &mut Acts,
    g: &KvGeometry,
    args: &QkvRopeArgs<'_, Cpu>,
    positions: impl ExactSizeIterator<Item = usize> + Clone,
) {
    let (d, group, n) = (g.head_dim, g.n_q_heads / g.n_kv_heads, positions.len());
    let (q_width, qk_width) = (g.n_q_heads * d, heads(g, args) * d);
    let mut angles = cpu.angles();
    let half = args.inv_freq.len();
    if half > 0 {
        angles.update(positions.clone(), args.inv_freq, args.rope_scale);
    }
    let (cos, sin) = (&angles.cos, &angles.sin);
    let borrowed_heads = args.borrowed.unwrap_or_default().heads;
    let growth = args.growth.map(|growth| positions.clone().map(|at| growth.at(at)).collect::<Vec<_>>());
    cpu.rows(qkv, n, |row, i| {
        zero_borrowed(&mut row[..q_width], d, group, borrowed_heads);
        for head in row[..qk_width].chunks_exact_mut(d).filter(|_| half > 0) {
            maths::rotate(
                cpu.isa,
                &mut head[..2 * half],
                &cos[i * half..(i + 1) * half],
                &sin[i * half..(i + 1) * half],
            );
        }
        zero_borrowed(&mut row[..q_width], d, group, borrowed_heads);
        if let Some(growth) = &growth {
            maths::scale(cpu.isa, &mut row[..q_width], growth[i]);
        }
    });
}

/// Zeroes the last channel of the first `heads` query heads of each KV head.
fn zero_borrowed(q: &mut [f32], d: usize, group: usize, heads: usize) {
    for group in q.chunks_exact_mut(group * d) {
        group.chunks_exact_mut(d).take(heads).for_each(|head| head[d - 1] = 0.0);
    }
}
