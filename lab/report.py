#!/usr/bin/env python3
"""Frontiers, margins, tables and plots of the folders that `dmslab eval --out DIR` has written.

    python3 lab/report.py DIR...           frontiers and margins, as tables and as plots of dots
    python3 lab/report.py --csv DIR...     the rows as CSV, without times: a seed gives the same bytes
    python3 lab/report.py --docs DIR...    the tables of docs/evaluation.md, in Markdown
    python3 lab/report.py --svg DIR        pareto_reads.svg and pareto_peak.svg there; needs matplotlib

Of runs with the same task, length, width, policy and ratio the last one counts. A margin is over the first policy of a
task. `python3 -m doctest lab/report.py` checks the arithmetic.
"""

import argparse
import csv
import json
import math
import sys
from bisect import bisect_left
from itertools import pairwise
from pathlib import Path

COSTS = {"reads": "KV token reads per problem", "peak": "peak tokens per problem"}
COLUMNS = (
    "task policy length width cr cr_measured budget n accuracy pass_all error draw_error reads peak tokens prompt peak_shared"
).split()
# Digits behind the point in CSV.
DIGITS = dict.fromkeys("cr_measured accuracy pass_all error draw_error".split(), 4) | dict.fromkeys(
    "reads peak tokens prompt peak_shared".split(), 2
)
# Characters of a plot, and its dots in one: 2 x 4, in the order of Braille's bits.
WIDE, HIGH = 64, 14
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def load(folders):
    """The rows of all folders, and of folders of folders, in the order of the runs."""
    rows = {}
    for folder in map(Path, folders):
        files = sorted(folder.rglob("results.json"))
        if not files:
            sys.exit(f"{folder}: no results.json is in it; dmslab eval --out {folder} writes one")
        for file in files:
            for row in json.loads(file.read_text())["rows"]:
                rows[tuple(row[key] for key in ("task", "length", "width", "policy", "cr"))] = row
    return list(rows.values())


def methods(rows):
    """Rows by task, and then by policy, both in the order of the rows."""
    tasks = {}
    for row in rows:
        tasks.setdefault(row["task"], {}).setdefault(row["policy"], []).append(row)
    return tasks


def point(row, cost):
    return row[cost], 100 * row["accuracy"]


def label(row):
    return f"{row['length']}-{row['width']}-{row['cr']:g}"


def frontier(points):
    """Points that are more accurate than every point of the same or lower cost, by rising cost.

    >>> frontier([(4, 50), (1, 10), (2, 40), (3, 30), (4, 60), (5, 60), (1, 20)])
    [(1, 20), (2, 40), (4, 60)]
    >>> frontier([])
    []
    """
    best = []
    for cost, accuracy in sorted(points, key=lambda p: (p[0], -p[1])):
        if not best or accuracy > best[-1][1]:
            best.append((cost, accuracy))
    return best


def at(points, cost):
    """Accuracy of a frontier at a cost that it spans, interpolated linearly."""
    i = min(bisect_left([x for x, _ in points], cost), len(points) - 1)
    x1, y1 = points[i]
    if x1 <= cost or i == 0:
        return y1
    x0, y0 = points[i - 1]
    return y0 + (y1 - y0) * (cost - x0) / (x1 - x0)


def margin(a, b):
    """Mean difference in accuracy of frontier `a` over frontier `b` on the costs that both span; None where there are none.

    By hand: the common costs of these are 2 to 4, and the differences 40 - 10 = 30 at 2 and 60 - 30 = 30 at 4.
    >>> a, b = [(1, 20), (2, 40), (4, 60)], [(2, 10), (6, 50)]
    >>> margin(a, b), margin(b, a)
    (30.0, -30.0)

    From 1 to 2 the difference is 0 to 20, from 2 to 3 it is 20 to 0: a triangle of area 20 over a length of 2.
    >>> margin([(1, 20), (2, 45), (3, 50)], [(1, 20), (2, 25), (3, 50)])
    10.0
    >>> margin(a, [(4, 50), (9, 90)]), margin([(3, 7)], [(3, 5)])
    (10, 2)
    >>> margin(a, [(5, 50)]), margin(a, [])
    (None, None)
    """
    if not a or not b:
        return None
    low, high = max(a[0][0], b[0][0]), min(a[-1][0], b[-1][0])
    if low > high:
        return None

    def difference(x):
        return at(a, x) - at(b, x)

    if low == high:
        return difference(low)
    costs = sorted({low, high} | {x for x, _ in a + b if low <= x < high})
    # The difference is linear between two points: the trapezoid is exact.
    area = sum((x1 - x0) * (difference(x0) + difference(x1)) / 2 for x0, x1 in pairwise(costs))
    return area / (high - low)


