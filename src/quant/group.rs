//! A group of columns whose words lie together: how its codes are chosen, and sums whose order is
//! part of the format.

/// Columns of a row in a tile. They share a scale, or each half of them has its own.
pub const GROUP: usize = 64;
/// Neighbouring columns of the same half: columns 0 to 7 are of the first half, 8 to 15 of the
/// second, 16 to 23 of the first and so on, as a lane of a GPU reads them.
pub const EIGHT: usize = 8;
/// Rows of a strip.
pub const TILE_ROWS: usize = 16;

/// Codes of one group with scale and zero point of each half; where both share them, the second
/// word is not stored.
pub struct Group {
    pub codes: [u8; GROUP],
    pub words: [u16; 2],
}

/// How the codes of a matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Bits of a code below the four of the first plane: 0, 2 or 4.
    pub low_bits: usize,
    /// Words of a row in a tile: one, or one for each half.
    pub words: usize,
}

impl Form {
    pub fn bits(self) -> usize {
        4 + self.low_bits
    }
}

/// One code.
pub trait GroupCode {
    fn name(&self) -> &'static str;
    fn form(&self) -> Form;
    /// Whether the importance of columns changes which codes are chosen.
    fn uses_importance(&self) -> bool {
        false
    }
    /// Chooses codes for `x`. `weights` are the importance of each column's squared error.
    fn choose(&self, x: &[f32; GROUP], weights: &[f32; GROUP]) -> Group;
    /// The word nearest to `scale` and `zero`.
    fn word(&self, scale: f32, zero: f32) -> u16;
    /// Scale and zero point of a word.
    fn scale_zero(&self, word: u16) -> (f32, f32);
}

/// The nearest integer, ties to even, of a value below 2^22. Unlike `f32::round_ties_even` it is
/// two additions on every machine, so that loops over it become vector code.
#[inline(always)]
pub fn nearest(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT) - SHIFT
}

/// Lanes in which a group's sums are accumulated: lane i takes columns i, i + 16, i + 32 and i +
/// 48, in this order. Then the lanes are added by halves. The order is part of the format.
pub const LANES: usize = 16;

#[inline(always)]
pub fn sum(mut lanes: [f32; LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

/// The least and the largest of some values and of 0.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
pub fn range<const N: usize>(x: &[f32; N]) -> (f32, f32) {
    let (mut low, mut high) = ([0f32; LANES], [0f32; LANES]);
    for x in x.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            low[i] = if x[i] < low[i] { x[i] } else { low[i] };
            high[i] = if x[i] > high[i] { x[i] } else { high[i] };
        }
    }
    (low.iter().fold(0.0, |m, &v| m.min(v)), high.iter().fold(0.0, |m, &v| m.max(v)))
}
