"""Teach the frozen base model to evict: only the adapter is trained, end to end, on the KL to the dense model.

    python train.py --model FOLDER --answers out/train.jsonl --texts out/texts.jsonl.xz --out out/adapter.pt --minutes 5

Student: every key beyond the window W is weakened by logsigmoid(-(logit + logistic noise) / temperature), the decision at
t marking t - `--shift`. The loss of a token is KL(dense || student) plus `--top` times the total variation between the two
distributions at temperature SHARP, which follows the share of changed top tokens as KL does not. Positions that predict a
fact count `--recall` times more, and there `--truth` times the fact's own negative log likelihood is added. Every
`--long-each`-th step has rows of `--long` tokens, half of them with facts told early and asked for late.
Each kind of row has a target for its share of marked tokens, from RATIOS, and a running mean of it; a kind off its target is
pushed towards it by as much as `--penalty` times its distance, in units of BAND. Targets begin at 0, and 1 / (1 - target)
grows linearly over `--ramp` of the steps.
The steps are planned from the measured speed, or fixed by --steps. --out is written every `--every` seconds; --resume goes on
from it, --init begins from another checkpoint. On CUDA the attention is a compiled flex_attention; where that fails, and on a
CPU, plain tensor code.
"""
import argparse
import glob
import os
import time

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from model import Base, attend_blocks, norm
from talk import Talk, load, load_texts

SCALE, OFFSET = 100.0, 5.0
KINDS = """docs recall prose language code pasted dialogue prose recall language speech bare prose docs mixed language code prose
chat pasted dialogue prose language recall other prose file pasted dialogue mixed""".split()    # in turn
LONG = "far chat far bare far language pasted far prose other far docs far dialogue recall".split()    # of the long rows
# Wanted ratio at `--length` tokens, the window counted; DEFAULT for kinds of other people's text.
RATIOS, DEFAULT = {"chat": 6.1, "other": 6.1, "bare": 5.9, "recall": 5.8, "far": 5.8, "file": 4.9, "pasted": 5.75, "mixed": 5.4,
                   "prose": 5.15, "speech": 5.6, "language": 5.15, "dialogue": 4.5}, 5.2
