"""What the tests share: their random numbers, the sample report, and a real one where SPLASH_BIN names a built `splash`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

for needed in ("h5py", "xarray", "h5netcdf", "matplotlib"):
    pytest.importorskip(needed)

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS), os.environ.get("SPLASH_PACKAGE", str(TESTS.parent))]  # elsewhere under sanitizers

import numpy as np  # noqa: E402
import seeds  # noqa: E402

# A CI in the background ignores SIGINT, and so would what these tests start and send it to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: of a ctest entry labelled slow")
    seeds.settle()


@pytest.fixture(autouse=True)
def own_numbers(request: pytest.FixtureRequest) -> None:
    """What PyTorch and NumPy's np.random draw in a test does not depend on the tests before it."""
    seed = seeds.seed_of(f"{request.module.__name__} {request.node.name}")
    np.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.append(("Inputs", f"{seeds.VARIABLE}={seeds.number()} draws the same numbers"))
    return report


TINY = """\
title = "A tiny study for the Python tests"
kind = "attention-accuracy"

[fixed]
text = "gfdl-1.3"
layer = 3

[axes]
head = [0, 7]
alpha = [1.5, 2.0]
scope = ["all", "row"]
k_keep = [2, 8]
"""


@pytest.fixture(scope="session")
def sample_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small, complete report, made without the splash binary."""
    from make_report import make

    return make(tmp_path_factory.mktemp("sample") / "report.h5")


@pytest.fixture(scope="session")
def real_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report that the built `splash` wrote; skipped without SPLASH_BIN."""
    program = os.environ.get("SPLASH_BIN", "")
    if not Path(program).is_file():
        pytest.skip("SPLASH_BIN names no built splash")
    folder = tmp_path_factory.mktemp("real")
    (folder / "accuracy.toml").write_text(TINY)
    command = [program, "run", "accuracy.toml", "--out", "report.h5"]
    captures = TESTS.parents[1] / "data" / "captures" / "minilm.h5"
    environment = {**os.environ, "SPLASH_CAPTURES": os.environ.get("SPLASH_CAPTURES", str(captures))}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    return folder / "report.h5"


@pytest.fixture(params=["sample", "real"])
def any_report(request: pytest.FixtureRequest) -> Path:
    """Each of the two: what holds for one holds for the other."""
    return request.getfixturevalue(f"{request.param}_report")
