"""Score DMC folders beside the shipped model on the same fresh problems: dense, DMS at several dials, DMC.

    python -m dmc.evaluate --dmc out/dmc2 out/dmc4 --count 100 --json out/dmc.json

Problems, the rule for right (the whole reference response, teacher-forced) and the arithmetic are those of eval.evaluate. Ratio:
n * layers * KV heads / live slots after the last fed token, mean over problems; DMS counts its window, a DMC slot counts once.
--dms-ratios: DMS again, with the dial that gives these mean ratios on problems of another seed. --unmerged: the DMC weights with
merging off as well. --add puts the DMC folders beside the rows that --json holds, on the same problems. Prints a table in Markdown.
"""
import argparse
import json
import multiprocessing
import os
import time
from dataclasses import dataclass
from typing import Callable

import torch

from data.conversation import TASKS, TOKENIZER_PATH
from dmc.attention import Exact, PoolingAttention
from eval.evaluate import batches, live_slots, padded, path_equal, problems, write
from demo.model import Model, attend_dense, attend_masked, load_folder, marks_of, visible_dms


@dataclass
class Way:
    """One row of the table: a model and how it attends. live(decisions, fed) -> live slots [B] of all layers and KV heads."""
    name: str
    model: Model
    attend: Callable
    live: Callable


def dense_way(model):
    return Way("dense", model, attend_dense, lambda _, fed: fed * model.shape.layers * model.shape.kv_heads)


def dms_way(name, model, dial):
    """DMS that marks where the eviction logit is above `dial` (0 as trained)."""
    window = model.shape.window
    return Way(name, model, lambda q, k, v, logits: attend_masked(q, k, v, visible_dms(marks_of(logits - dial), window)),
               lambda logits, fed: live_slots(torch.stack([marks_of(x - dial) for x in logits]), fed, window))


def dmc_way(name, model, merging=True):
    def live(opens, fed):
        before = torch.arange(opens.shape[-1], device=fed.device) < fed[:, None]
        return (opens & before[None, :, None]).sum((0, 2, 3))
    return Way(name, model, Exact(merging), live)


@torch.no_grad()
def dial_for(model, items, ratio, device, budget):
    """The dial at which DMS holds `ratio` on average, by bisection over the logits of an evicting pass."""
    kept = []
    for batch in batches(items, budget):
        ids, _, lengths = padded(items, batch, device)
        attend = lambda q, k, v, logits: attend_masked(q, k, v, visible_dms(marks_of(logits), model.shape.window))
        kept.append((model(ids, attend)[1], lengths - 1))

    def ratio_at(dial):
        cells, parts = model.shape.layers * model.shape.kv_heads, []
        for logits, fed in kept:
            parts.append(fed * cells / live_slots(torch.stack([marks_of(x - dial) for x in logits]), fed, model.shape.window))
        return torch.cat(parts).mean()

    low, high = 0.0, max(float(logits.max()) for logits, _ in kept)
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if ratio_at(middle) > ratio else (low, middle)
    return (low + high) / 2


@torch.no_grad()
def score(ways, items, device, budget):
    """{name: {"right": percent, "ratio": mean}}."""
    right, ratios = {w.name: 0 for w in ways}, {w.name: [] for w in ways}
    for batch in batches(items, budget):
        ids, starts, lengths = padded(items, batch, device)
        for way in ways:
            out, decisions = way.model(ids, way.attend)
            right[way.name] += int(path_equal(out, ids, starts, lengths).sum())
            cells = way.model.shape.layers * way.model.shape.kv_heads
            ratios[way.name] += ((lengths - 1) * cells / way.live(decisions, lengths - 1)).tolist()
    return {name: {"right": 100 * right[name] / len(items), "ratio": sum(r) / len(r)} for name, r in ratios.items()}


def base_ways(args, pool):
    """The shipped model: dense, DMS as trained, DMS at --dms-ratios."""
    base = load_folder(args.folder, args.device).eval()
    ways = [dense_way(base), dms_way("dms", base, 0.0)]
    sample = [item for task in args.tasks for item in problems(pool, task, False, 2, "dial-1", shares=2)] if args.dms_ratios else []
    for ratio in args.dms_ratios:
        dial = dial_for(base, sample, ratio, args.device, args.budget)
        print(f"dms at {ratio:g}x: dial {dial:.2f}", flush=True)
        ways.append(dms_way(f"dms {ratio:g}x", base, dial))
    return ways


def dmc_ways(args):
    ways = []
    for folder in args.dmc:
        name, model = os.path.basename(os.path.normpath(folder)), load_folder(folder, args.device, PoolingAttention).eval()
        ways.append(dmc_way(name, model))
        if args.unmerged:
            ways.append(dmc_way(name + " unmerged", model, False))
    return ways


def markdown(table, count):
    """The table of a page: right (ratio) for each task and way, and the means over the tasks."""
    names = list(next(iter(table.values())))
    lines = [f"| task ({count} problems each) | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names)]
    cell = lambda rows: f"{sum(r['right'] for r in rows) / len(rows):.1f} ({sum(r['ratio'] for r in rows) / len(rows):.2f}x)"
    for task, row in table.items():
        lines.append(f"| {task} | " + " | ".join(cell([row[n]]) for n in names) + " |")
    return "\n".join(lines + ["| mean | " + " | ".join(cell([row[n] for row in table.values()]) for n in names) + " |"])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--folder", default=os.path.dirname(TOKENIZER_PATH), help="the model with DMS")
    p.add_argument("--dmc", nargs="*", default=[], help="folders that dmc.export wrote")
    p.add_argument("--dms-ratios", nargs="*", type=float, default=[2, 4])
    p.add_argument("--unmerged", action="store_true")
    p.add_argument("--count", type=int, default=100)
    p.add_argument("--seed", default="dmc-1")
    p.add_argument("--tasks", nargs="*", default=TASKS)
    p.add_argument("--low", type=int, default=1500, help="fewest tokens of a problem with the turns before it")
    p.add_argument("--high", type=int, default=4000)
    p.add_argument("--budget", type=int, default=8 * 4096 ** 2, help="most rows x tokens^2 of a batch")
    p.add_argument("--workers", type=int, default=14)
    p.add_argument("--shares", type=int, default=14, help="seeds that the problems of a task are made from")
    p.add_argument("--device", default="cuda")
    p.add_argument("--add", action="store_true")
    p.add_argument("--json")
    args = p.parse_args()
    before = {}
    if args.add:
        with open(args.json, encoding="utf-8") as f:
            done = json.load(f)
        before = done["table"]
        args.tasks = list(before)
        args.count, args.seed, args.low, args.high, args.shares = (done["arguments"][k] for k in ("count", "seed", "low", "high", "shares"))
    pool = multiprocessing.get_context("spawn").Pool(args.workers)
    ways, table = ([] if args.add else base_ways(args, pool)) + dmc_ways(args), {}
    for task in args.tasks:
        begun = time.time()
        items = problems(pool, task, False, args.count, args.seed, args.low, args.high, shares=args.shares)
        table[task] = before.get(task, {}) | score(ways, items, args.device, args.budget)
        print(f"{task:10s}", ", ".join(f"{n} {r['right']:.1f} ({r['ratio']:.2f}x)" for n, r in table[task].items()),
              f"{time.time() - begun:.0f} s", flush=True)
        write(args.json, {"arguments": vars(args), "table": table})
    print(markdown(table, args.count))
    pool.terminate()


if __name__ == "__main__":
    main()
