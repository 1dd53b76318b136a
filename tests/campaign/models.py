#!/usr/bin/env python3
"""Writes small random models whose layers differ, for the walks: standard library only, the same bytes every time.

usage: tests/campaign/models.py FOLDER      # FOLDER/NAME of each and a predictor for it, FOLDER/NAME-predictor

gemma3        12 layers, all but two of which see the newest 64 tokens
qwen3_5       4 layers, two of which are gated delta nets
qwen3_5_moe   the same with 6 experts and a shared one in place of an MLP
gpt_oss       4 layers with sinks, two of which see the newest 64 tokens, and experts with biases
The tokenizer and the chat template are those of the built-in model. Weights are random: the models write nonsense, which
does for what a walk looks at. The predictors are in the form of KVzap, and mark about half of the tokens.
"""
import json
import math
import pathlib
import random
import shutil
import struct
import sys

DEMO = pathlib.Path(__file__).resolve().parents[2] / "assets" / "demo"
VOCAB, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM = 1536, 64, 96, 4, 2, 32
EXPERTS, EXPERT_FFN = 6, 32
COMMON = {
    "hidden_size": HIDDEN, "intermediate_size": FFN, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM, "vocab_size": VOCAB, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
    "attention_bias": False, "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False,
}
GEMMA_LAYERS = ["full_attention" if n % 6 == 5 else "sliding_attention" for n in range(12)]
QWEN_LAYERS = ["full_attention" if n % 2 else "linear_attention" for n in range(4)]
DELTA = {"key_heads": 2, "value_heads": 4, "key_dim": 16, "value_dim": 16, "kernel": 4}
CONFIGS = {
    "gemma3": COMMON | {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 12,
        "layer_types": GEMMA_LAYERS, "sliding_window": 64, "query_pre_attn_scalar": HEAD_DIM,
        "hidden_activation": "gelu_pytorch_tanh", "rope_theta": 1e6, "rope_local_base_freq": 1e4,
    },
    "qwen3_5": COMMON | {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "num_hidden_layers": 4,
        "layer_types": QWEN_LAYERS, "hidden_act": "silu", "rope_theta": 1e6, "partial_rotary_factor": 0.25,
        "linear_num_key_heads": DELTA["key_heads"], "linear_num_value_heads": DELTA["value_heads"],
        "linear_key_head_dim": DELTA["key_dim"], "linear_value_head_dim": DELTA["value_dim"],
        "linear_conv_kernel_dim": DELTA["kernel"],
    },
    "gpt_oss": COMMON | {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_hidden_layers": 4, "attention_bias": True,
        "layer_types": ["full_attention" if n % 2 else "sliding_attention" for n in range(4)], "sliding_window": 64,
        "intermediate_size": EXPERT_FFN, "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "hidden_act": "silu",
        "rope_theta": 150000.0,
    },
}
CONFIGS["qwen3_5_moe"] = CONFIGS["qwen3_5"] | {
    "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "num_experts": EXPERTS,
    "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT_FFN, "shared_expert_intermediate_size": EXPERT_FFN,
}


def shapes(config):
    """Names and shapes of a model's tensors."""
    yield "model.embed_tokens.weight", [VOCAB, HIDDEN]
    for n, kind in enumerate(config["layer_types"]):
        layer = f"model.layers.{n}."
        yield layer + "input_layernorm.weight", [HIDDEN]
        yield layer + "post_attention_layernorm.weight", [HIDDEN]
        if config["model_type"] == "gemma3_text":
            yield layer + "pre_feedforward_layernorm.weight", [HIDDEN]
            yield layer + "post_feedforward_layernorm.weight", [HIDDEN]
        if kind == "linear_attention":
            values = DELTA["value_heads"] * DELTA["value_dim"]
            channels = 2 * DELTA["key_heads"] * DELTA["key_dim"] + values
            delta = layer + "linear_attn."
            yield delta + "in_proj_qkv.weight", [channels, HIDDEN]
            yield delta + "in_proj_z.weight", [values, HIDDEN]
            yield delta + "in_proj_b.weight", [DELTA["value_heads"], HIDDEN]
            yield delta + "in_proj_a.weight", [DELTA["value_heads"], HIDDEN]
            yield delta + "conv1d.weight", [channels, 1, DELTA["kernel"]]
            yield delta + "A_log", [DELTA["value_heads"]]
            yield delta + "dt_bias", [DELTA["value_heads"]]
            yield delta + "norm.weight", [DELTA["value_dim"]]
            yield delta + "out_proj.weight", [HIDDEN, values]
        else:
            # A gate beside each head of q.
            gates = 2 if config["model_type"].startswith("qwen3_5") else 1
            attention = layer + "self_attn."
            yield attention + "q_proj.weight", [HEADS * HEAD_DIM * gates, HIDDEN]
            yield attention + "k_proj.weight", [KV_HEADS * HEAD_DIM, HIDDEN]
            yield attention + "v_proj.weight", [KV_HEADS * HEAD_DIM, HIDDEN]
            yield attention + "o_proj.weight", [HIDDEN, HEADS * HEAD_DIM]
            if config["model_type"] == "gpt_oss":
                yield attention + "q_proj.bias", [HEADS * HEAD_DIM]
                yield attention + "k_proj.bias", [KV_HEADS * HEAD_DIM]
                yield attention + "v_proj.bias", [KV_HEADS * HEAD_DIM]
                yield attention + "o_proj.bias", [HIDDEN]
                yield attention + "sinks", [HEADS]
            else:
                yield attention + "q_norm.weight", [HEAD_DIM]
                yield attention + "k_norm.weight", [HEAD_DIM]
        yield from mlp(config, layer + "mlp.")
    yield "model.norm.weight", [HIDDEN]
    yield "lm_head.weight", [VOCAB, HIDDEN]


