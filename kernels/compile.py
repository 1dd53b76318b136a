#!/usr/bin/env python3
"""Compiles kernels/*.cu to PTX: the archive kernels/ptx.tar and its index kernels/ptx.txt.

    kernels/compile.py [--check] [PREFIX...]

Compiles the files whose inputs have changed since the archive was made, or those whose names begin with a
PREFIX. --check compiles all files and only compares. Needs Python 3.11 and, on its first run, PyPI: the
compiler and the assembler (45 MB, requirements.txt) go to target/kernel-compiler. The PTX as text is left in
target/ptx, for DMSCHAT_KERNEL_DIR. No GPU is needed. Kernels that exceed a budget below are an error.

ptx.tar has one NAME.lzma for each file: its PTX for each target, newest first, each with a zero at its end.
ptx.txt has two kinds of lines, in the order of the archive:

    file NAME SHA256 PACKED TARGET...              hashes of the inputs (see `digest`) and of NAME.lzma
    kernel NAME THREADS SHARED PER_GROUP PARAM...  THREADS is the most of a block, or 0; SHARED its bytes of dynamic shared
                                                   memory; if PER_GROUP, which is added for every 256 columns, is not 0, a
                                                   block of fewer threads needs as much less of SHARED
"""

import concurrent.futures
import ctypes
import hashlib
import io
import lzma
import os
import pathlib
import re
import subprocess
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
TARGET = HERE.parent / "target"
TOOLS = TARGET / "kernel-compiler"

# The GPUs that the PTX of a target is assembled for, to check its budgets.
GPUS = {"compute_80": ["sm_80", "sm_86"], "compute_89": ["sm_89"], "compute_90": ["sm_90"], "compute_90a": ["sm_90a"]}

# Bytes of spilled registers that a kernel may store; none where it is not named.
SPILLS = {
    # What a warp keeps beside its fragments of the activations, once for a batch of strips.
    r"packed_resident_q4h?_16": 64,
    r"packed_resident_q(4h?|6h|8)_32": 96,
    # Leaves room for blocks of attention beside it. ptxas 13 needs none.
    r"packed_gemv_q8_norm": 28,
    r"packed_gemv_q4h_norm": 32,
    r"packed_gemv_q6h_norm": 56,
    # What a thread keeps from before its pages until after them.
    r"attend_(far_)?128_(bytes|k8v4)": 16,
    # The same, and its place in the span.
    r"attend_drafts_128_(bytes|k8v4)": 44,
    # What a tile keeps beside its fragments, once for 64 keys.
    r"attend_tiles_128_bf16": 256,
    r"attend_tiles_128_bytes": 128,
    r"attend_tiles_128_k8v4": 144,
    # Of the widest heads, once for a page.
    r"attend_256_bf16": 16,
}

# Registers that a thread may take where the kernel is not named: more leave an SM with few warps.
MOST_REGISTERS = 168
# The same where a kernel does not say how many threads its blocks have: with more, a launch of 1,024 fails.
MOST_UNBOUNDED = 64
REGISTERS = {
    # Scores and sums of a tile stay in registers: two blocks of 128 threads on an SM.
    r"attend_tiles_.*": 255,
    # The activations: one block of 256 threads on an SM.
    r"packed_resident_q(4h?|6h|8)_32": 255,
    r"packed_resident_q(6h|8)_16": 200,
    # Sums of four strips: one block of 256 threads on an SM.
    r"packed_gemm_q(4|6h|8)_32": 204,
    # Two blocks of 256 threads on an SM.
    r"attend_(far_)?128_(bytes|k8v4)": 128,
    # A page of bf16: one block of 256 threads on an SM.
    r"attend_((drafts|far)_)?128_bf16": 178,
    # A page, and which pages are chosen: likewise.
    r"attend_choice_128_.*": 180,
    # A page of twice as many channels: likewise.
    r"attend_256_.*": 255,
    # Columns of a state, and the next tokens' inputs: one block of 128 threads on an SM.
    r"delta_chunk": 224,
    # The sums of 64 x 256 to four warps: 9 warps on an SM.
    r"gemm_wgmma_256": 224,
    # The sums of 64 x 64 to a warp, and two rounds of fragments: 8 warps on an SM.
    r"gemm_tiles.*": 255,
}

# Files that convert to or from fp8, for which compute capability 8.9 has instructions. Attention's own loads shift bits instead.
CONVERT_FP8 = {"attend", "attend_256", "attend_choice", "attend_drafts", "attend_far", "far", "pages", "rope", "rope_512"}

# Static shared memory that any block has room for, and all of a block on Hopper.
STATIC_BYTES = 48 << 10
HOPPER_BYTES = 227 << 10


