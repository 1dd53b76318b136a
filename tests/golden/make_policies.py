#!/usr/bin/env python3
"""Writes qwen3_gqa/policies.json: what window, TOVA, H2O and Quest give on a list of tokens, by a sequential program in
double precision that shares no code with dmschat. Only the standard library is needed:

    python3 tests/golden/make_policies.py

The first PROMPT tokens are one step (Quest reads it densely, it does not count in reads), the others a step each. Token lists
are drawn until no victim and no choice of pages is nearly a tie.
"""

import json
import math
import random
import struct
from pathlib import Path

FOLDER = Path(__file__).parent / "qwen3_gqa"
N, PROMPT, PAGE, SINKS = 84, 40, 16, 4
CASES = [("window", 24), ("tova", 24), ("h2o", 25), ("quest", 48)]
MARGIN = 2e-3


def load():
    config = json.loads((FOLDER / "config.json").read_text())
    data = (FOLDER / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    weights = {}
    for name, t in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        assert t["dtype"] == "BF16", name
        a, b = t["data_offsets"]
        halves = struct.unpack(f"<{(b - a) // 2}H", data[8 + size + a : 8 + size + b])
        values = struct.unpack(f"<{len(halves)}f", b"".join(struct.pack("<I", h << 16) for h in halves))
        cols = t["shape"][-1]
        weights[name] = [values[i : i + cols] for i in range(0, len(values), cols)]
    return config, weights


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def matvec(m, x):
    return [dot(row, x) for row in m]


def norm(x, weight, eps):
    scale = 1 / math.sqrt(dot(x, x) / len(x) + eps)
    return [v * scale * w for v, w in zip(x, weight[0])]


def rotate(x, position, theta):
    half = len(x) // 2
    out = list(x)
    for i in range(half):
        angle = position * theta ** (-i / half)
        c, s = math.cos(angle), math.sin(angle)
        out[i], out[i + half] = x[i] * c - x[i + half] * s, x[i + half] * c + x[i] * s
    return out


def softmax(scores):
    top = max(scores)
    e = [math.exp(s - top) for s in scores]
    return [x / sum(e) for x in e]


def outward(x, sign):
    """the bf16 value at x, or the next one below (sign -1) or above (1)"""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    exact = struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0]
    if exact == x or (exact > x) == (sign > 0):
        return exact
    return struct.unpack("<f", struct.pack("<I", (bits & 0xFFFF0000) + 0x10000))[0]


