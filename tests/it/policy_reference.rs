//! The tests' own form of TOVA and H2O: sets of positions, in f64, without slots. A log on which
//! two scores are nearly equal is of no use; [`Margin`] tells.

use crate::reference::Rule;
use std::cell::Cell;
use std::rc::Rc;

/// The smallest relative distance between a victim's score and the least score that stays.
#[derive(Clone)]
pub struct Margin(Rc<Cell<f64>>);

impl Margin {
    pub fn new() -> Self {
        Self(Rc::new(Cell::new(f64::INFINITY)))
    }

    pub fn get(&self) -> f64 {
        self.0.get()
    }

    /// Drops the least of `candidates` by `score` until `many` are gone.
    fn drop_least(&self, mut candidates: Vec<usize>, score: &[f64], many: usize, mut gone: impl FnMut(usize)) {
        candidates.sort_by(|&a, &b| score[a].total_cmp(&score[b]));
        if let (Some(last), Some(next)) = (many.checked_sub(1).map(|i| candidates[i]), candidates.get(many)) {
            self.0.set(self.0.get().min((score[*next] - score[last]) / score[*next]));
        }
        candidates[..many].iter().for_each(|&key| gone(key));
    }
}

/// Slots after `tokens` tokens.
pub type Slots = fn(usize) -> usize;

/// One victim a layer: the token to which the newest query attends least, over all heads.
pub struct TovaRule {
    pub slots: Slots,
    pub margin: Margin,
    pub last: Vec<f64>,
}

impl Rule for TovaRule {
    fn after(&mut self, tokens: usize, weights: &[Vec<f64>], sees: &mut [Vec<bool>], on: bool) {
        self.last = (0..weights[0].len()).map(|key| weights.iter().map(|lane| lane[key]).sum()).collect();
        if on {
            self.reduce(tokens, sees);
        }
    }

    fn reduce(&mut self, tokens: usize, sees: &mut [Vec<bool>]) {
        let stored: Vec<usize> = (0..tokens).filter(|&key| sees[0][key]).collect();
        let many = stored.len().saturating_sub((self.slots)(tokens));
        self.margin.drop_least(stored, &self.last, many, |key| sees.iter_mut().for_each(|lane| lane[key] = false));
    }
}

/// A victim for each KV head: the token with the least weights so far, but for the newest half of
/// the budget.
pub struct H2oRule {
    pub slots: Slots,
    pub margin: Margin,
    pub sums: Vec<Vec<f64>>,
}

impl Rule for H2oRule {
    fn after(&mut self, tokens: usize, weights: &[Vec<f64>], sees: &mut [Vec<bool>], on: bool) {
        self.sums.resize(weights.len(), vec![0.0; weights[0].len()]);
        for (sums, weights) in self.sums.iter_mut().zip(weights) {
            sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += weight);
        }
        if on {
            self.reduce(tokens, sees);
        }
    }

    fn reduce(&mut self, tokens: usize, sees: &mut [Vec<bool>]) {
        let slots = (self.slots)(tokens);
        let newest = slots.div_ceil(2);
        for (lane, sums) in sees.iter_mut().zip(&self.sums) {
            let many = lane.iter().filter(|sees| **sees).count().saturating_sub(slots);
            let old: Vec<usize> = (0..tokens.saturating_sub(newest)).filter(|&key| lane[key]).collect();
            self.margin.drop_least(old, sums, many, |key| lane[key] = false);
        }
    }
}
