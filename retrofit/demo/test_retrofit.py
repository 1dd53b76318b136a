"""Softened decisions of the retrofit, decisions trained alone, and the share of paths. Run by hand: python -m pytest test_retrofit.py (CPU)."""
import random

import torch

from data.conversation import Memory, search_turn
from demo.decisions import attend_gated, attend_hard, borrowed_rows
from demo.model import Shape
from demo.retrofit import relaxed, softening

SEARCH_TOKENS = torch.tensor([[0.0, 1.0]]).repeat_interleave(2000, 1)      # a row of other turns, then of search turns


def gradient(soft):
    """(alpha, gradient of the biases' sum) where every token is evicted by a wide margin, far above any noise."""
    torch.manual_seed(0)
    logits = torch.full((1, 3, 4000), 150.0, requires_grad=True)
    alpha, bias = relaxed(logits, torch.zeros_like(logits), 0.1, softening(soft, SEARCH_TOKENS))
    bias.clamp(min=-1e4).exp().sum().backward()
    return alpha, logits.grad


def test_a_softened_decision_has_a_gradient_where_a_hard_one_has_none():
    assert gradient(0.0)[1].abs().max() == 0
    share = (gradient(0.3)[1][..., 2000:] < 0).float().mean()
    assert 0.25 < share < 0.35


def test_only_decisions_of_search_turns_are_softened():
    assert gradient(1.0)[1][..., :2000].abs().max() == 0


def test_softening_leaves_the_mean_decision_alone_and_draws_nothing_when_off():
    for soft in (0.0, 0.3):
        assert torch.equal(gradient(soft)[0], torch.ones(1, 3, 4000))
    state = torch.random.get_rng_state()
    z = torch.linspace(-3, 3, 50)[None, None]
    relaxed(z, torch.zeros_like(z), 0.1, softening(0.0, torch.ones(1, 50)))
    assert torch.equal(state, torch.random.get_rng_state())


def attended(attend, logits):
    """(output, q, k, v) of one head's attention over 8 tokens; key 1 scores high and has a value of its own."""
    generator = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(1, heads, 8, 4, generator=generator) for heads in (2, 1, 1))
    k[0, 0, 1] = q[0, 0, 7]
    return attend(q, k, v, logits), v


def test_a_gated_decision_is_hard_and_its_gradient_is_that_of_letting_the_key_in():
    logits = torch.full((1, 1, 8), -90.0)
    logits[..., 2] = logits[..., 6] = 150.0         # tokens 1 and 5 are marked; 5 stays in the window of every query
    logits.requires_grad_(True)
    out, v = attended(attend_gated(2, 30.0), logits)
    assert torch.allclose(out, attended(attend_hard(2), logits)[0], atol=1e-6)
    towards = v[0, 0, 1] - out[0, 0, 7].detach()    # what key 1 would add
    (out[0, 0, 7] @ towards).backward()
    assert logits.grad[0, 0, 2] < 0                 # keeping it brings the output nearer
    assert logits.grad[0, 0, 6] == 0                # no query is further than the window from token 5


def test_only_the_borrowed_rows_are_trained():
    shape = Shape(hidden=3, heads=4, kv_heads=2, head_dim=5)
    only = borrowed_rows(torch.ones(20, 3), shape)
    assert only.sum(1).nonzero()[:, 0].tolist() == [4, 14] and only.shape == (20, 3)


def test_paths_take_their_share_of_the_search_turns():
    def paths(share):
        rng = random.Random(3)
        return sum(search_turn(rng, Memory(), share).task == "path" for _ in range(400)) / 400
    assert 0.19 < paths(0.0) < 0.31 and 0.55 < paths(0.5) < 0.70
