//! Variables through a list of assignments (RULER's variable tracking, with sums).

use super::super::problem::{Goal, Problem};
use super::super::rng::Rng;
use super::{fill, text};
use std::collections::BTreeMap;

const PHRASINGS: [&str; 5] = [
    "{p}\nWhat is {v}?",
    "{p}\nWhat is the value of {v}?",
    "What is {v} after this?\n{p}",
    "Consider this program:\n{p}\nWhat is {v} at the end?",
    "{p}\nTell me {v}.",
];
/// Values stay within 0 to this.
const LIMIT: i64 = 999;
/// Tokens of an assignment with the built-in model's tokenizer, approximately.
const LINE_TOKENS: usize = 8;
/// Most tokens of a turn before the program.
const TURN_TOKENS: usize = 900;

/// A right-hand side and its value.
fn draw(rng: &mut Rng, values: &BTreeMap<char, i64>) -> (String, i64) {
    let known: Vec<char> = values.keys().copied().collect();
    for _ in 0..20 {
        if known.is_empty() || rng.chance(0.22) {
            break;
        }
        let name = *rng.choice(&known);
        let left = values[&name];
        if rng.chance(0.18) {
            return (name.to_string(), left);
        }
        let (right, amount) = if rng.chance(0.7) {
            let amount = rng.between(1, 99);
            (amount.to_string(), amount)
        } else {
            let other = *rng.choice(&known);
            (other.to_string(), values[&other])
        };
        let (sign, value) = if rng.chance(0.5) { ('+', left + amount) } else { ('-', left - amount) };
        if (0..=LIMIT).contains(&value) {
            return (format!("{name} {sign} {right}"), value);
        }
    }
    let value = rng.between(0, 99);
    (value.to_string(), value)
}

/// A program of 40 to 60 assignments after turns of prose, so many that the prompt has about this
/// many tokens.
pub fn tracking(rng: &mut Rng, tokens: usize) -> Problem {
    let count = rng.between(40, 60) as usize;
    let letters: Vec<char> = ('a'..='z').collect();
    let size = rng.between(6, 20) as usize;
    let pool = rng.sample(&letters, size);
    let (mut values, mut lines) = (BTreeMap::new(), Vec::new());
    for _ in 0..count {
        let name = *rng.choice(&pool);
        let (text, value) = draw(rng, &values);
        lines.push(format!("{name} = {text}"));
        values.insert(name, value);
    }
    let names: Vec<char> = values.keys().copied().collect();
    let asked = *rng.choice(&names);
    let before = tokens.saturating_sub(count * LINE_TOKENS);
    let n_turns = before.div_ceil(TURN_TOKENS);
    let turns: Vec<_> = (0..n_turns).map(|_| text::other_turn(rng, before / n_turns)).collect();
    let question = fill(rng.text(&PHRASINGS), &[("v", &asked.to_string()), ("p", &lines.join("\n"))]);
    Problem::ask(&turns, question, Goal::Value(values[&asked].to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program is read from the question and run.
    #[test]
    fn the_value_is_what_the_program_leaves() {
        for i in 0..100 {
            let problem = tracking(&mut Rng::new(3, "vt", i), 2000);
            let question = &problem.messages.last().unwrap().content;
            let mut values: BTreeMap<&str, i64> = BTreeMap::new();
            for (name, text) in question.lines().filter_map(|l| l.split_once(" = ")) {
                let words: Vec<&str> = text.split(' ').collect();
                let of = |word: &str| word.parse().unwrap_or_else(|_| values[word]);
                let value = match words[..] {
                    [one] => of(one),
                    [a, "+", b] => of(a) + of(b),
                    [a, "-", b] => of(a) - of(b),
                    _ => panic!("{text}"),
                };
                assert!((0..=LIMIT).contains(&value));
                values.insert(name, value);
            }
            let line = question.lines().find(|l| !l.contains(" = ") && !l.starts_with("Consider")).unwrap();
            let asked = line.split([' ', '?', '.']).find(|w| values.contains_key(w)).unwrap();
            assert_eq!(problem.goal, Goal::Value(values[asked].to_string()), "{question}");
            assert!(problem.messages.len() >= 3);
        }
    }
}
