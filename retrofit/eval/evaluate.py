"""Score the exported bf16 folder on fresh problems: dense, with eviction, and with a sliding window.

    python -m eval.evaluate --count 1000 --held-out 1000 --json out/evaluation.json

A problem counts as right when greedy decoding reproduces the whole reference response (reasoning, answer and end
token). This is checked teacher-forced: the highest logit must be the reference's next token at every position, which
is the same thing as long as it holds and counts every departure as wrong, also one that would still end in the right
value. Weights are the file's bf16 values, arithmetic is f32. Masks follow the rule exactly (decision at t+1 marks t;
key k is visible to query q if q - k <= W or k is not marked). Ratio: n * layers * KV heads / live slots after the last
fed token, W counted, mean over problems. Sliding window: 4 sinks and the same live slots per head as DMS held on
the same problem. --modes t=0.6 or t=0.6,p=0.95: the chance that sampling at that temperature (and top-p), with DMS,
reproduces the reference.
"""
import argparse
import json
import multiprocessing
import os
import random
import time

import numpy as np
import torch

from data.conversation import TASKS, TOKENIZER_PATH, Encoder, make_problem, problem_ids
from demo.model import attend_dense, attend_masked, load_folder, marks_of, visible_dms, visible_sliding
from demo.sampler import nucleus

SINKS = 4


def build(job):
    """[(ids, start of the response)] for one share of a task's problems."""
    task, held_out, count, seed, low, high, hidden_tokens = job
    rng, encoder = random.Random(seed), Encoder()
    return [problem_ids(encoder, make_problem(rng, encoder, task, held_out, low, high, hidden_tokens))
            for _ in range(count)]


