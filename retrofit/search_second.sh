#!/bin/sh
# A second model for the search tasks, six minutes on one H200: the built-in model's weights go on with mostly search turns.
#   sh search_second.sh [OUT_FOLDER] [FOLDER_FOR_THE_MODEL]
# FROM names the weights to begin with, PYTHON another interpreter, ARGS further arguments for the steps of training.
set -eu
cd "$(dirname "$0")"
out=${1:-out/search_second}
to=${2:-$out/search} py=${PYTHON:-python3} args=${ARGS:-} from=${FROM:-../assets/demo}
mkdir -p "$out" "$to"
cp ../assets/demo/tokenizer*.json "$to"
mix="--length 4096 --rows 24 --late --search 0.8"
$py train.py --init "$from" --out "$out/base.pt" --minutes 3.3 $mix --lr 1.5e-3 --seed 71 $args
$py retrofit.py --init "$out/base.pt" --out "$out/dms.pt" --minutes 2.5 $mix --from-ratio 5 --ratio 10 --search-ratio 22 --ramp 0.5 --kl 3 --truth 1 \
    --dense-rows 0.2 --seed 72 $args
$py export.py --init "$out/dms.pt" --ratio 10 --to "$to"
