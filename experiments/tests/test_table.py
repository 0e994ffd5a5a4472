"""`splash table`: a statistic of a report's cases, in every format."""

from __future__ import annotations

import csv
import io

import pytest

from conftest import ROOT, Splash

QUICK = ROOT / "data" / "reports" / "reproduce-quick.h5"
TABLE = ("table", "r.h5", "--rows", "solver", "--columns", "alpha", "--value", "residual_max")


@pytest.fixture
def tiny(splash: Splash) -> Splash:
    splash.tiny()
    assert splash("run", "tiny.toml", "--out", "r.h5").returncode == 0
    return splash


def test_cells_are_the_statistic_of_their_cases(tiny: Splash):
    cases = tiny.json("show", "r.h5")["cases"]
    for statistic, of in (("min", min), ("max", max), ("median", lambda x: sum(x) / 2), ("count", len)):
        shown = tiny.json(*TABLE, "--statistic", statistic)
        assert len(shown["cells"]) == 9 and shown["varying"] == ["seed"]
        for cell in shown["cells"]:
            alpha, solver = float(cell["column"]["alpha"]), cell["row"]["solver"]
            values = [c["residual_max"] for c in cases if c["alpha"] == alpha and c["solver"] == solver]
            assert cell["value"] == pytest.approx(of(values), rel=1e-12) and cell["cases"] == 2


def test_formats(tiny: Splash):
    text = tiny(*TABLE).stdout.splitlines()
    assert text[0] == "median of residual_max" and text[2].split() == "solver alpha 1.25 alpha 1.5 alpha 2".split()
    assert text[-1] == "2 cases in each cell, which differ in seed"
    markdown = tiny(*TABLE, "--format", "markdown").stdout
    assert "| solver | alpha 1.25 | alpha 1.5 | alpha 2 |\n|---|---:|---:|---:|\n| bisection | " in markdown
    latex = tiny(*TABLE, "--format", "latex", "--digits", "2").stdout
    assert "\\begin{tabular}{lrrr}\n\\toprule\nsolver & alpha 1.25 & alpha 1.5 & alpha 2 \\\\\n\\midrule\n" in latex
    assert "halley\\_bisection & " in latex and " \\times 10^{-" in latex and latex.count("\\\\\n") == 4
    comma = tiny(*TABLE, "--format", "csv")
    rows = list(csv.reader(io.StringIO(comma.stdout)))
    assert [len(row) for row in rows] == [4] * 4 and rows[0] == ["solver", "alpha 1.25", "alpha 1.5", "alpha 2"]
    exact = {(cell["row"]["solver"], f"alpha {cell['column']['alpha']}"): cell["value"] for cell in tiny.json(*TABLE)["cells"]}
    assert all(float(value) == exact[row[0], head] for row in rows[1:] for head, value in zip(rows[0][1:], row[1:], strict=True))
    assert "2 cases in each cell" in comma.stderr


def test_empty_cells_units_and_where(splash: Splash):
    words = ("table", QUICK, "--rows", "k_keep", "--columns", "alpha", "--value", "nmse_vs_entmax", "--where")
    done = splash(*words, "scope=row", "--where", "experiment=accuracy")
    assert done.returncode == 0 and "nmse_vs_entmax of the cases with experiment accuracy, scope row" in done.stdout
    assert "72 cases in each cell, which differ in layer and head" in done.stdout
    times = splash("table", QUICK, "--rows", "solver", "--columns", "n", "--value", "time_median", "--where", "kind=entmax-solver")
    assert times.stdout.startswith("median of time_median [s] of the cases with kind entmax-solver\n")
    assert "–" in times.stdout and "–: no case" in times.stdout
    seconds, thousandths = (
        splash.json("table", QUICK, "--rows", "solver", "--value", "time_median", "--unit", unit)["cells"][0]["value"] for unit in ("s", "ms")
    )
    assert thousandths == pytest.approx(1000 * seconds)
    assert "allowed: ns, us, ms, s" in splash.refused("table", QUICK, "--rows", "solver", "--value", "time_median", "--unit", "h")
    one = splash("table", QUICK, "--rows", "experiment", "--statistic", "count")
    assert one.returncode == 0 and one.stdout.startswith("number of cases\n")


def test_what_a_table_refuses(tiny: Splash):
    assert "did you mean 'solver'?" in tiny.refused("table", "r.h5", "--rows", "solvr", "--value", "residual_max")
    assert "did you mean 'residual_max'?" in tiny.refused("table", "r.h5", "--rows", "solver", "--value", "residual_mx")
    assert "--value is needed" in tiny.refused("table", "r.h5", "--rows", "solver")
    assert "did you mean 'median'?" in tiny.refused(*TABLE, "--statistic", "meddian")
    assert "allowed: text, markdown, latex and csv" in tiny.refused(*TABLE, "--format", "html5")
    assert "there are 1.25, 1.5 and 2" in tiny.refused(*TABLE, "--where", "alpha=3")
    assert "--digits" in tiny.refused(*TABLE, "--digits", "0")
    assert "did you mean 'alpha'?" in tiny.refused(*TABLE, "--where", "alpa=3")


def test_texts_of_others_end_no_cell(splash: Splash):
    splash.write("evil|a,\"b\\c.toml", splash.tiny(seeds=[1]).read_text())
    assert splash("run", "./evil|a,\"b\\c.toml", "--out", "r.h5").returncode == 0
    words = ("table", "r.h5", "--rows", "experiment", "--statistic", "count", "--format")
    assert '| evil\\|a,"b\\\\c | 9 |' in splash(*words, "markdown").stdout
    assert 'evil\\textbar{}a,"b\\textbackslash{}c & 9 \\\\' in splash(*words, "latex").stdout
    assert list(csv.reader(io.StringIO(splash(*words, "csv").stdout)))[1] == ['evil|a,"b\\c', "9"]
