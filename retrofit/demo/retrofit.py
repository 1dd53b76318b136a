"""Teach the dense model to evict: the DMS paper's loss and schedule, all weights trained.

    python -m demo.retrofit --init out/long.pt --out out/dms.pt --minutes 5

Teacher: a frozen copy, dense. Student: the same weights with every key beyond the window of 64 weakened by
log(1 - alpha), alpha = sigmoid((logit + logistic noise) / 0.1), decision at t+1 marking t. Loss:
5 * KL(teacher || student) + max(target - mean alpha, 0), the target going linearly from 0 to 1 - 1/ratio.
A share of the rows runs with eviction off, so that the switched-off model stays as good.
"""
import argparse
import copy
import time

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from data.conversation import ANSWER, SEARCH
from data.batches import make_loader
from demo.model import attend_dense
from demo.train import learning_rate, load_model, make_optimizer, save, wait


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--init", required=True)
    p.add_argument("--teacher", help="default: --init")
    p.add_argument("--out", required=True)
    p.add_argument("--minutes", type=float, default=5.0)
    p.add_argument("--steps", type=int, default=0)
    p.add_argument("--rows", type=int, default=48)
    p.add_argument("--length", type=int, default=2048)
    p.add_argument("--late", action="store_true")
    p.add_argument("--search", type=float, default=0.0, help="share of search turns")
    p.add_argument("--search-ratio", type=float, default=0.0, help="a ratio of their own for search turns")
    p.add_argument("--paths", type=float, default=0.0, help="share of the search turns that are paths, beside the paths among the rest")
    p.add_argument("--soft", type=float, default=0.0, help="share of the decisions that are softened, those of search turns alone")
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--floor", type=float, default=0.05)
    p.add_argument("--warmup", type=int, default=30)
    p.add_argument("--decay", type=float, default=0.5)
    p.add_argument("--from-ratio", type=float, default=1.0)
    p.add_argument("--ratio", type=float, default=12.0)
    p.add_argument("--ramp", type=float, default=0.8, help="share of the steps over which the target grows")
    p.add_argument("--temperature", type=float, default=0.1)
    p.add_argument("--kl", type=float, default=5.0)
    p.add_argument("--truth", type=float, default=0.0, help="weight of cross-entropy on the answers")
    p.add_argument("--dense-rows", type=float, default=0.15)
    p.add_argument("--elsewhere", type=float, default=0.03)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--workers", type=int, default=14)
    p.add_argument("--device", default="cuda")
    return p.parse_args()


SOFT_TEMPERATURE = 30.0   # about a quarter of the median eviction logit


def relaxed(logits, noise, temperature, soft=None):
    """Noisy decisions: (alpha [.., T] of the tokens that decide, bias [.., T] of the tokens they mark).

    With the probability `soft` [B, 1, T] a decision's bias is softened: logits far above 0, whose gradient vanishes at
    `temperature`, get one, so that a token that is evicted by mistake is found. alpha is not softened.
    """
    z = hard = (logits + noise) / temperature
    if soft is not None:
        lowered = logits - 5 * SOFT_TEMPERATURE * torch.rand_like(logits)
        z = torch.where(torch.rand_like(logits) < soft, lowered / SOFT_TEMPERATURE + noise, hard)
    bias = F.logsigmoid(-z)
    bias = torch.cat([bias[..., 1:], torch.zeros_like(bias[..., :1])], -1)
    return torch.sigmoid(hard), bias


def softening(share, kind):
    """The probability [B, 1, T] that a token's decision is softened: `share` in search turns, 0 elsewhere; None for never."""
    return share * kind[:, None] if share else None


