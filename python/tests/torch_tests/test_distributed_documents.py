"""The example of several GPUs is what its page shows, and runs as the page says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/questions/how-do-i-use-several-gpus.md"
BLOCK = re.compile(r"^```(?:python|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def torchrun(*words: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_shows_the_example():
    code = (ROOT / "examples/python/several_gpus.py").read_text().split('"""\n\n', 1)[1]
    assert BLOCK.findall(PAGE.read_text())[0] == code


@pytest.mark.slow
def test_the_example_and_the_measurement_run_on_two_ranks(tmp_path: Path):
    commands = re.findall(r"^torchrun (.*)$", PAGE.read_text(), re.MULTILINE)
    assert len(commands) == 3
    said = torchrun(*commands[0].split())
    assert "512 tokens on each of 2 ranks" in said and said.count("1024 rows in all") == 2
    out = tmp_path / "report.json"
    small = "--device cpu --lengths 512 --heads 4 --kv-heads 4 --head-dim 32 --samples 5 --budget 0.1"
    torchrun(*commands[1].replace("report.json", str(out)).split(), *small.split())
    results = json.loads(out.read_text())["results"]
    timed = {(row["implementation"], row["ranks"]) for row in results if "seconds" in row}
    assert {("entmax-gather", 2), ("entmax-heads", 2), ("entmax-auto", 2), ("entmax", 1), ("softmax", 1)} <= timed
    assert list(tmp_path.iterdir()) == [out]
    pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")
    torchrun(*commands[2].replace("step.json", str(out)).split(), "--quick")
    losses, *steps = json.loads(out.read_text())["results"]
    assert losses["loss_of_all_ranks"] == pytest.approx(losses["loss_of_one"], rel=1e-5) and [step["ranks"] for step in steps if step["seconds"] > 0] == [2, 1]


@pytest.mark.slow
def test_the_model_of_the_page_runs_on_two_ranks(tmp_path: Path):
    pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")
    script = tmp_path / "model.py"
    script.write_text(next(block for block in BLOCK.findall(PAGE.read_text()) if "context_parallel()" in block))
    torchrun("--standalone", "--nproc-per-node", "2", str(script))
