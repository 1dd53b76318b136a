"""Teach the dense model to merge tokens (DMC), all weights trained: the comparison to `demo.retrofit`.

    python -m dmc.train --init ../assets/demo --ratio 2 4 --out out/dmc2.pt out/dmc4.pt --minutes 8

Teacher: the model of --init, dense. Loss: 5 * KL(teacher || student) + max(target - mean decision, 0), the target following
the compression ratio. One stage for each ratio: the ratio grows linearly from that of the stage before (1 at first) over --ramp of
the stage, then stays; over --decay of the stage the learning rate falls. The next stage goes on from the weights before that
fall. The weight channel leaves attention over --fade steps. Without --steps a stage lasts its share of --minutes, compiling aside.
"""
import argparse
import copy
import math
import time

import torch
import torch.nn.functional as F

from data.conversation import ANSWER
from data.batches import make_loader
from dmc.attention import PoolingAttention, Relaxed, clear_decisions
from demo.model import attend_dense
from demo.retrofit import distillation, wanted_decision
from demo.train import load_model, make_optimizer, save


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--init", required=True)
    p.add_argument("--ratio", type=float, nargs="+", default=[2.0, 4.0])
    p.add_argument("--out", nargs="+", required=True, help="a checkpoint for each ratio")
    p.add_argument("--minutes", type=float, default=8.0)
    p.add_argument("--steps", type=int, nargs="*", help="steps of each stage, in place of --minutes")
    p.add_argument("--share", type=float, nargs="*", help="share of the time of each stage (default: equal)")
    p.add_argument("--rows", type=int, default=24)
    p.add_argument("--length", type=int, default=4096)
    p.add_argument("--late", action="store_true")
    p.add_argument("--search", type=float, default=0.0, help="share of search turns")
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--floor", type=float, default=0.1)
    p.add_argument("--warmup", type=int, default=30)
    p.add_argument("--ramp", type=float, default=0.7)
    p.add_argument("--decay", type=float, default=0.3)
    p.add_argument("--fade", type=int, default=250)
    p.add_argument("--temperature", type=float, default=0.1)
    p.add_argument("--kl", type=float, default=5.0)
    p.add_argument("--penalty", type=float, default=1.0, help="weight of the missing share of merged tokens")
    p.add_argument("--elsewhere", type=float, default=0.03)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--workers", type=int, default=14)
    p.add_argument("--plain", action="store_true", help="neither flex_attention nor torch.compile")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = p.parse_args()
    args.share = args.share or [1 / len(args.ratio)] * len(args.ratio)
    if any(x and len(x) != len(args.ratio) for x in (args.out, args.steps, args.share)):
        p.error("--out, --steps and --share need one value for each ratio")
    return args


class Training:
    """Student, teacher, optimizer and data; `total` steps were made."""

    def __init__(self, args):
        self.args, self.total, self.log = args, 0, []
        self.loader = make_loader(args.rows, args.length, 7000 + args.seed, args.workers, args.late, args.search)
        self.model = load_model(args.init, args.device, PoolingAttention)[0]
        self.teacher = load_model(args.init, args.device)[0].requires_grad_(False)
        clear_decisions(self.model)
        self.relaxed = Relaxed(self.model.shape, args.length, args.temperature, args.device, not args.plain)
        self.optimizer = make_optimizer(self.model, args.lr, decay=0.0)
        self.loss = self.losses
        if not args.plain:      # one layer at a time: all layers share what is compiled
            for layer in [*self.model.layers, *self.teacher.layers]:
                layer.compile(dynamic=False)
            self.loss = torch.compile(self.losses, dynamic=False)

    def losses(self, got, wanted, ids, answers):
        """(KL, share of right answer tokens)."""
        kl = distillation(got[:, :-1], wanted[:, :-1], answers[:, 1:], self.args.elsewhere)
        w = answers[:, 1:].float()
        return kl, ((got[:, :-1].argmax(-1) == ids[:, 1:]) * w).sum() / w.sum()

    def step(self, target, rate):
        """One step; waits for the step before, so that the clock of a stage means something."""
        args = self.args
        ids, bits = (x.to(args.device, non_blocking=True)[:, :-1].contiguous() for x in next(self.loader))
        ids = ids.long()
        self.relaxed.fade = torch.tensor(max(0.0, 1 - self.total / args.fade), device=args.device)
        with torch.autocast(args.device, torch.bfloat16):
            with torch.no_grad():
                wanted, _ = self.teacher(ids, attend_dense)
            got, joins = self.model(ids, self.relaxed)
        kl, right = self.loss(got, wanted, ids, bits & ANSWER)
        mean = joins.mean()
        (args.kl * kl + args.penalty * F.relu(target - mean)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * min(1.0, (self.total + 1) / args.warmup)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.log:
            self.log[-1] = self.log[-1].cpu()
        self.log.append(torch.stack([kl.detach(), mean.detach(), right]))
        self.total += 1

    def means(self):
        """Mean KL, decision and share of right tokens since the last call."""
        values = torch.stack([x.cpu() for x in self.log]).mean(0).tolist()
        self.log = []
        return values

    def state(self):
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def restore(self, state):
        self.model.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])


def stage(training, from_ratio, ratio, steps, seconds):
    """Trains one stage; returns the state before the learning rate fell."""
    args, begun, n, before = training.args, time.time(), 0, None
    while True:
        x = n / steps if steps else (time.time() - begun) / seconds
        if x >= 1:
            break
        fall = max(0.0, (x - (1 - args.decay)) / args.decay)
        if fall and not before:
            before = training.state()
        target = wanted_decision(x / args.ramp, from_ratio, ratio)
        training.step(target, args.lr * (args.floor + (1 - args.floor) * 0.5 * (1 + math.cos(math.pi * fall))))
        n += 1
        if n % 50 == 0:
            kl, mean, right = training.means()
            print(f"{ratio:g}x: step {n} KL {kl:.5f} decision {mean:.3f} target {target:.3f} right {100 * right:.3f} % "
                  f"{time.time() - begun:.0f} s", flush=True)
    print(f"{ratio:g}x: {n} steps, {time.time() - begun:.0f} s", flush=True)
    return before


def main():
    args = parse()
    begun = time.time()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    training = Training(args)
    if not args.steps:
        training.step(0.0, 0.0)
        training.means()
        print(f"compiled, {time.time() - begun:.0f} s", flush=True)
    left, ratio_before = begun + 60 * args.minutes - time.time(), 1.0
    for i, (ratio, out) in enumerate(zip(args.ratio, args.out)):
        before = stage(training, ratio_before, ratio, args.steps[i] if args.steps else 0, left * args.share[i] / sum(args.share))
        save(out, training.model, None, training.total, training.total)
        if before:
            training.restore(before)
        ratio_before = ratio


if __name__ == "__main__":
    main()
