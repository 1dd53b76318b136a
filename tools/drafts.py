#!/usr/bin/env python3
"""Drafts against single tokens: the same text, and how much faster.

    tools/drafts.py table --smollm2 FOLDER [--rounds 3]       # the table of docs/speculation.md
    tools/drafts.py equal --model M --answers N [--temperature T]    # every text twice: exit code 1 where one differs

Runs target/release/dmschat (or DMSCHAT) with `--draft off` and `--draft lookup` in turn, each with the same seed.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

# No settings of the user.
CONFIG = tempfile.TemporaryDirectory()
PROGRAM = os.environ.get("DMSCHAT", str(pathlib.Path(__file__).parents[1] / "target/release/dmschat"))

PROSE = "The lamp of the lighthouse had been dark for nine winters when Ada climbed its stairs. Salt had eaten the rail, and " \
        "every step answered with a groan. At the top she found the logbook, open at the last night, and a pen that had dried " \
        "in the middle of a word."
MEAN = "def mean(values):\n    total = 0\n    count = 0\n    for value in values:\n        total = total + value\n        count = count + 1\n" \
       "    if count == 0:\n        return None\n    result = total / count\n    return result\n"
CLAMP = "def clamp(value, low, high):\n    if value < low:\n        return low\n    if value > high:\n        return high\n    return value\n\n\n" \
        "def clamp_all(values, low, high):\n    result = []\n    for value in values:\n        result.append(clamp(value, low, high))\n    return result\n"
STACK = "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n        self.items.append(item)\n\n" \
        "    def pop(self):\n        if not self.items:\n            raise IndexError(\"pop from an empty stack\")\n" \
        "        return self.items.pop()\n\n    def size(self):\n        return len(self.items)\n"
COUNT = "def count_words(text):\n    counts = {}\n    for word in text.split():\n        word = word.lower()\n        if word in counts:\n" \
        "            counts[word] = counts[word] + 1\n        else:\n            counts[word] = 1\n    return counts\n"
ITEMS = "\n".join(f"- {name}: {n} crowns" for name, n in [("apples", 12), ("bread", 31), ("butter", 44), ("candles", 9), ("rope", 70), ("salt", 5)])

TASKS = {
    "quoting": [f"Repeat this text word for word:\n\n{PROSE}"],
    "code edits": [
        f"Rename `total` to `sum_` in this function and print the whole function:\n\n{MEAN}",
        f"Add a docstring to each function of this file and print the whole file:\n\n{CLAMP}",
        f"Rename the class to `Pile` and print the whole class:\n\n{STACK}",
        f"Rename `counts` to `seen` and print the whole function:\n\n{COUNT}",
    ],
    "list": [f"Write this list again, with the prices doubled:\n\n{ITEMS}"],
    "prose": ["Write a short story about a lighthouse keeper."],
}
SEEDS = 4
SEARCHES = [
    "Which three numbers of 4, 8, 15, 16, 23 and 42 add up to 43?",
    "Reach 24 from 3, 5, 7, 9.",
    "Which two numbers of 11, 17, 25, 32 and 48 add up to 57?",
    "Which three numbers of 2, 9, 14, 21, 35 and 40 add up to 65?",
]
# Questions that the built-in model knows.
KINDS = [
    lambda r: f"What is {r.randrange(10, 99)} + {r.randrange(10, 99)}?",
    lambda r: f"What is {r.randrange(3, 30)} * {r.randrange(3, 9)}?",
    lambda r: "Which two numbers of {}, {}, {} and {} add up to {}?".format(*(n := r.sample(range(2, 50), 4)), n[0] + n[2]),
    lambda r: "Sort these numbers: {}, {}, {}, {}.".format(*r.sample(range(100), 4)),
    lambda r: "My name is {} and I live in {}. Where do I live?".format(r.choice(["Ada", "Ben", "Cleo"]), r.choice(["Oslo", "Rome"])),
]
TOPICS = ["rivers", "bread", "the moon", "a small town", "bees", "trains", "winter", "an old clock", "maps", "tea"]


def answer(model, prompt, draft, *flags):
    command = [PROGRAM, "-m", model, "-p", prompt, "--device", "cpu", "--json", "--draft", draft, *flags]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "DMSCHAT_CONFIG_DIR": CONFIG.name})
    if done.returncode not in (0, 1) or not done.stdout:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


def same(a, b):
    keys = ["answer", "reasoning", "stop_reason"]
    kv = ["live_slots", "dense_slots", "reads", "peak_slots"]
    return all(a[key] == b[key] for key in keys) and all(a["kv"][key] == b["kv"][key] for key in kv)


def table(options):
    cases = [("SmolLM2-135M", options.smollm2, name, prompts, ["--max-tokens", "200"]) for name, prompts in TASKS.items()]
    cases.append(("built-in", "demo", "search", SEARCHES, ["--max-tokens", "600"]))
    cases.append(("built-in", "demo", "search, --width 3", SEARCHES, ["--max-tokens", "600", "--width", "3", "--early-stop", "off"]))
    print("| model | text | answers | tokens a step with drafts | drafts right | tok/s off | tok/s lookup | gain | least, most |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for model, path, name, prompts, flags in cases:
        rounds, drafted, accepted, tokens, seconds, gains = 0, 0, 0, 0, {"off": 0, "lookup": 0}, []
        answers = [(prompt, seed) for prompt in prompts for seed in range(SEEDS)]
        for prompt, seed in answers:
            times = {"off": [], "lookup": []}
            for turn in range(options.rounds):
                results = {draft: answer(path, prompt, draft, "--seed", str(seed), *flags) for draft in times}
                if not same(*results.values()):
                    sys.exit(f"{name}: the texts differ")
                for draft, result in results.items():
                    times[draft].append(1 / result["decode_tok_s"])
            off, lookup = (statistics.median(times[draft]) for draft in times)
            length = results["off"]["answer_tokens"] + results["off"]["reasoning_tokens"]
            tokens += length
            seconds["off"] += length * off
            seconds["lookup"] += length * lookup
            gains.append(off / lookup)
            tried = results["lookup"].get("draft", {})
            rounds, drafted, accepted = (sum(x) for x in zip((rounds, drafted, accepted), [tried.get(k, 0) for k in ("rounds", "drafted", "accepted")]))
        off, lookup = (tokens / seconds[draft] for draft in seconds)
        per_step = f"{1 + accepted / rounds:.2f}" if rounds else "-"
        print(f"| {model} | {name} | {len(answers)} | {per_step} | {accepted:,} of {drafted:,} | {off:,.0f} | {lookup:,.0f} | {lookup / off:.2f}x | "
              f"{min(gains):.2f}, {max(gains):.2f} |", flush=True)


def equal(options):
    rng, differ, rounds = random.Random(1), 0, 0
    for seed in range(options.answers):
        prompt = rng.choice(KINDS)(rng) if options.model == "demo" else f"Tell me about {rng.choice(TOPICS)} in {rng.randrange(2, 9)} sentences."
        flags = ["--seed", str(seed), "--max-tokens", str(options.max_tokens)]
        flags += ["--temperature", str(options.temperature if seed % 2 else 0)]
        a, b = (answer(options.model, prompt, draft, *flags) for draft in ("off", "lookup"))
        rounds += b.get("draft", {}).get("rounds", 0)
        if not same(a, b):
            differ += 1
            print(f"seed {seed}: {prompt}\n  {a['reasoning']}{a['answer']}\n  {b['reasoning']}{b['answer']}")
    print(f"{options.answers} answers, {rounds} steps with drafts, {differ} differ")
    sys.exit(differ > 0)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
commands = parser.add_subparsers(required=True)
sub = commands.add_parser("table")
sub.add_argument("--smollm2", required=True)
sub.add_argument("--rounds", type=int, default=3)
sub.set_defaults(run=table)
sub = commands.add_parser("equal")
sub.add_argument("--model", default="demo")
sub.add_argument("--answers", type=int, default=500)
sub.add_argument("--temperature", type=float, default=0.8)
sub.add_argument("--max-tokens", type=int, default=300)
sub.set_defaults(run=equal)
options = parser.parse_args()
options.run(options)
