"""A bias by head and distance on a GPU, at lengths that models have, against float64 of every score."""

from __future__ import annotations

import pytest

from distances import of_pairs
from gpu_inputs import GPU, close, inputs, leaves, torch

from splash_attention import splash_attention
from splash_attention.backends.torch import modified


def poison():
    """What the allocator hands out next holds no zeros."""
    block = torch.full((1 << 28,), 255, dtype=torch.uint8, device=GPU)
    del block


def alibi(heads, kv_len):
    return 2.0 ** -torch.arange(1, heads + 1)[:, None] * torch.arange(1 - kv_len, 1.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("scale", [2.449, 0.1])  # standard deviations of the queries: sparse, and nearly dense
@pytest.mark.parametrize("q_len, kv_len, dim", [(4096, 4096, 64), (1024, 1024, 128), (333, 3001, 72), (1, 5000, 64)])
@pytest.mark.parametrize("distances", [257, "alibi"])
def test_a_bias(dtype, scale, q_len, kv_len, dim, distances):
    # A row with one key in its support has no gradient, only rounding errors of one: of one query a case, so many that some have more keys.
    given = inputs(dtype, q_len, kv_len, dim, scale, batch=2 if q_len > 1 else 32)
    heads = given[0].shape[1]
    table = alibi(heads, kv_len) if distances == "alibi" else torch.randn(heads, distances)
    first = 1 - kv_len if distances == "alibi" else -200
    (*mine, bias), (*wide, other) = leaves((*given, table), GPU), leaves((*given, table), GPU, torch.float64)
    d_out = torch.randn(given[0].shape, device=GPU).to(dtype)
    poison()
    out = splash_attention(*mine, causal=True, bias=bias, bias_first=first)
    poison()
    out.backward(d_out)
    expected = modified.attention(*wide, causal=True, bias=of_pairs(other, q_len, kv_len, first)[None])
    expected.backward(d_out.double())
    for a, b in zip((out, *(t.grad for t in mine)), (expected, *(t.grad for t in wide))):
        assert a.isfinite().all()
        close(a, b.cpu(), dtype)
    close(bias.grad, other.grad.cpu(), dtype, 2)


def test_every_run_gives_the_same_bits_with_everything_beside():
    given = inputs(torch.bfloat16, 777, 777)
    cu = torch.tensor([0, 200, 201, 777], device=GPU)
    results = []
    for _ in range(4):
        q, k, v, bias = leaves((*given, alibi(4, 300)), GPU)
        others = {"softcap": 4.0, "sinks": torch.linspace(-1, 1, 4, device=GPU), "cu_seqlens_q": cu, "cu_seqlens_k": cu}
        out = splash_attention(q, k, v, alpha=[1.2, 1.5, 1.8, 2.0], causal=True, window=250, bias=bias, **others)
        out.float().square().sum().backward()
        results.append((out, q.grad, k.grad, v.grad, bias.grad))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_it_compiles_and_is_captured():
    q, k, v, bias = leaves((*inputs(), alibi(4, 300)), GPU)
    call = lambda *given: splash_attention(*given[:3], causal=True, bias=given[3])
    expected = call(q, k, v, bias)
    out = torch.compile(call, fullgraph=True)(q, k, v, bias)
    gradients = [torch.autograd.grad(x.float().square().sum(), (q, k, v, bias)) for x in (out, expected)]
    assert torch.equal(out, expected) and all(torch.equal(a, b) for a, b in zip(*gradients))
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        captured = call(q, k, v, bias)
    with torch.no_grad():
        bias += torch.randn_like(bias)
        graph.replay()
        assert torch.equal(captured, call(q, k, v, bias))
