//! Seeded random numbers: the same predictor from the same texts.

use crate::sampler::uniform;

pub struct Random {
    seed: u64,
    drawn: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { seed, drawn: 0 }
    }

    fn next(&mut self) -> f32 {
        self.drawn += 1;
        uniform(self.seed, self.drawn)
    }

    /// Uniform in -1..1.
    pub fn signed(&mut self) -> f32 {
        2.0 * self.next() - 1.0
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        (1..items.len()).rev().for_each(|i| items.swap(i, (self.next() * (i + 1) as f32) as usize % (i + 1)));
    }

    /// `most` of the numbers below `n` in order, or all.
    pub fn choose(&mut self, n: usize, most: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..n).collect();
        if n > most {
            self.shuffle(&mut all);
            all.truncate(most);
            all.sort_unstable();
        }
        all
    }
}
