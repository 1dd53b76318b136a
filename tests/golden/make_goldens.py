"""Golden files for tests/it/golden.rs, made by transformers, which shares no code with dmschat.

    python3 make_goldens.py OUTDIR [NAME...]   # torch 2.9 to 2.15, transformers 5.17 to 5.24, CPU; a minute

Then copy OUTDIR's contents beside this script. Deterministic: fixed seeds, one thread, f32, eager
attention. What is written:

    NAME/                   a tiny random checkpoint as save_pretrained writes it
    NAME/golden.json        tokens, greedy continuation, rope frequencies and scale, versions
    NAME/logits.f32         [n_tokens, vocab] little-endian, of one forward over `tokens`
    rope.json               frequencies of configurations too large to ship as checkpoints
    tokenizer/              a small byte-level BPE with a ChatML-like template that drops old thoughts
    tokenizer/golden.json   encodings and renderings by transformers
"""

import json
import math
import os
import sys

import torch
import transformers
from transformers import (AutoModelForCausalLM, AutoModelForImageTextToText, Gemma3TextConfig, Gemma4Config, Gemma4TextConfig, Gemma4UnifiedTextConfig, GptOssConfig, GraniteConfig, LlamaConfig, Ministral3Config, Mistral3Config, MistralConfig,
                          Phi3Config, Qwen2Config,
                          Qwen3_5MoeTextConfig, Qwen3_5TextConfig, Qwen3Config, Qwen3MoeConfig, SmolLM3Config)

N_TOKENS = 80
N_GREEDY = 24
# The two most probable tokens closer than this would make the continuation depend on rounding.
MIN_GAP = 2e-3

COMMON = dict(num_hidden_layers=3, vocab_size=128, bos_token_id=0, eos_token_id=1, pad_token_id=None)

OSS = dict(
    hidden_size=64, intermediate_size=32, num_local_experts=6, num_experts_per_tok=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=512, sliding_window=24, rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    rope_parameters={"rope_type": "yarn", "rope_theta": 1.5e5, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
                     "truncate": False, "original_max_position_embeddings": 64}, **COMMON)

GEMMA4 = dict(
    hidden_size=32, intermediate_size=48, num_attention_heads=4, head_dim=8, global_head_dim=16, max_position_embeddings=512,
    sliding_window=24, final_logit_softcapping=12.0, vocab_size_per_layer_input=128, **COMMON)
LOCAL, GLOBAL = "sliding_attention", "full_attention"

