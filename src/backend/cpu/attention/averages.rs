//! What attention makes of rows other than the values: their weighted averages. With a layer's
//! inputs as rows they are what its values' projection is multiplied with, in the order in which
//! the model's output sees it.

use super::super::Cpu;
use super::super::simd::{maths, matmul};
use super::super::thread_pool::Tile;
use super::call::Call;

/// Query rows whose scores are in memory at once, on each thread.
const ROWS: usize = 32;

/// `[n, cols]`: for each of the `n` tokens of a step that is a sequence's first, the average of
/// the rows `x [n, cols]` by the attention that one of its query heads pays; tokens take the heads
/// in turn.
pub(super) fn averages(cpu: &Cpu, call: &Call<'_>, x: &[f32], cols: usize) -> Vec<f32> {
    let (g, span) = (call.geometry, &call.spans[0]);
    assert!(call.spans.len() == 1 && call.base(span) == 0, "averages of a sequence's first step");
    let (n, d, group, width) = (span.len, g.head_dim, g.n_q_heads / g.n_kv_heads, call.qkv.width);
    let (qkv, scale, rule) = (&call.qkv.data[span.start * width..], 1.0 / (d as f32).sqrt(), call.rule(span));
    let mut out = vec![0.0; n * cols];
    cpu.thread_pool.tiles(&mut Tile::new(&mut out, n, cols), ROWS, cols, |_, tile| {
        let (rows, stride) = (tile.row_range(), tile.row_range().end);
        let mut weights = vec![0.0; rows.len() * stride];
        for (i, weights) in rows.clone().zip(weights.chunks_exact_mut(stride)) {
            let head = i % g.n_q_heads;
            let (q, k) = (&qkv[i * width + head * d..], &qkv[(g.n_q_heads + head / group) * d..]);
            let weights = &mut weights[..=i];
            matmul::a_bt(cpu.isa, &mut Tile::new(weights, 1, i + 1), q, width, k, width, d, false);
            maths::scale(cpu.isa, weights, scale);
            if let Some(rule) = &rule {
                let hides = |key: usize| !rule.visible(i, key, call.own_mark(rule, span, key, head / group));
                weights.iter_mut().enumerate().filter(|(key, _)| hides(*key)).for_each(|(_, w)| *w = f32::NEG_INFINITY);
            }
            let sink = call.sinks.get(head).copied();
            let max = maths::max(cpu.isa, weights).max(sink.unwrap_or(f32::NEG_INFINITY));
            let sum = maths::exp_minus(cpu.isa, weights, max);
            let sum = sum + sink.map_or(0.0, |sink| f64::from(sink - max).exp());
            weights.iter_mut().for_each(|weight| *weight = (f64::from(*weight) / sum) as f32);
        }
        matmul::add_a_b(cpu.isa, tile, &weights, stride, x, cols, stride);
    });
    out
}
