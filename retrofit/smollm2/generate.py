"""Answers of the base model to templated requests: the text that the adapter is trained and judged on.

    python generate.py --model FOLDER --split train --count 512 --out out/train.jsonl

One JSON line per answer: {"user", "answer"}. Seeded by its place in the list, batch by batch; an interrupted run goes on
after the last whole batch. Topics of the split `test` never occur in `train`.
"""
import argparse
import json
import os
import random

import torch

from model import END, SYSTEM, Base

REQUESTS = [
    "Write a short story about {}.", "Explain {} to a beginner.", "Give me a list of ten facts about {}.",
    "Write a poem about {}.", "Write an e-mail to a friend about {}.", "What are the pros and cons of {}?",
    "Describe {} in detail.", "How would you teach a child about {}?", "Write a dialogue between two people about {}.",
    "Give me step-by-step instructions about {}.", "What is the history of {}?", "Write a small Python program about {}.",
    "Summarize what matters most about {}.", "Ask me five questions about {} and answer them yourself.",
]
TRAIN = ["a lighthouse", "baking bread", "the solar system", "learning the violin", "gardening", "old maps", "electric cars",
         "the water cycle", "a lost dog", "mountain climbing", "saving money", "photosynthesis", "a busy market", "chess",
         "steam engines", "sleep", "a rainy city", "coral reefs", "job interviews", "volcanoes", "public libraries", "robots",
         "a long train journey", "cheese", "the Roman Empire", "running a marathon", "bees", "a haunted house", "fractions",
         "the stock market", "recycling", "painting with watercolours", "a spaceship crew", "healthy breakfasts", "bridges",
         "the printing press", "a small bookshop", "whales", "moving to a new town", "prime numbers"]
TEST = ["a desert caravan", "making soup", "the human heart", "learning to swim", "bicycles", "a winter festival", "wind power",
        "earthquakes", "a forgotten letter", "time management", "owls", "the Silk Road", "telescopes", "a village school",
        "composting", "board games", "sailing", "the immune system", "a night at the museum", "binary search"]


def turn(role, text):
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def requests(split, count):
    """`count` different requests of a split, always in the same order."""
    pairs = [(r, t) for r in REQUESTS for t in (TRAIN if split == "train" else TEST)]
    random.Random(f"requests {split}").shuffle(pairs)
    return [pairs[i % len(pairs)][0].format(pairs[i % len(pairs)][1]) for i in range(count)]


def choose(logits, generator, temperature, top_p):
    """Nucleus sampling among the 64 likeliest; logits [B, vocab] -> ids [B]."""
    top, ids = logits.float().topk(64)
    p = (top / temperature).softmax(-1)
    p = p.masked_fill(p.cumsum(-1) - p >= top_p, 0.0)
    return ids.gather(1, torch.multinomial(p.cpu(), 1, generator=generator).to(ids.device))[:, 0]


@torch.inference_mode()
def answer(base, prompts, most, seed, temperature=0.8, top_p=0.95):
    """Sampled continuations (ids, end token left out) of prompts (ids), all rows in step from position 0."""
    rows, longest = len(prompts), max(map(len, prompts))
    size = longest + most
    shape = (base.layers, rows, base.kv_heads, size, base.head_dim)
    keys, values = (torch.zeros(shape, dtype=base.dtype, device=base.device) for _ in range(2))
    generator = torch.Generator().manual_seed(seed)
    token = torch.tensor([p[0] for p in prompts], device=base.device)
    live, out, ended = list(range(rows)), [[] for _ in range(rows)], set()
    for at in range(size - 1):
        x = base.embed(token[:, None])
        cos, sin = base.cos[at: at + 1], base.sin[at: at + 1]
        for layer in range(base.layers):
            q, k, v = base.qkv(layer, x, cos, sin)
            keys[layer, :, :, at], values[layer, :, :, at] = k[:, :, 0], v[:, :, 0]
            scores = q.view(len(live), base.kv_heads, base.group, -1) @ keys[layer, :, :, : at + 1].transpose(-1, -2)
            p = (scores.float() * base.head_dim ** -0.5).softmax(-1).to(base.dtype)
            mixed = (p @ values[layer, :, :, : at + 1]).flatten(1, 2)[:, :, None]
            x = x + base.project(layer, mixed)
            x = x + base.mlp(layer, x)
        token = choose(base.head(x[:, 0]), generator, temperature, top_p)
        for i, row in enumerate(live):
            if at + 1 < len(prompts[row]):
                token[i] = prompts[row][at + 1]
            elif row not in ended and (token[i] == END or len(out[row]) >= most):
                ended.add(row)
            elif row not in ended:
                out[row].append(int(token[i]))
        keep = [i for i, row in enumerate(live) if row not in ended]
        if not keep:
            break
        if len(keep) <= 0.8 * len(live):
            keys, values = keys[:, keep], values[:, keep]
            token, live = token[keep], [live[i] for i in keep]
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True)
    p.add_argument("--split", choices=["train", "test"], required=True)
    p.add_argument("--count", type=int, default=2048)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--most", type=int, default=640)
    p.add_argument("--out", required=True)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = p.parse_args()
    os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
    done = sum(1 for _ in open(args.out, encoding="utf-8")) if os.path.exists(args.out) else 0
    base, wanted = Base(args.model, args.device), requests(args.split, args.count)
    for begin in range(done, args.count, args.batch):
        users = wanted[begin: begin + args.batch]
        prompts = [base.encode(turn("system", SYSTEM) + turn("user", u) + "<|im_start|>assistant\n") for u in users]
        answers = answer(base, prompts, args.most, begin)
        with open(args.out, "a", encoding="utf-8") as f:
            for user, ids in zip(users, answers):
                f.write(json.dumps({"user": user, "answer": base.tokenizer.decode(ids)}) + "\n")
        print(f"{args.split}: {begin + len(users)} of {args.count}, {sum(map(len, answers))} tokens", flush=True)


if __name__ == "__main__":
    main()
