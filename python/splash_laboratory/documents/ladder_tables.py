"""Writes the tables of ladders into the documents, from a recorded report.

    python -m splash_laboratory.documents.ladder_tables data/reports/ladders-h100.h5 docs/questions/*.md

A table stands between two markers; the words of the first choose its cases:

    <!-- ladder wmma: batch=1 q_len=512 dtype=float16 method=graph -->
    ...
    <!-- end of ladder -->
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from splash_laboratory.documents.rewrite import rewrite
from splash_laboratory.reports import Report, open_report

MARKER = re.compile(r"(<!-- ladder (?P<experiment>[\w-]+):(?P<where>[^>]*) -->\n).*?(<!-- end of ladder -->)", re.DOTALL)
HEADINGS = (
    "rung",
    "idea",
    "time, µs",
    "dense-equivalent / executed TFLOP/s",
    "% of the roof",
    "nmse",
    "gain promised",
    "gain measured",
    "why",
)


class LadderError(Exception):
    """A marker that names no case of the report. The message is one sentence."""


def fill(text: str, report: Report) -> str:
    """The document with every table written anew."""

    def table(match: re.Match[str]) -> str:
        cases = chosen(report, match["experiment"], match["where"])
        return match[1] + "\n" + "\n".join(lines(cases)) + "\n\n" + match[4]

    return MARKER.sub(table, text)


def chosen(report: Report, experiment: str, where: str) -> list[xr.Dataset]:
    """The cases of one table, in the order they ran."""
    results = report.experiment(experiment)
    keep = np.ones(results.sizes["case"], bool)
    for word in where.split():
        name, _, value = word.partition("=")
        if name not in results:
            raise LadderError(f"{report.path}: {experiment} has no column '{name}'")
        column = results[name].values
        keep &= column == (value if column.dtype.kind in "OUS" else float(value))
    if not keep.any():
        raise LadderError(f"{report.path}: {experiment} has no case with {where.strip()}")
    return [results.isel(case=int(i)) for i in np.flatnonzero(keep)]


def lines(cases: list[xr.Dataset]) -> list[str]:
    """A row a case that was run. Gains are over the rung that the document names, else over the rung before."""
    times: dict[str, float] = {}
    rows, before = [], ""
    for case in cases:
        if not np.isfinite(number(case, "time_median")):
            continue
        name = text(case, "implementation")
        rows.append(row(case, times.get(text(case, "predicted_over") or before, np.nan)))
        times[name] = number(case, "time_median")
        if not name.startswith("torch-"):
            before = name
    return [cells(HEADINGS), cells("---" for _ in HEADINGS), *rows]


def row(case: xr.Dataset, before: float) -> str:
    name = text(case, "implementation")
    peer = name.startswith("torch-")
    rates = f"{number(case, 'dense_equivalent_rate') / 1e12:.3g}"
    if not peer:
        rates += f" / {number(case, 'executed_rate') / 1e12:.3g}"
    return cells(
        (
            name if peer else name.split("/")[1],
            "PyTorch's dense attention" if peer else text(case, "idea"),
            microseconds(number(case, "time_median")),
            rates,
            percent(number(case, "roof_share")),
            f"{number(case, 'nmse'):.0e}",
            promised(number(case, "predicted_low"), number(case, "predicted_high")),
            "" if peer else times_text(before / number(case, "time_median")),
            text(case, "finding"),
        )
    )


def number(case: xr.Dataset, name: str) -> float:
    return float(case[name].values) if name in case else np.nan


def text(case: xr.Dataset, name: str) -> str:
    return str(case[name].values) if name in case else ""


def microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:,.0f}" if seconds >= 1e-3 else f"{1e6 * seconds:.3g}"


def percent(share: float) -> str:
    return f"{100 * share:.3g}" if np.isfinite(share) else ""


def times_text(ratio: float) -> str:
    return f"{ratio:.3g}×" if np.isfinite(ratio) else ""


def promised(low: float, high: float) -> str:
    if not np.isfinite(low):
        return ""
    return f"{low:.3g}×" if low == high else f"{low:.3g}–{high:.3g}×"


def cells(entries) -> str:
    return "| " + " | ".join(str(entry).replace("|", "\\|") for entry in entries) + " |"


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """With the empty lines around it that Markdown wants between markers."""
    return "\n" + "\n".join([cells(headings), cells("---" for _ in headings), *map(cells, rows)]) + "\n\n"


def open_json(path: str | Path, use: Callable[[Any], Any], what: str) -> Any:
    """What a JSON file holds. Raises ValueError, `path` holds no `what`, where it cannot be read or used."""
    try:
        held = json.loads(Path(path).read_text(encoding="utf-8"))
        use(held)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no {what}: {error!r}") from None
    return held


def write_tables(
    module: str, fill: Callable[[str, Any], str], arguments: list[str], opened: Callable[[str], Any] = open_report
) -> int:
    if len(arguments) < 2:
        print(f"usage: python -m splash_laboratory.documents.{module} REPORT DOCUMENT...", file=sys.stderr)
        return 2
    report = opened(arguments[0])
    rewrite(arguments[1:], lambda text: fill(text, report), "tables")
    return 0


def main(arguments: list[str]) -> int:
    return write_tables("ladder_tables", fill, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
