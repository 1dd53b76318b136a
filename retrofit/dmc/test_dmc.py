"""DMC's parallel form against the rule, token by token. Run by hand: python -m pytest test_dmc.py (CPU, no model file needed)."""
import pytest
import torch

from dmc import attention as dmc
from dmc.attention import Exact, PoolingAttention, Relaxed, clear_decisions, forced_open, pool, relax, weakened
from dmc.sampler import DmcSampler
from demo.model import Model, Shape, attend_dense, rope_tables, rotate
from demo.sampler import Weights

SHAPE = Shape(vocab=32, hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=48)
T = 150                   # more than two chunks, not a multiple of one


def tensors(seed, length=T):
    g = torch.Generator().manual_seed(seed)
    make = lambda *size: torch.randn(*size, generator=g, dtype=torch.float64)
    q, k, v = (make(1, h, length, SHAPE.head_dim) for h in (4, 2, 2))
    cos, sin = (x.double() for x in rope_tables(SHAPE, length, "cpu"))
    return q, k, v, make(1, 2, length), torch.rand(1, 2, length, generator=g, dtype=torch.float64) + 0.05, cos, sin


def step_by_step(q, k, v, decision, weight, cos, sin):
    """One token after another with a list of slots: {sums, weights, members, newest position}. Returns (output, slots of each head)."""
    out, live = torch.zeros_like(q), []
    for lane in range(k.shape[1]):
        slots = []
        for t in range(k.shape[2]):
            kt, vt, o = k[0, lane, t], v[0, lane, t], weight[0, lane, t]
            if slots and decision[0, lane, t] > 0 and slots[-1]["members"] < dmc.MEMBERS:
                slot = slots[-1]
                slot.update(k=slot["k"] + o * kt, v=slot["v"] + o * vt, z=slot["z"] + o, members=slot["members"] + 1, at=t)
            else:
                slots.append({"k": o * kt, "v": o * vt, "z": o, "members": 1, "at": t})
            keys = torch.stack([rotate(s["k"] / s["z"], cos[s["at"]], sin[s["at"]]) for s in slots])
            values = torch.stack([s["v"] / s["z"] for s in slots])
            for h in (2 * lane, 2 * lane + 1):
                out[0, h, t] = (keys @ q[0, h, t] * SHAPE.head_dim ** -0.5).softmax(0) @ values
        live.append(len(slots))
    return out, live


@pytest.mark.parametrize("lean", [-1.5, 0.5, 4.0])      # from few members to slots that are cut at the most
def test_exact_is_the_rule(lean):
    q, k, v, decision, weight, cos, sin = tensors(1)
    wanted, live = step_by_step(q, k, v, decision + lean, weight, cos, sin)
    got, opens = Exact()(q, k, v, decision + lean, weight, cos, sin)
    assert torch.allclose(got, wanted, atol=1e-6)
    assert opens.sum(-1)[0].tolist() == live
    assert lean < 4 or max(live) == 3        # all join: the first token and two cuts


def test_forced_open_cuts_full_slots():
    joins = torch.ones(1, 200, dtype=torch.bool)
    joins[0, 70] = False
    assert forced_open(joins)[0].nonzero().flatten().tolist() == [0, 64, 134, 198]


def test_pool_is_the_recurrence():
    """Soft decisions, among them ones near 0 and 1, over several chunks."""
    _, k, v, decision, weight, _, _ = tensors(2)
    _, log_join, _ = relax(decision, 0.0, 0.2)
    keys, values = pool(k, v, weight, log_join)
    s = torch.zeros(1, 2, 2 * SHAPE.head_dim + 1, dtype=torch.float64)
    for t in range(T):
        a, o = log_join[:, :, t, None].exp(), weight[:, :, t, None]
        s = a * s + o * torch.cat([k[:, :, t], v[:, :, t], torch.ones_like(o)], -1)
        means = s[..., :-1] / s[..., -1:]
        assert torch.allclose(torch.cat([keys[:, :, t], values[:, :, t]], -1), means, atol=1e-9)


def test_relaxation_becomes_the_rule():
    q, k, v, decision, weight, cos, sin = tensors(3)
    join, log_join, bias = relax(decision, 0.0, 1e-4)
    keys, values = pool(k, v, weight, log_join)
    got = weakened(q, rotate(keys, cos, sin), values, bias)
    wanted, opens = Exact()(q, k, v, decision, weight, cos, sin)
    assert torch.allclose(got, wanted, atol=1e-6)
    assert torch.equal(join < 0.5, opens)


