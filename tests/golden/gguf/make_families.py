#!/usr/bin/env python3
"""Makes NAME.header and families.json: GGUF files of the models in tests/golden, as llama.cpp's converter writes them.

    python3 tests/golden/gguf/make_families.py       # python3 >= 3.10 with venv; 20 MB of downloads

Written by llama.cpp's gguf package, with its names of keys and tensors, as `convert_hf_to_gguf.py --outtype bf16` does for
each architecture: keys, rows of q and k, factors of RoPE as tensors, pre-tokenizer. The vocabulary is small. A header is all
before the tensors' data, which the test makes from the model's folder; families.json has the SHA-256 of the data. Tensors
are in the order of their names.
"""

import hashlib
import json
import math
import subprocess
import sys
import tempfile
import types
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOOLS = ["gguf==0.19.0", "numpy==2.4.6"]
# Folder, architecture, whether rows of q and k are permuted, pre-tokenizer ("default": SentencePiece).
FAMILIES = [
    ("qwen2", "qwen2", False, "qwen2"),
    ("mistral", "llama", True, "default"),
    ("phi3_longrope", "phi3", False, "default"),
    ("smollm3", "smollm3", True, "smaug-bpe"),
    ("granite", "granite", True, "refact"),
    ("qwen3_moe", "qwen3moe", False, "qwen2"),
    ("gemma3", "gemma3", False, "default"),
    ("gemma4", "gemma4", False, "gemma4"),
    ("gemma4_wide", "gemma4", False, "gemma4"),
    ("gemma4_seeing", "gemma4", False, "gemma4"),
    ("gemma4_experts", "gemma4", False, "gemma4"),
    ("qwen3_5", "qwen35", False, "qwen35"),
    ("qwen3_5_moe", "qwen35moe", False, "qwen35"),
    ("gpt_oss", "gpt-oss", False, "gpt-4o"),
    ("mistral3", "mistral3", True, "tekken"),
    ("ministral3", "mistral3", True, "tekken"),
]
ENDS, START = ["<|im_end|>", "<|endoftext|>"], "<|im_start|>"
PRINTABLE = [chr(c) for c in range(0x21, 0x7f)]
PAIRS = ["th", "he", "in", "er", "an", "re", "on", "at", "en", "nd", "ti", "es", "or", "te", "of", "ed", "is", "it", "al", "ar",
         "st", "to", "nt", "ng", "se", "ha", "as", "ou", "io"]
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def fetch():
    """Runs this file again, where gguf and numpy are."""
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([sys.executable, "-m", "venv", work], check=True)
        pip = [f"{work}/bin/pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--no-deps", "--only-binary", ":all:", *TOOLS], check=True)
        subprocess.run([f"{work}/bin/python", __file__, "make"], check=True)


