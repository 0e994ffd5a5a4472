"""What stands in the page as plain HTML, readable without its script: provenance, notes, claims, ceilings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from html import escape

import numpy as np
import xarray as xr

from splash_laboratory.plots.claims import VERDICTS
from splash_laboratory.reports import Report

# Of /provenance, in this order; the rest follows folded up.
FACTS = {
    "commit": "commit",
    "gpu": "GPU",
    "multiprocessors": "multiprocessors",
    "compute_capability": "compute capability, times ten",
    "l2_bytes": "bytes of L2",
    "cpu": "CPU",
    "threads": "threads",
    "driver": "driver",
    "clocks": "clocks",
    "toolchain": "toolchain",
    "argv": "command",
    "seed": "seed",
    "started": "started",
    "finished": "finished",
}
OWN = "this project"  # the source of claims that are the project's own checks


def facts(report: Report) -> str:
    """The provenance as a list of terms, long texts folded up below."""
    held = {name: value for name, value in report.provenance.items() if str(value) not in ("", "none")}
    rows = []
    for name, words in FACTS.items():
        if name in held and not str(held[name]).startswith("none:"):
            dirty = " (with changes that are not committed)" if name == "commit" and held.get("dirty") else ""
            code = f"<code>{escape(str(held[name]))}</code>" if name in ("commit", "argv") else escape(str(held[name]))
            rows.append((words, code + dirty))
    if checks := _checks(report):
        rows.append(("checks held", checks))
    rest = [(name, str(value)) for name, value in held.items() if name not in FACTS and name != "dirty"]
    folded = "".join(
        f"<details><summary>{escape(name.replace('_', ' '))}</summary><pre>{escape(text)}</pre></details>"
        for name, text in rest
    )
    terms = "".join(f"<div><dt>{words}</dt><dd>{value}</dd></div>" for words, value in rows)
    return f'<dl class="facts">{terms}</dl>{folded}'


def _checks(report: Report) -> str:
    """How many of the project's own claims hold."""
    claims = report.claims
    if not {"source", "verdict"} <= set(claims.variables):
        return ""
    own = [
        str(verdict)
        for source, verdict in zip(claims["source"].values, claims["verdict"].values, strict=True)
        if str(source).startswith(OWN) and verdict != "not comparable"
    ]
    return f"{own.count('reproduced')} of {len(own)} of the project's own" if own else ""


def notes(report: Report) -> str:
    """What the reader has to know first: an unfinished run, throttled or drifting times, cases that were not run."""
    said = []
    if report.attributes["status"] != "complete":
        said.append(f"<p>The run is {escape(str(report.attributes['status']))}: not every case is here.</p>")
    warned = _texts(report, "warning")
    if warned:
        cases = "one case was" if len(warned) == 1 else f"{len(warned)} cases were"
        said.append(_folded(f"{cases.capitalize()} timed under a changing clock or load", warned))
    skipped = [(name, text) for name, text in _texts(report, "version") if text.startswith("not run")]
    if skipped:
        cases = "One case was" if len(skipped) == 1 else f"{len(skipped)} cases were"
        said.append(_folded(f"{cases} not run", skipped))
    return f'<div class="notes" role="note">{"".join(said)}</div>' if said else ""


def _texts(report: Report, column: str) -> list[tuple[str, str]]:
    """(who, text) of the cases where a text column says something."""
    results = report.results
    if column not in results or results[column].values.dtype.kind not in "OUS":
        return []
    who = results["implementation"].values if "implementation" in results else results["case"].values
    return [(str(a), str(b)) for a, b in zip(who, results[column].values, strict=True) if str(b)]


def _folded(words: str, lines: list[tuple[str, str]]) -> str:
    rows = "".join(
        f"<li>{escape(who)}: {escape(text)}{f' ({count} times)' if count > 1 else ''}</li>"
        for (who, text), count in Counter(lines).items()
    )
    return f"<details><summary>{escape(words)}</summary><ul>{rows}</ul></details>"


def where_recorded(report: Report) -> str:
    """Machine, day and commit, in plain text."""
    held = report.provenance
    dirty = " with changes" if held.get("dirty") else ""
    machine = held["cpu" if str(held["gpu"]).startswith("none") else "gpu"]
    return f"{machine}, {str(held['finished'])[:10]}, commit {str(held['commit'])[:7]}{dirty}"


def verdict_count(report: Report) -> str:
    """Of how many claims how many hold, those apart that only multiply out a source's own numbers; empty where there are
    none."""
    claims = report.claims
    if "verdict" not in claims or claims["verdict"].size == 0:
        return ""
    verdicts = [str(verdict) for verdict in claims["verdict"].values]
    methods = [str(method) for method in claims["method"].values] if "method" in claims else [""] * len(verdicts)
    held = Counter((m == "arithmetic", v) for m, v in zip(methods, verdicts, strict=True) if v != "not comparable")
    said = []
    for arithmetic, words in ((False, "measured"), (True, "by arithmetic alone")):
        counts = [f"{count} {escape(v)}" for (kind, v), count in held.most_common() if kind == arithmetic]
        if counts:
            said.append(f"{words} {', '.join(counts)}")
    said.append(f"{verdicts.count('not comparable')} not comparable")
    return f"Of {len(verdicts)} claims: {'; '.join(said)}."


