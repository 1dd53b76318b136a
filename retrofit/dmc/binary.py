"""Compare the binary's DMC with `dmc.Exact` on one conversation: log-probabilities and slots, f32 on the CPU.

    python -m dmc.binary --binary ../target/release/dmslab [--folder out/dmc4]

Without --folder: the shipped model's DMS decisions read as decisions to merge. Its answers are useless then, but it merges a lot.
"""
import argparse
import json
import os
import random
import subprocess
import tempfile

import torch

from data.conversation import TOKENIZER_PATH, Encoder, make_row
from dmc.attention import Exact, PoolingAttention
from dmc.export import export
from demo.model import load_folder


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--binary", required=True)
    p.add_argument("--folder")
    p.add_argument("--tokens", type=int, default=300)
    p.add_argument("--seed", type=int, default=5)
    args = p.parse_args()
    ids = make_row(random.Random(args.seed), Encoder(), args.tokens)[0][:args.tokens].tolist()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or os.path.join(scratch, "model")
        if not args.folder:
            export(load_folder(os.path.dirname(TOKENIZER_PATH), "cpu"), 4, folder)
        tokens = os.path.join(scratch, "tokens.json")
        with open(tokens, "w", encoding="utf-8") as out:
            json.dump(ids, out)
        command = [args.binary, "score", "-m", folder, "--device", "cpu", "--policy", "dmc", "--kv", "f32", "--tokens-file", tokens, "--json"]
        scored = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        with torch.no_grad():
            logits, opens = load_folder(folder, "cpu", PoolingAttention)(torch.tensor([ids]), Exact())
    wanted = logits.log_softmax(-1)[0, :-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    # the first token has no log-probability
    differences = (torch.tensor(scored["logprobs"][1:]) - wanted).abs()
    print(f"{len(ids)} tokens: ratio {opens.numel() / int(opens.sum()):.4f}, of the binary {scored['ratio']:.4f}; "
          f"log-probabilities differ by at most {differences.max():.1e}, {differences.mean():.1e} on average")


if __name__ == "__main__":
    main()
