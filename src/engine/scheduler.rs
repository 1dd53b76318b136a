//! How much to do in one step: pure arithmetic.

use std::time::Duration;

/// A cancel waits for one chunk at most.
const CHUNK: Duration = Duration::from_millis(100);
const SMALLEST: usize = 16;

/// Sizes prefill chunks so that each takes about a tenth of a second.
pub struct ChunkSizer {
    max: usize,
    size: usize,
}

impl ChunkSizer {
    pub fn new(max: usize) -> Self {
        Self { max, size: 64.min(max) }
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// Learns from a chunk of `tokens` that took `took`. Grows at most twofold: the first chunks
    /// touch cold pages and tell little.
    pub fn observe(&mut self, tokens: usize, took: Duration) {
        let per_token = took.as_secs_f64() / tokens.max(1) as f64;
        let fits = (CHUNK.as_secs_f64() / per_token.max(1e-9)) as usize;
        self.size = fits.clamp(SMALLEST.min(self.max), (2 * self.size).min(self.max));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_settle_at_a_tenth_of_a_second() {
        let mut sizer = ChunkSizer::new(512);
        for _ in 0..8 {
            let size = sizer.size();
            sizer.observe(size, Duration::from_micros(500 * size as u64));
        }
        assert_eq!(sizer.size(), 200);
        sizer.observe(200, Duration::from_secs(10));
        assert_eq!(sizer.size(), SMALLEST);
        assert_eq!(ChunkSizer::new(4).size(), 4);
    }
}
