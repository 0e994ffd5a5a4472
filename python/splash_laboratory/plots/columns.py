"""Any column over any other, a curve for each value of a third: time against length, error against support."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from splash_laboratory.plots import style
from splash_laboratory.plots.data import NotInReport, cases_with, label, levels, present, where
from splash_laboratory.reports import Report

MOST_CURVES = 16
LOGARITHMIC = 20  # from the least median to the largest
DEEPEST = 1e-12  # of the largest: what lies below is rounding, and would press the rest together


def figure_columns(
    report: Report, x: str, y: str, by: str | None = None, conditions: Sequence[str] = (), width: float = 9.5
) -> Figure:
    """The median of column `y` over column `x`, a curve for each value of `by`; whiskers where the report has y's interval
    and a point is one case. conditions: "name=value", as `splash table --where` takes them.

    Raises NotInReport, one sentence: an unknown column, text where numbers are needed, no case left, too many curves.
    """
    data = selected(report.results, conditions)
    for name in filter(None, (x, y, by)):
        require_column(data, name, numeric=name != by)
    data = cases_with(Report(**{**vars(report), "results": data}), x, y, *([by] if by else []))
    names = levels(data, by) if by else [None]
    if len(names) > MOST_CURVES:
        raise NotInReport(f"'{by}' has {len(names)} values and a plot has room for {MOST_CURVES} curves; narrow it with --where")
    with matplotlib.rc_context(style.SETTINGS):
        drawn, axes = style.canvas(1, 1, (width, 5))
        panel = axes[0, 0]
        medians = np.concatenate(
            [_curve(panel, where(data, **{by: n}) if by else data, x, y, at, _word(n)) for at, n in enumerate(names)]
        )
        _scale(panel, "x", data[x], data[x].values)
        _scale(panel, "y", data[y], medians)
        if by:
            panel.legend(title=style.plain(by), loc="best", ncols=1 + (len(names) > 8))
        style.headline(drawn, _finding(data, x, y, by), _context(data, x, y, by, conditions))
    return drawn


def selected(data: xr.Dataset, conditions: Sequence[str]) -> xr.Dataset:
    """The cases that meet every condition. Raises NotInReport, with what there is, where none does."""
    for condition in conditions:
        name, equals, text = condition.partition("=")
        if not equals:
            raise NotInReport(f"--where takes name=value, not '{condition}'")
        require_column(data, name, numeric=False)
        numeric = data[name].dtype.kind == "f"
        wanted = _values(name, text, numeric)
        keep = np.zeros(data.sizes["case"], dtype=bool)
        for value in wanted:
            keep |= np.isclose(data[name].values, value, rtol=1e-9) if numeric else data[name].values == value
        if not keep.any():
            there = [f"{value:g}" if numeric else value for value in levels(data, name)]
            raise NotInReport(f"no case is left with {condition}; there are {', '.join(there[:12]) or 'none'}")
        data = data.isel(case=np.flatnonzero(keep))
    return data


def _values(name: str, text: str, numeric: bool) -> list:
    """As `splash run --set` reads them: commas part numbers, a text stays whole, [..] is a list."""
    try:
        if text.startswith("["):
            return [float(value) if numeric else str(value) for value in json.loads(text)]
        words = {"true": 1.0, "false": 0.0}
        return [words.get(part, None) if part in words else float(part) for part in text.split(",")] if numeric else [text]
    except (TypeError, ValueError) as error:
        raise NotInReport(f"'{text}' is no value of '{name}', which holds {'numbers' if numeric else 'texts'}") from error


def require_column(data: xr.Dataset, name: str, numeric: bool = False) -> None:
    """Raises NotInReport, with the nearest, unless the column has one value a case."""
    fit = {str(c.name) for c in data.data_vars.values() if c.dims == ("case",) and (c.dtype.kind == "f" or not numeric)}
    if name in fit:
        return
    close = difflib.get_close_matches(name, sorted(fit), n=1, cutoff=0.5)
    hint = f"; did you mean '{close[0]}'?" if close else "; `splash show REPORT` lists them"
    raise NotInReport(f"the report has no column '{name}' of one {'number' if numeric else 'value'} a case{hint}")


def _curve(panel: Axes, cases: xr.Dataset, x: str, y: str, at: int, name: str) -> np.ndarray:
    """Draws one, and returns its medians."""
    places = levels(cases, x)
    groups = [where(cases, **{x: place}) for place in places]
    medians = np.array([np.nanmedian(group[y].values) for group in groups])
    stem = y.removesuffix("_median")
    ends = [f"{stem}_low", f"{stem}_high"]
    reach = None
    if stem != y and all(end in cases for end in ends) and all(group.sizes["case"] == 1 for group in groups):
        held = [np.array([float(group[end].values[0]) for group in groups]) for end in ends]
        reach = np.nan_to_num(np.maximum([medians - held[0], held[1] - medians], 0))
    colour, marker = style.PALETTE[at % len(style.PALETTE)], style.MARKERS[at % len(style.MARKERS)]
    dashed = "-" if at < len(style.PALETTE) else "--"
    panel.errorbar(places, medians, yerr=reach, fmt=marker + dashed, color=colour, capsize=3, markersize=5, label=name)
    return medians


def _scale(panel: Axes, which: str, column: xr.DataArray, values: np.ndarray) -> None:
    """Logarithmic where values are positive and far apart; lengths are powers of two."""
    inches = panel.figure.get_size_inches()[0 if which == "x" else 1]
    (panel.set_xlabel if which == "x" else panel.set_ylabel)(label(column, int(7 * inches)))
    low, high = values.min(), values.max()
    if low <= 0 or high < LOGARITHMIC * low:
        if which == "y" and low >= 0:
            panel.set_ylim(bottom=0)
    elif which == "x" and np.all(np.log2(values) % 1 == 0):
        style.log2_axis(panel, "x")
    else:
        if which == "y" and low < DEEPEST * high:
            panel.set_ylim(bottom=DEEPEST * high)
        style.log_axis(panel, which)
    if column.attrs.get("units") == "s":
        axis = panel.xaxis if which == "x" else panel.yaxis
        axis.set_major_formatter(FuncFormatter(lambda value, _: style.seconds(value) if value > 0 else "0"))


def _word(value: object) -> str:
    """A curve's name."""
    return "_" if value is None else f"{value:g}" if isinstance(value, float) else style.plain(value)