def claims_table(report: Report) -> str:
    """A row a claim; empty where there are none."""
    rows = []
    for row in _rows(report.claims, "verdict"):
        verdict = row.text("verdict")
        symbol, kind = VERDICTS.get(verdict, ("?",))[0], verdict if verdict in ("reproduced", "refuted") else ""
        cells = [cell(row.text(name)) for name in ("id", "source", "claim", "theirs")]
        cells += [number_cell(row.value("ours"), "{:.4g}".format), _interval(row, "ours_low", "ours_high", "{:.4g}".format)]
        cells += [cell("" if row.text("units") == "1" else row.text("units"))]
        cells += [f'<td class="verdict {kind}"><span aria-hidden="true">{symbol} </span>{escape(verdict)}</td>']
        rows.append((verdict, [*cells, cell(row.text("reason"))]))
    names = ("id", "source", "claim", "theirs", "ours", "interval", "units", "verdict", "reason")
    return table_of("claims", "Claims and their verdicts", names, rows)


def ceilings_table(report: Report) -> str:
    """A row a ceiling; empty where there are none."""
    rows = []
    for row in _rows(report.ceilings, "measured"):
        say = partial(with_prefix, units=row.text("units").replace("bytes", "B").replace("1/s", "/s"))
        measured, datasheet = row.value("measured"), row.value("datasheet")
        share = measured / datasheet if datasheet > 0 else math.nan
        cells = [cell(row.text("name")), cell(row.text("dtype")), number_cell(measured, say)]
        cells += [_interval(row, "low", "high", partial(say, digits=4)), number_cell(datasheet, say)]
        # Far above the data sheet (analysis/roofline.h): the measurement, or what it is held against, is wrong.
        questioned = ", questioned" if share > 1.05 else ""
        cells += [number_cell(share, lambda s, words=questioned: f"{s:.1%}{words}"), cell(row.text("method"))]
        rows.append(("", cells))
    names = ("name", "dtype", "measured", "interval", "data sheet", "share of it", "method")
    return table_of("ceilings", "Ceilings", names, rows)


def with_prefix(value: float, units: str, digits: int = 3) -> str:
    """4.23e12, "B/s" is 4.23 TB/s."""
    for prefix, size in zip("PTGMk mµn", 10.0 ** np.arange(15, -10, -3), strict=True):
        if abs(value) >= 0.9995 * size:
            return f"{float(f'{value / size:.{digits}g}'):g} {prefix.strip()}{units}"
    return f"{value:.{digits}g} {units}"


@dataclass(frozen=True)
class Row:
    """One row of a table of the report; a column that it lacks is missing."""

    table: xr.Dataset
    at: int

    def text(self, name: str) -> str:
        return str(self.table[name].values[self.at]) if name in self.table.variables else ""

    def value(self, name: str) -> float:
        return float(self.table[name].values[self.at]) if name in self.table.variables else math.nan


def _rows(table: xr.Dataset, needed: str) -> list[Row]:
    return [Row(table, at) for at in range(table[needed].size)] if needed in table.variables else []


def cell(text: str) -> str:
    return f"<td>{escape(text)}</td>"


def number_cell(value: float, say: Callable[[float], str]) -> str:
    """In words, and with its full digits for sorting and for the CSV."""
    if math.isnan(value):
        return cell("")
    return f'<td class="number" data-value="{value:.9g}">{escape(say(value))}</td>'


def _interval(row: Row, low: str, high: str, say: Callable[[float], str]) -> str:
    ends = row.value(low), row.value(high)
    return cell("" if math.isnan(sum(ends)) or ends[0] == ends[1] else f"{say(ends[0])} – {say(ends[1])}")


def table_of(name: str, caption: str, headings: tuple[str, ...], rows: list[tuple[str, list[str]]]) -> str:
    """rows: (verdict, cells). Columns of empty cells are left out; empty where there are no rows."""
    if not rows:
        return ""
    kept = [at for at in range(len(headings)) if any(cells[at] != cell("") for _, cells in rows)]
    heads = "".join(f'<th scope="col">{headings[at]}</th>' for at in kept)
    lines = "".join(
        f'<tr data-verdict="{escape(verdict)}">{"".join(cells[at] for at in kept)}</tr>' for verdict, cells in rows
    )
    return (
        f'<div class="box" data-table="{name}"><div class="scroll" tabindex="0" role="region" aria-label="{caption}">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div></div>"
    )
