"""Batches made on the fly by worker processes, and a preview.

    python -m data.batches --preview 3          print three conversations
    python -m data.batches --speed              tokens per second of one process
"""
import argparse
import random
import time

import numpy as np

from data.conversation import ANSWER, Encoder, make_row


def batch(rng, encoder, rows, length, late=False, search=0.0, paths=0.0):
    """(ids uint16 [rows, length+1], bits uint8 [rows, length+1])."""
    made = [make_row(rng, encoder, length, late, search, paths) for _ in range(rows)]
    return np.stack([m[0] for m in made]), np.stack([m[1] for m in made])


def make_loader(rows, length, seed, workers, late=False, search=0.0, paths=0.0, prefetch=6):
    """An endless iterator of pinned torch batches ([rows, length+1] int16 ids, uint8 bits ANSWER and SEARCH)."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Stream(IterableDataset):
        def __iter__(self):
            torch.set_num_threads(1)
            info = get_worker_info()
            rng = random.Random(seed * 1000 + (info.id if info else 0))
            encoder = Encoder()
            while True:
                ids, bits = batch(rng, encoder, rows, length, late, search, paths)
                yield torch.from_numpy(ids.astype(np.int16)), torch.from_numpy(bits)

    return iter(DataLoader(Stream(), batch_size=None, num_workers=workers, prefetch_factor=prefetch if workers else None,
                           pin_memory=torch.cuda.is_available()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--preview", type=int, default=0)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--search", type=float, default=0.0, help="share of search turns")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    encoder, rng = Encoder(), random.Random(args.seed)
    for _ in range(args.preview):
        ids, bits = make_row(rng, encoder, args.length, search=args.search)
        print(encoder.tokenizer.decode(ids.tolist(), skip_special_tokens=False))
        print(f"--- {(bits & ANSWER).mean():.2f} of the tokens are answers\n")
    if args.speed:
        start, count = time.time(), 0
        while time.time() - start < 5:
            count += batch(rng, encoder, 8, args.length, search=args.search)[0].size
        print(f"{count / (time.time() - start):,.0f} tokens a second")


if __name__ == "__main__":
    main()
