//! Selection of the checks that run, and reports of their results.

use super::Finding;
use std::str::FromStr;

/// Most parts that checks are divided into.
const MOST_PARTS: usize = 1000;

/// A part of the checks: number `number`, from 1 on, of `of`. Neighbours go to different parts, so
/// that all take about as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    number: usize,
    of: usize,
}

impl Part {
    pub const ALL: Self = Self { number: 1, of: 1 };
}

impl FromStr for Part {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let numbers = s.split_once('/').and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        match numbers {
            Some((number, of)) if (1..=of).contains(&number) && of <= MOST_PARTS => Ok(Self { number, of }),
            _ => Err(format!("expected a part and the number of parts, such as 2/4, of at most {MOST_PARTS}")),
        }
    }
}

/// Which checks run.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    pub part: Part,
    /// What takes long under a sanitizer has fewer steps.
    pub short: bool,
    /// Cases whose size is that of a large GPU are left out.
    pub small: bool,
}

/// Selects the checks and passes on what they find.
pub struct Report<'a> {
    scope: Scope,
    /// Number of checks asked about so far, including other parts.
    pub seen: usize,
    each: &'a mut dyn FnMut(Finding),
}

impl<'a> Report<'a> {
    pub fn new(scope: Scope, each: &'a mut dyn FnMut(Finding)) -> Self {
        Self { scope, seen: 0, each }
    }

    /// Whether the next check belongs to the part.
    pub fn takes(&mut self) -> bool {
        let turn = self.seen % self.scope.part.of + 1;
        self.seen += 1;
        turn == self.scope.part.number
    }

    pub fn add(&mut self, finding: Finding) {
        (self.each)(finding);
    }

    pub fn is_short(&self) -> bool {
        self.scope.short
    }

    pub fn is_small(&self) -> bool {
        self.scope.small
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_numbers_from_one_on() {
        assert_eq!("2/4".parse(), Ok(Part { number: 2, of: 4 }));
        assert_eq!("1/1".parse(), Ok(Part::ALL));
        for wrong in ["", "2", "0/4", "5/4", "1/0", "-1/4", "1/4/2", "a/b", "1/1001"] {
            assert!(wrong.parse::<Part>().is_err(), "{wrong}");
        }
    }
}