def mlp(config, at):
    """The same of a layer's MLP or experts."""
    if config["model_type"] == "gpt_oss":
        yield at + "router.weight", [EXPERTS, HIDDEN]
        yield at + "router.bias", [EXPERTS]
        yield at + "experts.gate_up_proj", [EXPERTS, HIDDEN, 2 * EXPERT_FFN]
        yield at + "experts.gate_up_proj_bias", [EXPERTS, 2 * EXPERT_FFN]
        yield at + "experts.down_proj", [EXPERTS, EXPERT_FFN, HIDDEN]
        yield at + "experts.down_proj_bias", [EXPERTS, HIDDEN]
        return
    names = {"": FFN}
    if "num_experts" in config:
        yield at + "gate.weight", [EXPERTS, HIDDEN]
        yield at + "shared_expert_gate.weight", [1, HIDDEN]
        names = {f"experts.{n}.": EXPERT_FFN for n in range(EXPERTS)} | {"shared_expert.": EXPERT_FFN}
    for name, width in names.items():
        yield at + name + "gate_proj.weight", [width, HIDDEN]
        yield at + name + "up_proj.weight", [width, HIDDEN]
        yield at + name + "down_proj.weight", [HIDDEN, width]


def values(rng, name, shape, plain_norms):
    """Values of a tensor: norms about what leaves a row as it is, matrices of variance 1 / inputs."""
    n = math.prod(shape)
    if name.endswith("dt_bias"):
        return [rng.gauss(-2, 1) for _ in range(n)]
    if name.endswith("A_log"):
        return [rng.gauss(0, 0.7) for _ in range(n)]
    if len(shape) == 1:
        # All norms but those inside a delta net and of gpt-oss have 1 added to their weights.
        plain = name.endswith("linear_attn.norm.weight") or plain_norms and name.endswith("norm.weight")
        mean = 1.0 if plain else 0.0
        return [mean + rng.gauss(0, 0.1) for _ in range(n)]
    scale = {"model.embed_tokens.weight": 1.0, "lm_head.weight": 3.0 / math.sqrt(HIDDEN)}
    scale = scale.get(name, 1.4 / math.sqrt(shape[-1]))
    return [rng.gauss(0, scale) for _ in range(n)]


def bf16(x):
    (word,) = struct.unpack("<I", struct.pack("<f", x))
    return (word + 0x7FFF + ((word >> 16) & 1)) >> 16


def write_safetensors(path, tensors, dtype):
    """Writes tensors, name to (shape, values), as bf16 or f32."""
    header, blobs, at = {}, [], 0
    for name, (shape, numbers) in tensors.items():
        words = map(bf16, numbers) if dtype == "BF16" else numbers
        blobs.append(struct.pack(f"<{len(numbers)}{'H' if dtype == 'BF16' else 'f'}", *words))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(blobs[-1])]}
        at += len(blobs[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def write_model(folder, config):
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(7)
    plain_norms = config["model_type"] == "gpt_oss"
    tensors = {name: (shape, values(rng, name, shape, plain_norms)) for name, shape in shapes(config)}
    write_safetensors(folder / "model.safetensors", tensors, "BF16")
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(DEMO / name, folder)


def write_predictor(folder, config):
    folder.mkdir(parents=True, exist_ok=True)
    rng, tensors = random.Random(11), {}
    layers = sum(kind != "linear_attention" for kind in config["layer_types"])
    for n in range(layers):
        tensors[f"layers.{n}.weight"] = ([KV_HEADS, HIDDEN], [rng.gauss(0, 0.2) for _ in range(KV_HEADS * HIDDEN)])
        tensors[f"layers.{n}.bias"] = ([KV_HEADS], [-4.0] * KV_HEADS)
    write_safetensors(folder / "model.safetensors", tensors, "F32")
    (folder / "config.json").write_text(json.dumps({
        "model_type": "kvzap", "input_dim": HIDDEN, "output_dim": KV_HEADS, "hidden_dim": None, "n_modules": layers}))


def write_all(folder):
    """Writes all models, and returns their names."""
    for name, config in CONFIGS.items():
        write_model(folder / name, config)
        write_predictor(folder / f"{name}-predictor", config)
    return list(CONFIGS)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write_all(pathlib.Path(sys.argv[1]))
