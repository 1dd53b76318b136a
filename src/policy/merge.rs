//! Policies that merge tokens: a token joins the newest slot of its lane or opens one, and a slot
//! holds the weighted means of its tokens' K and V. The rule is stated here once, for one lane and
//! token. CUDA twin: `kernels/merge.cu`.
//!
//! Merging changes the contents of a row, not its slot. A token that joins marks the token before
//! it under a [`Dms`] rule with a window of 0, so that no later query sees that token, and takes
//! over its slot with the means of both. Visibility, slots, pages and counts are therefore the same
//! as DMS's. In addition a lane keeps the sums of its newest slot in f32. A slot is encoded from
//! them at every merge, so that rounding does not compound.

use super::dms::{Dms, Shift};
use super::{Dmc, Pool};

/// Which tokens join the newest slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Merging {
    /// All tokens except every N-th, with equal weights.
    Pool(Pool),
    /// Tokens that the heads decide to merge, with individual weights.
    Learned(Dmc),
}

impl Merging {
    /// Decision that the op of a merging policy leaves for a token that joins, which marks the
    /// token before it.
    pub const JOINS: f32 = 1.0;
    /// Decision of a token that opens a slot, of no strength.
    pub const OPENS: f32 = f32::NEG_INFINITY;

    /// By which tokens are placed and seen.
    pub const RULE: Dms = Dms::new(0, Shift::Previous);

    /// Whether the token at `position` joins the newest slot, which has `members` tokens.
    /// `decision` is the head's.
    pub fn joins(&self, position: usize, decision: f32, members: usize) -> bool {
        let wants = match self {
            Merging::Pool(pool) => !position.is_multiple_of(pool.every),
            Merging::Learned(dmc) => decision > 0.0 && members < dmc.most_members,
        };
        position > 0 && wants
    }
}

/// Floats of the sums of a lane's newest slot: of `weight k`, of `weight v`, of the weights, and
/// the number of tokens.
pub fn sums_len(head_dim: usize) -> usize {
    2 * head_dim + 2
}

/// Tokens of the slot with these sums.
pub fn members(sums: &[f32]) -> usize {
    sums[sums.len() - 1] as usize
}

/// Adds a token to the newest slot of a lane if it `joins`, or opens a slot with it. `k` (before
/// RoPE) and `v` become the means of the slot.
pub fn merge(sums: &mut [f32], joins: bool, weight: f32, k: &mut [f32], v: &mut [f32]) {
    if !joins {
        sums.fill(0.0);
    }
    let (rows, counts) = sums.split_at_mut(2 * k.len());
    counts[0] += weight;
    counts[1] += 1.0;
    for (sum, x) in rows.iter_mut().zip(k.iter_mut().chain(v)) {
        *sum += weight * *x;
        *x = *sum / counts[0];
    }
}

#[cfg(test)]
mod tests {
    use super::super::pool::MOST_MEMBERS;
    use super::*;

    #[test]
    fn a_slot_holds_weighted_means_and_a_full_one_is_left() {
        let dmc = Merging::Learned(Dmc { most_members: 3, ..Dmc::default() });
        let mut sums = vec![f32::NAN; sums_len(2)];
        let mut means = Vec::new();
        for (position, (x, weight)) in [(4.0, 1.0), (1.0, 2.0), (6.0, 1.0), (8.0, 0.5)].into_iter().enumerate() {
            let (mut k, mut v) = ([x, -x], [2.0 * x, 1.0]);
            let joins = dmc.joins(position, 1.0, if position == 0 { 0 } else { members(&sums) });
            merge(&mut sums, joins, weight, &mut k, &mut v);
            assert_eq!((k[1], v), (-k[0], [2.0 * k[0], 1.0]));
            means.push((k[0], members(&sums)));
        }
        assert_eq!(means, [(4.0, 1), (2.0, 2), (3.0, 3), (8.0, 1)]);
    }

    #[test]
    fn pool_joins_by_position_and_dmc_by_decision_but_never_at_the_start() {
        let pool = Merging::Pool(Pool { every: 3 });
        let joined: Vec<usize> = (0..8).filter(|&position| pool.joins(position, -1.0, 1)).collect();
        assert_eq!(joined, [1, 2, 4, 5, 7]);
        let dmc = Merging::Learned(Dmc::default());
        assert_eq!(
            [(0, 1.0), (1, 0.0), (1, f32::NAN), (1, 1e-6)].map(|(p, d)| dmc.joins(p, d, 1)),
            [false, false, false, true]
        );
        assert!(dmc.joins(900, 1.0, MOST_MEMBERS - 1) && !dmc.joins(900, 1.0, MOST_MEMBERS));
    }
}
