//! Search tasks, from `retrofit/data/tasks_search.py`: an answer is found by trying, and can be
//! checked.

use super::super::problem::{Goal, Problem};
use super::super::rng::Rng;
use super::{fill, joined};
use std::collections::BTreeMap;

const COUNTDOWNS: [&str; 4] = [
    "Reach {t} with three of {n}.",
    "Reach {t} from three of the numbers {n}.",
    "Make {t} from three of {n}.",
    "How do I get {t} from three of {n}?",
];
const SUBSETS: [&str; 4] = [
    "Which three of {n} add up to {t}?",
    "Find three numbers that add up to {t}: {n}",
    "Find three of {n} that add up to {t}.",
    "Three of {n} make {t}. Which?",
];
const FACTORS: [&str; 4] = [
    "Split {t} into two factors.",
    "Factor {t} by trial.",
    "Find two factors of {t}.",
    "Which two numbers multiply to {t}?",
];
const PATHS: [&str; 4] = [
    "Find a path from {a} to {b}: {n}",
    "Find a way from {a} to {b}: {n}",
    "How do I get from {a} to {b}? {n}",
    "Path from {a} to {b} in this graph: {n}",
];

/// No result between is larger.
const TOP: i64 = 199;

/// a sign b, where the task allows it.
fn apply(a: i64, sign: char, b: i64) -> Option<i64> {
    let value = match sign {
        '+' => a + b,
        '-' => a - b,
        _ => a * b,
    };
    ((1..=TOP).contains(&value) && (sign != '*' || a.min(b) <= 9)).then_some(value)
}

/// How many calculations with three of the numbers, from left to right, reach each value.
fn reached(numbers: &[i64]) -> BTreeMap<i64, usize> {
    let mut out = BTreeMap::new();
    let n = numbers.len();
    for (i, j, k) in triples(n) {
        for first in ['+', '-', '*'].into_iter().filter_map(|s| apply(numbers[i], s, numbers[j])) {
            for last in ['+', '-', '*'].into_iter().filter_map(|s| apply(first, s, numbers[k])) {
                *out.entry(last).or_insert(0) += 1;
            }
        }
    }
    out
}

/// Ordered triples of different indices below n.
fn triples(n: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..n * n * n).map(move |x| (x / n / n, x / n % n, x % n)).filter(|(i, j, k)| i != j && j != k && i != k)
}

/// Four numbers and a target that one calculation in 35 to 60 reaches.
pub fn countdown(rng: &mut Rng) -> Problem {
    loop {
        let (small, large): (Vec<i64>, Vec<i64>) = ((2..10).collect(), (2..26).collect());
        let mut numbers = rng.sample(&small, 2);
        numbers.extend(rng.sample(&large, 2));
        if (1..4).any(|i| numbers[..i].contains(&numbers[i])) {
            continue;
        }
        rng.shuffle(&mut numbers);
        let counts = reached(&numbers);
        let all: usize = counts.values().sum();
        let fits = |v: i64, n: usize| v >= 10 && !numbers.contains(&v) && (35 * n..=60 * n).contains(&all);
        let targets: Vec<i64> = counts.iter().filter(|(v, n)| fits(**v, **n)).map(|(v, _)| *v).collect();
        if targets.is_empty() {
            continue;
        }
        let target = *rng.choice(&targets);
        let question = fill(rng.text(&COUNTDOWNS), &[("t", &target.to_string()), ("n", &joined(&numbers))]);
        return Problem::ask(&[], question, Goal::Countdown { numbers, target });
    }
}

/// Seven or eight numbers and a sum that exactly three of them have.
pub fn subset(rng: &mut Rng) -> Problem {
    loop {
        let top = if rng.chance(0.7) { 100 } else { 50 };
        let all: Vec<i64> = (2..top).collect();
        let count = rng.between(7, 8) as usize;
        let numbers = rng.sample(&all, count);
        let mut sums = BTreeMap::new();
        for (i, j, k) in triples(count).filter(|(i, j, k)| i < j && j < k) {
            *sums.entry(numbers[i] + numbers[j] + numbers[k]).or_insert(0) += 1;
        }
        let targets: Vec<i64> =
            sums.iter().filter(|(v, n)| **n == 1 && !numbers.contains(v)).map(|(v, _)| *v).collect();
        if targets.is_empty() {
            continue;
        }
        let target = *rng.choice(&targets);
        let question = fill(rng.text(&SUBSETS), &[("t", &target.to_string()), ("n", &joined(&numbers))]);
        return Problem::ask(&[], question, Goal::Subset { numbers, target });
    }
}

fn is_prime(n: i64) -> bool {
    n > 1 && (2..).take_while(|d| d * d <= n).all(|d| n % d != 0)
}

/// A prime from 11 to 97 times one above 97, a product of four digits.
pub fn factor(rng: &mut Rng) -> Problem {
    let small: Vec<i64> = (11..=97).filter(|&n| is_prime(n)).collect();
    let large: Vec<i64> = (98..1000).filter(|&n| is_prime(n)).collect();
    loop {
        let number = rng.choice(&small) * rng.choice(&large);
        if (1000..=9999).contains(&number) {
            let question = fill(rng.text(&FACTORS), &[("t", &number.to_string())]);
            return Problem::ask(&[], question, Goal::Factor(number));
        }
    }
}

