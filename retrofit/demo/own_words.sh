#!/bin/sh
# The steps from the version before to the one shipped, eighteen minutes on one H200; the generators were widened between them (README.md):
#   sh demo/own_words.sh OUT_FOLDER FOLDER_OF_THE_VERSION_BEFORE
set -eu
cd "$(dirname "$0")/.."
out=$1 from=$2 py=${PYTHON:-python3}
mkdir -p "$out"
$py -m demo.train --init "$from" --out "$out/base.pt" --minutes 5.9 --lr 1e-3 --seed 41 --workers 15
$py -m demo.train --init "$out/base.pt" --out "$out/long.pt" --minutes 2.5 --length 8192 --rows 12 --late --lr 4e-4 --seed 42 --workers 15
$py -m demo.export --init "$out/long.pt" --ratio 10 --to "$out/dense"
$py -m demo.train --init "$out/dense" --out "$out/long2.pt" --minutes 2.2 --length 8192 --rows 12 --late --lr 4e-4 --warmup 60 --seed 52 --workers 15
$py -m demo.retrofit --init "$out/long2.pt" --out "$out/dmsA.pt" --minutes 2.1 --from-ratio 5 --ratio 10 --ramp 0.5 --seed 53 --workers 15
$py -m demo.retrofit --init "$out/dmsA.pt" --teacher "$out/long2.pt" --out "$out/dms.pt" --minutes 1.5 \
    --length 8192 --rows 12 --late --from-ratio 10 --ratio 10 --lr 1.5e-4 --seed 54 --workers 15
$py -m demo.export --init "$out/dms.pt" --ratio 10 --to "$out/evicting"
$py -m demo.retrofit --init "$out/evicting" --out "$out/last.pt" --minutes 3.2 --length 4096 --rows 24 --late --from-ratio 10 --ratio 10 \
    --kl 2 --truth 3 --lr 4e-4 --seed 63 --workers 15
$py -m demo.export --init "$out/last.pt" --ratio 10 --to "$out/demo"
