"""The fitted parts as dmschat's adapter file.

    python export.py --model FOLDER --parts out/adapter.pt.0 out/adapter.pt.1 --out ../../assets/adapters/NAME.safetensors

`--offset` moves every decision at once (the metadata's alpha_offset): a higher one keeps more.
"""
import argparse
import json
import os

import torch
from safetensors.torch import save_file


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True)
    p.add_argument("--parts", nargs="+", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--base", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    p.add_argument("--window", type=int, default=128)
    p.add_argument("--offset", type=float, default=5.0)
    args = p.parse_args()
    with open(os.path.join(args.model, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    fitted = {}
    for part in args.parts:
        fitted.update(torch.load(part))
    assert sorted(fitted) == list(range(config["num_hidden_layers"])), f"layers missing: {sorted(fitted)}"
    tensors = {}
    for layer, (gain, proj) in fitted.items():
        tensors[f"model.layers.{layer}.self_attn.dms_proj_alpha_norm.weight"] = gain.bfloat16().contiguous()
        tensors[f"model.layers.{layer}.self_attn.dms_proj_alpha.weight"] = proj.bfloat16().contiguous()
    keys = ("model_type", "num_hidden_layers", "hidden_size", "num_key_value_heads", "vocab_size")
    metadata = {"format": "dmschat-adapter-1", "base": args.base, **{k: str(config[k]) for k in keys}, "window": str(args.window),
                "shift": "1", "alpha_scale": "100", "alpha_offset": str(args.offset), "alpha_per": "head", "license": "apache-2.0"}
    os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
    save_file(tensors, args.out, metadata)
    print(f"{args.out}: {os.path.getsize(args.out)} bytes")


if __name__ == "__main__":
    main()
