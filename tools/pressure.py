#!/usr/bin/env python3
"""Facts recalled where memory runs out: usage: tools/pressure.py DMSLAB [-m MODEL] [--conversations N] [--exchanges N]

Each conversation tells five facts, goes on about other things, and is asked for one of the facts. First without a limit, which
says what the conversation wants: its pages at the end, averaged. Then the same with --kv-limit at 1/1.5 and 1/2 of that: the
valve (--when-full forget), and a dense cache that drops its oldest tokens (--policy dense --when-full window), in the same
bytes and at 1/1.5 and 1/2 of the dense pages. Prints a Markdown table.
"""
import argparse
import json
import random
import subprocess
import tempfile

NAMES = "Ada Bruno Carla Dmitri Elena Farid Greta Hugo Irene Jonas Karin Lena Marco Nadia Oskar Petra".split()
CITIES = "Oslo Lima Cairo Vienna Madrid Dublin Athens Prague Lisbon Warsaw Berlin Zurich".split()
FACTS = [
    ("My name is {}.", "What is my name?", lambda r: r.choice(NAMES)),
    ("My code is {}.", "What is my code?", lambda r: str(r.randint(1000, 9999))),
    ("I live in {}.", "Where do I live?", lambda r: r.choice(CITIES)),
    ("My dog is called {}.", "What is my dog called?", lambda r: r.choice(NAMES)),
    ("My age is {}.", "How old am I?", lambda r: str(r.randint(20, 79))),
]
SMALL = [
    ("What can you do?", "I calculate with whole numbers, solve linear equations, sort numbers, follow variables, find a number "
     "hidden in a text, search by trying and remember names and numbers."),
    ("Hello", "Hello! What can I do for you?"),
    ("How are you?", "I am fine, thank you."),
    ("Thank you.", "You are welcome."),
]
LARGE = [
    ("Why is the sky blue?", "Sunlight is scattered by the molecules of the air. Blue light has a shorter wavelength and is "
     "scattered much more than red light, so that it reaches our eyes from all directions of the sky."),
    ("What is a good soup for winter?", "A lentil soup is easy: fry an onion and two carrots, add red lentils, a spoon of "
     "cumin and a litre of stock, cook it for twenty minutes and finish it with lemon juice."),
    ("How do bicycles stay upright?", "A moving bicycle steers into a fall: when it leans, the front wheel turns to the same "
     "side, which moves the wheels under the rider again. Its geometry and the turning wheels help."),
    ("Tell me about the oceans.", "The oceans cover more than two thirds of the Earth. They store heat, move it around the "
     "globe with their currents and are home to most of the life on the planet, most of it very small."),
    ("Why do leaves change their colour?", "In autumn trees take the green chlorophyll back into their branches, and yellow "
     "and orange pigments that were there all the time become visible. Red ones are made anew in some trees."),
    ("What makes bread rise?", "Yeast eats the sugar in the dough and gives off carbon dioxide. The gas is caught in the net "
     "of gluten that kneading has made, so that the dough grows until the heat of the oven sets it."),
]


def conversations(n, exchanges, demo):
    r = random.Random(7)
    for _ in range(n):
        values = [value(r) for _, _, value in FACTS]
        told = " ".join(fact.format(value) for (fact, _, _), value in zip(FACTS, values))
        messages = [("user", told), ("assistant", "I will remember it.")]
        for _ in range(exchanges):
            if demo and r.random() < 0.7:
                a, b = r.randint(100, 999), r.randint(100, 999)
                messages += [("user", f"What is {a} + {b}?"), ("assistant", str(a + b))]
            else:
                question, answer = r.choice(SMALL if demo else LARGE)
                messages += [("user", question), ("assistant", answer)]
        for (_, question, _), value in zip(FACTS, values):
            yield {"messages": [{"role": role, "content": text} for role, text in [*messages, ("user", question)]],
                   "expected": value}


def run(args, file, *flags):
    command = [args.binary, "eval", "--problems", file, "-m", args.model, "--device", "cpu", "--max-tokens", "40", *flags]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def pages_bytes(answer):
    kv = answer["kv"]
    if not kv["live_slots"]:
        return 0
    slot = kv["live_bytes"] / kv["live_slots"]
    return sum(-(-live // 16) for layer in kv["live"] for live in layer) * 16 * slot


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--exchanges", type=int, default=60)
    args = parser.parse_args()
    problems = list(conversations(args.conversations, args.exchanges, args.model == "demo"))
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("\n".join(map(json.dumps, problems)))
        file.flush()
        print("| cache | limit | recalled | mean ratio |\n| --- | --- | --- | --- |", flush=True)

        def row(name, *flags):
            answers = run(args, file.name, *flags)
            right = sum(a["expected"].lower() in a["answer"].lower() for a in answers)
            ended = sum(a["stop_reason"] in ("cache_full", "error") for a in answers)
            ratio = sum(a["kv"]["ratio"] or 0 for a in answers) / len(answers)
            limit = flags[flags.index("--kv-limit") + 1] if "--kv-limit" in flags else "none"
            failed = f", {ended} ended for want of memory" if ended else ""
            print(f"| {name} | {limit} | {right} of {len(answers)}{failed} | {ratio:.1f} |", flush=True)
            return sum(map(pages_bytes, answers)) / len(answers)

        wants = row("DMS, no limit")
        for pressure in (1.5, 2):
            row(f"DMS, the valve at {pressure}x", "--kv-limit", str(int(wants / pressure)))
        for pressure in (1.5, 2):
            row(f"window + sinks, the same bytes as at {pressure}x", "--policy", "dense", "--when-full", "window",
                "--kv-limit", str(int(wants / pressure)))
        wants = row("dense, no limit", "--policy", "dense")
        for pressure in (1.5, 2):
            row(f"window + sinks at {pressure}x of dense", "--policy", "dense", "--when-full", "window", "--kv-limit",
                str(int(wants / pressure)))


if __name__ == "__main__":
    main()
