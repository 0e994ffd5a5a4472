"""The GPU's tests run where there is no GPU too, on the CPU in its place: one that calls what has changed fails here already."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import seeds

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")

FILES = (
    "test_kascade_cuda.py", "test_torch_cuda_bias.py", "test_torch_cuda_direct.py", "test_torch_cuda_masks.py", "test_torch_cuda_modified.py",
    "test_torch_cuda_window.py",
)  # fmt: skip
TESTS = (  # without those that need a GPU's streams, graphs, memory or time
    "both_passes and 32 and dtype0 and heads",
    "hidden_rows",
    "same_bits",
    "apart",
    "soft_caps_and_sinks and 333 and dtype2 and 2.449",
    "drops_on_a_cpu and 700 and dtype2",
    "hides_nothing",
    "alphas_of_heads",
    "packed_sequences and dtype1",
    "a_bias and 333 and dtype2 and 0.1",
    "a_mask and 333 and dtype2 and 0.1 and batch",
    "everything_beside",
    "tiles_on_a_gpu and 80",
)


def test_files_that_use_a_gpu_where_it_is_there_are_run_on_one():
    here = Path(__file__).resolve()
    lists = re.findall(r"foreach\(tests ([^)]*)\)", (here.parents[2] / "CMakeLists.txt").read_text())
    listed = {name for names in lists for name in names.split()}
    using = {file.stem.removeprefix("test_") for file in here.parent.glob("test_*.py") if re.search(r"\bDEVICES\b|skipif\(not torch\.cuda", file.read_text())}
    using.discard(here.stem.removeprefix("test_"))
    assert len(using) > 5 and {name for name in using if "_cuda" not in name} <= listed


def test_each_draws_its_own_numbers(request):
    assert torch.initial_seed() == seeds.seed_of(f"{__name__} {request.node.name}")


@pytest.mark.slow
def test_on_a_cpu():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FILES, "-k", " or ".join(f"({test})" for test in TESTS)]
    place = {"cwd": Path(__file__).resolve().parent, "env": {**os.environ, "SPLASH_TEST_GPU": "cpu"}}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **place)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout[-4000:] + done.stderr
