#!/bin/sh
# The steps from the version before to the one shipped, eleven minutes on one H200; the generators were widened between the rounds (README.md):
#   sh demo/wider.sh OUT_FOLDER FOLDER_OF_THE_VERSION_BEFORE
set -eu
cd "$(dirname "$0")/.."
out=$1 from=$2 py=${PYTHON:-python3}
mkdir -p "$out/first" "$out/second"
for folder in "$out/first" "$out/second"; do cp ../assets/demo/tokenizer*.json "$folder"; done
long="--length 4096 --rows 24 --late" evict="--kl 3 --truth 2 --dense-rows 0.2 --ramp 0.5 --lr 4e-4"
$py -m demo.train --init "$from" --out "$out/base.pt" --minutes 3.1 $long --search 0.15 --lr 9e-4 --warmup 60 --seed 111 --workers 15
$py -m demo.retrofit --init "$out/base.pt" --out "$out/dms.pt" --minutes 3 $long --search 0.12 --from-ratio 6.5 --ratio 9.5 --search-ratio 21 $evict --seed 112 --workers 15
$py -m demo.export --init "$out/dms.pt" --ratio 10 --to "$out/first"
$py -m demo.train --init "$out/first" --out "$out/base2.pt" --minutes 2.35 $long --search 0.13 --lr 7e-4 --warmup 60 --seed 121 --workers 15
$py -m demo.retrofit --init "$out/base2.pt" --out "$out/dms2.pt" --minutes 2.75 $long --search 0.13 --from-ratio 8.5 --ratio 9.3 --search-ratio 20 --soft 0.2 $evict --seed 122 --workers 15
$py -m demo.export --init "$out/dms2.pt" --ratio 10 --to "$out/second"
$py -m demo.average --to "$out/demo" "$out/second=0.75" "$out/first=0.25"
