//! A checksum of large files. It finds accidents, not forgeries.

/// A checksum of bytes at the speed of memory. Every step maps the state one to one, so that a
/// change within one word is always found, and any other but for one in 2^64.
pub fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut lanes = [seed, seed ^ FACTOR, seed.rotate_left(32), !seed];
    let mut mix = |chunk: &[u8]| {
        for (lane, word) in lanes.iter_mut().zip(chunk.chunks_exact(8)) {
            let word: u64 = bytemuck::pod_read_unaligned(word);
            *lane = (*lane ^ word).wrapping_mul(FACTOR).rotate_left(29);
        }
    };
    let chunks = bytes.chunks_exact(32);
    let mut last = [0; 32];
    last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    chunks.for_each(&mut mix);
    mix(&last);
    lanes.iter().fold(seed ^ bytes.len() as u64, |sum, lane| {
        let mixed = (sum ^ lane).wrapping_mul(FACTOR);
        mixed ^ (mixed >> 32)
    })
}
