"""Teach the dense model to merge tokens (DMC), all weights trained: the comparison to `retrofit.py`.

    python dmc_train.py --init ../assets/demo --out out/dmc2.pt --stable out/trunk.pt --ratio 2 --minutes 4
    python dmc_train.py --init out/trunk.pt --fade 0 --from-ratio 2 --out out/dmc4.pt --ratio 4 --minutes 4

Teacher: the model of --teacher, dense. Loss: 5 * KL(teacher || student) + max(target - mean decision, 0), the target
following a ratio that grows linearly over --ramp of the steps. The last --decay of the steps lower the learning rate at a fixed
ratio; --stable saves the weights before them, to go on from. The weight channel leaves attention over --fade steps.
"""
import argparse
import time

import torch
import torch.nn.functional as F

from conversation import ANSWER
from data import make_loader
from dmc import PoolingAttention, Relaxed, clear_decisions
from model import attend_dense
from retrofit import distillation, target_at
from train import learning_rate, load_model, make_optimizer, save, wait


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--init", required=True)
    p.add_argument("--teacher", default="../assets/demo")
    p.add_argument("--out", required=True)
    p.add_argument("--stable", help="also save a checkpoint here when the decay begins")
    p.add_argument("--minutes", type=float, default=4.0)
    p.add_argument("--steps", type=int, default=0)
    p.add_argument("--rows", type=int, default=48)
    p.add_argument("--length", type=int, default=2048)
    p.add_argument("--late", action="store_true")
    p.add_argument("--search", type=float, default=0.0, help="share of search turns")
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--floor", type=float, default=0.1)
    p.add_argument("--warmup", type=int, default=30)
    p.add_argument("--decay", type=float, default=0.2)
    p.add_argument("--fade", type=int, default=250, help="0: go on from weights of this program")
    p.add_argument("--from-ratio", type=float, default=1.0)
    p.add_argument("--ratio", type=float, default=4.0)
    p.add_argument("--ramp", type=float, default=0.8)
    p.add_argument("--temperature", type=float, default=0.1)
    p.add_argument("--kl", type=float, default=5.0)
    p.add_argument("--penalty", type=float, default=1.0, help="weight of the missing share of merged tokens")
    p.add_argument("--elsewhere", type=float, default=0.03)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--workers", type=int, default=14)
    p.add_argument("--plain", action="store_true", help="neither flex_attention nor torch.compile")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return p.parse_args()


def start(args):
    """(student, teacher)."""
    model = load_model(args.init, args.device, PoolingAttention)[0]
    if args.fade:
        clear_decisions(model)
    return model, load_model(args.teacher, args.device)[0].requires_grad_(False)


def make_forward(model, teacher, relaxed, args):
    """forward(ids, weight, fade) -> (KL, mean decision, share of right answer tokens)."""
    def forward(ids, weight, fade):
        relaxed.fade = fade
        with torch.autocast(args.device, torch.bfloat16):
            with torch.no_grad():
                wanted, _ = teacher(ids, attend_dense)
            got, joins = model(ids, relaxed)
        kl = distillation(got[:, :-1], wanted[:, :-1], weight[:, 1:], args.elsewhere)
        w = weight[:, 1:].float()
        right = ((got[:, :-1].argmax(-1) == ids[:, 1:]) * w).sum() / w.sum()
        return kl, joins.mean(), right
    return forward if args.plain else torch.compile(forward, dynamic=False)


def main():
    args = parse()
    begun = time.time()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    loader = make_loader(args.rows, args.length, 7000 + args.seed, args.workers, args.late, args.search)
    model, teacher = start(args)
    optimizer = make_optimizer(model, args.lr, decay=0.0)
    forward = make_forward(model, teacher, Relaxed(model.shape, args.length, args.temperature, args.device, not args.plain), args)

    step, steps, limit, log = 0, args.steps, begun + 60 * args.minutes, []
    while (not steps or step < steps) and time.time() < limit:
        ids, bits = (x.to(args.device, non_blocking=True)[:, :-1].contiguous() for x in next(loader))
        fade = torch.tensor(max(0.0, 1 - step / args.fade) if args.fade else 0.0, device=args.device)
        kl, mean, right = forward(ids.long(), bits & ANSWER, fade)
        target = target_at(step, steps or 10 ** 9, args, args.ratio)
        loss = args.kl * kl + args.penalty * F.relu(target - mean)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps or 10 ** 9, args)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        log.append(torch.stack([kl.detach(), mean.detach(), right]))
        if args.stable and steps and step == int(steps * (1 - args.decay)):
            save(args.stable, model, None, step, steps)
        if step == 10:
            wait()
            measured = time.time()
            print(f"compiled, {measured - begun:.0f} s", flush=True)
        if not steps and step == 40:
            wait()
            each = (time.time() - measured) / 30
            steps = step + int((limit - time.time() - 3) * 0.96 / each)
            print(f"{each * 1000:.0f} ms a step: {steps} steps", flush=True)
        if step % 50 == 0 or step == steps:
            a, b, c = torch.stack(log).mean(0).tolist()
            print(f"step {step} KL {a:.5f} decision {b:.3f} target {target:.3f} right {100 * c:.3f} % {time.time() - begun:.0f} s", flush=True)
            log = []
    save(args.out, model, None, step, steps)
    print(f"saved {args.out} at step {step} of {steps}, {time.time() - begun:.0f} s")


if __name__ == "__main__":
    main()