def stored(folder):
    """-> {name: bf16 words} of a safetensors file."""
    import numpy as np

    raw = (folder / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    tensors = {}
    for name, t in json.loads(raw[8:start]).items():
        name = name.removeprefix("language_model.").replace("model.language_model.", "model.")
        parts = ("vision_tower", "multi_modal", "model.vision_tower", "model.embed_vision", "model.audio_tower", "model.embed_audio")
        if name != "__metadata__" and not name.startswith(parts):
            assert t["dtype"] == "BF16"
            begin, end = t["data_offsets"]
            tensors[name] = np.frombuffer(raw[start + begin:start + end], "<u2").reshape(t["shape"])
    return tensors


def merged(tensors, arch):
    """The same with the experts of a kind in one tensor, as the converter stacks them."""
    import numpy as np

    if arch == "gemma4":
        return tensors
    out, experts = {}, {}
    for name, t in tensors.items():
        if "experts.gate_up_proj" in name or "experts.down_proj" in name:
            # gpt-oss: transposed, gate and up in turn.
            stem, _, bias = name.partition("_bias") if name.endswith("_bias") else (name, "", "")
            kind, t = ("bias", t) if name.endswith("_bias") else ("weight", t.swapaxes(1, 2))
            parts = {"gate_proj": t[:, ::2], "up_proj": t[:, 1::2]} if "gate_up" in stem else {"down_proj": t}
            layer = stem.rpartition(".")[0]
            out |= {f"{layer}.{part}.{kind}": np.ascontiguousarray(t) for part, t in parts.items()}
            continue
        layer, _, rest = name.partition(".experts.")
        if rest:
            expert, part = rest.split(".", 1)
            experts.setdefault(f"{layer}.experts.{part}", {})[int(expert)] = t
        else:
            out[name] = t
    return out | {name: np.stack([of[e] for e in range(len(of))]) for name, of in experts.items()}


def parameters(w, c, arch):
    import gguf

    rope, head_dim = c["rope_parameters"], c.get("head_dim")
    rope = rope.get("full_attention", rope)
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    if "intermediate_size" in c and arch != "gemma4":
        w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    if arch != "gemma4":
        w.add_head_count_kv(c["num_key_value_heads"])
    if arch == "gemma4":
        gemma4(w, c)
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_file_type(32)
    if head_dim and arch != "gemma4":
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
    if arch in ("llama", "smollm3", "granite", "mistral3"):
        w.add_vocab_size(c["vocab_size"])
        w.add_rope_dimension_count(head_dim or c["hidden_size"] // c["num_attention_heads"])
    if "llama_4_scaling_beta" in rope:
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        w.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        w.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        w.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        w.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if arch == "gpt-oss":
        w.add_expert_count(c["num_local_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_expert_feed_forward_length(c["intermediate_size"])
        w.add_sliding_window(c["sliding_window"])
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if arch in ("qwen3moe", "qwen35moe"):
        w.add_expert_count(c.get("num_local_experts") or c["num_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    if arch == "qwen35moe":
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    if arch in ("qwen35", "qwen35moe"):
        width = c["linear_num_value_heads"] * c["linear_value_head_dim"]
        w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
        w.add_ssm_state_size(c["linear_key_head_dim"])
        w.add_ssm_group_count(c["linear_num_key_heads"])
        w.add_ssm_time_step_rank(c["linear_num_value_heads"])
        w.add_ssm_inner_size(width)
        w.add_full_attention_interval(c["layer_types"].index("full_attention") + 1)
        w.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
        w.add_rope_dimension_sections([11, 11, 10, 0])
    if arch == "gemma3":
        w.add_sliding_window(c["sliding_window"])
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rope["factor"])
        # Published models have a head's own size, and files do not say.
        w.add_attention_scale(c["query_pre_attn_scalar"] ** -0.5)
    if arch == "granite":
        w.add_attention_scale(c["attention_multiplier"])
        w.add_embedding_scale(c["embedding_multiplier"])
        w.add_residual_scale(c["residual_multiplier"])
        w.add_logit_scale(c["logits_scaling"])
    if arch == "phi3":
        original = rope["original_max_position_embeddings"]
        scale = c["max_position_embeddings"] / original
        w.add_rope_scaling_orig_ctx_len(original)
        w.add_rope_dimension_count(int(rope["partial_rotary_factor"] * c["hidden_size"]) // c["num_attention_heads"])
        w.add_sliding_window(c["sliding_window"] or 0)
        w.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))


def gemma4(w, c):
    """What differs between its layers, and its other keys. transformers states other heads by layer."""
    n, own = c["num_hidden_layers"], c["per_layer_config"]
    local = [kind == "sliding_attention" for kind in c["layer_types"]]
    wide = [i >= n - c["num_kv_shared_layers"] and c["use_double_wide_mlp"] for i in range(n)]
    heads = [own.get(str(i), {}).get("num_key_value_heads", c["num_key_value_heads"]) for i in range(n)]
    dim = next(iter(own.values()))["head_dim"]
    w.add_shared_kv_layers(c["num_kv_shared_layers"])
    w.add_embedding_length_per_layer_input(c.get("hidden_size_per_layer_input") or 0)
    w.add_sliding_window(c["sliding_window"])
    w.add_sliding_window_pattern(local)
    w.add_final_logit_softcapping(c["final_logit_softcapping"])
    for length in (w.add_key_length, w.add_value_length, w.add_rope_dimension_count):
        length(dim)
    for length in (w.add_key_length_swa, w.add_value_length_swa, w.add_rope_dimension_count_swa):
        length(c["head_dim"])
    w.add_feed_forward_length([c["intermediate_size"] * (1 + w) for w in wide] if any(wide) else c["intermediate_size"])
    w.add_head_count_kv(heads if len(set(heads)) > 1 else heads[0])
    w.add_rope_freq_base_swa(c["rope_parameters"]["sliding_attention"]["rope_theta"])
    if c.get("enable_moe_block"):
        w.add_expert_count(c["num_experts"])
        w.add_expert_used_count(c["top_k_experts"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])


def vocabulary(w, pre, size):
    ordinary, unknown, control, byte = 1, 2, 3, 6
    if pre in ("default", "gemma4"):
        tokens = [("<unk>", unknown), *((t, control) for t in [*ENDS, START]), ("\u2581", ordinary), ("<0x0A>", byte)]
        tokens += [(t, ordinary) for t in PRINTABLE + PAIRS]
        w.add_tokenizer_model("gemma4" if pre == "gemma4" else "llama")
    else:
        tokens = [(t, control) for t in [START, *ENDS]] + [(t, ordinary) for t in ["\u0120", "\u010a"] + PRINTABLE + PAIRS]
        w.add_tokenizer_model("gpt2")
        w.add_token_merges([" ".join(pair) for pair in PAIRS])
    tokens = tokens[:size]
    assert len(tokens) == size
    if pre == "gemma4":
        w.add_token_merges([" ".join(pair) for pair in PAIRS if pair in dict(tokens)])
        w.add_unk_token_id(0)
        w.add_add_space_prefix(False)
    else:
        w.add_tokenizer_pre(pre)
    w.add_token_list([t for t, _ in tokens])
    w.add_token_types([kind for _, kind in tokens])
    if pre in ("default", "gemma4"):
        w.add_token_scores([-float(PAIRS.index(t)) if t in PAIRS else -1000.0 for t, _ in tokens])
    w.add_eos_token_id([t for t, _ in tokens].index(ENDS[0]))
    w.add_add_bos_token(False)
    w.add_chat_template(TEMPLATE)


def delta_net(c, name, t):
    """A tensor of a gated delta net as llama.cpp has it: value heads of one key head a number of key heads apart."""
    import numpy as np

    keys, values, size = c["linear_num_key_heads"], c["linear_num_value_heads"], c["linear_value_head_dim"]
    order = np.arange(values).reshape(keys, -1).T.ravel()
    part = name.split("linear_attn.")[1].removesuffix(".weight")
    if part == "conv1d":
        t = t[:, 0]
    if part in ("in_proj_qkv", "conv1d"):
        rest = 2 * keys * c["linear_key_head_dim"]
        v = t[rest:].reshape(values, size, -1)[order].reshape(-1, t.shape[1])
        return np.concatenate([t[:rest], v])
    if part == "in_proj_z":
        return t.reshape(values, size, -1)[order].reshape(t.shape)
    if part == "out_proj":
        return t.reshape(-1, values, size)[:, order].reshape(t.shape)
    if part == "A_log":
        return -np.exp((t[order].astype(np.uint32) << 16).view(np.float32).astype(np.float64)).astype(np.float32)
    return t if part == "norm" else t[order]


def make(name, arch, permuted, pre, work):
    import gguf
    import numpy as np

    folder = HERE.parent / name
    c = json.loads((folder / "config.json").read_text())
    c = c.get("text_config", c)
    path = Path(work) / f"{name}.gguf"
    w = gguf.GGUFWriter(path, arch)
    w.add_type("model")
    w.add_name(name)
    parameters(w, c, arch)
    vocabulary(w, pre, c["vocab_size"])
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    kind = {n: k for k, n in gguf.MODEL_ARCH_NAMES.items()}[arch]
    names = gguf.get_tensor_name_map(kind, c["num_hidden_layers"])
    # llama.cpp's architecture has experts in all layers; one without them has the names of other architectures.
    dense = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, c["num_hidden_layers"])
    suffixes = (".weight", ".bias")
    if arch == "gemma4":
        # As its converter spells what has no such end.
        scalar = lambda n: f"{n}.weight" if n.endswith(("layer_scalar", "_proj")) else n
    else:
        scalar = lambda n: n
    plain = lambda n: scalar(n).replace(".dt_bias", ".dt_proj.bias").replace(".sinks", ".sinks.weight")
    factors = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}
    factor = lambda n: next((f"blk.{n.split('.')[2]}.{theirs}" for ours, theirs in factors.items() if n.endswith(ours)), None)
    named = lambda n: factor(n) or next(filter(None, (of.get_name(plain(n), try_suffixes=suffixes) for of in (names, dense))))
    tensors = {named(n): (n, t) for n, t in merged(stored(folder), arch).items()}
    for key in ("long", "short") if arch == "phi3" else ():
        factors = np.array(c["rope_parameters"][f"{key}_factor"], np.float32)
        tensors[f"rope_factors_{key}.weight"] = ("", factors)
    if arch == "gemma4":
        rope = c["rope_parameters"]["full_attention"]
        half = next(iter(c["per_layer_config"].values()))["head_dim"] // 2
        turned = int(half * rope["partial_rotary_factor"])
        tensors["rope_freqs.weight"] = ("", np.array([1.0] * turned + [1e30] * (half - turned), np.float32))
    for theirs in sorted(tensors):
        ours, t = tensors[theirs]
        for part, heads in (("q_proj", c["num_attention_heads"]), ("k_proj", c["num_key_value_heads"])):
            if permuted and part in ours:
                t = t.reshape(heads, 2, t.shape[0] // heads // 2, *t.shape[1:]).swapaxes(1, 2).reshape(t.shape)
        if "linear_attn" in ours:
            t = delta_net(c, ours, t)
        elif arch in ("gemma3", "qwen35", "qwen35moe") and "norm" in ours:
            t = (t.astype(np.uint32) << 16).view(np.float32) + np.float32(1)
        # llama.cpp reads this row as a vector.
        if "shared_expert_gate" in ours:
            t = t[0]
        # Routers, convolutions and biases stay f32.
        if t.ndim >= 2 and not theirs.endswith(".bias") and not any(part in theirs for part in ("ffn_gate_inp", "conv1d")):
            w.add_tensor(theirs, np.ascontiguousarray(t).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
        elif t.dtype == np.float32:
            w.add_tensor(theirs, t)
        else:
            w.add_tensor(theirs, (t.astype(np.uint32) << 16).view(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    raw = path.read_bytes()
    start = gguf.GGUFReader(path).data_offset
    (HERE / f"{name}.header").write_bytes(raw[:start])
    print(f"{name}: {start} bytes before {len(raw) - start} of data")
    return hashlib.sha256(raw[start:]).hexdigest()


def main():
    if len(sys.argv) == 1:
        return fetch()
    sys.modules["yaml"] = types.ModuleType("yaml")  # gguf imports it for model cards
    with tempfile.TemporaryDirectory() as work:
        hashes = {family[0]: make(*family, work) for family in FAMILIES}
    (HERE / "families.json").write_text(json.dumps(hashes, indent=1) + "\n")


if __name__ == "__main__":
    main()
