"""Soft caps, sinks and dropout of splash_attention: against bisection in float64, with gradients, compiled and checkpointed."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
import bisection  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from splash_attention import splash_attention  # noqa: E402

BATCH, HEADS, KV_HEADS, ROWS, KEYS, DIM = 2, 4, 2, 9, 13, 8
ALPHAS = [1.2, 1.5, 1.7, 2.0]
SINKS = [0.4, -3.0, 1.5, float("-inf")]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def inputs(dtype=torch.float64, factor=2.0):
    q = factor * torch.randn(BATCH, HEADS, ROWS, DIM, dtype=torch.float64)
    k, v = torch.randn(2, BATCH, KV_HEADS, KEYS, DIM, dtype=torch.float64)
    return [x.to(dtype).requires_grad_() for x in (q, k, v)]


def causal_mask():
    return torch.ones(ROWS, KEYS, dtype=torch.bool).tril(KEYS - ROWS)


@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-8), (torch.float32, 2e-5), (torch.float16, 3e-3), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("parts", [["softcap"], ["sinks"], ["softcap", "sinks"], ["softcap", "sinks", "k_keep"]])
def test_soft_caps_and_sinks_are_bisections(parts, dtype, bound):
    q, k, v = inputs(dtype)
    sinks, alpha = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (SINKS, ALPHAS))
    given = {"softcap": 1.7, "sinks": sinks, "k_keep": [2, 5, 0, 4]}
    given = {name: given[name] for name in parts}
    out = splash_attention(q, k, v, alpha=alpha, causal=True, scale=0.6, **given)
    expected = bisection.attention(q, k, v, alpha=alpha, scale=0.6, mask=causal_mask(), **given)[0]
    assert out.dtype == dtype
    leaves, d_out = [q, k, v, alpha, *([sinks] if "sinks" in parts else [])], torch.randn(out.shape, dtype=torch.float64)
    mine, other = (torch.autograd.grad((o.double() * d_out).sum(), leaves) for o in (out, expected))
    for a, b in zip((out, *mine), (expected, *other)):
        assert (a.double() - b.double()).norm() < bound * b.double().norm()


def test_a_query_without_keys_has_its_sink_alone():
    q, k, v = inputs()
    out, aux = splash_attention(q, k[:, :, :4], v[:, :, :4], causal=True, sinks=torch.zeros(HEADS), return_aux=True)
    assert (out[:, :, :5] == 0).all() and (aux.tau[:, :, :5] == -1).all() and (aux.support[:, :, :5] == 0).all()
    out.sum().backward()
    assert all(t.grad.isfinite().all() for t in (q, k, v))


def test_aux_tells_of_probabilities_before_dropout_and_without_the_sink():
    q, k, v = inputs(torch.float32)
    out, aux = splash_attention(q, k, v, sinks=torch.tensor(SINKS), softcap=2.0, dropout=0.5, return_aux=True)
    _, p = bisection.attention(q, k, v, sinks=torch.tensor(SINKS), softcap=2.0)
    torch.testing.assert_close(aux.probabilities().to_dense().view(p.shape).double(), p, atol=1e-5, rtol=1e-4)
    assert torch.equal(aux.support, (p > 0).sum(-1).int())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_drops_its_share_and_leaves_the_rest(dtype):
    q, k, _ = inputs(dtype, 0.1)
    unit = torch.eye(KEYS, dtype=dtype).expand(BATCH, KV_HEADS, KEYS, KEYS)
    wide = lambda t: torch.nn.functional.pad(t, (0, KEYS - DIM))
    p = splash_attention(wide(q), wide(k), unit, scale=0.3)
    dropped = total = 0
    for _ in range(50):
        drawn = splash_attention(wide(q), wide(k), unit, scale=0.3, dropout=0.3)
        kept = drawn > 0
        torch.testing.assert_close(drawn, torch.where(kept, p / 0.7, 0))
        dropped, total = dropped + (p[~kept] > 0).sum().item(), total + (p > 0).sum().item()
    assert abs(dropped / total - 0.3) < 4 * (0.21 / total) ** 0.5


@pytest.mark.parametrize("how", ["eager", "compiled", "checkpointed"])
def test_backward_drops_what_forward_dropped(how):
    q, k, v = inputs()
    sinks = torch.tensor(SINKS[:3] + [0.1], dtype=torch.float64, requires_grad=True)

    def call(q, k, v, sinks):
        return splash_attention(q, k, v, alpha=1.5, causal=True, softcap=2.0, sinks=sinks, dropout=0.4)

    torch._dynamo.reset()
    ways = {"eager": call, "compiled": torch.compile(call, fullgraph=True, backend="aot_eager")}
    ways["checkpointed"] = lambda *given: checkpoint(call, *given, use_reentrant=False)

    def seeded(*given):
        torch.manual_seed(3)
        return ways[how](*given)

    assert not torch.equal(ways[how](q, k, v, sinks), ways[how](q, k, v, sinks))
    assert torch.autograd.gradcheck(seeded, (q, k, v, sinks), fast_mode=True)


def test_a_seed_drops_the_same_in_every_dtype_and_call():
    from splash_attention.backends.torch.functional import TABLES, problem_of
    from splash_attention.modifications import Modifications

    q, k, v = inputs()
    problem = problem_of(q, k, v, 1.5, False, None, None, None, dict.fromkeys(TABLES), modifications=Modifications(dropout=0.5))
    ops = torch.ops.splash_attention
    wide = ops.attention(q, k, v, *problem, False, False, -1)[0]
    narrow = ops.attention(q.float(), k.float(), v.float(), *problem, False, False, -1)[0]
    torch.testing.assert_close(narrow.double(), wide, atol=1e-4, rtol=1e-4)
    other = problem._replace(dropout_seed=problem.dropout_seed + 1)
    assert not torch.equal(ops.attention(q, k, v, *other, False, False, -1)[0], wide)


def test_an_alpha_of_each_batch_entry_and_head_has_the_sinks_of_the_head():
    q, k, v = inputs()
    alpha, sinks = 1.2 + 0.8 * torch.rand(BATCH, HEADS, dtype=torch.float64), torch.tensor(SINKS, dtype=torch.float64, requires_grad=True)
    out = splash_attention(q, k, v, alpha=alpha, sinks=sinks, softcap=1.5)
    apart = [splash_attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], alpha=alpha[b], sinks=sinks, softcap=1.5) for b in range(BATCH)]
    torch.testing.assert_close(out, torch.cat(apart))
    mine, theirs = (torch.autograd.grad(o.square().sum(), sinks)[0] for o in (out, torch.cat(apart)))
    torch.testing.assert_close(mine, theirs)


def test_numpy_has_them_but_for_dropout():
    q, k, v = inputs(torch.float32)
    arrays = [t.detach().numpy() for t in (q, k, v)]
    mine = splash_attention(*arrays, softcap=1.7, sinks=SINKS)
    torch.testing.assert_close(torch.from_numpy(mine), splash_attention(q, k, v, softcap=1.7, sinks=SINKS).detach())
    np.testing.assert_array_equal(splash_attention(*arrays, softcap=1.7, sinks=np.array(SINKS)), mine)
    with pytest.raises(NotImplementedError, match="dropout draws from PyTorch's generator; pass torch tensors, or dropout=0"):
        splash_attention(*arrays, dropout=0.1)


REFUSED = [
    ({"softcap": 0}, ValueError, "softcap is 0; it must be a finite number above 0, or None"),
    ({"softcap": float("inf")}, ValueError, "softcap is inf; it must be"),
    ({"softcap": "5"}, TypeError, "softcap is a str; it must be a number, or None"),
    ({"dropout": 1}, ValueError, "dropout is 1; it must be at least 0 and below 1"),
    ({"dropout": True}, TypeError, "dropout is a bool; it must be a number"),
    ({"sinks": [1.0, 2.0]}, ValueError, "sinks has shape [2]; it must be [4], one a query head"),
    ({"sinks": torch.ones(4, 1)}, ValueError, "sinks has shape [4, 1]; it must be [4], one a query head"),
    ({"sinks": torch.ones(4, dtype=torch.int32)}, TypeError, "sinks is of int32; it must be of floating-point numbers"),
    ({"sinks": torch.tensor([0.0, float("nan"), 0.0, 0.0])}, ValueError, "a sink is nan; it must be a number, or -inf for none"),
]


@pytest.mark.parametrize("call, kind, sentence", REFUSED)
def test_bad_input_gets_one_sentence(call, kind, sentence):
    with pytest.raises(kind) as caught:
        splash_attention(*inputs(), **call)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
