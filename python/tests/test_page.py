"""The page of a run: what its data say, that nothing in a report can break out of them, that it needs nothing else."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from splash_laboratory import open_report
from splash_laboratory.page import page_of
from splash_laboratory.page.build import page_data
from splash_laboratory.page.cli import main, write
from splash_laboratory.page.head import with_prefix
from splash_laboratory.page.rooflines import Ceiling, Point, check
from splash_laboratory.page.tables import encoded, problems
from splash_laboratory.page.tradeoff import sparsity

PYTHON = Path(__file__).resolve().parents[1]
REPORTS = PYTHON.parent / "data" / "reports"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \" ' & <!-- \u2028 {{data}}"


@pytest.fixture(scope="module")
def ladders():
    """The recorded kernels of a GPU."""
    return open_report(REPORTS / "ladders-h200.h5")


@pytest.fixture(scope="module")
def study():
    """The recorded study on captured heads."""
    return open_report(REPORTS / "reproduce-quick.h5")


class Tags(HTMLParser):
    """Every tag of a page with its attributes, and the texts of its scripts and style."""

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": [], "title": []}
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.tags.append((tag, dict(attributes)))
        self._inside = tag
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in self.texts:
            self.texts[self._inside][-1] += data

    def named(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]


def values(column: list | dict, rows: int) -> list:
    """A column as the page's script reads it."""
    if isinstance(column, list):
        return [float(value) if isinstance(value, str) else value for value in column]
    return [column["words"][code] for code in column["codes"]] if "words" in column else [column["same"]] * rows


def held(data: dict, table: int, name: str) -> list:
    entry = data["results"][table]
    return values(next(c["data"] for c in entry["columns"] if c["name"] == name), entry["rows"])


def sections(html: str) -> list[str]:
    return [attributes["id"] for attributes in Tags(html).named("section")]


def test_rooflines_of_the_recorded_kernels(ladders) -> None:
    data = page_data(ladders)
    panels = data["rooflines"]
    units = ("float32", "tf32", "float16", "bfloat16")
    assert [(p["unit"], p["level"]) for p in panels] == [(unit, level) for unit in units for level in ("DRAM", "L2")]
    flops = ladders.results["executed_flops"].values
    assert sum(len(p["row"]) for p in panels) == 2 * np.isfinite(flops).sum()
    for panel in panels:
        column = {"DRAM": "dram_bytes_counted", "L2": "l2_bytes_counted"}[panel["level"]]
        slope, flat = panel["bandwidth"]["measured"], panel["rate"]["measured"]
        for at, (table, row) in enumerate(zip(panel["table"], panel["row"], strict=True)):
            work, took = held(data, table, "executed_flops")[row], held(data, table, "time_median")[row]
            intensity = work / held(data, table, column)[row]
            assert panel["intensity"][at] == pytest.approx(intensity, rel=1e-5)
            assert panel["share"][at] == pytest.approx(work / took / min(flat, slope * intensity), rel=1e-5)
            assert (panel["share"][at] > 1) == (str(at) in panel["above"])
    above = [
        (p["level"], p["unit"], point["check"], point["explains"]) for p in panels for point in p["above"].values()
    ]
    assert above == [("L2", "float32", "scope", True)]
    assert panels[0]["bandwidth"]["name"] == "dram read", "the faster of read and copy"
    assert panels[0]["rate"]["datasheet"] == 67e12 and panels[1]["bandwidth"]["datasheet"] is None


def test_ladders_of_the_recorded_kernels(ladders) -> None:
    data = page_data(ladders)
    drawn = next(ladder for ladder in data["ladders"] if data["results"][ladder["table"]]["experiment"] == "kascade")
    assert "32/8 heads, 8192 × 8192, d 128, causal, shared_keys 10 %" in drawn["problem"]
    names = [held(data, drawn["table"], "implementation")[row] for row in drawn["rows"]]
    times = dict(zip(names, (held(data, drawn["table"], "time_median")[row] for row in drawn["rows"]), strict=True))
    over = dict(zip(names, drawn["over"], strict=True))
    assert over["kascade/0-scratch-state"] == "" and over["torch-cudnn"] == ""
    assert over["kascade/3-tile-64x64"] == "kascade/2-no-broadcast", "as its prediction names it"
    assert over["kascade/5-gather-wgmma"] == "kascade/4-prefetch", "the rung before"
    for name, low, gain, high in zip(names, drawn["gain_low"], drawn["gain"], drawn["gain_high"], strict=True):
        assert (gain is None) == (over[name] == "")
        if gain is not None:
            assert gain == pytest.approx(times[over[name]] / times[name], rel=1e-5)
            assert low <= gain <= high
    for ladder in data["ladders"]:
        rows = [held(data, ladder["table"], "implementation")[row] for row in ladder["rows"]]
        assert len(set(rows)) == len(rows), "one problem a ladder: nobody solves it twice"


