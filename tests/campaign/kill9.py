#!/usr/bin/env python3
"""Kills chats with SIGKILL at random moments and checks what is left of their sessions.

usage: tests/campaign/kill9.py [--binary target/debug/dmschat] [--trials 1000] [--seed 1] [--json FILE]

Each trial goes on with the conversation of the trial before it (a new one after every TURNS turns), types
messages into a terminal of its own and is killed after a random time: while it starts, loads, prefills,
answers, writes or switches conversations. Then, read by this script alone:
- every line of every session file is JSON, but for a half last one;
- every turn that was there before is still there, and every turn whose end the program had shown, but at
  most the last one, is there too;
- the history holds every line that was sent, but at most the last one;
- the next trial opens the file without a word of lines that were left out, and finds its cache whole or of another state,
  never damaged.
"""
import argparse
import collections
import json
import os
import pty
import random
import re
import select
import shutil
import signal
import sys
import tempfile
import time

TURNS = 8
ARGS = ["--think", "off", "--max-tokens", "12"]
MESSAGES = ["What can you do?", "Solve 5*b - 2355 = -50*b - 2740 for b.", "a = 3; b = a + 4; c?", "Sort 5 3 9 1"]


def start(binary, home, term, args):
    """The chat in a terminal of its own: its process id and the terminal."""
    pid, fd = pty.fork()
    if pid == 0:
        env = {"HOME": home, "PATH": "/usr/bin:/bin", "TERM": term, "DMSCHAT_CONFIG_DIR": f"{home}/config",
               "DMSCHAT_DATA_DIR": f"{home}/data", "TMPDIR": home}
        try:
            os.execve(binary, [binary, *args], env)
        finally:
            os._exit(127)
    return pid, fd


def read_for(fd, seconds, seen, enough=None):
    """Reads the terminal for so long, or until `enough` says so. False when the process has ended."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([fd], [], [], left)[0]:
            try:
                data = os.read(fd, 65536)
            except OSError:
                return False
            if not data:
                return False
            seen += data
            if enough and enough(seen):
                return True
    return True


def records(path):
    """The records of a file and the bytes of its half last line; an error where another line is broken."""
    data = open(path, "rb").read()
    lines = data.split(b"\n")
    out = []
    for n, line in enumerate(lines):
        if not line:
            continue
        try:
            out.append(json.loads(line))
        except ValueError:
            if n == len(lines) - 1:
                return out, len(line)
            raise AssertionError(f"{path}: line {n + 1} is broken: {line[:80]!r}")
    return out, 0


def sessions(home):
    folder = f"{home}/data/sessions"
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return {name: records(f"{folder}/{name}") for name in names if name.endswith(".jsonl")}


def turns(found):
    return {name: [r["id"] for r in rs if r["type"] == "turn"] for name, (rs, _) in found.items()}


def history(home):
    path = f"{home}/data/history.jsonl"
    return [r for r in records(path)[0]] if os.path.exists(path) else []


def trial(binary, home, rng, figures):
    before = turns(sessions(home))
    sent_before = history(home)
    newest = max(before, default=None)
    fresh = newest is None or len(before[newest]) >= TURNS
    dumb = rng.random() < 0.6
    pid, fd = start(binary, home, "dumb" if dumb else "xterm-256color", [*ARGS, *([] if fresh else ["--continue"])])
    seen, sent, alive = bytearray(), [], True
    kill_at = time.monotonic() + rng.choice([rng.uniform(0.0, 0.6), rng.uniform(0.2, 1.2), rng.uniform(0.5, 2.0)])
    left = lambda: kill_at - time.monotonic()
    ready = b"> " if dumb else b"F1"
    read_for(fd, max(left(), 0), seen, lambda s: ready in s)
    while left() > 0 and alive:
        done = len(re.findall(rb"\[[a-z ]+, \d+ tokens", seen))
        text = rng.choice(MESSAGES) if rng.random() < 0.9 else "/new"
        os.write(fd, text.encode() + b"\r")
        sent.append(text)
        if rng.random() < 0.4:
            # The cache is written while nothing is asked.
            alive = read_for(fd, min(max(left(), 0), rng.uniform(0.25, 0.45)), seen)
        if dumb:
            wanted = done + (text != "/new")
            alive = read_for(fd, max(left(), 0), seen, lambda s: len(re.findall(rb"\[[a-z ]+, \d+ tokens", s)) >= wanted)
        else:
            # The end of an answer is not looked for on a screen: the next message is refused or sent.
            alive = read_for(fd, min(max(left(), 0), rng.uniform(0.2, 1.5)), seen)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(fd)
    shown = len(re.findall(rb"\[[a-z ]+, \d+ tokens", seen))
    assert b"left out" not in seen and b"panicked" not in seen, bytes(seen[-2000:])
    assert b"it is damaged" not in seen, "a cache that was not whole had its name: " + repr(bytes(seen[-2000:]))
    figures["caches loaded"] += b"cache loaded" in seen
    folder = f"{home}/data/sessions"
    names = os.listdir(folder) if os.path.isdir(folder) else []
    figures["caches half written"] += sum(name.endswith(".tmp") for name in names)
    figures["caches"] += sum(name.endswith(".cache") for name in names)
    for name in names:
        if name.endswith(".tmp"):
            os.remove(f"{folder}/{name}")
    found = sessions(home)
    after = turns(found)
    for name, ids in before.items():
        assert after.get(name, [])[:len(ids)] == ids, f"{name}: {ids} became {after.get(name)}"
    new = sum(map(len, after.values())) - sum(map(len, before.values()))
    if dumb:
        assert new >= shown - 1, f"{shown} answers were shown, {new} turns are in the files"
        figures["turns shown as finished and not in the file"] += max(shown - new, 0)
    kept = [h for h in history(home)[len(sent_before):]]
    missing = [s for i, s in enumerate(sent) if s not in kept and (i == 0 or sent[i - 1] != s)]
    assert not dumb or len(missing) <= 1, f"sent {sent}, kept {kept}"
    figures["kills"] += 1
    figures["turns written"] += new
    figures["half last lines"] += sum(1 for _, half in found.values() if half)
    figures["kills before anything was sent" if not sent else "kills in or after a message"] += 1
    figures["with a screen" if not dumb else "line by line"] += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default="target/debug/dmschat")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="where the figures so far are written")
    options = parser.parse_args()
    binary, begun = os.path.abspath(options.binary), time.monotonic()
    home = tempfile.mkdtemp(prefix="dmschat-kill9-")
    figures = collections.Counter()
    for n in range(options.trials):
        rng = random.Random(f"{options.seed}/{n}")
        try:
            trial(binary, home, rng, figures)
        except AssertionError as error:
            figures["failures"] += 1
            print(f"trial {n} of seed {options.seed}: {error}\n{home} is kept", file=sys.stderr)
            home = tempfile.mkdtemp(prefix="dmschat-kill9-")
        if options.json:
            with open(options.json, "w") as out:
                json.dump({"seed": options.seed, "seconds": round(time.monotonic() - begun), **figures}, out)
    shutil.rmtree(home)
    print(json.dumps({"seed": options.seed, "seconds": round(time.monotonic() - begun), **figures}))
    return 1 if figures["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
