#!/bin/sh
# Teach the shipped model to keep every edge of a graph, three minutes on one H200:
#   sh paths.sh [OUT_FOLDER] [FOLDER_FOR_THE_MODEL]
# A retrofit against its own dense answers, with softened decisions and more paths; then the average with the version before.
# FROM names the weights to begin with, PYTHON another interpreter, ARGS further arguments for the training, SHARE the new weights' share.
set -eu
cd "$(dirname "$0")"
out=${1:-out/paths}
to=${2:-$out/demo} py=${PYTHON:-python3} args=${ARGS:-} from=${FROM:-../assets/demo} share=${SHARE:-0.75}
mkdir -p "$out/soft" "$to"
for folder in "$out/soft" "$to"; do [ "$folder" -ef "$from" ] || cp "$from"/tokenizer*.json "$folder"; done
$py retrofit.py --init "$from" --out "$out/soft.pt" --minutes "${MINUTES:-2.3}" --length 4096 --rows 24 --late --search 0.25 --paths 0.5 --soft 0.3 \
    --from-ratio 10 --ratio 10 --search-ratio 20 --ramp 0.3 --kl 10 --lr 3e-4 --seed 101 $args
$py export.py --init "$out/soft.pt" --ratio 10 --to "$out/soft"
$py average.py --to "$to" "$out/soft=$share" "$from=$(awk "BEGIN { print 1 - $share }")"
