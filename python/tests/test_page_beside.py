"""A run beside another on the page: what is missing, what is hostile, and who compares."""

import json
from pathlib import Path

import pytest

from splash_laboratory.page import page_of
from splash_laboratory.page.beside import compared, drawn
from splash_laboratory.reports import ReportError, open_report

REPORT = Path(__file__).resolve().parents[2] / "data" / "reports" / "cpu-speed.h5"
EVIL = "</script><script>alert(1)</script>"


def found():
    time = {"note": "", "peer": False, "change": "SLOWER", "case": EVIL, "before": 1e-3, "after": 2e-3, "ratio": 2.0}
    unknown = {**time, "case": "not run", "change": "UNSURE", "before": None, "after": None, "ratio": None}
    column = {"column": "nmse", "change": "DIFFERENT", "differing": 1, "cases": 2, "max_relative_difference": None, "worst_case": EVIL}
    claims = [{"id": "S0.1", "before": "reproduced", "after": "refuted", "regressed": True}]
    return {"matched_cases": 2, "only_before": [], "only_after": ["one"], "times": [unknown, time], "columns": [column], "claims": claims}


def test_what_is_missing_and_what_is_hostile():
    report = open_report(REPORT)
    page = page_of(report, other=(report, found()))
    assert page.count("<script>") == 1 and "alert(1)" in page and EVIL not in page
    part = page[page.index('<section id="beside"') :]
    part = part[: part.index("</section>")]
    assert part.index('data-verdict="SLOWER"') < part.index('data-verdict="UNSURE"')  # what got worse comes first
    assert "Cases of both runs: 2; of this one alone: 1. That run:" in part and "S0.1" in part
    assert drawn(found())["case"] == [EVIL]
    assert 'id="beside"' not in page_of(report)
    empty = {**found(), "times": [], "columns": [], "claims": []}
    assert "data-draw=\"beside\"" not in page_of(report, other=(report, empty))


def test_who_compares(tmp_path, monkeypatch):
    monkeypatch.delenv("SPLASH_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ReportError, match="SPLASH_BIN"):
        compared(REPORT, REPORT)
    program = tmp_path / "splash"
    for code, says in ((0, {"code": 0}), (1, {"code": 1})):
        program.write_text(f"#!/bin/sh\necho '{json.dumps(says)}'\nexit {code}\n")
        program.chmod(0o755)
        assert compared(REPORT, REPORT) == says
    program.write_text("#!/bin/sh\necho 'splash: they are of other kinds' >&2\nexit 2\n")
    with pytest.raises(ReportError, match="^they are of other kinds$"):
        compared(REPORT, REPORT)
    monkeypatch.setenv("SPLASH_BIN", str(tmp_path / "nowhere"))
    with pytest.raises(ReportError, match="cannot be started"):
        compared(REPORT, REPORT)