/// Probability that a random walk from the first of `order`, which is topological, ends at the
/// goal.
fn chance_of(edges: &BTreeMap<char, Vec<char>>, order: &[char], goal: char) -> f64 {
    let mut chance = BTreeMap::from([(goal, 1.0)]);
    for node in order.iter().rev().filter(|n| **n != goal) {
        if let Some(next) = edges.get(node) {
            let total: f64 = next.iter().map(|n| chance.get(n).copied().unwrap_or(0.0)).sum();
            chance.insert(*node, total / next.len() as f64);
        }
    }
    chance.get(&order[0]).copied().unwrap_or(0.0)
}

/// Number of walks from a node to the goal or a dead end.
fn walks(edges: &BTreeMap<char, Vec<char>>, node: char, goal: char) -> usize {
    match edges.get(&node) {
        Some(next) if node != goal => next.iter().map(|&n| walks(edges, n, goal)).sum(),
        _ => 1,
    }
}

/// An acyclic graph with dead ends, in which one random walk in 60 to 100 reaches the goal.
pub fn path(rng: &mut Rng) -> Problem {
    let letters: Vec<char> = ('a'..='z').collect();
    loop {
        let count = rng.between(11, 14) as usize;
        let nodes = rng.sample(&letters, count);
        let inner = rng.between(6, count as i64 - 4) as usize;
        let mut edges = BTreeMap::new();
        for i in 0..inner {
            let later = &nodes[i + 1..(i + 6).min(count)];
            let degree = *rng.choice(&[2, 3, 3, 4]);
            edges.insert(nodes[i], rng.sample(later, degree));
        }
        let fits = |goal: &&char| (0.01..=1.0 / 60.0).contains(&chance_of(&edges, &nodes, **goal));
        let Some(&goal) = nodes[inner..].iter().find(fits).filter(|goal| walks(&edges, nodes[0], **goal) <= 400) else {
            continue;
        };
        let mut pairs: Vec<(String, String)> =
            edges.iter().flat_map(|(a, next)| next.iter().map(move |b| (a.to_string(), b.to_string()))).collect();
        rng.shuffle(&mut pairs);
        let shown: Vec<String> = pairs.iter().map(|(a, b)| format!("{a}>{b}")).collect();
        let (from, to) = (nodes[0].to_string(), goal.to_string());
        let question = fill(rng.text(&PATHS), &[("a", &from), ("b", &to), ("n", &shown.join(", "))]);
        return Problem::ask(&[], question, Goal::Path { edges: pairs, from, to });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every problem has an answer, found here by trying everything, and the answer is accepted.
    #[test]
    fn problems_can_be_solved_by_trying_everything() {
        for i in 0..40 {
            let goal = countdown(&mut Rng::new(2, "countdown", i)).goal;
            let Goal::Countdown { numbers, target } = &goal else { panic!() };
            let texts = triples(4).flat_map(|(i, j, k)| {
                let n = numbers.clone();
                "+-*".chars().flat_map(move |s| {
                    let n = n.clone();
                    "+-*".chars().map(move |z| format!("({}{s}{}){z}{}", n[i], n[j], n[k])).collect::<Vec<_>>()
                })
            });
            let right = texts.filter(|text| goal.is_right(text)).count();
            assert!((1..60).contains(&right), "{numbers:?} {target}: {right}");

            let goal = subset(&mut Rng::new(2, "subset", i)).goal;
            let Goal::Subset { numbers, .. } = &goal else { panic!() };
            let sums = triples(numbers.len()).map(|(i, j, k)| format!("{}+{}+{}", numbers[i], numbers[j], numbers[k]));
            assert_eq!(sums.filter(|text| goal.is_right(text)).count(), 6, "one set in six orders");

            let goal = factor(&mut Rng::new(2, "factor", i)).goal;
            let Goal::Factor(number) = &goal else { panic!() };
            assert!((2..*number).filter(|d| goal.is_right(&format!("{d}*{}", number / d))).count() == 2);
        }
    }

    #[test]
    fn a_path_exists_and_is_found_by_searching() {
        for i in 0..40 {
            let problem = path(&mut Rng::new(2, "path", i));
            let Goal::Path { edges, from, to } = &problem.goal else { panic!() };
            let mut open = vec![from.clone()];
            let mut found = None;
            while let Some(walk) = open.pop() {
                let last = walk.rsplit('-').next().unwrap();
                if last == to {
                    found = Some(walk);
                    break;
                }
                open.extend(edges.iter().filter(|(a, _)| a == last).map(|(_, b)| format!("{walk}-{b}")));
            }
            let found = found.expect("a path");
            assert!(problem.goal.is_right(&found), "{found}");
            let shown = problem.messages[0].content.matches('>').count();
            assert_eq!(shown, edges.len());
        }
    }
}
