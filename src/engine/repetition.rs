//! Notices that an answer or a thought repeats itself.
//!
//! A token counts as repeated if the [`GRAM`] tokens that end with it occurred twice before. Text
//! that repeats a line or a passage over and over consists of such tokens almost only. Code,
//! tables, lists of numbers and searches that try something else on each line do not, however alike
//! their lines are.

use crate::protocol::Token;
use std::collections::{HashMap, VecDeque};

/// Tokens of an n-gram. It spans a line and a part of the next in most lists, so that lines which
/// recur in another order do not count.
const GRAM: usize = 20;
/// Newest n-grams that are compared: passages of a third of it are found.
const HISTORY: usize = 2048;
/// Newest tokens that are judged.
const JUDGED: usize = 160;
/// Number of repeated tokens among them that counts as a repetition.
const REPEATED: usize = 140;

/// Watches the tokens of one reply.
#[derive(Default)]
pub(super) struct Repetition {
    /// The last tokens, up to the length of an n-gram.
    gram: VecDeque<Token>,
    /// Digests of the newest n-grams.
    history: VecDeque<u64>,
    counts: HashMap<u64, u32>,
    /// Whether each of the newest tokens is repeated, and how many are.
    judged: VecDeque<bool>,
    repeated: usize,
    noticed: bool,
}

impl Repetition {
    /// Appends a token. Returns true once, when the reply has begun to repeat itself.
    pub fn push(&mut self, token: Token) -> bool {
        if self.noticed {
            return false;
        }
        self.gram.push_back(token);
        if self.gram.len() < GRAM {
            return false;
        }
        let digest = digest(&self.gram);
        self.gram.pop_front();
        let count = self.counts.entry(digest).or_default();
        let is_repeated = *count >= 2;
        *count += 1;
        self.history.push_back(digest);
        if self.history.len() > HISTORY {
            self.forget_oldest();
        }
        self.judged.push_back(is_repeated);
        self.repeated += usize::from(is_repeated);
        if self.judged.len() > JUDGED {
            self.repeated -= usize::from(self.judged.pop_front() == Some(true));
        }
        self.noticed = self.repeated >= REPEATED;
        self.noticed
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.history.pop_front() else { return };
        if let Some(count) = self.counts.get_mut(&oldest) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest);
            }
        }
    }
}

/// FNV-1a over the tokens.
fn digest(tokens: &VecDeque<Token>) -> u64 {
    tokens.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &token| (hash ^ u64::from(token)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens of characters, the finest that a vocabulary has, and of words and the characters
    /// between them.
    fn tokens(text: &str) -> [Vec<Token>; 2] {
        let characters = text.chars().map(u32::from).collect();
        let mut ids = HashMap::new();
        let words = text.split_inclusive(|c: char| !c.is_alphanumeric()).map(|word| {
            let next = ids.len() as Token;
            *ids.entry(word.to_owned()).or_insert(next)
        });
        [characters, words.collect()]
    }

    /// Tokens until a repetition is noticed.
    fn noticed_at(tokens: &[Token]) -> Option<usize> {
        let mut watch = Repetition::default();
        tokens.iter().position(|&token| watch.push(token))
    }

    /// A number below `n`, the next of a fixed sequence.
    fn below(state: &mut u64, n: usize) -> usize {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as usize % n
    }

    #[test]
    fn what_repeats_is_noticed_within_300_tokens_and_once() {
        let paragraph = "This goes on and on until the words come back as they were, for a whole paragraph of text.\n";
        let start = "Some words before it that are not part of anything.\n";
        for passage in ["9+5=14 +3=17 no\n", " ", "no\n", "a, b and c; ", paragraph] {
            for ids in tokens(&format!("{start}{}", passage.repeat(2000))) {
                let (before, period) = (tokens(start), tokens(&passage.repeat(3)));
                let which = usize::from(ids.len() < start.len() + 2000 * passage.chars().count());
                let first_repeat = before[which].len() + period[which].len() / 3;
                let at = noticed_at(&ids).unwrap_or_else(|| panic!("{passage:?}"));
                assert!(at < first_repeat + 300, "{passage:?}: at {at}, repeated since {first_repeat}");
            }
        }
        let mut watch = Repetition::default();
        assert_eq!((0..9000).filter(|_| watch.push(7)).count(), 1);
    }

    #[test]
    fn a_loop_with_a_slip_now_and_then_is_noticed() {
        let mut state = 5;
        let line = |state: &mut u64| match below(state, 12) {
            0 => format!("9+{}=14 +3=17 no\n", below(state, 9)),
            _ => "9+5=14 +3=17 no\n".to_owned(),
        };
        let text: String = (0..200).map(|_| line(&mut state)).collect();
        assert!(noticed_at(&tokens(&text)[0]).is_some());
    }

    #[test]
    fn texts_with_lines_of_equal_shape_are_no_repetition() {
        let rows = |row: &mut dyn FnMut(usize) -> String, n: usize| (0..n).map(row).collect::<String>();
        let tries = |state: &mut u64| {
            let (numbers, signs) = (["8", "24", "6", "3"], ["+", "-", "*"]);
            let mut left = numbers.to_vec();
            let mut draw = |state: &mut u64| left.remove(below(state, left.len()));
            let (a, b, c) = (draw(state), draw(state), draw(state));
            format!("{a}{}{b}={} {}{c}={} no\n", signs[below(state, 3)], below(state, 20), signs[below(state, 3)], b)
        };
        let mut random = 3;
        let texts = [
            ("code", include_str!("chain.rs").to_owned()),
            ("kernel", include_str!("../../kernels/attend.cu").to_owned()),
            ("tables", include_str!("../../docs/cuda.md").to_owned()),
            ("numbers", rows(&mut |n| format!("{n}\n"), 600)),
            ("numbers in a line", rows(&mut |n| format!("{n}, "), 600)),
            ("a sorted list with equal numbers", rows(&mut |n| format!("{} < {}\n", n / 3, n / 2), 600)),
            ("steps", rows(&mut |n| format!("Step {n}: {n} + {} = {}\n", n + 7, 2 * n + 7), 300)),
            (
                "a multiplication table",
                rows(&mut |n| format!("{} * {} = {}\n", n / 10, n % 10, n / 10 * (n % 10)), 100),
            ),
            ("CSV", rows(&mut |n| format!("2026-01-{:02},open,{},EUR,0.00\n", n % 28 + 1, 17 * n % 101), 300)),
            ("zeros", format!("[{}]", "[0, 0, 0, 0, 0, 0, 0, 0],\n".repeat(8))),
            ("tries at random", rows(&mut |_| tries(&mut random), 400)),
            ("a text said twice", format!("{0}\nAgain, with a change:\n{0}", include_str!("report.rs"))),
        ];
        for (name, text) in texts {
            for ids in tokens(&text) {
                assert_eq!(noticed_at(&ids), None, "{name}");
            }
        }
    }
}
