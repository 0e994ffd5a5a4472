"""`splash plot` and `splash page` hand over to the Python laboratory, and say in one sentence where they cannot."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from conftest import ROOT, Splash

REPORT = ROOT / "data" / "reports" / "cpu-speed.h5"
PYTHON = {"SPLASH_PYTHON": sys.executable}


def test_plot(splash: Splash):
    words = ("plot", REPORT, "--out", "plots", "--format", "pdf")
    done = splash(*words, "--only", "attention-speed", "--size", "7x4", "--title", "As fast as this", env=PYTHON)
    assert (done.returncode, done.stdout, done.stderr) == (0, "plots/attention-speed.pdf\n", "")
    assert (splash.folder / "plots/attention-speed.pdf").read_bytes().startswith(b"%PDF")
    columns = ("--x", "threads", "--y", "time_median", "--by", "implementation", "--where", "pass=forward")
    done = splash(*words, *columns, env=PYTHON)
    assert (done.returncode, done.stdout) == (0, "plots/time_median-over-threads.pdf\n")
    assert "attention-speed" in splash("plot", "--list", env=PYTHON).stdout


def test_page(splash: Splash):
    done = splash("page", REPORT, "--out", "p.html", "--title", "A page", "--columns", "implementation,time_median", env=PYTHON)
    assert (done.returncode, done.stdout, done.stderr) == (0, "p.html\n", "")
    assert "<h1>A page</h1>" in (splash.folder / "p.html").read_text()


def test_what_they_refuse(splash: Splash):
    assert "a report is needed" in splash.refused("plot")
    assert "REPORT is required" in splash.refused("page")
    done = splash("plot", "nothing.h5", env=PYTHON)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: nothing.h5: no such file\n")


@pytest.mark.parametrize(
    "module, words, sentence",
    [
        ("plots", ("--only", "attention-sped"), "did you mean 'attention-speed'?"),
        ("plots", ("--size", "7"), "WIDTHxHEIGHT"),
        ("plots", ("--format", "gif"), "allowed: png, svg, pdf"),
        ("plots", ("--x", "thread", "--y", "time_median"), "did you mean 'threads'?"),
        ("page", ("--columns", "thread"), "did you mean 'threads'?"),
    ],
)
def test_what_the_laboratory_refuses(module: str, words: tuple[str, ...], sentence: str, capsys, tmp_path, monkeypatch):
    """Which the program hands on; another process for each would take seconds."""
    monkeypatch.chdir(tmp_path)
    main = importlib.import_module(f"splash_laboratory.{module}.cli").main
    try:
        code = main([str(REPORT), *words])
    except SystemExit as ended:
        code = ended.code
    told = capsys.readouterr()
    assert (code, told.out, told.err.count("\n")) == (2, "", 1) and sentence in told.err, told.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["plot", "page"])
def test_without_python_or_a_package(splash: Splash, command: str):
    bare = splash.write("python", f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    assert "could not be started" in splash.refused(command, REPORT, env={"SPLASH_PYTHON": "/nowhere/python"})
    assert "the project has no .venv" in splash.refused(command, REPORT, env={"SPLASH_PYTHON": "", "SPLASH_ROOT": str(splash.folder)})
    assert "lacks the package" in splash.refused(command, REPORT, env={"SPLASH_PYTHON": str(bare)})
    assert [path.name for path in Path(splash.folder).iterdir()] == ["python"]


def test_a_run_beside_another(splash: Splash):
    before, after = (ROOT / "data" / "reports" / f"ladders-{gpu}.h5" for gpu in ("h100", "h200"))
    done = splash("page", after, "--beside", before, "--out", "p.html", env=PYTHON)
    assert (done.returncode, done.stdout, done.stderr) == (0, "p.html\n", "")
    page = (splash.folder / "p.html").read_text()
    part = page[page.index('<section id="beside"') : page.index('<section id="rooflines"')]
    told = json.loads(splash("compare", before, after, "--json").stdout)
    assert f"Cases of both runs: {told['matched_cases']}; of that run alone: {len(told['only_before'])}. That run:" in part
    assert "NVIDIA H100 80GB HBM3" in part
    changes = [one["change"] for one in told["times"]]
    for change in ("SLOWER", "FASTER", "UNSURE", "SAME"):
        shown = part.count(f'<tr data-verdict="{change}">')
        assert shown == (0 if change == "SAME" else changes.count(change)) and changes.count(change) > 0
    assert part.count('<tr data-verdict="DIFFERENT">') == sum(one["change"] == "DIFFERENT" for one in told["columns"])
    assert all(one["id"] in part for one in told["claims"])
    done = splash("page", after, "--beside", "nothing.h5", env=PYTHON)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: nothing.h5: no such file\n")
