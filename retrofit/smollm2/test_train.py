"""The training's attention against the rule, token by token. Run by hand: python -m pytest test_train.py (CPU, no model needed)."""
import random

import torch

from evaluate import attend_masked
from fetch_text import book
from model import attend_blocks
from talk import Talk
from train import decide, plain_attend

HEADS, KV, T, D, WINDOW = 6, 2, 40, 8, 5


def tensors(seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(1, h, T, D, generator=g, dtype=torch.float64) for h in (HEADS, KV, KV)], g


def step_by_step(q, k, v, decision, shift=1):
    """One token after another: the decision at t marks t - shift, a marked key goes when it is more than WINDOW back."""
    out = torch.zeros_like(q)
    for h in range(HEADS):
        kv, slots, marked = h // (HEADS // KV), [], set()
        for t in range(T):
            if t >= shift and decision[0, kv, t]:
                marked.add(t - shift)
            slots = [s for s in slots + [t] if t - s <= WINDOW or s not in marked]
            p = (k[0, kv, slots] @ q[0, h, t] * D ** -0.5).softmax(0)
            out[0, h, t] = p @ v[0, kv, slots]
    return out


def test_masked_attention_is_the_rule():
    (q, k, v), g = tensors()
    decision = torch.rand(1, KV, T, generator=g) < 0.7
    marks = torch.cat([decision[..., 1:], torch.zeros(1, KV, 1, dtype=torch.bool)], -1)
    assert torch.allclose(attend_masked(q, k, v, marks.float() * -1e9, WINDOW).double(), step_by_step(q, k, v, decision), atol=1e-5)


def test_relaxation_becomes_the_rule():
    """With sharp decisions and no noise the student's attention is the rule's, for both shifts."""
    (q, k, v), g = tensors(1)
    x = torch.randn(1, T, 16, generator=g)
    proj = torch.randn(KV, 16, generator=g)
    for shift in (0, 1):
        alpha, bias = decide(x, torch.ones(16), proj, torch.full((1, KV, T), 0.5), 1e-5, 1e-3, shift)
        ours = plain_attend(WINDOW)(q, k, v, bias)
        assert torch.allclose(ours.double(), step_by_step(q, k, v, alpha > 0.5, shift), atol=1e-4)


def test_gradient_reaches_the_adapter():
    (q, k, v), g = tensors(2)
    x, u = torch.randn(1, T, 16, generator=g), torch.rand(1, KV, T, generator=g)
    gain, proj = torch.ones(16, requires_grad=True), (torch.randn(KV, 16, generator=g) * 0.01).requires_grad_()

    def loss(gain, proj):
        alpha, bias = decide(x, gain, proj, u, 1e-5, 50.0, 0)
        return attend_blocks(q, k, v, bias=bias, window=WINDOW).double().pow(2).sum() + alpha.sum()

    loss(gain, proj).backward()
    for p, at in ((proj, (1, 3)), (gain, (5,))):
        with torch.no_grad():
            old, sides = p[at].item(), []
            for e in (1e-2, -1e-2):
                p[at] = old + e
                sides.append(loss(gain, proj).item())
            p[at] = old
        assert abs((sides[0] - sides[1]) / 2e-2 - p.grad[at].item()) < 1e-2 * max(1.0, abs(p.grad[at].item()))


class Characters:
    """A tokenizer with a token a character, as much of Base as Talk needs."""
    def encode(self, text):
        return [ord(c) for c in text]

    def encode_all(self, texts):
        return [self.encode(t) for t in texts]


def test_far_rows_tell_early_and_ask_late():
    talk = Talk(Characters(), [{"user": "a question", "answer": "an answer " * 9}], "train")
    begins = []
    for seed in range(20):
        ids, spans = talk.row(9000, seed, "far")
        text = "".join(map(chr, ids))
        assert len(ids) == 9000 and len(spans) == 10
        facts = [text[a:b] for a, b in spans]
        told = [text.index(fact) for fact in facts]
        assert max(told) < 9000 // 3 + 2000 < min(a for a, _ in spans)
        begins.append(min(told) > 1000)
    assert any(begins) and not all(begins)


def test_training_draws_long_texts_more_often():
    talk = Talk(Characters(), [], "train", outside={"docs": ["a" * 100, "b" * 9900]})
    first = [talk.pick(random.Random(i), talk.outside["docs"])[0] for i in range(200)]
    assert first.count(ord("b")) > 180


def test_a_book_is_without_its_preamble():
    text = "Title\n*** START OF THIS PROJECT GUTENBERG EBOOK X ***\n\nOne.\nTwo.\n*** END OF THIS PROJECT GUTENBERG EBOOK X ***\nlicence"
    assert book(text) == "One.\nTwo."
