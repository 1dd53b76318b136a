//! Far pages: a second tier for the rows that leave a lane. Eviction is blind to the question that
//! comes later; a far page is found again by the queries that ask it.
//!
//! The rule, for one lane:
//!
//! 1. *Leaving.* A row that leaves the lane is appended to its far rows as it was stored, with its
//!    position. Rows that leave at once are appended in the order of their positions. [`Far::ROWS`]
//!    of them are a page. A full page has an index, the mean of its keys as attention reads them.
//! 2. *Choosing* happens between steps. Of the full pages the [`Far::pages`] with the greatest
//!    [scores](score) are *near* from then on, and all others are not. Ties go to the older page.
//! 3. *Attending.* Every query of a step attends to the lane's slots, to its near pages and to all
//!    rows that have left since the last choice, with their true positions. So nothing becomes
//!    invisible inside a step, and a page leaves attention by a choice only.
//!
//! Nothing else changes: decisions, marks, slot assignment and the ring are those of a cache
//! without far pages.

/// The setting of a cache that keeps the rows that leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Far {
    /// Most full pages of a lane that a choice brings near.
    pub pages: usize,
}

impl Far {
    /// Rows of a page.
    pub const ROWS: usize = 32;
    /// Newest queries of a sequence that are kept for choices.
    pub const QUERIES: usize = 32;
    /// Generated tokens between two choices; their queries choose.
    pub const ANSWER_BLOCK: usize = 16;
    /// Tokens of a prompt between two choices, of which the newest [`Self::QUERIES`] choose.
    pub const PROMPT_BLOCK: usize = 128;
    /// Pages that a choice brings near unless the user says otherwise.
    pub const DEFAULT_PAGES: usize = 16;
    /// Most pages that a user may ask for.
    pub const MOST_PAGES: usize = 4096;
}

/// Score of a page: the greatest dot product of its index with a query. `queries` is
/// `[n, head_dim]`, `mean` `[head_dim]`. The sums have one order, so that all machines and numbers
/// of threads choose alike.
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
