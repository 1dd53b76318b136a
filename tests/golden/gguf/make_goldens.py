#!/usr/bin/env python3
"""Makes types.gguf: a matrix of every element type that is read from GGUF files, by llama.cpp.

    python3 tests/golden/gguf/make_goldens.py       # python3 >= 3.10 with venv on Linux x86-64; 55 MB of downloads

Tensor TYPE [3, 512] was quantized by llama.cpp's ggml_quantize_chunk, TYPE.values [3, 512] F32 is what its
dequantize_row_* makes of it. Rows: Gaussian; with outliers; small, with a run of zeros. The file itself is written by
llama.cpp's gguf package. llama.cpp is inside PyPI's xllamacpp.
"""

import ctypes
import subprocess
import sys
import tempfile
import types
import zipfile
from pathlib import Path

OUT = Path(__file__).resolve().parent / "types.gguf"
WHEELS = ["xllamacpp==2026.10.11549"]
TOOLS = ["gguf==0.19.0", "numpy==2.4.6"]
ROWS, COLS = 3, 512
# Of dequantize_row_TYPE; those without are plain.
TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
         "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]


def fetch():
    """Runs this file again, where gguf, numpy and llama.cpp are."""
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        subprocess.run([sys.executable, "-m", "venv", work / "venv"], check=True)
        pip = [work / "venv" / "bin" / "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--no-deps", "--only-binary", ":all:", *TOOLS], check=True)
        subprocess.run([*pip, "download", "--no-deps", "--dest", work, *WHEELS], check=True)
        (wheel,) = work.glob("*.whl")
        with zipfile.ZipFile(wheel) as z:
            (library,) = [name for name in z.namelist() if name.endswith(".so")]
            library = z.extract(library, work)
        subprocess.run([work / "venv" / "bin" / "python", __file__, library], check=True)


def make(library):
    sys.modules["yaml"] = types.ModuleType("yaml")  # gguf imports it for model cards
    import gguf
    import numpy as np

    llama = ctypes.CDLL(library)
    llama.ggml_quantize_chunk.restype = ctypes.c_size_t
    rng = np.random.default_rng(7)
    x = rng.standard_normal((ROWS, COLS)).astype(np.float32) * np.float32(0.05)
    x[1] *= 1 + 9 * (rng.random(COLS) < 0.02)
    x[2] *= 0.01
    x[2, 64:128] = 0
    floats = ctypes.POINTER(ctypes.c_float)
    pointer = lambda a, kind: a.ctypes.data_as(kind)

    writer = gguf.GGUFWriter(OUT, "none")
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        raw = np.zeros((ROWS, COLS // block * size), np.uint8)
        values = np.zeros((ROWS, COLS), np.float32)
        if name in ("F32", "F16", "BF16"):
            raw = gguf.quants.quantize(x, kind).view(np.uint8)
            values = gguf.quants.dequantize(raw, kind) if name == "BF16" else raw.view(f"<f{size}").astype(np.float32)
        else:
            llama.ggml_quantize_chunk(int(kind), pointer(x, floats), pointer(raw, ctypes.c_void_p), ctypes.c_int64(0),
                                      ctypes.c_int64(ROWS), ctypes.c_int64(COLS), floats())
            dequantize = getattr(llama, "dequantize_row_" + name.lower().replace("_k", "_K"))
            dequantize(pointer(raw, ctypes.c_void_p), pointer(values, floats), ctypes.c_int64(ROWS * COLS))
        writer.add_tensor(name, raw, raw_dtype=kind)
        writer.add_tensor(f"{name}.values", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{OUT}: {len(TYPES)} types")


if __name__ == "__main__":
    make(sys.argv[1]) if len(sys.argv) > 1 else fetch()
