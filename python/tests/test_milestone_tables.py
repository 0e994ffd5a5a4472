"""The tables of a plan's milestones in the documents."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from splash_laboratory.documents.ladder_tables import LadderError
from splash_laboratory.documents.milestone_tables import fill
from splash_laboratory.reports import Report

DOCUMENT = """<!-- milestones plan: peer=torch-efficient n=64 -->
old words
<!-- end of milestones -->

the end
"""


def report():
    names = ["torch-efficient", "toy/0-first", "toy/1-second", "toy/2-third", "toy/3-fourth", "toy/4-refused", "torch-math"]
    size = len(names)
    results = xr.Dataset(
        {
            "experiment": ("case", ["plan"] * size),
            "implementation": ("case", names),
            "normalizer": ("case", ["softmax", "entmax", "entmax", "power", "power", "entmax", "softmax"]),
            "k_keep": ("case", [8.0, 8.0, 4.0, 2.0, 8.0, 8.0, 8.0]),
            "n": ("case", [64.0] * size),
            "time_median": ("case", [1e-3, 5e-3, 4e-3, 1.9e-3, 5e-4, np.nan, 2e-3]),
        }
    )
    return Report(Path("r.h5"), {}, "", results, xr.Dataset(), xr.Dataset(), {})


def test_each_step_has_the_milestone_that_it_exceeds():
    text = fill(DOCUMENT, report())
    assert "old words" not in text and text.endswith("the end\n")
    assert [line for line in text.splitlines() if line.startswith("|")][2:] == [
        "| 0-first | entmax | 8 | 5,000 | 0.2 | none |",  # more than 0.2 is asked for
        "| 1-second | entmax | 4 | 4,000 | 0.25 | progress |",
        "| 2-third | power | 2 | 1,900 | 0.526 | good |",
        "| 3-fourth | power | 8 | 500 | 2 | target |",
    ]
    assert fill(text, report()) == text


def test_a_peer_that_was_not_run_is_refused():
    with pytest.raises(LadderError, match="plan has no time of torch-cudnn with n=64"):
        fill(DOCUMENT.replace("torch-efficient", "torch-cudnn"), report())
    with pytest.raises(LadderError, match="no case with n=7"):
        fill(DOCUMENT.replace("n=64", "n=7"), report())
