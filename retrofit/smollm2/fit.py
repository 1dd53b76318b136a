"""Fit the adapter layer by layer: what a layer's evicted attention loses, weighed by what the loss does to the output.

    python fit.py --model FOLDER --answers out/train.jsonl --out out/adapter.pt

1. Fisher: for each layer F = mean g g^T over positions, g = the gradient of log p(y), y sampled from the model, for the
   attention output. Then a change d of that output costs about d^T F d / 2 nats (KL to the dense model, second order).
2. Layer after layer, on dense inputs: queries sampled beyond the window; the student's attention weakens marked keys beyond
   the window by logsigmoid(-(logit + logistic noise) / temperature); loss = cost + price * share of pairs kept. The one
   price trades nats for slots alike in all layers, so heads share the budget freely.
An interrupted run goes on after its last whole layer. `--part I/N` fits every Nth layer only (one process per core);
export.py puts the parts together.
"""
import argparse
import os
import random

import torch
import torch.nn.functional as F

from model import Base, attend_blocks, norm
from talk import conversation, load

SCALE, OFFSET = 100.0, 5.0


def fisher(base, sequences):
    """[layers, hidden, hidden] f32: mean outer product of sampled gradients at the attention output."""
    total = torch.zeros(base.layers, base.hidden, base.hidden, device=base.device)
    count = 0
    for ids in sequences:
        leaves = []

        def attend(layer, x, q, k, v):
            out = attend_blocks(q, k, v)
            leaves.append(torch.zeros_like(out, requires_grad=True))
            return out + leaves[-1]

        logp = base.head(base.hidden_states(ids[None], attend)).float().log_softmax(-1)[0]
        y = torch.multinomial(logp.detach().exp(), 1)
        grads = torch.autograd.grad(logp.gather(1, y).sum(), leaves)
        for layer, g in enumerate(grads):
            g = g[0].transpose(0, 1).flatten(1).float()
            total[layer] += g.T @ g
        count += len(ids)
        print(f"fisher: {count} positions", flush=True)
    return total / count


def layer_cost(base, q, k, v, at, logit, root, window, temperature):
    """(cost in nats a token, share kept): sampled queries q [heads, n, d] at positions `at` [n]."""
    t = k.shape[1]
    noise = torch.rand_like(logit).clamp(1e-6, 1 - 1e-6)
    soft = (logit + noise.log() - (-noise).log1p()) / temperature
    kept = torch.sigmoid(-soft)
    bias = torch.cat([F.logsigmoid(-soft)[:, 1:], torch.zeros_like(soft[:, :1])], -1).clamp(min=-1e4)   # t+1 marks t
    distance = at[:, None] - torch.arange(t, device=at.device)
    scores = (q.unflatten(0, (base.kv_heads, -1)) @ k[:, None].transpose(-1, -2)).float() * base.head_dim ** -0.5
    scores = scores.masked_fill(distance < 0, float("-inf"))
    lost = ((scores + bias[:, None, None] * (distance > window)).softmax(-1).to(v.dtype) - scores.softmax(-1).to(v.dtype)) @ v[:, None]
    lost = lost.flatten(0, 1).transpose(0, 1).flatten(1).float() @ root
    return 0.5 * lost.pow(2).sum(-1).mean(), kept.mean()


def fit_layer(base, layer, states, weights, F_layer, args):
    """One layer's (norm weight, projection), trained over all sequences."""
    values, vectors = torch.linalg.eigh(F_layer.double())
    root = (vectors * values.clamp(min=0).sqrt()).float()
    cache = []
    with torch.no_grad():
        for x in states:
            q, k, v = base.qkv(layer, x, base.cos[: x.shape[1]], base.sin[: x.shape[1]])
            cache.append((q[0], k[0], v[0], norm(x[0].float(), torch.ones(base.hidden, device=x.device), base.eps)))
    proj = torch.zeros(base.kv_heads, base.hidden, device=base.device, requires_grad=True)
    gain = torch.ones(base.hidden, device=base.device, requires_grad=True)
    optimizer = torch.optim.Adam([proj, gain], lr=args.lr, betas=(0.9, 0.95))
    log = []
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1.0, 2.5 * (1 - step / args.steps) + 0.03)
        i = random.randrange(len(cache))
        q, k, v, feature = cache[i]
        at = torch.multinomial(weights[i], args.queries)
        logit = ((feature * gain) @ proj.T).T * SCALE - OFFSET
        cost, kept = layer_cost(base, q[:, at], k, v, at, logit, root, args.window, args.temperature)
        loss = cost * base.layers + args.price * kept
        loss.backward()
        torch.nn.utils.clip_grad_norm_([proj, gain], args.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        log.append((cost.item(), kept.item()))
    tail = torch.tensor(log[-args.steps // 4:]).mean(0)
    print(f"layer {layer}: cost {tail[0]:.6f} nats, kept {100 * tail[1]:.1f} %", flush=True)
    return gain.detach().cpu(), proj.detach().cpu()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True)
    p.add_argument("--answers", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--window", type=int, default=128)
    p.add_argument("--sequences", type=int, default=256)
    p.add_argument("--length", type=int, default=2048)
    p.add_argument("--fisher", type=int, default=64, help="sequences of 1,024 tokens")
    p.add_argument("--steps", type=int, default=2000)
    p.add_argument("--queries", type=int, default=256)
    p.add_argument("--lr", type=float, default=1e-4)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--price", type=float, default=0.1, help="nats a token that all slots together are worth")
    p.add_argument("--temperature", type=float, default=0.3)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--part", default="0/1")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = p.parse_args()
    part, parts = map(int, args.part.split("/"))
    base, answers = Base(args.model, args.device), load(args.answers)
    torch.manual_seed(args.seed)

    def make(count, length, first):
        for i in range(first, first + count):
            ids, spans = conversation(base.encode, answers, length, "train", i, ("recall", "bare", "recall", "chat")[i % 4])
            weight = torch.zeros(length)
            weight[args.window + 1:] = 1.0
            for a, b in spans:
                weight[a - 1: b] = 8.0      # the positions that predict a fact
            yield torch.tensor(ids, device=args.device), weight.to(args.device)

    cached = args.out + ".fisher"
    if not os.path.exists(cached):
        torch.save(fisher(base, [ids for ids, _ in make(args.fisher, 1024, 10 ** 6)]).cpu(), cached)
    weigh = torch.load(cached).to(args.device)
    made = list(make(args.sequences, args.length, 0))
    with torch.no_grad():
        states = [base.embed(ids[None]) for ids, _ in made]
    saved = f"{args.out}.{part}"
    fitted = torch.load(saved) if os.path.exists(saved) else {}
    for layer in range(base.layers):
        if layer % parts == part and layer not in fitted:
            random.seed(args.seed * 1000 + layer)
            torch.manual_seed(args.seed * 1000 + layer)
            fitted[layer] = fit_layer(base, layer, states, [w for _, w in made], weigh[layer], args)
            torch.save(fitted, saved)
        with torch.no_grad():
            for i, x in enumerate(states):
                q, k, v = base.qkv(layer, x, base.cos[: x.shape[1]], base.sin[: x.shape[1]])
                x = x + base.project(layer, attend_blocks(q, k, v))
                states[i] = x + base.mlp(layer, x)


if __name__ == "__main__":
    main()
