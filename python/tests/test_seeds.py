"""A test draws the same numbers wherever it runs, and a failure says how to draw them again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
DRAWS = """\
import numpy as np

def test_first():
    np.random.standard_normal(3)

def test_second():
    assert not f"drawn {np.random.standard_normal()}"
"""


def failure(folder: Path, *words: str, seed: str | None = None) -> tuple[str, str]:
    """(what test_second drew, the seed that its failure names)."""
    (folder / "test_draws.py").write_text(DRAWS)
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"}
    environment.pop("SPLASH_TEST_SEED", None)
    if seed is not None:
        environment["SPLASH_TEST_SEED"] = seed
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", "-c", os.devnull, *words, "test_draws.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    drawn, said = re.search(r"drawn (\S+)'", done.stdout), re.search(r"SPLASH_TEST_SEED=(\d+) draws the same numbers", done.stdout)
    assert drawn and said, done.stdout + done.stderr
    return drawn[1], said[1]


def test_a_test_draws_its_own_numbers_and_a_failure_says_how_to_draw_them_again(tmp_path):
    drawn, seed = failure(tmp_path)
    assert seed == "1"
    drawn_alone, fresh = failure(tmp_path, "-k", "second", seed="random")
    assert drawn_alone != drawn and fresh != seed
    assert failure(tmp_path, seed=fresh) == (drawn_alone, fresh), "the test before it changed what it draws"
