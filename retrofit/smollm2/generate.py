"""Text of the base model's own: answers to templated requests and bare continuations, to train and judge an adapter on.

    python generate.py --model FOLDER --split train --count 4096 --out out/train.jsonl

One JSON line each: {"user", "answer"}; in bare text "user" is null and "answer" the whole text. Sampled batch by batch,
seeded by its place; an interrupted run goes on after the last whole batch, and none is begun after `--seconds`.
Topics of the split `test` never occur in `train`.
"""
import argparse
import json
import os
import random
import time

import torch

from model import END, SYSTEM, Base

REQUESTS = [
    "Write a short story about {}.", "Explain {} to a beginner.", "Give me a list of ten facts about {}.",
    "Write a poem about {}.", "Write an e-mail to a friend about {}.", "What are the pros and cons of {}?",
    "Describe {} in detail.", "How would you teach a child about {}?", "Write a dialogue between two people about {}.",
    "Give me step-by-step instructions about {}.", "What is the history of {}?", "Write a small Python program about {}.",
    "Summarize what matters most about {}.", "Ask me five questions about {} and answer them yourself.",
    "Write a news article about {}.", "What should I know before I start with {}?", "Write a diary entry that mentions {}.",
    "Compare {} with something similar.", "Give me a table of numbers about {}.", "Write a speech about {}.",
    "Tell me about {}, with names, dates and places.", "What mistakes do people make with {}?",
    "Write a letter to the editor about {}.", "Make a plan for a week with {} in it.",
]
OPENINGS = [   # bare text: no template, no role, begins with whatever the row is cut at
    "Once upon a time, {} ", "The first thing to say about {} is", "# {}\n\n", "An article about {}\n\n", "Q: What about {}?\nA:",
    "Notes on {}:\n-", "Chapter 1: {}\n\n", "def main():\n    \"\"\"A program about {}.\"\"\"\n", "Dear Sir or Madam,\n\nI am writing about {}.",
    "In the year 1987, {}", "Abstract. We study {}.", "{}: questions and answers\n\n1.",
]
TRAIN = ["a lighthouse", "baking bread", "the solar system", "learning the violin", "gardening", "old maps", "electric cars",
         "the water cycle", "a lost dog", "mountain climbing", "saving money", "photosynthesis", "a busy market", "chess",
         "steam engines", "sleep", "a rainy city", "coral reefs", "job interviews", "volcanoes", "public libraries", "robots",
         "a long train journey", "cheese", "the Roman Empire", "running a marathon", "bees", "a haunted house", "fractions",
         "the stock market", "recycling", "painting with watercolours", "a spaceship crew", "healthy breakfasts", "bridges",
         "the printing press", "a small bookshop", "whales", "moving to a new town", "prime numbers", "a broken clock", "jazz",
         "vaccines", "a farm in spring", "password safety", "the Vikings", "camping", "a chemistry lab", "dentists", "glaciers",
         "a school play", "credit cards", "satellites", "a wedding", "medieval castles", "yoga", "databases", "a night train",
         "sharks", "the Olympic Games", "a power cut", "tea", "probability", "a detective", "deserts", "a football match",
         "the French Revolution", "batteries", "a grandmother", "typewriters", "rivers", "public speaking", "a lost letter in Paris",
         "viruses", "carpentry", "an old piano", "rainbows", "hiking boots", "the nervous system", "a hospital", "spreadsheets"]
TEST = ["a desert caravan", "making soup", "the human heart", "learning to swim", "bicycles", "a winter festival", "wind power",
        "earthquakes", "a forgotten letter", "time management", "owls", "the Silk Road", "telescopes", "a village school",
        "composting", "board games", "sailing", "the immune system", "a night at the museum", "binary search", "a circus",
        "honey", "the Cold War", "tax returns", "penguins", "a coffee shop", "matrices", "knitting", "a stolen painting", "islands"]
BARE_SHARE = 0.2


def turn(role, text):
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def requests(split, count):
    """`count` pairs (user or None, prompt text) of a split, always in the same order."""
    rng, topics, made = random.Random(f"requests {split}"), TRAIN if split == "train" else TEST, []
    for _ in range(count):
        if rng.random() < BARE_SHARE:
            made.append((None, rng.choice(OPENINGS).format(rng.choice(topics))))
        else:
            user = rng.choice(REQUESTS).format(rng.choice(topics))
            made.append((user, turn("system", SYSTEM) + turn("user", user) + "<|im_start|>assistant\n"))
    return made


