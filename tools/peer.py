"""llama.cpp's prefill and decode speed by its C interface: see peer.sh, which fetches it.

Prefill: one batch of CTX tokens in micro-batches of 512. Decode: GEN single tokens after it. Tokens
are random, nothing is sampled, logits are computed once a step. One JSON object on stdout.
"""

import argparse
import ctypes as c
import json
import os
import random
import statistics
import time

SHAPE = dict(layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, ffn=1536, vocab=49152)


def write_gguf(path):
    """SmolLM2-135M's shape with random bf16 weights and no tokenizer."""
    import gguf
    import numpy as np

    s, rng = SHAPE, np.random.default_rng(1)
    w = gguf.GGUFWriter(path, "llama")
    w.add_block_count(s["layers"])
    w.add_context_length(8192)
    w.add_embedding_length(s["hidden"])
    w.add_feed_forward_length(s["ffn"])
    w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv_heads"])
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(s["head_dim"])
    w.add_rope_freq_base(1e5)
    w.add_vocab_size(s["vocab"])
    w.add_tokenizer_model("no_vocab")

    def matrix(name, rows, cols):
        values = rng.standard_normal((rows, cols), dtype=np.float32) * np.float32(cols**-0.5)
        bf16 = (values.view(np.uint32) >> 16).astype(np.uint16)
        w.add_tensor(name, bf16.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)

    def ones(name):
        w.add_tensor(name, np.ones(s["hidden"], dtype=np.float32))

    q, kv = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    matrix("token_embd.weight", s["vocab"], s["hidden"])
    ones("output_norm.weight")
    for i in range(s["layers"]):
        p = f"blk.{i}."
        ones(p + "attn_norm.weight")
        ones(p + "ffn_norm.weight")
        matrix(p + "attn_q.weight", q, s["hidden"])
        matrix(p + "attn_k.weight", kv, s["hidden"])
        matrix(p + "attn_v.weight", kv, s["hidden"])
        matrix(p + "attn_output.weight", s["hidden"], q)
        matrix(p + "ffn_gate.weight", s["ffn"], s["hidden"])
        matrix(p + "ffn_up.weight", s["ffn"], s["hidden"])
        matrix(p + "ffn_down.weight", s["hidden"], s["ffn"])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


class Params(c.Structure):
    """A parameter struct of the C interface, larger than any: only its first words are touched."""

    _fields_ = [("words", c.c_uint32 * 128)]


class Batch(c.Structure):
    _fields_ = [("n_tokens", c.c_int32)] + [(f"p{i}", c.c_void_p) for i in range(6)]


# llama_ftype of the formats that --weights takes.
FTYPES = {"q8_0": 7, "q4_k_m": 15}


