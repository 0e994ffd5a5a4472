"""What a reader asks of the pictures: formats, size, headline, columns of their own."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from splash_laboratory import Report, open_report
from splash_laboratory.page import page_of
from splash_laboratory.page.build import page_data
from splash_laboratory.page.cli import main as page
from splash_laboratory.plots import FIGURES, style
from splash_laboratory.plots.cli import main
from splash_laboratory.plots.columns import figure_columns

REPORTS = Path(__file__).resolve().parents[2] / "data" / "reports"


@functools.cache
def recorded(name: str) -> Report:
    return open_report(REPORTS / f"{name}.h5")


def test_formats_size_and_headline(sample_report: Path, tmp_path: Path) -> None:
    words = [str(sample_report), "--out", str(tmp_path), "--only", "workloads"]
    assert main([*words, "--format", "pdf,png", "--size", "6.5x4.25", "--title", "My headline"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["workloads.pdf", "workloads.png"]
    whole = (tmp_path / "workloads.pdf").read_bytes()
    assert whole.startswith(b"%PDF") and b"/MediaBox [ 0 0 468 306 ]" in whole  # points: 72 an inch
    assert b"/CreationDate" not in whole
    with style.wishes((6.5, 4.25), "My headline"):
        drawn = FIGURES["workloads"](open_report(sample_report))
    assert drawn.get_size_inches().tolist() == [6.5, 4.25] and drawn.texts[0].get_text() == "My headline"
    assert FIGURES["workloads"](open_report(sample_report)).texts[0].get_text() != "My headline"


def test_columns_over_columns() -> None:
    report = recorded("papers-h200")
    drawn = figure_columns(report, "kv_len", "time_median", "implementation", ["experiment=adasplash2-lengths"])
    panel = drawn.axes[0]
    cases = report.experiment("adasplash2-lengths")
    names = sorted(set(cases["implementation"].values.tolist()))
    assert [text.get_text() for text in panel.get_legend().get_texts()] == names
    for curve, name in zip(panel.containers, names, strict=True):
        held = cases.isel(case=np.flatnonzero(cases["implementation"].values == name)).sortby("kv_len")
        assert curve.lines[0].get_xdata().tolist() == held["kv_len"].values.tolist()
        assert curve.lines[0].get_ydata().tolist() == held["time_median"].values.tolist()
    assert panel.get_xscale() == panel.get_yscale() == "log"
    assert "entmax/0-one-pass is lowest" in drawn.texts[0].get_text() and "24" in drawn.texts[1].get_text()


def test_a_point_of_several_cases_is_their_median_and_says_so() -> None:
    report = recorded("reproduce-quick")
    drawn = figure_columns(report, "k_keep", "nmse_vs_entmax", "alpha", ["experiment=accuracy", "scope=row", "alpha=1.5,2"])
    assert "72 cases" in drawn.texts[1].get_text() and "layer, head" in drawn.texts[1].get_text()
    cases = report.experiment("accuracy")
    at = (cases["scope"] == "row") & (cases["alpha"] == 1.5) & (cases["k_keep"] == 8)
    curve = drawn.axes[0].containers[0].lines[0]
    expected = float(np.median(cases["nmse_vs_entmax"].values[at.values]))
    assert curve.get_ydata()[curve.get_xdata().tolist().index(8)] == expected
    assert drawn.axes[0].get_ylim()[0] >= 1e-13, "rounding does not press the rest together"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--x", "kv_lem", "--y", "time_median"], "did you mean 'kv_len'"),
        (["--x", "dtype", "--y", "time_median"], "of one number a case"),
        (["--x", "kv_len"], "needs --x and --y"),
        (["--by", "alpha"], "belong to a plot of columns"),
        (["--x", "kv_len", "--y", "time_median", "--where", "kv_len=9"], "there are 1024, 2048"),
        (["--x", "kv_len", "--y", "time_median", "--where", "kv_len=x"], "which holds numbers"),
        (["--x", "kv_len", "--y", "time_median", "--where", "kv_len"], "takes name=value"),
        (["--x", "kv_len", "--y", "time_median", "--where", "experiment=adasplash-rows"], "no case of the report has"),
        (["--x", "kv_len", "--y", "time_median", "--by", "time_low"], "room for 16 curves"),
    ],
)
def test_columns_that_cannot_be_drawn(words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main([str(REPORTS / "papers-h200.h5"), "--out", str(tmp_path), *words]) == 2
    heard = capsys.readouterr()
    assert sentence in heard.err and heard.out == "" and heard.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["--size", "3"], ["--size", "0x4"], ["--size", "axb"], ["--format", "gif"]])
def test_sizes_and_formats_that_are_none(words: list[str], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["report.h5", *words])
    assert "allowed: png, svg, pdf" in (heard := capsys.readouterr().err) or "inches" in heard


def test_title_and_columns_of_a_page(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    report, out = REPORTS / "cpu-speed.h5", tmp_path / "page.html"
    words = [str(report), "--out", str(out)]
    assert page([*words, "--title", "<My> page", "--columns", "implementation,time_median"]) == 0
    html = out.read_text()
    assert "<title>&lt;My&gt; page</title>" in html and "<h1>&lt;My&gt; page</h1>" in html
    assert html == page_of(open_report(report), (), "<My> page", ["implementation", "time_median"])
    data = page_data(open_report(report), (), ["time_median"])
    assert data["columns"] == ["time_median"] and len(data["results"][0]["columns"]) > 5, "plots and CSV keep the others"
    assert page([*words, "--columns", "implementation,time_mediam"]) == 2
    assert "did you mean 'time_median'?" in capsys.readouterr().err