SHARP, AVERAGED = 0.3, 100     # temperature of the total variation; steps that the running average of the weights spans
BAND, KEEP = 0.02, 0.9     # of the controller: full push at this distance from the target; share of the running mean that stays
HERE = os.path.dirname(os.path.abspath(__file__))


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True)
    p.add_argument("--answers", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--resume", action="store_true")
    p.add_argument("--init", help="a checkpoint of an earlier training, to begin from its weights")
    p.add_argument("--minutes", type=float, default=5.0)
    p.add_argument("--steps", type=int, default=0)
    p.add_argument("--every", type=float, default=30.0, help="seconds")
    p.add_argument("--rows", type=int, default=16)
    p.add_argument("--length", type=int, default=2048)
    p.add_argument("--long", type=int, default=4096, help="a multiple of --length; as many tokens a step as --rows of --length")
    p.add_argument("--long-each", type=int, default=3, help="0: no long rows")
    p.add_argument("--window", type=int, default=192)
    p.add_argument("--texts", help="of fetch_text.py; without it rows of its kinds are left out")
    p.add_argument("--shift", type=int, choices=[0, 1], default=0)
    p.add_argument("--ratio", type=float, default=1.0, help="times the wanted ratios")
    p.add_argument("--ramp", type=float, default=0.6)
    p.add_argument("--lr", type=float, default=5e-5)
    p.add_argument("--temperature", type=float, default=0.1)
    p.add_argument("--penalty", type=float, default=3.0)
    p.add_argument("--recall", type=float, default=8.0, help="weight of the positions that predict a fact")
    p.add_argument("--truth", type=float, default=0.5, help="weight of a fact's own negative log likelihood")
    p.add_argument("--top", type=float, default=0.8, help="weight of the total variation of the sharpened distributions")
    p.add_argument("--workers", type=int, default=6)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return p.parse_args()


def files_of(split):
    """This repository's own texts, so that not all text is the model's; every fourth file is for tests."""
    root = os.path.join(HERE, "..", "..")
    paths = sorted(p for pattern in ("docs/**/*.md", "src/**/*.rs", "retrofit/[de]*/*.py") for p in glob.glob(f"{root}/{pattern}", recursive=True))
    texts = []
    for i, path in enumerate(paths):
        if (i % 4 == 3) == (split == "test"):
            with open(path, encoding="utf-8") as f:
                texts.append(f.read())
    return texts


class Batches(torch.utils.data.Dataset):
    """Batch number i: (ids [rows, length], weight [rows, length], index of each row's kind [rows]), the same for the same i."""

    def __init__(self, talk, args, kinds):
        self.talk, self.args, self.kinds = talk, args, kinds
        self.order, self.long = ([k for k in names if k in kinds] for names in (KINDS, LONG))

    def __len__(self):
        return 10 ** 6

    def __getitem__(self, i):
        a = self.args
        long = a.long_each and i % a.long_each == a.long_each - 1
        length, order = (a.long, self.long) if long else (a.length, self.order)
        count = a.rows * a.length // length
        rows = [(n, order[n % len(order)]) for n in range(i * count, (i + 1) * count)]
        made = [self.talk.row(length, f"{a.seed} {n}", kind) for n, kind in rows]
        weight = torch.ones(count, length)
        for row, (_, spans) in enumerate(made):
            for begin, end in spans:
                weight[row, begin - 1: end - 1] = a.recall * length / a.length     # the positions that predict it
        return torch.tensor([ids for ids, _ in made]), weight, torch.tensor([self.kinds.index(kind) for _, kind in rows])


def decide(x, gain, proj, u, eps, temperature, shift):
    """Layer input [B, T, hidden], uniform noise u [B, kv_heads, T] -> (decisions in 0..1, what they add to the score of the
    key they mark), both [B, kv_heads, T]; with shift 1 the newest key is marked by none."""
    logit = (norm(x.float(), gain, eps) @ proj.T).transpose(1, 2) * SCALE - OFFSET
    z = (logit + u.log() - (-u).log1p()) / temperature
    bias = F.logsigmoid(-z)
    if shift:
        bias = torch.cat([bias[..., 1:], torch.zeros_like(bias[..., :1])], -1)
    return torch.sigmoid(z), bias.clamp(min=-1e4)


def flex_attend(window, group, lengths, device):
    """attend(q, k, v, bias) for these lengths, compiled together with the layer around it."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    blocks = {n: create_block_mask(lambda b, h, q, k: q >= k, None, None, n, n, device=device) for n in lengths}

    def attend(q, k, v, bias):
        def weaken(score, b, h, q_at, k_at):
            return torch.where(q_at - k_at > window, score + bias[b, h // group, k_at], score)
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        return flex_attention(q.contiguous(), k.contiguous(), v.contiguous(), score_mod=weaken, block_mask=blocks[q.shape[2]])
    return attend


def plain_attend(window):
    return lambda q, k, v, bias: attend_blocks(q, k, v, bias=bias, window=window)


class Student:
    """The base with an adapter: its forward pass, the dense one and the loss, compiled or not."""

    def __init__(self, base, gain, proj, args, compiled):
        self.base, self.gain, self.proj, self.args, self.compiled = base, gain, proj, args, compiled
        if compiled:
            attend = flex_attend(args.window, base.group, {args.length, args.long}, base.device)
        else:
            attend = plain_attend(args.window)

        def student(x, w, gain, proj, u, cos, sin):
            decision, bias = decide(x, gain, proj, u, base.eps, args.temperature, args.shift)
            q, k, v = base.qkv(w, x, cos, sin)
            return base.finish(w, x, attend(q, k, v, bias)), decision.mean((1, 2))

        def dense(x, w, cos, sin):
            q, k, v = base.qkv(w, x, cos, sin)
            return base.finish(w, x, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))

        def loss(ours, theirs, weight, following):
            theirs, ours = base.head(theirs).float(), base.head(ours).float()
            a, b = F.log_softmax(theirs, -1), F.log_softmax(ours, -1)
            kl = (a.exp() * (a - b)).sum(-1)
            changed = (F.softmax(theirs / SHARP, -1) - F.softmax(ours / SHARP, -1)).abs().sum(-1) / 2 if args.top else torch.zeros_like(kl)
            truth = torch.where(weight > 1, -b.gather(-1, following[:, None])[:, 0], 0.0)
            return ((kl + args.top * changed + args.truth * truth) * weight).sum(), torch.stack([kl.detach().sum(), changed.detach().sum()])

        wrap = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        self.layer, self.dense, self.loss = wrap(student), wrap(dense), wrap(loss)

    def backward(self, ids, weight, push):
        """Gradients of one batch; push [rows] is how much a row's mean decision is worth. Returns (KL and total
        variation of the rows [rows, 2], mean decisions [rows])."""
        base, n = self.base, ids.numel()
        cos, sin = base.cos[: ids.shape[1]], base.sin[: ids.shape[1]]
        with torch.no_grad():
            theirs = base.embed(ids)
            for w in base.layer:
                theirs = self.dense(theirs, w, cos, sin)
        x, means = base.embed(ids).requires_grad_(), []      # as in the other layers, so that one compilation serves all
        for w, gain, proj in zip(base.layer, self.gain, self.proj):
            u = torch.rand(ids.shape[0], base.kv_heads, ids.shape[1], device=x.device).clamp(1e-6, 1 - 1e-6)
            if self.compiled:
                x, mean = self.layer(x, w, gain, proj, u, cos, sin)
            else:      # the scores of all layers at once would not fit
                x, mean = checkpoint(self.layer, x, w, gain, proj, u, cos, sin, use_reentrant=False)
            means.append(mean)
        ours, sums, size = x.detach().requires_grad_(), [], self.args.length
        for part in zip(*(t.flatten(0, 1).split(size) for t in (ours, theirs, weight, ids.roll(-1, 1)))):     # the vocabulary's logits piece by piece
            weighted, plain = self.loss(*part)
            (weighted / n).backward()
            sums.append(plain / size)
        mean = torch.stack(means).mean(0)
        torch.autograd.backward([x, -(push * mean).mean()], [ours.grad, None])
        return torch.stack(sums).view(ids.shape[0], -1, 2).mean(1), mean.detach()


class Controller:
    """Targets and running means of the kinds' marked shares."""

    def __init__(self, kinds, args, device):
        def share(kind):
            slots = args.length / (RATIOS.get(kind, DEFAULT) * args.ratio)
            return 1 - (slots - args.window - 1) / (args.length - args.window - 1)
        self.final = torch.tensor([share(kind) for kind in kinds], device=device)
        self.mean = torch.zeros_like(self.final)
        self.penalty = args.penalty

    def targets(self, progress):
        """progress 0..1 along the ramp."""
        return 1 - 1 / (1 + (1 / (1 - self.final) - 1) * min(1.0, progress))

    def push(self, kinds, progress):
        """How much each row is pushed; kinds [rows] are indices. Nothing for a kind that was not seen yet."""
        return (self.penalty * ((self.targets(progress) - self.mean) / BAND).clamp(-1, 1) * (self.mean > 0))[kinds]

    def seen(self, kinds, mean):
        """Takes in a batch's mean decisions [rows]."""
        count = torch.zeros_like(self.mean).index_add_(0, kinds, torch.ones_like(mean))
        now = torch.zeros_like(self.mean).index_add_(0, kinds, mean) / count.clamp(min=1)
        self.mean = torch.where(count > 0, torch.where(self.mean > 0, KEEP * self.mean + (1 - KEEP) * now, now), self.mean)


