"""Accuracy of the search tasks by tokens and chains, and what they read: dense, and with DMS (--modes dmc: a DMC folder).

    python -m eval.evaluate_search --folder ../assets/demo --count 500 --json out/search.json

Fresh problems without earlier turns, chains sampled at temperature 1 up to the longest --length; a chain counts within L
tokens if it ended by then. check: one of the W chains is right; majority: the answer that most chains gave is right
(chains without an answer abstain, a tie goes to the lowest chain). Reads: KV tokens that the decode steps attended to, per
lane, summed over a problem's chains. Ratio: dense reads / live reads of the same chains, and stored / live slots at
the end. W below the width of the run: the mean over its disjoint groups of chains.
"""
import argparse
import json
import random
import time
from collections import Counter

import torch

from data.check_search import right
from data.conversation import SEARCHES, TOKENIZER_PATH, Encoder
from dmc.sampler import DmcSampler
from demo.model import load_folder
from demo.sampler import Sampler, Weights, sample

SAMPLERS = {"dense": lambda weights, prompts: Sampler(weights, prompts, False), "dms": lambda weights, prompts: Sampler(weights, prompts, True),
            "dmc": DmcSampler}


def problems(task, count, seed, held_out=False):
    """[Turn], the same for the same arguments."""
    rng = random.Random(f"{seed}-{task}-{held_out}")
    return [SEARCHES[task](rng, held_out, core=True) for _ in range(count)]


def answers_of(encoder, tokens, lengths, ended):
    """The answer part of every chain that ended, else None."""
    texts = [None] * len(lengths)
    for i in ended.nonzero()[:, 0].tolist():
        ids = tokens[i, :lengths[i] - 1].tolist()
        if encoder.end_think in ids:
            texts[i] = encoder.tokenizer.decode(ids[ids.index(encoder.end_think) + 1:], skip_special_tokens=False).strip()
    return texts


def voted(answers):
    """The most frequent of the answers that are not None; ties go to the first."""
    counts = Counter(a for a in answers if a is not None)
    return max(counts, key=lambda a: counts[a]) if counts else None


