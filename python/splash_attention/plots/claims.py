"""The claims of the source documents, judged: one line a claim."""

from __future__ import annotations

import textwrap

import xarray as xr
from matplotlib.figure import Figure

from splash_attention.plots import style
from splash_attention.plots.data import NotInReport, figure
from splash_attention.reports import Report

# Verdicts by symbol and word as well as colour.
VERDICTS = {
    "reproduced": ("✓ reproduced", style.GOOD),
    "refuted": ("✗ refuted", style.BAD),
    "not comparable": ("○ not comparable", style.UNDECIDED),
}
COLUMNS = (
    ("", 0.6, 8),
    ("Claim", 3.5, 46),
    ("Theirs", 1.65, 20),
    ("Ours [interval]", 1.9, 22),
    ("Verdict", 1.65, 22),
    ("Reason", 4.7, 64),
)  # title, inches, letters
LINE, PADDING = 0.165, 0.14  # inches


@figure("claims")
def figure_claims(report: Report) -> Figure:
    """A table: what was claimed, what was found, the verdict and why."""
    claims = report.claims
    if "verdict" not in claims or claims["verdict"].size == 0:
        raise NotInReport("the report judges no claims")
    rows = [_cells(claims, at) for at in range(claims["verdict"].size)]
    heights = [LINE * max(cell.count("\n") + 1 for cell in row) + PADDING for row in rows]
    width, height = sum(column[1] for column in COLUMNS) + 0.24, sum(heights) + 0.34
    drawn, axes = style.canvas(1, 1, (width, height))
    table = axes[0, 0]
    table.set_axis_off()
    table.set_xlim(0, width)
    table.set_ylim(height, 0)
    drawn.get_layout_engine().set(w_pad=0, h_pad=0)
    starts = [0.12 + sum(column[1] for column in COLUMNS[:at]) for at in range(len(COLUMNS))]
    for start, (title, _, _) in zip(starts, COLUMNS, strict=True):
        table.text(start, 0.2, title, fontsize=9.5, fontweight="bold", color=style.INK, va="center")
    y = 0.34
    for at, (row, row_height) in enumerate(zip(rows, heights, strict=True)):
        table.axhline(y, color="#CCCCCC" if at else style.INK, linewidth=0.7, xmin=0.12 / width, xmax=1 - 0.12 / width)
        _, colour = VERDICTS.get(str(claims["verdict"].values[at]), ("", style.INK))
        for column, (start, cell) in enumerate(zip(starts, row, strict=True)):
            verdict = column == 4
            table.text(
                start,
                y + PADDING / 2,
                cell,
                fontsize=8.5,
                va="top",
                linespacing=1.32,
                color=colour if verdict else style.FAINT if column == 0 else style.INK,
                fontweight="bold" if verdict else "normal",
            )
        y += row_height
    style.headline(
        drawn,
        _finding(claims),
        "Each claim of the source documents and papers, what was found here, and why the verdict.",
    )
    return drawn


def _cells(claims: xr.Dataset, at: int) -> list[str]:
    def text(name: str) -> str:
        return str(claims[name].values[at]) if name in claims.variables else ""

    verdict = VERDICTS.get(text("verdict"), (text("verdict"), ""))[0]
    cells = (text("id"), text("claim"), text("theirs"), _ours(claims, at), verdict, text("reason"))
    return [textwrap.fill(cell, column[2], break_long_words=True) for cell, column in zip(cells, COLUMNS, strict=True)]


def _ours(claims: xr.Dataset, at: int) -> str:
    def value(name: str) -> float:
        return float(claims[name].values[at]) if name in claims else float("nan")

    if value("ours") != value("ours"):
        return "—"
    units = str(claims["units"].values[at]) if "units" in claims else "1"
    words = f"{value('ours'):.4g}" + ("" if units in ("1", "") else f" {units}")
    if value("ours_low") == value("ours_low") and value("ours_low") < value("ours_high"):
        words += f" [{value('ours_low'):.3g}, {value('ours_high'):.3g}]"
    return words


def _finding(claims: xr.Dataset) -> str:
    counts = {verdict: int((claims["verdict"].values == verdict).sum()) for verdict in VERDICTS}
    total = claims["verdict"].size
    words = ("reproduced", "refuted", "not comparable")
    return f"Of {total} claims, " + ", ".join(
        f"{counts[word]} {'is' if counts[word] == 1 else 'are'} {word}" for word in words
    )
