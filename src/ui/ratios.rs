//! The compression ratio over the conversation, for the panel.

/// Compression ratio by tokens fed, thinned out when long.
#[derive(Clone, Debug)]
pub struct RatioHistory {
    /// Tokens fed, and the ratio then.
    points: Vec<(usize, f64)>,
    /// Tokens between two points.
    step: usize,
}

impl Default for RatioHistory {
    fn default() -> Self {
        Self { points: Vec::new(), step: 1 }
    }
}

impl RatioHistory {
    const MAX: usize = 1024;

    pub fn push(&mut self, tokens: usize, ratio: Option<f64>) {
        // Undo and new conversations go back.
        while self.points.last().is_some_and(|(t, _)| *t > tokens) {
            self.points.pop();
        }
        let Some(ratio) = ratio.filter(|r| r.is_finite()) else { return };
        match self.points.last_mut() {
            Some((t, r)) if *t == tokens => *r = ratio,
            Some((t, _)) if tokens < *t + self.step => {}
            _ => self.points.push((tokens, ratio)),
        }
        if self.points.len() > Self::MAX {
            let mut n = 0;
            self.points.retain(|_| {
                n += 1;
                n % 2 == 1
            });
            self.step *= 2;
        }
    }

    pub fn points(&self) -> &[(usize, f64)] {
        &self.points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_history_is_bounded_and_follows_undo() {
        let mut history = RatioHistory::default();
        for t in 0..100_000 {
            history.push(t, Some(1.0 + t as f64));
        }
        assert!(history.points().len() <= RatioHistory::MAX);
        history.push(500, Some(2.0));
        assert!(history.points().iter().all(|(t, _)| *t <= 500));
        history.push(0, None);
        assert!(history.points().len() <= 1);
    }
}
