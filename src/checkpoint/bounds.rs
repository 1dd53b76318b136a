//! The largest sizes that are believed of a checkpoint, each some times the largest model published for
//! the supported families. They keep every product of sizes inside 64 bits and every list that is built
//! before the tensors have been looked at small. Tensors of the stated shapes must then exist in the
//! files; the context has no tensor, and the engine's plan refuses what does not fit in memory.

/// 8 times Llama 3.1 405B.
pub const LAYERS: usize = 1024;
/// 8 times Llama 3.1 405B.
pub const HEADS: usize = 1024;
/// 4 times what any kernel or published model of these families has.
pub const HEAD_DIM: usize = 1024;
/// 4 times Llama 3.1 405B.
pub const HIDDEN: usize = 1 << 16;
/// 19 times Llama 3.1 405B.
pub const FFN: usize = 1 << 20;
/// 27 times Qwen3.
pub const VOCAB: usize = 1 << 22;
/// A slot stores its position and one mark bit in an i32.
pub const CONTEXT: usize = 1 << 30;
/// Bytes of a safetensors header: over 100,000 tensors. The largest published has some 2 MB.
pub const HEADER_BYTES: u64 = 32 << 20;

/// The largest products there are: bytes of one token's K and V in f32 over all layers, times the
/// context; and elements of a weight matrix.
const _: () = {
    let token_bytes = LAYERS * HEADS * (2 * size_of::<f32>() * HEAD_DIM + 4);
    assert!(token_bytes.checked_mul(CONTEXT).is_some());
    assert!(VOCAB.checked_mul(HIDDEN * size_of::<f32>()).is_some());
    assert!((HEADS * HEAD_DIM).checked_mul(HIDDEN * size_of::<f32>()).is_some());
};