def budget(table, kernel, otherwise):
    return next((most for names, most in table.items() if re.fullmatch(names, kernel)), otherwise)


def inputs(name):
    """The source of a file of kernels and all that it includes."""
    found, unread = set(), [f"{name}.cu"]
    while unread:
        file = unread.pop()
        if file not in found:
            found.add(file)
            unread += re.findall(r'^\s*#include "([^"]+)"', (HERE / file).read_text(), re.M)
    return sorted(found)


def digest(name):
    """SHA-256 of the names and lines of all inputs and the compiler's pins, but for empty lines and whole lines of comment.

    tests/it/kernels.rs computes the same.
    """
    hashed = hashlib.sha256()
    for file in inputs(name) + ["requirements.txt"]:
        lines = (line.strip() for line in (HERE / file).read_text().split("\n"))
        for line in [file, *(line for line in lines if line and not line.startswith("//"))]:
            hashed.update(line.encode() + b"\n")
    return hashed.hexdigest()


def targets(name):
    """What a file is compiled for, in the order of `TARGETS` of the host."""
    if "hopper.cuh" in inputs(name):
        return ["compute_90a"]
    return ["compute_80"] + ["compute_89"] * (name in CONVERT_FP8) + ["compute_90"]


def install():
    """The folder of the pinned wheels."""
    pins, done = (HERE / "requirements.txt").read_text(), TOOLS / "installed"
    if not done.exists() or done.read_text() != pins:
        subprocess.run([sys.executable, "-m", "venv", "--clear", TOOLS], check=True)
        pip = [TOOLS / "bin/pip", "install", "--quiet", "--no-deps", "--require-hashes", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", HERE / "requirements.txt"], check=True)
        done.write_text(pins)
    return next(TOOLS.glob("lib/python*/site-packages/nvidia"))


def compile_ptx(nvrtc, name, target):
    headers = sorted(path.name for path in HERE.glob("*.cuh"))
    strings = lambda texts: (ctypes.c_char_p * len(texts))(*texts)
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    texts, names = strings([(HERE / h).read_bytes() for h in headers]), strings([h.encode() for h in headers])
    source = (HERE / f"{name}.cu").read_bytes()
    made = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, f"{name}.cu".encode(), len(headers), texts, names)
    assert made == 0, "nvrtcCreateProgram"
    failed = nvrtc.nvrtcCompileProgram(program, 2, strings([f"--gpu-architecture={target}".encode(), b"--std=c++17"]))
    what = "ProgramLog" if failed else "PTX"
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, text)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        sys.exit(f"kernels/{name}.cu: {text.value.decode()}")
    return text.value.decode()


def kernels_of(ptx):
    """Name, parameters, head and body of each kernel."""
    for part in ptx.split(".entry ")[1:]:
        name, rest = part.split("(", 1)
        params, rest = rest.split(")", 1)
        head, body = rest.split("{", 1)
        yield name.strip(), [" ".join(p.split()[1:-1] + re.findall(r"\[.*\]", p)) for p in params.split(",")], head, body


