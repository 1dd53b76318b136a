//! Drafts: tokens that may follow, which are tried in one step with the token before them (speculative decoding, Leviathan et al.
//! 2023, arXiv 2211.17192). A step reads every weight once for all of its rows, so that a few more cost little.
//!
//! The token sampled at a row is a function of logits, seed and position. It is compared with the draft behind the row, and the
//! answer goes on as far as they are equal: the text is that of single tokens, at any temperature. Rejected rows leave no trace,
//! because [`Runner::verify`](super::runner::Runner::verify) stores nothing.
//!
//! A [`Drafter`] proposes; the [`Gate`] of each answer learns how often it is right, [`Costs`] what rows cost here, and both say
//! how many are tried: none where that would be slower.

use crate::protocol::{DraftReport, LogEntry, MAX_DRAFTS, Token};
use std::collections::{BTreeMap, HashMap};

/// Whether and how an engine tries drafts.
#[derive(Clone, Copy, Debug)]
pub struct Drafts {
    /// Most rows of a step that tries them, and as long as it is at least 2 one less drafts; 0: none.
    pub rows: usize,
    pub drafter: fn() -> Box<dyn Drafter>,
    /// Whether a gate says how many are tried. Without one all that are proposed are.
    pub gated: bool,
}

impl Default for Drafts {
    /// None.
    fn default() -> Self {
        Self { rows: 0, drafter: || Box::new(Lookup::default()), gated: true }
    }
}

/// Where drafts come from.
pub trait Drafter {
    /// Takes in what was fed since the last call: `log` and the token behind it.
    fn follow(&mut self, log: &[LogEntry], pending: Token);
    /// At most `most` tokens that may follow what was taken in.
    fn propose(&self, most: usize) -> Draft;
}

/// Tokens that may follow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    pub tokens: Vec<Token>,
    /// How sure the drafter is: below [`CLASSES`]. The gate counts each class by itself.
    pub class: usize,
}

pub const CLASSES: usize = 4;
/// The class of what a head guesses.
const HEAD_CLASS: usize = 1;

/// Tokens that have to be the same before a place that is proposed, and bits of a token in the key of as many.
const SAME: usize = 3;
const TOKEN_BITS: u32 = 20;
/// Places that are compared, the newest first, and the most tokens that are.
const PLACES: usize = 16;
const LONGEST: usize = 32;
/// Same tokens from which a proposal is of the next class.
const CLASS_FROM: [usize; CLASSES - 1] = [5, 9, 17];
const NOWHERE: u32 = u32::MAX;

/// Proposes what followed the newest tokens where they stood before: of the newest places the one with the longest run of equal tokens
/// (prompt lookup). Takes 12 to 28 bytes a token.
#[derive(Default)]
pub struct Lookup {
    tokens: Vec<Token>,
    /// By the newest [`SAME`] tokens, where they last ended.
    ends: HashMap<u64, u32>,
    /// By position, where the tokens that end there ended before.
    before: Vec<u32>,
    /// Entries of the log that were taken in, and whether the token behind them was too.
    entries: usize,
    has_pending: bool,
}

impl Lookup {
    fn push(&mut self, token: Token) {
        let at = self.tokens.len() as u32;
        self.tokens.push(token);
        let key = |run: &[Token]| run.iter().fold(0, |key, &token| key << TOKEN_BITS | u64::from(token));
        let run = self.tokens.last_chunk::<SAME>();
        self.before.push(run.and_then(|run| self.ends.insert(key(run), at)).unwrap_or(NOWHERE));
    }

    /// Number of tokens up to `at` that equal the newest ones.
    fn same(&self, at: usize) -> usize {
        let newest = self.tokens.iter().rev().take(LONGEST);
        newest.zip(self.tokens[..=at].iter().rev()).take_while(|(a, b)| a == b).count()
    }
}

impl Drafter for Lookup {
    fn follow(&mut self, log: &[LogEntry], pending: Token) {
        if log.len() < self.entries {
            *self = Self::default();
        }
        for entry in &log[self.entries..] {
            if let LogEntry::Token(token) = entry
                && !std::mem::take(&mut self.has_pending)
            {
                self.push(*token);
            }
        }
        self.entries = log.len();
        if !std::mem::replace(&mut self.has_pending, true) {
            self.push(pending);
        }
    }

