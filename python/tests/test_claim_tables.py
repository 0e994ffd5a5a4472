"""The tables of claims in the documents."""

from pathlib import Path

import pytest
import xarray as xr

from splash_laboratory.documents.claim_tables import fill
from splash_laboratory.documents.ladder_tables import LadderError
from splash_laboratory.reports import Report

DOCUMENT = "# Claims\n\n<!-- claims P1 -->\nold words\n<!-- end of claims -->\n\nthe end\n"


def report():
    column = lambda *values: ("claim", list(values))  # noqa: E731
    claims = xr.Dataset(
        {
            "id": column("P1.2", "P1.1", "S1.1"),
            "theirs": column("2x", "3", "4"),
            "ours": column(float("nan"), 3.0, 4.0),
            "verdict": column("refuted", "reproduced", "reproduced"),
        },
        coords={"claim": ["twice as fast", "three | steps", "four"]},
    )
    return Report(Path("r.h5"), {}, "", xr.Dataset(), claims, xr.Dataset(), {})


def test_a_table_is_written_between_its_markers():
    text = fill(DOCUMENT, report())
    assert "old words" not in text and text.endswith("the end\n")
    assert [line for line in text.splitlines() if line.startswith("|")] == [
        "|  | claim | paper | measured | verdict |",
        "| --- | --- | --- | --- | --- |",
        "| P1.1 | three \\| steps | 3 | 3 | reproduced |",
        "| P1.2 | twice as fast | 2x | - | refuted |",
    ]
    assert fill(text, report()) == text


def test_a_marker_without_claims_is_refused():
    with pytest.raises(LadderError, match="there is no claim P9"):
        fill(DOCUMENT.replace("P1", "P9"), report())
