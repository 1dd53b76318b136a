//! `dms`: Dynamic Memory Sparsification (arXiv 2506.05345), delayed eviction with a window. The
//! rule is stated here once, in its sequential form: the oracle of every parallel one. CUDA twin:
//! `kernels/policy_dms.cuh`.

use super::{LaneSlots, Placement, SlotMeta, strength};

/// A token whose decision exceeds the dial is marked. It stays visible to the `window` tokens after
/// it; then its slot goes to the token that arrives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dms {
    /// W: a marked token stays visible to the W tokens after it.
    pub window: usize,
    pub shift: Shift,
    /// Tokens at positions below this are never marked: attention sinks. 0 for trained DMS models.
    pub sinks: usize,
    /// Threshold that a decision must exceed to mark: 0 as trained, more to keep more. Each
    /// sequence has its own.
    pub dial: f32,
}

/// Which token a decision marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shift {
    /// The decision computed at token t marks token t (dms_metadata.json checkpoints).
    Same,
    /// The decision computed at token t + 1 marks token t (NVIDIA's checkpoints, adapters).
    Previous,
}

impl Dms {
    /// A rule without sinks, with the dial as trained.
    pub const fn new(window: usize, shift: Shift) -> Self {
        Self { window, shift, sinks: 0, dial: 0.0 }
    }

    /// Entries of the ring that maps the newest token and the W before it to their slots.
    pub fn ring_len(&self) -> usize {
        self.window + 1
    }

    /// Whether a decision marks the token at `position`.
    pub fn marks(&self, position: usize, decision: f32) -> bool {
        decision > self.dial && position >= self.sinks
    }

    /// Mark of row `row` of a step whose first row is at position `base`, as far as the step's own
    /// decisions determine it. `decision(i)` is row i's decision, `None` after the last row.
    pub fn own_mark(&self, base: usize, row: usize, decision: impl Fn(usize) -> Option<f32>) -> bool {
        let deciding = match self.shift {
            Shift::Same => row,
            Shift::Previous => row + 1,
        };
        decision(deciding).is_some_and(|d| self.marks(base + row, d))
    }

    /// Position of the stored token that a step's first decision marks, where the step begins at
    /// `base`.
    fn marked_by_first(&self, base: usize) -> Option<usize> {
        match self.shift {
            Shift::Same => None,
            Shift::Previous => base.checked_sub(1),
        }
    }

    /// Mark of a stored token in a step that begins at `base` and whose first decision is `first`:
    /// the mark of its slot, or set by the decision.
    pub fn stored_mark(&self, base: usize, meta: SlotMeta, first: Option<f32>) -> bool {
        let position = meta.position();
        let by_first =
            || self.marked_by_first(base) == Some(position) && first.is_some_and(|d| self.marks(position, d));
        meta.marked() || by_first()
    }

    /// Position of the last query that sees a marked key.
    pub fn last_to_see(&self, key: usize) -> usize {
        key + self.window
    }

    /// Whether the key at `key` is visible to the query at `query` (`key <= query`) while eviction
    /// is on.
    pub fn visible(&self, query: usize, key: usize, marked: bool) -> bool {
        !marked || query <= self.last_to_see(key)
    }

    /// Metadata of the token at `position` once its decision is known.
    fn decided(&self, position: usize, decision: f32) -> SlotMeta {
        SlotMeta::new(position, strength(decision), self.marks(position, decision))
    }

    /// Whether compaction drops a slot of a sequence of `n` tokens: if it is outside the window,
    /// and marked or at least as strong as `threshold`.
    pub fn drops(&self, n: usize, meta: SlotMeta, threshold: usize) -> bool {
        let position = meta.position();
        let weak = position >= self.sinks && meta.strength() >= threshold;
        n > 0 && (meta.marked() || weak) && !self.visible(n - 1, position, true)
    }

    /// Stores token `n` in its lane and returns its slot: the mark that its decision sets, the
    /// slot's metadata, the ring.
    pub fn store(&self, lane: &mut impl LaneSlots, n: usize, decision: f32, eviction: bool) -> (usize, Placement) {
        if let Some(previous) = self.marked_by_first(n) {
            let slot = lane.ring(previous % self.ring_len());
            lane.set_meta(slot, self.decided(previous, decision));
        }
        let entry = n % self.ring_len();
        // The token W + 1 before this one leaves the window now.
        let leaving = (n >= self.ring_len()).then(|| lane.ring(entry));
        let placement = match leaving {
            Some(slot) if eviction && lane.meta(slot).marked() => Placement::Overwrite(slot),
            _ => Placement::Append,
        };
        let slot = match placement {
            Placement::Overwrite(slot) => {
                lane.leave(slot);
                slot
            }
            Placement::Append | Placement::Skip => lane.append(),
        };
        let meta = match self.shift {
            Shift::Same => self.decided(n, decision),
            Shift::Previous => SlotMeta::new(n, 0, false),
        };
        lane.set_meta(slot, meta);
        lane.set_ring(entry, slot);
        (slot, placement)
    }
}
