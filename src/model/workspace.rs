//! All scratch of a forward pass, sized once.

use super::Model;
use crate::backend::{Backend, OutOfMemory};
use crate::checkpoint::ModelConfig;
use crate::protocol::Token;

pub struct Workspace<B: Backend> {
    pub max_tokens: usize,
    pub max_logits: usize,
    n_kv_heads: usize,
    /// `[max_tokens]` the step's tokens.
    pub tokens: B::Buf<Token>,
    /// `[max_logits, vocab]`
    pub logits: B::Buf<f32>,
    /// `[max_logits]`
    pub sampled: B::Buf<Token>,
    /// `[1]` first layer whose input was not finite, `i32::MAX` when all were.
    pub fault: B::Buf<i32>,
    /// Residual stream `[max_tokens, hidden]`.
    pub(super) x: B::Acts,
    /// Normed input of the next block; after a pass, of the output head.
    pub(super) h: B::Acts,
    /// `[max_tokens, (n_q_heads + 2 n_kv_heads) * head_dim]`
    pub(super) qkv: B::Acts,
    /// `[max_tokens, n_q_heads * head_dim]`
    pub(super) att: B::Acts,
    /// What the residual takes next, `[max_tokens, hidden]`.
    pub(super) proj: B::Acts,
    /// `[max_tokens, 2 ffn]`, where the gate is not part of the product.
    pub(super) gate_up: B::Acts,
    /// `[max_tokens, ffn]`
    pub(super) act: B::Acts,
    /// Rows of `h` to read logits of, `[max_logits, hidden]`.
    pub(super) chosen: B::Acts,
    /// Normed input of an adapter, `[max_tokens, hidden]`.
    pub(super) adapter: B::Acts,
    /// Adapter logits before scale and offset, `[max_tokens, n_kv_heads]`.
    pub(super) raw: B::Acts,
    /// Eviction decisions of one layer, `[max_tokens, n_kv_heads]`; positive marks.
    pub(super) decisions: B::Buf<f32>,
}

/// Bytes of scratch for one token of a step, were all of it f32.
pub fn step_token_bytes(c: &ModelConfig) -> usize {
    let heads = c.n_q_heads * c.head_dim;
    let qkv = heads + 2 * c.n_kv_heads * c.head_dim;
    size_of::<f32>() * (4 * c.hidden + qkv + heads + 3 * c.ffn)
}

impl<B: Backend> Workspace<B> {
    /// Scratch for steps of up to `max_tokens` tokens and `max_logits` rows of logits at once.
    pub fn new(b: &B, model: &Model<B>, max_tokens: usize, max_logits: usize) -> Result<Self, OutOfMemory> {
        let (c, rows) = (&model.config, max_tokens.max(max_logits));
        let mut fault = b.alloc(1)?;
        b.write(&mut fault, 0, &[i32::MAX]);
        let readers = [&model.each(|l| &l.qkv)[..], &model.each(|l| &l.gate_up), &[model.head()]].concat();
        let h = b.operand(rows, c.hidden, &readers)?;
        let act = b.operand(rows, c.ffn, &model.each(|l| &l.down))?;
        let adapters = model.adapters();
        let adapter_rows = if adapters.is_empty() { 0 } else { rows };
        b.reserve_sampling(max_logits)?;
        Ok(Self {
            max_tokens,
            max_logits,
            n_kv_heads: c.n_kv_heads,
            tokens: b.alloc(max_tokens)?,
            logits: b.alloc(max_logits * c.vocab)?,
            sampled: b.alloc(max_logits)?,
            fault,
            x: b.acts(rows, c.hidden)?,
            qkv: b.acts(rows, (c.n_q_heads + 2 * c.n_kv_heads) * c.head_dim)?,
            att: b.operand(rows, c.n_q_heads * c.head_dim, &model.each(|l| &l.o))?,
            proj: b.acts(rows, c.hidden)?,
            gate_up: b.gate_scratch(rows, 2 * c.ffn, &h, &act)?,
            chosen: b.operand(max_logits, c.hidden, &readers)?,
            adapter: b.operand(adapter_rows, c.hidden, &adapters)?,
            raw: b.acts(adapter_rows, c.n_kv_heads)?,
            decisions: b.alloc(rows * c.n_kv_heads)?,
            h,
            act,
        })
    }

    /// Sets the decision of every token, where the model makes none.
    pub fn fill_decisions(&mut self, b: &B, decision: f32) {
        let rows = self.max_tokens.max(self.max_logits);
        b.write(&mut self.decisions, 0, &vec![decision; rows * self.n_kv_heads]);
    }
}