def table_of(turns, texts, lengths, ended, reads_at, slots_at, width, marks, widths):
    """Rows {length, width, chain, check, majority, reads, ratio_end} of one task; texts etc. are [problems * width]."""
    good = [text is not None and right(turns[i // width].user, text) for i, text in enumerate(texts)]
    rows = []
    for mark in marks:
        inside = [bool(e) and int(n) <= mark for e, n in zip(ended, lengths)]
        dense, live = slots_at[mark]
        for w in widths:
            check = majority = groups = 0
            for first in range(0, len(texts), w):
                chains = [i for i in range(first, first + w) if inside[i]]
                check += any(good[i] for i in chains)
                vote = voted([texts[i] for i in chains])
                majority += vote is not None and any(texts[i] == vote and good[i] for i in chains)
                groups += 1
            rows.append({"length": mark, "width": w, "check": 100 * check / groups, "majority": 100 * majority / groups,
                         "reads": w * float(reads_at[mark].mean()), "wrong": 100 * sum(i and not g for i, g in zip(inside, good)) / len(texts),
                         "ratio_end": float(dense.sum() / live.sum()),
                         "ratio_running": float((dense / live)[~torch.tensor(inside)].mean()) if not all(inside) else 0.0})
    return rows


def sample_all(weights, prompts, mode, end, args, marks):
    """`sample` in parts of at most --rows chains; the parts take every n-th problem, so that their prompts are alike."""
    parts = -(-len(prompts) * args.chains // args.rows)
    made = [sample(SAMPLERS[mode], weights, prompts[i::parts], args.chains, max(marks), end, args.seed_chains + i, args.temperature, marks, args.top_p)
            for i in range(parts)]
    place = torch.tensor([p * args.chains + c for i in range(parts) for p in range(i, len(prompts), parts) for c in range(args.chains)]).argsort()
    put = lambda pick: torch.cat([pick(m) for m in made])[place]
    return (put(lambda m: m[0]), put(lambda m: m[1]), put(lambda m: m[2]), {k: put(lambda m: m[3][k]) for k in marks},
            {k: (put(lambda m: m[4][k][0]), put(lambda m: m[4][k][1])) for k in marks})


def run(weights, encoder, turns, mode, args, marks):
    """Samples every task's problems at once; returns {task: rows} and prints a line per task."""
    prompts = []
    for turn in turns:
        ids, prompt = encoder.turn(turn)
        prompts.append(ids[:prompt])
    begun = time.time()
    tokens, lengths, ended, reads_at, slots_at = sample_all(weights, prompts, mode, encoder.end, args, marks)
    spent, result = time.time() - begun, {}
    texts = answers_of(encoder, tokens, lengths, ended)
    for task in args.tasks:
        at = [i * args.chains + c for i, t in enumerate(turns) if t.task == task for c in range(args.chains)]
        pick = torch.tensor(at)
        result[task] = table_of([t for t in turns if t.task == task], [texts[i] for i in at], lengths[pick].tolist(), ended[pick].tolist(),
                                {m: r[pick] for m, r in reads_at.items()}, {m: (d[pick], l[pick]) for m, (d, l) in slots_at.items()},
                                args.chains, marks, [w for w in (1, 2, 4, 8, 16) if w <= args.chains])
        for row in result[task]:
            print(f"{mode:5s} {task:9s}", " ".join(f"{k} {v:.1f}" for k, v in row.items()), flush=True)
        for i in at[:1] if mode == "dense" else []:
            print(repr(encoder.tokenizer.decode(tokens[i, :min(160, int(lengths[i]))].tolist(), skip_special_tokens=False)))
        false = [(turns[i // args.chains].user, texts[i]) for i in at if texts[i] is not None and not right(turns[i // args.chains].user, texts[i])]
        print("    wrong answers:", false[:3], flush=True)
    print(f"{mode}: {len(prompts)} problems, {int(lengths.sum()):,} tokens, {spent:.0f} s", flush=True)
    return result


def at_equal_reads(dense, dms, how):
    """[(length, width, dense accuracy, best accuracy with DMS at no more reads)] for every dense point."""
    points = []
    for row in dense:
        within = [r[how] for r in dms if r["reads"] <= row["reads"]]
        points.append((row["length"], row["width"], round(row[how], 1), round(max(within, default=0.0), 1)))
    return points


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--folder", required=True)
    p.add_argument("--count", type=int, default=500, help="problems per task")
    p.add_argument("--chains", type=int, default=8)
    p.add_argument("--rows", type=int, default=8000, help="chains sampled at once")
    p.add_argument("--lengths", type=int, nargs="*", default=[128, 256, 512, 1024, 2048])
    p.add_argument("--tasks", nargs="*", default=list(SEARCHES))
    p.add_argument("--modes", nargs="*", default=["dense", "dms"], choices=list(SAMPLERS))
    p.add_argument("--temperature", type=float, default=1.0)
    p.add_argument("--top-p", type=float, default=1.0)
    p.add_argument("--seed", default="search-1")
    p.add_argument("--seed-chains", type=int, default=1)
    p.add_argument("--held-out", action="store_true", help="phrasings that are kept out of training")
    p.add_argument("--device", default="cuda")
    p.add_argument("--json")
    args = p.parse_args()
    encoder = Encoder()
    weights = Weights(load_folder(args.folder, "cpu"), args.device)
    turns = [t for task in args.tasks for t in problems(task, args.count, args.seed, args.held_out)]
    table = {}
    for mode in args.modes:
        table[mode] = run(weights, encoder, turns, mode, args, sorted(args.lengths))
        if args.json:
            with open(args.json, "w", encoding="utf-8") as out:
                json.dump({"arguments": vars(args), "table": table}, out, indent=1)
    for task in args.tasks if {"dense", "dms"} <= table.keys() else []:
        for how in ("check", "majority"):
            print(f"at equal reads, {task}, {how}:", at_equal_reads(table["dense"][task], table["dms"][task], how))


if __name__ == "__main__":
    main()
