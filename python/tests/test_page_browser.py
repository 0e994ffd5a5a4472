"""The page in a headless Chromium: it draws, answers to pointer and keys, sorts and filters, and opens at once."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import chromium
import numpy as np
import pytest
from columns import COLUMNS, PARAMETERS
from h5layout import Table, write_report
from test_page import HOSTILE, REPORTS, hostile, with_predictions

from splash_laboratory import open_report
from splash_laboratory.page import page_of
from splash_laboratory.page.cli import main, write

if chromium.program() is None:
    pytest.skip(f"no Chromium is installed (looked for {', '.join(chromium.NAMES)})", allow_module_level=True)

CASES = 10_000
KERNELS = {
    "executed_flops": ("FLOP", "work of the products as they run", "counted"),
    "dram_bytes_counted": ("bytes", "bytes that DRAM must deliver", "counted"),
    "l2_bytes_counted": ("bytes", "bytes that all blocks ask of L2", "counted"),
    "math_unit": ("text", "unit whose rate bounds the products", "declared"),
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory):
    opened = chromium.Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def ladders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("ladders") / "page.html"
    assert main([str(REPORTS / "ladders-h200.h5"), "--out", str(page)]) == 0
    return page


@pytest.fixture(scope="module")
def long_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a report of 10,000 timed kernels, each with an error and a sparsity."""
    folder, random = tmp_path_factory.mktemp("long"), np.random.default_rng(3)
    results = Table("results", "case", COLUMNS | KERNELS, PARAMETERS)
    for case in range(CASES):
        flops, time = 10 ** random.uniform(9, 12), 10 ** random.uniform(-4, -2)
        results.add(
            experiment="sweep",
            kind="made up",
            case_id=f"{case:016x}",
            implementation=f"{('kascade', 'splash', 'wmma')[case % 3]}/{case % 7}-rung",
            n=float(2 ** (9 + case % 7)),
            alpha=1 + case % 5 / 4,
            layer=case // 105 % 8,
            head=case // 840,
            dtype="float16",
            math_unit="float16",
            executed_flops=flops,
            dram_bytes_counted=flops / 10 ** random.uniform(0, 3),
            l2_bytes_counted=flops / 10 ** random.uniform(0, 2),
            time_median=time,
            time_low=0.98 * time,
            time_high=1.03 * time,
            nmse_vs_entmax=10 ** random.uniform(-9, -1),
            token_sparsity=1 - 10 ** random.uniform(-3, 0),
            max_error=random.uniform(0, 1),
        )
    numbers = {name: ("1", "a number", "made up") for name in ("measured", "low", "high", "datasheet")}
    texts = {name: ("text", "a text", "made up") for name in ("name", "dtype", "units", "method")}
    ceilings = Table("ceilings", "ceiling", texts | numbers)
    for name, dtype, units, value in (
        ("dram read", "", "bytes/s", 4.5e12),
        ("l2 read", "", "bytes/s", 9e12),
        ("tensor", "float16", "FLOP/s", 8e14),
    ):
        ceilings.add(name=name, dtype=dtype, units=units, measured=value, datasheet=1.1 * value)
    report = folder / "report.h5"
    write_report(report, [results, ceilings], {}, {}, [], {"commit": "0" * 40, "seed": 3})
    page = folder / "page.html"
    assert main([str(report), "--out", str(page)]) == 0
    return page


def tooltip(browser: chromium.Browser) -> str:
    """What the tooltip says; empty while it is hidden."""
    return browser.ask("tooltip.hidden ? '' : tooltip.textContent")


def column(browser: chromium.Browser, name: str) -> list[str]:
    """The cells of a column of the results that are in the document."""
    head = f"[...document.querySelectorAll('#results th')].findIndex(h => h.textContent.split(' ')[0] === '{name}')"
    rows = "[...document.querySelectorAll('#results tbody tr:not(.space)')]"
    return browser.ask(f"(at => {rows}.map(row => row.cells[at].textContent))({head})")


