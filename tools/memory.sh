#!/usr/bin/env bash
# usage: tools/memory.sh target/release/dmschat docs   (needs tmux and `pip install rich`)
# Makes docs/memory.svg, docs/memory-80x24.svg and docs/memory.html: the built-in model is told five facts and chats, then
# the memory page is opened at 120x40 and at 80x24, and the saved conversation is written as a page.
set -euo pipefail
bin=$(realpath "$1"); out=$(realpath -m "$2"); home=$(mktemp -d)
t() { tmux -L memory "$@"; }
t -f /dev/null new-session -d -s q -x 120 -y 40 "cd $home; env HOME=$home LANG=C.UTF-8 TERM=xterm-256color COLORTERM=truecolor DMSCHAT_DATA_DIR=$home/d DMSCHAT_CONFIG_DIR=$home/c $bin --theme dark --temperature 0"
trap 't kill-server 2>/dev/null || true; rm -rf "$home"' EXIT
until t capture-pane -p -t q | grep -q "Try one of these"; do sleep 0.3; done; sleep 1
while IFS= read -r question; do
  t send-keys -t q -l "$question"; sleep 0.5; t send-keys -t q Enter; sleep 1
  while t capture-pane -p -t q | tail -1 | grep -qE "thinking|answering|reading|stopping"; do sleep 0.3; done; sleep 0.5
done < <(cat "$(dirname "$0")/memory.txt")
picture() {
  t capture-pane -N -e -p -t q > "$home/screen.txt"
  python3 "$(dirname "$0")/picture.py" "$home/screen.txt" "$2" "$1"
}

t send-keys -t q F3; sleep 1; t send-keys -t q Home; sleep 1
picture "$out/memory.svg" 120
t resize-window -t q -x 80 -y 24; sleep 1
picture "$out/memory-80x24.svg" 80
t send-keys -t q Escape; sleep 0.3; t send-keys -t q "/quit" Enter; sleep 1
rm -f "$out/memory.html"
env HOME="$home" DMSCHAT_DATA_DIR="$home/d" DMSCHAT_CONFIG_DIR="$home/c" "$bin" show "$home"/d/sessions/*.jsonl --html "$out/memory.html"
