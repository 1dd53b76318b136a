//! Which slots live: the placement rule of each policy, as pure per-head code. Every backend's
//! `place` op must agree with it slot for slot.
//!
//! A *lane* is one KV head of one sequence in one layer. Slots of a lane are numbered 0.. without
//! holes: a token either appends a slot or overwrites one.

/// Where the incoming token of a lane goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    Append,
    Overwrite(usize),
}

/// How a model decides what to forget, fixed when it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Nothing is ever dropped.
    Dense,
    Dms(Dms),
}

/// Dynamic Memory Sparsification (arXiv 2506.05345): delayed eviction with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dms {
    /// W: a marked token stays visible to the W tokens after it.
    pub window: usize,
    pub shift: Shift,
}

/// Whose mark a decision is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shift {
    /// The decision computed at token t marks token t (dms_metadata.json checkpoints).
    Same,
    /// The decision computed at token t+1 marks token t (NVIDIA's checkpoints, adapters).
    Previous,
}

impl Dms {
    /// Slots that hold the newest token and the W before it.
    pub fn ring_len(&self) -> usize {
        self.window + 1
    }

    /// Whether the key at `key` is visible to the query at `query` (`key <= query`).
    pub fn visible(&self, query: usize, key: usize, marked: bool, eviction: bool) -> bool {
        !eviction || !marked || query - key <= self.window
    }
}

impl Policy {
    pub fn name(&self) -> &'static str {
        match self {
            Policy::Dense => "dense",
            Policy::Dms(_) => "dms",
        }
    }

    pub fn dms(&self) -> Option<Dms> {
        match self {
            Policy::Dense => None,
            Policy::Dms(d) => Some(*d),
        }
    }

    /// Most pages of a lane that `n` tokens write to, of those it has: the newest token's mark, and one
    /// overwritten slot or the page appended to, each.
    pub fn most_written(&self, n: usize) -> usize {
        self.dms().map_or(1, |d| n.min(d.ring_len()) + 1)
    }

    /// Entries of a lane's ring, which maps the newest tokens to their slots; 0 without a window.
    pub fn ring_len(&self) -> usize {
        self.dms().map_or(0, |d| d.ring_len())
    }

    /// Placement of the incoming token, given the slot and mark of the token that leaves the
    /// window with its arrival (absent while the window is not full).
    pub fn place(&self, leaving: Option<(usize, bool)>, eviction: bool) -> Placement {
        match (self, leaving) {
            (Policy::Dms(_), Some((slot, true))) if eviction => Placement::Overwrite(slot),
            _ => Placement::Append,
        }
    }
}

/// A slot's i32: the token's position and whether it is marked. Kept beside K and V because
/// prefill masks, compaction and the panel read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotMeta(pub i32);

impl SlotMeta {
    pub fn new(position: usize, marked: bool) -> Self {
        SlotMeta(((position as i32) << 1) | marked as i32)
    }

    pub fn position(self) -> usize {
        (self.0 >> 1) as usize
    }

    pub fn marked(self) -> bool {
        self.0 & 1 == 1
    }

    pub fn mark(self) -> Self {
        SlotMeta(self.0 | 1)
    }
}