def margins(rows):
    """(task, policy, first policy, {cost: margin}) of every policy but the first of its task.

    >>> row = lambda policy, reads, accuracy: dict(task="t", policy=policy, reads=reads, peak=1, accuracy=accuracy)
    >>> rows = [row("dense", 100, 0.2), row("dense", 300, 0.4), row("dms", 100, 0.3), row("dms", 200, 0.4)]
    >>> [(policy, first, round(over["reads"])) for _, policy, first, over in margins(rows)]
    [('dms', 'dense', 10)]
    """
    out = []
    for task, policies in methods(rows).items():
        of = {p: {cost: frontier([point(r, cost) for r in rs]) for cost in COSTS} for p, rs in policies.items()}
        first, *others = of
        out += [(task, p, first, {cost: margin(of[p][cost], of[first][cost]) for cost in COSTS}) for p in others]
    return out


def signed(value):
    return "NA" if value is None else f"{value:+.1f}"


def plot(policies, cost):
    """Step frontiers in dots, with a letter at each point; costs have a logarithmic axis, on which one below 1 is 1."""
    log = lambda x: math.log10(max(x, 1))
    of = {p: frontier([point(r, cost) for r in rows]) for p, rows in policies.items()}
    costs = [log(point(r, cost)[0]) for rows in policies.values() for r in rows]
    low, high = min(costs) - 0.05, max(costs) + 0.05
    cells, letters = {}, {}

    def dot(x, y):
        x = round((x - low) / (high - low) * (2 * WIDE - 1))
        y = round((100 - y) / 100 * (4 * HIGH - 1))
        return x, y

    def draw(x, y):
        where = (x // 2, y // 4)
        cells[where] = cells.get(where, 0) | DOTS[x % 2][y % 4]

    for letter, points in zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", of.values()):
        for i, (x, y) in enumerate(points):
            to_x, to_y = points[i + 1] if i + 1 < len(points) else (10**high, y)
            (x0, y0), (x1, y1) = dot(log(x), y), dot(log(to_x), to_y)
            for column in range(x0, x1 + 1):
                draw(column, y0)
            for row in range(min(y0, y1), max(y0, y1) + 1):
                draw(x1, row)
            letters[(x0 // 2, y0 // 4)] = letter
    for line in range(HIGH):
        side = {0: "100 %", HIGH // 2: " 50 %", HIGH - 1: "  0 %"}.get(line, "")
        shown = (letters.get((c, line)) or chr(0x2800 + cells.get((c, line), 0)) for c in range(WIDE))
        print(f"{side:5} │{''.join(shown).rstrip(chr(0x2800))}")
    print("      └" + "─" * WIDE)
    ticks = " " * 7
    for tick in (m * 10**power for power in range(16) for m in (1, 2, 5)):
        where = 7 + int(max(math.log10(tick) - low, 0) / (high - low) * (WIDE - 1))
        if low <= math.log10(tick) <= high and (not ticks.strip() or where >= len(ticks) + 2):
            size, unit = next(((s, u) for s, u in ((10**9, "G"), (10**6, "M"), (1000, "K")) if tick >= s), (1, ""))
            ticks = f"{ticks:{where}}{tick // size}{unit}"
    print(ticks)
    print("       " + "   ".join(f"{letter} {p}" for letter, p in zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", of)) + "\n")


def show(rows):
    for task, policies in methods(rows).items():
        for cost, title in COSTS.items():
            print(f"{task}: accuracy against {title}")
            plot(policies, cost)
        for policy, of in policies.items():
            best = frontier([point(r, "reads") for r in of])
            named = [(p, next(r for r in of if point(r, "reads") == p)) for p in best]
            print(f"  {policy}: " + ", ".join(f"{y:.1f} % at {x:.0f} ({label(r)})" for (x, y), r in named))
    for task, policy, first, over in margins(rows):
        print(f"{task}: {policy} over {first}: {signed(over['reads'])} points at equal reads, {signed(over['peak'])} at equal peak")


def as_csv(rows):
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(COLUMNS)
    for row in rows:
        cells = [("" if row[c] is None else f"{row[c]:.{DIGITS[c]}f}" if c in DIGITS else row[c]) for c in COLUMNS]
        out.writerow([f"{c:g}" if isinstance(c, float) else c for c in cells])


def markdown(head, lines):
    print("| " + " | ".join(head) + " |")
    print("| --- " * len(head) + "|")
    for line in lines:
        print("| " + " | ".join(line) + " |")


def docs(rows):
    found = {(r["task"], r["length"], r["width"], r["policy"], r["cr"]): r for r in rows}
    places = list(dict.fromkeys((r["task"], r["length"]) for r in rows))
    policies = list(dict.fromkeys(r["policy"] for r in rows if r["policy"] != "dense"))
    ratios = sorted({r["cr"] for r in rows if r["policy"] != "dense"})

    def cell(task, length, policy, cr):
        row = found.get((task, length, 1, policy, cr))
        accuracy = row and f"{100 * row['accuracy']:.0f}"
        return "-" if not row else accuracy if policy == "dense" else f"{accuracy} ({row['cr_measured']:.1f})"

    print("## Accuracy (ratio of reads), width 1\n")
    columns = [("dense", 1.0)] + [(p, cr) for p in policies for cr in ratios]
    head = ["task, L", "dense"] + [f"{p} {cr:g}x" for p, cr in columns[1:]]
    markdown(head, [[f"{t}, {l}"] + [cell(t, l, p, cr) for p, cr in columns] for t, l in places])
    print("\n## By task: policy and ratio")
    for task, length in places:
        print(f"\n{task}, {length}: dense {cell(task, length, 'dense', 1.0)}")
        lines = [[p] + [cell(task, length, p, cr) for cr in ratios] for p in policies]
        markdown(["policy"] + [f"{cr:g}x" for cr in ratios], [line for line in lines if set(line[1:]) != {"-"}])
    print("\n## All rows\n")
    seconds = lambda value: "-" if value is None else f"{value:.4f}"
    share = lambda r: f"{100 * r['accuracy']:.1f} ± {100 * r['error']:.1f}"
    markdown(
        ["task", "L-W-CR", "policy", "accuracy", "pass@all", "n", "reads", "peak", "pages x 16", "model s", "measured s"],
        [
            [r["task"], label(r), r["policy"], share(r), f"{100 * r['pass_all']:.0f}", str(r["n"]), f"{r['reads']:.0f}"]
            + [f"{r['peak']:.0f}", f"{r['peak_shared']:.0f}", seconds(r["model_seconds"]), seconds(r["seconds"])]
            for r in rows
        ],
    )
    over = {(task, policy): values for task, policy, _, values in margins(rows)}
    tasks = list(dict.fromkeys(task for task, _ in over))
    for cost in COSTS:
        print(f"\n## Margins at equal {cost}\n")
        line = lambda p: [p] + [signed(over.get((t, p), {}).get(cost)) for t in tasks]
        markdown(["policy"] + tasks, [line(p) for p in dict.fromkeys(p for _, p in over)])
    print("\n## Within the reads of dense: the best of each policy\n")
    for task, length in places:
        for width in sorted({w for t, l, w, *_ in found if (t, l) == (task, length)}):
            dense = found.get((task, length, width, "dense", 1.0))
            if not dense:
                continue
            out = [f"{task} {length}-{width}: dense {100 * dense['accuracy']:.0f} %, {dense['reads'] / 1000:.0f}K reads"]
            out[0] += f", peak {dense['peak']:.0f}, shared {dense['peak_shared']:.0f}"
            for policy in policies:
                within = [r for r in rows if (r["task"], r["policy"]) == (task, policy) and r["reads"] <= dense["reads"]]
                if within:
                    best = max(within, key=lambda r: (r["accuracy"], -r["reads"]))
                    reads = f"{best['length']}-{best['width']}, {best['reads'] / 1000:.0f}K"
                    out.append(f"{policy} {100 * best['accuracy']:.0f} % ({reads})")
            print("; ".join(out))


def svg(rows, folder):
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    tasks = methods(rows)
    for cost, title in COSTS.items():
        figure, panels = plt.subplots(len(tasks), squeeze=False, figsize=(8, 3.5 * len(tasks)), layout="constrained")
        for (task, policies), axes in zip(tasks.items(), panels[:, 0]):
            axes.set(title=f"{task}: accuracy against {title}", xscale="log", ylim=(0, 102), ylabel="%")
            axes.grid(alpha=0.3)
            for i, (policy, of) in enumerate(policies.items()):
                shown = lambda p: (max(p[0], 1), p[1])
                axes.scatter(*zip(*(shown(point(r, cost)) for r in of)), s=8, color=f"C{i}")
                best = frontier([point(r, cost) for r in of])
                axes.step(*zip(*map(shown, best)), where="post", color=f"C{i}", label=policy)
                for p in best:
                    row = next(r for r in of if point(r, cost) == p)
                    axes.annotate(label(row), shown(p), fontsize=6, color=f"C{i}")
            axes.legend()
        figure.savefig(folder / f"pareto_{cost}.svg")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true")
    form.add_argument("--docs", action="store_true")
    form.add_argument("--svg", action="store_true")
    parser.add_argument("folder", nargs="+")
    args = parser.parse_args()
    rows = load(args.folder)
    if args.svg:
        svg(rows, Path(args.folder[0]))
    else:
        (as_csv if args.csv else docs if args.docs else show)(rows)


if __name__ == "__main__":
    main()
