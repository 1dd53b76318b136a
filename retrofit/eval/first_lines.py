"""Ask the binary a newcomer's first lines, or questions in one's own words, and say what was right, declined or wrong.

    python -m eval.first_lines --binary ../target/release/dmslab                      eval/first_lines.txt
    python -m eval.first_lines --lines eval/own_words.txt --binary ...                      own words and texts
    python -m eval.first_lines ... -- -m FOLDER --eviction off                         what follows -- goes to the binary
    python -m eval.first_lines --training 200000                                       which lines does training contain?

A file holds one case a line: what counts as right, a tab, the line. "*" in front: kept out of training. Several kinds
are joined with "|". Kinds: "=VALUE" the answer ends in the value; "~A B" quotient A, rest B; "told NAME" it greets the
name; "remember X" it keeps X; "untold" it says that it was not told; "missing" it says that the text does not hold it;
"declines" it says that this is beyond it; any other word is a kind of talk of TALK. Declining where an answer was due
counts as declined, not as wrong; so does "NEEDS a value" for a variable without one. Every line is asked alone; " => " parts the turns
of a conversation, of which the last answer counts. "## NAME" begins a group.
"""
import argparse
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor

from eval.evaluate_binary import run_share, shares_of

TALK = {"greets": "Hello! Give me", "well": "I am well, thank you", "thanks": "You are welcome", "bye": "Goodbye!", "ok": "All right.",
        "demo": "I am Demo", "tasks": "find a number hidden in a text", "trained": "I was trained from scratch", "size": "I have about 8 million",
        "language": "I speak English only", "dmschat": "dmschat is a chat", "dms": "DMS is learned", "ratio": "The ratio says", "context": "My context holds",
        "models": "Start dmschat with another model", "command": "/"}
REFUSALS = ["That is beyond me", "You have not told me", "I do not find", "has no value there", "I cannot follow that"]


def is_right(kind, answer):
    """Whether the answer is what the kind asks for."""
    text = answer.strip().rstrip(".!")
    if kind.startswith("="):
        return re.search(rf"(?:^|[^\w,.-]|, ){re.escape(kind[1:])}$", text) is not None and (", " in kind or not re.search(rf", {re.escape(kind[1:])}$", text))
    if kind.startswith("~"):
        quotient, rest = kind[1:].split()
        return text.endswith(f"= {quotient}, rest {rest}")
    if kind.startswith("told "):
        return f"Nice to meet you, {kind[5:]}!".lower() in answer.lower()
    if kind.startswith("remember "):
        return "I will remember it" in answer and kind[9:].lower() in answer.lower()
    if kind in ("untold", "missing", "declines"):
        return any(r in answer for r in REFUSALS)
    return TALK[kind] in answer


def verdict(kinds, answer):
    """'right', 'declined' or 'wrong'."""
    if any(is_right(k, answer) for k in kinds.split("|")):
        return "right"
    return "declined" if any(r in answer for r in REFUSALS) else "wrong"


def read(path):
    """[(kinds, line, group)] of a file of cases."""
    cases, group = [], None
    with open(path, encoding="utf-8") as f:
        for row in f:
            if row.startswith("## "):
                group = row[3:].strip()
            elif row.strip() and not row.startswith("#"):
                kinds, line = row.rstrip("\n").split("\t")
                cases.append((kinds.lstrip("*"), line.replace("\\n", "\n").replace("\\t", "\t"), group or ("held out" if kinds.startswith("*") else "others")))
    return cases


def in_training(cases, count):
    """The shapes of the cases that occur among `count` generated turns."""
    import random
    from data.conversation import Memory, WEIGHTS, next_turn
    from data.turn import shape_of_line
    wanted, rng, memory = {shape_of_line(line) for _, line, _ in cases}, random.Random(99), Memory()
    found = set()
    for _ in range(count):
        turn = next_turn(rng, memory, WEIGHTS, (40, 80))
        if len(turn.user) < 200:
            found.add(shape_of_line(turn.user))
    return wanted & found


def report(cases, answers, show):
    table = {}
    for (kinds, line, group), answer in zip(cases, answers):
        result = verdict(kinds, answer["answer"])
        for name in ("all", group):
            table.setdefault(name, {}).setdefault(result, []).append(line)
        if result == "wrong" or (show and result == "declined"):
            print(f"{result:9s} {group:9s} {kinds:14s} {line[:60] + ' ... ' + line[-60:] if len(line) > 125 else line!r} -> {answer['answer'][:120]!r}")
    for group, results in table.items():
        total = sum(map(len, results.values()))
        print(f"{group:9s} {total:4d}: " + ", ".join(f"{k} {len(results.get(k, []))} ({100 * len(results.get(k, [])) / total:.1f} %)" for k in ("right", "declined", "wrong")))
    return table


def ask_all(args, conversations, extra):
    """The last answer of each conversation; what the model said to the earlier turns stands before it."""
    answers, messages = [None] * len(conversations), [[] for _ in conversations]
    for turn in range(max(map(len, conversations))):
        asked = [i for i, lines in enumerate(conversations) if turn < len(lines)]
        for i in asked:
            messages[i].append({"role": "user", "content": conversations[i][turn]})
        rows = [{"messages": messages[i]} for i in asked]
        shares = shares_of(rows, args.processes)
        with ThreadPoolExecutor(len(shares)) as pool:
            for share, got in zip(shares, pool.map(lambda s: run_share(args.binary, [rows[k] for k in s], extra), shares)):
                for k, answer in zip(share, got):
                    answers[asked[k]] = answer
                    messages[asked[k]].append({"role": "assistant", "content": answer["answer"], "reasoning_content": answer.get("reasoning") or ""})
    return answers


def main():
    argv, extra = sys.argv[1:], []
    if "--" in argv:
        argv, extra = argv[: argv.index("--")], argv[argv.index("--") + 1:]
    p = argparse.ArgumentParser()
    p.add_argument("--lines", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "first_lines.txt"))
    p.add_argument("--binary", default="../target/release/dmslab")
    p.add_argument("--processes", type=int, default=2)
    p.add_argument("--training", type=int, default=0, help="say which lines occur among this many generated turns")
    p.add_argument("--declined", action="store_true", help="also print what was declined without need")
    p.add_argument("--json", help="write every answer here")
    args = p.parse_args(argv)
    cases = read(args.lines)
    if args.training:
        found = in_training(cases, args.training)
        from data.turn import shape_of_line
        for kinds, line, group in cases:
            mark = "in training" if shape_of_line(line) in found else "not in training"
            print(f"{mark}\t{group}\t{kinds}\t{line!r}")
        return
    answers = ask_all(args, [line.split(" => ") for _, line, _ in cases], extra)
    table = report(cases, answers, args.declined)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump({"table": {g: {k: len(v) for k, v in r.items()} for g, r in table.items()},
                       "answers": [{"right": k, "line": l, "group": g, "answer": a["answer"]} for (k, l, g), a in zip(cases, answers)]}, out, indent=1, ensure_ascii=False)


if __name__ == "__main__":
    main()
