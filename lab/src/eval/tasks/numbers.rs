//! Sums, equations and sorting.

use super::super::problem::{Goal, Problem};
use super::super::rng::Rng;
use super::{fill, joined};

const SUMS: [&str; 8] = [
    "Add these numbers: {n}",
    "Sum: {n}",
    "Please add up {n}.",
    "What is the sum of {n}?",
    "Sum up these numbers: {n}",
    "What is the total of {n}?",
    "Add up: {n}",
    "Can you add {n}?",
];
const EQUATIONS: [&str; 6] = [
    "Solve {e} for {v}.",
    "Solve {e}",
    "What is {v} if {e}?",
    "Find {v}: {e}",
    "Solve the equation {e}.",
    "Find {v} when {e}.",
];
const SORTS: [&str; 6] = [
    "Sort these numbers: {n}",
    "Sort {n}",
    "Please sort {n}",
    "Put these numbers in order: {n}",
    "Sort from smallest to largest: {n}",
    "Sort this list: {n}",
];

pub fn sum(rng: &mut Rng) -> Problem {
    let count = rng.between(5, 60);
    let numbers: Vec<i64> = (0..count).map(|_| rng.between(1, 9999)).collect();
    let question = fill(rng.text(&SUMS), &[("n", &joined(&numbers))]);
    Problem::ask(&[], question, Goal::Value(numbers.iter().sum::<i64>().to_string()))
}

pub fn sort(rng: &mut Rng) -> Problem {
    let count = rng.between(5, 40);
    let mut numbers: Vec<i64> = (0..count).map(|_| rng.between(1, 999)).collect();
    let question = fill(rng.text(&SORTS), &[("n", &joined(&numbers))]);
    numbers.sort_unstable();
    Problem::ask(&[], question, Goal::Ends(joined(&numbers)))
}

/// One side of an equation.
fn side(coefficient: i64, constant: i64, letter: char) -> String {
    let term = match coefficient.abs() {
        0 => return constant.to_string(),
        1 => letter.to_string(),
        size => format!("{size}{letter}"),
    };
    let minus = if coefficient < 0 { "-" } else { "" };
    match constant {
        0 => format!("{minus}{term}"),
        c => format!("{minus}{term} {} {}", if c < 0 { '-' } else { '+' }, c.abs()),
    }
}

/// a x + b = c x + d with a whole solution of up to two digits.
pub fn equation(rng: &mut Rng) -> Problem {
    loop {
        let (a, x) = (rng.between(-99, 99), rng.between(-99, 99));
        let c = if rng.chance(0.25) { 0 } else { rng.between(-99, 99) };
        let b = rng.between(-999, 999);
        let d = b + (a - c) * x;
        if a == c || a == 0 || d.abs() > 9999 {
            continue;
        }
        let letter = *rng.choice(&['x', 'y', 'z', 'a', 'b', 'n', 't']);
        let text = format!("{} = {}", side(a, b, letter), side(c, d, letter));
        let question = fill(rng.text(&EQUATIONS), &[("e", &text), ("v", &letter.to_string())]);
        return Problem::ask(&[], question, Goal::Value(x.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers_of(text: &str) -> Vec<i64> {
        text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
    }

    #[test]
    fn sums_and_orders_are_those_of_the_numbers_in_the_question() {
        for i in 0..100 {
            let problem = sum(&mut Rng::new(1, "sum", i));
            let total: i64 = numbers_of(&problem.messages[0].content).iter().sum();
            assert_eq!(problem.goal, Goal::Value(total.to_string()));
            let problem = sort(&mut Rng::new(1, "sort", i));
            let Goal::Ends(list) = &problem.goal else { panic!() };
            let (asked, mut left) = (numbers_of(list), numbers_of(&problem.messages[0].content));
            assert!(asked.is_sorted() && asked.len() >= 5);
            assert!(asked.iter().all(|n| left.iter().position(|m| m == n).map(|at| left.remove(at)).is_some()));
            assert!(left.is_empty());
        }
    }

    /// Evaluates one side at x.
    fn evaluate(side: &str, letter: char, x: i64) -> i64 {
        let side = side.replace(" - ", " +-").replace(" + ", " +");
        side.split(" +")
            .map(|term| match term.trim().strip_suffix(letter) {
                Some("") => x,
                Some("-") => -x,
                Some(factor) => factor.parse::<i64>().unwrap() * x,
                None => term.trim().parse().unwrap(),
            })
            .sum()
    }

    #[test]
    fn solutions_solve_their_equations() {
        for i in 0..200 {
            let problem = equation(&mut Rng::new(1, "equation", i));
            let Goal::Value(x) = &problem.goal else { panic!() };
            let text = &problem.messages[0].content;
            let at = text.find(" = ").unwrap();
            let is_part =
                |c: char| c.is_ascii_digit() || " +-".contains(c) || (c.is_ascii_lowercase() && c.is_alphabetic());
            let letter =
                text[at + 3..].chars().chain(text[..at].chars().rev()).find(|c| "xyzabnt".contains(*c)).unwrap();
            let alone = |word: &str| {
                word.chars().all(is_part)
                    && (word.chars().any(|c| c.is_ascii_digit())
                        || "+-".contains(word)
                        || word.trim_start_matches('-') == letter.to_string())
            };
            let left: Vec<&str> = text[..at].split(' ').rev().take_while(|w| alone(w)).collect();
            let left: Vec<&str> = left.into_iter().rev().collect();
            let right = text[at + 3..].split(" for ").next().unwrap().trim_end_matches(['.', '?']);
            let x: i64 = x.parse().unwrap();
            assert_eq!(evaluate(&left.join(" "), letter, x), evaluate(right, letter, x), "{text}: {x}");
        }
    }
}