    fn propose(&self, most: usize) -> Draft {
        let places = std::iter::successors(self.before.last(), |&&at| self.before.get(at as usize));
        let places = places.take_while(|at| **at != NOWHERE).take(PLACES).map(|&at| at as usize);
        // Of equal ones the newest: `max_by_key` returns the last of them.
        let Some(at) = places.collect::<Vec<_>>().into_iter().rev().max_by_key(|&at| self.same(at)) else {
            return Draft::default();
        };
        let same = self.same(at);
        let class = CLASS_FROM.iter().filter(|&&from| same >= from).count();
        // What follows the newest token is what is proposed: a run that repeats itself goes on.
        let mut tokens: Vec<Token> = self.tokens[at + 1..].iter().take(most).copied().collect();
        let period = tokens.len();
        (period..most).for_each(|i| tokens.push(tokens[i - period]));
        Draft { tokens, class }
    }
}

/// Weight of the newest observation in a running mean.
const NEWEST: f64 = 1.0 / 8.0;
/// Share of drafts that are right, by class, before any was tried, and the number of observations that it counts as.
const USUAL: [f64; CLASSES] = [0.4, 0.6, 0.75, 0.85];
const USUAL_WEIGHT: f64 = 3.0;
/// A step with drafts has to be expected to be this much faster.
const WORTH: f64 = 1.05;
/// Numbers of drafts that a gate chooses from. A GPU captures a graph of each.
const COUNTS: [usize; 5] = [1, 2, 3, 7, MAX_DRAFTS];
/// Proposals that are passed over after drafts did not pay: at first, and at most. Each further time takes twice as many.
const FIRST_WAIT: u32 = 8;
const LONGEST_WAIT: u32 = 256;

/// How often the drafts of an answer are right.
pub struct Gate {
    right: [f64; CLASSES],
    /// Drafts that were counted in `right`.
    seen: [f64; CLASSES],
    wait: [Wait; CLASSES],
}

#[derive(Clone, Copy)]
struct Wait {
    left: u32,
    next: u32,
}

impl Default for Gate {
    fn default() -> Self {
        Self { right: USUAL, seen: [0.0; CLASSES], wait: [Wait { left: 0, next: FIRST_WAIT }; CLASSES] }
    }
}

impl Gate {
    /// Number of drafts of this class to try, at most `most`: one of [`COUNTS`].
    fn drafts(&mut self, class: usize, most: usize, price: Price<'_>) -> usize {
        let wait = &mut self.wait[class];
        if wait.left > 0 {
            wait.left -= 1;
            // Whether they are right again is seen by one.
            return if wait.left == 0 { most.min(1) } else { 0 };
        }
        let p = self.right[class];
        let (mut best, mut drafts) = (WORTH, 0);
        for k in COUNTS.into_iter().filter(|k| *k <= most) {
            // Each is right with chance p, once those before it are.
            let tokens: f64 = (0..=k).map(|i| p.powi(i as i32)).sum();
            let gain = tokens / price.of(k);
            if gain > best {
                (best, drafts) = (gain, k);
            }
            // What more cost than were tried yet is only guessed: one number after the other.
            if !price.was_run(k) {
                break;
            }
        }
        if drafts == 0 && most > 0 {
            wait.left = wait.next;
            wait.next = (2 * wait.next).min(LONGEST_WAIT);
        }
        drafts
    }

    /// Learns that of `tried` drafts the first `accepted` were right.
    fn observe(&mut self, class: usize, tried: usize, accepted: usize) {
        for i in 0..tried.min(accepted + 1) {
            let right = f64::from(u8::from(i < accepted));
            self.seen[class] += 1.0;
            self.right[class] += (right - self.right[class]) * NEWEST.max(1.0 / (USUAL_WEIGHT + self.seen[class]));
        }
        if tried > 0 && accepted == tried {
            self.wait[class].next = FIRST_WAIT;
        }
    }
}

/// Steps with drafts after which one without is run, so that its cost is known.
const REMEASURE: u32 = 64;
/// Cost of a draft in steps without, before one was run.
const USUAL_ROW: f64 = 0.2;
/// Steps with so many drafts whose time is not counted: a GPU captures a graph, and memory is cold.
const WARM_UP: u32 = 2;

/// What steps cost on this machine, by their number of chains.
#[derive(Default)]
pub struct Costs(BTreeMap<usize, StepCosts>);

#[derive(Default)]
struct StepCosts {
    /// Seconds of a step without drafts; 0: none was run.
    plain: f64,
    /// By number of drafts, steps with so many.
    with: BTreeMap<usize, Cost>,
    /// Steps with drafts since the last one without.
    since: u32,
}

#[derive(Clone, Copy)]
struct Cost {
    runs: u32,
    /// Mean, in steps without drafts.
    mean: f64,
}

/// What drafts of one of several chains cost.
#[derive(Clone, Copy)]
pub struct Price<'a> {
    steps: &'a StepCosts,
    chains: usize,
}

