"""Any boolean mask on a GPU, at lengths that models have, against float64 of every score."""

from __future__ import annotations

import pytest

from gpu_inputs import GPU, close, inputs, leaves, torch

from splash_attention import splash_attention
from splash_attention.backends.torch import modified


def poison():
    """What the allocator hands out next holds no zeros."""
    block = torch.full((1 << 28,), 255, dtype=torch.uint8, device=GPU)
    del block


def blocks(*shape):
    """Tiles of 48 rows and 64 keys that are empty, whole or mixed."""
    *front, rows, keys = shape
    kinds = torch.randint(4, (*front, -(-rows // 48), -(-keys // 64)))
    wide = kinds.repeat_interleave(48, -2).repeat_interleave(64, -1)[..., :rows, :keys]
    return (wide == 2) | (wide == 3) & (torch.rand(shape) < 0.3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("scale", [2.449, 0.1])  # standard deviations of the queries: sparse, and nearly dense
@pytest.mark.parametrize("q_len, kv_len, dim", [(4096, 4096, 64), (1024, 1024, 128), (333, 3001, 72), (1, 5000, 64)])
@pytest.mark.parametrize("shape", ["all", "batch", "heads"])
def test_a_mask(dtype, scale, q_len, kv_len, dim, shape):
    given = inputs(dtype, q_len, kv_len, dim, scale)
    front = {"all": (), "batch": (2, 1), "heads": (2, 4)}[shape]
    mask = blocks(*front, q_len, kv_len).to(GPU)
    mask[..., q_len // 2, :] = False
    mine, wide = leaves(given, GPU), leaves(given, GPU, torch.float64)
    d_out = torch.randn(given[0].shape, device=GPU).to(dtype)
    poison()
    out = splash_attention(*mine, causal=True, mask=mask)
    poison()
    out.backward(d_out)
    expected = modified.attention(*wide, causal=True, mask=mask)
    expected.backward(d_out.double())
    for a, b in zip((out, *(t.grad for t in mine)), (expected, *(t.grad for t in wide))):
        assert a.isfinite().all()
        if q_len > 1:
            close(a, b.cpu(), dtype)
    assert (out[:, :, q_len // 2] == 0).all()


def test_every_run_gives_the_same_bits_with_everything_beside():
    given = inputs(torch.bfloat16, 777, 777)
    mask = blocks(4, 777, 777).to(GPU)
    results = []
    for _ in range(4):
        q, k, v = leaves(given, GPU)
        others = {"softcap": 4.0, "sinks": torch.linspace(-1, 1, 4, device=GPU), "k_keep": 50}
        out = splash_attention(q, k, v, alpha=[1.2, 1.5, 1.8, 2.0], causal=True, window=250, mask=mask, **others)
        out.float().square().sum().backward()
        results.append((out, q.grad, k.grad, v.grad))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_a_mask_that_hides_nothing_changes_nothing_and_one_compiles():
    q, k, v = leaves(inputs(torch.float32), GPU)
    assert torch.equal(splash_attention(q, k, v, mask=torch.ones(300, 300, dtype=torch.bool, device=GPU)), splash_attention(q, k, v))
    mask = blocks(2, 1, 300, 300).to(GPU)
    expected = splash_attention(q, k, v, mask=mask)
    assert torch.equal(torch.compile(lambda *given: splash_attention(*given[:3], mask=given[3]), fullgraph=True)(q, k, v, mask), expected)


def test_what_the_kernels_do_not_take_is_computed_without_them():
    q, k, v = leaves(inputs(torch.float64), GPU)
    mask = blocks(2, 1, 300, 300).to(GPU)
    close(splash_attention(q, k, v, alpha=2.5, mask=mask), modified.attention(q, k, v, alpha=2.5, mask=mask).cpu(), torch.float64)
