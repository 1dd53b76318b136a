"""Run the release binary over a problem file and print accuracy and mean ratio per task. Needs no torch.

    python -m eval.problems --to out/problems.jsonl --count 100
    python -m eval.evaluate_binary --problems out/problems.jsonl --binary ../target/release/dmslab --processes 2
    python -m eval.evaluate_binary ... -- --eviction off          (what follows -- goes to the binary)

Two measures: "ends right" asks that the final answer end in the expected value; "same text" that reasoning and
answer be the reference's, character by character, which is what eval.evaluate counts. The ratio is the mean over the
problems of kv.ratio as the binary reports it at the end of the answer.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor


def command_line(binary, problem_file, extra):
    """The one place that knows how the binary is called: one answer object a line, in the problems' order."""
    return [binary, "eval", "--problems", problem_file, "--json", *extra]


def run_share(binary, rows, extra):
    """The binary's answers for some problems: a list of objects, one per problem."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "problems.jsonl")
        with open(path, "w", encoding="utf-8") as out:
            for row in rows:
                out.write(json.dumps({"messages": row["messages"]}, ensure_ascii=False) + "\n")
        done = subprocess.run(command_line(binary, path, extra), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{binary} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
    if len(answers) != len(rows):
        raise SystemExit(f"{len(rows)} problems, {len(answers)} answers")
    return answers


def ends_right(row, answer):
    """True if the answer ends in the expected value, a closing mark aside, and the value is not cut from a longer one."""
    text, wanted = answer["answer"].strip().rstrip(".!"), row["expected"].strip().rstrip(".!")
    if not text.endswith(wanted):
        return False
    before = text[: len(text) - len(wanted)][-1:]
    return not (before.isalnum() or (before == "-" and wanted[:1].isdigit()))


def same_text(row, answer):
    """True if reasoning and answer are the reference's."""
    return (answer["answer"].strip() == row["answer"].strip()
            and (answer.get("reasoning") or "").strip() == row["reasoning"].strip())


def shares_of(rows, parts):
    """Indices dealt out in turn, so that every process gets a like mix."""
    return [list(range(i, len(rows), parts)) for i in range(parts) if i < len(rows)]


def table(rows, answers):
    """{task: counts and means}."""
    result = {}
    for task in dict.fromkeys(row["task"] for row in rows):
        pairs = [(r, a) for r, a in zip(rows, answers) if r["task"] == task]
        n = len(pairs)
        result[task] = {
            "count": n,
            "ends_right": 100 * sum(ends_right(r, a) for r, a in pairs) / n,
            "same_text": 100 * sum(same_text(r, a) for r, a in pairs) / n,
            "ratio": sum(a["kv"]["ratio"] for _, a in pairs) / n,
            "tokens": sum(a["prompt_tokens"] + a["answer_tokens"] + a["reasoning_tokens"] for _, a in pairs) / n,
        }
    return result


def main():
    argv, extra = sys.argv[1:], []
    if "--" in argv:
        argv, extra = argv[: argv.index("--")], argv[argv.index("--") + 1:]
    p = argparse.ArgumentParser()
    p.add_argument("--problems", default="out/problems.jsonl")
    p.add_argument("--binary", default="../target/release/dmslab")
    p.add_argument("--processes", type=int, default=2)
    p.add_argument("--json", help="write the table and every answer here")
    args = p.parse_args(argv)
    with open(args.problems, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f if line.strip()]
    shares = shares_of(rows, args.processes)
    answers = [None] * len(rows)
    with ThreadPoolExecutor(len(shares)) as pool:
        for share, got in zip(shares, pool.map(lambda s: run_share(args.binary, [rows[i] for i in s], extra), shares)):
            for i, answer in zip(share, got):
                answers[i] = answer
    result = table(rows, answers)
    for task, row in result.items():
        print(f"{task:10s} {row['count']:5d} problems  ends right {row['ends_right']:6.2f} %  same text {row['same_text']:6.2f} %  "
              f"ratio {row['ratio']:6.2f}  {row['tokens']:7.0f} tokens")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump({"table": result, "answers": answers}, out)


if __name__ == "__main__":
    main()
