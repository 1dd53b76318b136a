#!/usr/bin/env python3
"""Draws the results of `dmslab eval --out DIR` as pictures: a panel for each task, a step frontier for each policy.

    python3 lab/plot.py DIR        writes pareto_reads.svg and pareto_peak.svg there; needs matplotlib
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

TITLES = {"reads": "KV token reads per problem", "peak": "peak tokens per problem"}


def draw(results, cost, path):
    tasks = list(dict.fromkeys(row["task"] for row in results["rows"]))
    figure, panels = plt.subplots(len(tasks), squeeze=False, figsize=(8, 3.5 * len(tasks)), layout="constrained")
    for task, axes in zip(tasks, panels[:, 0]):
        axes.set(title=f"{task}: accuracy against {TITLES[cost]}", xscale="log", ylim=(0, 102), ylabel="%")
        axes.grid(alpha=0.3)
        for i, line in enumerate(line for line in results["frontiers"] if line["task"] == task):
            rows = [row for row in results["rows"] if (row["task"], row["policy"]) == (task, line["policy"])]
            axes.scatter([max(row[cost], 1) for row in rows], [100 * row["accuracy"] for row in rows], s=8, color=f"C{i}")
            points = [(max(x, 1), y) for x, y in line[cost]]
            axes.step(*zip(*points), where="post", color=f"C{i}", label=line["policy"])
            for point, label in zip(points, line[f"{cost}_labels"]):
                axes.annotate(label, point, fontsize=6, color=f"C{i}")
        axes.legend()
    figure.savefig(path)


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) == 2 else sys.exit(__doc__)
    results = json.loads((folder / "results.json").read_text())
    for cost in TITLES:
        draw(results, cost, folder / f"pareto_{cost}.svg")


if __name__ == "__main__":
    main()
