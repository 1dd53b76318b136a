#!/bin/sh
# Teach the shipped model what the generators have learnt since, in eight and a half minutes on one H200:
#   sh demo/touch_up.sh [OUT_FOLDER] [FOLDER_FOR_THE_MODEL]
# On from assets/demo: dense at 2,048 and 8,192 tokens, retrofit at both lengths to ratio 10, export. FROM names other
# weights to begin with, ARGS holds further arguments for every step, PYTHON another interpreter.
set -eu
cd "$(dirname "$0")/.."
out=${1:-out/touch_up}
to=${2:-$out/demo} py=${PYTHON:-python3} args=${ARGS:-} from=${FROM:-../assets/demo}
mkdir -p "$out" "$to"
for file in tokenizer.json tokenizer_config.json; do [ "$to" -ef ../assets/demo ] || cp ../assets/demo/$file "$to"; done
$py -m demo.train --init "$from" --out "$out/base.pt" --minutes "${M1:-2.4}" --lr 6e-4 --seed 31 $args
$py -m demo.train --init "$out/base.pt" --out "$out/long.pt" --minutes "${M2:-1.6}" --length 8192 --rows 12 --late --lr 3e-4 --seed 32 $args
$py -m demo.retrofit --init "$out/long.pt" --out "$out/dmsA.pt" --minutes "${M3:-2.2}" --from-ratio 5 --ratio 10 --ramp 0.5 --seed 33 $args
$py -m demo.retrofit --init "$out/dmsA.pt" --teacher "$out/long.pt" --out "$out/dms.pt" --minutes "${M4:-1.6}" \
    --length 8192 --rows 12 --late --from-ratio 10 --ratio 10 --lr 1.5e-4 --seed 34 $args
$py -m demo.export --init "$out/dms.pt" --ratio 10 --to "$to"
