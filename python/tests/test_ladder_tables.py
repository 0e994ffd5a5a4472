"""The tables of ladders in the documents."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from splash_laboratory.documents.ladder_tables import LadderError, fill
from splash_laboratory.reports import Report

DOCUMENT = """# A ladder

<!-- ladder toy: n=512 dtype=float16 -->
old words
<!-- end of ladder -->

the end
"""


def report():
    results = xr.Dataset(
        {
            "experiment": ("case", ["toy"] * 4),
            "implementation": ("case", ["toy/0-first", "toy/1-second", "torch-cudnn", "toy/0-first"]),
            "n": ("case", [512.0, 512.0, 512.0, 64.0]),
            "dtype": ("case", ["float16"] * 4),
            "idea": ("case", ["as | written", "wider tiles", "", "as | written"]),
            "finding": ("case", ["", "half the loads", "", ""]),
            "predicted_over": ("case", ["", "toy/0-first", "", ""]),
            "predicted_low": ("case", [np.nan, 1.5, np.nan, np.nan]),
            "predicted_high": ("case", [np.nan, 2.0, np.nan, np.nan]),
            "time_median": ("case", [2e-5, 1.6e-5, 1e-5, 1e-6]),
            "dense_equivalent_rate": ("case", [1e13, 1.25e13, 2e13, 1.0]),
            "executed_rate": ("case", [2e13, 2.5e13, np.nan, 1.0]),
            "roof_share": ("case", [0.1, 0.125, np.nan, 1.0]),
            "nmse": ("case", [1e-12, 2e-7, 3e-6, 1.0]),
        }
    )
    return Report(Path("r.h5"), {}, "", results, xr.Dataset(), xr.Dataset(), {})


def test_a_table_is_written_between_its_markers():
    text = fill(DOCUMENT, report())
    assert "old words" not in text and text.endswith("the end\n")
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert rows == [
        "| 0-first | as \\| written | 20 | 10 / 20 | 10 | 1e-12 |  |  |  |",
        "| 1-second | wider tiles | 16 | 12.5 / 25 | 12.5 | 2e-07 | 1.5–2× | 1.25× | half the loads |",
        "| torch-cudnn | PyTorch's dense attention | 10 | 20 |  | 3e-06 |  |  |  |",
    ]
    assert fill(text, report()) == text


def test_markers_that_name_nothing_are_refused():
    with pytest.raises(LadderError, match="no column 'm'"):
        fill(DOCUMENT.replace("n=512", "m=512"), report())
    with pytest.raises(LadderError, match="no case with n=7"):
        fill(DOCUMENT.replace("n=512", "n=7"), report())
