#!/usr/bin/env python3
"""A stranger's first hour: some forty steps that a new user takes, none of which may be a dead end.

usage: tests/campaign/stranger.py [--binary target/debug/dmschat] [--small] [--patience SECONDS] [--show]

The steps are those of somebody who has read nothing: wrong commands, names of models as other programs write them, first
messages, a download, training, no network. A hub on loopback serves SmolLM2-135M-Instruct if tests/models/fetch has
downloaded it, else (or with --small) a small random model, under any name. A step is a dead end if the program panics, ends unasked,
does not react within --patience seconds, or refuses without a way on: a refusal has to name a command, a key, a flag or
what was meant. A step may also name what has to be shown. Exits with 1 after a dead end; --show prints each screen.
"""
import argparse
import fcntl
import hashlib
import http.server
import json
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

import models
from screen import Screen

ROOT = pathlib.Path(__file__).resolve().parents[2]
REAL = ROOT / "target" / "models" / "SmolLM2-135M-Instruct"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROWS, COLUMNS = 40, 120
F1, F3, F7, F10, ESC, DOWN, CTRL_D = "\x1bOP", "\x1bOR", "\x1b[18~", "\x1b[21~", "\x1b", "\x1b[B", "\x04"
REFUSED = re.compile(r"\b(no command|no model|no subcommand|unknown|unrecognized|cannot|could not|not loaded|not found|"
                     r"does not fit|failed|refused|forbids|nothing fits|is missing|beyond me)\b")
WAY_ON = re.compile(r"/[a-z]+|\bF\d+\b|\bEsc\b|\bEnter\b|did you mean|dmschat |--[a-z]+|ORG/NAME|\bTab\b")

# (how, what is typed, what has to be shown): "sh" runs the program with these arguments, "open" and "offline" open a
# chat, "key" presses a key, "say" types a line.
STEPS = [
    ("sh", ["--help"], "run"),
    ("sh", ["pull", "llama3"], "models pull"),
    ("sh", ["run"], "MODEL"),
    ("sh", ["run", "qwen3:7b", "hi"], "did you mean"),
    ("sh", ["serve"], "no server"),
    ("sh", ["models", "list"], "demo"),
    ("sh", ["models", "list", "--known"], "smollm2"),
    ("sh", ["models", "info", "smollm2"], "llama|gemma3"),
    ("sh", ["hello"], "Hello"),
    ("sh", ["-p", "write a haiku"], "dmschat run NAME"),
    ("open", [], "real models"),
    ("say", "hello", "Hello"),
    ("say", "2+2*3", "each step by itself"),
    ("say", "who was Ada Lovelace?", "beyond me too"),
    ("say", "/hepl", "did you mean /help"),
    ("key", "\x15", None),
    ("key", F1, "To begin"),
    ("key", ESC, None),
    # A command that failed is in the input again, to be corrected.
    ("say", "/model gpt-4", "models list --known"),
    ("key", "\x15", None),
    ("say", "/model llama3.2:4b", "did you mean"),
    ("key", "\x15", None),
    ("key", F10, "models:"),
    ("key", "nosuch", "ORG/NAME"),
    ("key", ESC, None),
    ("key", F10, "smollm2"),
    ("key", "\r", "SmolLM2-135M-Instruct"),
    ("say", "hello", "tok/s"),
    ("say", "/train", "forgets already|measuring|training"),
    ("say", "Tell me about the sea.", "tok/s"),
    ("say", "/train stop", "stopped|nothing is being trained"),
    ("key", "\x15", None),
    ("say", "/forget 2", "forget|keeps"),
    ("key", F3, None),
    ("key", ESC, None),
    ("say", "/recall sea", None),
    ("key", F7, "conversations:"),
    ("key", ESC, None),
    ("say", "/model demo", "demo"),
    ("say", "/export talk.md", "talk.md"),
    ("key", "\x15", None),
    ("key", CTRL_D, "--continue"),
    ("offline", [], "offline"),
    ("say", "/model qwen3:4b", "HF_HUB_OFFLINE"),
    ("key", "\x15", None),
    ("key", CTRL_D, None),
    ("sh", ["--continue", "-p", "and now?"], None),
]


