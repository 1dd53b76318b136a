"""Write evaluation problems for the release binary as JSON lines.

    python -m eval.problems --to out/problems.jsonl [--count 100] [--tasks ...] [--held-out]
    python -m eval.problems --to out/search.jsonl --alone --tasks countdown subset factor path

One problem a line: {"task", "messages": [{"role", "content", "reasoning_content"?}, ...], "expected", "answer"}.
The messages end with the user's question; earlier turns carry the reasoning the model would have written, so that
they are rendered with their think blocks. "answer" is the reference answer, "expected" what it must end in. A search task
may have other right answers: data.check_search says which. --alone: without earlier turns.
"""
import argparse
import json
import os
import random

from data.conversation import SEARCHES, TASKS, Encoder, final_turn, make_problem, problem_ids


def messages_of(turns):
    """The turns as chat messages; the last one without its answer."""
    messages = []
    for turn in turns[:-1]:
        messages.append({"role": "user", "content": turn.user})
        messages.append({"role": "assistant", "content": turn.answer, "reasoning_content": turn.think})
    return messages + [{"role": "user", "content": turns[-1].user}]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--to", default="out/problems.jsonl")
    p.add_argument("--count", type=int, default=100, help="problems per task")
    p.add_argument("--tasks", nargs="*", default=TASKS, choices=TASKS + list(SEARCHES))
    p.add_argument("--alone", action="store_true", help="no earlier turns")
    p.add_argument("--held-out", action="store_true")
    p.add_argument("--low", type=int, default=1500)
    p.add_argument("--high", type=int, default=4000)
    p.add_argument("--seed", default="binary-1")
    args = p.parse_args()
    encoder = Encoder()
    os.makedirs(os.path.dirname(args.to) or ".", exist_ok=True)
    with open(args.to, "w", encoding="utf-8") as out:
        for task in args.tasks:
            rng = random.Random(f"{args.seed}-{task}")
            for _ in range(args.count):
                alone = args.alone and task != "recall"
                turns = [final_turn(rng, task, args.held_out, args.high)] if alone else \
                    make_problem(rng, encoder, task, args.held_out, args.low, args.high)
                last = turns[-1]
                row = {"task": task, "messages": messages_of(turns), "expected": last.expected, "answer": last.answer,
                       "reasoning": last.think, "tokens": len(problem_ids(encoder, turns)[0])}
                out.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"{args.count} problems for each of {len(args.tasks)} tasks in {args.to}")


if __name__ == "__main__":
    main()
