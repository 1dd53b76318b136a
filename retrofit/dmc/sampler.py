"""Samples chains with DMC: the cache keeps a slot's mean at its newest token and hides the tokens before it."""
import math

import torch

from dmc.attention import MEMBERS, WEIGHT_FLOOR, WEIGHT_OFFSET
from demo.model import rotate
from demo.sampler import Sampler


class DmcSampler(Sampler):
    """Feeds one token per row and step; `evicted` counts the tokens that joined a slot."""

    def __init__(self, weights, prompts):
        s = weights.shape
        lanes = (s.layers, len(prompts), s.kv_heads)
        self.keep = weights.keep.clone()
        self.keep[1 :: s.group, :, -1] = 0.0
        self.sums = torch.zeros(*lanes, 2 * s.head_dim + 1, device=weights.device)     # of weighted k and v, and of weights
        self.members = torch.zeros(lanes, dtype=torch.int32, device=weights.device)
        super().__init__(weights, prompts, True)

    def select(self, rows):
        super().select(rows)
        self.sums, self.members = self.sums.index_select(1, rows), self.members.index_select(1, rows)

    def decide(self, layer, q, k, v, cos, sin):
        s, t = self.w.shape, self.at
        decision = q[:, :: s.group, 0, -1] * s.alpha_scale - s.alpha_offset
        weight = torch.sigmoid(q[:, 1 :: s.group, 0, -1].float() + WEIGHT_OFFSET) + WEIGHT_FLOOR
        joins = (decision > 0) & (self.members[layer] < MEMBERS) & (self.pad < t)[:, None]
        row = torch.cat([k[:, :, 0], v[:, :, 0], torch.ones_like(k[:, :, 0, :1])], -1).float() * weight[..., None]
        self.sums[layer] = torch.where(joins[..., None], self.sums[layer], 0.0) + row
        self.members[layer] = torch.where(joins, self.members[layer] + 1, 1)
        if t:
            self.cache.bias[layer][:, :, t - 1].masked_fill_(joins, -math.inf)
        self.evicted += joins.sum(1).float() / (s.layers * s.kv_heads)
        means = (self.sums[layer][..., :-1] / self.sums[layer][..., -1:])[:, :, None]
        k, v = means.split(s.head_dim, -1)
        return rotate(q * self.keep, cos, sin) * self.keep, rotate(k, cos, sin), v
