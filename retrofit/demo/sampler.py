"""Samples many chains at once with a KV cache: dense, or with DMS by masks that follow the rule exactly.

Rows are padded on the left to one length, so that every row writes the same cache slot in a step; RoPE sees differences
of positions only. Rows that have ended are taken out every few steps, and the cache grows as it is needed. Weights are the
file's bf16 values, the residual stream is f32.
"""
import math
import time

import torch
import torch.nn.functional as F

from demo.model import rope_tables, rotate

BLOCK = 64                # the cache grows, and rows are taken out, in steps of so many tokens


def fused(q, k, v, bias):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def plain(q, k, v, bias):
    scores = torch.matmul(q, k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1]) + bias
    return torch.matmul(scores.softmax(-1).to(v.dtype), v)


def faster(shape, rows=4096, length=512):
    """The faster of the two ways to attend on the GPU for one query per row; the fused one may refuse such a mask."""
    make = lambda *size: torch.randn(size, device="cuda", dtype=torch.bfloat16)
    q, k, v = make(rows, shape.kv_heads, shape.group, shape.head_dim), *(make(rows, shape.kv_heads, 2 * length, shape.head_dim) for _ in "kv")
    bias, best = torch.zeros(rows, shape.kv_heads, 2 * length, device="cuda", dtype=torch.bfloat16), (math.inf, plain)
    view = (q, k[:, :, :length], v[:, :, :length], bias[:, :, None, :length].expand(-1, -1, shape.group, -1))
    for way in (fused, plain):
        try:
            for _ in range(4):
                out = way(*view)
                torch.cuda.synchronize()
                begun = time.perf_counter()
            for _ in range(4):
                out = way(*view)
            torch.cuda.synchronize()
        except RuntimeError as error:
            print(f"{way.__name__} attention: {error}")
            continue
        each = (time.perf_counter() - begun) / 4
        print(f"{way.__name__} attention: {1e3 * each:.2f} ms, {(k.nbytes + v.nbytes) / 2 / each / 1e12:.2f} TB/s, {float(out.float().abs().mean()):.4f}")
        best = min(best, (each, way), key=lambda b: b[0])
    return best[1]


class Weights:
    """The matrices in bf16 (f32 on a CPU), the norms in f32."""

    def __init__(self, model, device):
        self.shape, self.device = model.shape, device
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        put = lambda p: p.detach().to(device, self.dtype if p.dim() == 2 else torch.float32)
        self.embed, self.norm = put(model.embed_tokens.weight), put(model.norm.weight)
        self.layers = []
        for layer in model.layers:
            a, m = layer.self_attn, layer.mlp
            self.layers.append({
                "before": put(layer.input_layernorm.weight), "after": put(layer.post_attention_layernorm.weight),
                "qkv": put(torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight])), "o": put(a.o_proj.weight),
                "q_norm": put(a.q_norm.weight), "k_norm": put(a.k_norm.weight),
                "up": put(torch.cat([m.gate_proj.weight, m.up_proj.weight])), "down": put(m.down_proj.weight)})
        self.attention = faster(model.shape) if device == "cuda" else fused
        self.keep = model.layers[0].self_attn.keep.to(device, torch.float32)      # [heads, 1, d]

    def rms(self, x, weight):
        return F.rms_norm(x.float(), (x.shape[-1],), weight, self.shape.eps)

    def linear(self, x, weight):
        return F.linear(x.to(self.dtype), weight)


class Cache:
    """K and V [rows, kv, capacity, d] per layer, a bias (0 visible, -inf not) and the marks of keys still in the window."""

    def __init__(self, weights, rows, capacity, dms):
        s = weights.shape
        make = lambda *size: torch.zeros(size, device=weights.device, dtype=weights.dtype)
        self.k = [make(rows, s.kv_heads, capacity, s.head_dim) for _ in range(s.layers)]
        self.v = [make(rows, s.kv_heads, capacity, s.head_dim) for _ in range(s.layers)]
        self.bias = [make(rows, s.kv_heads if dms else 1, capacity) - math.inf for _ in range(s.layers if dms else 1)]
        self.marks = torch.zeros(s.layers, rows, s.kv_heads, capacity, device=weights.device, dtype=torch.bool) if dms else None

    def capacity(self):
        return self.k[0].shape[2]

    def select(self, rows, used, capacity):
        """Keeps the rows `rows` (an index; it may repeat) with room for `capacity` tokens."""
        def move(x, fill):
            new = x.new_full((len(rows), x.shape[1], capacity) + x.shape[3:], fill)
            new[:, :, :used] = x[:, :, :used].index_select(0, rows)
            return new
        for part in (self.k, self.v):
            for i in range(len(part)):
                part[i] = move(part[i], 0.0)
        self.bias = [move(b, -math.inf) for b in self.bias]
        if self.marks is not None:
            self.marks = torch.stack([move(m, False) for m in self.marks])


