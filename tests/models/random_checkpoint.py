"""Writes a checkpoint of random weights in the layout and sharding of a published one.

    python3 random_checkpoint.py --shape qwen3-8b-dms --out DIR --tokenizer FOLDER [--layers N] [--offset X] [--empty]

For trying loading, memory and speed where the real weights are not at hand; the result is to be deleted
afterwards. FOLDER holds the published tokenizer.json and tokenizer_config.json (see fetch). `--layers` makes
a smaller one of the same shapes. `--offset` sets the offset of the eviction decisions, of which random weights need
another than trained ones (-117 keeps about an eighth). `--empty` writes headers and holes, for what reads no weights.
Needs numpy 2 only; writes one shard at a time, seeded, the same bytes every time.
"""

import argparse
import json
import shutil
from pathlib import Path

import numpy as np

SHARD_BYTES = 5_000_000_000  # as the published shards: at most 5 GB

QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 40960,
    "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
    "rope_scaling": None, "rope_theta": 1000000, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "vocab_size": 151936, "bos_token_id": 151643, "eos_token_id": 151645,
}
LLAMA_1B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "mlp_bias": False,
    "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
    "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 16,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "torch_dtype": "bfloat16", "vocab_size": 128256, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009],
}
# What a published DMS checkpoint adds: keys of config.json, or a file of its own.
SHAPES = {
    "qwen3-8b-dms": (QWEN3_8B, {
        "dms_window_size": 512, "dms_alpha_scale": 100.0, "dms_initial_alpha_offset": 5.0, "dms_cr": 8,
        "dms_alpha_per": "head", "dms_paged_attention_block_size": 256,
    }, None),
    "llama-3.2-1b-dms": (LLAMA_1B, {}, {
        "window_size": 256, "alpha_scale": 100.0, "alpha_offset": 5.0, "target_cr": 8, "context_len": 8192,
    }),
}


def tensors(c):
    """Names and shapes in the order of the files."""
    hidden, ffn, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        yield p + "input_layernorm.weight", (hidden,)
        yield p + "mlp.down_proj.weight", (hidden, ffn)
        yield p + "mlp.gate_proj.weight", (ffn, hidden)
        yield p + "mlp.up_proj.weight", (ffn, hidden)
        yield p + "post_attention_layernorm.weight", (hidden,)
        if c["model_type"] == "qwen3":
            yield p + "self_attn.k_norm.weight", (d,)
            yield p + "self_attn.q_norm.weight", (d,)
        yield p + "self_attn.k_proj.weight", (kv, hidden)
        yield p + "self_attn.o_proj.weight", (hidden, q)
        yield p + "self_attn.q_proj.weight", (q, hidden)
        yield p + "self_attn.v_proj.weight", (kv, hidden)
    yield "model.norm.weight", (hidden,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], hidden)


POOL = 1 << 26
pools = {}


def write_values(f, rng, shape):
    """bf16 words: ones for a norm, else about N(0, 1 / inputs) from a pool at random places, which is
    as good as fresh numbers for loading and speed, and written as fast as the disk takes it."""
    n = int(np.prod(shape))
    if len(shape) == 1:
        return np.full(n, 0x3F80, np.uint16).tofile(f)
    if shape[1] not in pools:
        words = (rng.standard_normal(POOL, np.float32) / np.float32(shape[1]) ** 0.5).view(np.uint32)
        pools[shape[1]] = ((words + 0x8000) >> 16).astype(np.uint16)
    words, at = pools[shape[1]], int(rng.integers(POOL))
    while n > 0:
        piece = words[at : at + n]
        piece.tofile(f)
        n, at = n - len(piece), 0


def write_shard(path, part, rng, empty):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in part:
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        if empty:
            f.truncate(8 + len(text) + end)
        for _, shape in [] if empty else part:
            write_values(f, rng, shape)
    return end


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--offset", type=float)
    parser.add_argument("--empty", action="store_true")
    args = parser.parse_args()
    config, dms_keys, metadata = SHAPES[args.shape]
    config = config | dms_keys
    if args.layers:
        config["num_hidden_layers"] = args.layers
    if args.offset is not None:
        config["dms_initial_alpha_offset"] = args.offset
    args.out.mkdir(parents=True, exist_ok=True)
    shards, size = [[]], 0
    for name, shape in tensors(config):
        bytes_ = 2 * int(np.prod(shape))
        if shards[-1] and size + bytes_ > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append((name, shape))
        size += bytes_
    rng, weight_map, total = np.random.default_rng(args.seed), {}, 0
    for i, part in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else "model.safetensors"
        total += write_shard(args.out / file, part, rng, args.empty)
        weight_map |= {name: file for name, _ in part}
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (args.out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    (args.out / "config.json").write_text(json.dumps(config, indent=2))
    (args.out / "generation_config.json").write_text(json.dumps({
        "do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": config["eos_token_id"],
    }))
    if metadata:
        (args.out / "dms_metadata.json").write_text(json.dumps(metadata))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(args.tokenizer / file, args.out / file)
    print(f"{args.out}: {total / 1e9:.1f} GB of weights in {len(shards)} files")


if __name__ == "__main__":
    main()