def choose(logits, generator, temperature, top_p):
    """Nucleus sampling among the 64 most probable, greedy at temperature 0; logits [B, vocab] -> ids [B]."""
    if temperature == 0:
        return logits.argmax(-1)
    top, ids = logits.float().topk(64)
    p = (top / temperature).softmax(-1)
    p = p.masked_fill(p.cumsum(-1) - p >= top_p, 0.0)
    return ids.gather(1, torch.multinomial(p, 1, generator=generator))[:, 0]


@torch.inference_mode()
def answer(base, prompts, most, seed, temperature=0.8, top_p=0.95):
    """Sampled continuations (ids, end token left out) of prompts (ids), all rows in step from position 0."""
    rows, longest = len(prompts), max(map(len, prompts))
    size = longest + most
    given = torch.full((rows, size), -1, device=base.device)
    for i, prompt in enumerate(prompts):
        given[i, : len(prompt)] = torch.tensor(prompt, device=base.device)
    keys, values = (torch.zeros(base.layers, rows, base.kv_heads, size, base.head_dim, dtype=base.dtype, device=base.device)
                    for _ in range(2))
    generator = torch.Generator(base.device).manual_seed(seed)
    said = torch.full((rows, size), END, device=base.device)
    said[:, 0], ended = given[:, 0], torch.zeros(rows, dtype=torch.bool, device=base.device)
    for at in range(size - 1):
        x = base.embed(said[:, at: at + 1])
        cos, sin = base.cos[at: at + 1], base.sin[at: at + 1]
        for layer, w in enumerate(base.layer):
            q, k, v = base.qkv(w, x, cos, sin)
            keys[layer, :, :, at], values[layer, :, :, at] = k[:, :, 0], v[:, :, 0]
            scores = q.view(rows, base.kv_heads, base.group, -1) @ keys[layer, :, :, : at + 1].transpose(-1, -2)
            p = (scores.float() * base.head_dim ** -0.5).softmax(-1).to(base.dtype)
            x = base.finish(w, x, (p @ values[layer, :, :, : at + 1]).flatten(1, 2)[:, :, None])
        token = choose(base.head(x[:, 0]), generator, temperature, top_p)
        fixed = given[:, at + 1]
        token = torch.where(fixed >= 0, fixed, torch.where(ended, END, token))
        said[:, at + 1] = token
        ended |= (fixed < 0) & (token == END)
        if at % 32 == 0 and bool(ended.all()):
            break
    out = [row[len(prompt): len(prompt) + most] for row, prompt in zip(said.tolist(), prompts)]
    return [row[: row.index(END)] if END in row else row for row in out]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True)
    p.add_argument("--split", choices=["train", "test"], required=True)
    p.add_argument("--count", type=int, default=4096)
    p.add_argument("--batch", type=int, default=1024)
    p.add_argument("--most", type=int, default=640)
    p.add_argument("--temperature", type=float, default=0.8, help="0: greedy")
    p.add_argument("--seconds", type=float, default=3600)
    p.add_argument("--out", required=True)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = p.parse_args()
    begun = time.time()
    os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
    done = sum(1 for _ in open(args.out, encoding="utf-8")) if os.path.exists(args.out) else 0
    base, wanted = Base(args.model, args.device), requests(args.split, args.count)
    for begin in range(done, args.count, args.batch):
        if begin and time.time() - begun > args.seconds:
            print(f"{args.split}: stopped at {begin} of {args.count} after {args.seconds:.0f} s")
            break
        part = wanted[begin: begin + args.batch]
        answers = answer(base, [base.encode(prompt) for _, prompt in part], args.most, begin, args.temperature)
        with open(args.out, "a", encoding="utf-8") as f:
            for (user, prompt), ids in zip(part, answers):
                text = base.tokenizer.decode(ids)
                f.write(json.dumps({"user": user, "answer": text if user else prompt + text}) + "\n")
        print(f"{args.split}: {begin + len(part)} of {args.count}, {sum(map(len, answers))} tokens, {time.time() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
