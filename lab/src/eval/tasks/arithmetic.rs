//! Short arithmetic and word problems from templates, for models that were not trained on the other
//! tasks. The templates follow GSM-symbolic's form: names and numbers vary, the steps do not.

use super::super::problem::{Goal, Problem};
use super::super::rng::Rng;
use super::fill;
use super::words::{self, list};

/// Two numbers of two digits.
pub fn plain(rng: &mut Rng) -> Problem {
    let (a, b) = (rng.between(10, 99), rng.between(10, 99));
    let (question, value) = if rng.chance(0.5) {
        (format!("What is {a} + {b}?"), a + b)
    } else {
        (format!("What is {} - {}?", a.max(b), a.min(b)), (a - b).abs())
    };
    Problem::ask(&[], question, Goal::Value(value.to_string()))
}

/// (text, value of a, b, c).
type Story = (&'static str, fn(i64, i64, i64) -> i64);
const STORIES: [Story; 10] = [
    ("{w} has {a} apples and buys {b} bags with {c} apples each. How many apples does {w} have now?", |a, b, c| {
        a + b * c
    }),
    ("A baker makes {a} cakes on each of {b} days and sells {c} of them. How many cakes are left?", |a, b, c| {
        a * b - c
    }),
    ("{w} reads {a} pages a day for {b} days, and then {c} more pages. How many pages did {w} read?", |a, b, c| {
        a * b + c
    }),
    (
        "There are {a} rows with {b} chairs each, and {c} chairs are broken. How many chairs are not broken?",
        |a, b, c| a * b - c,
    ),
    (
        "{w} earns {a} dollars an hour and works {b} hours. Then {w} spends {c} dollars. How many dollars are left?",
        |a, b, c| a * b - c,
    ),
    ("{w} buys {a} pens for {b} dollars each and a book for {c} dollars. How many dollars does {w} pay?", |a, b, c| {
        a * b + c
    }),
    ("A train has {a} cars with {b} seats each. {c} seats are taken. How many seats are free?", |a, b, c| a * b - c),
    ("{w} has {a} boxes of {b} eggs and {c} single eggs. How many eggs are there?", |a, b, c| a * b + c),
    ("A farmer has {c} trees and plants {a} rows of {b} new trees. How many trees are there now?", |a, b, c| c + a * b),
    ("{w} walks {a} miles on each of {b} days and {c} miles on the last day. How many miles is that?", |a, b, c| {
        a * b + c
    }),
];

pub fn story(rng: &mut Rng) -> Problem {
    loop {
        let (text, value) = rng.choice(&STORIES);
        let (a, b, c) = (rng.between(3, 12), rng.between(3, 12), rng.between(2, 30));
        let answer = value(a, b, c);
        if answer < 1 {
            continue;
        }
        let who = rng.text(&list(words::NAMES));
        let numbers = [a, b, c].map(|n| n.to_string());
        let question = fill(text, &[("w", who), ("a", &numbers[0]), ("b", &numbers[1]), ("c", &numbers[2])]);
        return Problem::ask(&[], question, Goal::Value(answer.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed from the words of the question.
    #[test]
    fn answers_follow_from_the_words() {
        for i in 0..200 {
            let problem = story(&mut Rng::new(9, "gsm", i));
            let text = &problem.messages[0].content;
            let n: Vec<i64> = text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
            let takes = ["sells", "broken", "spends", "taken"].iter().any(|word| text.contains(word));
            let value = match () {
                () if text.contains(" apples and buys ") || text.contains("A farmer has") => n[0] + n[1] * n[2],
                () if takes => n[0] * n[1] - n[2],
                () => n[0] * n[1] + n[2],
            };
            assert_eq!(problem.goal, Goal::Value(value.to_string()), "{text}");
            let problem = plain(&mut Rng::new(9, "arithmetic", i));
            let words: Vec<&str> = problem.messages[0].content.trim_end_matches('?').split(' ').collect();
            let (a, b): (i64, i64) = (words[2].parse().unwrap(), words[4].parse().unwrap());
            let value = if words[3] == "+" { a + b } else { a - b };
            assert!(value >= 0 && problem.goal == Goal::Value(value.to_string()), "{words:?}");
        }
    }
}