def number(text: str) -> float:
    """8.3·10⁻⁵ as a number."""
    plain = text.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    return float(re.sub(r"^(?:([\d.]+)·)?10(?=-)", lambda match: f"{match[1] or 1}e", plain))


def press(browser: chromium.Browser, name: str) -> None:
    """Clicks the heading of a column of the results."""
    heads = "[...document.querySelectorAll('#results th button')]"
    browser.ask(f"{heads}.find(b => b.textContent.split(' ')[0] === '{name}').click()")


def write_in(browser: chromium.Browser, selector: str, text: str) -> None:
    put = f"const i = document.querySelector({selector!r}); i.value = {text!r}; i.dispatchEvent(new Event('input'))"
    browser.ask(f"(() => {{ {put} }})()")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_recorded_report_opens_without_a_complaint(
    browser: chromium.Browser, tmp_path: Path, scheme: str, width: int
) -> None:
    browser.size(width, 900)
    browser.prefer(scheme)
    for report in sorted(REPORTS.glob("*.h5")):
        page = tmp_path / f"{report.stem}.html"
        assert main([str(report), "--out", str(page)]) == 0
        browser.requests.clear()
        browser.open(page)
        assert browser.complaints == []
        assert browser.requests == [page.resolve().as_uri()], "the page asks for nothing else"
        assert browser.ask("document.documentElement.scrollWidth <= innerWidth"), f"{report.stem} is too broad"
        assert browser.ask("[...document.querySelectorAll('.box')].every(box => box.childElementCount > 0)")
        drawn = "[...document.querySelectorAll('.plot path')].map(path => path.getAttribute('d'))"
        assert browser.ask(f"{drawn}.every(d => !/NaN|Infinity|undefined/.test(d))")
        paper = browser.ask("getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 29)"}[scheme]
    browser.size(1280, 900)


