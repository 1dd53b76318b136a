//! Presence of a conversation's tokens in the cache.

use std::ops::Range;

/// Lanes of a sequence to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneFilter {
    /// `None`: all layers.
    pub layer: Option<usize>,
    /// `None`: all KV heads.
    pub head: Option<usize>,
}

impl LaneFilter {
    pub fn selects(&self, layer: usize, head: usize) -> bool {
        self.layer.is_none_or(|l| l == layer) && self.head.is_none_or(|h| h == head)
    }
}

/// State of one token in a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaneState {
    #[default]
    Dropped,
    Kept,
    /// Stored, and dropped once it is outside the window, unless eviction is off.
    Marked,
}

/// Asks for a [`Presence`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PresenceRequest {
    pub filter: LaneFilter,
    /// The token whose state in every lane is asked for.
    pub position: usize,
    /// The text that the front end has: [`Presence::revision`], and the number of its tokens.
    pub revision: u64,
    pub known: usize,
}

/// How many lanes store each token of a conversation, with the tokens' text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Presence {
    /// Text of the tokens from position `from` on: an extension of the text that was known if
    /// `from` is not 0.
    pub text: String,
    /// End in `text` of each of these tokens. A token that ends inside a character has the end of
    /// the one before it.
    pub ends: Vec<u32>,
    pub from: usize,
    /// Changes if a token before the end of the text known so far becomes another.
    pub revision: u64,
    pub filter: LaneFilter,
    /// Number of counted lanes: the lanes that the filter selects and whose tokens the policy
    /// chooses.
    pub lanes: usize,
    /// For each position, from 0 on, the counted lanes that store it.
    pub kept: Vec<u16>,
    /// Lanes of `kept` that have marked the token for eviction.
    pub marked: Vec<u16>,
    /// For each position, the counted lanes that have it in a far page, and those of them that read
    /// it; empty where rows that leave are gone.
    pub far: Vec<u16>,
    pub near: Vec<u16>,
    /// Tokens between a token and the one whose decision marks it: 0 or 1.
    pub decided_after: usize,
    pub position: usize,
    /// Positions that are pinned, in order.
    pub pins: Vec<Range<usize>>,
    /// Number of tokens when tokens were last dropped for lack of memory, if that happened.
    pub forgot: Option<usize>,
    /// State of the token at `position` in each lane: `[n_layers][n_kv_heads]`, whatever the
    /// filter.
    pub of_position: Vec<Vec<LaneState>>,
}

impl Presence {
    /// Whether the token at `position` is pinned.
    pub fn is_pinned(&self, position: usize) -> bool {
        self.pins.iter().any(|pin| pin.contains(&position))
    }

    /// Mean share of the counted lanes that have a token in a far page.
    pub fn far_share(&self) -> f64 {
        let rows: u64 = self.far.iter().map(|&lanes| u64::from(lanes)).sum();
        rows as f64 / (self.far.len() * self.lanes).max(1) as f64
    }

    /// Whether at least half of the lanes that have the token at `position` in a far page read it
    /// there.
    pub fn is_found(&self, position: usize) -> bool {
        let [far, near] = [&self.far, &self.near].map(|lanes| lanes.get(position).copied().unwrap_or(0));
        far > 0 && 2 * near >= far
    }

    /// Whether more than half of the counted lanes neither store the token at `position` nor have
    /// it in a far page, where rows that leave are kept.
    pub fn is_gone(&self, position: usize) -> bool {
        let of = |lanes: &[u16]| lanes.get(position).copied().map(usize::from);
        of(&self.far).is_some_and(|far| 2 * (of(&self.kept).unwrap_or(0) + far) < self.lanes)
    }

    /// Share of the counted lanes that store the token at `position`.
    pub fn share(&self, position: usize) -> f64 {
        self.kept.get(position).map_or(0.0, |&kept| f64::from(kept) / self.lanes.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_found_by_half_of_its_far_lanes_and_gone_where_most_have_it_nowhere() {
        let presence = Presence {
            lanes: 32,
            kept: vec![32, 12, 10, 12],
            far: vec![0, 20, 5, 4],
            near: vec![0, 10, 2, 4],
            ..Presence::default()
        };
        let each = |of: fn(&Presence, usize) -> bool| (0..5).map(|token| of(&presence, token)).collect::<Vec<_>>();
        assert_eq!(each(Presence::is_found), [false, true, false, true, false]);
        assert_eq!(each(Presence::is_gone), [false, false, true, false, false]);
        let without = Presence { far: Vec::new(), near: Vec::new(), ..presence };
        assert!((0..4).all(|token| !without.is_found(token) && !without.is_gone(token)), "no row is kept");
    }
}
