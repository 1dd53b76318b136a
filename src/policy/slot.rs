//! Slots of a lane as policies see them.

use super::strength::STRENGTHS;

/// Slot of an incoming token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    Append,
    Overwrite(usize),
    /// The incoming token is the one to drop.
    Skip,
}

/// State of one lane that a policy reads and writes.
pub trait LaneSlots {
    fn meta(&self, slot: usize) -> SlotMeta;
    /// Writes to a slot, whose page becomes the lane's own first.
    fn set_meta(&mut self, slot: usize, meta: SlotMeta);
    /// Slot in an entry of the ring of newest tokens.
    fn ring(&self, entry: usize) -> usize;
    fn set_ring(&mut self, entry: usize, slot: usize);
    /// A new slot after the last one.
    fn append(&mut self) -> usize;
    /// Called with a slot whose token leaves the lane, before the slot is given away.
    fn leave(&mut self, _slot: usize) {}
}

/// Bits of a slot's position, which bound the tokens of a sequence.
pub const POSITION_BITS: u32 = 20;

/// A slot's u32: 20 bits of the token's position, 11 of its decision's strength, 1 of its mark. It
/// is stored beside K and V, because prefill masks, compaction and the panel read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotMeta(pub u32);

impl SlotMeta {
    /// `strength` is from [`strength()`](super::strength()).
    pub fn new(position: usize, strength: usize, marked: bool) -> Self {
        debug_assert!(position < 1 << POSITION_BITS && strength < STRENGTHS);
        SlotMeta((position << 12 | strength << 1) as u32 | u32::from(marked))
    }

    pub fn position(self) -> usize {
        (self.0 >> 12) as usize
    }

    /// Strength of the decision about the token, below [`STRENGTHS`]. 0 for a pinned token, in a
    /// dense cache, and for the newest token of a sequence until the next token's decision is
    /// known.
    pub fn strength(self) -> usize {
        (self.0 >> 1) as usize % STRENGTHS
    }

    pub fn marked(self) -> bool {
        self.0 & 1 == 1
    }
}
