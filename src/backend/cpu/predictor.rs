//! Decisions of a predictor from the columns that its maps have in projected rows.

use super::super::Predictor;
use super::simd::maths;
use super::thread_pool::Tile;
use super::{Acts, Cpu};

/// Values of hidden units from which on rows are shared among threads.
const ALONE: usize = 4096;

/// Writes decisions `[n, heads]` of the first rows.
pub(super) fn decide(cpu: &Cpu, decisions: &mut [f32], heads: usize, qkv: &Acts, predictor: &Predictor<'_, Cpu>) {
    let (n, columns, alpha) = (decisions.len() / heads, predictor.columns, predictor.alpha);
    let rows = predictor.own.unwrap_or(qkv);
    let at = rows.width - columns.width();
    let share = if n * columns.units <= ALONE { n } else { n.div_ceil(4 * cpu.threads()) };
    cpu.thread_pool.tiles(&mut Tile::new(decisions, n, heads), share.max(1), heads, |_, tile| {
        let mut units = vec![0.0; columns.units];
        for i in 0..tile.rows() {
            let row = &rows.row(tile.row_range().start + i)[at..];
            let column = |c: usize| (0..columns.copies).map(|copy| row[copy * columns.stride + c]).sum::<f32>();
            let first_unit = if columns.linear { heads } else { 0 };
            let activate = |units: &mut [f32]| match predictor.mlp.as_ref().is_some_and(|mlp| mlp.silu) {
                true => maths::silu(cpu.isa, units),
                false => units.iter_mut().for_each(|unit| *unit = gelu(*unit)),
            };
            units.iter_mut().enumerate().for_each(|(u, unit)| *unit = column(first_unit + u));
            activate(&mut units);
            if let Some([weight, bias]) = predictor.mlp.as_ref().and_then(|mlp| mlp.middle) {
                let below = units.clone();
                for ((unit, bias), weights) in units.iter_mut().zip(bias).zip(weight.chunks_exact(below.len())) {
                    *unit = bias + below.iter().zip(weights).map(|(x, w)| x * w).sum::<f32>();
                }
                activate(&mut units);
            }
            for (h, decision) in tile.row_mut(i).iter_mut().enumerate() {
                let from = if alpha.per_layer { 0 } else { h };
                let linear = if columns.linear { column(from) } else { 0.0 };
                let score = linear
                    + predictor.mlp.as_ref().map_or(0.0, |mlp| {
                        let weights = &mlp.weight[from * columns.units..][..columns.units];
                        mlp.bias[from] + units.iter().zip(weights).map(|(x, w)| x * w).sum::<f32>()
                    });
                *decision = score * alpha.scale - alpha.offset;
            }
        }
    });
}

/// The exact form, with the error function.
fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2))
}
