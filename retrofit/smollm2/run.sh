#!/bin/sh
# Everything, one command: sh run.sh MODEL_FOLDER [OUT_FOLDER]. Goes on where it was interrupted.
# The defaults want a CUDA GPU; PYTHON names another interpreter.
set -eu
cd "$(dirname "$0")"
model=$1 out=${2:-../out/smollm2} py=${PYTHON:-python}
mkdir -p "$out"
$py generate.py --model "$model" --split train --count 2048 --out "$out/train.jsonl"
$py generate.py --model "$model" --split test --count 512 --out "$out/test.jsonl"
$py fit.py --model "$model" --answers "$out/train.jsonl" --out "$out/adapter.pt"
$py export.py --model "$model" --parts "$out/adapter.pt.0" --out "$out/adapter.safetensors"
$py evaluate.py --model "$model" --adapter "$out/adapter.safetensors" --answers "$out/test.jsonl" --json "$out/evaluation.json"
