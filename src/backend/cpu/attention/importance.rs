//! Attention of chosen queries of a sequence: column maxima of dense attention, over tiles of rows.

use super::super::simd::{maths, matmul};
use super::super::thread_pool::Tile;
use super::super::{Acts, Cpu, rope};
use crate::backend::{KvGeometry, QkvRopeArgs, Queries};

/// Query rows whose scores are in memory at once, on each thread.
const ROWS: usize = 32;

/// [`Measure::importance`](crate::backend::Measure::importance). A thread computes whole heads.
pub(in super::super) fn importance(
    cpu: &Cpu,
    out: &mut [f32],
    qkv: &mut Acts,
    g: &KvGeometry,
    args: &QkvRopeArgs<'_, Cpu>,
    queries: &Queries<'_>,
) {
    assert_eq!(queries.rows.len(), queries.factors.len(), "a factor for each query");
    let n = queries.rows.end;
    rope::norm_heads(cpu, qkv, g, args, n);
    rope::rotate_heads(cpu, qkv, g, args, 0..n);
    let (d, tokens) = (g.head_dim, out.len() / g.n_q_heads);
    let (qkv, scale) = (&*qkv, 1.0 / (d as f32).sqrt());
    out.fill(0.0);
    cpu.thread_pool.tiles(&mut Tile::new(out, g.n_q_heads, tokens), 1, tokens, |_, tile| {
        let head = tile.row_range().start;
        let (q_at, k_at) = (head * d, (g.n_q_heads + head / (g.n_q_heads / g.n_kv_heads)) * d);
        let mut scores = vec![0.0; ROWS * n];
        for first in queries.rows.clone().step_by(ROWS) {
            let rows = first..n.min(first + ROWS);
            let (q, k) = (&qkv.data[first * qkv.width + q_at..], &qkv.data[k_at..]);
            let mut products = Tile::new(&mut scores, rows.len(), rows.end);
            matmul::a_bt(cpu.isa, &mut products, q, qkv.width, k, qkv.width, d, false);
            for (row, scores) in rows.clone().zip(scores.chunks_exact_mut(rows.end)) {
                let weights = &mut scores[..=row];
                maths::scale(cpu.isa, weights, scale);
                let sink = args.sinks.map(|sinks| sinks[head]);
                let max = maths::max(cpu.isa, weights).max(sink.unwrap_or(f32::NEG_INFINITY));
                let sum = maths::exp_minus(cpu.isa, weights, max);
                let sum = sum + sink.map_or(0.0, |sink| f64::from(sink - max).exp());
                let factor = (f64::from(queries.factors[row - queries.rows.start]) / sum) as f32;
                let most = tile.row_mut(0).iter_mut().zip(weights);
                most.for_each(|(most, weight)| *most = most.max(*weight * factor));
            }
        }
    });
}
