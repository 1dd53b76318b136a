//! Speculative decoding (Leviathan et al. 2023, arXiv 2211.17192): a step feeds the next token
//! together with guesses of the tokens after it, the drafts. A step reads every weight once for all
//! of its rows, so a few more rows cost little.
//!
//! The token sampled at a row is a function of logits, seed and position. It is compared with the
//! draft in the next row, and the answer continues for as long as the two are equal. The text is
//! therefore the same as with single-token steps, at any temperature. Rejected rows leave no trace,
//! because [`Runner::verify`](super::runner::Runner::verify) stores nothing.
//!
//! A [`Drafter`] proposes drafts. The [`Gate`] of each answer learns how often they are right, and
//! [`Costs`] learns what rows cost on this machine. Together they decide how many drafts are tried:
//! none if they would slow the answer down.

mod costs;

use crate::protocol::{DraftReport, LogEntry, MAX_DRAFTS, Token};
use costs::NEWEST;
pub use costs::{Costs, Price};
use std::collections::HashMap;

/// Whether and how an engine tries drafts.
#[derive(Clone, Copy, Debug)]
pub struct Drafts {
    /// Maximum rows of a draft step: the token and its drafts. Below 2 there are no drafts.
    pub rows: usize,
    /// Creates the drafter of an answer.
    pub drafter: fn() -> Box<dyn Drafter>,
    /// Whether a [`Gate`] limits how many drafts are tried. Without one, all proposed drafts are.
    pub gated: bool,
}

impl Default for Drafts {
    /// No drafts.
    fn default() -> Self {
        Self { rows: 0, drafter: || Box::new(Replaced::default()), gated: true }
    }
}

/// A source of drafts.
pub trait Drafter {
    /// Reads the text that the answer replaces, which is not in the log: the tokens of the
    /// abandoned state from the first that differs from the prompt, after up to [`MAX_MATCH`] equal
    /// ones.
    /// Called once, before the answer begins.
    fn replaces(&mut self, _text: &[Token]) {}
    /// Reads the tokens fed since the last call. `log` is the whole log, `pending` the token after
    /// it.
    fn follow(&mut self, log: &[LogEntry], pending: Token);
    /// Proposes at most `max` tokens that may follow.
    fn propose(&self, max: usize) -> Draft;
}

/// Tokens that may follow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    pub tokens: Vec<Token>,
    /// Certainty of the drafter, below [`CLASSES`]; greater is more certain. The gate keeps
    /// statistics for each class.
    pub class: usize,
}

/// Number of classes of certainty.
pub const CLASSES: usize = 4;
/// Class of the drafts of a draft head.
const HEAD_CLASS: usize = 1;
/// Class of drafts that a grammar demands.
const FORCED_CLASS: usize = 3;

/// Length of the n-gram that must match, and bits per token in its hash key.
const NGRAM: usize = 3;
const TOKEN_BITS: u32 = 20;
/// Number of latest matches that are compared, and the longest match that is counted.
const CANDIDATES: usize = 16;
pub const MAX_MATCH: usize = 32;
/// Lengths of a match at which the next class begins.
const CLASS_FROM: [usize; CLASSES - 1] = [5, 9, 17];
const NOWHERE: u32 = u32::MAX;

/// Prompt lookup: of the latest places where the last three tokens occurred, takes the one with the
/// longest match and proposes what followed. Takes up to 16 bytes per token and 20 to 40 bytes per
/// distinct n-gram.
#[derive(Default)]
pub struct Lookup {
    tokens: Vec<Token>,
    /// By n-gram, the position where its last occurrence ends.
    ends: HashMap<u64, u32>,
    /// By position, the end of the previous occurrence of the n-gram that ends there.
    previous: Vec<u32>,
    /// Number of log entries read, and whether the pending token after them was read too.
    entries: usize,
    has_pending: bool,
}

/// A place in a text where the newest tokens occur.
#[derive(Clone, Copy)]
struct Match {
    /// Position of the last of them.
    at: usize,
    len: usize,
}

