#!/usr/bin/env python3
"""Greedy continuations of SmolLM2-135M-Instruct on a device against those that transformers made in f32.

    python3 tests/models/fidelity.py target/release/dmslab target/models/SmolLM2-135M-Instruct --device cuda

Each of the 20 prompts and its 128 golden tokens is fed with eviction off, the prompt as one prefill and the rest
as decode steps; after each the most probable token must be the golden one, or the two best logits of transformers
lie within --tie of each other (bf16 keeps 8 bits, which is up to 0.125 for logits of this model). Standard library only.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[1] / "golden/real/greedy.json"


def most_probable(args, ids, tokens):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(tokens, file)
        file.flush()
        command = [args.binary, "score", "--model", args.model, "--adapter", "none", "--device", args.device, "--kv", args.kv,
                   "--tokens-file", file.name, "--schedule", f"off,prefill:{len(ids)},decode:{len(tokens) - len(ids)}", "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr.strip())
    return json.loads(done.stdout)["argmax"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--kv", default="bf16")
    parser.add_argument("--tie", type=float, default=0.125)
    args = parser.parse_args()
    steps, others, wrong = 0, [], 0
    for case in json.loads(GOLDEN.read_text())["cases"]:
        ids, greedy = case["ids"], case["greedy"]
        said = most_probable(args, ids, ids + greedy[:-1])[len(ids) - 1 :]
        for at, (token, wanted) in enumerate(zip(said, greedy, strict=True)):
            steps += 1
            if token != wanted:
                tie = token == case["second"][at] and case["gap"][at] < args.tie
                wrong += not tie
                others.append(case["gap"][at])
                print(f"{case['prompt'][:40]!r} token {at}: {token}, not {wanted}; gap {case['gap'][at]:.4f}{'' if tie else ' WRONG'}")
    print(f"{steps} steps, {steps - len(others)} equal, {len(others) - wrong} ties, {wrong} wrong; widest gap {max(others, default=0):.4f}")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