def test_flex_attention_is_the_plain_form():
    q, k, v, decision, weight, cos, sin = (x.float() for x in tensors(4, 128))
    results = []
    for flex in (False, True):
        torch.manual_seed(5)
        results.append(Relaxed(SHAPE, 128, 0.3, "cpu", flex)(q, k, v, decision, weight, cos, sin))
    assert torch.allclose(results[0][0], results[1][0], atol=1e-5) and torch.equal(results[0][1], results[1][1])


def test_gradients_are_differences():
    """Through the scan, the score mask and the weights; decisions stay on their side of 0."""
    inputs = [x.requires_grad_() for x in tensors(6, 70)[:5]]
    cos, sin = (x.double() for x in rope_tables(SHAPE, 70, "cpu"))

    def loss(q, k, v, decision, weight):
        join, log_join, bias = relax(decision, 0.0, 0.5)
        keys, values = pool(k, v, weight, log_join)
        return weakened(q, rotate(keys, cos, sin), values, bias).pow(2).sum() + join.sum()

    loss(*inputs).backward()
    for i, x in enumerate(inputs):
        for at in ((0, 0, 3), (0, 1, 66)):
            at = at + (2,) * (x.dim() - 3)
            with torch.no_grad():
                sides = [loss(*[y + (j == i) * e * one_at(y, at) if j == i else y for j, y in enumerate(inputs)]) for e in (1e-6, -1e-6)]
            assert abs(float(sides[0] - sides[1]) / 2e-6 - float(x.grad[at])) < 1e-5 * max(1.0, abs(float(x.grad[at])))


def one_at(x, at):
    one = torch.zeros_like(x)
    one[at] = 1.0
    return one


def test_the_student_starts_as_the_dense_model_and_ends_without_the_channels():
    teacher, student = Model(SHAPE).initialise(1), Model(SHAPE, PoolingAttention)
    student.load_state_dict(teacher.state_dict())
    ids = torch.randint(0, SHAPE.vocab, (2, 40), generator=torch.Generator().manual_seed(1))
    attend = Exact(merging=False)
    attend.fade = 1.0
    assert torch.allclose(student(ids, attend)[0], teacher(ids, attend_dense)[0], atol=1e-5)
    with torch.no_grad():       # decisions of a model that evicted are cleared
        for layer in student.layers:
            layer.self_attn.q_proj.weight.normal_()
    clear_decisions(student)
    assert Exact().fade == 0.0 and student(ids, Exact())[1].all()
    seen = []
    student.layers[0].self_attn(torch.randn(1, 5, SHAPE.hidden), *rope_tables(SHAPE, 5, "cpu"), recorder(seen))
    assert (seen[0][:, :, :, -1] == 0).all() and (seen[0][:, :, :, :-1] != 0).all()


def recorder(seen):
    """An `attend` after the fade that notes the queries it gets."""
    def attend(q, k, v, *rest):
        seen.append(q)
        return q, rest[0]
    attend.fade = 0.0
    return attend


def test_sampler_feeds_the_exact_model():
    """Prompts of two lengths, padded on the left, many tokens that join; slots and logits are those of one pass."""
    model = Model(SHAPE, PoolingAttention).initialise(2)
    with torch.no_grad():
        for layer in model.layers:
            layer.self_attn.q_proj.weight.normal_(generator=torch.Generator().manual_seed(3))
            layer.self_attn.q_norm.weight[-1] = 2.0
    prompts = [torch.randint(0, SHAPE.vocab, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (90, 70)]
    sampler = DmcSampler(Weights(model, "cpu"), prompts)
    sampler.select(torch.tensor([1, 0]))
    sampler.logits = sampler.step(torch.tensor([4, 5]))
    for row, ids in enumerate((prompts[1] + [4], prompts[0] + [5])):
        out, opens = model(torch.tensor([ids]), Exact())
        assert torch.allclose(sampler.logits[row], out[0, -1], atol=1e-4)
        assert abs(float(sampler.live()[row]) - float(opens.sum()) / (SHAPE.layers * SHAPE.kv_heads)) < 1e-3
        assert 1.3 < opens.numel() / float(opens.sum()) < 5
