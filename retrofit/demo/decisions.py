"""Train the eviction decisions of some layers on search turns, and nothing else of the model.

    python -m demo.decisions --init ../assets/demo --to out/decided --steps 400

Teacher: the folder's own weights, dense. Student: the same weights with hard decisions, of which the rows of the borrowed
channels of `--layers` are trained. A marked key has weight 0 in attention as in use, but the gradient of its decision is
that of letting the key in, so that a token that is evicted by a wide margin is found. Loss: KL(teacher || student) on the
answers of search turns, and the distance of the decisions from those before, on search turns and on other conversations.
"""
import argparse
import copy
import json
import math
import os
import random
import shutil
import time

import numpy as np
import torch
import torch.nn.functional as F

from data.conversation import ANSWER, SEARCHES, Encoder, make_row
from demo.export import write_folder
from demo.model import attend_dense, attend_masked, load_folder, marks_of, rope_tables, visible_dms


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--init", required=True, help="an exported folder")
    p.add_argument("--to", required=True)
    p.add_argument("--layers", type=int, default=2, help="how many of the last layers")
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--rows", type=int, default=48, help="search turns a step")
    p.add_argument("--worst", type=int, default=16, help="how many of them are learnt from: those with the largest KL")
    p.add_argument("--length", type=int, default=1024)
    p.add_argument("--talk", type=int, default=2, help="rows of other conversations a step, of twice the length")
    p.add_argument("--paths", type=float, default=0.7, help="share of paths among the search turns")
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--temperature", type=float, default=30.0, help="width of a decision's gradient, in eviction logits")
    p.add_argument("--anchor", type=float, default=0.1, help="weight of the distance from the decisions before, on search turns")
    p.add_argument("--anchor-talk", type=float, default=2.0, help="the same on other conversations")
    p.add_argument("--check", type=int, default=320, help="search turns of each task to measure on, before and after")
    p.add_argument("--json", help="where to write what --check measured")
    p.add_argument("--minutes", type=float, default=10.0, help="guard: the training ends by then")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--workers", type=int, default=8)
    p.add_argument("--device", default="cuda")
    return p.parse_args()


def straight_gate(logits, temperature):
    """[.., T] 1 where a token is kept and 0 where it is marked, with the gradient of a wide sigmoid."""
    soft = torch.sigmoid(-logits / temperature)
    keep = (logits <= 0).float() + (soft - soft.detach())
    return torch.cat([keep[..., 1:], torch.ones_like(keep[..., :1])], -1)


def attend_gated(window, temperature):
    """An attend function with hard decisions whose gradient is that of letting a key in."""
    def attend(q, k, v, logits):
        b, heads, t, d = q.shape
        groups, at = heads // k.shape[1], torch.arange(t, device=q.device)
        distance = at[:, None] - at[None, :]
        gate = torch.where(distance > window, straight_gate(logits, temperature)[:, :, None, :], (distance >= 0).float())
        scores = q.view(b, -1, groups, t, d) @ k[:, :, None].transpose(-1, -2) / math.sqrt(d)
        gate = gate[:, :, None]
        top = scores.detach().masked_fill(gate.detach() < 0.5, -math.inf).amax(-1, keepdim=True)
        weights = (scores - top).clamp(max=0).exp() * gate
        out = weights / weights.sum(-1, keepdim=True) @ v[:, :, None]
        return out.view(b, heads, t, d)
    return attend


def attend_hard(window):
    """An attend function with the rule's own masks."""
    return lambda q, k, v, logits: attend_masked(q, k, v, visible_dms(marks_of(logits), window))


def through(model, layers, x, attend):
    """x [B, T, hidden] through `layers` -> (x, [eviction logits [B, kv_heads, T]])."""
    cos, sin = rope_tables(model.shape, x.shape[1], x.device)
    decisions = []
    for layer in layers:
        x, d = layer(x, cos, sin, attend)
        decisions.append(d)
    return x, decisions


def head(model, x):
    return F.linear(model.norm(x), model.embed_tokens.weight)


