"""Sliding windows on a GPU, at lengths that models have, against float64 computed some queries at a time."""

from __future__ import annotations

import pytest

from gpu_inputs import GPU, HOST, close, inputs, leaves, torch

from splash_attention import splash_attention
from splash_attention.backends.torch import cuda, modified

ROWS = 512  # of the reference at a time


def reference(q, k, v, window, causal):
    """In float64, of the keys that some of its rows see."""
    outs, shift = [], k.shape[2] - q.shape[2]
    for begin in range(0, q.shape[2], ROWS):
        end = min(begin + ROWS, q.shape[2])
        low, high = max(0, begin + shift + 1 - window), max(1, end + shift + (0 if causal else window - 1))
        high = min(high, k.shape[2])
        part = q[:, :, begin:end]
        place = torch.arange(begin, end, device=q.device) + (shift - low)
        mask = torch.arange(high - low, device=q.device) <= place[:, None] + (0 if causal else window - 1)
        outs.append(modified.attention(part, k[:, :, low:high], v[:, :, low:high], first_keys=place + (1 - window), mask=mask))
    return torch.cat(outs, 2)


def poison():
    """What the allocator hands out next holds no zeros."""
    block = torch.full((1 << 28,), 255, dtype=torch.uint8, device=GPU)
    del block


def check(given, dtype, window, causal=True):
    q, k, v = leaves(given, GPU)
    d_out = torch.randn(q.shape, device=GPU).to(dtype)
    poison()
    out = splash_attention(q, k, v, causal=causal, window=window)
    poison()
    out.backward(d_out)
    assert torch.equal(splash_attention(*(t.detach() for t in (q, k, v)), causal=causal, window=window), out)
    wide = leaves(given, GPU, torch.float64)
    expected = reference(*wide, window, causal)
    expected.backward(d_out.double())
    for mine, other in zip((out, q.grad, k.grad, v.grad), (expected, *(t.grad for t in wide))):
        assert mine.isfinite().all()
        close(mine, other.cpu(), dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [2.449, 0.1])  # standard deviations of the queries: sparse, and nearly dense
@pytest.mark.parametrize("dim", [64, 128])
def test_a_window_of_1024_in_16384(dtype, dim, scale):
    check(inputs(dtype, 16384, 16384, dim, scale, heads=4, kv_heads=2, batch=1), dtype, 1024)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("q_len, kv_len", [(1, 5000), (333, 3001), (1237, 1237), (4001, 4001), (700, 300)])
@pytest.mark.parametrize("window", [1, 7, 64, 65, 127, 128, 129, 1024, 4096])
def test_lengths_that_no_tile_divides(dtype, q_len, kv_len, window):
    check(inputs(dtype, q_len, kv_len, heads=4, kv_heads=2), dtype, window)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [2.449, 0.1])
