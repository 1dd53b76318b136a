//! `dense`: every token appends a slot; nothing is marked or dropped.

use super::{LaneSlots, SlotMeta};

/// Stores token `n` and returns its slot.
pub fn store(lane: &mut impl LaneSlots, n: usize) -> usize {
    let slot = lane.append();
    lane.set_meta(slot, SlotMeta::new(n, 0, false));
    slot
}
