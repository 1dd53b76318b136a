"""A checkpoint of train.py as dmschat's adapter file.

    python export.py --model FOLDER --init out/adapter.pt --out ../../assets/adapters/NAME.safetensors

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
    p.add_argument("--init", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--base", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    p.add_argument("--offset", type=float)
    p.add_argument("--average", action="store_true", help="the running average of the weights")
    args = p.parse_args()
    with open(os.path.join(args.model, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    trained = torch.load(args.init, map_location="cpu", weights_only=True)
    assert len(trained["gain"]) == len(trained["proj"]) == config["num_hidden_layers"]
    tensors, of = {}, "average_" if args.average else ""
    for layer, (gain, proj) in enumerate(zip(trained[of + "gain"], trained[of + "proj"])):
        tensors[f"model.layers.{layer}.self_attn.dms_proj_alpha_norm.weight"] = gain.bfloat16().contiguous()
        tensors[f"model.layers.{layer}.self_attn.dms_proj_alpha.weight"] = proj.bfloat16().contiguous()
    keys = ("model_type", "num_hidden_layers", "hidden_size", "num_key_value_heads", "vocab_size")
    offset = trained["offset"] if args.offset is None else args.offset
    metadata = {"format": "dmschat-adapter-1", "base": args.base, **{k: str(config[k]) for k in keys},
                "window": str(trained["window"]), "shift": str(trained["shift"]), "alpha_scale": f"{trained['scale']:g}", "alpha_offset": f"{offset:g}",
                "alpha_per": "head", "target_ratio": f"{trained['ratio']:g}", "license": "apache-2.0"}
    os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
    save_file(tensors, args.out, metadata)
    print(f"{args.out}: {os.path.getsize(args.out)} bytes, step {trained['step']} of {trained['steps']}")


if __name__ == "__main__":
    main()