def with_predictions(report):
    """The report as `splash diagnose --write` leaves it, its kernels predicted at 0.9 of what was measured, one at 2."""
    results = report.results
    counted = np.isfinite(results["executed_flops"].values) & np.isfinite(results["time_median"].values)
    seconds = np.where(counted, 0.9 * results["time_median"].values, np.nan)
    seconds[np.flatnonzero(counted)[0]] *= 2 / 0.9
    texts = {
        "verdict": np.where(counted, "latency", "").astype(object),
        "diagnosis": np.where(counted, "steps wait for one another", "").astype(object),
    }
    numbers = {"": seconds, "_low": 0.8 * seconds, "_high": 1.5 * seconds}
    columns = {name: ("case", values) for name, values in texts.items()}
    columns |= {f"time_predicted{end}": ("case", values, {"units": "s"}) for end, values in numbers.items()}
    return dataclasses.replace(report, results=results.assign(columns))


def test_predicted_against_measured(ladders) -> None:
    told = with_predictions(ladders)
    drawn = page_data(told)["predicted"]
    assert len(drawn["row"]) == len(drawn["table"]) == 217
    assert drawn["half"] == pytest.approx(0.1) and drawn["most"] == pytest.approx(0.1)
    assert sections(page_of(told))[:3] == ["rooflines", "predicted", "ladders"]
    nothing = told.results.drop_vars("time_predicted")
    assert page_data(dataclasses.replace(told, results=nothing))["predicted"] == {}


def test_the_head_of_the_recorded_kernels(ladders) -> None:
    html = page_of(ladders)
    shown = [name for name in sections(html) if name != "predicted"]  # where the report holds predictions
    assert shown == ["rooflines", "ladders", "tradeoffs", "claims", "results", "ceilings"]
    text = re.sub(r"<script.*", "", html, flags=re.DOTALL)
    verdicts = ladders.claims["verdict"].values.tolist()
    own = [v for v, source in zip(verdicts, ladders.claims["source"].values, strict=True) if source == "this project"]
    held = f"{own.count('reproduced')} of {len(own)}"
    for words in (ladders.title, ladders.run_id, ladders.provenance["commit"], "NVIDIA H200", held, "nvcc 13.0"):
        assert words in text
    warnings, versions = (ladders.results[name].values for name in ("warning", "version"))
    assert f"{sum(map(bool, warnings))} cases were timed under a changing clock" in text
    assert f"{sum(version.startswith('not run') for version in versions)} cases were not run" in text
    counts = [verdicts.count(v) for v in ("reproduced", "refuted", "unsure", "not comparable")]
    assert sum(counts) == len(verdicts) and min(counts) > 0
    words = "Of {} claims: measured {} reproduced, {} refuted, {} unsure; {} not comparable."
    assert words.format(len(verdicts), *counts) in text
    ceilings = ladders.ceilings.to_dataframe().set_index(["name", "dtype"])
    dram, tensor = ceilings.loc[("dram read", "")], ceilings.loc[("tensor", "float16")]
    assert f"{dram['measured'] * 1e-12:.3g} TB/s" in text and "990 TFLOP/s" in text
    assert f"{tensor['measured'] / tensor['datasheet']:.1%}" in text
    assert len(html) < 100_000 + 1500 * ladders.results.sizes["case"]


def test_the_recorded_study(study) -> None:
    data, html = page_data(study), page_of(study)
    assert sections(html) == ["rooflines", "ladders", "tradeoffs", "claims", "results", "ceilings"], "of this processor"
    assert [table["experiment"] for table in data["results"]] == study.experiments
    assert sum(table["rows"] for table in data["results"]) == study.results.sizes["case"]
    accuracy = next(t for t in data["tradeoffs"] if data["results"][t["table"]]["experiment"] == "accuracy")
    assert accuracy["error"] == "nmse_vs_entmax" and accuracy["speed"] is None
    cases = study.experiment("accuracy")
    assert accuracy["sparsity"] == pytest.approx(cases["token_sparsity"].values[accuracy["rows"]].tolist(), rel=1e-5)
    errors = held(data, accuracy["table"], "nmse_vs_entmax")
    assert errors == pytest.approx(cases["nmse_vs_entmax"].values.tolist(), rel=1e-6)
    solvers = [ladder for ladder in data["ladders"] if ladder["subject"] == "solver"]
    assert solvers and all(gain is None for ladder in solvers for gain in ladder["gain"]), "solvers are no rungs"
    assert len(html) < 2_000_000


def test_a_report_of_everything_else(sample_report: Path) -> None:
    html = page_of(open_report(sample_report))
    assert sections(html) == ["ladders", "tradeoffs", "claims", "results", "ceilings"]
    assert "1 refuted" not in html and "2 refuted" in html


