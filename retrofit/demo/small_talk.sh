#!/bin/sh
# The steps from the version before to the one shipped, twelve minutes on one H200; the generators were widened between them (README.md):
#   sh demo/small_talk.sh OUT_FOLDER FOLDER_OF_THE_VERSION_BEFORE
set -eu
cd "$(dirname "$0")/.."
out=$1 from=$2 py=${PYTHON:-python3}
mkdir -p "$out"
$py -m demo.train --init "$from" --out "$out/base.pt" --minutes 2.4 --lr 8e-4 --seed 71 --workers 15
$py -m demo.train --init "$out/base.pt" --out "$out/long.pt" --minutes 1.2 --length 8192 --rows 12 --late --lr 3e-4 --warmup 60 --seed 72 --workers 15
$py -m demo.retrofit --init "$out/long.pt" --out "$out/first.pt" --minutes 3.8 --length 4096 --rows 24 --late --from-ratio 7 --ratio 10 --ramp 0.4 \
    --kl 3 --truth 2 --lr 4e-4 --seed 73 --workers 15
$py -m demo.export --init "$out/first.pt" --ratio 10 --to "$out/first"
$py -m demo.retrofit --init "$out/first" --out "$out/second.pt" --minutes 2.85 --length 4096 --rows 24 --late --from-ratio 10 --ratio 10 \
    --kl 2 --truth 3 --lr 4e-4 --seed 83 --workers 15
$py -m demo.export --init "$out/second.pt" --ratio 10 --to "$out/second"
$py -m demo.average --to "$out/demo" "$out/second=0.75" "$from=0.25"
