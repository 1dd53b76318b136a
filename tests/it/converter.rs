//! Changes that llama.cpp's converter makes to tensors.

use crate::gguf_file::{Data, GgufFile};
use dmschat::checkpoint::DeltaNet;

/// Names of Hugging Face and of llama.cpp, of a layer or of the whole model.
pub const NAMES: [(&str, &str); 28] = [
    ("model.embed_tokens_per_layer", "per_layer_token_embd"),
    ("model.per_layer_model_projection", "per_layer_model_proj"),
    ("model.per_layer_projection_norm", "per_layer_proj_norm"),
    ("per_layer_input_gate", "inp_gate"),
    ("per_layer_projection", "proj"),
    ("post_per_layer_input_norm", "post_norm"),
    ("layer_scalar", "layer_output_scale"),
    ("mlp.router", "ffn_gate_inp"),
    ("self_attn", "attn_sinks"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.gate", "ffn_gate_inp"),
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// Norms of families that have them behind blocks.
pub const NORMS_BEHIND: [(&str, &str); 6] = [
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
    ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
    ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
];

/// Parts of names that Gemma 4's converter replaces first.
pub const OWN: [(&str, &str); 4] = [
    ("layer_scalar", "layer_scalar.weight"),
    ("router.proj", "mlp.gate"),
    ("router.scale", "ffn_gate_inp.scale"),
    ("router.per_expert_scale", "ffn_down_exps.scale"),
];

/// Puts gate and up of each expert of a layer into one matrix.
pub fn gates_in_one(file: &mut GgufFile, layer: usize) {
    let name = |part: &str| format!("blk.{layer}.ffn_{part}_exps.weight");
    let [gate, up] = ["gate", "up"].map(|part| file.tensors.remove(&name(part)).unwrap());
    let of_expert = gate.bytes.len() / gate.dims[2] as usize;
    let pairs = gate.bytes.chunks(of_expert).zip(up.bytes.chunks(of_expert));
    let bytes = pairs.flat_map(|(gate, up)| [gate, up].concat()).collect();
    let dims = vec![gate.dims[0], 2 * gate.dims[1], gate.dims[2]];
    file.tensors.insert(name("gate_up"), Data { dims, bytes, ..gate });
}

/// Permutes rows as llama.cpp's converter does for q and k of `llama`: the halves of each head
/// alternate.
pub fn interleave(values: &[f32], rows: usize, head_dim: usize) -> Vec<f32> {
    let rows: Vec<&[f32]> = values.chunks(values.len() / rows).collect();
    let heads = rows.chunks(head_dim);
    heads.flat_map(|head| (0..head_dim).flat_map(|i| head[i / 2 + i % 2 * head_dim / 2].to_vec())).collect()
}

/// Converts a tensor of a delta net as llama.cpp's converter does: its values, its name and its
/// kind. The value heads of a key head are `key_heads` apart.
pub fn as_converted(d: &DeltaNet, shape: &mut Vec<usize>, values: &mut [f32], name: &str) -> (&'static str, String) {
    let tile = |values: &mut [f32], run: usize| {
        let (old, per_key) = (values.to_vec(), d.value_heads / d.key_heads);
        for (at, head) in values.chunks_mut(run).enumerate() {
            let from = at % d.key_heads * per_key + at / d.key_heads;
            head.copy_from_slice(&old[from * run..][..run]);
        }
    };
    let (keys, width) = (2 * d.key_heads * d.key_dim, *shape.last().unwrap());
    let (name, kind) = match name {
        ".A_log" => {
            values.iter_mut().for_each(|a| *a = -f64::from(*a).exp() as f32);
            tile(values, 1);
            ("ssm_a", "")
        }
        ".dt_bias" => {
            tile(values, 1);
            ("ssm_dt", ".bias")
        }
        ".norm.weight" => ("ssm_norm", ".weight"),
        ".conv1d.weight" => {
            shape.remove(1);
            tile(&mut values[keys * width..], d.value_dim * width);
            ("ssm_conv1d", ".weight")
        }
        ".in_proj_qkv.weight" => {
            tile(&mut values[keys * width..], d.value_dim * width);
            ("attn_qkv", ".weight")
        }
        ".in_proj_z.weight" => {
            tile(values, d.value_dim * width);
            ("attn_gate", ".weight")
        }
        ".in_proj_b.weight" | ".in_proj_a.weight" => {
            tile(values, width);
            (if name.contains("_b") { "ssm_beta" } else { "ssm_alpha" }, ".weight")
        }
        ".out_proj.weight" => {
            values.chunks_mut(width).for_each(|row| tile(row, d.value_dim));
            ("ssm_out", ".weight")
        }
        other => panic!("{other}"),
    };
    (name, kind.to_owned())
}
