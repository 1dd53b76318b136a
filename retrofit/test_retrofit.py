"""Softened decisions of the retrofit and the share of paths. Run by hand: python -m pytest test_retrofit.py (CPU, no model file needed)."""
import random

import torch

from conversation import Memory, search_turn
from retrofit import relaxed


def gradient(soft):
    """(alpha, gradient of the biases' sum) where every token is evicted by a wide margin, far above any noise."""
    torch.manual_seed(0)
    logits = torch.full((1, 1, 4000), 150.0, requires_grad=True)
    alpha, bias = relaxed(logits, torch.zeros_like(logits), 0.1, soft)
    bias.clamp(min=-1e4).exp().sum().backward()
    return alpha, logits.grad


def test_a_softened_decision_has_a_gradient_where_a_hard_one_has_none():
    assert gradient(0.0)[1].abs().max() == 0
    share = (gradient(0.3)[1] < 0).float().mean()
    assert 0.25 < share < 0.35


def test_softening_leaves_the_mean_decision_alone_and_draws_nothing_when_off():
    for soft in (0.0, 0.3):
        assert torch.equal(gradient(soft)[0], torch.ones(1, 1, 4000))
    z = torch.linspace(-3, 3, 50)[None, None]
    state = torch.random.get_rng_state()
    relaxed(z, torch.zeros_like(z), 0.1)
    assert torch.equal(state, torch.random.get_rng_state())


def test_paths_take_their_share_of_the_search_turns():
    def paths(share):
        rng = random.Random(3)
        return sum(search_turn(rng, Memory(), share).task == "path" for _ in range(400)) / 400
    assert 0.19 < paths(0.0) < 0.31 and 0.55 < paths(0.5) < 0.70
