"""What torch_cuda does around the kernels, on tensors in host memory: in the kernels' place stand functions that note
what they were told and fill their outputs with ones. The kernels themselves: test_torch_cuda.py, on a GPU."""

from __future__ import annotations

import ctypes
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
core = pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_attention import torch_cuda, torch_ops  # noqa: E402

HEADS, KV_HEADS, ROWS, KEYS, DIM = 4, 2, 5, 7, 8
REFUSED = [1.5, 2.0, 1.0, 2.5], [torch.nan, 1.2, 1.3, 1.0001], [1.5, 1.5, 1.5, torch.inf]


def array(address: int, count: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_char * (4 * count)).from_address(address), np.float32)


@pytest.fixture
def told(monkeypatch):
    """The kernels' alphas, call by call."""
    told = []

    class Call:
        def __init__(self, device, dtype, capacity, all_rows, addresses, mask):
            _, _, _, self.alpha, self.tau, _, self.store, _ = addresses

    def forward(spec, call, out):
        told.append(array(call.alpha, len(spec.alphas)).tolist())
        array(out, 2 * HEADS * ROWS * DIM)[:] = 1
        array(call.tau, 2 * HEADS * ROWS)[:] = 1
        array(call.store, 2)[:] = 0  # entries used

    def backward(spec, call, d_out, d_q, d_k, d_v, d_alpha, workspace):
        told.append(array(call.alpha, len(spec.alphas)).tolist())
        array(d_q, 2 * HEADS * ROWS * DIM)[:] = 1
        for gradient in (d_k, d_v):
            array(gradient, 2 * KV_HEADS * KEYS * DIM)[:] = 1
        array(d_alpha, HEADS)[:] = 1

    kernels = types.SimpleNamespace(
        CudaCall=Call, cuda_forward=forward, cuda_backward=backward, cuda_store_bytes=lambda *_: 8,
        cuda_backward_bytes=lambda *_: 8,
    )  # fmt: skip
    monkeypatch.setattr(torch_cuda, "_core", kernels)
    monkeypatch.setattr(torch_cuda, "_place", lambda tensor: (0, 0))
    monkeypatch.setattr(torch_ops, "make_spec_of", lambda q, k, problem, tables: types.SimpleNamespace(alphas=problem[0]))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return told


@pytest.mark.parametrize("alphas", REFUSED)
def test_heads_whose_alpha_is_not_taken_become_nan(told, alphas):
    q = torch.randn(2, HEADS, ROWS, DIM)
    k, v = torch.randn(2, 2, KV_HEADS, KEYS, DIM)
    alpha = torch.tensor(alphas)
    problem = (alpha, 0.0, False, 0.0, 0, None, None, None, None)
    refused = torch.tensor([not 1 < a <= 2 for a in alphas])
    of_keys = refused.view(KV_HEADS, -1).any(1)

    out, tau, support, _, store = torch_cuda.attention(q, k, v, *problem, False, 64, True)
    gradients = torch_cuda.attention_backward(out, q, k, v, *problem, 64, True, tau, support, store)
    for result, nan in zip((out, tau, *gradients[:3]), (refused, refused, refused, of_keys, of_keys)):
        assert torch.equal(result.isnan(), nan.view(-1, *[1] * (result.dim() - 2)).expand_as(result))
        assert (result.nan_to_num(1.0) == 1).all()
    assert torch.equal(gradients[3].isnan(), refused) and gradients[3].dtype == torch.float64
    kernels = torch.where(refused, 1.5, alpha).tolist()
    assert told == [kernels, kernels]
    torch.testing.assert_close(alpha, torch.tensor(alphas), rtol=0, atol=0, equal_nan=True)  # the caller's own


def test_one_alpha_for_all_heads(told):
    q = torch.randn(2, HEADS, ROWS, DIM)
    problem = (torch.full((1,), torch.nan), 0.0, False, 0.0, 0, None, None, None, None)
    out, tau, *_ = torch_cuda.attention(q, q, q, *problem, False, -1, False)
    assert out.isnan().all() and tau.isnan().all() and told == [[1.5]]


def test_what_inference_mode_left_is_no_obstacle_to_gradients():
    torch_cuda._nothing.cache_clear()
    with torch.inference_mode():
        torch_cuda._nothing(torch.float32, torch.device("cpu"))
    assert not torch_cuda._nothing(torch.float32, torch.device("cpu")).is_inference()