def learning_rate(step, steps, args):
    """Flat, then down to a twentieth in a line while the target stands still."""
    x = max(0.0, step / steps - args.ramp) / max(1e-9, 1 - args.ramp) if steps else 0.0
    return args.lr * (1 - 0.95 * min(1.0, x))


def save(path, gain, proj, average, optimizer, step, steps, args):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    gain, proj, average = ([t.detach().cpu() for t in ts] for ts in (gain, proj, average))
    data = {"gain": torch.stack(gain), "proj": torch.stack(proj),
            "average_gain": torch.stack(average[:len(gain)]), "average_proj": torch.stack(average[len(gain):]),
            "optimizer": optimizer.state_dict(), "step": step, "steps": steps, "window": args.window, "shift": args.shift,
            "ratio": args.trained, "scale": SCALE, "offset": OFFSET}
    torch.save(data, path + ".part")
    os.replace(path + ".part", path)


def start(base, args):
    """(gains, projections, optimizer, step, steps), fresh, from the checkpoint, or with --init from the weights of another."""
    resumed = args.resume and os.path.exists(args.out)
    path = args.out if resumed else args.init
    data = torch.load(path, map_location="cpu", weights_only=True) if path else None
    gain = list(data["gain"]) if data else [torch.ones(base.hidden) for _ in range(base.layers)]
    proj = list(data["proj"]) if data else [torch.zeros(base.kv_heads, base.hidden) for _ in range(base.layers)]
    gain, proj = ([t.clone().to(base.device).requires_grad_() for t in ts] for ts in (gain, proj))
    optimizer = torch.optim.AdamW(gain + proj, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0, foreach=True)
    if data:
        optimizer.load_state_dict(data["optimizer"])
        print(f"{'resumed' if resumed else 'begins from'} {path}: step {data['step']} of {data['steps']}", flush=True)
    return gain, proj, optimizer, data["step"] if resumed else 0, args.steps or (data["steps"] if resumed else 0)


