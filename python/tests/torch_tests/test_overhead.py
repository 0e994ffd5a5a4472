"""What a call from Python costs over the C++ call. The aim is 20 us; the bound here is for slow and busy machines.

Measured by `pytest -rP`: see docs/questions/how-do-i-use-it-from-python.md.
"""

from __future__ import annotations

import time
from typing import Callable

import numpy as np
import pytest

pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_attention import _core, splash_attention  # noqa: E402

LIMIT = 100e-6  # s


def seconds(call: Callable[[], object], calls: int = 200) -> float:
    """Of one call, of its own thread: the least of many batches, for whatever else the machine does only adds."""
    least = float("inf")
    for _ in range(25):
        begin = time.thread_time()
        for _ in range(calls):
            call()
        least = min(least, (time.thread_time() - begin) / calls)
    return least


def bare() -> float:
    array = np.random.default_rng(0).standard_normal((1, 1, 1, 8)).astype(np.float32)
    spec = _core.Spec(1, 1, 1, 1, 1, 8, [1.5], 0.0, False, 0, 0, None, None, None, None)
    return seconds(lambda: _core.attention_forward(spec, array, array, array, False))


@pytest.mark.parametrize("gradients", [False, True])
def test_of_torch_tensors(gradients: bool) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    q = torch.randn(1, 1, 1, 8, requires_grad=gradients)
    overhead = seconds(lambda: splash_attention(q, q, q)) - bare()
    print(f"{1e6 * overhead:.1f} us over the C++ call, gradients: {gradients}")
    assert overhead < LIMIT, f"{1e6 * overhead:.1f} us"


def test_of_numpy_arrays() -> None:
    array = np.zeros((1, 1, 1, 8), np.float32)
    overhead = seconds(lambda: splash_attention(array, array, array)) - bare()
    print(f"{1e6 * overhead:.1f} us over the C++ call")
    assert overhead < LIMIT, f"{1e6 * overhead:.1f} us"
