"""Recorded language models on the page: the table of each report, and its plots, as HTML that needs no script."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from html import escape

import matplotlib

from splash_laboratory.documents.model_tables import tables
from splash_laboratory.page.head import where_recorded
from splash_laboratory.plots import FIGURES, NotInReport
from splash_laboratory.plots.style import SETTINGS
from splash_laboratory.reports import Report

PLOTS = ("perplexity-against-keys", "keys-of-a-model-by-layer-and-head")
DOTS_PER_INCH = 110


def language_models(recorded: Sequence[Report]) -> str:
    """A part a report that holds experiments with language models; "" without any."""
    return "".join(_part(report, held) for report in recorded if (held := tables(report)))


def _part(report: Report, held: dict[str, list[list[str]]]) -> str:
    where = f"Recorded on {where_recorded(report)}; not of this run."
    inside = "".join(_table(rows, report.title) for rows in held.values()) + "".join(_plot(name, report) for name in PLOTS)
    return f'<h3>{escape(report.title)}</h3><p class="words">{escape(where)}</p>{inside}'


def _table(rows: list[list[str]], caption: str) -> str:
    headings, *lines = ("".join(f"<{tag}>{_cell(text)}</{tag}>" for text in row) for tag, row in _tagged(rows))
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<div class="box"><div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table><thead><tr>{headings}</tr></thead><tbody>{body}</tbody></table></div></div>"
    )


def _tagged(rows: list[list[str]]) -> list[tuple[str, list[str]]]:
    return [("td" if at else "th", row) for at, row in enumerate(rows)]


def _cell(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _plot(name: str, report: Report) -> str:
    try:
        drawn = FIGURES[name](report)
    except NotInReport:
        return ""
    image = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        drawn.savefig(image, format="png", dpi=DOTS_PER_INCH)
    told = escape(" ".join(drawn.texts[0].get_text().split()))
    data = base64.b64encode(image.getvalue()).decode()
    return f'<figure class="box"><img alt="{told}" src="data:image/png;base64,{data}"></figure>'