def git_hash(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves `files` as any model."""
    files = {}

    def do_GET(self):
        path = self.path.split("?")[0]
        if path.startswith("/api/models/"):
            listed = [{"rfilename": name, "size": len(data), "blobId": git_hash(data)} for name, data in self.files.items()]
            body = json.dumps({"id": "any/model", "sha": COMMIT, "gated": False, "tags": ["license:apache-2.0"],
                               "siblings": listed}).encode()
        else:
            name = path.split(f"/resolve/{COMMIT}/")[-1]
            if name not in self.files:
                self.send_error(404)
                return
            body = self.files[name]
        first = 0
        if (asked := re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))) and int(asked[1]) < len(body):
            first = int(asked[1])
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
        self.send_header("ETag", f'"{git_hash(body)}"')
        self.send_header("Content-Length", str(len(body) - first))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[first:])

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


class DeadEnd(Exception):
    pass


class Stranger:
    def __init__(self, binary, endpoint, patience):
        self.binary, self.patience = os.path.abspath(binary), patience
        self.home = tempfile.mkdtemp(prefix="dmschat-stranger-")
        self.env = {"HOME": self.home, "PATH": "/usr/bin:/bin", "TERM": "xterm-256color", "LANG": "C.UTF-8",
                    "DMSCHAT_CONFIG_DIR": f"{self.home}/config", "DMSCHAT_DATA_DIR": f"{self.home}/data",
                    "DMSCHAT_DEVICE": "cpu", "DMSCHAT_MAX_TOKENS": "80", "DMSCHAT_TEMPERATURE": "0",
                    "HF_HOME": f"{self.home}/hf", "HF_ENDPOINT": endpoint}
        self.pid = None

    def step(self, how, typed, wanted):
        if how == "sh":
            done = subprocess.run([self.binary, *typed], env=self.env, cwd=self.home, capture_output=True, text=True,
                                  stdin=subprocess.DEVNULL, timeout=self.patience)
            text = done.stdout + done.stderr
            if done.returncode not in (0, 1, 2):
                raise DeadEnd(f"exit code {done.returncode}: {text}")
            self.check(text, done.stderr if done.returncode else "", wanted)
            return text
        if how in ("open", "offline"):
            self.open(dict(self.env, HF_HUB_OFFLINE="1") if how == "offline" else self.env, typed)
        elif how == "say":
            for keys in (typed, "\r"):
                os.write(self.fd, keys.encode())
                self.settle(0.3, 3)
        else:
            os.write(self.fd, typed.encode())
        leaves = typed == CTRL_D
        text = self.until(wanted, leaves)
        if leaves:
            return text
        # The line above the input is the newest one.
        self.check(text, "\n".join(text.splitlines()[-8:]), None)
        return text

    def check(self, text, newest, wanted):
        if "panicked" in text:
            raise DeadEnd(f"panic: {text}")
        for paragraph in re.split(r"\n\s*\n", newest):
            if REFUSED.search(paragraph) and not WAY_ON.search(paragraph):
                raise DeadEnd(f"no way on: {paragraph}")
        if wanted and not re.search(wanted, text):
            raise DeadEnd(f"{wanted!r} is not shown")

    def open(self, env, args):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(self.home)
            os.execve(self.binary, [self.binary, *args], env)
        self.screen, self.all = Screen(ROWS, COLUMNS), bytearray()
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

    def read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return b""
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return None
        self.screen.feed(data)
        self.all += data
        return data or None

    def settle(self, quiet, limit):
        """Reads until nothing came for so long, or to a limit. False when the program has ended."""
        until = time.monotonic() + limit
        while (data := self.read(quiet)) != b"" and time.monotonic() < until:
            if data is None:
                return False
        return data is not None

    def look(self):
        return "\n".join(self.screen.rows())

    def prose(self):
        """The text beside the panel, without the ends of its lines."""
        return " ".join(row.split("│")[0].strip("▎ ") for row in self.screen.rows())

    def until(self, wanted, leaves):
        """The screen once it shows what is wanted and rests; what was written, once the program has ended."""
        until = time.monotonic() + self.patience
        while True:
            alive = self.settle(1.0, 5)
            if not alive:
                status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
                text = self.all.decode("utf-8", "replace")
                if not leaves or status != 0 or wanted and not re.search(wanted, text):
                    raise DeadEnd(f"ended with {status}: {text[-2000:]}")
                return text[-2000:]
            if not leaves and (not wanted or re.search(wanted, self.prose())):
                return self.look()
            if time.monotonic() > until:
                raise DeadEnd(f"waited for {'the end' if leaves else repr(wanted)}:\n{self.look()}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--binary", default=str(ROOT / "target/debug/dmschat"))
    p.add_argument("--patience", type=float, default=180)
    p.add_argument("--small", action="store_true")
    p.add_argument("--show", action="store_true")
    options = p.parse_args()
    folder = REAL
    if options.small or not (folder / "model.safetensors").exists():
        made = pathlib.Path(tempfile.mkdtemp(prefix="dmschat-stranger-model-"))
        models.write_all(made)
        folder = made / "gemma3"
    Hub.files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stranger, dead = Stranger(options.binary, f"http://127.0.0.1:{server.server_port}", options.patience), 0
    for number, (how, typed, wanted) in enumerate(STEPS, 1):
        try:
            text = stranger.step(how, typed, wanted)
            print(f"{number:2d} {how:7s} {typed!r}: goes on")
            if options.show:
                print(text)
        except (DeadEnd, subprocess.TimeoutExpired) as why:
            dead += 1
            print(f"{number:2d} {how:7s} {typed!r}: DEAD END: {why}")
    print(f"{len(STEPS)} steps, {dead} dead ends; {stranger.home}")
    sys.exit(dead > 0)


if __name__ == "__main__":
    main()
