"""Writes tables of claims and their verdicts into the documents, from a recorded report.

    python -m splash_laboratory.documents.claim_tables data/reports/papers-h200.h5 docs/questions/*.md

A table stands between two markers; the words of the first are how the claims' ids begin:

    <!-- claims P1 P2 -->
    ...
    <!-- end of claims -->
"""

from __future__ import annotations

import math
import re
import sys

from splash_laboratory.documents.ladder_tables import LadderError, cells, write_tables
from splash_laboratory.reports import Report

MARKER = re.compile(r"(<!-- claims (?P<ids>[^>]*) -->\n).*?(<!-- end of claims -->)", re.DOTALL)


def fill(document: str, report: Report) -> str:
    """The document with every table written anew."""

    def table(match: re.Match[str]) -> str:
        rows = lines(report, tuple(match["ids"].split()))
        if not rows:
            raise LadderError(f"{report.path}: there is no claim {match['ids']}")
        return match[1] + "\n" + "\n".join(rows) + "\n\n" + match[3]

    return MARKER.sub(table, document)


def lines(report: Report, beginnings: tuple[str, ...]) -> list[str]:
    """A row a claim, by id: what is claimed, its number, the measured one and the verdict."""
    names = ("id", "claim", "theirs", "ours", "verdict")
    claims = sorted(zip(*(report.claims[name].values for name in names), strict=True)) if report.claims else []
    rows = [
        cells([id_, claim, theirs, "-" if math.isnan(ours) else f"{ours:.3g}", verdict])
        for id_, claim, theirs, ours, verdict in claims
        if id_.startswith(beginnings)
    ]
    return [cells(["", "claim", "paper", "measured", "verdict"]), cells("---" for _ in range(5)), *rows] if rows else []


def main(arguments: list[str]) -> int:
    return write_tables("claim_tables", fill, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
