"""Write a DMC checkpoint as a model folder: bf16 safetensors, config with dmc_* keys, the tokenizer of the shipped model.

    python -m dmc.export --init out/dmc4.pt --ratio 4 --to out/dmc4
"""
import argparse
import os
import shutil

from data.conversation import TOKENIZER_PATH
from dmc.attention import MEMBERS, WEIGHT_OFFSET
from demo.export import config_of, write_folder
from demo.train import load_model


def dmc_config(shape, ratio):
    """config.json: the keys of the family, and dmc_* in place of dms_*."""
    config = {key: value for key, value in config_of(shape, ratio).items() if not key.startswith("dms_")}
    config.update(dmc_alpha_scale=shape.alpha_scale, dmc_alpha_offset=shape.alpha_offset, dmc_weight_scale=1.0,
                  dmc_weight_offset=WEIGHT_OFFSET, dmc_max_members=MEMBERS, dmc_cr=ratio)
    return config


def export(model, ratio, to):
    """Writes a model folder that the binary reads."""
    write_folder(model, dmc_config(model.shape, ratio), to)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(os.path.dirname(TOKENIZER_PATH), name), to)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--init", required=True)
    p.add_argument("--ratio", type=int, required=True)
    p.add_argument("--to", required=True)
    args = p.parse_args()
    export(load_model(args.init, "cpu")[0], args.ratio, args.to)


if __name__ == "__main__":
    main()
