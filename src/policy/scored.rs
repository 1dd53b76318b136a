//! Policies that drop the token with the least score. The rule is stated here once, for one lane
//! and token; [`Tova`], [`H2o`] and [`TrimKv`] are three settings of it.
//!
//! The incoming token t attends to the stored slots and to itself. Each of these keys has a
//! *score*, from the weights of the lane's query heads or from its own decision. Where that makes
//! more keys than the budget, the one with the least score is dropped: a stored one, whose slot the
//! incoming token takes, or the incoming token itself.
//!
//! [`Tova`]: super::Tova
//! [`H2o`]: super::H2o
//! [`TrimKv`]: super::TrimKv

use super::{Budget, Placement};

/// How a policy scores keys, and which it may drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scored {
    pub budget: Budget,
    pub scope: Scope,
    pub history: History,
    /// Whether the newest half of the budget, rounded up and with the incoming token, cannot be
    /// dropped.
    pub keeps_newest: bool,
}

/// Whose weights a score sums up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The query heads of the lane's KV head: each lane drops its own tokens.
    Head,
    /// All query heads of the layer: its lanes store the same tokens in the same slots.
    Layer,
}

/// Which queries a score remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// The last one.
    Last,
    /// All since the key was stored.
    Sum,
    /// None: a key has the score that its token's decision gave it, which counts once for each
    /// token since.
    Decision,
}

impl Scored {
    /// Whether scores come from decisions and not from attention weights.
    pub fn uses_decisions(&self) -> bool {
        self.history == History::Decision
    }

    /// The score of the incoming key: its own query gave it `weight`.
    pub fn first(&self, weight: f32, decision: f32) -> f32 {
        match self.history {
            History::Last | History::Sum => weight,
            History::Decision => log_sigmoid(decision),
        }
    }

    /// The score of a stored key after a query that gave it `weight`.
    pub fn update(&self, score: f32, weight: f32) -> f32 {
        match self.history {
            History::Last => weight,
            History::Sum => score + weight,
            History::Decision => score,
        }
    }

    /// The score by which a key is compared with others, once `tokens` tokens were fed. The newest
    /// token's age is 2 there, as in the published code.
    fn rank(&self, score: f32, tokens: usize, position: usize) -> f32 {
        match self.history {
            History::Last | History::Sum => score,
            History::Decision => score * (tokens + 1 - position) as f32,
        }
    }

    /// First position that cannot be dropped once `tokens` tokens were fed.
    fn protected_from(&self, tokens: usize) -> usize {
        let budget = self.budget.at(tokens);
        let newest = if self.keeps_newest { budget - budget / 2 } else { 0 };
        tokens.saturating_sub(newest)
    }

    /// Chooses the slot of the newest of `tokens` tokens. `scores` are the scores of the stored
    /// slots and then its own; `position` returns a slot's position. Ties go to the lowest slot;
    /// the incoming token counts as the highest.
    pub fn place(&self, tokens: usize, scores: &[f32], position: impl Fn(usize) -> usize) -> Placement {
        let incoming = scores.len() - 1;
        if scores.len() <= self.budget.at(tokens) {
            return Placement::Append;
        }
        let protected = self.protected_from(tokens);
        let position = |slot: usize| if slot == incoming { tokens - 1 } else { position(slot) };
        let candidates = (0..scores.len()).filter(|&slot| !self.keeps_newest || position(slot) < protected);
        let rank =
            |slot: usize| self.rank(scores[slot], tokens, if self.uses_decisions() { position(slot) } else { 0 });
        let least =
            candidates.map(|slot| (rank(slot), slot)).reduce(|least, one| if one.0 < least.0 { one } else { least });
        match least {
            Some((_, slot)) if slot < incoming => Placement::Overwrite(slot),
            _ => Placement::Skip,
        }
    }

    /// The slots that stay where a lane stores more than its budget, as after eviction was off:
    /// what dropping one token after the other by the present scores leaves. `None` where nothing
    /// is dropped.
    pub fn keep(&self, tokens: usize, scores: &[f32], position: impl Fn(usize) -> usize) -> Option<Vec<usize>> {
        let dropped = scores.len().checked_sub(self.budget.at(tokens)).filter(|&n| n > 0)?;
        let protected = self.protected_from(tokens);
        let mut candidates: Vec<usize> = (0..scores.len()).filter(|&slot| position(slot) < protected).collect();
        let rank = |slot: usize| self.rank(scores[slot], tokens, position(slot));
        candidates.sort_by(|&a, &b| rank(a).total_cmp(&rank(b)));
        candidates.truncate(dropped);
        candidates.sort_unstable();
        Some((0..scores.len()).filter(|slot| candidates.binary_search(slot).is_err()).collect())
    }
}