class Cache:
    """One layer: for each KV head a list of [position, key, value, score]."""

    def __init__(self, policy, budget, heads, dense):
        self.policy, self.budget, self.dense = policy, budget, dense
        self.lanes = [[] for _ in range(heads)]
        self.margin = math.inf

    def least(self, candidates):
        order = sorted(candidates)
        if len(order) > 1:
            self.margin = min(self.margin, (order[1][0] - order[0][0]) / order[1][0])
        return order[0][1]

    def pages(self, lane, queries, t):
        """for each query head the slots that it reads"""
        count, most = t // PAGE + 1, max(3, self.budget // PAGE)
        if count <= most:
            return [range(t + 1)] * len(queries)
        limits = []
        for p in range(count - 1):
            columns = list(zip(*(slot[1] for slot in lane[p * PAGE : (p + 1) * PAGE])))
            limits.append([(min(c), max(c)) for c in columns])
        rounded = [[(outward(low, -1), outward(high, 1)) for low, high in page] for page in limits]
        out = []
        for q in queries:
            size = sum(abs(x) * max(abs(c) for slot in lane for c in slot[1]) for x in q)
            choices = []
            for pages in (limits, rounded):
                bounds = [sum(max(x * low, x * high) for x, (low, high) in zip(q, page)) for page in pages]
                order = sorted(range(count - 1), key=lambda p: (-bounds[p], p))
                gap = (bounds[order[most - 2]] - bounds[order[most - 1]]) / size
                # Less than elsewhere: a sum over channels differs by far less than its size.
                self.margin = min(self.margin, gap * 20)
                choices.append(set(order[: most - 1]) | {count - 1})
            if choices[0] != choices[1]:
                self.margin = -1.0
            out.append([i for i in range(t + 1) if i // PAGE in choices[0]])
        return out

    def step(self, q, k, v, t, alone):
        """q [KV heads][group], k and v [KV heads] -> output of all query heads, keys read"""
        out, read, weights = [], 0, []
        for lane, queries, key, value in zip(self.lanes, q, k, v):
            if self.policy == "window":
                lane[:] = [s for s in lane if s[0] < SINKS or t - s[0] <= self.budget - SINKS - 1]
            lane.append([t, key, value, 0.0])
            sees = [range(len(lane))] * len(queries)
            if self.policy == "quest" and alone and not self.dense:
                sees = self.pages(lane, queries, t)
            total = [0.0] * len(lane)
            for x, slots in zip(queries, sees):
                w = softmax([dot(x, lane[i][1]) / math.sqrt(len(x)) for i in slots])
                out.append([dot(w, column) for column in zip(*(lane[i][2] for i in slots))])
                for i, share in zip(slots, w):
                    total[i] += share
            read += len(set().union(*map(set, sees)))
            weights.append(total)
        if self.policy == "tova":
            z = [sum(w) for w in zip(*weights)]
            if len(z) > self.budget:
                victim = self.least([(s, i) for i, s in enumerate(z)])
                for lane in self.lanes:
                    del lane[victim]
        if self.policy == "h2o":
            for lane, w in zip(self.lanes, weights):
                for slot, share in zip(lane, w):
                    slot[3] += share
                if len(lane) > self.budget:
                    recent = self.budget - self.budget // 2
                    old = [(s[3], i) for i, s in enumerate(lane) if s[0] <= t - recent]
                    del lane[self.least(old)]
        return out, read


def run(config, w, tokens, policy, budget):
    heads, group = config["num_key_value_heads"], config["num_attention_heads"] // config["num_key_value_heads"]
    layers, d, eps = config["num_hidden_layers"], config["head_dim"], config["rms_norm_eps"]
    theta = config["rope_parameters"]["rope_theta"]
    caches = [Cache(policy, budget, heads, layers > 2 and l < 2) for l in range(layers)]
    logprobs, reads, peak = [], 0, 0

    def split(x):
        return [x[i : i + d] for i in range(0, len(x), d)]

    for t, token in enumerate(tokens):
        x = list(w["model.embed_tokens.weight"][token])
        for l, cache in enumerate(caches):
            at = f"model.layers.{l}."
            h = norm(x, w[at + "input_layernorm.weight"], eps)
            q, k, v = (split(matvec(w[at + f"self_attn.{n}_proj.weight"], h)) for n in "qkv")
            q = [rotate(norm(y, w[at + "self_attn.q_norm.weight"], eps), t, theta) for y in q]
            k = [rotate(norm(y, w[at + "self_attn.k_norm.weight"], eps), t, theta) for y in k]
            q = [q[i : i + group] for i in range(0, len(q), group)]
            mixed, read = cache.step(q, k, v, t, t >= PROMPT)
            reads += read if t >= PROMPT else 0
            flat = [c for head in mixed for c in head]
            x = [a + b for a, b in zip(x, matvec(w[at + "self_attn.o_proj.weight"], flat))]
            h = norm(x, w[at + "post_attention_layernorm.weight"], eps)
            gate, up = matvec(w[at + "mlp.gate_proj.weight"], h), matvec(w[at + "mlp.up_proj.weight"], h)
            act = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)]
            x = [a + b for a, b in zip(x, matvec(w[at + "mlp.down_proj.weight"], act))]
        peak = max(peak, sum(len(lane) for cache in caches for lane in cache.lanes))
        if t + 1 < len(tokens):
            logits = matvec(w["lm_head.weight"], norm(x, w["model.norm.weight"], eps))
            top = max(logits)
            total = top + math.log(sum(math.exp(y - top) for y in logits))
            logprobs.append(round(logits[tokens[t + 1]] - total, 7))
    live = [[len(lane) for lane in cache.lanes] for cache in caches]
    case = {"policy": policy, "budget": budget, "live": live, "reads": reads / (layers * heads),
            "peak": peak / (layers * heads), "logprobs": logprobs}
    return case, min(cache.margin for cache in caches)


def main():
    config, weights = load()
    for seed in range(1000):
        rng = random.Random(seed)
        tokens = [rng.randrange(config["vocab_size"]) for _ in range(N)]
        cases = []
        # Those with the narrowest margins first.
        for policy, budget in sorted(CASES, key=lambda c: ["quest", "tova", "h2o", "window"].index(c[0])):
            case, margin = run(config, weights, tokens, policy, budget)
            print(f"seed {seed} {policy}: margin {margin:.1e}", flush=True)
            if margin < MARGIN:
                break
            cases.append(case)
        else:
            out = {"prompt": PROMPT, "tokens": tokens, "cases": cases}
            (FOLDER / "policies.json").write_text(json.dumps(out) + "\n")
            return
    raise SystemExit("no list of tokens without near-ties")


main()
