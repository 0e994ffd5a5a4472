"""The examples run as their comments say. That of C++ is built by ctest, that of a rung is in the ladders' tests."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1]
ROOT = EXAMPLES.parent
PROGRAM = os.environ.get("SPLASH_BIN")


def run(words: list[str], folder: Path) -> str:
    done = subprocess.run(words, cwd=folder, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", sorted((EXAMPLES / "python").glob("*.py")), ids=lambda path: path.name)
def test_python_examples_run_as_they_say(path: Path):
    assert f"PYTHONPATH=python python examples/python/{path.name} " in path.read_text()
    assert run([sys.executable, str(path)], ROOT).strip()


@pytest.mark.skipif(PROGRAM is None, reason="SPLASH_BIN names no built splash")
def test_the_experiment_runs_as_its_comment_says(tmp_path: Path):
    [path] = (EXAMPLES / "experiment").glob("*.toml")
    said = re.findall(r"^#   \./splash (.*)$", path.read_text(), re.M)
    assert len(said) == 2
    for words in said:
        run([PROGRAM, *(w.replace("report.h5", str(tmp_path / "report.h5")) for w in shlex.split(words))], ROOT)
    report = json.loads(run([PROGRAM, "show", "report.h5", "--results", "--json"], tmp_path))
    support = {(case["input"], case["alpha"]): case["support_mean"] for case in report["cases"]}
    assert len(support) == 6
    assert support["gaussian", 1.25] > support["gaussian", 1.5] > support["gaussian", 2.0] >= 1


def test_the_rung_is_what_splash_new_writes_filled_in():
    skeleton = (ROOT / "experiments/skeletons/rung.cu.in").read_text().splitlines()
    [path] = (EXAMPLES / "rung").glob("*.cu")
    rung = path.read_text()
    kept = [line for line in skeleton if line in rung.splitlines()]
    assert len(kept) > 0.6 * len(skeleton)
    assert f".rung = {path.name.split('_')[0]}," in rung and '.ladder = "examples",' in rung