# name, configuration, stored dtype, max_shard_size
MODELS = [
    ("qwen3_gqa", Qwen3Config(
        hidden_size=48, intermediate_size=80, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        max_position_embeddings=512, rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **COMMON), torch.bfloat16, None),
    ("llama_tied_llama3", LlamaConfig(
        hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=1, head_dim=32,
        max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
        **COMMON), torch.bfloat16, None),
    ("qwen3_yarn", Qwen3Config(
        hidden_size=48, intermediate_size=64, num_attention_heads=3, num_key_value_heads=1, head_dim=32,
        max_position_embeddings=128, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
                         "original_max_position_embeddings": 32},
        **COMMON), torch.float16, None),
    ("llama_bias_sharded", LlamaConfig(
        hidden_size=48, intermediate_size=64, num_attention_heads=3, num_key_value_heads=3, head_dim=16,
        max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False,
        attention_bias=True, mlp_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4}, **COMMON), torch.float32, "60KB"),
    ("qwen2", Qwen2Config(
        hidden_size=48, intermediate_size=80, num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=512,
        rms_norm_eps=1e-6, tie_word_embeddings=True, use_sliding_window=False, sliding_window=64,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **COMMON), torch.bfloat16, None),
    ("mistral", MistralConfig(
        hidden_size=48, intermediate_size=80, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **COMMON), torch.bfloat16, None),
    # Partial rotation, and factors that differ beyond 32 tokens: the prompt is longer.
    ("phi3_longrope", Phi3Config(
        hidden_size=64, intermediate_size=80, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, original_max_position_embeddings=32, rms_norm_eps=1e-5, tie_word_embeddings=True,
        sliding_window=128,
        rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
                         "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4], "long_factor": [1.1, 1.5, 2.5, 4.0, 8.0, 12.0],
                         "original_max_position_embeddings": 32},
        **COMMON), torch.bfloat16, None),
    ("smollm3", SmolLM3Config(
        hidden_size=48, intermediate_size=80, num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=512,
        rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 2e6}, **dict(COMMON, num_hidden_layers=4)), torch.bfloat16, None),
    ("granite", GraniteConfig(
        hidden_size=48, intermediate_size=80, num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=512,
        rms_norm_eps=1e-5, tie_word_embeddings=False, embedding_multiplier=2.5, residual_multiplier=0.6,
        attention_multiplier=0.2, logits_scaling=0.7,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4}, **COMMON), torch.bfloat16, None),
    ("mistral_sliding", MistralConfig(
        hidden_size=48, intermediate_size=80, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=21,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4}, **COMMON), torch.bfloat16, None),
    # Key heads that serve several value heads, heads of other sizes than these, and attention in every second layer: GGUF
    # files have the interval alone.
    ("qwen3_5", Qwen3_5TextConfig(
        hidden_size=48, intermediate_size=80, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=16, linear_value_head_dim=24,
        max_position_embeddings=512, rms_norm_eps=1e-6, tie_word_embeddings=False,
        layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention", "linear_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
        **dict(COMMON, num_hidden_layers=5)), torch.bfloat16, None),
    # One layer without experts; more rows than experts have, so that some have none.
    ("qwen3_moe", Qwen3MoeConfig(
        hidden_size=64, intermediate_size=80, moe_intermediate_size=32, num_experts=12, num_experts_per_tok=3,
        norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[1], num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, max_position_embeddings=512, rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **COMMON), torch.bfloat16, None),
    # Local layers, whose window is shorter than the prompt, and global ones with another rotation.
    ("gemma3", Gemma3TextConfig(
        hidden_size=48, intermediate_size=80, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        max_position_embeddings=512, sliding_window=24, query_pre_attn_scalar=24, tie_word_embeddings=False,
        rope_parameters={"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
        **dict(COMMON, num_hidden_layers=7)), torch.bfloat16, None),
    # Both, with an expert that every token passes.
    ("qwen3_5_moe", Qwen3_5MoeTextConfig(
        hidden_size=48, moe_intermediate_size=16, shared_expert_intermediate_size=16, num_experts=10, num_experts_per_tok=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, linear_num_key_heads=2, linear_num_value_heads=6,
        linear_key_head_dim=16, linear_value_head_dim=16, max_position_embeddings=512, rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
        **COMMON), torch.bfloat16, None),
    # Local layers that rotate as the others, and sinks; with experts as they are in memory, and in MXFP4.
    ("gpt_oss", GptOssConfig(**OSS), torch.bfloat16, None),
    ("gpt_oss_mxfp4", GptOssConfig(**OSS), torch.bfloat16, None),
    # A model that sees, whose head is not tied; its configuration says so beside the text's.
    ("mistral3", Mistral3Config(
        text_config=dict(
            model_type="mistral", hidden_size=48, intermediate_size=80, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            max_position_embeddings=512, rms_norm_eps=1e-5, sliding_window=None,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **COMMON),
        vision_config=dict(
            model_type="pixtral", hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, head_dim=16,
            image_size=28, patch_size=14),
        tie_word_embeddings=False), torch.bfloat16, None),
    # Queries grow every 24 tokens, three times in the 80; YaRN leaves cos and sin as they are.
    ("ministral3", Ministral3Config(
        hidden_size=48, intermediate_size=80, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 24,
                         "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                         "llama_4_scaling_beta": 0.7},
        **COMMON), torch.bfloat16, None),
    # As the small ones: inputs of each layer, and the last layers read K and V of others and are twice as wide.
    ("gemma4", Gemma4TextConfig(
        num_key_value_heads=1, hidden_size_per_layer_input=8, num_kv_shared_layers=4, use_double_wide_mlp=True,
        layer_types=[LOCAL, GLOBAL, LOCAL, GLOBAL, LOCAL, LOCAL, LOCAL, GLOBAL], tie_word_embeddings=True,
        **dict(GEMMA4, num_hidden_layers=8)), torch.bfloat16, None),
    # As the large ones: fewer KV heads in global layers, whose values are the keys' projection. Its class has no inputs.
    ("gemma4_wide", Gemma4UnifiedTextConfig(
        num_key_value_heads=4, num_global_key_value_heads=2, attention_k_eq_v=True, tie_word_embeddings=False,
        layer_types=[LOCAL, LOCAL, GLOBAL, LOCAL, GLOBAL],
        **{k: v for k, v in dict(GEMMA4, num_hidden_layers=5).items() if "per_layer" not in k}), torch.bfloat16, None),
    # A model that sees and hears, with both.
    ("gemma4_seeing", Gemma4Config(
        text_config=dict(
            model_type="gemma4_text", num_key_value_heads=2, num_global_key_value_heads=1, attention_k_eq_v=True,
            hidden_size_per_layer_input=16, num_kv_shared_layers=2, layer_types=[LOCAL, GLOBAL, LOCAL, LOCAL, GLOBAL],
            rope_parameters={GLOBAL: {"rope_type": "proportional", "rope_theta": 1e5, "partial_rotary_factor": 0.5},
                             LOCAL: {"rope_type": "default", "rope_theta": 1e3}},
            **dict(GEMMA4, num_hidden_layers=5, pad_token_id=0)),
        vision_config=dict(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=16,
            position_embedding_size=8),
        tie_word_embeddings=True), torch.bfloat16, None),
    # Experts beside dense blocks of another width.
    ("gemma4_experts", Gemma4TextConfig(
        num_key_value_heads=2, num_global_key_value_heads=1, attention_k_eq_v=True, tie_word_embeddings=True,
        enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=16, hidden_size_per_layer_input=0,
        layer_types=[LOCAL, LOCAL, GLOBAL, LOCAL, GLOBAL], **dict(GEMMA4, num_hidden_layers=5)), torch.bfloat16, None),
]

