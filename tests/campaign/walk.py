#!/usr/bin/env python3
"""Walks at random through messages, slash commands and keys of chats, and compares their saved sessions.

usage: tests/campaign/walk.py [--binary target/debug/dmschat] [--settings all|NAME,...] [--steps 1000] [--seed 1]
                              [--play FILE] [--model M|gemma3|qwen3_5|qwen3_5_moe|gpt_oss] [--jobs N] [--tolerate-replay] [--out FILE]

A walk types STEPS random steps into a terminal of its own under one of the SETTINGS: messages, pastes, every slash
command with good and bad arguments, keys in and after answers and on every page, other sizes of the terminal.
It looks for: a panic, an end that was not asked for, no reaction within 20 s, work that Esc does not stop, an escape
sequence that the program does not use, counts on the screen that differ from each other, records of the session
file that contradict each other. At the end each saved session is
- shown, as text and as HTML;
- continued with its cache and, in a copy of the data folder, twice without it: the answer to one question, live
  slots and reads must be the same. Differences from a replay are counted apart; with --tolerate-replay they do
  not fail the walk.
--model gemma3, qwen3_5, qwen3_5_moe and gpt_oss are small random models whose layers differ (models.py), with a predictor; settings that such a
model refuses are left out.
Each finding is one line of JSON in --out with its setting, seed and last steps. The folder of a walk with findings is
kept: its walk.json has all steps, and --play FILE types them again. Times vary, so that a walk may differ from
its last run. Exits with 1 after any finding.
"""
import argparse
import collections
import concurrent.futures
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

import models
from screen import Screen
from steps import KEYS, SIZES, walk_of

# The built-in model has bf16 weights only.
SMALL = os.path.abspath("target/models/SmolLM2-135M-Instruct")
SETTINGS = {
    "f32": [],
    "bf16": ["--kv", "bf16"],
    "fp8": ["--kv", "fp8"],
    "int8": ["--kv", "int8"],
    "k8v4": ["--kv", "k8v4"],
    "dense": ["--policy", "dense"],
    "window": ["--policy", "window", "--budget", "96"],
    "tova": ["--policy", "tova", "--budget", "96"],
    "h2o": ["--policy", "h2o", "--budget", "96"],
    "pool": ["--policy", "pool", "--budget", "4x"],
    "ratio": ["--kv", "int8", "--keep-ratio", "2"],
    "far": ["--far", "200KB", "--far-pages", "2"],
    "far-window": ["--policy", "window", "--budget", "96", "--far", "10MB"],
    "limit": ["--kv-limit", "1600KB", "--when-full", "forget"],
    "weights": ["-m", SMALL, "--weights", "int8", "--ctx-size", "2048", "--max-tokens", "20"],
    "off": ["--eviction", "off", "--ctx-size", "900", "--pin", "system", "--system", "Answer briefly."],
}
# Of models with layers that see a window of their own.
REFUSED = {"gemma3": {"tova", "h2o", "pool", "weights"}, "gpt_oss": {"tova", "h2o", "pool", "weights"}}
REFUSED |= {"qwen3_5": {"weights"}, "qwen3_5_moe": {"weights"}}
REACTION = 20.0
# Longest time for an end: it waits for the answer to stop, for the disk, and for copies of what the disk refuses.
LEAVING = 8.0
LONGEST_WORK = 90.0
QUIET = 0.08
QUESTION = "Remember: my name is Ada. What is my name?"


class Finding(Exception):
    """What a walk cannot go on after."""


