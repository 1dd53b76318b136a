"""Judge an adapter file on text it never saw, against the dense model, a sliding window and random eviction.

    python evaluate.py --model FOLDER --adapter FILE --answers out/test.jsonl --json results.json

Exact masks (key k is visible to query q if q - k <= W or k is not marked; the decision at t marks t - shift); base in
`--dtype`, decisions in f32. Ratio: n * layers * KV heads / live slots after n tokens, the window counted. Window: 4 sinks and
as many slots a head as DMS held on average. Random: as many marks a head as DMS made, spread at random.
Recall: the share of facts whose every token is the greedy choice, given the answer's first words; fact_kl: KL at the
positions that predict their tokens.
"""
import argparse
import json
import os
import time

import torch
from safetensors import safe_open

from generate import turn
from model import SYSTEM, Base, attend_blocks, norm
from talk import Talk, load, load_texts
from train import files_of

SINKS = 4
HELD_OUT = ("docs", "prose", "code", "language", "dialogue")


class Adapter:
    def __init__(self, path, device):
        with safe_open(path, "pt") as f:
            meta, get = f.metadata(), lambda l, n: f.get_tensor(f"model.layers.{l}.self_attn.{n}.weight").float().to(device)
            self.window, self.scale, self.offset = int(meta["window"]), float(meta["alpha_scale"]), float(meta["alpha_offset"])
            self.shift = int(meta["shift"])
            layers = range(int(meta["num_hidden_layers"]))
            self.gain, self.proj = ([get(l, n) for l in layers] for n in ("dms_proj_alpha_norm", "dms_proj_alpha"))

    def marks(self, layer, x, eps, offset):
        """x [B, T, hidden] -> [B, kv_heads, T] bool; with shift 1 the newest token has no mark."""
        d = (norm(x.float(), self.gain[layer], eps) @ self.proj[layer].T).transpose(1, 2) * self.scale - offset
        return d > 0 if not self.shift else torch.cat([d[..., 1:] > 0, torch.zeros_like(d[..., :1], dtype=torch.bool)], -1)


def attend_window(q, k, v, slots):
    """The last `slots` - SINKS tokens and the first SINKS."""
    sinks = torch.full((k.shape[0], k.shape[1], k.shape[2]), float("-inf"), device=k.device)
    sinks[..., :SINKS] = 0.0
    return attend_masked(q, k, v, sinks, slots - SINKS - 1)


def attend_masked(q, k, v, bias, window):
    return attend_blocks(q, k, v, bias=bias.clamp(min=-1e9), window=window)


def runs(base, adapter, ids, offsets=()):
    """Yields (name, last hidden states, ratio): dense, dms, DMS at each of `offsets`, window, random."""
    n, window = ids.shape[1], adapter.window
    yield "dense", base.hidden_states(ids, lambda l, x, q, k, v: attend_blocks(q, k, v)), 1.0
    gone = {}

    def dms(l, x, q, k, v, offset):
        marks = adapter.marks(l, x, base.eps, offset)
        gone[l] = marks[..., : max(0, n - 1 - window)].sum(-1)
        return attend_masked(q, k, v, marks.float() * -1e9, window)

    def spread(l, x, q, k, v):
        share = gone[l] / max(1, n - 1 - window)
        return attend_masked(q, k, v, (torch.rand(k.shape[:3], device=k.device) < share[..., None]).float() * -1e9, window)

    total = n * base.layers * base.kv_heads
    for name, offset in [*((o, o) for o in offsets), ("dms", adapter.offset)]:       # dms last: random needs its counts
        out = base.hidden_states(ids, lambda *a: dms(*a, offset))
        ratio = total / (total - sum(int(g.sum()) for g in gone.values()))
        yield name, out, ratio
    yield "window", base.hidden_states(ids, lambda l, x, q, k, v: attend_window(q, k, v, round(n / ratio))), ratio
    yield "random", base.hidden_states(ids, spread), ratio


def score(base, ids, out, dense, spans):
    """Sums over positions: [KL, same top-1, -log p of the text, positions, KL at facts, positions there], and facts recalled."""
    n = ids.shape[1]
    total, right = torch.zeros(6, dtype=torch.float64), torch.zeros(n, dtype=torch.bool)
    at_fact = torch.zeros(n, dtype=torch.bool, device=base.device)
    for a, b in spans:
        at_fact[a - 1: b - 1] = True
    for a in range(0, n - 1, 2048):
        b = min(a + 2048, n - 1)
        p, q = (base.head(h[0, a:b]).float().log_softmax(-1) for h in (dense, out))
        top, next_ids = q.argmax(-1), ids[0, a + 1: b + 1]
        kl, fact = (p.exp() * (p - q)).sum(-1).double(), at_fact[a:b]
        total += torch.stack([kl.sum(), (p.argmax(-1) == top).sum(), -q.gather(1, next_ids[:, None]).double().sum(),
                              torch.tensor(b - a, device=base.device), (kl * fact).sum(), fact.sum()]).double().cpu()
        right[a + 1: b + 1] = (top == next_ids).cpu()
    return total, sum(bool(right[a:b].all()) for a, b in spans)


