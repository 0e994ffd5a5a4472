"""Heads in the kernels' order and in a model's, and queries times a factor of each head: the bits of plain PyTorch's, and gradients."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")
from splash_attention import _core  # noqa: E402
from splash_attention.hugging_face.head_order import in_kernel_order, in_model_order, scaled_queries  # noqa: E402

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


def of_a_model(device, dtype, batch=2, rows=1100, heads=6, head_dim=40):
    return torch.randn(batch, rows, heads, head_dim, device=device).to(dtype).transpose(1, 2)


def part_of_a_projection(device, dtype, apart=0):
    """Queries beside keys and values, `apart` elements further than a multiple of 16 bytes."""
    return torch.randn(2, 130, 3 * 4 * 64 + 8, device=device).to(dtype)[..., 256 + apart : 512 + apart].unflatten(2, (4, 64)).transpose(1, 2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "make",
    [
        of_a_model,
        part_of_a_projection,
        lambda *a: part_of_a_projection(*a, apart=3),
        lambda *a: of_a_model(*a, batch=1, rows=1),
        lambda *a: of_a_model(*a, heads=1, rows=33, head_dim=256),
        lambda *a: of_a_model(*a, rows=70, head_dim=20),
        lambda *a: of_a_model(*a).contiguous(),
    ],
    ids=["model", "projection", "unaligned", "one row", "one head", "odd head_dim", "in order"],
)
def test_orders(device, dtype, make):
    heads = make(device, dtype).requires_grad_()
    batch, count, rows, head_dim = heads.shape
    there, back = in_kernel_order(heads), in_model_order(heads)
    assert there.is_contiguous() and torch.equal(there, heads)
    assert back.is_contiguous() and back.shape == (batch, rows, count, head_dim) and torch.equal(back, heads.transpose(1, 2))
    for d_out in (torch.randn_like(there), torch.randn(batch, rows, count, head_dim, device=device).to(dtype).transpose(1, 2)):
        (d_there,) = torch.autograd.grad(there, heads, d_out, retain_graph=True)
        (d_back,) = torch.autograd.grad(back, heads, d_out.transpose(1, 2), retain_graph=True)
        assert torch.equal(d_there, d_out) and torch.equal(d_back, d_out)
    factors = (0.2 + torch.rand(count, device=device)).requires_grad_()
    scaled, theirs = scaled_queries(heads, factors), plainly(heads, factors)
    assert torch.equal(scaled, theirs)
    (d_heads, d_factors), (reference, _) = (torch.autograd.grad(out, (heads, factors), d_out) for out in (scaled, theirs))
    assert torch.equal(d_heads, reference)
    exact = (heads.double() * d_out.double()).sum((0, 2, 3))
    torch.testing.assert_close(d_factors.double(), exact, rtol=1e-5, atol=2e-3 if dtype == torch.float32 else 1e-3)


def test_every_run_gives_the_same_bits_of_a_factors_gradient():
    if len(DEVICES) == 1:
        pytest.skip("PyTorch finds no GPU here, or this build has no CUDA")
    query, factors = of_a_model("cuda", torch.bfloat16).requires_grad_(), torch.rand(6, device="cuda", requires_grad=True)
    d_out = torch.randn_like(query)
    first, *others = (torch.autograd.grad(scaled_queries(query, factors), factors, d_out)[0] for _ in range(20))
    assert all(torch.equal(first, other) for other in others)
