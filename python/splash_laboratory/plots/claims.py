"""The claims of the source documents, judged: one tile a claim. The reasons are in the report and in claims.md."""

from __future__ import annotations

import re

import xarray as xr
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from splash_laboratory.plots import style
from splash_laboratory.plots.data import NotInReport, figure
from splash_laboratory.reports import Report

# Verdicts by symbol and word as well as colour.
VERDICTS = {
    "reproduced": ("✓", style.GOOD),
    "refuted": ("✗", style.BAD),
    "unsure": ("≈", style.UNDECIDED),
    "not comparable": ("○", style.UNDECIDED),
}
TILES_A_LINE, NAMES_WIDTH = 16, 2.9  # tiles are 0.62 x 0.34 inches
TILE_WIDTH, TILE_HEIGHT, GAP, SOURCE_GAP = 0.62, 0.34, 0.05, 0.16


@figure("claims")
def figure_claims(report: Report) -> Figure:
    """A line of tiles a source: which of its claims were reproduced, refuted, unsure or not comparable."""
    claims = report.claims
    if "verdict" not in claims or claims["verdict"].size == 0:
        raise NotInReport("the report judges no claims")
    tiles, labels, height = _layout(_by_source(claims))
    width = NAMES_WIDTH + TILES_A_LINE * (TILE_WIDTH + GAP)
    drawn, axes = style.canvas(1, 1, (width, height + 0.4))
    board = axes[0, 0]
    board.set_axis_off()
    board.set_xlim(0, width)
    board.set_ylim(height + 0.4, 0)
    drawn.get_layout_engine().set(w_pad=0, h_pad=0)
    for y, source in labels:
        board.text(0.12, y + TILE_HEIGHT / 2, source, va="center", fontsize=9.5, color=style.INK)
    for x, y, name, verdict in tiles:
        _tile(board, x, y, name, verdict)
    for at, verdict in enumerate(VERDICTS):
        x = NAMES_WIDTH + at * 2.2
        _tile(board, x, height + 0.04, "", verdict)
        board.text(x + TILE_WIDTH + 0.1, height + 0.04 + TILE_HEIGHT / 2, verdict, va="center", fontsize=9.5)
    style.headline(
        drawn,
        _finding(claims),
        "Claims of the source documents and papers, and this project's own. The reasons: splash show REPORT --claims.",
    )
    return drawn


def _by_source(claims: xr.Dataset) -> dict[str, list[tuple[str, str]]]:
    """Source -> (id, verdict) of its claims, as they stand."""
    groups: dict[str, list[tuple[str, str]]] = {}
    sources = claims["source"].values if "source" in claims else [""] * claims["verdict"].size
    for source, name, verdict in zip(sources, claims["id"].values, claims["verdict"].values, strict=True):
        short = re.sub(r"\s*\(.*\)|,.*", "", str(source)) or "claims"
        groups.setdefault(short, []).append((str(name), str(verdict)))
    return groups


def _layout(groups: dict[str, list[tuple[str, str]]]):
    """Places: tiles (x, y, id, verdict), source labels (y, text), and the height in inches."""
    tiles, labels, y = [], [], 0.0
    for source, members in groups.items():
        labels.append((y, source))
        for at, (name, verdict) in enumerate(members):
            line, place = divmod(at, TILES_A_LINE)
            tiles.append((NAMES_WIDTH + place * (TILE_WIDTH + GAP), y + line * (TILE_HEIGHT + GAP), name, verdict))
        y += ((len(members) - 1) // TILES_A_LINE + 1) * (TILE_HEIGHT + GAP) + SOURCE_GAP
    return tiles, labels, y


def _tile(board, x: float, y: float, name: str, verdict: str) -> None:
    symbol, colour = VERDICTS.get(verdict, ("?", style.INK))
    open_tile = verdict == "not comparable"
    board.add_patch(
        Rectangle((x, y), TILE_WIDTH, TILE_HEIGHT, facecolor=style.PAPER if open_tile else colour, edgecolor=colour)
    )
    short = name if len(name) <= 6 else "check"  # the project's own checks have long names
    board.text(
        x + TILE_WIDTH / 2,
        y + TILE_HEIGHT / 2,
        f"{symbol} {short}".strip(),
        ha="center",
        va="center",
        fontsize=7.5,
        color=colour if open_tile else style.PAPER,
    )


def _finding(claims: xr.Dataset) -> str:
    counts = {verdict: int((claims["verdict"].values == verdict).sum()) for verdict in VERDICTS}
    return f"Of {claims['verdict'].size} claims, " + ", ".join(
        f"{count} {'is' if count == 1 else 'are'} {verdict}" for verdict, count in counts.items()
    )
