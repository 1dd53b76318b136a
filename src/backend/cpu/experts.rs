//! Mixtures of experts: each expert's rows are gathered and multiplied by the GEMMs of dense
//! layers.
//!
//! A row's result does not depend on the rows beside it: GEMM rows do not, and a row's experts are
//! summed in the order of their probability.

use super::super::{Beside, ExpertsArgs};
use super::simd::maths;
use super::{Acts, Cpu, linear};
use std::ops::Range;

/// [`Ops::experts`](super::super::Ops::experts)
pub(super) fn experts(cpu: &Cpu, x: &mut Acts, h: &Acts, args: ExpertsArgs<'_, Cpu>, n: usize) {
    let ExpertsArgs { router, gate_up, down, per_token, normalized, shared, clamped, beside, rows, .. } = args;
    let (count, k) = (router.rows(), per_token + usize::from(shared));
    let pairs = n * k;
    let router_input = beside.as_ref().map_or(h, |beside| beside.router_input);
    cpu.multiply(&mut rows.logits, router_input, router, args.router_bias, n);
    for i in 0..n {
        let (chosen, weights) = (&mut rows.chosen[i * k..][..k], &mut rows.weights[i * k..][..k]);
        let mut logits = rows.logits.row_mut(i);
        if shared {
            let (last, others) = logits.split_last_mut().expect("a router has rows");
            (chosen[per_token], weights[per_token]) = (count as i32 - 1, 1.0 / (1.0 + (-*last).exp()));
            logits = others;
        }
        choose(logits, &mut chosen[..per_token], &mut weights[..per_token], normalized);
        if let Some(Beside { factors, .. }) = &beside {
            weights.iter_mut().zip(&*chosen).for_each(|(weight, &e)| *weight *= factors[e as usize]);
        }
    }
    let (order, rest) = rows.order.split_at_mut(pairs);
    let (place, rest) = rest.split_at_mut(pairs);
    let starts = &mut rest[..count + 1];
    sort(&rows.chosen[..pairs], order, place, starts);
    let of_expert = |e: usize| starts[e] as usize..starts[e + 1] as usize;
    let used = || (0..count).map(|e| (e, of_expert(e))).filter(|(_, pairs)| !pairs.is_empty());

    // The inputs are where the outputs will be.
    cpu.rows(&mut rows.out, pairs, |out, at| out.copy_from_slice(h.row(order[at] as usize / k)));
    let multiply =
        |out: &mut Acts, x: &Acts, weight: &linear::Weight, bias: Option<&Vec<f32>>, e, pairs: Range<usize>| {
            let (to, from) =
                (pairs.start * out.width..pairs.end * out.width, pairs.start * x.width..pairs.end * x.width);
            let bias = bias.map(|all| &all[e * out.width..][..out.width]);
            linear::linear(cpu, &mut out.data[to], &x.data[from], weight.share(e, count), bias, pairs.len());
        };
    used().for_each(|(e, pairs)| multiply(&mut rows.gate_up, &rows.out, gate_up, args.gate_up_bias, e, pairs));
    cpu.rows(&mut rows.act, pairs, |out, at| {
        let (gate, up) = rows.gate_up.row(at).split_at(out.len());
        match (clamped, &beside) {
            (true, _) => clamped_swiglu(out, gate, up),
            (_, Some(_)) => maths::geglu(cpu.isa, out, gate, up),
            _ => maths::swiglu(cpu.isa, out, gate, up),
        }
    });
    used().for_each(|(e, pairs)| multiply(&mut rows.out, &rows.act, down, args.down_bias, e, pairs));
    cpu.rows(x, n, |x, i| {
        if beside.is_some() {
            x.fill(0.0);
        }
        let of_row = i * k..(i + 1) * k;
        for (weight, &place) in rows.weights[of_row.clone()].iter().zip(&place[of_row]) {
            let y = rows.out.row(place as usize);
            x.iter_mut().zip(y).for_each(|(x, y)| *x += weight * y);
        }
    });
}

/// [`ExpertsArgs::clamped`]
fn clamped_swiglu(out: &mut [f32], gate: &[f32], up: &[f32]) {
    const ALPHA: f32 = 1.702;
    const LIMIT: f32 = 7.0;
    for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
        // Unlike `f32::min`, this keeps NaN.
        let gate = if gate > LIMIT { LIMIT } else { gate };
        let up = up.clamp(-LIMIT, LIMIT);
        *out = (up + 1.0) * gate / (1.0 + (-ALPHA * gate).exp());
    }
}

/// The most probable experts by the softmax of `logits`, which it overwrites, and their weights.
fn choose(logits: &mut [f32], chosen: &mut [i32], weights: &mut [f32], normalized: bool) {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter_mut().for_each(|x| *x = (*x - most).exp());
    let sum: f32 = logits.iter().sum();
    for (chosen, weight) in chosen.iter_mut().zip(weights.iter_mut()) {
        // If the numbers cannot be compared, any expert will do: the result is not finite in any
        // case.
        let likelier = |best: usize, e: usize| if logits[e] > logits[best] { e } else { best };
        let best = (0..logits.len()).fold(0, likelier);
        (*chosen, *weight) = (best as i32, logits[best] / sum);
        logits[best] = -1.0;
    }
    if normalized {
        let sum: f32 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
}

/// Sorts pairs by expert: `order` receives their indices, `place` the inverse, and `starts` the
/// start of each expert's pairs.
fn sort(chosen: &[i32], order: &mut [i32], place: &mut [i32], starts: &mut [i32]) {
    starts.fill(0);
    chosen.iter().for_each(|&e| starts[e as usize + 1] += 1);
    (1..starts.len()).for_each(|e| starts[e] += starts[e - 1]);
    for (pair, &e) in chosen.iter().enumerate() {
        let at = starts[e as usize];
        (order[at as usize], place[pair]) = (pair as i32, at);
        starts[e as usize] += 1;
    }
    // Each start has moved to the next expert's.
    starts.copy_within(0..starts.len() - 1, 1);
    starts[0] = 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_probable_experts_are_chosen_and_of_equal_ones_the_first() {
        let (mut chosen, mut weights) = ([0; 3], [0.0; 3]);
        choose(&mut [0.5, 2.0, -1.0, 2.0, 0.5], &mut chosen, &mut weights, true);
        assert_eq!(chosen, [1, 3, 0]);
        let (two, half) = (2f32.exp(), 0.5f32.exp());
        let wanted = [two, two, half].map(|p| p / (2.0 * two + half));
        assert!(weights.iter().zip(wanted).all(|(got, want)| (got - want).abs() < 1e-6), "{weights:?}");
        choose(&mut [0.5, 2.0, -1.0, 2.0, 0.5], &mut chosen, &mut weights, false);
        let all = 2.0 * two + 2.0 * half + (-1f32).exp();
        assert!((weights[2] - half / all).abs() < 1e-6, "{weights:?}");
    }

    #[test]
    fn pairs_are_sorted_by_expert_in_their_order() {
        let (mut order, mut place, mut starts) = ([9; 6], [9; 6], [9; 5]);
        sort(&[2, 0, 3, 2, 0, 2], &mut order, &mut place, &mut starts);
        assert_eq!((order, place, starts), ([1, 4, 0, 3, 5, 2], [2, 0, 5, 3, 1, 4], [0, 2, 2, 5, 6]));
    }
}
