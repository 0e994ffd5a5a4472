"""Writes tables of a plan's milestones into the documents: how fast each step is beside a dense peer of the same record.

    python -m splash_laboratory.documents.milestone_tables data/reports/ladders-h100.h5 docs/questions/*.md

A table stands between two markers; the first names an experiment, the peer, and by further words its cases:

    <!-- milestones splash: peer=torch-efficient q_len=2048 -->
    ...
    <!-- end of milestones -->
"""

from __future__ import annotations

import re
import sys

import numpy as np
import xarray as xr

from splash_laboratory.documents.ladder_tables import LadderError, cells, chosen, microseconds, number, text, write_tables
from splash_laboratory.reports import Report

MARKER = re.compile(
    r"(<!-- milestones (?P<experiment>[\w-]+): peer=(?P<peer>[\w-]+)(?P<where>[^>]*) -->\n).*?(<!-- end of milestones -->)",
    re.DOTALL,
)
MILESTONES = ((1.0, "target"), (0.5, "good"), (0.2, "progress"))  # of source 000: the peer's time / ours exceeds it
HEADINGS = ("rung", "normalizer", "K_KEEP", "time, µs", "× dense", "milestone")


def fill(document: str, report: Report) -> str:
    """The document with every table written anew."""

    def table(match: re.Match[str]) -> str:
        cases = chosen(report, match["experiment"], match["where"])
        rows = lines(cases, match["peer"])
        if not rows:
            raise LadderError(f"{report.path}: {match['experiment']} has no time of {match['peer']} with{match['where']}")
        return match[1] + "\n" + "\n".join(rows) + "\n\n" + match[5]

    return MARKER.sub(table, document)


def lines(cases: list[xr.Dataset], peer: str) -> list[str]:
    """A row a rung's case that was run; none where the peer was not."""
    timed = [case for case in cases if np.isfinite(number(case, "time_median"))]
    dense = [number(case, "time_median") for case in timed if text(case, "implementation") == peer]
    if not dense:
        return []
    rungs = [case for case in timed if not text(case, "implementation").startswith("torch-")]
    return [cells(HEADINGS), cells("---" for _ in HEADINGS), *(row(case, float(np.median(dense))) for case in rungs)]


def row(case: xr.Dataset, dense: float) -> str:
    share = dense / number(case, "time_median")
    return cells(
        (
            text(case, "implementation").split("/")[1],
            text(case, "normalizer"),
            f"{number(case, 'k_keep'):.0f}",
            microseconds(number(case, "time_median")),
            f"{share:.3g}",
            next((name for least, name in MILESTONES if share > least), "none"),
        )
    )


def main(arguments: list[str]) -> int:
    return write_tables("milestone_tables", fill, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
