"""Writes assets/predictor_texts.jsonl.lzma: the texts that `dmschat adapter train` fits a predictor to, and those on which it measures.

    python3 tools/predictor_texts.py

A JSON object a line: kind, text, held_out. All are this project's own, its documentation and sources and the texts in
tools/predictor_texts/ that were written for this, but for `prose-held` (A. Conan Doyle, 1891: public domain). The files there are
called KIND-NAME.txt; those whose name ends in `-held` are measured.
"""
import json
import lzma
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# About 900 tokens of SmolLM2.
BYTES = {"documentation": 3500, "code": 3000, "prose": 4200, "dialogue": 4200, "languages": 2400}
# Where a text begins, as a share of its file.
DOCUMENTATION = {"README.md": 0, "docs/models.md": 0.1, "docs/memory.md": 0.3, "docs/cuda.md": 0.4, "docs/policies.md": 0.2,
                 "docs/evaluation.md": 0, "docs/extending.md": 0, "docs/performance.md": 0.3, "retrofit/README.md": 0.3}
CODE = {"src/policy/dms.rs": 0, "src/cache.rs": 0.2, "src/ui/markdown.rs": 0.3, "retrofit/smollm2/train.py": 0.2,
        "lab/report.py": 0, "kernels/attend.cuh": 0.4, "src/chat/conversation.rs": 0.1, "retrofit/data/conversation.py": 0.3,
        "assets/demo/config.json": 0, "lab/src/compare.rs": 0.2}
HELD_OUT = {"docs/session.md": ("documentation", 0), "src/tokenizer/decoder.rs": ("code", 0),
            "retrofit/smollm2/held_out_chats.txt": ("dialogue", 0.7)}


def cut(path, at, size):
    text = (ROOT / path).read_text()
    start = text.find("\n", int(at * len(text))) + 1 if at else 0
    end = text.rfind("\n", 0, start + size) if start + size < len(text) else len(text)
    return text[start:end].strip() + "\n"


def texts():
    for kind, files in (("documentation", DOCUMENTATION), ("code", CODE)):
        for path, at in files.items():
            yield kind, cut(path, at, BYTES[kind]), False
    for path, (kind, at) in HELD_OUT.items():
        yield kind, cut(path, at, 9000), True
    for path in sorted((ROOT / "tools/predictor_texts").glob("*.txt")):
        kind, text = path.stem.split("-")[0], path.read_text()
        if path.stem.endswith("-held"):
            yield kind, text, True
            continue
        # Long files are several texts.
        parts, size = [""], BYTES[kind]
        for line in text.splitlines(keepends=True):
            if len(parts[-1]) > size:
                parts.append("")
            parts[-1] += line
        yield from ((kind, part, False) for part in parts if len(part) > size / 2)


def main():
    rows = [{"kind": kind, "text": text, "held_out": held} for kind, text, held in texts()]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    out = ROOT / "assets/predictor_texts.jsonl.lzma"
    out.write_bytes(lzma.compress(lines, lzma.FORMAT_ALONE, preset=9))
    for kind in BYTES:
        fitted = [len(row["text"]) for row in rows if row["kind"] == kind and not row["held_out"]]
        print(f"{kind}: {len(fitted)} texts, {sum(fitted)} bytes, {sum(row['kind'] == kind and row['held_out'] for row in rows)} measured")
    print(f"{len(lines)} bytes, {out.stat().st_size} packed")


if __name__ == "__main__":
    main()