impl Price<'_> {
    /// Cost of a step in which each chain tries so many drafts, in steps without: a chain's drafts delay all chains, and speed up
    /// one.
    fn of(self, drafts: usize) -> f64 {
        self.steps.of(drafts * self.chains)
    }

    /// Whether such steps were run.
    fn was_run(self, drafts: usize) -> bool {
        self.steps.with.contains_key(&(drafts * self.chains))
    }
}

impl Costs {
    /// What drafts cost; `None`: a step without has to be run first.
    pub fn price(&self, chains: usize) -> Option<Price<'_>> {
        let steps = self.0.get(&chains).filter(|steps| steps.plain > 0.0 && steps.since < REMEASURE)?;
        Some(Price { steps, chains })
    }

    /// Learns what a step of so many chains took in which `drafts` rows were tried. Returns its cost in steps without.
    pub fn observe(&mut self, seconds: f64, chains: usize, drafts: usize) -> f64 {
        self.0.entry(chains).or_default().observe(seconds, drafts)
    }
}

impl StepCosts {
    /// Cost of a step with so many drafts, in steps without: between numbers that were run in proportion, and beyond them as much a
    /// draft as that of the most.
    fn of(&self, drafts: usize) -> f64 {
        let mut below = (0, 1.0);
        for (&n, cost) in self.with.iter().filter(|(_, cost)| cost.runs > WARM_UP) {
            if n >= drafts {
                let share = (drafts - below.0) as f64 / (n - below.0) as f64;
                return below.1 + share * (cost.mean - below.1);
            }
            below = (n, cost.mean);
        }
        let row = if below.0 > 0 { (below.1 - 1.0) / below.0 as f64 } else { USUAL_ROW };
        below.1 + (drafts - below.0) as f64 * row
    }

    fn observe(&mut self, seconds: f64, drafts: usize) -> f64 {
        // Another program's work is no property of the step.
        let mean = |mean: f64, new: f64| mean + (new.min(2.0 * mean) - mean) * NEWEST;
        if drafts == 0 {
            self.plain = if self.plain > 0.0 { mean(self.plain, seconds) } else { seconds };
            self.since = 0;
            return 1.0;
        }
        self.since += 1;
        let cost = seconds / self.plain;
        let of = self.with.entry(drafts).or_insert(Cost { runs: 0, mean: 0.0 });
        of.runs += 1;
        of.mean = if of.runs > WARM_UP + 1 { mean(of.mean, cost) } else { cost.max(1.0) };
        cost
    }
}

/// The drafts of an answer.
pub struct Drafting {
    drafter: Box<dyn Drafter>,
    gate: Option<Gate>,
    most: usize,
    /// Whether the runner's head is where drafts come from.
    head: bool,
    /// What the next step tries.
    pub next: Draft,
    pub report: DraftReport,
}

impl Drafting {
    /// `most`: drafts of a step. `head`: whether the runner has a head.
    pub fn new(drafts: &Drafts, most: usize, head: bool) -> Self {
        let (drafter, gate) = ((drafts.drafter)(), drafts.gated.then(Gate::default));
        Self { drafter, gate, most, head, next: Draft::default(), report: DraftReport::default() }
    }

    /// Chooses what the next step tries: at most `most` tokens. `price`: [`Costs::price`].
    pub fn choose(&mut self, log: &[LogEntry], pending: Token, most: usize, price: Option<Price<'_>>) {
        if self.head {
            // They were guessed after the last step.
            return self.next.tokens.truncate(most.min(self.most));
        }
        self.drafter.follow(log, pending);
        self.next = self.drafter.propose(most.min(self.most));
        let proposed = self.next.tokens.len().min(most);
        let tried = self.tried(self.next.class, proposed, price);
        self.next.tokens.truncate(tried);
    }

    /// Drafts that the head is to guess for the next step, at most `most`; `None` where none pay, and it need not be fed.
    pub fn wish(&mut self, most: usize, price: Option<Price<'_>>) -> Option<usize> {
        let tried = if self.head { self.tried(HEAD_CLASS, most.min(self.most), price) } else { 0 };
        (tried > 0 || price.is_none()).then_some(tried)
    }

    /// Takes what the head has guessed.
    pub fn guessed(&mut self, tokens: Vec<Token>) {
        self.next = Draft { tokens, class: HEAD_CLASS };
    }

    /// Number of drafts of a class to try, of `most`.
    fn tried(&mut self, class: usize, most: usize, price: Option<Price<'_>>) -> usize {
        match (&mut self.gate, price) {
            (None, _) => most,
            (Some(_), None) => 0,
            (Some(gate), Some(price)) => gate.drafts(class, most, price),
        }
    }

