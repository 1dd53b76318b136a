#!/usr/bin/env python3
"""Makes csr.json: dictionary and codes of CSR ("CSR: Achieving 1 Bit Key-Value Cache via Sparse Representation") in numpy, f64.

    python3 tests/golden/csr/make_golden.py         # python3 with numpy; nothing is downloaded

k-means from rows at equal distances; epochs of matching pursuit with signed coefficients (rounded to f16, as they are stored), each
followed by a Jacobi step of every atom with the term beta |I - D D^T|^2 / N^2, beta = min(0.1 error / term, 1), and unit norms;
layers that share atoms by the Jensen-Shannon divergence of 2-D histograms. Seeds are tried until no choice is near a tie.
"""

import json
from pathlib import Path

import numpy as np

OUT = Path(__file__).resolve().parent / "csr.json"
DIM, ATOMS, TERMS, ROWS = 8, 12, 3, 160
ITERATIONS, EPOCHS, BINS = 6, 3, 32
LAYERS, LAYER_ROWS = 12, 60
MARGIN = 1e-5


class Tie(Exception):
    pass


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def short(x):
    """Values that are short in decimal."""
    return [float(f"{v:.3f}") for v in np.ravel(x)]


def f32(x):
    return np.asarray(x, np.float32).astype(np.float64)


def kmeans(x):
    c = x[[i * len(x) // ATOMS for i in range(ATOMS)]].copy()
    for _ in range(ITERATIONS):
        d = (c * c).sum(1)[None] - 2 * x @ c.T
        nearest = np.sort(d, 1)
        if (nearest[:, 1] - nearest[:, 0]).min() < MARGIN:
            raise Tie
        of = d.argmin(1)
        for n in range(ATOMS):
            if (of == n).any():
                c[n] = f32(x[of == n].mean(0))
    return f32(unit(c))


def pursue(x, atoms, terms=TERMS):
    """Indices and coefficients of a row, and its residual."""
    r, codes = x.copy(), []
    for _ in range(terms):
        p = atoms @ r
        order = np.argsort(-np.abs(p), kind="stable")
        if abs(p[order[0]]) - abs(p[order[1]]) < MARGIN:
            raise Tie
        n = int(order[0])
        c = float(np.float16(p[n]))
        codes.append((n, c))
        r = r - c * atoms[n]
    return codes, r


def learn(x, atoms):
    for _ in range(EPOCHS):
        share, used, error = np.zeros_like(atoms), set(), 0.0
        for row in x:
            codes, r = pursue(row, atoms)
            error += (r * r).sum()
            for n, c in codes:
                used.add(n)
                share[n] += c * (r + c * atoms[n])
        gram = atoms @ atoms.T - np.eye(ATOMS)
        term = (gram * gram).sum() / ATOMS**2
        beta = min(0.1 * error / len(x) / term, 1)
        # Half of the gradient of beta |I - D D^T|^2 / N^2.
        new = unit(share / len(x) - 2 * beta / ATOMS**2 * gram @ atoms)
        atoms = f32(np.array([new[n] if n in used else atoms[n] for n in range(ATOMS)]))
    return atoms


def histograms(layers):
    everything = np.concatenate(layers)
    mean = everything.mean(0)
    _, vectors = np.linalg.eigh((everything - mean).T @ (everything - mean) / len(everything))
    axes = vectors[:, [-1, -2]]
    points = [(rows - mean) @ axes for rows in layers]
    low, high = np.concatenate(points).min(0), np.concatenate(points).max(0)
    out = []
    for p in points:
        at = (p - low) / (high - low) * BINS
        inner = at[(at > 1e-9) & (at < BINS - 1e-9)]
        if np.abs(inner - np.round(inner)).min() < 1e-5:
            raise Tie
        h = np.zeros((BINS, BINS))
        for x, y in np.minimum(np.floor(at + 1e-12).astype(int), BINS - 1):
            h[x, y] += 1 / len(p)
        out.append(h.ravel())
    return out


def divergence(a, b):
    m = (a + b) / 2
    part = lambda p: (p[p > 0] * np.log(p[p > 0] / m[p > 0])).sum()
    return (part(a) + part(b)) / 2


def groups(h):
    out, first, total = [0], 0, 0.0
    for layer in range(1, len(h)):
        pairs = [divergence(h[other], h[layer]) for other in range(first, layer)]
        if min(abs(p - 0.2) for p in pairs) < 1e-3 or abs(total + sum(pairs) - 1) < 1e-3:
            raise Tie
        if max(pairs) <= 0.2 and total + sum(pairs) <= 1:
            total += sum(pairs)
            out.append(out[-1])
        else:
            first, total = layer, 0.0
            out.append(out[-1] + 1)
    return out


def make(seed):
    rng = np.random.default_rng(seed)
    basis = rng.standard_normal((5, DIM))
    rows = rng.standard_normal((ROWS, 5)) ** 3 @ basis * 0.4 + 0.05 * rng.standard_normal((ROWS, DIM))
    rows = f32(short(rows)).reshape(ROWS, DIM)
    centroids = kmeans(rows)
    learned = learn(rows, centroids)
    codes = [pursue(row, learned)[0] for row in rows]
    # A few clusters of points: layers nearby have nearly the same.
    axes = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0]
    layers = []
    for layer in range(LAYERS):
        centers = rng.standard_normal((1, 2)) if layer in (3, 4) else np.zeros((1, 2))
        points = np.concatenate([np.array([[3.0 * (i % 4), 2.0 * (i % 3)]]) for i in range(LAYER_ROWS - 6)])
        points = np.concatenate([points, rng.standard_normal((6, 2)) * 4]) + 3 * centers
        flat = np.zeros((LAYER_ROWS, DIM))
        flat[:, :2] = points + 0.01 * rng.standard_normal(points.shape)
        layers.append(f32(short(flat @ axes.T + 0.003 * rng.standard_normal((LAYER_ROWS, DIM)))).reshape(LAYER_ROWS, DIM))
    h = histograms(layers)
    of = groups(h)
    if not 3 <= max(of) + 1 < LAYERS - 1:
        raise Tie
    return {
        "seed": seed, "dim": DIM, "atoms": ATOMS, "terms": TERMS, "iterations": ITERATIONS, "epochs": EPOCHS,
        "rows": short(rows), "centroids": centroids.ravel().round(7).tolist(), "learned": learned.ravel().round(7).tolist(),
        "indices": [[n for n, _ in row] for row in codes], "coefficients": [[c for _, c in row] for row in codes],
        "layers": [short(rows) for rows in layers], "groups": of,
        "divergences": [round(divergence(a, b), 9) for a, b in zip(h, h[1:])],
    }


def main():
    for seed in range(100_000):
        try:
            golden = make(seed)
        except Tie:
            continue
        OUT.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
        print(f"{OUT}: seed {seed}, groups {golden['groups']}")
        return


if __name__ == "__main__":
    main()
