//! Far pages: a second tier for the rows that leave a lane. Eviction does not know the questions
//! that come later. When the queries of a question match a far page, attention reads it again.
//!
//! The rule, for one lane:
//!
//! 1. *Leaving.* A row that leaves the lane is appended to its far rows as it was stored, with its
//!    position. Rows that leave together are appended in the order of their positions. A page has
//!    [`Far::ROWS`] rows. A full page has an index, the mean of its keys as attention reads them.
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
    /// Prompt tokens between two choices. The newest [`Self::QUERIES`] queries choose. What leaves
    /// between two choices is read until the next one, so a longer block reads more, diverges less
    /// and lets steps be as long as those without far pages.
    pub const PROMPT_BLOCK: usize = 2048;
    /// Default of [`Self::pages`].
    pub const DEFAULT_PAGES: usize = 16;
    /// Maximum of [`Self::pages`].
    pub const MOST_PAGES: usize = 4096;
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
    fn the_query_that_fits_best_gives_the_score() {
        let mean: Vec<f32> = (0..10).map(|i| i as f32).collect();
        let one = |at: usize| (0..10).map(move |i| if i == at { 1.0 } else { 0.0 });
        let queries: Vec<f32> = one(3).chain(one(9)).chain(one(0)).collect();
        assert_eq!(score(&queries, &mean), 9.0);
        assert_eq!(score(&queries[..10], &mean), 3.0);
        assert_eq!(score(&[], &mean), f32::NEG_INFINITY);
    }
}