def student_attend(shape, blocks, temperature, soft, on, shares, alphas):
    """An attend function with relaxed eviction; on [B] is 1 where eviction is on.

    Collects the mean decision over the tokens of each of `shares` (a list of [B, T], each of sum 1).
    """
    window, group = shape.window, shape.group

    def attend(q, k, v, logits):
        u = torch.rand_like(logits).clamp(1e-6, 1 - 1e-6)
        alpha, bias = relaxed(logits, torch.log(u) - torch.log1p(-u), temperature, soft)
        alphas.append(torch.stack([(alpha.mean(1) * share).sum() for share in shares]))
        bias = bias.clamp(min=-1e4) * on[:, None, None]

        def weaken(score, b, h, q_at, k_at):
            return torch.where(q_at - k_at > window, score + bias[b, h // group, k_at], score)

        return flex_attention(q.contiguous(), k.contiguous(), v.contiguous(), score_mod=weaken, block_mask=blocks,
                              enable_gqa=True)
    return attend


def distillation(student, teacher, weight, elsewhere):
    """KL(teacher || student) per token, answers weighted 1 and other tokens `elsewhere`."""
    log_s, log_t = F.log_softmax(student.float(), -1), F.log_softmax(teacher.float(), -1)
    kl = (log_t.exp() * (log_t - log_s)).sum(-1)
    scale = weight.float() + elsewhere * (1 - weight.float())
    return (kl * scale).sum() / scale.sum()


def wanted_decision(x, from_ratio, ratio):
    """The wanted mean decision at the share x of the ramp: 1 - 1/ratio, with the ratio growing linearly and staying after it."""
    return 1 - 1 / (from_ratio + (ratio - from_ratio) * min(1.0, x))


def target_at(step, steps, args, ratio):
    """The wanted mean decision of a step."""
    return wanted_decision(step / max(1.0, steps * args.ramp), args.from_ratio, ratio)


def token_shares(kind, on):
    """[talk, search]: weights [B, T] of sum 1 over the tokens of each kind in rows with eviction (0 where there are none)."""
    shares = [on[:, None] * (1 - kind), on[:, None] * kind]
    return [share / share.sum().clamp(min=1) for share in shares]


def main():
    args = parse()
    begun = time.time()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = args.device
    loader = make_loader(args.rows, args.length, 5000 + args.seed, args.workers, args.late, args.search, args.paths)
    model = load_model(args.init, device)[0]
    teacher = load_model(args.teacher or args.init, device)[0].requires_grad_(False)
    optimizer = make_optimizer(model, args.lr, decay=0.0)
    blocks = create_block_mask(lambda b, h, q, k: q >= k, None, None, args.length, args.length, device=device)

    @torch.compile(dynamic=False)
    def forward(ids, weight, on, kind):
        alphas, shares = [], token_shares(kind, on)
        with torch.autocast(args.device, torch.bfloat16):
            with torch.no_grad():
                wanted, _ = teacher(ids, attend_dense)
            got, _ = model(ids, student_attend(model.shape, blocks, args.temperature, softening(args.soft, kind), on, shares, alphas))
        return distillation(got[:, :-1], wanted[:, :-1], weight[:, 1:], args.elsewhere), got, torch.stack(alphas).mean(0)

    @torch.compile(dynamic=False)
    def truth(got, ids, weight):
        w = weight[:, 1:].flatten().float()
        right = ((got[:, :-1].argmax(-1) == ids[:, 1:]).flatten() * w).sum() / w.sum()
        if not args.truth:
            return got.new_zeros(()), right
        ce = F.cross_entropy(got[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        return (ce * w).sum() / w.sum(), right

    step, steps, limit, log = 0, args.steps, begun + 60 * args.minutes, []
    while (not steps or step < steps) and time.time() < limit:
        ids, weight = (x.to(device, non_blocking=True) for x in next(loader))
        ids, bits = ids[:, :-1].long(), weight[:, :-1].contiguous()
        weight, kind = bits & ANSWER, (bits & SEARCH).float() / SEARCH
        on = (torch.rand(ids.shape[0], device=device) >= args.dense_rows).float()
        on[0] = 1.0
        kl, got, means = forward(ids, weight, on, kind)
        ce, right = truth(got, ids, weight)
        targets = [target_at(step, steps or 10 ** 9, args, ratio) for ratio in (args.ratio, args.search_ratio or args.ratio)]
        missing = sum(F.relu(t - m) for t, m, there in zip(targets, means, (args.search < 1, args.search > 0)) if there)
        loss = args.kl * kl + args.truth * ce + missing
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps or 10 ** 9, args)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        log.append(torch.stack([kl.detach(), *means.detach(), right.detach()]))
        if step == 10:
            wait()
            measured = time.time()
        if not steps and step == 40:
            wait()
            each = (time.time() - measured) / 30
            steps = step + int((limit - time.time() - 3) * 0.96 / each)
            print(f"{each * 1000:.0f} ms a step: {steps} steps", flush=True)
        if step % 100 == 0:
            a, b, c, d = torch.stack(log).mean(0).tolist()
            print(f"step {step} KL {a:.5f} decision {b:.3f} (search {c:.3f}) targets {targets[0]:.3f} {targets[1]:.3f} right {100 * d:.3f} % "
                  f"{time.time() - begun:.0f} s", flush=True)
            log = []
    save(args.out, model, None, step, steps)
    print(f"saved {args.out} at step {step} of {steps}, {time.time() - begun:.0f} s")


if __name__ == "__main__":
    main()