def make_student(base, gain, proj, args):
    """The compiled student where it runs, else the plain one, with a notice. Leaves no gradients."""
    for compiled in ([True, False] if base.device.type == "cuda" else [False]):
        try:
            student = Student(base, gain, proj, args, compiled)
            for length in {args.length, args.long if args.long_each else args.length}:
                ids = torch.randint(100, base.vocab, (args.rows * args.length // length, length), device=base.device)
                student.backward(ids, torch.ones(ids.shape, device=base.device), torch.zeros(ids.shape[0], device=base.device))
            break
        except Exception as e:
            if not compiled:
                raise
            print(f"compiled attention failed, going on without: {type(e).__name__}: {str(e)[:500]}", flush=True)
            torch.cuda.empty_cache()
    for p in gain + proj:
        p.grad = None
    return student


def plan(step, begun, measured, limit):
    """Steps in all, from those done between two clock times (step, seconds)."""
    each = (time.time() - measured[1]) / (step - measured[0])
    steps = step + max(1, int((limit - time.time() - 3) * 0.98 / each))
    print(f"{each * 1000:.0f} ms a step: {steps} steps, {time.time() - begun:.0f} s", flush=True)
    return steps


def main():
    args, begun = parse(), time.time()
    assert args.long % args.length == 0 and args.rows * args.length % args.long == 0
    torch.manual_seed(args.seed)
    base = Base(args.model, args.device)
    outside = load_texts(args.texts, "train") if args.texts else {}
    talk = Talk(base, load(args.answers), "train", files_of("train"), outside)
    own = ("recall", "far", "chat", "bare", "other", "file")
    kinds = sorted(k for k in set(KINDS + LONG) if k in outside or k in own or outside and k == "pasted")
    gain, proj, optimizer, step, steps = start(base, args)
    controller = Controller(kinds, args, base.device)
    shares = [controller.final[kinds.index(kind)].item() for kind in KINDS if kind in kinds]
    context, recent = len(base.cos), args.window + 1
    args.trained = round(context / (recent + (context - recent) * (1 - sum(shares) / len(shares))), 1)    # at the model's full context
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    loader = iter(torch.utils.data.DataLoader(Batches(talk, args, kinds), batch_size=None, sampler=range(step, 10 ** 6),
                                              num_workers=args.workers, pin_memory=base.device.type == "cuda"))

    def batch():
        return (x.to(base.device, non_blocking=True) for x in next(loader))

    def wait():
        if base.device.type == "cuda":
            torch.cuda.synchronize()
        return time.time()

    ids, weight, which = batch()
    print(f"data ready, {time.time() - begun:.0f} s", flush=True)
    student = make_student(base, gain, proj, args)
    print(f"compiled, {wait() - begun:.0f} s", flush=True)
    limit, first, saved, measured = begun + 60 * args.minutes, step, time.time(), None
    average = [t.detach().clone() for t in gain + proj]
    sums = torch.zeros(4, len(kinds), device=base.device)    # of each kind since the last report: KL, total variation, mean decision, rows
    while (not steps or step < steps) and time.time() < limit:
        progress = step / (steps * args.ramp) if steps and args.ramp else float(not args.ramp)
        losses, mean = student.backward(ids, weight, controller.push(which, progress))
        controller.seen(which, mean)
        sums.index_add_(1, which, torch.cat([losses.T, mean[None], torch.ones_like(mean)[None]]))
        torch.nn.utils.clip_grad_norm_(gain + proj, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, args)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(average, gain + proj, 1 / min(step - first + 1, AVERAGED))
        optimizer.zero_grad(set_to_none=True)
        ids, weight, which = batch()
        step += 1
        if not args.steps and step - first in (6, 30) or (step - first) % 120 == 0:      # a multiple of --long-each apart
            wait()
            if measured and not args.steps:
                steps = plan(step, begun, measured, limit)
            measured = (step, time.time())
        if step % 120 == 0 or step == steps:
            report(step, sums, kinds, controller.targets(progress), time.time() - begun)
            sums.zero_()
        if time.time() - saved > args.every:
            save(args.out, gain, proj, average, optimizer, step, steps, args)
            saved = time.time()
    save(args.out, gain, proj, average, optimizer, step, steps, args)
    print(f"saved {args.out} at step {step} of {steps}, {time.time() - begun:.0f} s")


def report(step, sums, kinds, targets, seconds):
    """One line: KL, total variation and marked share of all rows, then KL / share / target of each kind."""
    kl, changed, mean, rows = sums.tolist()
    each = "  ".join(f"{k} {a / n:.4f} {b / n:.3f}/{t:.3f}" for k, a, b, n, t in zip(kinds, kl, mean, rows, targets.tolist()) if n)
    print(f"step {step} KL {sum(kl) / sum(rows):.5f} changed {sum(changed) / sum(rows):.4f} decision {sum(mean) / sum(rows):.3f} "
          f"{seconds:.0f} s  {each}", flush=True)


if __name__ == "__main__":
    main()
