"""What of the five documents is built: the page names what there is, every claim, and the verdicts on record."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import xarray as xr

from splash_laboratory.documents.verdicts import MARKER, fill, main, of_reports
from splash_laboratory.reports import Report

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "questions" / "what-of-the-documents-is-built.md").read_text()
REPORTS = sorted((ROOT / "data" / "reports").glob("*.h5"))


def claims():
    texts = [path.read_text() for path in (ROOT / "data" / "claims").glob("00*.toml")]
    return {found for text in texts for found in re.findall(r'^id = "([^"]+)"', text, re.MULTILINE)}


def report(**verdicts):
    ids, given = list(verdicts), list(verdicts.values())
    table = xr.Dataset({"id": ("claim", [i.replace("_", ".") for i in ids]), "verdict": ("claim", given)})
    return Report(Path("r.h5"), {}, "", xr.Dataset(), table, xr.Dataset(), {})


def test_verdicts_stand_behind_ids_between_the_markers_alone():
    text = "S0.1 here\n<!-- verdicts -->\n| of S0.1 times | S0.1, S0.2a refuted |\n| b | S0.3 unsure |\n<!-- end of verdicts -->\n"
    known = of_reports([report(S0_1="refuted", S0_3="not comparable"), report(S0_1="reproduced", S0_2a="unsure")])
    filled = fill(text, known)
    assert filled.startswith("S0.1 here\n") and "| of S0.1 times | S0.1 reproduced, S0.2a unsure |" in filled
    assert "| b | S0.3 not judged |" in filled
    assert fill(filled, known) == filled


def test_every_claim_of_the_documents_is_on_the_page_and_no_other():
    named = {i for table in MARKER.findall(PAGE) for i in re.findall(r"\b[SP]\d\.\d+[a-z]?\b", table)}
    assert named == claims()


def test_the_verdicts_are_those_on_record(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert main([str(page), *map(str, REPORTS)]) == 0
    assert page.read_text() == PAGE


def places():
    return sorted(set(re.findall(r"`([\w./-]+/[\w./-]+|\w+\.(?:cpp|h|py))`", PAGE)))


@pytest.mark.parametrize("place", places())
def test_what_it_names_exists(place):
    ladder, _, rung = place.partition("/")
    folder = ROOT / "gpu" / ("entmax" if ladder == "entmax" else f"ladders/{ladder}")
    if folder.is_dir() and re.fullmatch(r"\d+-[\w-]+", rung):
        number, name = rung.split("-", 1)
        sources = [path.read_text() for path in folder.rglob("*.c[up]*")]
        assert any(f'"{name}"' in text and re.search(rf"\.rung = {number}\b", text) for text in sources), place
    else:
        assert (ROOT / place).exists(), place


def experiments():
    lists = re.findall(r"experiments? ((?:`[\w-]+`(?:, | and )?)+)", PAGE)
    return sorted({name for names in lists for name in re.findall(r"`([\w-]+)`", names)})


@pytest.mark.parametrize("name", experiments())
def test_its_experiments_exist(name):
    assert any((ROOT / "experiments").glob(f"*/{name}.toml")), name