impl Match {
    fn class(self) -> usize {
        CLASS_FROM.iter().filter(|&&from| self.len >= from).count()
    }
}

/// The hash key of the last n-gram.
fn last_key(tokens: &[Token]) -> Option<u64> {
    let ngram = tokens.last_chunk::<NGRAM>()?;
    Some(ngram.iter().fold(0, |key, &token| key << TOKEN_BITS | u64::from(token)))
}

impl Lookup {
    fn push(&mut self, token: Token) {
        let at = self.tokens.len() as u32;
        self.tokens.push(token);
        let previous = last_key(&self.tokens).and_then(|key| self.ends.insert(key, at));
        self.previous.push(previous.unwrap_or(NOWHERE));
    }

    /// The longest match with `newest` among the latest places; `first` is the latest of all.
    fn longest(&self, newest: &[Token], first: Option<u32>) -> Option<Match> {
        let places = std::iter::successors(first, |&at| self.previous.get(at as usize).copied());
        let places = places.take_while(|at| *at != NOWHERE).take(CANDIDATES).map(|at| at as usize);
        let len = |at: usize| {
            let newest = newest.iter().rev().take(MAX_MATCH);
            newest.zip(self.tokens[..=at].iter().rev()).take_while(|(a, b)| a == b).count()
        };
        // Places run from the latest back, so that of equally long matches the latest wins.
        let matches = places.map(|at| Match { at, len: len(at) });
        matches.reduce(|best, other| if other.len > best.len { other } else { best })
    }

    /// The longest match with its own newest tokens.
    fn repeated(&self) -> Option<Match> {
        self.longest(&self.tokens, self.previous.last().copied())
    }

    /// The longest match with the newest tokens of another text.
    fn found(&self, newest: &[Token]) -> Option<Match> {
        self.longest(newest, self.ends.get(&last_key(newest)?).copied())
    }

    /// At most `max` tokens after a place.
    fn after(&self, at: usize, max: usize) -> Vec<Token> {
        self.tokens[at + 1..].iter().take(max).copied().collect()
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

    fn propose(&self, max: usize) -> Draft {
        let Some(found) = self.repeated() else { return Draft::default() };
        // If fewer than `max` tokens follow the match, the text is taken to repeat with this
        // period.
        let mut tokens = self.after(found.at, max);
        let period = tokens.len();
        (period..max).for_each(|i| tokens.push(tokens[i - period]));
        Draft { tokens, class: found.class() }
    }
}

/// Prompt lookup in the context and in the text that an answer replaces: answers after `/regen` and
/// `/edit` often repeat much of it. Takes the longer match, and the one in the replaced text if
/// both are equally long.
#[derive(Default)]
pub struct Replaced {
    context: Lookup,
    text: Lookup,
}

impl Drafter for Replaced {
    fn replaces(&mut self, text: &[Token]) {
        text.iter().for_each(|&token| self.text.push(token));
    }

    fn follow(&mut self, log: &[LogEntry], pending: Token) {
        self.context.follow(log, pending);
    }

