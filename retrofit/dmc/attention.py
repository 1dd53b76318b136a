"""Dynamic Memory Compression (DMC): every KV head joins a token to its newest slot or opens a new one.

A slot holds weighted means of its tokens' keys and values. The last channel of a group's first query head decides, the last
channel of its second query head gives the token's weight; both are zero in attention. Keys are averaged before RoPE and rotated
at the slot's newest token. `Exact` is inference, `Relaxed` is training with noisy decisions.
"""
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from demo.model import Attention, attend_masked, rotate

MEMBERS = 64              # most tokens of a slot
WEIGHT_OFFSET = 5.0       # weight of a token: sigmoid(channel + WEIGHT_OFFSET) + WEIGHT_FLOOR
WEIGHT_FLOOR = 1 / 128
CHUNK = 64                # tokens of a chunk of the scan
NEVER = -60.0             # log of a probability that stands for 0


class PoolingAttention(Attention):
    """Attention of a DMC model; `attend` is an `Exact` or a `Relaxed`. The second result is what `attend` decided, [B, kv_heads, T]."""

    def __init__(self, shape):
        super().__init__(shape)
        if shape.group < 2:
            raise ValueError("DMC needs two query heads for each KV head")
        borrowed = torch.zeros(shape.heads, 1, shape.head_dim)
        borrowed[1 :: shape.group, :, -1] = 1.0
        self.register_buffer("borrowed", borrowed, persistent=False)

    def forward(self, x, cos, sin, attend):
        s = self.shape
        q, k, v = self.project(x)
        decision = q[:, :: s.group, :, -1].float() * s.alpha_scale - s.alpha_offset
        weight = torch.sigmoid(q[:, 1 :: s.group, :, -1].float() + WEIGHT_OFFSET) + WEIGHT_FLOOR
        keep = (self.keep - (1 - attend.fade) * self.borrowed).to(q.dtype)
        q = rotate(q * keep, cos, sin) * keep
        out, decided = attend(q, k, v, decision, weight, cos, sin)
        return self.o_proj(out.transpose(1, 2).flatten(2)), decided


def clear_decisions(model):
    """Sets the decision channel to zero: every decision starts at -alpha_offset, so that nothing is merged."""
    with torch.no_grad():
        for layer in model.layers:
            rows = layer.self_attn.q_proj.weight.view(model.shape.heads, model.shape.head_dim, -1)
            rows[:: model.shape.group, -1] = 0.0


# ---------------------------------------------------------------- decisions and slots

def forced_open(joins):
    """Tokens that open a slot whatever they decide: the first, and those that come to a full slot. [..., T] bool -> [..., T] bool."""
    at = torch.arange(joins.shape[-1], device=joins.device).expand(joins.shape)
    joins = joins & (at > 0)
    opened = torch.where(joins, 0, at).cummax(-1).values
    return (at == 0) | (joins & ((at - opened) % MEMBERS == 0))


def decays(log):
    """[..., T] log decisions -> [..., T, T]: the product of the decisions after j up to t, 0 for j > t."""
    total = log.cumsum(-1)
    t = log.shape[-1]
    causal = torch.ones(t, t, dtype=torch.bool, device=log.device).tril()
    return (total[..., :, None] - total[..., None, :]).masked_fill(~causal, -torch.inf).exp()