def distance(before, now, temperature, inside):
    """Mean divergence between softened decisions of tokens `inside` [B, T]."""
    total = 0.0
    for b, n in zip(before, now):
        p = torch.sigmoid(b / temperature)
        each = F.binary_cross_entropy_with_logits(n / temperature, p, reduction="none") - F.binary_cross_entropy_with_logits(b / temperature, p, reduction="none")
        total = total + (each.mean(1) * inside).sum() / inside.sum()
    return total / len(now)


def search_rows(rng, encoder, rows, length, paths, task=None):
    """Search turns, of one task or with a share `paths` of paths, cut to `length` and padded: ids, the answer's tokens and all tokens,
    each [rows, longest]."""
    made = []
    for _ in range(rows):
        name = task or ("path" if rng.random() < paths else rng.choice(list(SEARCHES)))
        made.append(encoder.turn(SEARCHES[name](rng, core=task is not None)))
    longest = min(length, max(len(ids) for ids, _ in made))
    ids, answer, inside = (np.zeros((rows, longest), kind) for kind in (np.int64, np.float32, np.float32))
    for row, (turn, prompt) in enumerate(made):
        cut = min(len(turn), longest)
        ids[row, :cut], inside[row, :cut], answer[row, prompt:min(cut, len(turn) - 1)] = turn[:cut], 1, 1
    return ids, answer, inside


def talk_rows(rng, encoder, rows, length):
    return np.stack([make_row(rng, encoder, length, late=True)[0] for _ in range(rows)]).astype(np.int64)


def make_loader(args):
    """An endless iterator of (ids, answer, inside, talk) batches made by worker processes."""
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Stream(IterableDataset):
        def __iter__(self):
            torch.set_num_threads(1)
            info = get_worker_info()
            rng, encoder = random.Random(9000 + args.seed * 1000 + (info.id if info else 0)), Encoder()
            while True:
                talk = talk_rows(rng, encoder, args.talk, 2 * args.length)
                yield [torch.from_numpy(x) for x in (*search_rows(rng, encoder, args.rows, args.length, args.paths), talk)]

    return iter(DataLoader(Stream(), batch_size=None, num_workers=args.workers, prefetch_factor=4 if args.workers else None))


def divergence(student, teacher, answer):
    """KL(teacher || student) [B, T-1] of the tokens that predict the answer's, 0 elsewhere."""
    log_s, log_t = F.log_softmax(student[:, :-1], -1), F.log_softmax(teacher[:, :-1], -1)
    return (log_t.exp() * (log_t - log_s)).sum(-1) * answer[:, 1:]


def borrowed_rows(grad, shape):
    """The part of a gradient [heads * head_dim, hidden] that belongs to the borrowed channels, 0 elsewhere."""
    grad = grad.view(shape.heads, shape.head_dim, -1)
    only = torch.zeros_like(grad)
    only[:: shape.group, -1] = grad[:: shape.group, -1]
    return only.view(shape.heads * shape.head_dim, -1)


