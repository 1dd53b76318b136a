"""Average the bf16 weights of exported folders: between a version and the one trained on from it, both keep what they know.

    python -m demo.average --to out/demo out/second=0.75 ../assets/demo=0.25
"""
import argparse
import json
import os
import shutil
import struct

import numpy as np


def read(folder):
    """(header, its size in bytes, the file's bytes) of a folder's model.safetensors."""
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + size]), 8 + size, data


def widen(raw):
    """bf16 bytes as f32 values."""
    return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)


def narrow(values):
    """f32 values as bf16 bytes, rounded to the nearest, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--to", required=True)
    p.add_argument("parts", nargs="+", help="FOLDER=SHARE; the first one's other files are copied")
    args = p.parse_args()
    parts = [(folder, float(share)) for folder, share in (part.rsplit("=", 1) for part in args.parts)]
    if abs(sum(share for _, share in parts) - 1) > 1e-6:
        raise SystemExit("the shares must add up to 1")
    files = [read(folder) for folder, _ in parts]
    header, start, data = files[0]
    out = bytearray(data)
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        if any(other[name]["dtype"] != "BF16" or other[name]["shape"] != tensor["shape"] for other, _, _ in files):
            raise SystemExit(f"{name} is not bf16 of one shape in all folders")
        total = 0
        for (other, begin, raw), (_, share) in zip(files, parts):
            first, last = other[name]["data_offsets"]
            total = total + share * widen(raw[begin + first:begin + last])
        first, last = tensor["data_offsets"]
        out[start + first:start + last] = narrow(total)
    os.makedirs(args.to, exist_ok=True)
    for name in os.listdir(parts[0][0]):
        if name.endswith(".json"):
            shutil.copy(os.path.join(parts[0][0], name), args.to)
    with open(os.path.join(args.to, "model.safetensors"), "wb") as f:
        f.write(out)


if __name__ == "__main__":
    main()