    fn propose(&self, max: usize) -> Draft {
        // Nothing follows the text's last token.
        let text = self.text.found(&self.context.tokens).filter(|text| text.at + 1 < self.text.tokens.len());
        let context = self.context.repeated().map_or(0, |context| context.len);
        match text.filter(|text| text.len >= context) {
            Some(text) => Draft { tokens: self.text.after(text.at, max), class: text.class() },
            None => self.context.propose(max),
        }
    }
}

/// Prior of the acceptance rate, by class, and the number of observations that it counts as.
const PRIOR: [f64; CLASSES] = [0.4, 0.6, 0.75, 0.85];
const PRIOR_WEIGHT: f64 = 3.0;
/// Minimum expected speedup for which drafts are tried.
const MIN_GAIN: f64 = 1.05;
/// Numbers of drafts that a gate chooses from. A GPU captures a graph for each.
const COUNTS: [usize; 5] = [1, 2, 3, 7, MAX_DRAFTS];
/// Proposals to skip after drafts did not pay off: at first, and at most. Each further time doubles
/// the number.
const FIRST_WAIT: u32 = 8;
const LONGEST_WAIT: u32 = 256;

/// Decides how many drafts of an answer are tried, from how often earlier ones were right.
pub struct Gate {
    /// Acceptance rate by class, and the number of drafts that it was learned from.
    rate: [f64; CLASSES],
    seen: [f64; CLASSES],
    wait: [Wait; CLASSES],
}

/// Proposals of a class to skip: now, and the next time that drafts do not pay off.
#[derive(Clone, Copy)]
struct Wait {
    left: u32,
    next: u32,
}

impl Default for Gate {
    fn default() -> Self {
        Self { rate: PRIOR, seen: [0.0; CLASSES], wait: [Wait { left: 0, next: FIRST_WAIT }; CLASSES] }
    }
}

impl Gate {
    /// Returns the number of drafts of this class to try, at most `max`: 0 or one of [`COUNTS`].
    fn drafts(&mut self, class: usize, max: usize, price: Price<'_>) -> usize {
        let wait = &mut self.wait[class];
        if wait.left > 0 {
            wait.left -= 1;
            // The wait ends with a single draft, which shows whether drafts are right again.
            return if wait.left == 0 { max.min(1) } else { 0 };
        }
        let p = self.rate[class];
        let (mut best, mut drafts) = (MIN_GAIN, 0);
        for k in COUNTS.into_iter().filter(|k| *k <= max) {
            // Draft i counts only if all before it are right: p^i.
            let tokens: f64 = (0..=k).map(|i| p.powi(i as i32)).sum();
            let gain = tokens / price.of(k);
            if gain > best {
                (best, drafts) = (gain, k);
            }
            // Costs beyond the largest number that was run are estimates, so go up by one
            // number at a time.
            if !price.was_run(k) {
                break;
            }
        }
        if drafts == 0 && max > 0 {
            wait.left = wait.next;
            wait.next = (2 * wait.next).min(LONGEST_WAIT);
        }
        drafts
    }

    /// Records that the first `accepted` of `tried` drafts were right.
    fn observe(&mut self, class: usize, tried: usize, accepted: usize) {
        for i in 0..tried.min(accepted + 1) {
            let right = f64::from(u8::from(i < accepted));
            self.seen[class] += 1.0;
            self.rate[class] += (right - self.rate[class]) * NEWEST.max(1.0 / (PRIOR_WEIGHT + self.seen[class]));
        }
        if tried > 0 && accepted == tried {
            self.wait[class].next = FIRST_WAIT;
        }
    }
}

/// The drafts of one answer.
pub struct Drafting {
    drafter: Box<dyn Drafter>,
    gate: Option<Gate>,
    max: usize,
    /// Whether drafts come from the runner's draft head instead of `drafter`.
    head: bool,
    /// Drafts of the next step.
    pub next: Draft,
    pub report: DraftReport,
}

impl Drafting {
    /// `max`: maximum drafts of a step. `head`: whether the runner has a draft head.
    pub fn new(drafts: &Drafts, max: usize, head: bool) -> Self {
        let (drafter, gate) = ((drafts.drafter)(), drafts.gated.then(Gate::default));
        Self { drafter, gate, max, head, next: Draft::default(), report: DraftReport::default() }
    }

    /// Tells the drafter which text the answer replaces.
    pub fn replaces(&mut self, text: &[Token]) {
        self.drafter.replaces(text);
    }

    /// Chooses the drafts of the next step, at most `max`. `price`: [`Costs::price`] for the chains
    /// of this step.
    pub fn choose(&mut self, log: &[LogEntry], pending: Token, max: usize, price: Option<Price<'_>>) {
        if self.head {
            // The head drafted after the last step, when another number of chains may have been
            // running: without a price for the present number, a plain step has to run first.
            let allowed = if self.gate.is_some() && price.is_none() { 0 } else { max.min(self.max) };
            return self.next.tokens.truncate(allowed);
        }
        self.drafter.follow(log, pending);
        self.next = self.drafter.propose(max.min(self.max));
        let proposed = self.next.tokens.len().min(max);
        let tried = self.tried(self.next.class, proposed, price);
        self.next.tokens.truncate(tried);
    }