    /// Learns that the first `accepted` drafts of the last step were right; `cost`: [`Costs::observe`].
    pub fn observe(&mut self, accepted: usize, cost: f64) {
        let Draft { tokens, class } = std::mem::take(&mut self.next);
        self.gate.iter_mut().for_each(|gate| gate.observe(class, tokens.len(), accepted));
        self.report.observe(tokens.len(), accepted, cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(log: &[Token], pending: Token, most: usize) -> Draft {
        let log: Vec<LogEntry> = log.iter().map(|&token| LogEntry::Token(token)).collect();
        let mut lookup = Lookup::default();
        lookup.follow(&log, pending);
        lookup.propose(most)
    }

    #[test]
    fn what_followed_the_longest_equal_run_is_proposed() {
        // 2 3 4 stands twice: once behind 1, as now, and once, later, behind 9.
        let log = [1, 2, 3, 4, 5, 6, 9, 2, 3, 4, 7, 8, 1, 2, 3];
        assert_eq!(after(&log, 4, 2), Draft { tokens: vec![5, 6], class: 0 });
        // Behind 8 both places are equally good, and the newer one is taken.
        let log = [1, 2, 3, 4, 5, 6, 9, 2, 3, 4, 7, 8, 0, 2, 3];
        assert_eq!(after(&log, 4, 2).tokens, [7, 8]);
        assert_eq!(after(&[1, 2, 3, 4], 5, 4), Draft::default());
        assert_eq!(after(&[], 5, 4), Draft::default());
        // Six equal tokens are of the next class.
        assert_eq!(after(&[1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5], 6, 1), Draft { tokens: vec![7], class: 1 });
    }

    #[test]
    fn a_run_that_repeats_itself_goes_on() {
        assert_eq!(after(&[8, 1, 2, 1, 2, 1], 2, 5).tokens, [1, 2, 1, 2, 1]);
        assert_eq!(after(&[5, 5, 5], 5, 4).tokens, [5, 5, 5, 5]);
    }

    #[test]
    fn a_token_behind_the_log_is_taken_in_once() {
        let token = LogEntry::Token;
        let mut lookup = Lookup::default();
        lookup.follow(&[token(1), LogEntry::Toggle { eviction: false }, token(2)], 3);
        lookup.follow(&[token(1), LogEntry::Toggle { eviction: false }, token(2), token(3), token(4)], 1);
        assert_eq!(lookup.tokens, [1, 2, 3, 4, 1]);
        // A log that begins anew, as after a restart, is taken in again.
        lookup.follow(&[token(1)], 2);
        assert_eq!((lookup.tokens.clone(), lookup.propose(3)), (vec![1, 2], Draft::default()));
    }

    /// A machine on which a draft costs `row` steps.
    fn costs(row: f64) -> Costs {
        let cost = |n| Cost { runs: WARM_UP + 1, mean: 1.0 + n as f64 * row };
        Costs([(1, StepCosts { plain: 1.0, with: COUNTS.map(|n| (n, cost(n))).into(), since: 0 })].into())
    }

    #[test]
    fn drafts_are_tried_where_they_pay() {
        let machines = [0.05, 0.2, 1.0].map(costs);
        let [cheap, usual, dear] = machines.each_ref().map(|costs| costs.price(1).expect("it was measured"));
        let mut gate = Gate::default();
        assert!(gate.drafts(3, 15, cheap) >= 7, "long runs are nearly always right");
        assert_eq!(gate.drafts(0, 15, dear), 0, "a row costs as much as a step");
        let mut tried = 0;
        for _ in 0..1000 {
            let n = gate.drafts(1, 7, usual);
            gate.observe(1, n, 0);
            tried += n;
        }
        assert!(tried < 30, "{tried} of 1000 drafts that were all wrong");
        let again = (0..LONGEST_WAIT).map(|_| gate.drafts(1, 7, usual)).max();
        assert_eq!(again, Some(1), "one is tried again, and others only once it was right");
        let n = (0..20 * LONGEST_WAIT).map(|_| {
            let n = gate.drafts(1, 7, usual);
            gate.observe(1, n, n);
            n
        });
        assert!(n.max() >= Some(3), "drafts that are right again are tried again");
    }

    #[test]
    fn costs_are_those_of_the_machine() {
        let mut costs = Costs::default();
        assert!(costs.price(1).is_none(), "nothing was measured");
        assert_eq!(costs.observe(0.010, 1, 0), 1.0);
        assert_eq!(costs.price(1).map(|price| price.of(5)), Some(1.0 + 5.0 * USUAL_ROW));
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
        assert!(costs.price(1).is_none(), "it is time to measure again");
        costs.observe(0.010, 1, 0);
        assert!(costs.price(1).is_some());
        assert!(costs.price(2).is_none(), "steps of two chains are others");
    }
}
