"""What the GPU's tests share: a skip where there is no GPU, inputs, and how near results must be.

SPLASH_TEST_GPU=cpu runs them on the CPU in the GPU's place: test_gpu_tests_themselves.py does, for those that need no more.
"""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
core = pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
HOST, GPU = torch.device("cpu"), torch.device(os.environ.get("SPLASH_TEST_GPU", "cuda"))
if GPU.type == "cuda" and not torch.cuda.is_available():
    pytest.skip("PyTorch finds no GPU here", allow_module_level=True)
if GPU.type == "cuda" and not core.has_cuda:
    pytest.skip("this build has no CUDA", allow_module_level=True)

BOUND = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 2e-5, torch.float64: 1e-12}


def inputs(dtype=torch.bfloat16, q_len=300, kv_len=300, dim=64, scale=2.0, heads=4, kv_heads=2, batch=2):
    shapes = ((batch, heads, q_len, dim), (batch, kv_heads, kv_len, dim), (batch, kv_heads, kv_len, dim))
    return [(factor * torch.randn(shape)).to(dtype) for shape, factor in zip(shapes, (scale, 1, 1))]


def leaves(tensors, device, dtype=None):
    return [t.to(device, dtype or t.dtype).detach().requires_grad_() for t in tensors]


def close(mine, reference, dtype, times=1):
    reference = reference.detach().double()
    error = (mine.detach().double().cpu() - reference).norm() / reference.norm().clamp(min=1e-30)
    assert error < times * BOUND[dtype], float(error)


def clear_rows(q, k, k_keep):
    """[batch, heads, q_len, 1], of causal attention: whether float32 tells a row's k_keep-th largest score from the next. Where it does not,
    which key is kept says nothing."""
    heads, (q_len, kv_len) = q.shape[1], (q.shape[2], k.shape[2])
    kept = k_keep if isinstance(k_keep, list) else [k_keep or 0] * heads
    scores = q.double() @ k.double().repeat_interleave(heads // k.shape[1], 1).mT
    hidden = torch.ones(q_len, kv_len, dtype=torch.bool).triu(kv_len - q_len + 1)
    largest = scores.masked_fill(hidden, 0).abs().amax(-1)
    scores = scores.masked_fill(hidden, -torch.inf).sort(-1, descending=True).values
    clear = torch.ones_like(largest, dtype=torch.bool)
    for head, count in enumerate(kept):
        if 0 < count < kv_len:
            gap = scores[:, head, :, count - 1] - scores[:, head, :, count]
            clear[:, head] = ~(gap <= 4e-6 * largest[:, head])
    return clear[..., None]


def chosen_of(keys, kv_len):
    """Of each tile and key, whether it is in the tile's list; behind them whether a place is empty: [batch, kv_heads, tiles, kv_len + 1]."""
    return torch.zeros(*keys.shape[:3], kv_len + 1, dtype=torch.bool, device=GPU).scatter_(3, keys.long(), True)
