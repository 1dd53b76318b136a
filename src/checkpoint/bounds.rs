//! Largest sizes that a checkpoint may state, each a few times the size of the largest published
//! model of the supported families. They keep products of sizes within 64 bits, and keep lists
//! small that are built before the tensors are checked. The files must then have tensors of these
//! shapes. The context has no tensor, and the engine's planner refuses a context that does not fit
//! in memory.

use std::ops::Range;

/// 8 times Llama 3.1 405B.
pub const LAYERS: usize = 1024;
/// 8 times Llama 3.1 405B.
pub const HEADS: usize = 1024;
/// 4 times the value of any kernel or published model of these families.
pub const HEAD_DIM: usize = 1024;
/// Experts of a layer: 4 times the number in any published model.
pub const EXPERTS: usize = 2048;
/// Tokens of a delta net's convolution: 4 times Qwen3.5.
pub const KERNEL: usize = 16;
/// 4 times Llama 3.1 405B.
pub const HIDDEN: usize = 1 << 16;
/// 19 times Llama 3.1 405B.
pub const FFN: usize = 1 << 20;
/// Channels of the input that a layer has of its own: 16 times Gemma 4.
pub const LAYER_INPUT: usize = 1 << 12;
/// 3 times Qwen3, 2 times Gemma 3. A tokenizer of that size takes two to three seconds to read.
pub const VOCAB: usize = 1 << 19;
/// Merges of the largest vocabulary: 4 times the number in Gemma 3.
pub const MERGES: usize = 4 * VOCAB;
/// Control tokens and others that are not split. Gemma 3 has 6,415.
pub const ADDED_TOKENS: usize = 1 << 14;
/// A thousand times any published model.
pub const CONTEXT: usize = 1 << 30;
/// Tokens of a context that can be used: a slot stores its position in 20 bits.
pub const POSITIONS: usize = 1 << crate::policy::POSITION_BITS;
/// Bytes of a safetensors header, enough for 100,000 tensors. The largest published header has
/// about 2 MB.
pub const HEADER_BYTES: u64 = 32 << 20;

/// The largest products: bytes of K and V in f32 of all layers and the whole context, and elements
/// of a weight matrix.
const _: () = {
    let token_bytes = LAYERS * HEADS * (2 * size_of::<f32>() * HEAD_DIM + 4);
    assert!(token_bytes.checked_mul(CONTEXT).is_some());
    assert!(VOCAB.checked_mul(HIDDEN * size_of::<f32>()).is_some());
    assert!(VOCAB.checked_mul(LAYERS * LAYER_INPUT * size_of::<f32>()).is_some());
    assert!((HEADS * HEAD_DIM).checked_mul(HIDDEN * size_of::<f32>()).is_some());
};

/// The names of two tensors whose ranges in a file overlap, if any do.
pub fn overlap<'a>(ranges: impl Iterator<Item = (&'a String, &'a Range<usize>)>) -> Option<[&'a String; 2]> {
    let mut order: Vec<_> = ranges.filter(|(_, range)| !range.is_empty()).collect();
    order.sort_by_key(|(_, range)| range.start);
    order.windows(2).find(|pair| pair[0].1.end > pair[1].1.start).map(|pair| [pair[0].0, pair[1].0])
}
