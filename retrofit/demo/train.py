"""Pretrain the dense model on conversations made on the fly.

    python -m demo.train --out out/base.pt --minutes 8                      from scratch, 2,048 tokens
    python -m demo.train --init out/base.pt --out out/long.pt --minutes 2.5 --length 8192 --rows 12 --late --lr 1e-3

`--minutes` is a guard and, with --steps 0, also sets the number of steps after a short measurement (it is
printed). The checkpoint holds f32 weights and the optimizer; --resume goes on from it.
"""
import argparse
import math
import os
import time

import torch
import torch.nn.functional as F

from data.conversation import ANSWER
from data.batches import make_loader
from demo.model import Attention, Model, Shape, attend_dense, load_folder


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--out", required=True)
    p.add_argument("--init", help="start from these weights (a checkpoint or an exported folder) with a fresh optimizer")
    p.add_argument("--resume", action="store_true", help="go on from --out with its optimizer")
    p.add_argument("--steps", type=int, default=0)
    p.add_argument("--minutes", type=float, default=8.0)
    p.add_argument("--rows", type=int, default=48)
    p.add_argument("--length", type=int, default=2048)
    p.add_argument("--late", action="store_true", help="the mixture of the long phase")
    p.add_argument("--search", type=float, default=0.0, help="share of search turns")
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--floor", type=float, default=0.05, help="final lr as a share of --lr")
    p.add_argument("--warmup", type=int, default=100)
    p.add_argument("--decay", type=float, default=1.0, help="share of the steps over which the lr falls (cosine)")
    p.add_argument("--stable", help="also save a checkpoint here when the decay begins, to go on from later")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--workers", type=int, default=14)
    p.add_argument("--device", default="cuda")
    p.add_argument("--elsewhere", type=float, default=0.03, help="loss weight of tokens that are no answer")
    return p.parse_args()


def make_optimizer(model, lr, decay=0.1):
    """AdamW; weight decay on matrices only."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}],
                             lr=lr, betas=(0.9, 0.95), fused=torch.cuda.is_available())


def learning_rate(step, steps, args):
    """Warm-up, a flat part, then a cosine down to the floor."""
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    start = steps * (1 - args.decay)
    if step < start:
        return args.lr
    x = min(1.0, (step - start) / max(1.0, steps - start))
    return args.lr * (args.floor + (1 - args.floor) * 0.5 * (1 + math.cos(math.pi * x)))


def answer_loss(logits, targets, weight, elsewhere):
    """Cross-entropy [B, T]: answers count 1, other tokens `elsewhere`; also the answers' share of right tokens."""
    loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
    w = weight.flatten().float()
    scale = w + elsewhere * (1 - w)
    right = ((logits.argmax(-1).flatten() == targets.flatten()) * w).sum() / w.sum()
    return (loss * scale).sum() / scale.sum(), right


def wait():
    """Waits for the GPU, where there is one, so that a clock means something."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def save(path, model, optimizer, step, steps):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict() if optimizer else None, "step": step,
                "steps": steps, "shape": model.shape.as_dict()}, path)


def load_model(path, device, attention=Attention):
    """(model, checkpoint) of a checkpoint, or of an exported folder, which has no more than the weights."""
    if os.path.isdir(path):
        return load_folder(path, device, attention), {}
    data = torch.load(path, map_location="cpu", weights_only=True)
    model = Model(Shape(**data["shape"]), attention)
    model.load_state_dict(data["model"])
    return model.to(device), data


def start(args, device):
    """(model, optimizer, first step, number of steps or 0)."""
    if args.resume and os.path.exists(args.out):
        model, data = load_model(args.out, device)
        optimizer = make_optimizer(model, args.lr)
        if data["optimizer"]:
            optimizer.load_state_dict(data["optimizer"])
        return model, optimizer, data["step"], data["steps"]
    model = load_model(args.init, device)[0] if args.init else Model(Shape()).initialise(args.seed).to(device)
    return model, make_optimizer(model, args.lr), 0, args.steps


def main():
    args = parse()
    begun = time.time()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = args.device
    loader = make_loader(args.rows, args.length, args.seed, args.workers, args.late, args.search)
    model, optimizer, step, steps = start(args, device)

    @torch.compile
    def forward(ids, targets, weight):
        with torch.autocast(args.device, torch.bfloat16):
            logits, _ = model(ids, attend_dense)
        return answer_loss(logits, targets, weight, args.elsewhere)

    measured_from, limit = None, begun + 60 * args.minutes
    first, losses, rights = step, [], []
    while (not steps or step < steps) and time.time() < limit:
        ids, weight = (x.to(device, non_blocking=True) for x in next(loader))
        ids, weight = ids.long(), weight & ANSWER
        loss, right = forward(ids[:, :-1], ids[:, 1:].contiguous(), weight[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate = learning_rate(step, steps or 10 ** 9, args)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if args.stable and steps and step == int(steps * (1 - args.decay)):
            save(args.stable, model, optimizer, step, 0)
        losses.append(loss.detach())
        rights.append(right.detach())
        if step == first + 20:
            wait()
            measured_from = time.time()
        if not steps and step == first + 120:
            wait()
            each = (time.time() - measured_from) / 100
            steps = step + int((limit - time.time() - 3) * 0.97 / each)
            print(f"{each * 1000:.1f} ms a step, {args.rows * args.length / each:,.0f} tokens/s: {steps} steps", flush=True)
        if step % 200 == 0:
            print(f"step {step} lr {rate:.2e} loss {torch.stack(losses).mean().item():.4f} "
                  f"right {100 * torch.stack(rights).mean().item():.3f} % {time.time() - begun:.0f} s", flush=True)
            losses, rights = [], []
    save(args.out, model, optimizer, step, steps)
    print(f"saved {args.out} at step {step} of {steps}, {time.time() - begun:.0f} s")


if __name__ == "__main__":
    main()
