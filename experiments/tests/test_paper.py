"""`splash paper`: published tables beside the recorded reports."""

from __future__ import annotations

import csv
import io
import re
import shlex

import pytest

from conftest import ROOT, Splash

PAPERS = ROOT / "data" / "reports" / "papers-h200.h5"


def rows(splash: Splash, *words: object) -> list[dict[str, str]]:
    done = splash("paper", *words, "--format", "csv")
    assert done.returncode == 0, done.stderr
    head, *lines = csv.reader(io.StringIO(done.stdout))
    names = [name if head.index(name) == at else f"{name}, value" for at, name in enumerate(head)]
    return [dict(zip(names, line, strict=True)) for line in lines]


def names(splash: Splash) -> list[str]:
    return [line.split()[0] for line in splash("paper").stdout.splitlines()[1:] if not line.startswith(" ")]


def test_ours_is_what_the_report_holds(splash: Splash):
    (cell,) = (
        cell["value"]
        for cell in splash.json("table", PAPERS, "--rows", "implementation", "--value", "time_median", "--where", "experiment=adasplash-rows")["cells"]
        if cell["row"]["implementation"] == "torch-adasplash"
    )
    told = [row for row in rows(splash, "adasplash-solvers") if row["ours"] == "torch-adasplash"]
    assert [row["theirs, value"] for row in told] == ["2.38"]
    assert float(told[0]["ours, value"]) == pytest.approx(1e3 * cell) and told[0]["ours / theirs"] == "GPU not stated"
    (speedup,) = (row for row in rows(splash, "adasplash-solvers") if row["ours"] == "torch-bisection / torch-adasplash")
    assert float(speedup["theirs, value"]) == pytest.approx(36.67 / 2.38)
    assert float(speedup["ours / theirs"]) == pytest.approx(float(speedup["ours, value"]) / (36.67 / 2.38))


def test_every_table_in_every_format(splash: Splash):
    assert len(names(splash)) >= 8
    for name in names(splash):
        lines = rows(splash, name)
        assert any(row["ours, value"] not in ("–", "not measured") for row in lines), name
        for row in lines:  # a ratio or words, never neither
            assert row["ours / theirs"] or row["ours, value"] == "not measured", (name, row)
    markdown = splash("paper", "all", "--format", "markdown").stdout
    assert markdown.count("\n|---|") == len(names(splash)) and "| ours / theirs |" in markdown
    latex = splash("paper", "kascade-prefill", "--format", "latex").stdout
    assert latex.count("\\begin{tabular}") == 1 and "not measured" in latex and "% not measured: ./splash run layers" in latex


def test_what_is_not_measured_can_be(splash: Splash):
    """Each command that a table prints plans the cases that it lacks, and no others."""
    commands = re.findall(r"^not measured: \./splash (.*)$", splash("paper", "all").stdout, re.MULTILINE)
    assert commands
    for command in commands:
        words = shlex.split(command)
        planned = splash(*words, "--dry-run", env={"CUDA_VISIBLE_DEVICES": ""})
        assert planned.returncode == 0, (command, planned.stderr)
        wanted = words[-1].count('"') // 2 or 1
        assert f": {wanted} cases, " in planned.stdout + planned.stderr, (command, planned.stdout, planned.stderr)


def test_other_reports_and_refusals(splash: Splash):
    other = rows(splash, "kascade-prefill", PAPERS)
    assert {row["ours, value"] for row in other} == {"not measured", "–"}
    assert "did you mean 'kascade-prefill'?" in splash.refused("paper", "kascade-prefil")
    assert "--digits" in splash.refused("paper", "kascade-prefill", "--digits", "0")
    assert "allowed: text, markdown, latex and csv" in splash.refused("paper", "all", "--format", "html5")