def test_chosen_columns_are_those_of_the_table(browser: chromium.Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = [str(REPORTS / "cpu-speed.h5"), "--out", str(page), "--columns", "time_median,implementation"]
    assert main(words) == 0
    browser.open(page)
    heads = browser.ask("[...document.querySelectorAll('#results th')].map(head => head.textContent.split(' ')[0])")
    assert heads == ["time_median", "implementation"] and browser.complaints == []


def test_the_theme_can_be_changed(browser: chromium.Browser, ladders: Path) -> None:
    browser.prefer("light")
    browser.open(ladders)
    paper = "getComputedStyle(document.body).backgroundColor"
    before = browser.ask(paper)
    assert browser.ask("theme.textContent") == "Dark"
    browser.ask("theme.click()")
    assert browser.ask("theme.textContent") == "Light" and browser.ask(paper) != before


def test_pointing_at_a_kernel_tells_what_it_is(browser: chromium.Browser, ladders: Path) -> None:
    browser.open(ladders)
    browser.ask("document.querySelector('#rooflines').scrollIntoView({behavior: 'instant'})")
    # The kernel above its roof has a ring round it.
    ring = browser.ask(
        "(({x, y, width, height}) => [x + width / 2, y + height / 2])"
        "(document.querySelector('.flag').getBoundingClientRect())"
    )
    assert tooltip(browser) == ""
    browser.move(*ring)
    said = tooltip(browser)
    assert said.startswith("large_dims/0-one-query")
    for words in (
        "float32, 8 × 4 heads, 512 × 512, d 2048, graph",
        "FLOP/s [",
        "time",
        "FLOPs a byte",
        "share of this roof",
        "scope explains it",
    ):
        assert words in said, said
    browser.move(1, 1)
    assert tooltip(browser) == ""


def test_a_prediction_and_a_verdict_are_told(browser: chromium.Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(page_of(with_predictions(open_report(REPORTS / "ladders-h200.h5"))), encoding="utf-8")
    browser.open(page)
    assert "217 cases; half are within 10 %" in browser.ask("document.querySelector('#predicted').textContent")
    browser.ask("document.querySelector('#predicted [role=slider]').focus()")
    browser.key("End")
    said = tooltip(browser)
    for words in ("predicted", "verdict", "latency", "steps wait for one another"):
        assert words in said, said
    assert browser.complaints == []


def test_arrow_keys_go_from_point_to_point(browser: chromium.Browser, ladders: Path) -> None:
    browser.open(ladders)
    browser.ask("document.querySelector('#rooflines [role=slider]').focus()")
    said, heard = [], []
    for key in ("Home", "ArrowRight", "ArrowRight", "End", "ArrowLeft"):
        browser.key(key)
        said.append(tooltip(browser))
        heard.append(browser.ask("document.activeElement.getAttribute('aria-valuetext')"))
    assert all(said) and len(set(said)) == 5
    assert all("share of this roof" in text for text in heard), "what is seen is also read out"
    place = "document.activeElement.getAttribute('aria-valuenow')"
    assert int(browser.ask(place)) == int(browser.ask("document.activeElement.getAttribute('aria-valuemax')")) - 1
    browser.key("Escape")
    assert tooltip(browser) == ""


def test_a_ladder_of_another_problem(browser: chromium.Browser, ladders: Path) -> None:
    browser.open(ladders)
    change = "(value) => {{ const s = document.querySelectorAll('#ladders select')[{}];"
    change += " s.value = value; s.dispatchEvent(new Event('change')); }}"
    before = browser.ask("document.querySelector('#ladders figcaption').textContent")
    browser.ask(f"({change.format(0)})(1)")
    browser.ask(f"({change.format(1)})(2)")
    after = browser.ask("document.querySelector('#ladders figcaption').textContent")
    assert before.startswith("Timekascade") and after.startswith("Timelarge-dims") and "16 × 16, d 4096" in after
    rungs = browser.ask("[...document.querySelectorAll('#ladders .plot text.row')].map(t => t.textContent)")
    assert "0-one-query" in rungs and rungs[: len(rungs) // 2] == rungs[len(rungs) // 2 :], (
        "both charts name the same rows"
    )


def test_claims_by_verdict(browser: chromium.Browser, ladders: Path) -> None:
    browser.open(ladders)
    browser.ask("[...document.querySelectorAll('#claims button')].find(b => b.textContent === 'refuted').click()")
    shown = browser.ask(
        "[...document.querySelectorAll('#claims tbody tr')].filter(r => !r.hidden).map(r => r.dataset.verdict)"
    )
    verdicts = open_report(REPORTS / "ladders-h200.h5").claims["verdict"].values.tolist()
    refuted, rows = verdicts.count("refuted"), len(verdicts)
    assert shown == ["refuted"] * refuted and 0 < refuted < rows
    assert browser.ask("document.querySelector('#claims .count').textContent") == f"{refuted} of {rows} rows"
    write_in(browser, "#claims input", "texture")
    assert browser.ask("document.querySelector('#claims .count').textContent") == f"1 of {rows} rows"


def test_ten_thousand_cases_open_in_two_seconds(browser: chromium.Browser, long_page: Path) -> None:
    took = min(browser.open(long_page) for _ in range(3))
    print(f"{took:.2f} s, {long_page.stat().st_size / 1e6:.2f} MB")
    assert took < 2, f"{took:.2f} s"
    assert browser.complaints == []
    assert browser.ask("document.querySelector('#results .count').textContent") == f"{CASES} cases"
    assert browser.ask("document.querySelectorAll('#results tbody tr').length") < 100, "only the rows in sight"
    assert browser.ask("document.querySelectorAll('.plot .marks').length") < 100, "not an element a point"


def test_sorting_and_filtering_ten_thousand_cases(browser: chromium.Browser, long_page: Path) -> None:
    browser.open(long_page)
    press(browser, "max_error")
    rising = [number(text) for text in column(browser, "max_error")]
    assert rising == sorted(rising) and rising[-1] < 0.05
    press(browser, "max_error")
    falling = [number(text) for text in column(browser, "max_error")]
    assert falling == sorted(falling, reverse=True) and falling[0] > 0.99
    sort = "[...document.querySelectorAll('#results th')].map(h => h.ariaSort).filter(s => s !== 'none')"
    assert browser.ask(sort) == ["descending"]
    write_in(browser, "#results input", "wmma/ n>=8192 alpha=1.5")
    wanted = sum(c % 3 == 2 and 2 ** (9 + c % 7) >= 8192 and c % 5 == 2 for c in range(CASES))
    assert browser.ask("document.querySelector('#results .count').textContent") == f"{wanted} of {CASES} cases"
    assert set(column(browser, "alpha")) == {"1.5"}
    assert all(name.startswith("wmma/") for name in column(browser, "implementation"))
    left = [number(text) for text in column(browser, "max_error")]
    assert left == sorted(left, reverse=True), "still sorted"
    write_in(browser, "#results input", "nobody")
    assert browser.ask("document.querySelectorAll('#results tbody tr').length") == 0
    write_in(browser, "#results input", "")


def test_scrolling_shows_the_rows_there(browser: chromium.Browser, long_page: Path) -> None:
    browser.open(long_page)
    browser.ask("document.querySelector('#results .scroll').scrollTop = 1e9")
    browser.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert column(browser, "case_id")[-1] == f"{CASES - 1:016x}"
    assert browser.ask("[...document.querySelectorAll('#results tbody tr')].at(-1).ariaRowIndex") == str(CASES + 1)


def test_the_csv_holds_every_case(browser: chromium.Browser, ladders: Path) -> None:
    browser.open(ladders)
    rows = list(csv.DictReader(io.StringIO(browser.ask("allResults()"), newline="")))
    cases = open_report(REPORTS / "ladders-h200.h5").results
    assert [row["case_id"] for row in rows] == cases["case_id"].values.tolist()
    assert [row["finding"] for row in rows] == cases["finding"].values.tolist()
    times = [float(row["time_median"] or "nan") for row in rows]
    np.testing.assert_allclose(times, cases["time_median"].values, rtol=1e-6)


def test_no_cell_of_the_csv_is_a_formula(browser: chromium.Browser, ladders: Path) -> None:
    browser.open(ladders)
    cells = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", -5, 2.5, "-Infinity", "a=b", "\x1b[31m\x9b"]
    rows = browser.ask(f"csv(['cell', 'end'], {json.dumps(cells)}.map((cell) => [cell, 1]))")
    held = [row["cell"] for row in csv.DictReader(io.StringIO(rows, newline=""))]
    plain = ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "'\u2409=1", "'\u240d=1", "-5", "2.5", "-Infinity", "a=b", "\u241b[31m\ufffd"]
    assert held == plain


def test_hostile_strings_are_shown_as_they_are(browser: chromium.Browser, tmp_path: Path) -> None:
    report = hostile(open_report(REPORTS / "ladders-h200.h5"))
    write(page_of(report), tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert browser.complaints == []
    assert browser.ask("document.querySelectorAll('img, script').length") == 2
    assert browser.ask("document.querySelector('h1').textContent") == report.title
    browser.ask("document.querySelector('#rooflines [role=slider]').focus()")
    browser.key("ArrowRight")
    assert HOSTILE.split("\u2028")[0] in tooltip(browser)


def test_on_paper(browser: chromium.Browser, ladders: Path) -> None:
    browser.prefer("dark", "print")
    browser.open(ladders)
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    seen = "(selector) => document.querySelector(selector).getClientRects().length > 0"
    assert [browser.ask(f"({seen})('{part}')") for part in (".bar", "#claims button", "#results .box")] == [False] * 3
    inside = "(box => [box.clientHeight, box.scrollHeight])(document.querySelector('#claims .scroll'))"
    height, needed = browser.ask(inside)
    assert height == needed, "no claim is cut off"
    browser.prefer("light")
