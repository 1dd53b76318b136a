"""SmolLM2 (Llama shape) as plain tensor functions, with the hooks that DMS needs. Runs on a CPU and on CUDA.

Knows the base model only; what is evicted is decided by the caller, who passes an `attend` function.
"""
import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
END = 2


def norm(x, weight, eps):
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def rotate(x, cos, sin):
    """RoPE (rotate-half) on [..., T, head_dim], tables [..., T, head_dim]."""
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return (x.float() * cos + turned.float() * sin).to(x.dtype)


class Base:
    """The frozen base model: weights in `dtype` on `device`."""

    def __init__(self, folder, device="cpu", dtype=torch.bfloat16):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            c = json.load(f)
        self.layers, self.hidden, self.vocab = c["num_hidden_layers"], c["hidden_size"], c["vocab_size"]
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.group, self.head_dim, self.eps = self.heads // self.kv_heads, self.hidden // self.heads, c["rms_norm_eps"]
        theta = c.get("rope_theta") or c["rope_parameters"]["rope_theta"]
        self.device, self.dtype = torch.device(device), dtype
        tensors = load_file(os.path.join(folder, "model.safetensors"))
        self.w = {k.removeprefix("model."): v.to(self.device, dtype) for k, v in tensors.items()}
        self.layer = [{k.removeprefix(f"layers.{n}.").removesuffix(".weight"): v for k, v in self.w.items()
                       if k.startswith(f"layers.{n}.")} for n in range(self.layers)]
        self.tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        inverse = theta ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        angles = torch.outer(torch.arange(c["max_position_embeddings"]).float(), inverse)
        angles = torch.cat([angles, angles], -1).to(self.device)
        self.cos, self.sin = angles.cos(), angles.sin()

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def encode_all(self, texts):
        return [e.ids for e in self.tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def embed(self, ids):
        return F.embedding(ids, self.w["embed_tokens.weight"])

    def qkv(self, w, x, cos, sin):
        """A layer's weights and input x [B, T, hidden] -> rotated q [B, heads, T, d], rotated k and v [B, kv_heads, T, d]."""
        h = norm(x, w["input_layernorm"], self.eps)
        q, k, v = [F.linear(h, w[f"self_attn.{n}_proj"]).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for n in "qkv"]
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def finish(self, w, x, out):
        """The layer's input and its attention output [B, heads, T, d] -> the layer's output [B, T, hidden]."""
        x = x + F.linear(out.transpose(1, 2).flatten(2), w["self_attn.o_proj"])
        h = norm(x, w["post_attention_layernorm"], self.eps)
        return x + F.linear(F.silu(F.linear(h, w["mlp.gate_proj"])) * F.linear(h, w["mlp.up_proj"]), w["mlp.down_proj"])

    def head(self, x):
        return F.linear(norm(x, self.w["norm.weight"], self.eps), self.w["embed_tokens.weight"])

    def hidden_states(self, ids, attend):
        """ids [B, T]; attend(layer, x, q, k, v) -> [B, heads, T, d]. Returns the last hidden state [B, T, hidden]."""
        x = self.embed(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer, w in enumerate(self.layer):
            q, k, v = self.qkv(w, x, cos, sin)
            x = self.finish(w, x, attend(layer, x, q, k, v))
        return x


def grouped(q, kv_heads):
    """[B, heads, T, d] -> [B, kv_heads, group, T, d]."""
    return q.unflatten(1, (kv_heads, -1))


def attend_blocks(q, k, v, bias=None, window=0, block=512):
    """Causal attention in blocks of queries; bias(keys) adds to scores beyond the window.

    `bias` [B, kv_heads, T] f32 or None, `block` queries at a time so that no key of the future is multiplied.
    """
    kv, t = k.shape[1], q.shape[2]
    q = grouped(q, kv)
    at = torch.arange(t, device=q.device)
    out = []
    for begin in range(0, t, block):
        end = min(t, begin + block)
        scores = (q[:, :, :, begin:end] @ k[:, :, None, :end].transpose(-1, -2)).float() * q.shape[-1] ** -0.5
        distance = at[begin:end, None] - at[None, :end]
        if bias is not None and end - 1 > window:
            far = end - 1 - window
            scores = torch.cat([scores[..., :far] + bias[:, :, None, None, :far] * (distance[:, :far] > window), scores[..., far:]], -1)
        scores = scores.masked_fill(distance < 0, float("-inf"))
        out.append(scores.softmax(-1).to(v.dtype) @ v[:, :, None, :end])
    return torch.cat(out, 3).flatten(1, 2)