def test_packed_documents_of_16384(dtype, scale):
    ends = [0, 512, 1536, 5632, 5633, 9000, 16384]
    q, k, v = inputs(dtype, 16384, 16384, 64, scale, heads=4, kv_heads=2, batch=1)
    cu = torch.tensor(ends, device=GPU)
    mine, apart = leaves((q, k, v), GPU), leaves((q, k, v), GPU)
    poison()
    out = splash_attention(*mine, causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu)
    parts = [[t[:, :, a:b] for t in apart] for a, b in zip(ends, ends[1:])]
    expected = torch.cat([splash_attention(*part, causal=True) for part in parts], 2)
    for result in (out, expected):
        result.float().square().sum().backward()
    for a, b in zip((out, *(t.grad for t in mine)), (expected, *(t.grad for t in apart))):
        close(a, b.cpu(), dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("q_len, kv_len", [(1, 5000), (333, 3001), (4001, 4001), (700, 300)])
@pytest.mark.parametrize("window", [1, 65, 1000])
def test_windows_to_both_sides(dtype, q_len, kv_len, window):
    check(inputs(dtype, q_len, kv_len, heads=4, kv_heads=2), dtype, window, causal=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_window_in_packed_sequences_is_that_of_each(dtype):
    ends = [0, 1, 130, 130, 1200, 2500]
    q, k, v = inputs(dtype, 2500, 2500, batch=1)
    cu = torch.tensor(ends, device=GPU)
    for window in (None, 1, 100, 700):
        mine, apart = leaves((q, k, v), GPU), leaves((q, k, v), GPU)
        out = splash_attention(*mine, causal=True, window=window, cu_seqlens_q=cu, cu_seqlens_k=cu)
        parts = [[t[:, :, a:b] for t in apart] for a, b in zip(ends, ends[1:]) if a < b]
        expected = torch.cat([splash_attention(*part, causal=True, window=window) for part in parts], 2)
        for result in (out, expected):
            result.float().square().sum().backward()
        close(out, expected.cpu(), dtype)
        close(mine[2].grad, apart[2].grad.cpu(), dtype)
        for a, b in zip(mine[:2], apart[:2]):
            if window == 1:  # one key has probability 1 whatever its score
                assert max(a.grad.norm(), b.grad.norm()) < 1e-4 * mine[2].grad.norm()
            else:
                close(a.grad, b.grad.cpu(), dtype)


def test_a_window_that_hides_nothing_is_causal_attention():
    q, k, v = (t.to(GPU) for t in inputs())
    expected = splash_attention(q, k, v, causal=True)
    for window in (300, 10**15):
        assert torch.equal(splash_attention(q, k, v, causal=True, window=window), expected)
    assert not torch.equal(splash_attention(q, k, v, causal=True, window=150), expected)


def test_a_window_with_alphas_of_heads_that_are_learned():
    given = inputs(torch.bfloat16, 700, 900)
    results = []
    for device, kind in ((GPU, torch.bfloat16), (HOST, torch.float64)):
        q, k, v = leaves(given, device, kind)
        alpha = torch.tensor([1.25, 1.5, 1.75, 1.9], device=device, requires_grad=True)
        out = splash_attention(q, k, v, alpha=alpha, causal=True, window=130)
        out.square().sum().backward()
        results.append((out, q.grad, k.grad, v.grad, alpha.grad))
    for mine, other in zip(results[0][:4], results[1][:4]):
        close(mine, other, torch.bfloat16)
    torch.testing.assert_close(results[0][4].cpu().double(), results[1][4].double(), rtol=0.05, atol=0.05)


def test_a_window_with_padding_k_keep_and_alphas_of_heads():
    given = inputs(torch.bfloat16, 290, 333)
    alpha = torch.tensor([1.2, 1.5, 1.8, 2.0])
    padding = torch.zeros(2, 333, dtype=torch.int32)
    padding[0, :40] = 1
    results = []
    for device, kind in ((GPU, torch.bfloat16), (HOST, torch.float64)):
        q, k, v = leaves(given, device, kind)
        tables = {"q_positions": torch.zeros(290, dtype=torch.int32, device=device), "k_positions": padding.to(device)}
        out, aux = splash_attention(q, k, v, alpha=alpha.to(device), causal=True, window=70, k_keep=9, return_aux=True, **tables)
        out.square().sum().backward()
        results.append((out, q.grad, k.grad, v.grad, aux))
    for mine, other in zip(results[0][:4], results[1][:4]):
        close(mine, other, torch.bfloat16)
    assert (results[0][4].support.cpu() <= 9).all()
    torch.testing.assert_close(results[0][4].tau.cpu().double(), results[1][4].tau, atol=2e-5, rtol=2e-5)


def test_it_compiles_and_is_captured():
    q, k, v = leaves(inputs(), GPU)
    expected = splash_attention(q, k, v, causal=True, window=70)
    compiled = torch.compile(lambda *tensors: splash_attention(*tensors, causal=True, window=70), fullgraph=True)
    out = compiled(q, k, v)
    assert torch.equal(out, expected)
    gradients = [torch.autograd.grad(x.float().square().sum(), (q, k, v)) for x in (out, expected)]
    assert all(torch.equal(a, b) for a, b in zip(*gradients))
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        captured = splash_attention(q, k, v, causal=True, window=70)
    graph.replay()
    assert torch.equal(captured, expected)


def test_a_call_with_known_lengths_is_looked_up_on_its_stream_alone():
    """By the library (python/bindings/repeated_calls.h), which gives the same bits; what was written into the lengths counts."""
    given = inputs(torch.bfloat16, 2500, 2500, batch=1)
    cu = torch.tensor([0, 130, 1200, 2500], device=GPU)

    def both_passes():
        q, k, v = leaves(given, GPU)
        out = splash_attention(q, k, v, causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu)
        out.float().square().sum().backward()
        return out.detach(), q.grad, k.grad, v.grad

    def is_known():
        q, k, v = (t.to(GPU) for t in given)
        try:
            return torch.equal(cuda.repeated(q, k, v, False, 1.5, True, 0.0, 0, 0, (cu, cu))[0], first[0])
        except cuda.Unknown:
            return False

    first, side = both_passes(), torch.cuda.Stream()
    assert is_known()
    for a, b in zip(first, both_passes(), strict=True):
        assert torch.equal(a, b)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        assert not is_known()
        other = both_passes()
        assert is_known()
    torch.cuda.current_stream().wait_stream(side)
    assert all(torch.equal(a, b) for a, b in zip(first, other))
    cu[1] = 131
    assert not is_known() and not torch.equal(both_passes()[0], first[0])