/// The logarithm of the sigmoid.
fn log_sigmoid(x: f32) -> f32 {
    x.min(0.0) - (-x.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::super::{H2o, Tova, TrimKv};
    use super::*;

    #[test]
    fn tova_drops_the_least_weight_and_h2o_only_what_is_old() {
        let budget = Budget::Slots(3);
        let (tova, h2o) = (Tova { budget }.rule(), H2o { budget }.rule());
        // Three stored tokens, in slots out of order, and the incoming one at 9.
        let position = |slot: usize| [8, 2, 5][slot];
        assert_eq!(tova.place(3, &[0.5, 0.1, 0.4], position), Placement::Append);
        assert_eq!(
            tova.place(10, &[0.1, 0.2, 0.1, 0.3], position),
            Placement::Overwrite(0),
            "the lowest slot of a tie"
        );
        assert_eq!(tova.place(10, &[0.3, 0.2, 0.3, 0.1], position), Placement::Skip);
        assert_eq!(tova.place(10, &[0.2, 0.2, 0.2, 0.2], position), Placement::Overwrite(0));
        // The newest two of three are protected: 8 and 9.
        assert_eq!(h2o.place(10, &[0.0, 0.2, 0.1, 0.0], position), Placement::Overwrite(2));
        assert_eq!((tova.update(2.0, 0.5), h2o.update(2.0, 0.5)), (0.5, 2.5));
    }

    /// The published rule: the least `(tokens + 1 - position) * log_beta` leaves.
    #[test]
    fn trimkv_drops_what_its_decision_and_its_age_make_least() {
        let rule = TrimKv { budget: Budget::Slots(3) }.rule();
        let position = |slot: usize| [8, 2, 5][slot];
        // After the tenth token the ages are 3, 9, 6, and the incoming token's is 2.
        assert_eq!(rule.place(10, &[-3.0, -0.9, -1.3, -1.0], position), Placement::Overwrite(0), "-9, -8.1, -7.8, -2");
        assert_eq!(rule.place(10, &[-2.0, -0.9, -1.3, -1.0], position), Placement::Overwrite(1), "-6, -8.1, -7.8, -2");
        assert_eq!(rule.place(10, &[-2.0, -0.9, -1.3, -4.1], position), Placement::Skip, "-6, -8.1, -7.8, -8.2");
        assert_eq!(
            rule.place(10, &[-3.0, -1.0, -1.0, -4.5], position),
            Placement::Overwrite(0),
            "the lowest slot of a tie"
        );
        for (gate, log) in [(0.0, -std::f32::consts::LN_2), (10.0, -4.539_889_9e-5), (-20.0, -20.0), (-200.0, -200.0)] {
            assert!((rule.first(0.7, gate) / log - 1.0).abs() < 1e-6, "{gate}: {}", rule.first(0.7, gate));
        }
        assert_eq!(rule.update(-3.0, 0.5), -3.0);
    }

    #[test]
    fn a_reduction_is_the_rule_applied_repeatedly() {
        let budget = Budget::Slots(3);
        let scores = [0.5, 0.1, 0.4, 0.3, 0.2, 0.1];
        for rule in [Tova { budget }.rule(), H2o { budget }.rule(), TrimKv { budget }.rule()] {
            let mut left: Vec<usize> = (0..scores.len()).collect();
            while left.len() > 3 {
                // One less than is stored, so that exactly one has to go; the newest slot stands
                // for the incoming token.
                let of: Vec<f32> = left.iter().map(|&slot| scores[slot]).collect();
                match rule.place(6, &of, |i| left[i]) {
                    Placement::Overwrite(i) => drop(left.remove(i)),
                    _ => drop(left.pop()),
                }
            }
            assert_eq!(rule.keep(6, &scores, |slot| slot), Some(left));
        }
        assert_eq!(Tova { budget }.rule().keep(3, &[0.1; 3], |slot| slot), None);
    }
}