def test_what_the_report_lacks_is_left_out(ladders) -> None:
    empty = dataclasses.replace(
        ladders, results=xr.Dataset(coords={"case": []}), claims=xr.Dataset(), ceilings=xr.Dataset(), provenance={}
    )
    html = page_of(empty)
    assert sections(html) == []
    boxes = [a for _, a in Tags(html).tags if "data-draw" in a or "data-table" in a or a.get("role") == "note"]
    assert not boxes and "<dt>" not in html and '<a href="#' not in html.replace('href="#main"', "")
    without = page_data(dataclasses.replace(ladders, ceilings=xr.Dataset()))
    assert without["rooflines"] == [] and without["ladders"]


def test_an_unfinished_run_says_so(ladders) -> None:
    cut = dataclasses.replace(
        ladders,
        attributes={**ladders.attributes, "status": "interrupted"},
        provenance={**ladders.provenance, "dirty": 1},
    )
    html = page_of(cut)
    assert "The run is interrupted: not every case is here." in html
    assert "with changes that are not committed" in html and "not committed" not in page_of(ladders)


SLOPE = Ceiling("l2 read", 9e12, np.nan, "median of 31, multiprocessors at 1500 MHz")
FLAT = Ceiling("tensor", 8.2e14, 9.9e14, "median of 31, multiprocessors at 1500 MHz")


def point(rate: float, intensity: float, slowest: float | None = None, **more) -> Point:
    """A kernel of 1 GFLOP."""
    slowest = rate if slowest is None else slowest
    return Point(rate=rate, slowest=slowest, flops=1e9, bytes=1e9 / intensity, seconds=1e9 / rate, **more)


@pytest.mark.parametrize(
    ("above", "level", "name", "explains"),
    [
        (point(1.0e13, 1, slowest=8.9e12), "L2", "interval", True),
        (point(2.0e13, 1), "L2", "scope", True),  # shared memory gives 33 TB/s
        (point(4.0e13, 1), "L2", "scope", False),
        (point(9.0e12, 1), "DRAM", "scope", False),  # below L2's roof here, so DRAM's slope decides
        (point(9.0e14, 1e4, clock=1.9e9), "L2", "clock", True),
        (point(9.0e14, 1e4, clock=1.5e9, useful_flops=5e8), "L2", "sparsity convention", False),
        (point(8.4e14, 1e4), "L2", "precision", False),  # bfloat16's ceiling is 8.65e14
        (point(9.9e14, 1e4), "L2", "none", False),
    ],
)
def test_above_the_roof(ladders, above: Point, level: str, name: str, explains: bool) -> None:
    slope = SLOPE if level == "L2" else Ceiling("dram read", 4.5e12, 4.8e12, "")
    above = dataclasses.replace(above, cache="cold") if level == "DRAM" else above
    said = check(ladders, above, level, "float16", slope, FLAT)
    assert (said["check"], said["explains"]) == (name, explains) and said["why"]


def test_columns_as_the_script_reads_them() -> None:
    numbers = np.array([np.nan, 0.0, 1 / 3, -np.inf, 2.0**40, 1e-300])
    read = values(json.loads(json.dumps(encoded(numbers), allow_nan=False)), 6)
    assert read == [None, 0, 0.3333333, -np.inf, 2**40, 1e-300]
    assert encoded(np.array([2.0, 2.0])) == {"same": 2} and encoded(np.array(["a", "a"])) == {"same": "a"}
    assert values(encoded(np.array(["b", "", "b"], dtype=object)), 3) == ["b", "", "b"]
    assert encoded(np.array([])) == []


def test_sparsity_as_recorded_else_from_flops_else_from_the_support() -> None:
    columns = {
        "token_sparsity": [0.9, np.nan, np.nan, np.nan],
        "useful_flops": [1.0, 25.0, np.nan, np.nan],
        "dense_equivalent_flops": [1.0, 100.0, 100.0, 100.0],
        "support_mean": [1.0, 1.0, 8.0, np.nan],
        "kv_len": [16.0, 16.0, 64.0, 64.0],
    }
    found = sparsity(xr.Dataset({name: ("case", np.array(column)) for name, column in columns.items()}))
    np.testing.assert_allclose(found, [0.9, 0.75, 0.875, np.nan])


def test_problems_are_told_by_what_differs() -> None:
    parameter = {"role": "parameter"}
    cases = xr.Dataset(
        {
            "solver": ("case", np.array(["a", "b", "a"], dtype=object), parameter),
            "n": ("case", [512.0, 512.0, 1024.0], parameter),
            "alpha": ("case", [1.5, 1.5, 1.5], parameter),
            "time_median": ("case", [1.0, 2.0, 3.0]),
        }
    )
    assert problems(cases) == ["n 512", "n 512", "n 1024"]


