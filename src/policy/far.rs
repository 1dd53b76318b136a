//! Far pages: a second tier for the rows that leave a lane. Eviction does not know the questions
//! that come later. When the queries of a question match a far page, attention reads it again.
//!
//! The rule, for one lane:
//!
//! 1. *Leaving.* A row that leaves the lane is appended to its far rows as it was stored, with its
//!    position. Rows that leave together are appended in the order of their positions. A page has
//!    [`Far::ROWS`] rows. A full page has an [`Index`], the mean of its keys as attention reads
//!    them.
//! 2. *Choosing* happens between steps. The [`Far::pages`] full pages with the greatest
//!    [scores](score) are *near* from then on, and all other full pages are not. Ties go to the
//!    older page.
//! 3. *Attending.* Every query of a step attends to the lane's slots, to its near pages, to the
//!    pages filled since the last choice and to the page that is filling, at the rows' true
//!    positions. So no row becomes invisible inside a step: a page leaves attention only by a
//!    choice or when it is dropped for good, both between steps.
//!
//! 4. *Held pages.* A page with a row at a pinned position is near, and so is every page while
//!    eviction is off: from the pin or the switch on, beside those that choices choose. Once the
//!    pin is taken back or eviction is on again, the next choice decides.
//!
//! Nothing else changes: decisions, marks, slot assignment and the ring are those of a cache
//! without far pages.

/// Settings of a cache that keeps the rows that leave its lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Far {
    /// Maximum pages of a lane that a choice makes near.
    pub pages: usize,
}

impl Far {
    /// Rows of a page.
    pub const ROWS: usize = 32;
    /// Newest queries of a sequence that are kept for choices.
    pub const QUERIES: usize = 32;
    /// Generated tokens between two choices. Their queries choose.
    pub const ANSWER_BLOCK: usize = 16;
    /// Fewest prompt tokens between two choices: [`Self::prompt_block`].
    pub const PROMPT_BLOCK: usize = 2048;
    /// Default of [`Self::pages`].
    pub const DEFAULT_PAGES: usize = 16;
    /// Maximum of [`Self::pages`].
    pub const MOST_PAGES: usize = 4096;

    /// Prompt tokens between two choices where prompts are fed in steps of `step` tokens. The
    /// newest [`Self::QUERIES`] queries choose. What leaves between two choices is read until the
    /// next one, so a longer block diverges less, and reads more if it is longer than a step:
    /// within a step every query reads all earlier tokens of the step anyway.
    pub fn prompt_block(step: usize) -> usize {
        step.max(Self::PROMPT_BLOCK)
    }

    /// Most rows of a lane that attention reads beside its slots, where a step has at most `step`
    /// tokens and no page is held: the pages that a choice brings, the page that is filling, and
    /// what leaves until the next choice.
    pub fn near_rows(self, step: usize) -> usize {
        (self.pages + 1) * Self::ROWS + Self::prompt_block(step)
    }
}

/// Index of a page: the mean of its keys, `[head_dim]`, in four bits a channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Index {
    /// A seventh of the greatest magnitude of a channel.
    scale: f32,
    /// Two channels a byte, the first in its low bits: multiples of the scale from -7 to 7, and
    /// [`Self::ZERO`] more.
    codes: Box<[u8]>,
}

impl Index {
    /// Code of 0.
    const ZERO: i32 = 8;

    /// Bytes of an index: the scale and the codes.
    pub fn bytes(head_dim: usize) -> usize {
        size_of::<f32>() + head_dim.div_ceil(2)
    }

    /// Rounds the mean of a page's keys to the nearest codes, ties to the even multiple.
    pub fn of(mean: &[f32]) -> Self {
        let scale = mean.iter().fold(0.0, |most: f32, x| most.max(x.abs())) / 7.0;
        let code = |x: &f32| Self::ZERO + if scale > 0.0 { (x / scale).round_ties_even() as i32 } else { 0 };
        let byte = |pair: &[f32]| (code(&pair[0]) | pair.get(1).map_or(0, code) << 4) as u8;
        Self { scale, codes: mean.chunks(2).map(byte).collect() }
    }

    /// Reads what [`Self::write`] has written.
    pub fn read(bytes: &[u8]) -> Self {
        let (scale, codes) = bytes.split_at(size_of::<f32>());
        Self { scale: bytemuck::pod_read_unaligned(scale), codes: Box::from(codes) }
    }

    /// Appends the scale, in the machine's byte order, and the codes.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.scale.to_ne_bytes());
        out.extend_from_slice(&self.codes);
    }

    /// Whether a score can be computed with it.
    pub fn is_finite(&self) -> bool {
        (0.0..f32::INFINITY).contains(&self.scale)
    }

    /// The channels as they are scored.
    pub fn decode(&self, out: &mut [f32]) {
        let codes = self.codes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
        out.iter_mut().zip(codes).for_each(|(x, code)| *x = (i32::from(code) - Self::ZERO) as f32 * self.scale);
    }
}

/// Score of a page: the greatest dot product of its index with a query. `queries` is
/// `[n, head_dim]`, `mean` `[head_dim]`. The order of the sums is fixed, so that every machine
/// makes the same choice with any number of threads.
pub fn score(queries: &[f32], mean: &[f32]) -> f32 {
    const LANES: usize = 8;
    let dot = |query: &[f32]| {
        let mut sums = [0.0; LANES];
        for (query, mean) in query.chunks(LANES).zip(mean.chunks(LANES)) {
            sums.iter_mut().zip(query.iter().zip(mean)).for_each(|(sum, (q, m))| *sum += q * m);
        }
        sums.iter().sum::<f32>()
    };
    queries.chunks_exact(mean.len()).map(dot).fold(f32::NEG_INFINITY, f32::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_near_its_mean() {
        let mean: Vec<f32> = (0..40).map(|i| (i * 37 % 100) as f32 / 9.0 - 5.0).collect();
        let (index, mut read) = (Index::of(&mean), vec![0.0; 40]);
        index.decode(&mut read);
        let most = mean.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        assert!(mean.iter().zip(&read).all(|(a, b)| (a - b).abs() <= most / 13.99), "{mean:?} {read:?}");
        let mut bytes = vec![7];
        index.write(&mut bytes);
        assert!(bytes.len() == 1 + Index::bytes(40) && Index::read(&bytes[1..]) == index);
        read.truncate(3);
        Index::of(&[0.0; 3]).decode(&mut read);
        assert_eq!(read, [0.0; 3]);
    }

    #[test]
    fn the_query_that_fits_best_gives_the_score() {
        let mean: Vec<f32> = (0..10).map(|i| i as f32).collect();
        let one = |at: usize| (0..10).map(move |i| if i == at { 1.0 } else { 0.0 });
        let queries: Vec<f32> = one(3).chain(one(9)).chain(one(0)).collect();
        assert_eq!(score(&queries, &mean), 9.0);
        assert_eq!(score(&queries[..10], &mean), 3.0);
        assert_eq!(score(&[], &mean), f32::NEG_INFINITY);
    }
}
