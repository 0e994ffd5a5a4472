"""What the command-line tests share: the built program, and tiny experiments for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# A CI that runs in the background ignores SIGINT. The programs that these tests start would inherit that and ignore it, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TINY = """\
title = "Solvers on small rows"
kind = "entmax-solver"

[fixed]
n = {n}
rows = 2
samples = 1

[axes]
alpha = [1.25, 1.5, 2.0]
solver = ["bisection", "newton", "halley_bisection"]
seed = {seeds}
"""


class Splash:
    """Runs the program in a folder of its own."""

    def __init__(self, program: Path, folder: Path):
        self.program, self.folder = program, folder

    def environment(self, **changes: str) -> dict[str, str]:
        environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "SPLASH_ROOT")}
        return environment | {"OMP_NUM_THREADS": "1"} | changes

    def __call__(self, *words: object, env: dict[str, str] | None = None, **options) -> subprocess.CompletedProcess:
        options.setdefault("stdin", subprocess.DEVNULL) if "input" not in options else None
        options.setdefault("timeout", 120)
        return subprocess.run(
            [str(self.program), *map(str, words)],
            cwd=self.folder,
            env=self.environment(**(env or {})),
            text=True,
            capture_output=True,
            **options,
        )

    def start(self, *words: object) -> subprocess.Popen:
        return subprocess.Popen(
            [str(self.program), *map(str, words)],
            cwd=self.folder,
            env=self.environment(),
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def json(self, *words: object, **options):
        done = self(*words, "--json", **options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def refused(self, *words: object, code: int = 2, **options) -> str:
        """The one sentence with which the program refuses."""
        done = self(*words, **options)
        lines = done.stderr.splitlines()
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        assert len(lines) == 1 and lines[0].startswith("splash: "), done.stderr
        assert done.stdout == ""
        return lines[0]

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def tiny(self, name: str = "tiny.toml", n: int = 64, seeds: list[int] = [1, 2], more: str = "") -> Path:
        return self.write(name, TINY.format(n=n, seeds=seeds) + more)


@pytest.fixture(scope="session")
def program() -> Path:
    named = os.environ.get("SPLASH_BIN")
    path = Path(named) if named else ROOT / "build/release/bin/splash"
    if not path.exists():
        pytest.fail(f"there is no program at {path}; ./splash test builds it")
    return path


@pytest.fixture
def splash(program: Path, tmp_path: Path) -> Splash:
    return Splash(program, tmp_path)


def reproducible(report: dict) -> list[dict]:
    """The cases of `splash show --results --json`, without the columns that differ from run to run."""
    lasting = {c["name"] for c in report["columns"] if c["reproducible"]} | {"case_id"}
    return [{k: v for k, v in case.items() if k in lasting} for case in report["cases"]]