def _value(column: xr.DataArray, value: float) -> str:
    units = str(column.attrs.get("units", "1"))
    return style.seconds(value) if units == "s" else style.number(value) + ("" if units in ("1", "") else f" {units}")


def _finding(data: xr.Dataset, x: str, y: str, by: str | None) -> str:
    """Who is lowest where x is largest, and by how much."""
    last = max(levels(data, x))
    there = where(data, **{x: last})
    at = f"at {style.plain(x)} {style.number(last)}" if last < 1e4 else f"at {style.plain(x)} {last:.0f}"
    found = sorted((float(np.nanmedian(where(there, **{by: n})[y].values)), n) for n in levels(there, by)) if by else []
    if len(found) < 2:
        return f"{style.plain(y)} is {_value(data[y], float(np.nanmedian(there[y].values)))} {at}"
    (low, name), (next_low, next_name) = found[:2]
    who, other = (_word(n) if isinstance(n, str) else f"{style.plain(by)} {_word(n)}" for n in (name, next_name))
    times = f", {style.number(next_low / low)} times below {other}" if low > 0 else ""
    return f"{who} is lowest {at}: {_value(data[y], low)}{times}"


def _context(data: xr.Dataset, x: str, y: str, by: str | None, conditions: Sequence[str]) -> str:
    parts = [f"Cases with {', '.join(conditions)}."] if conditions else []
    keys = [name for name in (x, by) if name]
    cells = {tuple(case[name] for name in keys) for case in _rows(data, keys)}
    if len(cells) == data.sizes["case"]:
        return " ".join([*parts, f"A point is one case of {data.sizes['case']}."])
    varying = [
        str(name)
        for name, column in data.data_vars.items()
        if column.attrs.get("role") == "parameter" and name not in keys and column.dims == ("case",) and _varies(data, str(name))
    ]
    differ = f", which differ in {', '.join(varying[:6])}" if varying else ""
    return " ".join([*parts, f"A point is the median of {data.sizes['case'] / len(cells):.3g} cases on average{differ}."])


def _varies(data: xr.Dataset, name: str) -> bool:
    return len(levels(data, name)) + int(not present(data[name]).all()) > 1


def _rows(data: xr.Dataset, names: list[str]) -> list[dict]:
    return [dict(zip(names, row, strict=True)) for row in zip(*(data[name].values.tolist() for name in names), strict=True)]
