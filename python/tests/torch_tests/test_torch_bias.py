"""A bias by head and distance of splash_attention: against bisection in float64, with gradients, compiled and with everything beside."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
import bisection  # noqa: E402
from distances import of_pairs  # noqa: E402

from splash_attention import splash_attention  # noqa: E402

BATCH, HEADS, KV_HEADS, ROWS, KEYS, DIM = 2, 4, 2, 9, 13, 8
ALPHAS = [1.2, 1.5, 1.7, 2.0]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def inputs(dtype=torch.float64, rows=ROWS, keys=KEYS):
    q = 2 * torch.randn(BATCH, HEADS, rows, DIM, dtype=torch.float64)
    k, v = torch.randn(2, BATCH, KV_HEADS, keys, DIM, dtype=torch.float64)
    return [x.to(dtype).requires_grad_() for x in (q, k, v)]


@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-8), (torch.float32, 2e-5), (torch.float16, 3e-3), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("distances, first", [(5, -2), (40, -25), (1, 7), (6, None)])
@pytest.mark.parametrize("parts", [{}, {"causal": True, "softcap": 1.7, "k_keep": [2, 5, 0, 4]}], ids=["alone", "with others"])
def test_a_bias_is_that_of_bisections(distances, first, parts, dtype, bound):
    q, k, v = inputs(dtype)
    alpha, bias = torch.tensor(ALPHAS, dtype=torch.float64), 2 * torch.randn(HEADS, distances, dtype=torch.float64)
    alpha.requires_grad_(), bias.requires_grad_()
    out = splash_attention(q, k, v, alpha=alpha, scale=0.6, bias=bias, bias_first=first, **parts)
    dense = of_pairs(bias, ROWS, KEYS, 1 - distances if first is None else first)
    mask = torch.ones(ROWS, KEYS, dtype=torch.bool).tril(KEYS - ROWS) if parts else None
    others = {name: part for name, part in parts.items() if name != "causal"}
    expected = bisection.attention(q, k, v, alpha=alpha, scale=0.6, mask=mask, bias=dense, **others)[0]
    assert out.dtype == dtype
    d_out = torch.randn(out.shape, dtype=torch.float64)
    mine, other = (torch.autograd.grad((o.double() * d_out).sum(), [q, k, v, alpha, bias]) for o in (out, expected))
    size = other[0].norm()  # a bias of one distance changes nothing
    for a, b in zip((out, *mine), (expected, *other)):
        assert (a.double() - b.double()).norm() < bound * b.detach().double().norm().clamp(min=size)
    assert mine[-1].shape == bias.shape


def test_packed_sequences_have_it_in_each():
    q, k, v = inputs(torch.float32, 12, 12)
    bias = torch.randn(HEADS, 7)
    cu = torch.tensor([0, 5, 12])
    out = splash_attention(q, k, v, causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu, bias=bias)
    parts = [[x[:, :, a:b] for x in (q, k, v)] for a, b in ((0, 5), (5, 12))]
    torch.testing.assert_close(out, torch.cat([splash_attention(*part, causal=True, bias=bias) for part in parts], 2))
    with pytest.raises(NotImplementedError, match="queries and keys have the same cu_seqlens"):
        splash_attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=torch.tensor([0, 4, 12]), bias=bias)


def test_alibi_is_the_bias_of_its_distances():
    q, k, v = inputs(torch.float32)
    slopes = 2.0 ** -torch.arange(1, HEADS + 1)
    distances = torch.arange(1 - KEYS, 1.0)
    out = splash_attention(q, k, v, causal=True, bias=slopes[:, None] * distances)
    mask = torch.ones(ROWS, KEYS, dtype=torch.bool).tril(KEYS - ROWS)
    by_key = slopes[:, None, None] * torch.arange(KEYS)  # as entmax is the same for scores that all are moved
    expected = bisection.attention(q, k, v, mask=mask, bias=by_key)[0]
    torch.testing.assert_close(out.double(), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_gradients_are_differences(how):
    q, k, v = inputs()
    sinks, bias = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((HEADS,), (HEADS, 6)))

    def call(q, k, v, sinks, bias):
        return splash_attention(q, k, v, causal=True, softcap=2.0, sinks=sinks, bias=bias, bias_first=-4)

    torch._dynamo.reset()
    call = torch.compile(call, fullgraph=True, backend="aot_eager") if how == "compiled" else call
    assert torch.autograd.gradcheck(call, (q, k, v, sinks, bias), fast_mode=True)


def test_one_graph_serves_every_length():
    calls = []

    def backend(graph, example):
        calls.append(graph)
        return graph.forward

    def call(q, k, v, bias):
        return splash_attention(q, k, v, bias=bias, bias_first=1 - k.shape[2])

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend=backend, dynamic=True)
    for rows in (5, 9, 12):
        q, k, v = inputs(torch.float32, rows, rows + 2)
        bias = torch.randn(HEADS, 2 * rows + 1)
        torch.testing.assert_close(compiled(q, k, v, bias), call(q, k, v, bias))
    assert len(calls) == 1


def test_an_alpha_of_each_batch_entry_and_head_has_the_bias_of_the_head():
    q, k, v = inputs()
    alpha, bias = 1.2 + 0.8 * torch.rand(BATCH, HEADS, dtype=torch.float64), torch.randn(HEADS, 5, dtype=torch.float64, requires_grad=True)
    out = splash_attention(q, k, v, alpha=alpha, bias=bias, bias_first=-3)
    apart = [splash_attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], alpha=alpha[b], bias=bias, bias_first=-3) for b in range(BATCH)]
    torch.testing.assert_close(out, torch.cat(apart))
    mine, theirs = (torch.autograd.grad(o.square().sum(), bias)[0] for o in (out, torch.cat(apart)))
    torch.testing.assert_close(mine, theirs)


def test_aux_and_numpy_have_it():
    q, k, v = inputs(torch.float32)
    bias = np.random.default_rng(1).normal(size=(HEADS, 9))
    arrays = [t.detach().numpy() for t in (q, k, v)]
    out, aux = splash_attention(q, k, v, bias=torch.from_numpy(bias), return_aux=True)
    torch.testing.assert_close(torch.from_numpy(splash_attention(*arrays, bias=bias)), out.detach())
    np.testing.assert_array_equal(splash_attention(*arrays, bias=bias.tolist()), splash_attention(*arrays, bias=bias))
    _, p = bisection.attention(q, k, v, bias=of_pairs(torch.from_numpy(bias), ROWS, KEYS, -8))
    torch.testing.assert_close(aux.probabilities().to_dense().view(p.shape).double(), p, atol=1e-5, rtol=1e-4)


REFUSED = [
    ({"bias": torch.ones(4)}, ValueError, "bias has shape [4]; it must be [4, distances], a row for each query head"),
    ({"bias": torch.ones(2, 5)}, ValueError, "bias has shape [2, 5]; it must be [4, distances], a row for each query head"),
    ({"bias": torch.ones(4, 0)}, ValueError, "bias has shape [4, 0]; it must be [4, distances], a row for each query head"),
    ({"bias": torch.ones(4, 5, dtype=torch.int32)}, TypeError, "bias is of int32; it must be of floating-point numbers"),
    ({"bias": torch.ones(4, 5), "bias_first": 0.5}, TypeError, "bias_first is a float; it must be an integer, or None"),
    ({"bias_first": 3}, ValueError, "bias_first is 3 without a bias; pass both, or neither"),
    ({"bias": torch.full((4, 5), torch.nan)}, ValueError, "a bias is nan; it must be finite"),
]


@pytest.mark.parametrize("call, kind, sentence", REFUSED)
def test_bad_input_gets_one_sentence(call, kind, sentence):
    with pytest.raises(kind) as caught:
        splash_attention(*inputs(), **call)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