class Llama:
    def __init__(self, lib, gguf, n_ctx, threads, weights):
        ggml = c.CDLL(self.find(lib, "libggml."), mode=c.RTLD_GLOBAL)
        ggml.ggml_backend_load_all_from_path(os.path.abspath(lib).encode())
        self.l = c.CDLL(self.find(lib, "libllama."), mode=c.RTLD_GLOBAL)
        l = self.l
        self.quiet = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)(lambda *_: None)
        l.llama_log_set(self.quiet, None)
        l.llama_backend_init()
        l.llama_model_default_params.restype = Params
        l.llama_context_default_params.restype = Params
        l.llama_model_load_from_file.restype = c.c_void_p
        l.llama_model_load_from_file.argtypes = [c.c_char_p, Params]
        l.llama_init_from_model.restype = c.c_void_p
        l.llama_init_from_model.argtypes = [c.c_void_p, Params]
        l.llama_batch_get_one.restype = Batch
        l.llama_batch_get_one.argtypes = [c.c_void_p, c.c_int32]
        l.llama_decode.argtypes = [c.c_void_p, Batch]
        l.llama_get_memory.restype = c.c_void_p
        for name in ("llama_get_memory", "llama_synchronize"):
            getattr(l, name).argtypes = [c.c_void_p]
        l.llama_memory_clear.argtypes = [c.c_void_p, c.c_bool]
        l.llama_set_n_threads.argtypes = [c.c_void_p, c.c_int32, c.c_int32]
        if weights in FTYPES:
            gguf = self.quantize(gguf, weights, threads)
        model = l.llama_model_load_from_file(gguf.encode(), l.llama_model_default_params())
        assert model, "llama.cpp cannot load the model"
        params = l.llama_context_default_params()
        # n_ctx, n_batch, n_ubatch have been the first three for years; their defaults prove it.
        assert list(params.words[:3]) == [512, 2048, 512], list(params.words[:8])
        params.words[0], params.words[1], params.words[2] = n_ctx, 2048, 512
        self.ctx = l.llama_init_from_model(model, params)
        assert self.ctx, "llama.cpp cannot make a context"
        l.llama_set_n_threads(self.ctx, threads, threads)

    def quantize(self, gguf, weights, threads):
        """The file in another format, made by llama.cpp."""
        out = gguf.replace(".gguf", f"-{weights}.gguf")
        if not os.path.exists(out):
            default = self.l.llama_model_quantize_default_params
            default.restype = Params
            params = default()
            params.words[0], params.words[1] = threads, FTYPES[weights]
            made = self.l.llama_model_quantize(gguf.encode(), out.encode(), c.byref(params))
            assert made == 0, "llama.cpp cannot quantize the model"
        drop_from_cache(out)
        return out

    @staticmethod
    def find(lib, prefix):
        return os.path.join(lib, next(n for n in sorted(os.listdir(lib)) if n.startswith(prefix)))

    def clear(self):
        self.l.llama_memory_clear(self.l.llama_get_memory(self.ctx), True)

    def feed(self, tokens):
        buffer = (c.c_int32 * len(tokens))(*tokens)
        assert self.l.llama_decode(self.ctx, self.l.llama_batch_get_one(buffer, len(tokens))) == 0
        self.l.llama_synchronize(self.ctx)


def drop_from_cache(path):
    """Lets the system read the file again, and map it in huge pages where it can: a file just written lies in small ones,
    which costs llama.cpp a third of its decoding speed."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def spread(values):
    return dict(median=statistics.median(values), min=min(values), max=max(values))


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--lib", required=True)
    a.add_argument("--gguf", required=True)
    a.add_argument("--ctx", default="512,2048")
    a.add_argument("--gen", type=int, default=128)
    a.add_argument("--runs", type=int, default=3)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--weights", default="bf16", choices=["bf16", *FTYPES])
    a = a.parse_args()
    if not os.path.exists(a.gguf):
        write_gguf(a.gguf)
    drop_from_cache(a.gguf)
    lengths = [int(n) for n in a.ctx.split(",")]
    llama = Llama(a.lib, a.gguf, max(lengths) + a.gen + 32, a.threads, a.weights)
    rng, results = random.Random(1), []
    tokens = lambda n: [rng.randrange(SHAPE["vocab"]) for _ in range(n)]
    for ctx in lengths:
        prefill, decode = [], []
        for run in range(a.runs + 1):
            llama.clear()
            prompt, answer = tokens(ctx), tokens(a.gen)
            t0 = time.perf_counter()
            for i in range(0, ctx, 2048):
                llama.feed(prompt[i : i + 2048])
            t1 = time.perf_counter()
            for t in answer:
                llama.feed([t])
            t2 = time.perf_counter()
            if run > 0:  # The first is the warm-up.
                prefill.append(ctx / (t1 - t0))
                decode.append(a.gen / (t2 - t1))
        results.append(dict(ctx=ctx, gen=a.gen, prefill_tok_s=spread(prefill), decode_tok_s=spread(decode)))
    print(json.dumps(dict(model=os.path.basename(a.gguf), weights=a.weights, threads=a.threads, runs=a.runs, results=results)))


if __name__ == "__main__":
    main()
