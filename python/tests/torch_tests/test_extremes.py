"""Scores near the ends of a dtype's range, at any alpha: times alpha - 1 they would leave it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_attention import AdaptiveSplashAttention, entmax, splash_attention  # noqa: E402

LARGEST = {torch.float64: 1.7e308, torch.float32: 3e38, torch.bfloat16: 3e38, torch.float16: 6e4}
ALPHAS = (1.000001, 1.05, 1.5, 2.0, 2.0001, 3.0, 10.0, 64.0)
INF = float("inf")
ROWS = {"range": [1, 0, -1], "ties": [1, 1, 0], "near": [1, 0.984375, -1], "below": [-1, -1, -0.5], "masked": [-1, -INF, -0.25]}
EXPECTED = {"range": [1, 0, 0], "ties": [0.5, 0.5, 0], "near": [1, 0, 0], "below": [0, 0, 1], "masked": [0, 0, 1]}


def forms(alpha: float) -> list[Any]:
    return [alpha, torch.tensor([alpha], dtype=torch.float64)]


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@pytest.mark.parametrize("row", ROWS)
def test_entmax(dtype: torch.dtype, row: str) -> None:
    x = (torch.tensor(ROWS[row], dtype=torch.float64) * LARGEST[dtype]).to(dtype)
    expected = torch.tensor(EXPECTED[row], dtype=torch.float64)
    for alpha in ALPHAS:
        for given in forms(alpha):
            torch.testing.assert_close(entmax(x, given).double(), expected, atol=4e-3 if dtype.itemsize == 2 else 2e-6, rtol=0)
        if dtype != torch.bfloat16:
            p = torch.from_numpy(entmax(x.numpy(), alpha))
            assert torch.equal(p, entmax(x, alpha))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("row", ["range", "ties", "below"])
def test_attention(dtype: torch.dtype, row: str) -> None:
    root = 0.99 * LARGEST[dtype] ** 0.5
    q = torch.full((1, 1, 1, 1), root, dtype=dtype, requires_grad=True)
    k = (root * torch.tensor(ROWS[row], dtype=dtype)).view(1, 1, 3, 1).requires_grad_()
    v = torch.arange(1, 4, dtype=dtype).view(1, 1, 3, 1).requires_grad_()
    expected = (torch.tensor(EXPECTED[row], dtype=dtype) * v.detach().flatten()).sum()
    for alpha in ALPHAS[1:]:
        outs = [splash_attention(q, k, v, alpha=given, scale=1.0) for given in forms(alpha)]
        outs.append(AdaptiveSplashAttention(1, alpha, sm_scale=1.0)(q, k, v))
        if dtype != torch.bfloat16:
            arrays = (tensor.detach().numpy() for tensor in (q, k, v))
            outs.append(torch.from_numpy(splash_attention(*arrays, alpha=alpha, scale=1.0)))
        for out in outs:
            torch.testing.assert_close(out.detach().flatten()[0], expected, atol=1e-2, rtol=0)
            if out.requires_grad:
                assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(out.sum(), (q, k, v)))
