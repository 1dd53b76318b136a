"""The model: Qwen3 shape with the borrowed-neuron form of DMS.

Parameter names are those of transformers' Qwen3ForCausalLM without the leading "model.".
In the first query head of every group the last channel carries the eviction logit, so it is set
to zero in attention, before RoPE and again after it, from the first training step on.
"""
import json
import math
import os
from dataclasses import asdict, dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file


@dataclass
class Shape:
    vocab: int = 1536
    hidden: int = 256
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    ffn: int = 704
    theta: float = 100000.0
    eps: float = 1e-6
    context: int = 8192
    window: int = 64
    alpha_scale: float = 100.0
    alpha_offset: float = 5.0

    @property
    def group(self):
        return self.heads // self.kv_heads

    def as_dict(self):
        return asdict(self)


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight).to(x.dtype)


def rope_tables(shape, length, device):
    """cos and sin, each [length, head_dim], in the rotate-half layout."""
    inverse = shape.theta ** (-torch.arange(0, shape.head_dim, 2, device=device).float() / shape.head_dim)
    angles = torch.outer(torch.arange(length, device=device).float(), inverse)
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    """RoPE on [B, heads, T, head_dim]."""
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return (x * cos + turned * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, width, bias=False)
        self.k_proj = nn.Linear(shape.hidden, kv_width, bias=False)
        self.v_proj = nn.Linear(shape.hidden, kv_width, bias=False)
        self.o_proj = nn.Linear(width, shape.hidden, bias=False)
        self.q_norm = RMSNorm(shape.head_dim, shape.eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.eps)
        keep = torch.ones(shape.heads, 1, shape.head_dim)
        keep[:: shape.group, :, -1] = 0.0
        self.register_buffer("keep", keep, persistent=False)

    def project(self, x):
        """x [B, T, hidden] -> q [B, heads, T, head_dim], k and v [B, kv_heads, T, head_dim], not rotated."""
        s = self.shape
        b, t, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(b, t, s.heads, s.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(b, t, s.kv_heads, s.head_dim)).transpose(1, 2)
        return q, k, self.v_proj(x).view(b, t, s.kv_heads, s.head_dim).transpose(1, 2)

    def forward(self, x, cos, sin, attend):
        """x [B, T, hidden] -> (output [B, T, hidden], eviction logits [B, kv_heads, T] in f32)."""
        q, k, v = self.project(x)
        logits = q[:, :: self.shape.group, :, -1].float() * self.shape.alpha_scale - self.shape.alpha_offset
        keep = self.keep.to(q.dtype)
        q = rotate(q * keep, cos, sin) * keep
        out = attend(q, rotate(k, cos, sin), v, logits)
        return self.o_proj(out.transpose(1, 2).flatten(2)), logits


class MLP(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.down_proj = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape, attention):
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.self_attn = attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.mlp = MLP(shape)

    def forward(self, x, cos, sin, attend):
        out, logits = self.self_attn(self.input_layernorm(x), cos, sin, attend)
        x = x + out
        return x + self.mlp(self.post_attention_layernorm(x)), logits


class Model(nn.Module):
    def __init__(self, shape, attention=Attention):
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape, attention) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.eps)

    def initialise(self, seed):
        """Normal(0, 0.02), outputs scaled down; the borrowed channel starts at exactly zero."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, p in self.named_parameters():
                if p.dim() == 2:
                    std = 0.02
                    if name.endswith(("o_proj.weight", "down_proj.weight")):
                        std /= math.sqrt(2 * self.shape.layers)
                    p.copy_(torch.randn(p.shape, generator=generator) * std)
            for layer in self.layers:
                rows = layer.self_attn.q_proj.weight.view(self.shape.heads, self.shape.head_dim, -1)
                rows[:: self.shape.group, -1] = 0.0
        return self

    def forward(self, ids, attend):
        """ids [B, T]; attend(q, k, v, logits) -> [B, heads, T, head_dim].

        Returns (logits [B, T, vocab], eviction logits [layers, B, kv_heads, T]).
        """
        x = self.embed_tokens(ids)
        cos, sin = rope_tables(self.shape, ids.shape[1], ids.device)
        decisions = []
        for layer in self.layers:
            x, d = layer(x, cos, sin, attend)
            decisions.append(d)
        return F.linear(self.norm(x), self.embed_tokens.weight), torch.stack(decisions)


def load_folder(folder, device, attention=Attention):
    """An exported model, DMS or DMC, with its bf16 values in f32."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        c = json.load(f)
    shape = Shape(vocab=c["vocab_size"], hidden=c["hidden_size"], layers=c["num_hidden_layers"], heads=c["num_attention_heads"],
                  kv_heads=c["num_key_value_heads"], head_dim=c["head_dim"], ffn=c["intermediate_size"], theta=c["rope_theta"],
                  eps=c["rms_norm_eps"], context=c["max_position_embeddings"])
    if "dmc_alpha_scale" in c:
        shape.alpha_scale, shape.alpha_offset = c["dmc_alpha_scale"], c["dmc_alpha_offset"]
    else:
        shape.window, shape.alpha_scale, shape.alpha_offset = c["dms_window_size"], c["dms_alpha_scale"], c["dms_initial_alpha_offset"]
    model = Model(shape, attention)
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    model.load_state_dict({name.removeprefix("model."): value.float() for name, value in tensors.items()})
    return model.to(device)


# ---------------------------------------------------------------- ways to attend

def attend_dense(q, k, v, logits):
    """Plain causal attention; [B, heads, T, d] against [B, kv_heads, T, d]."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def marks_of(logits):
    """Shift 1: the decision at t+1 marks t; the newest token has no mark. [B, kv, T] bool."""
    marks = logits > 0
    return torch.cat([marks[..., 1:], torch.zeros_like(marks[..., :1])], -1)


def visible_dms(marks, window):
    """[B, kv, T, T] bool: key k is visible to query q if k <= q and (q - k <= window or k is not marked)."""
    t = marks.shape[-1]
    at = torch.arange(t, device=marks.device)
    distance = at[:, None] - at[None, :]
    return (distance >= 0) & ((distance <= window) | ~marks[:, :, None, :])


def visible_sliding(length, windows, sinks, device):
    """[B, 1, T, T] bool: the last windows[b] tokens and the first `sinks`."""
    at = torch.arange(length, device=device)
    distance = at[:, None] - at[None, :]
    near = distance[None] < windows[:, None, None]
    return ((distance >= 0) & (near | (at < sinks)[None, None, :]))[:, None]


def attend_masked(q, k, v, visible):
    """Attention under a bool mask [B, kv or 1, T, T]."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    if visible.shape[1] > 1:
        visible = visible.repeat_interleave(groups, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