def test_prefixes() -> None:
    assert [with_prefix(v, "B/s") for v in (4.229e12, 999.9e9, 1.0)] == ["4.23 TB/s", "1 TB/s", "1 B/s"]
    assert with_prefix(7.455e-7, "s") == "746 ns" and with_prefix(0.0, "s") == "0 s"


def hostile(report):
    """The report with a text that would break out of a careless page, wherever a report holds text."""

    def poisoned(table: xr.Dataset) -> xr.Dataset:
        table = table.copy()
        for name, column in list(table.data_vars.items()):
            if column.values.dtype.kind in "OU" and name not in ("experiment", "math_unit", "dtype", "name", "verdict"):
                table[name] = (
                    column.dims,
                    np.array([f"{v}{HOSTILE}" for v in column.values], dtype=object),
                    column.attrs,
                )
        return table

    return dataclasses.replace(
        report,
        attributes={name: f"{value}{HOSTILE}" for name, value in report.attributes.items()},
        provenance={name: f"{value}{HOSTILE}" for name, value in report.provenance.items()},
        results=poisoned(report.results),
        claims=poisoned(report.claims),
        ceilings=poisoned(report.ceilings),
    )


def test_hostile_strings_stay_strings(ladders) -> None:
    tame, wild = Tags(page_of(ladders)), Tags(page_of(hostile(ladders)))
    assert len(wild.named("script")) == 2 and not wild.named("img")
    assert {name for name, _ in wild.tags} == {name for name, _ in tame.tags}
    assert not [a for _, a in wild.tags if any(name.startswith("on") for name in a)]
    assert wild.texts["title"] == [ladders.title + HOSTILE]
    assert wild.texts["script"][1] == tame.texts["script"][1], "the script is the page's own"
    data = json.loads(wild.texts["script"][0])
    assert any(name.endswith(HOSTILE) for name in held(data, 0, "implementation"))


@pytest.mark.parametrize("name", ["ladders", "study"])
def test_the_page_needs_nothing_else(name: str, request: pytest.FixtureRequest) -> None:
    tags = Tags(page_of(request.getfixturevalue(name)))
    for tag, attributes in tags.tags:
        assert "src" not in attributes and "srcset" not in attributes and tag not in ("link", "iframe", "base")
        assert attributes.get("href", "#").startswith("#")
    own = tags.texts["style"][0] + tags.texts["script"][1]
    assert not re.search(r"https?:|//[a-z]|url\((?!#)|@import|fetch\(|XMLHttpRequest|innerHTML|eval\(", own)


def test_only_the_page_s_own_script_and_style_are_allowed(ladders) -> None:
    tags = Tags(page_of(ladders))
    policy = next(a["content"] for a in tags.named("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    for text in (tags.texts["style"][0], tags.texts["script"][1]):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy


def test_the_command_line(sample_report: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "page.html"
    command = [sys.executable, "-m", "splash_laboratory.page", str(sample_report), "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(PYTHON)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{out}\n", "")
    assert list(out.parent.iterdir()) == [out], "a temporary file was left"
    assert out.stat().st_mode & 0o777 == 0o644
    assert out.read_text(encoding="utf-8") == page_of(open_report(sample_report)), "equal reports are equal pages"


@pytest.mark.parametrize(("arguments", "words"), [([], "a report is needed"), (["nowhere.h5"], "no such file")])
def test_bad_words(arguments: list[str], words: str, capsys: pytest.CaptureFixture) -> None:
    assert main(arguments) == 2
    heard = capsys.readouterr()
    assert words in heard.err and heard.out == "" and heard.err.count("\n") == 1


def test_a_place_that_cannot_be_written(sample_report: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    before = {path: path.lstat().st_mode for path in tmp_path.iterdir()}
    for out in (tmp_path / "file" / "page.html", tmp_path, tmp_path / "pipe", tmp_path / "link", Path("/dev/null")):
        for report in (str(sample_report), "nowhere.h5"):  # the place is looked at before the report
            assert main([report, "--out", str(out)]) == 2
            heard = capsys.readouterr()
            assert f"{out}: cannot be written" in heard.err and heard.err.count("\n") == 1
    assert before == {path: path.lstat().st_mode for path in tmp_path.iterdir()}
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_a_page_has_the_permissions_of_the_umask(tmp_path: Path, mask: int) -> None:
    (tmp_path / "target.html").write_text("old")
    (tmp_path / "link.html").symlink_to("target.html")
    before = os.umask(mask)
    try:
        write("<p>", tmp_path / "page.html")
        write("<p>", tmp_path / "link.html")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "page.html").stat().st_mode) == 0o666 & ~mask
    assert (tmp_path / "link.html").is_symlink() and (tmp_path / "target.html").read_text() == "<p>"


def test_a_page_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        write("half \udcff", path)
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
