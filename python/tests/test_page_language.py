"""What the page of a run shows of recorded language models: tables and plots, and which machine they are of."""

from __future__ import annotations

import base64

import pytest
from test_page import REPORTS, Tags, sections

from splash_laboratory import open_report
from splash_laboratory.documents.model_tables import tables
from splash_laboratory.page import page_of


@pytest.fixture(scope="module")
def recorded():
    return [open_report(REPORTS / name) for name in ("ladders-h200.h5", "model-perplexity-h100.h5", "model-conversion-h100.h5")]


@pytest.fixture(scope="module")
def study():
    return open_report(REPORTS / "reproduce-quick.h5")


def test_a_run_s_page_shows_recorded_language_models(study, recorded) -> None:
    page = page_of(study, recorded)
    assert "language" in sections(page) and 'href="#language"' in page
    part = page[page.index('<section id="language"') :]
    part = part[: part.index("</section>")]
    for told in ("NVIDIA H100 80GB HBM3, 2026-11-25, commit 41bc1c6", "NVIDIA H100 80GB HBM3; NVIDIA H200, 2026-11-27, commit f7e1586"):
        assert part.count(f"Recorded on {told}; not of this run.") == 1
    rows = [rows for report in recorded for rows in tables(report).values()]
    assert [len(one) for one in rows] == [19, 19] and part.count("<tr>") == sum(map(len, rows))
    for row in (row for one in rows for row in one[1:]):
        cells = "".join(f"<td>{cell}</td>" for cell in row).replace("`", "<code>", 1).replace("`", "</code>", 1)
        assert f"<tr>{cells}</tr>" in part
    images = Tags(part).named("img")
    assert len(images) == 3 and "softmax" in images[0]["alt"] and all("key" in image["alt"] for image in images[1:])
    for image in images:
        kind, _, data = image["src"].partition(",")
        assert kind == "data:image/png;base64" and base64.b64decode(data).startswith(b"\x89PNG")
    policy = next(a["content"] for a in Tags(page).named("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert "img-src data:;" in policy, "what is within the page is shown, and nothing else"


def test_a_page_without_them_has_no_such_part(study, recorded) -> None:
    page = page_of(study, recorded[:1])
    assert "language" not in sections(page) and not Tags(page).named("img")
