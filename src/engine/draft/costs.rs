//! What steps with drafts cost on this machine, as they were measured.

use std::collections::BTreeMap;

/// Weight of the newest observation in a running mean.
pub const NEWEST: f64 = 1.0 / 8.0;

/// Steps with drafts after which one without drafts is run, to measure its time again.
const REMEASURE: u32 = 64;
/// Estimated cost of a draft, in plain steps, before one was run.
pub(super) const PRIOR_ROW: f64 = 0.2;
/// How many first steps with each number of drafts are not timed: a GPU captures a graph in them,
/// and caches are cold.
const WARM_UP: u32 = 2;

/// Measured cost of steps on this machine, by number of chains. The unit is the plain step: one
/// without drafts.
#[derive(Default)]
pub struct Costs(BTreeMap<usize, StepCosts>);

#[derive(Default)]
struct StepCosts {
    /// Seconds of a plain step; 0 if none was run.
    plain: f64,
    /// By number of drafts, the cost of steps with them.
    with: BTreeMap<usize, Cost>,
    /// Steps with drafts since the last plain step.
    since: u32,
}

#[derive(Clone, Copy)]
struct Cost {
    runs: u32,
    /// Mean, in plain steps.
    mean: f64,
}

/// The cost of drafts for one of `chains` chains that share a step.
#[derive(Clone, Copy)]
pub struct Price<'a> {
    steps: &'a StepCosts,
    chains: usize,
}

impl Price<'_> {
    /// Cost, in plain steps, of a step in which each chain tries this many drafts: the drafts of
    /// one chain delay all chains.
    pub fn of(self, drafts: usize) -> f64 {
        self.steps.of(drafts * self.chains)
    }

    /// Whether such a step was run.
    pub fn was_run(self, drafts: usize) -> bool {
        self.steps.with.contains_key(&(drafts * self.chains))
    }
}

impl Costs {
    /// Returns the price of drafts; `None` if a plain step has to be measured first.
    pub fn price(&self, chains: usize) -> Option<Price<'_>> {
        let steps = self.0.get(&chains).filter(|steps| steps.plain > 0.0 && steps.since < REMEASURE)?;
        Some(Price { steps, chains })
    }

    /// Records the time of a step of this many chains with `drafts` drafts in all. Returns its cost
    /// in plain steps, which is an estimate until a plain step was measured, and always finite.
    pub fn observe(&mut self, seconds: f64, chains: usize, drafts: usize) -> f64 {
        self.0.entry(chains).or_default().observe(seconds, drafts)
    }
}

#[cfg(test)]
impl Costs {
    /// Those of a machine on which a draft costs `row` steps, and which has run these numbers.
    pub fn measured(row: f64, counts: &[usize]) -> Self {
        let cost = |&n: &usize| (n, Cost { runs: WARM_UP + 1, mean: 1.0 + n as f64 * row });
        Self([(1, StepCosts { plain: 1.0, with: counts.iter().map(cost).collect(), since: 0 })].into())
    }
}

impl StepCosts {
    /// Cost of a step with this many drafts: interpolated between the numbers that were run, and
    /// extrapolated beyond them by the mean cost of a draft.
    fn of(&self, drafts: usize) -> f64 {
        let mut below = (0, 1.0);
        for (&n, cost) in self.with.iter().filter(|(_, cost)| cost.runs > WARM_UP) {
            if n >= drafts {
                let share = (drafts - below.0) as f64 / (n - below.0) as f64;
                return below.1 + share * (cost.mean - below.1);
            }
            below = (n, cost.mean);
        }
        let row = if below.0 > 0 { (below.1 - 1.0) / below.0 as f64 } else { PRIOR_ROW };
        below.1 + (drafts - below.0) as f64 * row
    }

    fn observe(&mut self, seconds: f64, drafts: usize) -> f64 {
        // Clamped: a step that took more than twice the mean was delayed by another program.
        let mean = |mean: f64, new: f64| mean + (new.min(2.0 * mean) - mean) * NEWEST;
        if drafts == 0 {
            self.plain = if self.plain > 0.0 { mean(self.plain, seconds) } else { seconds };
            self.since = 0;
            return 1.0;
        }
        if self.plain <= 0.0 {
            return self.of(drafts);
        }
        self.since += 1;
        let cost = seconds / self.plain;
        let known = self.with.entry(drafts).or_insert(Cost { runs: 0, mean: 0.0 });
        known.runs += 1;
        known.mean = if known.runs > WARM_UP + 1 { mean(known.mean, cost) } else { cost.max(1.0) };
        cost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_those_of_the_machine() {
        let mut costs = Costs::default();
        assert!(costs.price(1).is_none(), "nothing was measured");
        assert_eq!(costs.observe(0.010, 1, 0), 1.0);
        assert_eq!(costs.price(1).map(|price| price.of(5)), Some(1.0 + 5.0 * PRIOR_ROW));
        for _ in 0..WARM_UP {
            assert_eq!(costs.observe(0.500, 1, 3), 50.0, "captured");
        }
        for _ in WARM_UP..REMEASURE {
            assert!(costs.price(1).is_some());
            assert!((costs.observe(0.013, 1, 3) - 1.3).abs() < 1e-9);
        }
        for (drafts, cost) in [(1, 1.1), (3, 1.3), (7, 1.7)] {
            let of = costs.0[&1].of(drafts);
            assert!((of - cost).abs() < 1e-9, "{drafts}: {of}");
        }
        assert!(costs.price(1).is_none(), "a plain step is due");
        costs.observe(0.010, 1, 0);
        assert!(costs.price(1).is_some());
        assert!(costs.price(2).is_none(), "steps of two chains are others");
    }
}
