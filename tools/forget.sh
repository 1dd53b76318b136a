#!/usr/bin/env bash
# usage: tools/forget.sh target/release/dmschat docs/forget.svg   (needs tmux and `pip install rich`)
# Makes the README's first picture: the same conversation with DMS and with a window of about as many bytes, side by side, drawn
# by rich from the screens of tmux. Prints the bytes of both caches.
set -euo pipefail
bin=$(realpath "$1"); out=$(realpath -m "$2"); home=$(mktemp -d)
columns=80; rows=30
t() { tmux -L forget "$@"; }
trap 't kill-server 2>/dev/null || true; rm -rf "$home"' EXIT
flags=("--theme dark --seed 1" "--theme dark --seed 1 --policy window --budget 96")
for n in 0 1; do
  t -f /dev/null new-session -d -s "q$n" -x $columns -y $rows "cd $home; env HOME=$home LANG=C.UTF-8 TERM=xterm-256color COLORTERM=truecolor DMSCHAT_DATA_DIR=$home/d$n DMSCHAT_CONFIG_DIR=$home/c $bin ${flags[$n]}"
  until t capture-pane -p -t "q$n" | grep -q "Try one of these"; do sleep 0.3; done; sleep 1
  for q in "Remember: my name is Ada." "Solve 3*x + 14 = 5*x - 8 for x." "What is my name?"; do
    t send-keys -t "q$n" -l "$q"; sleep 0.5; t send-keys -t "q$n" Enter; sleep 1
    while t capture-pane -p -t "q$n" | tail -1 | grep -qE "thinking|answering|reading|stopping"; do sleep 0.3; done; sleep 7
  done
  t capture-pane -N -e -p -t "q$n" > "$home/screen$n.txt"
done
python3 - "$home" $columns <<'PY' > "$home/screen.txt"
import re, sys
home, columns = sys.argv[1], int(sys.argv[2])
screens = [open(f"{home}/screen{n}.txt", encoding="utf8").read().rstrip("\n").split("\n") for n in (0, 1)]
bold = lambda text: f"\x1b[1m{text:^{columns}}\x1b[0m"
print(bold("dmschat") + "   " + bold("dmschat --policy window --budget 96"))
for left, right in zip(*screens):
    seen = re.sub(r"\x1b(\[[0-9;:]*m|\]8;[^\x1b]*\x1b\\)", "", left)
    print(left + "\x1b[0m" + " " * (columns - len(seen)) + " \x1b[2m┃\x1b[0m " + right + "\x1b[0m")
PY
for n in 0 1; do t capture-pane -p -t "q$n" | grep -oE "(cache|dense) [0-9.]+ .B" | tr '\n' ' '; echo "${flags[$n]}"; done
python3 "$(dirname "$0")/picture.py" "$home/screen.txt" $((2 * columns + 3)) "$out"