class Walk:
    def __init__(self, options, setting, steps):
        self.binary, self.setting, self.steps = os.path.abspath(options.binary), setting, steps
        self.args = list(SETTINGS[setting])
        if options.model:
            self.args += ["-m", options.model]
        if options.predictor and "--policy" not in self.args:
            self.args += ["--adapter", options.predictor]
        # Tokens that each layer sees at most.
        self.windows = options.windows
        if "--max-tokens" not in self.args:
            self.args += ["--max-tokens", "60"]
        self.home = tempfile.mkdtemp(prefix=f"dmschat-walk-{setting}-")
        files = {"notes.txt": "The access code is 48213.\n", "editor": "#!/bin/sh\necho edited >> \"$1\"\n"}
        for name, text in files.items():
            with open(f"{self.home}/{name}", "w") as out:
                out.write(text)
        os.chmod(f"{self.home}/editor", 0o755)
        self.figures, self.findings, self.done, self.typed = collections.Counter(), [], [], []
        self.pid, self.fd, self.screen = None, None, Screen(*SIZES[0])

    def env(self, data="data"):
        home = self.home
        return {"HOME": home, "PATH": "/usr/bin:/bin", "TERM": "xterm-256color", "LANG": "C.UTF-8", "TMPDIR": home,
                "DMSCHAT_CONFIG_DIR": f"{home}/config", "DMSCHAT_DATA_DIR": f"{home}/{data}", "EDITOR": f"{home}/editor",
                "HF_HUB_OFFLINE": "1"}

    def found(self, kind, detail):
        self.findings.append({"kind": kind, "detail": str(detail)[-3000:], "step": len(self.done),
                              "last": self.done[-12:]})

    # The terminal

    def start(self, more):
        pid, fd = pty.fork()
        if pid == 0:
            try:
                os.chdir(self.home)
                os.execve(self.binary, [self.binary, *self.args, *more], self.env())
            finally:
                os._exit(127)
        self.pid, self.fd, self.all = pid, fd, bytearray()
        self.size(*SIZES[0])
        until = time.monotonic() + REACTION
        while b"F1" not in self.all and b"context" not in self.all:
            if self.read(0.2) is None or time.monotonic() > until:
                raise Finding(f"does not start: {self.look()} {bytes(self.all[-2000:])!r}")
        self.settle()

    def size(self, rows, columns):
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds):
        """Reads for so long or until something came; the bytes that came, or None when the program has ended."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return b""
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return None
        self.screen.feed(data)
        self.all += data
        del self.all[:-200_000]
        return data or None

    def settle(self):
        """Reads until the screen stands still. False when the program has ended."""
        begun, stopped, quiet = time.monotonic(), False, time.monotonic()
        while time.monotonic() - quiet < QUIET:
            data = self.read(QUIET)
            if data is None:
                return False
            if data:
                quiet = time.monotonic()
            if time.monotonic() - begun > LONGEST_WORK + REACTION:
                raise Finding("Esc does not end this: " + self.look())
            if time.monotonic() - begun > LONGEST_WORK and not stopped:
                stopped = True
                os.write(self.fd, b"\x1b")
        return True

    def reacts(self):
        """Reads until a change of size is drawn. False when the program has ended."""
        rows, columns = len(self.screen.cells), self.screen.columns
        self.size(rows, columns + 1)
        until = time.monotonic() + REACTION
        while (data := self.read(0.5)) == b"":
            if time.monotonic() > until:
                os.write(self.fd, KEYS["Ctrl+L"].encode())
                if not (data := self.read(REACTION)):
                    raise Finding(f"no reaction: {self.threads()}")
                # It lives, and was not told of its size.
                self.figures["sizes not drawn"] += 1
                break
        if data is None:
            return False
        self.size(rows, columns)
        return self.settle()

    def threads(self):
        """What each thread of the program does."""
        found, folder = [], f"/proc/{self.pid}/task"
        for thread in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            for name in ("comm", "wchan", "syscall", "stat"):
                try:
                    with open(f"{folder}/{thread}/{name}") as file:
                        found.append(file.read()[:60].strip())
                except OSError:
                    pass
        return found

    def look(self):
        return "\n".join(self.screen.rows())

    # Steps

    def type(self, text):
        data = text.encode()
        while data:
            data = data[os.write(self.fd, data[:1024]):]
            if data:
                self.read(0)

    def step(self, step):
        name, keys = step[0], step[1]
        self.done.append(name)
        self.typed.append(time.monotonic())
        self.figures["steps"] += 1
        if name.startswith("size"):
            self.size(*keys)
        else:
            line = name.endswith(" Enter")
            self.type(keys)
            if line:
                # Together they would be a paste.
                if not self.settle():
                    return False
                self.type("\r")
        if name == "Ctrl+Z":
            time.sleep(0.3)
            os.kill(self.pid, signal.SIGCONT)
        if step[2] > 0:
            # In the middle of what it does.
            until = time.monotonic() + step[2]
            while (left := until - time.monotonic()) > 0:
                if self.read(left) is None:
                    return False
            return True
        return self.settle() and (len(self.done) % 10 != 0 or self.reacts())

    def ended(self):
        """Checks an end that the steps have asked for, and starts the chat again."""
        status = self.wait()
        ends = ("Ctrl+C", "Ctrl+D", "Enter", "y", "/quit Enter")
        # What is typed while the program stops its answer and writes is not read any more.
        last = self.done[-8:] + [name for name, at in zip(self.done, self.typed) if time.monotonic() - at < LEAVING]
        asked = any(name in ends for name in last)
        if status != 0 or not asked:
            raise Finding(f"ended with {status}: {bytes(self.all[-3000:])!r}")
        self.check_end_of_screen()
        self.figures["starts"] += 1
        saved = self.sessions()
        self.start(["--continue"] if saved else [])

    def wait(self):
        until = time.monotonic() + REACTION
        while time.monotonic() < until:
            if self.read(0.05) is None:
                time.sleep(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self.read(0.05):
                    pass
                os.close(self.fd)
                self.pid = None
                return os.waitstatus_to_exitcode(status)
        raise Finding("does not end: " + self.look())

    def leave(self):
        """Leaves the chat as a user does."""
        for key in ["\x1b"] * 4 + ["\x03"] * 80:
            try:
                os.write(self.fd, key.encode())
            except OSError:
                break
            if not self.settle():
                break
        status = self.wait()
        if status != 0:
            raise Finding(f"ended with {status}: {bytes(self.all[-3000:])!r}")
        self.check_end_of_screen()

    # Checks

    def check_end_of_screen(self):
        left = bytes(self.all[-4000:])
        for on, off in [(b"1049h", b"1049l"), (b"25l", b"25h"), (b"2004h", b"2004l"), (b"1000h", b"1000l")]:
            if left.rfind(b"\x1b[?" + on) > left.rfind(b"\x1b[?" + off):
                self.found("terminal not restored", (on, left[-300:]))

    def check_screen(self):
        if self.screen.odd:
            self.found("raw escape", self.screen.odd[:5])
            self.screen.odd = []
        if b"panicked" in self.all:
            at = self.all.find(b"panicked")
            self.found("panic", bytes(self.all[max(0, at - 200):at + 1500]))
            self.all.clear()
        wrong = self.counts()
        if wrong:
            # A frame may have been drawn between two numbers of the engine.
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                if self.read(0.2) is None:
                    return
            wrong = self.counts()
        if wrong:
            self.found("untrue count", wrong + "\n" + self.look())

    def counts(self):
        """What contradicts itself on the screen, if anything does."""
        rows = self.screen.rows()
        text = "\n".join(rows)
        status = re.search(r"eviction \w+(?: · ([\d.]+)x)?.*context ([\d,]+)/([\d,]+)", rows[-1] if rows else "")
        # Numbers of a step that is under way arrive one after the other.
        if not status or "stops)" in text or re.search("[\u2801-\u28ff]", rows[-1]):
            return None
        number = lambda s: int(s.replace(",", ""))
        used, room = number(status[2]), number(status[3])
        if used > room:
            return f"{used} of {room} tokens"
        panel = re.search(r"cache [\d.]+ \w+ · dense [\d.]+ \w+ · ([\d.]+)x", text)
        if panel and status[1] and panel[1] != status[1]:
            return f"ratio {status[1]} in the status line, {panel[1]} in the panel"
        memory = re.search(r"^ memory: ([\d,]+) tokens?,", rows[0])
        if memory and number(memory[1]) != used:
            return f"{used} tokens in the status line, {memory[1]} on the memory page"
        # The list of a command's numbers: of the moment at which it ran, if it did and is not still in the input line.
        if self.done[-1:] != ["/stats Enter"] or re.search(r"^›.*/stats", text, re.M):
            return None
        found = list(re.finditer(r"slots +([\d,]+) live, ([\d,]+) dense.*?tokens +([\d,]+)/.*?live slots of ([\d,]+) "
                                 r"tokens[^\n]*\n[^\n]*\n((?:[▎ ]*L\d+[ \d,]*[^\n]*\n)+)", text, re.S))
        # The rest of a list may be below the screen's end, and an older list above an answer.
        after = [row.split("│")[0].strip("▎ ") for row in text[found[-1].end():].split("\n")] if found else []
        if not any(after) or after[0] or not next(filter(None, after)).startswith(("─", "›")):
            return None
        live, dense, tokens, of = (number(found[-1][n]) for n in range(1, 5))
        cells = [[number(n) for n in re.findall(r"[\d,]+", row.split("│")[0].split("L", 1)[1])[1:]]
                 for row in found[-1][5].splitlines()]
        self.figures["lists of numbers checked"] += 1
        if (tokens, of) != (used, used):
            return f"{used} tokens in the status line, {tokens} and {of} in /stats"
        if sum(map(sum, cells)) != live or dense != self.dense(tokens, cells):
            return f"{live} live and {dense} dense slots, the heads have {sum(map(sum, cells))} of {tokens} tokens"
        return None

    def dense(self, tokens, live):
        """Slots of a dense cache of so many tokens, with a row of `live` for each layer."""
        # A step may have loaded the built-in model.
        windows = self.windows if len(self.windows or []) == len(live) else [tokens] * len(live)
        return sum(min(tokens, window) * len(heads) for window, heads in zip(windows, live, strict=True))

    def sessions(self):
        folder = f"{self.home}/data/sessions"
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        return [name[:-len(".jsonl")] for name in names if name.endswith(".jsonl")]

    def check_file(self, session):
        """Checks that the records of a session agree with each other."""
        with open(f"{self.home}/data/sessions/{session}.jsonl", "rb") as file:
            records = [json.loads(line) for line in file.read().split(b"\n") if line]
        log, ids = [], {None}
        for n, record in enumerate(records):
            where = f"{session} line {n + 1}"
            for part in [record.get("user"), record]:
                # Others may be of an answer that is running, which is written after them or taken back.
                placed = record["type"] in ("turn", "message", "edit", "head")
                if part and placed and part["parent"] not in ids:
                    self.found("record", f"{where}: parent {part['parent']} is not there")
                ids |= {part["id"]} if part else set()
            tokens = sum(isinstance(entry, int) for entry in log)
            if record["type"] == "toggle" and (tokens <= record["at_token"] or "at_text" not in record
                                               and (record["at_token"] or record["parent"] is None)):
                while sum(isinstance(entry, int) for entry in log) > record["at_token"]:
                    log.pop()
                log.append({"eviction": record["eviction"]})
            change = record.get("report", record)
            if "log_base" in change:
                if change["log_base"] > len(log):
                    self.found("record", f"{where}: log_base {change['log_base']} of a log of {len(log)}")
                log = log[:change["log_base"]] + change["log"]
            if record["type"] != "turn":
                continue
            self.figures["turns"] += 1
            report, kv = record["report"], record["report"]["kv"]
            if sum(map(sum, kv["live"])) != kv["live_slots"]:
                self.found("record", f"{where}: {kv['live_slots']} live slots, the heads have {kv['live']}")
            tokens = sum(isinstance(entry, int) for entry in log)
            # A summary, or a turn of a list, has the numbers of the conversation that it comes from, and no log.
            if records[0].get("continues") and not log:
                continue
            if report["in_context"] and kv["dense_slots"] != self.dense(tokens, kv["live"]):
                self.found("record", f"{where}: {kv['dense_slots']} dense slots of {tokens} tokens, "
                                     f"{report['stop_reason']}")
            if len(report["generated"]) != report["answer_tokens"] + report["reasoning_tokens"]:
                self.found("record", f"{where}: {len(report['generated'])} tokens generated, "
                                     f"{report['answer_tokens']} + {report['reasoning_tokens']} reported")
            for part in record.get("retention") or []:
                if not 0 <= part["share"] <= 1 or any(not 0 <= p <= 100 for _, p in part["stretches"]):
                    self.found("record", f"{where}: retention {part}")

    def run(self, args, data="data"):
        try:
            done = subprocess.run([self.binary, *args], env=self.env(data), cwd=self.home, stdin=subprocess.DEVNULL,
                                  capture_output=True, timeout=600)
        except subprocess.TimeoutExpired:
            self.found("hang", f"{args} does not end in 600 s")
            return None
        for name, output in [("stdout", done.stdout), ("stderr", done.stderr)]:
            if b"panicked" in output or b"\x1b" in output:
                self.found("panic or escape", f"{args}, {name}: {output[-1500:]!r}")
        if done.returncode != 0 and b'"stop_reason"' not in done.stdout:
            self.found("exit code", f"{args}: {done.returncode}, {done.stderr[-500:]!r}")
        return done

    def ask(self, session, data):
        """The answer of a saved session to one question, and what its cache then holds."""
        question = ["-p", QUESTION, "--json", "--temperature", "0", "--seed", "1"]
        done = self.run([*self.args, "--resume", session, *question], data)
        if done is None or not done.stdout.strip():
            return None, ""
        answer = json.loads(done.stdout)
        kv = answer["kv"]
        same = {name: answer[name] for name in ["answer", "reasoning", "stop_reason", "prompt_tokens", "answer_tokens"]}
        same |= {name: kv[name] for name in ["live", "live_slots", "dense_slots", "reads", "peak_slots"]}
        return same, done.stderr.decode("utf-8", "replace")

    def check_session(self, session):
        self.check_file(session)
        for args in [["show", session], ["show", session, "--html", f"{session}.html"]]:
            self.run(args)
        cached = os.path.exists(f"{self.home}/data/sessions/{session}.cache")
        replays = []
        for n in range(2):
            # Each in a folder of its own: nothing of one may help the other.
            os.makedirs(f"{self.home}/replay{n}/sessions", exist_ok=True)
            shutil.copy(f"{self.home}/data/sessions/{session}.jsonl", f"{self.home}/replay{n}/sessions/")
            replays.append(self.ask(session, f"replay{n}")[0])
        self.compare("replays differ", session, replays[0], replays[1])
        self.figures["sessions"] += 1
        if not cached:
            self.figures["sessions without a cache"] += 1
            return
        loaded, said = self.ask(session, "data")
        if "is not used" in said or "out of date" in said:
            self.figures["caches not used"] += 1
            # A walk may have lifted the limit, and at its end a busy chat writes for 1.5 s at most.
            if "would pass the limit" not in said and "out of date" not in said:
                self.found("cache not used", f"{session}: {said}")
            return
        self.figures["caches compared"] += 1
        self.compare("replay differs from the cache", session, replays[0], loaded)

    def compare(self, kind, session, one, other):
        if one == other:
            return
        self.figures[kind] += 1
        names = [name for name in (one or other) if not (one and other) or one[name] != other[name]]
        pick = lambda of: {name: of[name] for name in names if name != "live"} if of else None
        self.found(kind, f"{session}: {', '.join(names)}: {pick(one)} and {pick(other)}")

    def go(self):
        try:
            self.start([])
            for step in self.steps:
                if not self.step(step):
                    self.ended()
                self.check_screen()
            self.leave()
        except Finding as finding:
            self.found("stopped", finding)
        except OSError as error:
            self.found("stopped", f"{error}: {bytes(self.all[-2000:])!r}")
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        for session in self.sessions()[-8:]:
            self.check_session(session)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default="target/debug/dmschat")
    parser.add_argument("--settings", default="all", help="names, separated by commas: " + ", ".join(SETTINGS))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--play", help="type the steps of this walk.json instead")
    parser.add_argument("--model", help="another model than the built-in one: a folder, or " + ", ".join(models.CONFIGS))
    parser.add_argument("--jobs", type=int, default=1, help="walks that go on at once")
    parser.add_argument("--tolerate-replay", action="store_true", help="a replay may differ from the cache")
    parser.add_argument("--out", help="findings are appended here, a line of JSON each")
    options = parser.parse_args()
    settings = list(SETTINGS) if options.settings == "all" else options.settings.split(",")
    options.predictor, options.windows = None, None
    with tempfile.TemporaryDirectory(prefix="dmschat-walk-models-") as folder:
        if options.model in models.CONFIGS:
            config, refused = models.CONFIGS[options.model], REFUSED[options.model]
            models.write_all(pathlib.Path(folder))
            settings = [setting for setting in settings if options.settings != "all" or setting not in refused]
            options.predictor = f"{folder}/{options.model}-predictor"
            options.model = f"{folder}/{options.model}"
            kinds = {"sliding_attention": config.get("sliding_window"), "full_attention": 1 << 30}
            options.windows = [kinds[kind] for kind in config["layer_types"] if kind in kinds]
        # A walk mostly waits for its chat.
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            failed = sum(pool.map(lambda setting: walk_under(options, setting), settings))
    return 1 if failed else 0


def walk_under(options, setting):
    """Walks under a setting, prints its row, and returns the number of findings."""
    begun = time.monotonic()
    if options.play:
        with open(options.play) as file:
            steps = json.load(file)
    else:
        steps = walk_of(options.seed, setting, options.steps)
    walk = Walk(options, setting, steps)
    walk.go()
    tolerated = [f for f in walk.findings if options.tolerate_replay and "replay" in f["kind"]]
    kinds = collections.Counter(finding["kind"] for finding in walk.findings)
    row = {"setting": setting, "seed": options.seed, "seconds": round(time.monotonic() - begun), **walk.figures,
           "findings": kinds}
    if walk.findings:
        row["folder"] = walk.home
        with open(f"{walk.home}/walk.json", "w") as out:
            json.dump(steps, out)
    else:
        shutil.rmtree(walk.home)
    print(json.dumps(row), flush=True)
    if options.out:
        with open(options.out, "a") as out:
            for finding in walk.findings:
                out.write(json.dumps({"setting": setting, "seed": options.seed, **finding}) + "\n")
    return len(walk.findings) - len(tolerated)


if __name__ == "__main__":
    sys.exit(main())
