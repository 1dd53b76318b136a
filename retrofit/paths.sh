#!/bin/sh
# Teach the shipped model to keep every edge of a graph, five minutes on one H200:
#   sh paths.sh [OUT_FOLDER] [FOLDER_FOR_THE_MODEL]
# Two rounds of a retrofit with softened decisions and more paths, against the dense answers of the weights it begins with.
# FROM names those weights, PYTHON another interpreter, ARGS further arguments for the training.
set -eu
cd "$(dirname "$0")"
out=${1:-out/paths}
to=${2:-$out/demo} py=${PYTHON:-python3} args=${ARGS:-} from=${FROM:-../assets/demo}
mkdir -p "$out/first" "$to"
for folder in "$out/first" "$to"; do [ "$folder" -ef "$from" ] || cp "$from"/tokenizer*.json "$folder"; done
soft="--length 4096 --rows 24 --late --search 0.25 --paths 0.5 --soft 0.3 --from-ratio 10 --ratio 10 --search-ratio 20 --ramp 0.3 --kl 10 --lr 3e-4"
$py retrofit.py --init "$from" --out "$out/first.pt" --minutes 2.35 $soft --seed 101 $args
$py export.py --init "$out/first.pt" --ratio 10 --to "$out/first"
$py retrofit.py --init "$out/first" --teacher "$from" --out "$out/second.pt" --minutes 2.75 $soft --seed 102 $args
$py export.py --init "$out/second.pt" --ratio 10 --to "$to"
