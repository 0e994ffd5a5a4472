"""What a call from Python costs over the C++ call. The aim is 20 us.

A test counts in units of plain Python work done in the same moment, so that a slow or busy machine changes both sides.
Measured by `pytest -rP`: see docs/questions/how-do-i-use-it-from-python.md.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_attention import _core, splash_attention  # noqa: E402

LIMIT = 8  # units; 2 to 4 were measured, on idle and on busy machines


def unit() -> None:
    """Some 15 us of interpreter, objects and calls on a machine of 2025."""
    made = {}
    for i in range(100):
        made[str(i)] = (i,)


@contextmanager
def without_collections() -> Iterator[None]:
    """A collection looks at every object of the process: its cost says how many tests ran before this one."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def least_seconds(*calls: Callable[[], object], batches: int = 25, batch: int = 200) -> list[float]:
    """Of each call, of its own thread: the least of many batches, taken in turn, for other work of the machine only adds."""
    least = [float("inf")] * len(calls)
    with without_collections():
        for _ in range(batches):
            for i, call in enumerate(calls):
                begin = time.thread_time()
                for _ in range(batch):
                    call()
                least[i] = min(least[i], (time.thread_time() - begin) / batch)
    return least


def check(call: Callable[[], object], of: str) -> None:
    array = np.random.default_rng(0).standard_normal((1, 1, 1, 8)).astype(np.float32)
    spec = _core.Spec(1, 1, 1, 1, 1, 8, [1.5], 0.0, False, 0, 0, None, None, None, None)
    whole, bare, one = least_seconds(call, lambda: _core.attention_forward(spec, array, array, array, False), unit)
    units = (whole - bare) / one
    print(f"{1e6 * (whole - bare):.1f} us over the C++ call, {units:.1f} units, {of}")
    assert units < LIMIT, f"{units:.1f} units of {1e6 * one:.1f} us"


@pytest.mark.parametrize("gradients", [False, True])
def test_of_torch_tensors(gradients: bool) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    q = torch.randn(1, 1, 1, 8, requires_grad=gradients)
    check(lambda: splash_attention(q, q, q), f"PyTorch, gradients: {gradients}")


def test_of_numpy_arrays() -> None:
    array = np.zeros((1, 1, 1, 8), np.float32)
    check(lambda: splash_attention(array, array, array), "NumPy")
