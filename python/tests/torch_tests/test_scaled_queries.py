"""Queries times a factor of each head: the bits of plain PyTorch's, and gradients."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")
from splash_attention import _core  # noqa: E402
from splash_attention.hugging_face.scaled import scaled_queries  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() and _core.has_cuda else [])]


def plainly(query, factors):
    return (query * factors[:, None, None]).to(query.dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("heads", [1, 6])
def test_they_are_plain_pytorchs(device, dtype, heads):
    query = torch.randn(2, 70, 6, 24, device=device).to(dtype).transpose(1, 2).requires_grad_()
    factors = (0.2 + torch.rand(heads, device=device)).requires_grad_()
    d_out = torch.randn(2, 6, 70, 24, device=device).to(dtype)
    mine, theirs = scaled_queries(query, factors), plainly(query, factors)
    assert mine.dtype == dtype and torch.equal(mine, theirs)
    (d_query, d_factors), (reference, _) = (torch.autograd.grad(out, (query, factors), d_out) for out in (mine, theirs))
    assert torch.equal(d_query, reference) and d_factors.dtype == torch.float32 and d_factors.shape == factors.shape
    exact = (query.double() * d_out.double()).sum((0, 2, 3))
    torch.testing.assert_close(d_factors.double(), exact if heads > 1 else exact.sum(0, keepdim=True), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_what_needs_no_gradient_has_none_and_a_compiled_call_is_the_same(device):
    query, factors = torch.randn(1, 4, 30, 16, device=device).bfloat16(), torch.full((4,), 0.3, device=device, requires_grad=True)
    (d_factors,) = torch.autograd.grad(scaled_queries(query, factors).sum(), factors)
    torch.testing.assert_close(d_factors, query.float().sum((0, 2, 3)))
    query.requires_grad_()
    (d_query,) = torch.autograd.grad(scaled_queries(query, factors.detach()).sum(), query)
    torch.testing.assert_close(d_query, torch.full_like(query, 0.3).bfloat16())
    compiled = torch.compile(scaled_queries, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(query, factors), scaled_queries(query, factors))
