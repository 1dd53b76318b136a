"""Write a checkpoint as the model folder dmschat embeds: bf16 safetensors, config, generation config.

    python -m demo.export --init out/dms.pt [--to ../assets/demo]
"""
import argparse
import json
import os

import torch
from safetensors.torch import save_file

from data.conversation import TOKENIZER_PATH
from demo.train import load_model

END_OF_TEXT, END_OF_TURN = 0, 2


def config_of(shape, ratio):
    """config.json with the keys of nvidia/Qwen3-8B-DMS-8x."""
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
        "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": None, "eos_token_id": END_OF_TURN, "pad_token_id": END_OF_TEXT,
        "dms_alpha_per": "head", "dms_alpha_scale": shape.alpha_scale, "dms_cr": ratio,
        "dms_initial_alpha_offset": shape.alpha_offset, "dms_paged_attention_block_size": 256,
        "dms_window_size": shape.window,
        "head_dim": shape.head_dim, "hidden_act": "silu", "hidden_size": shape.hidden, "initializer_range": 0.02,
        "intermediate_size": shape.ffn, "max_position_embeddings": shape.context, "max_window_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_hidden_layers": shape.layers, "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.eps, "rope_scaling": None, "rope_theta": shape.theta, "sliding_window": None,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False,
        "vocab_size": shape.vocab,
    }


def write_folder(model, config, to):
    """Writes weights (bf16), config.json and generation_config.json; prints their size."""
    os.makedirs(to, exist_ok=True)
    tensors = {"model." + name: value.to(torch.bfloat16).contiguous() for name, value in model.state_dict().items()}
    save_file(tensors, os.path.join(to, "model.safetensors"), metadata={"format": "pt"})
    generation = {"do_sample": True, "eos_token_id": [END_OF_TURN, END_OF_TEXT], "pad_token_id": END_OF_TEXT, "temperature": 0.6}
    for name, value in (("config.json", config), ("generation_config.json", generation)):
        with open(os.path.join(to, name), "w", encoding="utf-8") as out:
            json.dump(value, out, indent=2)
            out.write("\n")
    size = os.path.getsize(os.path.join(to, "model.safetensors"))
    print(f"{sum(t.numel() for t in tensors.values()):,} parameters, {size:,} bytes")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--init", required=True)
    p.add_argument("--to", default=os.path.dirname(TOKENIZER_PATH))
    p.add_argument("--ratio", type=int, default=12)
    args = p.parse_args()
    model, _ = load_model(args.init, "cpu")
    write_folder(model, config_of(model.shape, args.ratio), args.to)


if __name__ == "__main__":
    main()
