#!/usr/bin/env bash
# usage: tools/chains.sh target/release/dmschat docs   (needs tmux and `pip install rich`)
# Makes docs/chains.svg: the built-in model answers a countdown with eight chains, of which at least three have ended.
set -euo pipefail
bin=$(realpath "$1"); out=$(realpath -m "$2"); home=$(mktemp -d)
t() { tmux -L chains "$@"; }
t -f /dev/null new-session -d -s q -x 120 -y 40 "cd $home; env HOME=$home LANG=C.UTF-8 TERM=xterm-256color COLORTERM=truecolor DMSCHAT_DATA_DIR=$home/d DMSCHAT_CONFIG_DIR=$home/c $bin --theme dark --seed 1 --temperature 1"
trap 't kill-server 2>/dev/null || true; rm -rf "$home"' EXIT
until t capture-pane -p -t q | grep -q "Try one of these"; do sleep 0.3; done; sleep 1
t send-keys -t q -l "/parallel 8 Reach 186 with three of 8, 24, 6, 3."; sleep 0.5; t send-keys -t q Enter
until [ "$(t capture-pane -p -t q | grep -cE '[1-8] ended')" -ge 3 ]; do sleep 0.1; done
t capture-pane -N -e -p -t q > "$home/screen.txt"
python3 "$(dirname "$0")/picture.py" "$home/screen.txt" 120 "$out/chains.svg"