class Trainer:
    """The model as it was, and the last layers with the rows that are trained."""

    def __init__(self, args):
        self.args, self.base = args, load_folder(args.init, args.device).requires_grad_(False)
        self.shape, self.window = self.base.shape, self.base.shape.window
        self.first = self.shape.layers - args.layers
        self.tail = copy.deepcopy(self.base.layers[self.first:])
        self.weights = [layer.self_attn.q_proj.weight.requires_grad_(True) for layer in self.tail]
        for weight in self.weights:
            weight.register_hook(lambda grad: borrowed_rows(grad, self.shape))
        self.optimizer = torch.optim.Adam(self.weights, lr=args.lr, betas=(0.9, 0.95))

    @torch.no_grad()
    def before(self, ids):
        """(the last layers' input, their decisions before training)."""
        x, _ = through(self.base, self.base.layers[:self.first], self.base.embed_tokens(ids), attend_hard(self.window))
        return x, through(self.base, self.base.layers[self.first:], x, attend_hard(self.window))

    def loss(self, batch):
        """(loss, [KL of all rows, distance on search turns, on other conversations])."""
        args = self.args
        ids, answer, inside, talk = (x.to(args.device) for x in batch)
        with torch.no_grad():
            wanted = self.base(ids, attend_dense)[0]
            x, (_, old) = self.before(ids)
            kl = divergence(head(self.base, through(self.base, self.tail, x, attend_hard(self.window))[0]), wanted, answer)
            mean, worst = kl.sum() / answer.sum(), kl.sum(1).topk(args.worst).indices
            x, old, wanted, answer, inside = x[worst], [d[worst] for d in old], wanted[worst], answer[worst], inside[worst]
        out, new = through(self.base, self.tail, x, attend_gated(self.window, args.temperature))
        kl = divergence(head(self.base, out), wanted, answer).sum() / answer.sum()
        near = distance(old, new, args.temperature, inside)
        x, (_, old) = self.before(talk)
        _, new = through(self.base, self.tail, x, attend_hard(self.window))
        far = distance(old, new, args.temperature, torch.ones_like(talk, dtype=torch.float32))
        return 5 * kl + args.anchor * near + args.anchor_talk * far, torch.stack([mean, near, far]).detach()

    def train(self, loader):
        args, begun, log = self.args, time.time(), []
        for step in range(args.steps):
            done = max(step / args.steps, (time.time() - begun) / 60 / args.minutes)
            if done >= 1:
                break
            loss, parts = self.loss(next(loader))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
            for group in self.optimizer.param_groups:
                group["lr"] = args.lr * min(1.0, (step + 1) / 10) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            log.append(parts)
            if (step + 1) % max(1, args.steps // 10) == 0:
                kl, near, far = torch.stack(log).mean(0).tolist()
                print(f"step {step + 1} KL {kl:.5f} distance {near:.5f}, of others {far:.5f}, {time.time() - begun:.0f} s", flush=True)
                log = []

    @torch.no_grad()
    def check(self, count, rows=16):
        """{task: {before, after: {kl, bad, marks}}} on fresh turns of each search task: KL a token, turns with a token above 0.3, and
        the share of tokens that the trained layers mark."""
        rng, encoder, table = random.Random("check"), Encoder(), {}
        for task in SEARCHES:
            sums, tokens, total = {"before": torch.zeros(3), "after": torch.zeros(3)}, 0.0, 0.0
            for _ in range(0, count, rows):
                ids, answer, inside = (torch.from_numpy(x).to(self.args.device) for x in search_rows(rng, encoder, rows, self.args.length, 0, task))
                wanted = self.base(ids, attend_dense)[0]
                x, before = self.before(ids)
                after = through(self.base, self.tail, x, attend_hard(self.window))
                for name, (out, decisions) in (("before", before), ("after", after)):
                    kl = divergence(head(self.base, out), wanted, answer)
                    marks = sum((marks_of(d).float().mean(1) * inside).sum() for d in decisions) / len(decisions)
                    sums[name] += torch.stack([kl.sum(), (kl > 0.3).any(1).sum(), marks]).cpu()
                tokens, total = tokens + answer.sum().item(), total + inside.sum().item()
            turns = -(-count // rows) * rows
            table[task] = {name: {"kl": s[0].item() / tokens, "bad": 100 * s[1].item() / turns, "marks": 100 * s[2].item() / total} for name, s in sums.items()}
            print(f"{task:9s}", "; ".join(f"{name} KL {r['kl']:.5f}, bad turns {r['bad']:.1f} %, marked {r['marks']:.2f} %" for name, r in table[task].items()), flush=True)
        return table

    def write(self, table):
        """The folder with the trained rows in place, and the checks beside it."""
        model = copy.deepcopy(self.base)
        for layer, tail in zip(model.layers[self.first:], self.tail):
            layer.load_state_dict(tail.state_dict())
        with open(os.path.join(self.args.init, "config.json"), encoding="utf-8") as f:
            write_folder(model, json.load(f), self.args.to)
        for name in os.listdir(self.args.init):
            if name.endswith(".json"):
                shutil.copy(os.path.join(self.args.init, name), self.args.to)
        if self.args.json:
            with open(self.args.json, "w", encoding="utf-8") as out:
                json.dump(table, out, indent=1)


def main():
    args = parse()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    loader = make_loader(args)      # its processes begin before the GPU does
    trainer = Trainer(args)
    trainer.train(loader)
    torch.set_float32_matmul_precision("highest")
    trainer.write(trainer.check(args.check))


if __name__ == "__main__":
    main()
