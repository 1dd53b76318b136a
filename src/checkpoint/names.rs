//! The tensors a configuration calls for, by their Hugging Face names.

use super::config::{DmsVariant, ModelConfig};

/// Name and shape of every tensor the forward pass reads. Linear weights are `[out, in]`.
pub fn expected(c: &ModelConfig) -> Vec<(String, Vec<usize>)> {
    let mut out = vec![("model.embed_tokens.weight".to_owned(), vec![c.vocab, c.hidden])];
    for layer in 0..c.n_layers {
        layer_tensors(c, layer, &mut out);
        if c.dms.as_ref().is_some_and(|d| d.variant == DmsVariant::Adapter) {
            out.extend(adapter_tensors(c, layer));
        }
    }
    out.push(("model.norm.weight".to_owned(), vec![c.hidden]));
    if !c.tied {
        out.push(("lm_head.weight".to_owned(), vec![c.vocab, c.hidden]));
    }
    out
}

fn layer_tensors(c: &ModelConfig, layer: usize, out: &mut Vec<(String, Vec<usize>)>) {
    let (q, kv) = (c.n_q_heads * c.head_dim, c.n_kv_heads * c.head_dim);
    let mut push = |name: &str, shape: &[usize]| out.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
    push("input_layernorm.weight", &[c.hidden]);
    for (name, rows, cols) in
        [("q_proj", q, c.hidden), ("k_proj", kv, c.hidden), ("v_proj", kv, c.hidden), ("o_proj", c.hidden, q)]
    {
        push(&format!("self_attn.{name}.weight"), &[rows, cols]);
        if c.attention_bias {
            push(&format!("self_attn.{name}.bias"), &[rows]);
        }
    }
    if c.qk_norm {
        push("self_attn.q_norm.weight", &[c.head_dim]);
        push("self_attn.k_norm.weight", &[c.head_dim]);
    }
    push("post_attention_layernorm.weight", &[c.hidden]);
    for (name, rows, cols) in
        [("gate_proj", c.ffn, c.hidden), ("up_proj", c.ffn, c.hidden), ("down_proj", c.hidden, c.ffn)]
    {
        push(&format!("mlp.{name}.weight"), &[rows, cols]);
        if c.mlp_bias {
            push(&format!("mlp.{name}.bias"), &[rows]);
        }
    }
}

/// The decision tensors of one layer, in the checkpoint or in an adapter file.
pub fn adapter_tensors(c: &ModelConfig, layer: usize) -> Vec<(String, Vec<usize>)> {
    let name = |what: &str| format!("model.layers.{layer}.self_attn.dms_proj_alpha{what}");
    let mut out = vec![(name(".weight"), vec![c.n_kv_heads, c.hidden]), (name("_norm.weight"), vec![c.hidden])];
    if c.attention_bias {
        out.push((name(".bias"), vec![c.n_kv_heads]));
    }
    out
}