    /// Sets drafts of the next step that a grammar demands, at most `max`.
    pub fn force(&mut self, mut tokens: Vec<Token>, max: usize, price: Option<Price<'_>>) {
        let tried = self.tried(FORCED_CLASS, tokens.len().min(max).min(self.max), price);
        tokens.truncate(tried);
        self.next = Draft { tokens, class: FORCED_CLASS };
    }

    /// Returns how many drafts the head should make for the next step, at most `max`. `None`:
    /// drafts do not pay off, and the head need not be fed.
    pub fn head_drafts(&mut self, max: usize, price: Option<Price<'_>>) -> Option<usize> {
        let tried = if self.head { self.tried(HEAD_CLASS, max.min(self.max), price) } else { 0 };
        (tried > 0 || price.is_none()).then_some(tried)
    }

    /// Sets the drafts that the head made for the next step.
    pub fn set_head_drafts(&mut self, tokens: Vec<Token>) {
        self.next = Draft { tokens, class: HEAD_CLASS };
    }

    /// Number of drafts of a class to try, at most `max`.
    fn tried(&mut self, class: usize, max: usize, price: Option<Price<'_>>) -> usize {
        match (&mut self.gate, price) {
            (None, _) => max,
            (Some(_), None) => 0,
            (Some(gate), Some(price)) => gate.drafts(class, max, price),
        }
    }

    /// Records that the first `accepted` drafts of the last step were right. `cost`: what
    /// [`Costs::observe`] returned for it.
    pub fn observe(&mut self, accepted: usize, cost: f64) {
        let Draft { tokens, class } = std::mem::take(&mut self.next);
        self.gate.iter_mut().for_each(|gate| gate.observe(class, tokens.len(), accepted));
        self.report.observe(tokens.len(), accepted, cost);
    }
}

#[cfg(test)]
mod tests {
    use super::costs::PRIOR_ROW;
    use super::*;

    fn after(log: &[Token], pending: Token, max: usize) -> Draft {
        let log: Vec<LogEntry> = log.iter().map(|&token| LogEntry::Token(token)).collect();
        let mut lookup = Lookup::default();
        lookup.follow(&log, pending);
        lookup.propose(max)
    }

    #[test]
    fn the_text_after_the_longest_match_is_proposed() {
        // 2 3 4 occurs twice: after 1, as now, and later after 9.
        let log = [1, 2, 3, 4, 5, 6, 9, 2, 3, 4, 7, 8, 1, 2, 3];
        assert_eq!(after(&log, 4, 2), Draft { tokens: vec![5, 6], class: 0 });
        // After 8 both matches are equally long, and the newer one is taken.
        let log = [1, 2, 3, 4, 5, 6, 9, 2, 3, 4, 7, 8, 0, 2, 3];
        assert_eq!(after(&log, 4, 2).tokens, [7, 8]);
        assert_eq!(after(&[1, 2, 3, 4], 5, 4), Draft::default());
        assert_eq!(after(&[], 5, 4), Draft::default());
        // Six equal tokens are of the next class.
        assert_eq!(after(&[1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5], 6, 1), Draft { tokens: vec![7], class: 1 });
    }

    #[test]
    fn a_repeated_text_is_continued() {
        assert_eq!(after(&[8, 1, 2, 1, 2, 1], 2, 5).tokens, [1, 2, 1, 2, 1]);
        assert_eq!(after(&[5, 5, 5], 5, 4).tokens, [5, 5, 5, 5]);
    }

