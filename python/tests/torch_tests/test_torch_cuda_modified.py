"""Soft caps, sinks and dropout on a GPU, at lengths that models have, against float64 of every score and the CPU's own draws."""

from __future__ import annotations

import pytest

from gpu_inputs import GPU, HOST, close, inputs, leaves, torch

from splash_attention import splash_attention
from splash_attention.backends.torch import modified
from splash_attention.backends.torch.functional import TABLES, problem_of
from splash_attention.modifications import Modifications

OPS = torch.ops.splash_attention
PARTS = [{"softcap": 3.0}, {"sinks": True}, {"softcap": 3.0, "sinks": True}]


def poison():
    """What the allocator hands out next holds no zeros."""
    block = torch.full((1 << 28,), 255, dtype=torch.uint8, device=GPU)
    del block


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("scale", [2.449, 0.1])  # standard deviations of the queries: sparse, and nearly dense
@pytest.mark.parametrize("q_len, kv_len, dim", [(4096, 4096, 64), (4096, 4096, 128), (333, 3001, 72), (1, 5000, 64)])
@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_soft_caps_and_sinks(dtype, scale, q_len, kv_len, dim, parts):
    given = inputs(dtype, q_len, kv_len, dim, scale)
    heads = given[0].shape[1]
    sinks = torch.linspace(-1, 2, heads).to(GPU).requires_grad_() if "sinks" in parts else None
    call = {**parts, "sinks": sinks, "causal": True}
    mine, wide = leaves(given, GPU), leaves(given, GPU, torch.float64)
    d_out = torch.randn(given[0].shape, device=GPU).to(dtype)
    poison()
    out = splash_attention(*mine, **call)
    poison()
    out.backward(d_out)
    of_sinks = sinks.grad if sinks is not None else None
    expected_sinks = sinks.detach().double().requires_grad_() if sinks is not None else None
    expected = modified.attention(*wide, **{**call, "sinks": expected_sinks})
    expected.backward(d_out.double())
    for a, b in zip((out, *(t.grad for t in mine)), (expected, *(t.grad for t in wide))):
        assert a.isfinite().all()
        close(a, b.cpu(), dtype)
    if sinks is not None:  # sums over rows of either sign
        assert (of_sinks.double() - expected_sinks.grad).abs().max() < 1e-3 * (1 + expected_sinks.grad.abs().max()) * q_len**0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("q_len", [700, 4096])
def test_a_seed_drops_on_a_gpu_what_it_drops_on_a_cpu(dtype, q_len):
    given = inputs(dtype, q_len, q_len, heads=2, kv_heads=1, batch=1)
    mine, host = leaves(given, GPU), leaves(given, HOST, torch.float64)
    problem = problem_of(*mine, 1.5, True, None, None, None, dict.fromkeys(TABLES), modifications=Modifications(2.0, None, 0.3))
    on_host = problem._replace(dropout_seed=problem.dropout_seed.cpu())
    d_out = torch.randn(given[0].shape).to(dtype)
    poison()
    out = OPS.attention(*mine, *problem, False, False, 100000)[0]
    poison()
    out.backward(d_out.to(GPU))
    expected = OPS.attention(*host, *on_host, False, False, -1)[0]
    expected.backward(d_out.double())
    for a, b in zip((out, *(t.grad for t in mine)), (expected, *(t.grad for t in host))):
        close(a, b, dtype)


def test_a_captured_graph_draws_anew_with_each_replay():
    q, k, v = (t.to(GPU) for t in inputs())
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            splash_attention(q, k, v, dropout=0.5)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = splash_attention(q, k, v, dropout=0.5)
    graph.replay()
    first = out.clone()
    graph.replay()
    assert first.isfinite().all() and not torch.equal(first, out)


def test_what_the_kernels_do_not_take_is_told():
    q, k, v = (t.to(GPU) for t in inputs(torch.float64))
    with pytest.raises(NotImplementedError, match="on a GPU softcap, sinks, dropout and bias take float16"):
        splash_attention(q, k, v, softcap=3.0)
