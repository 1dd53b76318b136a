"""Feeds recorded outputs of models to the server's parser of tool calls, cut in many ways.

usage: tests/serve/recorded_calls.py [dmslab: target/debug/dmslab]

The outputs and what they mean are those of canitoolcall, of the families that dmschat runs. It is
installed, pinned, into target/canitoolcall. Thoughts are taken off here: the engine tells them by
their tokens.
"""

import json
import pathlib
import random
import subprocess
import sys

PINNED = "canitoolcall==0.1.1"
ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "target/canitoolcall"
FORMATS = {"qwen3-hermes": "hermes", "qwen3-xml": "xml", "llama": "llama3", "mistral": "mistral", "gemma4": "gemma"}
THOUGHTS = [("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|channel>thought", "<channel|>")]


def fixtures():
    python = FOLDER / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", PINNED], check=True)
    where = "import canitoolcall, pathlib; print(pathlib.Path(canitoolcall.__file__).parent / '_data/fixtures')"
    folder = pathlib.Path(subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout.strip())
    for family in FORMATS:
        for file in sorted((folder / family).glob("*.jsonl")):
            yield from map(json.loads, file.open())


def answer(fixture):
    """The output without its thought, and whether it is nothing else."""
    text = fixture["raw_output"]
    begun = (fixture.get("generation_prompt") or "").rstrip().endswith(tuple(open for open, _ in THOUGHTS))
    for open, close in THOUGHTS:
        if text.lstrip().startswith(open):
            begun, text = True, text.lstrip()[len(open):]
        # Gemma's end of a thought may also be a part of an argument.
        if close in text and (begun or close != "<channel|>"):
            return text.split(close, 1)[1]
    thinks = begun or (fixture.get("expected") or {}).get("reasoning_content")
    return "" if thinks else text


def cuts(text):
    yield [text]
    for size in (1, 2, 5, 17):
        yield [text[at:at + size] for at in range(0, len(text), size)]
    for seed in range(3):
        dice, parts, at = random.Random(seed), [], 0
        while at < len(text):
            size = dice.randint(1, 40)
            parts.append(text[at:at + size])
            at += size
        yield parts


def judge(fixture, found):
    calls = [(call["name"], json.loads(call["arguments"])) for call in found["calls"]]
    if "expected_error" in fixture:
        return not calls
    wanted = fixture["expected"]
    same = json.dumps(calls, sort_keys=True) == json.dumps(
        [(call["name"], call["arguments"]) for call in wanted["tool_calls"]], sort_keys=True
    )
    numbers = calls == [(call["name"], call["arguments"]) for call in wanted["tool_calls"]]
    return (same or numbers) and found["content"].strip() == (wanted["content"] or "").strip()


def main():
    binary = sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/debug/dmslab"
    by_format = {}
    for fixture in fixtures():
        if fixture["family"] == "llama" and "Llama-3" not in fixture["models"][0]:
            continue  # Llama 4 is not a family of dmschat.
        by_format.setdefault(FORMATS[fixture["family"]], []).append(fixture)
    failed = total = 0
    for name, group in by_format.items():
        asked = [(fixture, parts) for fixture in group for parts in cuts(answer(fixture))]
        lines = "".join(json.dumps({"parts": parts, "tools": fixture["tools"]}) + "\n" for fixture, parts in asked)
        run = subprocess.run([binary, "calls", "--format", name], input=lines, capture_output=True, text=True, check=True)
        wrong = {}
        for (fixture, parts), line in zip(asked, run.stdout.splitlines(), strict=True):
            found = json.loads(line)
            if not judge(fixture, found):
                wrong.setdefault(fixture["id"], (len(parts), found))
        for id, (parts, found) in wrong.items():
            print("FAIL", id, f"in {parts} parts:", json.dumps(found, ensure_ascii=False)[:400])
        print(f"{name}: {len(group) - len(wrong)} of {len(group)} outputs, each cut in {len(asked) // len(group)} ways")
        failed += len(wrong)
        total += len(group)
    print(f"{total - failed} of {total}")
    sys.exit(failed > 0)


main()
