//! `quest`: Query-Aware Sparsity (arXiv 2406.10774), for any model and without training. All tokens
//! stay; each query head of a decode step reads the pages whose keys may match it best, by bounds
//! on the keys of each page.
//!
//! Prompts are read densely, so results depend on how tokens are split into steps: a replayed
//! answer would differ. Conversations therefore do not have this policy.

use super::{Budget, Dms};

/// Fewest pages that a query head reads.
const FEWEST_PAGES: usize = 3;
/// First layers, which read everything, in models of more layers than these.
const DENSE_LAYERS: usize = 2;

/// Reads about `budget` slots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quest {
    pub budget: Budget,
    /// The rule by which tokens leave the cache; `None` keeps all. Pages then mix positions, but
    /// the bounds stay true.
    pub dms: Option<Dms>,
}

impl Quest {
    /// Whether the layer of a model reads everything.
    pub fn is_dense(&self, layer: usize, n_layers: usize) -> bool {
        n_layers > DENSE_LAYERS && layer < DENSE_LAYERS
    }

    /// Pages that a query head reads once `tokens` tokens were fed, with the one at which the lane
    /// grows.
    pub fn pages(&self, tokens: usize, page_slots: usize) -> usize {
        (self.budget.at(tokens) / page_slots).max(FEWEST_PAGES)
    }
}

/// Upper bound on `q.k` for the keys of a page between `low` and `high`, channel by channel.
pub fn upper_bound(query: &[f32], low: &[f32], high: &[f32]) -> f32 {
    const LANES: usize = 8;
    let mut sums = [0.0; LANES];
    let chunks = query.chunks(LANES).zip(low.chunks(LANES).zip(high.chunks(LANES)));
    for (query, (low, high)) in chunks {
        for (sum, (q, (low, high))) in sums.iter_mut().zip(query.iter().zip(low.iter().zip(high))) {
            *sum += (q * low).max(q * high);
        }
    }
    sums.iter().sum()
}

/// Marks in `chosen` the `n` pages with the greatest bounds; ties go to the lowest page. `order` is
/// scratch.
pub fn choose(bounds: &[f32], n: usize, order: &mut Vec<usize>, mut chosen: impl FnMut(usize)) {
    order.clear();
    order.extend(0..bounds.len());
    if n < bounds.len() {
        let greater = |a: &usize, b: &usize| bounds[*b].total_cmp(&bounds[*a]).then(a.cmp(b));
        if n > 0 {
            order.select_nth_unstable_by(n - 1, greater);
        }
        order.truncate(n);
    }
    order.iter().for_each(|&page| chosen(page));
}

/// The greatest bf16 value that does not exceed a finite `x`.
pub fn bf16_down(x: f32) -> u16 {
    let bits = x.to_bits();
    let cut = (bits >> 16) as u16;
    // Cutting bits off moves towards 0, which is up for negative values.
    if x < 0.0 && bits & 0xffff != 0 { cut + 1 } else { cut }
}

/// The least bf16 value that is not below a finite `x`.
pub fn bf16_up(x: f32) -> u16 {
    bf16_down(-x) ^ 0x8000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    #[test]
    fn bounds_are_rounded_outward_by_less_than_a_step() {
        let mut x = 1u32;
        for _ in 0..10_000 {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let v = f32::from_bits(x);
            if !v.is_finite() || v.abs() > 1e38 {
                continue;
            }
            let (low, high) = (value(bf16_down(v)), value(bf16_up(v)));
            assert!(low <= v && v <= high, "{v}: {low} {high}");
            assert!(high - low <= v.abs() / 64.0 + f32::MIN_POSITIVE, "{v}: {low} {high}");
        }
        assert_eq!((value(bf16_down(1.5)), value(bf16_up(-1.5)), value(bf16_up(0.0))), (1.5, -1.5, 0.0));
    }

    #[test]
    fn the_choice_is_that_of_a_sort() {
        let bounds = [1.0, 3.0, 2.0, 3.0, -1.0, 2.0, 3.0];
        for n in 0..9 {
            let mut sorted: Vec<usize> = (0..bounds.len()).collect();
            sorted.sort_by(|&a, &b| f32::total_cmp(&bounds[b], &bounds[a]));
            sorted.truncate(n);
            sorted.sort_unstable();
            let mut got = Vec::new();
            choose(&bounds, n, &mut Vec::new(), |page| got.push(page));
            got.sort_unstable();
            assert_eq!(got, sorted, "{n}");
        }
    }
}
