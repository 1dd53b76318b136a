//! How many slots a lane may store.

use std::fmt;

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

/// `512` or `4x`, as `--budget` takes it.
impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match *self {
            Self::Slots(slots) => write!(f, "{slots}"),
            Self::Ratio(units) => write!(f, "{}x", f64::from(units) / f64::from(Self::UNIT)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_rounded_up_and_has_a_floor() {
        let budget = Budget::of_ratio(2.5);
        assert_eq!([1, 160, 161, 163, 1000].map(|n| budget.at(n)), [64, 64, 65, 66, 400]);
        assert_eq!((budget.to_string(), Budget::Slots(512).to_string()), ("2.5x".into(), "512".into()));
    }
}
