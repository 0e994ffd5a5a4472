"""A process that is forked after calls on PyTorch's tensors: the child computes, too."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")

SCRIPT = """
import multiprocessing, torch
from splash_attention import entmax, splash_attention

torch.manual_seed(1)
inputs = [torch.randn(1, 4, 384, 64) for _ in range(3)]  # large enough for PyTorch's own threads

def step(_=0):
    q, k, v = (x.clone().requires_grad_() for x in inputs)
    out = splash_attention(q, k, v, alpha=1.5, causal=True)
    (out.sum() + entmax(q, alpha=1.5).sum()).backward()
    return [x.detach().numpy().tobytes() for x in (out, q.grad, k.grad, v.grad)]

expected = step()
with multiprocessing.get_context("fork").Pool(1) as pool:
    print(all(found == expected for found in pool.map(step, range(2), 1)), torch.get_num_threads())
"""


def test_a_forked_child_computes_and_the_parent_keeps_its_threads() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
        # Where PyTorch sees a GPU, its autograd cannot run in a fork.
        env=os.environ | {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "2"]