    #[test]
    fn a_pending_token_is_read_once() {
        let token = LogEntry::Token;
        let mut lookup = Lookup::default();
        lookup.follow(&[token(1), LogEntry::Toggle { eviction: false }, token(2)], 3);
        lookup.follow(&[token(1), LogEntry::Toggle { eviction: false }, token(2), token(3), token(4)], 1);
        assert_eq!(lookup.tokens, [1, 2, 3, 4, 1]);
        // A shorter log, as after a restart, is read from its beginning.
        lookup.follow(&[token(1)], 2);
        assert_eq!((lookup.tokens.clone(), lookup.propose(3)), (vec![1, 2], Draft::default()));
    }

    fn after_replaced(text: &[Token], log: &[Token], pending: Token) -> Vec<Token> {
        let log: Vec<LogEntry> = log.iter().map(|&token| LogEntry::Token(token)).collect();
        let mut drafter = Replaced::default();
        drafter.replaces(text);
        // A longer log, as before a restart, does not change the replaced text.
        drafter.follow(&[log.as_slice(), &[LogEntry::Token(1)]].concat(), 1);
        drafter.follow(&log, pending);
        drafter.propose(4).tokens
    }

    #[test]
    fn the_replaced_text_is_continued_until_its_end() {
        let text = [1, 2, 3, 4, 5, 6, 7];
        assert_eq!(after_replaced(&text, &[9, 1, 2], 3), [4, 5, 6, 7]);
        assert_eq!(after_replaced(&text, &[9, 1, 2, 3, 4], 5), [6, 7], "nothing is made up behind its end");
        assert!(after_replaced(&text, &[9, 1, 2, 3, 4, 5, 6], 7).is_empty());
        assert!(after_replaced(&text, &[9, 1, 2, 3, 8], 5).is_empty(), "it went another way");
        assert_eq!(after_replaced(&text, &[9, 1, 2, 3, 8, 4, 5], 6), [7], "and came back");
        assert!(after_replaced(&text, &[], 3).is_empty() && after_replaced(&[], &[1, 2], 3).is_empty());
    }

    #[test]
    fn the_longer_match_is_taken() {
        let text = [1, 2, 3, 4, 5, 6, 7];
        // 1 2 3 is as long in the context, where 8 follows it.
        assert_eq!(after_replaced(&text, &[9, 1, 2, 3, 8, 1, 2], 3), [4, 5, 6, 7]);
        assert_eq!(after_replaced(&text, &[0, 9, 1, 2, 3, 8, 0, 9, 1, 2], 3), [8, 0, 9, 1]);
    }

    #[test]
    fn drafts_are_tried_where_they_pay_off() {
        let machines = [0.05, 0.2, 1.0].map(|row| Costs::measured(row, &COUNTS));
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
    fn a_draft_head_waits_for_a_plain_step_of_as_many_chains() {
        let (mut costs, drafts) = (Costs::default(), Drafts { rows: 8, ..Drafts::default() });
        costs.observe(0.010, 2, 0);
        let mut drafting = Drafting::new(&drafts, 7, true);
        assert!(drafting.head_drafts(3, costs.price(2)) > Some(0));
        drafting.set_head_drafts(vec![1, 2, 3]);
        // One of the two chains has ended, and no step of one chain was measured yet.
        drafting.choose(&[], 0, 7, costs.price(1));
        assert!(drafting.next.tokens.is_empty());
        // Without a gate drafts are tried all the same, and their cost is still a number.
        let mut drafting = Drafting::new(&Drafts { gated: false, ..drafts }, 7, true);
        drafting.set_head_drafts(vec![1, 2, 3]);
        drafting.choose(&[], 0, 7, costs.price(1));
        assert_eq!(drafting.next.tokens, [1, 2, 3]);
        drafting.observe(3, costs.observe(0.012, 1, 3));
        assert_eq!(drafting.report.cost, 1.0 + 3.0 * PRIOR_ROW);
        costs.observe(0.010, 1, 0);
        assert_eq!(costs.price(1).map(|price| price.of(3)), Some(1.0 + 3.0 * PRIOR_ROW), "the estimate is not kept");
    }
}