def shared_bytes(text):
    """Bytes of the static shared memory that a text declares."""
    found = re.findall(r"^\s*\.shared \.align \d+ \.[a-z](\d+) [\w$]+(?:\[(\d+)\])?;", text, re.M)
    assert len(found) == len(re.findall(r"^\s*\.shared ", text, re.M)), "a declaration is not understood"
    return sum(int(bits) // 8 * int(n or 1) for bits, n in found)


def describe(ptx, target):
    """The index lines of the kernels of a file, and what is wrong with them."""
    lines, wrong = [], []
    in_functions, dynamic = shared_bytes(ptx.split(".entry ")[0]), re.findall(r"^\.extern \.shared .* (\w+)\[\];", ptx, re.M)
    for name, params, head, body in kernels_of(ptx):
        threads = re.search(r"\.maxntid (\d+)", head)
        shared = re.findall(r"// dynamic shared memory: (\d+) \+ (\d+)", body) or [("0", "0")]
        if len(shared) != 1 or (shared[0] != ("0", "0")) != any(memory in body for memory in dynamic):
            wrong.append(f"{name} for {target} does not say once how much dynamic shared memory it needs")
        # With PDL a kernel that does not wait for the one in front of it would let those behind it run too early.
        waits = all(f"griddepcontrol.{what};" in body for what in ("wait", "launch_dependents"))
        if waits != (target >= "compute_90"):
            wrong.append(f"{name} for {target} does not wait for the kernel before it")
        fixed = in_functions + shared_bytes(body)
        room = HOPPER_BYTES - int(shared[0][0]) if target == "compute_90a" else 0 if int(shared[0][0]) else STATIC_BYTES
        if fixed > room:
            wrong.append(f"{name} for {target}: {fixed} bytes of static shared memory, {room} at most")
        params = [param.replace(" ", "") for param in params]
        lines.append(" ".join(["kernel", name, threads[1] if threads else "0", *shared[0], *params]))
    return lines, wrong


def over_budget(ptxas, path, gpu, unbounded):
    """Kernels that take more registers or spill more than they may. `unbounded`: those that do not say how many threads
    a block has."""
    done = subprocess.run([ptxas, "-v", f"-arch={gpu}", "-o", "/dev/null", path], capture_output=True, text=True)
    if done.returncode:
        return [done.stderr]
    # A warning about wgmma that wait for each other, for one.
    wrong = [f"{gpu}: {line}" for line in done.stderr.splitlines() if "Potential Performance Loss" in line]
    for name, said in re.findall(r"entry function '(\w+)'(.*?(?=entry function|\Z))", done.stderr, re.S):
        spilled, used = (int(re.search(what, said)[1]) for what in (r"(\d+) bytes spill stores", r"Used (\d+) registers"))
        for what, number, most in (
            ("bytes spilled", spilled, budget(SPILLS, name, 0)),
            ("registers", used, MOST_UNBOUNDED if name in unbounded else budget(REGISTERS, name, MOST_REGISTERS)),
        ):
            if number > most:
                wrong.append(f"{name} on {gpu}: {number} {what}, {most} are allowed")
    return wrong


def build(nvidia, nvrtc, name):
    """The archive's member of a file of kernels, its index lines, and what is wrong with it."""
    print(name, flush=True)
    images, wrong = [], []
    for target in targets(name):
        path = TARGET / f"ptx/{name}.{target}.ptx"
        ptx = compile_ptx(nvrtc, name, target)
        path.write_text(ptx)
        images.append(ptx.encode() + b"\0")
        lines, found = describe(ptx, target)
        wrong += found
        unbounded = {line.split()[1] for line in lines if line.split()[2] == "0"}
        for gpu in GPUS[target] + ["sm_89"] * (target == "compute_80" and "compute_89" not in targets(name)):
            wrong += over_budget(nvidia / "cuda_nvcc/bin/ptxas", path, gpu, unbounded)
    filters = [{"id": lzma.FILTER_LZMA1, "preset": 9, "dict_size": 8 << 20}]
    packed = lzma.compress(b"".join(reversed(images)), lzma.FORMAT_ALONE, filters=filters)
    return packed, "".join(line + "\n" for line in lines), wrong


def main():
    check, prefixes = "--check" in sys.argv, tuple(arg for arg in sys.argv[1:] if arg != "--check")
    archive, index = HERE / "ptx.tar", HERE / "ptx.txt"
    packed, described = {}, {}
    if archive.exists():
        with tarfile.open(archive) as tar:
            packed = {member.name: tar.extractfile(member).read() for member in tar}
        for part in index.read_text().split("file ")[1:]:
            described[part.split()[0]] = f"file {part}"
    nvidia = install()
    nvrtc = ctypes.CDLL(nvidia / "cuda_nvrtc/lib/libnvrtc.so.12")
    (TARGET / "ptx").mkdir(parents=True, exist_ok=True)
    files, wrong, before = sorted(path.stem for path in HERE.glob("*.cu")), [], dict(packed)

    def head(name):
        packed_hash = hashlib.sha256(packed.get(f"{name}.lzma", b"")).hexdigest()
        return f"file {name} {digest(name)} {packed_hash} {' '.join(targets(name))}\n"

    if check:
        chosen = files
    elif prefixes:
        chosen = [name for name in files if name.startswith(prefixes) or f"{name}.lzma" not in packed]
    else:
        # Also those whose PTX is not what the index describes, after a merge.
        chosen = [name for name in files if not described.get(name, "").startswith(head(name))]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, made in zip(chosen, pool.map(lambda name: build(nvidia, nvrtc, name), chosen)):
            packed[f"{name}.lzma"] = made[0]
            described[name] = head(name) + made[1]
            wrong += made[2]
    if wrong:
        sys.exit("\n".join(wrong))
    if check:
        stale = [file for file in packed if packed[file] != before.get(file)]
        sys.exit(f"not what the sources make: {', '.join(stale)}" if stale else 0)
    with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name in files:
            member = tarfile.TarInfo(f"{name}.lzma")
            member.size = len(packed[member.name])
            tar.addfile(member, io.BytesIO(packed[member.name]))
    index.write_text("".join(described[name] for name in files))


if __name__ == "__main__":
    main()