# Seeds other than the number in the list: of some the model makes much of rounding.
SEEDS = {"qwen3_5_moe": 16}

# Frequencies only: published configurations and the corners of YaRN.
ROPES = [
    ("qwen3-8b", 128, 40960, {"rope_type": "default", "rope_theta": 1e6}),
    ("qwen3-8b yarn x4", 128, 40960, {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0,
                                      "original_max_position_embeddings": 32768}),
    ("llama-3.2-1b", 64, 131072, {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0,
                                  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    ("yarn mscale", 64, 163840, {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "mscale": 1.0,
                                 "mscale_all_dim": 0.8, "beta_fast": 32.0, "beta_slow": 1.0,
                                 "original_max_position_embeddings": 4096}),
    ("yarn exact borders", 64, 131072, {"rope_type": "yarn", "rope_theta": 1.5e5, "factor": 32.0, "truncate": False,
                                        "beta_fast": 16.0, "beta_slow": 2.0,
                                        "original_max_position_embeddings": 4096}),
    ("linear", 64, 8192, {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
    ("yarn attention factor", 128, 4096, {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0,
                                          "attention_factor": 1.25, "original_max_position_embeddings": 2048}),
]


def versions():
    return {"torch": torch.__version__, "transformers": transformers.__version__}


def rope_of(config):
    """-> (inverse frequencies as f32 values, factor on cos and sin), from the model's own module."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    module = LlamaRotaryEmbedding(config=config)
    return [float(x) for x in module.inv_freq.float().tolist()], float(module.attention_scaling)


def zero_centred(model, name):
    """Whether 1 is added to the weights of this norm."""
    return "gemma3" in model.config.model_type or "qwen3_5" in model.config.model_type and "linear_attn" not in name


def fill(model, seed):
    """Random weights that make attention sharp and logits far apart; norms and biases too."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=g)
            if "norm" in name:
                p.copy_((0.0 if zero_centred(model, name) else 1.0) + 0.2 * noise)
            elif name.endswith("A_log"):
                p.copy_(0.7 * noise)
            elif name.endswith("dt_bias"):
                p.copy_(noise - 2.0)
            elif "conv1d" in name:
                p.copy_(0.6 * noise)
            elif name.endswith(("bias", "sinks")):
                p.copy_((1.5 if name.endswith("sinks") else 0.3) * noise)
            elif name.endswith(("router.scale", "per_expert_scale")):
                p.copy_((4.0 if name.endswith("router.scale") else 1.0) + 0.3 * noise)
            elif "mlp.experts" in name and "gpt_oss" in model.config.model_type:
                p.copy_(1.4 * noise / math.sqrt(p.shape[-2]))
            elif "embed" in name or "lm_head" in name:
                table = model.get_submodule(name.removesuffix(".weight")) if "embed_tokens" in name else None
                scale = getattr(table, "scalar_embed_scale", 1.0)
                p.copy_(0.8 / scale * noise)
            else:
                p.copy_(1.4 * noise / math.sqrt(p.shape[-1]))
        for name, factor in sorted(model.named_buffers()):
            if name.endswith("layer_scalar"):
                factor.copy_(0.5 + torch.rand(factor.shape, generator=g))


@torch.no_grad()
def logits_of(model, tokens):
    out = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    return out.float()


def greedy(model, tokens):
    """-> (continuation, smallest gap between the two most probable tokens on the way)."""
    ids, gap = list(tokens), math.inf
    for _ in range(N_GREEDY):
        top = logits_of(model, ids)[-1].topk(2)
        gap = min(gap, float(top.values[0] - top.values[1]))
        ids.append(int(top.indices[0]))
    return ids[len(tokens):], gap


def in_mxfp4(folder, seed):
    """Random codes and scales in place of the experts of a folder, and those experts as transformers decodes them."""
    from safetensors.torch import load_file, save_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    path = os.path.join(folder, "model.safetensors")
    g, tensors, decoded = torch.Generator().manual_seed(seed), load_file(path), {}
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, cols, rows = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, rows, cols // 32, 16), generator=g, dtype=torch.uint8)
        # Values up to 6 times 2^-7 to 2^-4.
        scales = torch.randint(120, 124, blocks.shape[:-1], generator=g, dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        decoded[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    save_file(tensors, path, metadata={"format": "pt"})
    config = os.path.join(folder, "config.json")
    with open(config) as f:
        whole = json.load(f) | {"quantization_config": {
            "quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                                "model.embed_tokens", "lm_head"]}}
    with open(config, "w") as f:
        json.dump(whole, f, indent=2)
    return decoded


def make_model(out, name, config, dtype, shard, seed):
    folder = os.path.join(out, name)
    kind = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation="eager")
    fill(model, seed)
    model = model.to(dtype)
    model.generation_config.eos_token_id = [1, 2]
    model.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    # What is recorded comes from the file as any reader finds it.
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    if name.endswith("mxfp4"):
        with torch.no_grad():
            for part, values in in_mxfp4(folder, seed).items():
                model.get_parameter(part).copy_(values)
    assert next(model.parameters()).dtype == torch.float32
    config = config.get_text_config()
    for attempt in range(50):
        g = torch.Generator().manual_seed(seed * 1000 + attempt)
        tokens = torch.randint(0, config.vocab_size, (N_TOKENS,), generator=g).tolist()
        continuation, gap = greedy(model, tokens[:40])
        if gap >= MIN_GAP:
            break
    else:
        raise SystemExit(f"{name}: no prompt with a clear continuation")
    logits = logits_of(model, tokens)
    with open(os.path.join(folder, "logits.f32"), "wb") as f:
        f.write(logits.contiguous().numpy().astype("<f4").tobytes())
    rope = model.get_decoder().rotary_emb  # as the logits have left it: longrope depends on the length
    of = "full_attention_" if "gemma" in config.model_type else ""
    inv_freq, scale = getattr(rope, f"{of}inv_freq").float().tolist(), float(getattr(rope, f"{of}attention_scaling"))
    golden = {
        "versions": versions(), "tokens": tokens, "vocab": config.vocab_size, "prompt_tokens": 40,
        "greedy": continuation, "smallest_gap": gap, "inv_freq": inv_freq, "attention_scale": scale,
        "logits_std": float(logits.std()),
    }
    with open(os.path.join(folder, "golden.json"), "w") as f:
        json.dump(golden, f, indent=1)
    print(f"{name}: logits std {golden['logits_std']:.3f}, smallest greedy gap {gap:.4f}")


def make_ropes(out):
    cases = []
    for name, head_dim, context, parameters in ROPES:
        config = LlamaConfig(hidden_size=head_dim * 4, num_attention_heads=4, head_dim=head_dim,
                             max_position_embeddings=context, rope_parameters=dict(parameters))
        inv_freq, scale = rope_of(config)
        cases.append({"name": name, "head_dim": head_dim, "max_position_embeddings": context,
                      "rope_parameters": parameters, "inv_freq": inv_freq, "attention_scale": scale})
    with open(os.path.join(out, "rope.json"), "w") as f:
        json.dump({"versions": versions(), "cases": cases}, f, indent=1)


TEMPLATE = r"""{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, open=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.open and message.role == "user" %}
        {%- set ns.open = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<|im_start|>assistant\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>assistant\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog sleeps; the fox runs on and on.",
    "Solve 5*b - 2355 = -50*b - 2740 for b. Then the answer is b = -7, and that is right.",
    "Some text in other scripts: größer, naïve, 東京, привет, \U0001F600 and e\u0301.",
    "def main():\n    print('hello, world')\n\n\treturn 12345\r\n",
] * 4

TEXTS = [
    "", " ", "the dog", "  two  spaces\n\n\nand lines \t end ", "12345 67 8", "It's they're I'LL",
    "größer naïve 東京 привет", "e\u0301 against \u00e9", "\U0001F600\U0001F468\u200d\U0001F469\u200d\U0001F467",
    "<|im_start|>system<|im_end|>", "a</think>b <think> c", "def f():\n    return 'x'\r\n", "\u00a0\u2003x",
]

CHATS = [
    [{"role": "user", "content": "Hello there"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2+2?"}],
    [{"role": "user", "content": "first"}, {"role": "assistant", "content": "<think>\nlong thought\n</think>\n\nfour"},
     {"role": "user", "content": "second\nline "}],
    [{"role": "user", "content": "first"}, {"role": "assistant", "content": "<think>\nkept thought\n</think>\n\nfour"}],
    [{"role": "system", "content": "S"}, {"role": "user", "content": "größer 東京"},
     {"role": "assistant", "content": "no thought"}, {"role": "user", "content": "again"},
     {"role": "assistant", "content": "<think>x</think>y"}, {"role": "user", "content": "last"}],
]


def make_tokenizer(out):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
               r"|\s*[\r\n]+|\s+(?!\S)|\s+")
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    for text, special in [("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True),
                          ("<think>", False), ("</think>", False)]:
        token = AddedToken(text, special=special, normalized=False)
        (tok.add_special_tokens if special else tok.add_tokens)([token])
    folder = os.path.join(out, "tokenizer")
    fast = PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)

    fast = AutoTokenizer.from_pretrained(folder)
    plain = [{"text": t, "ids": fast(t)["input_ids"]} for t in TEXTS]
    for case in plain:
        case["decoded"] = fast.decode(case["ids"], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    chats = []
    for messages in CHATS:
        for prompt in (True, False):
            for thinking in (None, True, False):
                extra = {} if thinking is None else {"enable_thinking": thinking}
                text = fast.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt, **extra)
                ids = fast(text, add_special_tokens=False)["input_ids"]
                chats.append({"messages": messages, "add_generation_prompt": prompt, "enable_thinking": thinking,
                              "text": text, "ids": ids})
    with open(os.path.join(folder, "golden.json"), "w") as f:
        json.dump({"versions": versions(), "vocab": len(fast), "texts": plain, "chats": chats}, f, indent=1)


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    out, *only = sys.argv[1:]
    os.makedirs(out, exist_ok=True)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for seed, (name, config, dtype, shard) in enumerate(MODELS, start=1):
        if not only or name in only:
            make_model(out, name, config, dtype, shard, SEEDS.get(name, seed))
    if only:
        return
    make_ropes(out)
    make_tokenizer(out)
    size = sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(out) for f in files)
    print(f"{size} bytes in {out}")


if __name__ == "__main__":
    main()
