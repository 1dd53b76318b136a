//! The tasks: each makes problems from seeded random numbers, so that a seed gives the same
//! problems on every machine. Their words are those that the built-in model was trained on
//! (`retrofit/`), in phrasings that it saw.

mod arithmetic;
mod file;
mod numbers;
mod search;
mod text;
mod variables;
mod words;

pub use file::{FileProblems, MAX_BYTES, read_file};

use super::problem::Problem;
use super::rng::Rng;

/// A task of the table.
pub struct Task {
    pub name: &'static str,
    make: fn(&mut Rng) -> Problem,
}

/// Every task. Sizes are tokens of the prompt, approximately, with the built-in model's tokenizer.
#[rustfmt::skip]
pub const TASKS: &[Task] = &[
    Task { name: "niah-1k", make: |r| text::needle(r, 1000) }, // one of four numbers, 1,000 tokens
    Task { name: "niah-2k", make: |r| text::needle(r, 2000) }, // in 2,000 tokens
    Task { name: "niah-4k", make: |r| text::needle(r, 4000) }, // in 4,000 tokens
    Task { name: "niah-8k", make: |r| text::needle(r, 7500) }, // in 7,500 tokens
    Task { name: "vt-1k", make: |r| variables::tracking(r, 1000) }, // after 40 to 60 assignments
    Task { name: "vt-2k", make: |r| variables::tracking(r, 2000) }, // after 2,000 tokens of prose
    Task { name: "vt-4k", make: |r| variables::tracking(r, 4000) }, // after 4,000 tokens of prose
    Task { name: "vt-8k", make: |r| variables::tracking(r, 6500) }, // after 6,500 tokens of prose
    Task { name: "sum", make: numbers::sum }, // the sum of 5 to 60 numbers of up to four digits
    Task { name: "equation", make: numbers::equation }, // a linear equation with a whole solution
    Task { name: "sort", make: numbers::sort }, // 5 to 40 numbers in order
    Task { name: "recall", make: |r| text::recall(r, 700) }, // one of three facts, 700 tokens ago
    Task { name: "recall-4k", make: |r| text::recall(r, 4000) }, // the same, 4,000 tokens ago
    Task { name: "arithmetic", make: arithmetic::plain }, // plus or minus, with two digits
    Task { name: "gsm", make: arithmetic::story }, // word problems of two or three steps
    Task { name: "countdown", make: search::countdown }, // three of four numbers and + - *
    Task { name: "subset", make: search::subset }, // three of seven or eight numbers
    Task { name: "factor", make: search::factor }, // the prime factors of a number of four digits
    Task { name: "path", make: search::path }, // a path through a small graph with dead ends
];

/// Names for several tasks.
const GROUPS: &[(&str, &[&str])] = &[
    ("niah", &["niah-1k", "niah-2k", "niah-4k", "niah-8k"]),
    ("vt", &["vt-1k", "vt-2k", "vt-4k", "vt-8k"]),
    ("search", &["countdown", "subset", "factor", "path"]),
];

impl Task {
    /// Tasks of a name: one, or all tasks of a group.
    pub fn find(name: &str) -> Result<Vec<&'static Task>, String> {
        let group = GROUPS.iter().find(|(group, _)| *group == name).map(|(_, names)| *names);
        let found: Vec<_> =
            TASKS.iter().filter(|task| task.name == name || group.is_some_and(|g| g.contains(&task.name))).collect();
        if found.is_empty() {
            let names: Vec<&str> = GROUPS.iter().map(|g| g.0).chain(TASKS.iter().map(|t| t.name)).collect();
            return Err(format!("{name:?} is not a task (expected {})", names.join(", ")));
        }
        Ok(found)
    }

    /// Problem `index` of a seed.
    pub fn problem(&self, seed: u64, index: usize) -> Problem {
        (self.make)(&mut Rng::new(seed, self.name, index))
    }
}

/// Numbers as a list: `3, 24, 8`.
fn joined(numbers: &[i64]) -> String {
    numbers.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")
}

/// Fills the holes `{name}` of a phrasing.
fn fill(template: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(template.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_problems_repeat() {
        assert_eq!(Task::find("search").unwrap().len(), 4);
        assert!(Task::find("chess").err().unwrap().contains("niah-8k"));
        for task in TASKS {
            assert_eq!(Task::find(task.name).unwrap().len(), 1);
            let of = |seed, index| task.problem(seed, index);
            assert_eq!(of(3, 5), of(3, 5), "{}", task.name);
            assert!((0..20).any(|i| of(3, i) != of(4, i)) && of(3, 0) != of(3, 1), "{}", task.name);
        }
    }
}