class Sampler:
    """Feeds one token per row and step; `evicted` is the number of evicted slots per row, mean over lanes."""

    def __init__(self, weights, prompts, dms):
        self.w, self.dms = weights, dms
        longest = self.longest = max(map(len, prompts))
        self.pad = torch.tensor([longest - len(p) for p in prompts], device=weights.device)
        self.cache = Cache(weights, len(prompts), -(-(longest + 1) // BLOCK) * BLOCK, dms)
        self.evicted = torch.zeros(len(prompts), device=weights.device)
        self.cos, self.sin = rope_tables(weights.shape, weights.shape.context, weights.device)
        self.at = 0
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        for i, p in enumerate(prompts):
            ids[i, longest - len(p):] = torch.tensor(p)
        ids = ids.to(weights.device)
        for t in range(longest):
            self.logits = self.step(ids[:, t])

    def select(self, rows):
        """Keeps these rows and makes room for the next tokens."""
        self.cache.select(rows, self.at, (self.at // BLOCK + 2) * BLOCK)
        self.pad, self.evicted, self.logits = (x.index_select(0, rows) for x in (self.pad, self.evicted, self.logits))

    def live(self):
        """[rows] slots that the last step's query saw, mean over lanes."""
        return (self.at - self.pad).float() - self.evicted

    def open_slot(self):
        """Makes the new slot visible, hides the padding before it (a row of padding needs one slot to see), and evicts
        what leaves the window."""
        t, shape = self.at, self.w.shape
        for bias in self.cache.bias:
            bias[:, :, t] = 0.0
            if 0 < t <= self.longest:
                bias[:, :, t - 1].masked_fill_((self.pad >= t)[:, None], -math.inf)
        gone = t - shape.window - 1
        if self.dms and gone >= 0:
            marks = self.cache.marks[..., gone] & (self.pad <= gone)[None, :, None]
            for bias, mark in zip(self.cache.bias, marks):
                bias[:, :, gone].masked_fill_(mark, -math.inf)
            self.evicted += marks.sum((0, 2)).float() / (shape.layers * shape.kv_heads)

    def decide(self, layer, q, k, v, cos, sin):
        """q, k and v of the new token before RoPE -> what attention and the cache get. Notes what the token marks."""
        s, keep = self.w.shape, self.w.keep
        if self.dms and self.at:
            self.cache.marks[layer, :, :, self.at - 1] = q[:, :: s.group, 0, -1] * s.alpha_scale - s.alpha_offset > 0
        return rotate(q * keep, cos, sin) * keep, rotate(k, cos, sin), v

    def attend(self, layer, q, k, v):
        """q [rows, heads, 1, d], k and v [rows, kv, 1, d] -> [rows, heads * d]."""
        s, c = self.w.shape, self.cache
        c.k[layer][:, :, self.at], c.v[layer][:, :, self.at] = k[:, :, 0], v[:, :, 0]
        used = -(-(self.at + 1) // BLOCK) * BLOCK
        q = q.view(-1, s.kv_heads, s.group, s.head_dim)
        bias = c.bias[layer if self.dms else 0][:, :, None, :used].expand(-1, s.kv_heads, s.group, -1)
        out = self.w.attention(q, c.k[layer][:, :, :used], c.v[layer][:, :, :used], bias)
        return out.reshape(out.shape[0], -1)

    def step(self, ids):
        """Feeds ids [rows]; returns the next token's logits in f32."""
        w, s, t = self.w, self.w.shape, self.at
        self.open_slot()
        x = w.embed[ids].float()
        cos, sin = self.cos[t], self.sin[t]
        for i, layer in enumerate(w.layers):
            qkv = w.linear(w.rms(x, layer["before"]), layer["qkv"]).view(-1, s.heads + 2 * s.kv_heads, 1, s.head_dim)
            q, k, v = qkv.split([s.heads, s.kv_heads, s.kv_heads], 1)
            q, k = w.rms(q, layer["q_norm"]), w.rms(k, layer["k_norm"])
            q, k, v = self.decide(i, q, k, v, cos, sin)
            x = x + w.linear(self.attend(i, q.to(w.dtype), k.to(w.dtype), v.to(w.dtype)), layer["o"]).float()
            gate, up = w.linear(w.rms(x, layer["after"]), layer["up"]).split(s.ffn, -1)
            x = x + w.linear(F.silu(gate.float()) * up.float(), layer["down"]).float()
        self.at += 1
        return w.linear(w.rms(x, w.norm), w.embed).float()


def nucleus(logits, temperature, top_p):
    """log-probabilities at a temperature of the most probable tokens that together have `top_p`, -inf for the others."""
    scores = torch.log_softmax(logits / max(temperature, 1e-6), -1)
    if top_p >= 1:
        return scores
    ordered, places = scores.sort(-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    kept = ordered.masked_fill(before >= top_p, -math.inf)
    return torch.log_softmax(torch.empty_like(scores).scatter_(-1, places, kept), -1)


@torch.no_grad()
def sample(make, weights, prompts, width, limit, end, seed=1, temperature=1.0, marks=(512,), top_p=1.0):
    """`width` chains of up to `limit` tokens for every prompt; make(weights, prompts) -> a `Sampler`.

    Returns (tokens int16 [problems * width, limit], lengths, ended, reads {L: [rows]}, slots {L: (dense, live) [rows]}), all
    on the CPU. reads[L]: KV token reads of the decode steps of the first L tokens, per lane; slots[L]: stored tokens and
    live slots at the chain's last token within L.
    """
    device = weights.device
    generator = torch.Generator(device).manual_seed(seed)
    sampler = make(weights, prompts)
    total = len(prompts) * width
    sampler.select(torch.arange(len(prompts), device=device).repeat_interleave(width))
    alive = torch.arange(total, device=device)
    tokens = torch.zeros(total, limit, dtype=torch.int16, device=device)
    lengths = torch.zeros(total, dtype=torch.long, device=device)
    reads, ended = torch.zeros(total, device=device), torch.zeros(total, dtype=torch.bool, device=device)
    dense, live = torch.zeros(total, device=device), torch.zeros(total, device=device)
    reads_at, slots_at = {}, {}
    running = torch.ones(total, dtype=torch.bool, device=device)
    for n in range(limit):
        u = torch.rand(sampler.logits.shape, device=device, generator=generator).clamp_(1e-10, 1 - 1e-7)
        chosen = (nucleus(sampler.logits, temperature, top_p) - torch.log(-torch.log(u))).argmax(-1)
        tokens[alive, n] = torch.where(running, chosen, 0).to(torch.int16)
        lengths[alive] += running
        over = running & (chosen == end)
        ended[alive[over]] = True
        running = running & ~over
        if n % 16 == 15 and running.float().mean() < 0.93 or sampler.at + 1 >= sampler.cache.capacity():
            rows = running.nonzero()[:, 0]
            if not len(rows):
                break
            sampler.select(rows)
            alive, chosen, running = alive[rows], chosen[rows], running[rows]
        sampler.logits = sampler.step(chosen)
        reads[alive] += sampler.live() * running
        live[alive] = torch.where(running, sampler.live(), live[alive])
        dense[alive] = torch.where(running, (sampler.at - sampler.pad).float(), dense[alive])
        if n + 1 in marks:
            reads_at[n + 1], slots_at[n + 1] = reads.to("cpu", copy=True), (dense.to("cpu", copy=True), live.to("cpu", copy=True))
    for mark in marks:
        reads_at.setdefault(mark, reads.cpu())
        slots_at.setdefault(mark, (dense.cpu(), live.cpu()))
    return tokens.cpu(), lengths.cpu(), ended.cpu(), reads_at, slots_at
