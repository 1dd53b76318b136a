#!/bin/sh
# Teach the built-in model the search tasks, eleven minutes on one H200:
#   sh demo/search.sh [OUT_FOLDER] [FOLDER_FOR_THE_MODEL]
# First its own tasks and search tasks, half of the tokens each; then a continuation with few search turns, which are learnt by
# then; the model is the average of both, three quarters of the second. FROM names the weights to begin with, PYTHON another interpreter, ARGS further arguments for the steps of training.
set -eu
cd "$(dirname "$0")/.."
out=${1:-out/search}
to=${2:-$out/demo} py=${PYTHON:-python3} args=${ARGS:-} from=${FROM:-../assets/demo}
mkdir -p "$out/mixed" "$out/long" "$to"
for folder in "$out/mixed" "$out/long" "$to"; do [ "$folder" -ef ../assets/demo ] || cp ../assets/demo/tokenizer*.json "$folder"; done
middle="--length 4096 --rows 24 --late --search 0.2" long="--length 8192 --rows 12 --late"
evict="--kl 3 --dense-rows 0.2 --ramp 0.5 --search-ratio 22"
$py -m demo.train --init "$from" --out "$out/base.pt" --minutes 3.2 $middle --lr 1e-3 --seed 61 $args
$py -m demo.retrofit --init "$out/base.pt" --out "$out/dms.pt" --minutes 2.5 $middle --from-ratio 5 --ratio 10 $evict --truth 1 --seed 62 $args
$py -m demo.export --init "$out/dms.pt" --ratio 10 --to "$out/mixed"
$py -m demo.train --init "$out/mixed" --out "$out/base2.pt" --minutes 2.75 $long --search 0.05 --lr 6e-4 --seed 81 $args
$py -m demo.retrofit --init "$out/base2.pt" --out "$out/dms2.pt" --minutes 2.5 $long --search 0.06 --from-ratio 6 --ratio 9.5 $evict --truth 2 --seed 82 $args
$py -m demo.export --init "$out/dms2.pt" --ratio 10 --to "$out/long"
$py -m demo.average --to "$to" "$out/long=0.75" "$out/mixed=0.25"