def pool(k, v, weight, log_join):
    """State of each token's slot after that token: weighted means of k and v, [B, kv_heads, T, d] each, at least f32.

    Solves S_t = a_t S_{t-1} + o_t [k_t, v_t, 1] with a = exp(log_join), o = weight [B, kv_heads, T] in parallel: one matmul
    within each chunk of `CHUNK` tokens, one over the last states of the chunks.
    """
    wide = torch.promote_types(k.dtype, torch.float32)
    b, h, t, d = k.shape
    n = -(-t // CHUNK)
    pad = n * CHUNK - t
    rows = F.pad(torch.cat([k, v], -1).to(wide), (0, 0, 0, pad)).view(b, h, n, CHUNK, 2 * d)
    weight = F.pad(weight.to(wide), (0, pad), value=1.0).view(b, h, n, CHUNK)
    log = F.pad(log_join.to(wide), (0, pad)).view(b, h, n, CHUNK)
    with torch.autocast(k.device.type, enabled=False):
        mix = decays(log) * weight[..., None, :]
        sums, mass = mix @ rows, mix.sum(-1)
        # the state before chunk c: decays over whole chunks, moved down by one
        left = log.cumsum(-1)
        carry = F.pad(decays(left[..., -1].clamp(min=NEVER))[..., :-1, :], (0, 0, 1, 0))
        before, mass_before = carry @ sums[..., -1, :], (carry * mass[..., None, :, -1]).sum(-1)
        left = left.exp()
        sums = sums + left[..., None] * before[..., None, :]
        mass = mass + left * mass_before[..., None]
        means = (sums / mass[..., None]).view(b, h, n * CHUNK, 2 * d)[:, :, :t]
    return means[..., :d], means[..., d:]


def closed_by_next(of_next, last):
    """Moves a value of token j + 1 to token j; the newest token gets `last`."""
    return torch.cat([of_next[..., 1:], torch.full_like(of_next[..., :1], last)], -1)


# ---------------------------------------------------------------- ways to attend

class Exact:
    """Inference: a token joins if its decision is above 0. A query sees closed slots and its own. Decided: tokens that open a slot (bool).

    merging=False opens a slot for every token.
    """

    fade = 0.0

    def __init__(self, merging=True):
        self.merging = merging

    def __call__(self, q, k, v, decision, weight, cos, sin):
        joins = (decision > 0) & self.merging
        opens = ~joins | forced_open(joins)
        keys, values = pool(k, v, weight, torch.where(opens, NEVER, 0.0))
        at = torch.arange(k.shape[2], device=k.device)
        closed = closed_by_next(opens, False)
        visible = (at[:, None] == at) | ((at[:, None] > at) & closed[:, :, None, :])
        return attend_masked(q, rotate(keys, cos, sin).to(q.dtype), values.to(q.dtype), visible), opens


def relax(decision, noise, temperature):
    """Noisy decisions: (join [.., T] in 0..1, its logarithm, what each token's state adds to its score for later queries)."""
    z = (decision + noise) / temperature
    opens = forced_open(z > 0)
    join = torch.sigmoid(z).masked_fill(opens, 0.0)
    log_join = F.logsigmoid(z).clamp(min=NEVER).masked_fill(opens, NEVER)
    bias = F.logsigmoid(-z).clamp(min=-1e4).masked_fill(opens, 0.0)
    return join, log_join, closed_by_next(bias, 0.0)


class Relaxed:
    """Training: decisions with logistic noise; a state is weakened by log(1 - join of the next token) for later queries.

    fade (a tensor): what is left of the weight channel in attention, 1 to 0. flex: flex_attention, else plain tensor code.
    Decided: join, in 0..1.
    """

    def __init__(self, shape, length, temperature, device, flex):
        self.shape, self.temperature, self.fade = shape, temperature, torch.zeros((), device=device)
        self.blocks = create_block_mask(lambda b, h, q, k: q >= k, None, None, length, length, device=device) if flex else None

    def __call__(self, q, k, v, decision, weight, cos, sin):
        u = torch.rand_like(decision).clamp(1e-6, 1 - 1e-6)
        join, log_join, bias = relax(decision, torch.log(u) - torch.log1p(-u), self.temperature)
        keys, values = pool(k, v, weight, log_join)
        keys, values = rotate(keys, cos, sin).to(q.dtype), values.to(q.dtype)
        attend = self.flex if self.blocks else weakened
        return attend(q, keys, values, bias), join

    def flex(self, q, k, v, bias):
        group = self.shape.group

        def weaken(score, b, h, q_at, k_at):
            return torch.where(q_at > k_at, score + bias[b, h // group, k_at], score)

        return flex_attention(q.contiguous(), k.contiguous(), v.contiguous(), score_mod=weaken, block_mask=self.blocks, enable_gqa=True)


def weakened(q, k, v, bias):
    """Causal attention with bias [B, kv_heads, T] added to the scores of keys before the query's own."""
    group, at = q.shape[1] // k.shape[1], torch.arange(q.shape[2], device=q.device)
    k, v, bias = (x.repeat_interleave(group, 1) for x in (k, v, bias))
    mask = torch.where(at[:, None] > at, bias[:, :, None, :], 0.0).masked_fill(at[:, None] < at, -torch.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype))
