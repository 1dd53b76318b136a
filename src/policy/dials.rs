//! Share of tokens that a model keeps at each setting of the dial.

use super::strength::{STRENGTHS, decision_of};

/// Steps of the table, each with the same number of decisions.
const STEPS: usize = 64;
/// Fewest decisions that say anything.
const FEWEST: u64 = 1024;
/// Ratios within this of the trained one count as it.
const NEAR: f64 = 1.05;
/// Largest compression ratio that a table tells apart.
pub const MAX_RATIO: f64 = STEPS as f64;

/// Quantiles of a model's decisions: entry i is the decision that i / 64 of all tokens do not
/// exceed.
#[derive(Clone, Debug, PartialEq)]
pub struct DialTable {
    quantiles: Vec<f32>,
}

impl DialTable {
    /// The table of decisions counted by their strength, from 1 on; `None` if they are too few.
    pub fn of_counts(counts: &[u64; STRENGTHS]) -> Option<Self> {
        let total: u64 = counts[1..].iter().sum();
        if total < FEWEST {
            return None;
        }
        let (mut quantiles, mut below) = (Vec::with_capacity(STEPS + 1), 0);
        for (strength, &n) in counts.iter().enumerate().skip(1).filter(|(_, n)| **n > 0) {
            below += n;
            while quantiles.len() <= STEPS && below * STEPS as u64 >= total * (quantiles.len() as u64).max(1) {
                quantiles.push(decision_of(strength));
            }
        }
        Some(Self { quantiles })
    }

    /// A table as [`Self::quantiles`] gave it; `None` if it cannot be one.
    pub fn of_quantiles(quantiles: Vec<f32>) -> Option<Self> {
        let fits = quantiles.len() == STEPS + 1 && quantiles.iter().all(|q| q.is_finite()) && quantiles.is_sorted();
        fits.then_some(Self { quantiles })
    }

    pub fn quantiles(&self) -> &[f32] {
        &self.quantiles
    }

    /// Expected compression ratio of a long text at a dial: tokens for each that is kept.
    pub fn ratio(&self, dial: f32) -> f64 {
        let q = &self.quantiles;
        let above = q.partition_point(|&decision| decision <= dial);
        let steps = match above {
            0 => 0.0,
            n if n > STEPS => STEPS as f64,
            n => (n - 1) as f64 + f64::from((dial - q[n - 1]) / (q[n] - q[n - 1])),
        };
        STEPS as f64 / steps.max(1.0)
    }

    /// The dial for a compression ratio: 0 for one near that which the model was trained for.
    pub fn setting(&self, ratio: f64) -> f32 {
        let trained = self.ratio(0.0);
        let near = (trained / NEAR..=trained * NEAR).contains(&ratio);
        if near { 0.0 } else { self.dial(ratio) }
    }

    /// The dial at which this compression ratio is expected. From 1 on; at 1 nothing is marked.
    pub fn dial(&self, ratio: f64) -> f32 {
        let steps = (STEPS as f64 / ratio).clamp(1.0, STEPS as f64);
        let (at, part) = (steps as usize, (steps - steps.floor()) as f32);
        match self.quantiles.get(at + 1) {
            Some(next) => self.quantiles[at] + part * (next - self.quantiles[at]),
            // Beyond the step of the strongest decision.
            None => self.quantiles[STEPS] + 1.0 + self.quantiles[STEPS].abs() / 32.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::strength;
    use super::*;

    #[test]
    fn a_dial_has_the_ratio_that_it_was_chosen_for() {
        let mut counts = [0; STRENGTHS];
        // Evenly from -10 to 30: a quarter is below 0.
        (0..40_000).for_each(|i| counts[strength(i as f32 / 1000.0 - 10.0)] += 1);
        let table = DialTable::of_counts(&counts).unwrap();
        assert!((table.ratio(0.0) - 4.0).abs() < 0.1 && (table.dial(2.0) - 10.0).abs() < 0.5, "{table:?}");
        for ratio in [1.2, 1.5, 2.0, 3.3, 8.0, 30.0] {
            let dial = table.dial(ratio);
            assert!((table.ratio(dial) / ratio - 1.0).abs() < 0.01, "{ratio}: {dial} {}", table.ratio(dial));
        }
        assert!(table.dial(1.0) > 30.0 && table.ratio(table.dial(1.0)) == 1.0);
        assert_eq!(table.ratio(-100.0), MAX_RATIO);
        assert_eq!(DialTable::of_quantiles(table.quantiles().to_vec()), Some(table));
        assert!(DialTable::of_quantiles(vec![0.0; 3]).is_none() && DialTable::of_counts(&[0; STRENGTHS]).is_none());
    }
}
