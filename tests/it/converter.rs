//! Changes that llama.cpp's converter makes to tensors.

use dmschat::checkpoint::DeltaNet;

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