@torch.inference_mode()
def judge(base, adapter, sequences, only, offsets=(), **row):
    """Rows of the table over sequences of (ids, spans): one, and one for each of `offsets`."""
    sums, ratios, recalled, facts, begun = {}, {}, {}, 0, time.time()
    for ids, spans in sequences:
        facts += len(spans)
        ids, dense = torch.tensor([ids], device=base.device), None
        for name, out, ratio in runs(base, adapter, ids, offsets):
            dense = out if dense is None else dense
            part, hit = score(base, ids, out, dense, spans)
            sums[name] = sums.get(name, 0) + part
            recalled[name] = recalled.get(name, 0) + hit
            ratios.setdefault(name, []).append(ratio)
            if name == only:
                break
    rows = [dict(row, ratio=round(sum(ratios["dms"]) / len(ratios["dms"]), 3), offset=adapter.offset)]
    for name, (kl, same, nll, n, fact_kl, at_facts) in sums.items():
        found = {"kl": round(float(kl / n), 5), "top1": round(float(same / n), 4), "ppl": round(float((nll / n).exp()), 4)}
        if facts:
            found.update(recall=f"{recalled[name]}/{facts}", fact_kl=round(float(fact_kl / at_facts), 4))
        if isinstance(name, float):
            rows.append(dict(row, ratio=round(sum(ratios[name]) / len(ratios[name]), 3), offset=name, dms=found))
        else:
            rows[0][name] = found
    for made in rows:
        print(json.dumps(made), f"{time.time() - begun:.0f} s", flush=True)
    return rows


def held_out_chats():
    """The conversations of held_out_chats.txt in the chat template: user and assistant take turns, a line each."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "held_out_chats.txt"), encoding="utf-8") as f:
        for chat in f.read().split("\n=====\n"):
            turns = [line for line in chat.split("\n") if line]
            yield turn("system", SYSTEM) + "".join(turn(("user", "assistant")[i % 2], text) for i, text in enumerate(turns))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True)
    p.add_argument("--adapter", required=True)
    p.add_argument("--answers", help="generated text of the split `test`")
    for kind, lengths in (("chat", "2048x16,4096x16,8192x8"), ("other", "4096x8"), ("bare", "2048x16,4096x16"), ("file", "4096x8"),
                          ("recall", "1280x80,2048x48,3328x24")):
        p.add_argument("--" + kind, default=lengths, help="lengths x sequences")
    p.add_argument("--texts", help="of fetch_text.py: its held-out kinds, and the chats of held_out_chats.txt")
    p.add_argument("--held-out", default="2048x12", help="length x sequences of each of these kinds")
    p.add_argument("--text-file", help="a text as it is, to compare with `dmslab compare --text-file`")
    p.add_argument("--offsets", type=float, nargs="*", default=[], help="other alpha_offsets, each a row of its own")
    p.add_argument("--only", help="stop after this run (dms: leave out window and random)")
    p.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    p.add_argument("--json")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = p.parse_args()
    torch.manual_seed(0)
    base, answers = Base(args.model, args.device, getattr(torch, args.dtype)), load(args.answers) if args.answers else []
    adapter = Adapter(args.adapter, args.device)
    rows = []
    if args.text_file:
        with open(args.text_file, encoding="utf-8") as f:
            ids = base.encode(f.read())
        rows += judge(base, adapter, [(ids, [])], args.only, args.offsets, text=args.text_file, length=len(ids))
        write(args.json, rows)
    length, count = map(int, args.held_out.split("x"))
    if args.texts:
        outside = Talk(base, [], "test", outside=load_texts(args.texts, "test"))
        chats = [(base.encode(text)[:length], []) for text in held_out_chats()]
        rows += judge(base, adapter, chats, args.only, args.offsets, length=length, count=len(chats), kind="talk")
        for kind in HELD_OUT:
            made = [outside.row(length, i, kind) for i in range(count)]
            rows += judge(base, adapter, made, args.only, args.offsets, length=length, count=count, kind=kind)
            write(args.json, rows)
    talk = Talk(base, answers, "test", files_of("test")) if answers else None
    for kind in ("chat", "other", "bare", "file", "recall") if talk else ():
        for length, count in (map(int, item.split("x")) for item in getattr(args, kind).split(",") if item):
            made = [talk.row(length, i, kind) for i in range(count)]
            rows += judge(base, adapter, made, args.only, args.offsets, length=length, count=count, kind=kind)
            write(args.json, rows)


def write(path, rows):
    if path:
        with open(path, "w", encoding="utf-8") as f:
            f.write("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


if __name__ == "__main__":
    main()