def problems(pool, task, held_out, count, seed, low=1500, high=4000, hidden_tokens=None, shares=14):
    """`count` problems made by several processes, the same for the same arguments."""
    each = -(-count // shares)
    jobs = [(task, held_out, min(each, count - i * each), f"{seed}-{task}-{held_out}-{high}-{i}", low, high, hidden_tokens)
            for i in range(shares) if count - i * each > 0]
    return [item for part in pool.map(build, jobs) for item in part]


def batches(items, budget):
    """Problems of like length together: lists of indices with rows * T^2 under the budget."""
    order = sorted(range(len(items)), key=lambda i: len(items[i][0]))
    batch = []
    for i in order:
        if batch and (len(batch) + 1) * len(items[i][0]) ** 2 > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def padded(items, batch, device):
    """The problems of a batch: (ids [B, T] padded with 0, start of the response [B], length [B])."""
    ids = np.zeros((len(batch), max(len(items[i][0]) for i in batch)), np.int64)
    for row, i in enumerate(batch):
        ids[row, :len(items[i][0])] = items[i][0]
    starts = torch.tensor([items[i][1] for i in batch], device=device)
    return torch.from_numpy(ids).to(device), starts, torch.tensor([len(items[i][0]) for i in batch], device=device)


def path_equal(logits, ids, starts, lengths):
    """[B] bool: every response token is the argmax at the position before it."""
    right = logits[:, :-1].argmax(-1) == ids[:, 1:]
    at = torch.arange(1, ids.shape[1], device=ids.device)[None]
    inside = (at >= starts[:, None]) & (at < lengths[:, None])
    return (right | ~inside).all(-1)


def path_chance(logits, ids, starts, lengths, how):
    """[B] probability that sampling gives the whole response; `how` is "t=TEMPERATURE" or "t=TEMPERATURE,p=TOP_P"."""
    temperature, _, top_p = how[2:].partition(",p=")
    scores = nucleus(logits[:, :-1], float(temperature), float(top_p or 1)).gather(-1, ids[:, 1:, None])[..., 0]
    at = torch.arange(1, ids.shape[1], device=ids.device)[None]
    inside = (at >= starts[:, None]) & (at < lengths[:, None])
    return torch.where(inside, scores, 0.0).sum(-1).exp()


def live_slots(marks, fed, window):
    """[B] live slots over all layers and heads after `fed` tokens; marks [layers, B, kv, T]."""
    at = torch.arange(marks.shape[-1], device=marks.device)[None]
    recent = (fed[:, None] - 1 - at <= window) & (at < fed[:, None])
    before = at < fed[:, None]
    live = recent[None, :, None] | (before[None, :, None] & ~marks)
    return live.sum((0, 2, 3))


@torch.no_grad()
def score_batch(model, ids, starts, lengths, modes):
    """{mode: [B] right} and [B] ratio."""
    shape, result = model.shape, {}
    if "dense" in modes:
        result["dense"] = path_equal(model(ids, attend_dense)[0], ids, starts, lengths)

    def attend_dms(q, k, v, logits):
        return attend_masked(q, k, v, visible_dms(marks_of(logits), shape.window))

    out, decisions = model(ids, attend_dms)
    result["dms"] = path_equal(out, ids, starts, lengths)
    for mode in modes:
        if mode.startswith("t="):
            result[mode] = path_chance(out, ids, starts, lengths, mode)
    fed = lengths - 1
    live = live_slots(torch.stack([marks_of(d) for d in decisions]), fed, shape.window)
    cells = shape.layers * shape.kv_heads
    if "sliding" in modes:
        windows = (live / cells).round().long() - SINKS
        visible = visible_sliding(ids.shape[1], windows, SINKS, ids.device)
        out, _ = model(ids, lambda q, k, v, logits: attend_masked(q, k, v, visible))
        result["sliding"] = path_equal(out, ids, starts, lengths)
    return result, fed * cells / live


def score(model, items, modes, device="cuda", budget=8 * 4096 ** 2):
    """Means over the problems: accuracy per mode, ratio, length; and the indices DMS got wrong."""
    totals, ratios, wrong = {m: 0 for m in modes}, [], []
    for batch in batches(items, budget):
        result, ratio = score_batch(model, *padded(items, batch, device), modes)
        ratios += ratio.tolist()
        for mode in modes:
            totals[mode] += float(result[mode].sum())
        wrong += [i for i, ok in zip(batch, result["dms"].tolist()) if not ok]
    row = {mode: 100 * totals[mode] / len(items) for mode in modes}
    row.update(ratio=sum(ratios) / len(ratios), tokens=float(np.mean([len(i[0]) for i in items])), count=len(items))
    return row, wrong


@torch.no_grad()
def departure(model, item, encoder, device="cuda"):
    """For a wrong problem: the reference around the first wrong token, and what the model says there."""
    ids = torch.tensor(item[0].astype(np.int64), device=device)[None]
    attend = lambda q, k, v, logits: attend_masked(q, k, v, visible_dms(marks_of(logits), model.shape.window))
    guess = model(ids, attend)[0][0].argmax(-1)
    for at in range(item[1], ids.shape[1]):
        if guess[at - 1] != ids[0, at]:
            text = encoder.tokenizer.decode(ids[0, max(item[1], at - 40):at].tolist(), skip_special_tokens=False)
            return f"...{text!r} reference {encoder.tokenizer.decode([int(ids[0, at])])!r} model " \
                   f"{encoder.tokenizer.decode([int(guess[at - 1])])!r}"
    return "none"


def write(path, table):
    if path:
        with open(path, "w", encoding="utf-8") as out:
            json.dump(table, out, indent=1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--folder", default=os.path.dirname(TOKENIZER_PATH))
    p.add_argument("--count", type=int, default=1000)
    p.add_argument("--held-out", type=int, default=1000)
    p.add_argument("--long", type=int, default=200, help="hidden numbers in texts of up to 6,000 tokens")
    p.add_argument("--seed", default="evaluation-1")
    p.add_argument("--errors", type=int, default=4, help="departures to print per task")
    p.add_argument("--tasks", nargs="*", default=TASKS)
    p.add_argument("--modes", nargs="*", default=["dense", "dms", "sliding"])
    p.add_argument("--device", default="cuda")
    p.add_argument("--json")
    args = p.parse_args()
    pool = multiprocessing.get_context("spawn").Pool(14)
    model, encoder, table = load_folder(args.folder, args.device).eval(), Encoder(), {}
    for task in args.tasks:
        begun = time.time()
        items = problems(pool, task, False, args.count, args.seed)
        row, wrong = score(model, items, args.modes, args.device)
        if args.held_out:
            fresh = problems(pool, task, True, args.held_out, args.seed)
            row["held_out"] = score(model, fresh, ["dms"], args.device)[0]["dms"]
        table[task] = row
        print(f"{task:10s}", " ".join(f"{k} {v:.2f}" for k, v in row.items()), f"{time.time() - begun:.0f} s", flush=True)
        for i in wrong[:args.errors]:
            print("   ", departure(model, items[i], encoder, args.device)[-260:], flush=True)
        write(args.json, table)
    if args.long and "hidden" in args.tasks:
        items = problems(pool, "hidden", False, args.long, args.seed, 4000, 7000, hidden_tokens=6000)
        table["hidden, 4,000-7,000 tokens"] = score(model, items, args.modes, args.device)[0]
        print("hidden long", table["hidden, 4,000-7,000 tokens"], flush=True)
        write(args.json, table)
    pool.terminate()


if __name__ == "__main__":
    main()
