//! What the threads of a call share and what each keeps, from call to call.

use super::super::simd::Format;
use super::weights::Sides;
use crate::codec::{Codec, Elements, unrotate};
use std::ops::Range;

/// Tokens of a span up to which pages are read in place.
pub(in crate::backend::cpu) const FEW_TOKENS: usize = 4;

/// Work shared by the threads of one call, kept from call to call.
#[derive(Default)]
pub(in crate::backend::cpu) struct Plan {
    pub groups: Vec<Group>,
    /// Each span's first group, and the tokens of its groups.
    pub spans: Vec<(usize, usize)>,
    pub own: OwnRows,
    /// `[spans, n_kv_heads]` stored keys by position, where a lane reads far rows too; else empty.
    pub orders: Vec<Vec<u32>>,
    /// `[groups, rows of the largest, keys of the largest + 2]`, where the threads share the keys
    /// of a group.
    pub scores: Vec<f32>,
    /// `[groups, rows of the largest, head_dim]`
    pub out: Vec<f32>,
}

pub(in crate::backend::cpu) struct Group {
    pub span: usize,
    pub head: usize,
    /// Tokens of the span.
    pub tokens: Range<usize>,
    /// Pages that it reads, where the policy reads pages.
    pub chosen: Chosen,
}

/// The step's own keys and values, `[n_tokens, n_kv_heads]`, as they will be stored: K and V
/// unpacked for the loops, side data.
#[derive(Default)]
pub(in crate::backend::cpu) struct OwnRows {
    pub bytes: Vec<u8>,
    pub heads: usize,
    pub k_bytes: usize,
    pub v_bytes: usize,
}

/// Scratch of one thread.
#[derive(Default)]
pub(in crate::backend::cpu) struct Scratch {
    /// `[rows, head_dim]`, scaled by 1/sqrt(head_dim).
    pub queries: Vec<f32>,
    /// `[rows, keys + 2]`
    pub scores: Vec<f32>,
    /// `[keys, head_dim]` of K, then of V.
    pub block: Vec<f32>,
    pub keys: Vec<Key>,
    pub sides: Sides,
    /// V of a lane, or one row of K or V, where rows are unpacked.
    pub codes: Vec<f32>,
    /// Slots to read, where the policy reads pages.
    pub order: Vec<u32>,
}

/// Takes the codec's rotation of values from rows of attention's output.
pub(in crate::backend::cpu) fn finish(codec: Codec, out: &mut [f32], d: usize) {
    if codec.rotates_values() {
        out.chunks_exact_mut(d).for_each(unrotate);
    }
}

/// Format of rows of K, and of V in whole bytes.
pub(in crate::backend::cpu) fn format(codec: Codec) -> Format {
    match codec.elements() {
        Elements::F32 => Format::F32,
        Elements::Bf16 => Format::Bf16,
        Elements::Fp8 => Format::Fp8,
        Elements::Int8 => Format::Int8,
    }
}

/// Pages that a group reads.
#[derive(Default)]
pub(in crate::backend::cpu) struct Chosen {
    pub q_heads: usize,
    /// `[pages, q_heads]` whether a head reads a page; empty where all read everything.
    pub pages: Vec<bool>,
    /// Keys that some head reads, the token's own among them; 0 where they are not counted.
    pub keys: usize,
}

/// A key that some row of a group sees.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu) struct Key {
    /// Slot, or token of the span after the stored slots.
    pub at: usize,
    /// Tokens of the group that see it.
    pub seen: (usize, usize),
}

impl OwnRows {
    /// K, V and side data of a row of the step.
    pub fn row(&self, row: usize, head: usize) -> (&[u8], &[u8], [u32; 2]) {
        let row_bytes = self.k_bytes + self.v_bytes + 8;
        let (k, rest) = self.bytes[(row * self.heads + head) * row_bytes..][..row_bytes].split_at(self.k_bytes);
        let (v, sides) = rest.split_at(self.v_bytes);
        let side = |at: usize| u32::from_le_bytes(sides[at..at + 4].try_into().expect("four bytes"));
        (k, v, [side(0), side(4)])
    }
}
