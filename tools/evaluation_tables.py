"""evaluation_tables.py DIR...: the tables of docs/evaluation.md from the folders of several runs of `dmslab eval`.

Of runs with the same task, length, width, policy and ratio the last one counts.
"""
import glob
import json
import sys

rows, margins = {}, []
order = []
for d in sys.argv[1:]:
    for f in sorted(glob.glob(d + "/**/results.json", recursive=True)) or [d + "/results.json"]:
        r = json.load(open(f))
        for x in r["rows"]:
            k = (x["task"], x["length"], x["width"], x["policy"], x["cr"])
            if k not in rows: order.append(k)
            rows[k] = x
            margins += r["margins"]
POL = ["dense", "dms", "window", "tova", "h2o", "quest", "dms+quest", "pool", "dmc"]
tasks = []
for k in order:
    if (k[0], k[1]) not in tasks: tasks.append((k[0], k[1]))

pols = [p for p in POL if any(k[3] == p for k in order)]


def cell(t, l, w, p, cr):
    x = rows.get((t, l, w, p, cr))
    if not x: return "-"
    a = f'{100*x["accuracy"]:.0f}'
    if p == "dense": return a
    return f'{a} ({x["cr_measured"]:.1f})'


crs = sorted({k[4] for k in order if k[3] != "dense"})
print("## accuracy (ratio of reads), width 1; n, largest error")
head = ["task, L", "dense"] + [f"{p} {c:g}x" for p in pols if p != "dense" for c in crs]
print("| " + " | ".join(head) + " |"); print("| " + " | ".join(["---"] * len(head)) + " |")
for t, l in tasks:
    c = [cell(t, l, 1, "dense", 1.0)] + [cell(t, l, 1, p, c) for p in pols if p != "dense" for c in crs]
    print(f"| {t}, {l} | " + " | ".join(c) + " |")
print("\n## by task: policy x ratio")
for t, l in tasks:
    print(f"\n{t}, {l}: dense {cell(t,l,1,'dense',1.0)}")
    print("| policy | " + " | ".join(f"{c:g}x" for c in crs) + " |"); print("| --- " * (len(crs) + 1) + "|")
    for p in pols[1:]:
        c = [cell(t, l, 1, p, c) for c in crs]
        if any(x != "-" for x in c): print(f"| {p} | " + " | ".join(c) + " |")
print("\n## all rows")
print("| task | L-W-CR | policy | accuracy | pass@all | n | reads | peak | pages x 16 | model s | measured s |")
for k in order:
    x = rows[k]
    f = lambda v: "-" if v is None else f"{v:.4f}"
    print(f'| {x["task"]} | {x["length"]}-{x["width"]}-{x["cr"]:g} | {x["policy"]} | {100*x["accuracy"]:.1f} ± {100*x["error"]:.1f} | {100*x["pass_all"]:.0f} | {x["n"]} | {x["reads"]:.0f} | {x["peak"]:.0f} | {x["peak_shared"]:.0f} | {f(x["model_seconds"])} | {f(x["seconds"])} |')
print("\n## margins over", sorted({m["over"] for m in margins}))
for cost in ("reads", "peak"):
    ts = list(dict.fromkeys(m["task"] for m in margins))
    print("| at equal " + cost + " | " + " | ".join(ts) + " |")
    for p in dict.fromkeys(m["policy"] for m in margins):
        d = {m["task"]: m[cost] for m in margins if m["policy"] == p}
        print(f"| {p} | " + " | ".join("NA" if d.get(t) is None else f"{d[t]:+.1f}" for t in ts) + " |")
print("\n## within the reads of dense: best of each policy")
for t, l in tasks:
    for w in sorted({k[2] for k in order if k[:2] == (t, l)}):
        de = rows.get((t, l, w, "dense", 1.0))
        if not de or len({k[2] for k in order}) == 1: continue
        out = []
        for p in pols[1:]:
            c = [x for x in rows.values() if x["task"] == t and x["policy"] == p and x["reads"] <= de["reads"]]
            if c:
                b = max(c, key=lambda x: (x["accuracy"], -x["reads"]))
                out.append(f'{p} {100*b["accuracy"]:.0f} % ({b["length"]}-{b["width"]}, {b["reads"]/1000:.0f}K)')
        print(f'{t} {l}-{w}: dense {100*de["accuracy"]:.0f} %, {de["reads"]/1000:.0f}K reads, peak {de["peak"]:.0f}, shared {de["peak_shared"]:.0f}; ' + "; ".join(out))
