//! How many slots a lane may store.

use super::POSITION_BITS;
use std::fmt;
use std::str::FromStr;

/// Slots of a lane after each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    Slots(usize),
    /// Tokens for each slot, in units of 1 / [`Budget::UNIT`], so that every backend rounds alike.
    Ratio(u32),
}

impl Budget {
    /// Units of a ratio of 1.
    pub const UNIT: u32 = 256;
    /// Fewest slots under a ratio.
    pub const FEWEST: usize = 64;

    /// The budget that keeps one token in `ratio`, from 1 on.
    pub fn of_ratio(ratio: f32) -> Self {
        Self::Ratio((ratio.max(1.0) * Self::UNIT as f32).round() as u32)
    }

    /// Tokens for each slot; 1 for a number of slots.
    pub fn ratio(self) -> f64 {
        match self {
            Self::Slots(_) => 1.0,
            Self::Ratio(units) => f64::from(units) / f64::from(Self::UNIT),
        }
    }

    /// Slots of a lane to which `tokens` tokens were fed. Never less for more tokens.
    pub fn at(self, tokens: usize) -> usize {
        match self {
            Self::Slots(slots) => slots,
            Self::Ratio(units) => {
                (tokens as u64 * u64::from(Self::UNIT)).div_ceil(u64::from(units)).max(Self::FEWEST as u64) as usize
            }
        }
    }
}

/// Fewest slots: window's sinks and a few of the newest tokens.
const MIN_SLOTS: usize = 8;
const MAX_SLOTS: usize = 1 << POSITION_BITS;
const MAX_RATIO: f32 = 64.0;

/// `512` or `4x`, as `--budget` takes it.
impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match *self {
            Self::Slots(slots) => write!(f, "{slots}"),
            // The fewest digits that are read as these units.
            Self::Ratio(_) => {
                let rounded = [1.0, 10.0, 100.0].map(|unit| (self.ratio() * unit).round() / unit);
                let short = rounded.into_iter().find(|r| Self::of_ratio(*r as f32) == *self);
                write!(f, "{}x", short.unwrap_or(self.ratio()))
            }
        }
    }
}

impl FromStr for Budget {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let bad = || format!("{s:?} is not a budget, expected slots such as 512 or a ratio such as 4x");
        match s.strip_suffix('x') {
            Some(ratio) => match ratio.parse().ok().filter(|r: &f32| r.is_finite()).ok_or_else(bad)? {
                r if (1.0..=MAX_RATIO).contains(&r) => Ok(Self::of_ratio(r)),
                r => Err(format!("{r}x is out of range, expected 1x to {MAX_RATIO}x")),
            },
            None => match s.parse().map_err(|_| bad())? {
                n if (MIN_SLOTS..=MAX_SLOTS).contains(&n) => Ok(Self::Slots(n)),
                n => Err(format!("{n} is out of range, expected {MIN_SLOTS} to {MAX_SLOTS} slots")),
            },
        }
    }
}

crate::words::text_serde!(Budget, "slots such as 512, or a ratio such as \"4x\"");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_rounded_up_and_has_a_floor() {
        let budget = Budget::of_ratio(2.5);
        assert_eq!([1, 160, 161, 163, 1000].map(|n| budget.at(n)), [64, 64, 65, 66, 400]);
        for text in ["512", "2.5x", "2.3x", "4x", "63.99x"] {
            assert_eq!(text.parse::<Budget>().unwrap().to_string(), text);
        }
    }
}
