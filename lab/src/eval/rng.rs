//! Seeded random numbers of problems. The same on every machine.

use dmschat::random::{GOLDEN, Random, mix64};

/// The numbers of one problem.
#[derive(Clone, Debug)]
pub struct Rng(Random);

impl Rng {
    /// Numbers of problem `index` of a stream, for example a task.
    pub fn new(seed: u64, stream: &str, index: usize) -> Self {
        let named = stream.bytes().fold(mix64(seed ^ GOLDEN), |h, byte| mix64(h ^ u64::from(byte)));
        Self(Random(mix64(named.wrapping_add(index as u64))))
    }

    /// A number below `n`, which is at least 1.
    pub fn below(&mut self, n: usize) -> usize {
        self.0.below(n)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as usize) as i64
    }

    /// Whether an event of this probability happens.
    pub fn chance(&mut self, probability: f64) -> bool {
        ((self.0.bits() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    pub fn choice<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// One of these texts.
    pub fn text(&mut self, texts: &[&'static str]) -> &'static str {
        texts[self.below(texts.len())]
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }

    /// `n` different items, in random order.
    pub fn sample<T: Clone>(&mut self, items: &[T], n: usize) -> Vec<T> {
        let mut items = items.to_vec();
        self.shuffle(&mut items);
        items.truncate(n);
        items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_repeats_and_differs_from_others() {
        let numbers = |seed, stream: &str, index| {
            let mut rng = Rng::new(seed, stream, index);
            (0..50).map(|_| rng.below(1000)).collect::<Vec<_>>()
        };
        let one = numbers(1, "sum", 0);
        assert_eq!(one, numbers(1, "sum", 0));
        for (seed, stream, index) in [(2, "sum", 0), (1, "sort", 0), (1, "sum", 1)] {
            assert_ne!(one, numbers(seed, stream, index));
        }
        let mut rng = Rng::new(7, "", 0);
        let mut seen = [0; 10];
        (0..10_000).for_each(|_| seen[rng.between(0, 9) as usize] += 1);
        assert!(seen.iter().all(|n| (900..1100).contains(n)), "{seen:?}");
        let mut drawn = rng.sample(&[1, 2, 3, 4], 4);
        drawn.sort_unstable();
        assert_eq!(drawn, [1, 2, 3, 4]);
    }
}
