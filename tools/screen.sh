#!/usr/bin/env bash
# usage: tools/screen.sh target/release/dmschat docs/screen.svg   (needs tmux and `pip install rich`)
# Makes the README's picture: a real conversation of four turns on 120x40, drawn by rich from the screen of tmux.
set -euo pipefail
bin=$(realpath "$1"); out=$(realpath -m "$2"); home=$(mktemp -d)
t() { tmux -L svg "$@"; }
t -f /dev/null new-session -d -s q -x 120 -y 40 "cd $home; env HOME=$home LANG=C.UTF-8 TERM=xterm-256color COLORTERM=truecolor DMSCHAT_DATA_DIR=$home/d DMSCHAT_CONFIG_DIR=$home/c $bin --theme dark --temperature 0"
trap 't kill-server 2>/dev/null || true; rm -rf "$home"' EXIT
until t capture-pane -p -t q | grep -q "Try one of these"; do sleep 0.3; done; sleep 1
for q in "What can you do?" "a = 4; b = a + 7; c = b - 2; a = c + 5. What is a?" "Solve 5*b - 2355 = -50*b - 2740 for b." "Solve 3*x + 14 = 5*x - 8 for x."; do
  t send-keys -t q "$q"; sleep 0.5; t send-keys -t q Enter; sleep 1
  while t capture-pane -p -t q | tail -1 | grep -qE "thinking|answering|reading|stopping"; do sleep 0.3; done; sleep 0.5
done
t capture-pane -N -e -p -t q > "$home/screen.txt"
python3 "$(dirname "$0")/picture.py" "$home/screen.txt" 120 "$out"
