"""What the plots share: which plots there are, and how they pick their numbers out of a report."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from splash_laboratory.plots.style import SETTINGS, balanced
from splash_laboratory.reports import Report, without_missing

# Values of the parameter `input` that mean a real model's attention. The encoder first: its study is the widest.
CAPTURES = {"minilm": "real encoder", "smollm2": "real decoder"}
QUANTILES = np.array([0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0])  # what the columns (case, quantile) hold

FIGURES: dict[str, Callable[[Report], Figure]] = {}


class NotInReport(Exception):
    """The report does not hold what a plot needs. The message completes "skipped: …"."""


def figure(name: str) -> Callable[[Callable[[Report], Figure]], Callable[[Report], Figure]]:
    """Registers a plot under the name that `--only` and its file take; it is drawn in the shared style."""

    def register(function: Callable[[Report], Figure]) -> Callable[[Report], Figure]:
        @functools.wraps(function)
        def styled(report: Report) -> Figure:
            with matplotlib.rc_context(SETTINGS):
                return function(report)

        FIGURES[name] = styled
        return styled

    return register


def cases_with(report: Report, *columns: str, experiment: str | None = None) -> xr.Dataset:
    """The cases that have a value in each of `columns`, whatever experiment they belong to; columns they lack go.

    Raises NotInReport where there are none.
    """
    data = report.results
    absent = [name for name in columns if name not in data]
    if absent:
        raise NotInReport(f"the report has no column {_or(absent)}")
    keep = np.ones(data.sizes["case"], dtype=bool)
    if experiment is not None:
        keep &= data["experiment"].values == experiment
    for name in columns:
        keep &= present(data[name])
    if not keep.any():
        raise NotInReport(f"no case of the report has {' and '.join(repr(name) for name in columns)}")
    return without_missing(data.isel(case=np.flatnonzero(keep)))


def _or(names: list[str]) -> str:
    """'a', 'b' or 'c'."""
    quoted = [f"'{name}'" for name in names]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def quantile_levels(data: xr.Dataset) -> np.ndarray:
    """The probabilities along the dimension `quantile`: its coordinate, unless that only counts."""
    held = data["quantile"].values if "quantile" in data.coords else QUANTILES
    return held if held.max() <= 1 else QUANTILES


def present(column: xr.DataArray) -> np.ndarray:
    """Which cases have a value: [case]. With a second dimension, at least one."""
    values = column.values
    if values.dtype.kind == "f":
        there = ~np.isnan(values)
    elif values.dtype.kind in "OU":
        there = values.astype(str) != ""
    else:
        there = np.ones(values.shape, dtype=bool)
    return there if there.ndim == 1 else there.any(axis=tuple(range(1, there.ndim)))


def where(data: xr.Dataset, **wanted: object) -> xr.Dataset:
    """The cases whose parameters are as wanted; numbers to nine digits. May be empty."""
    keep = np.ones(data.sizes["case"], dtype=bool)
    for name, value in wanted.items():
        keep &= _equals(data[name].values, value)
    return data.isel(case=np.flatnonzero(keep))


def fitting(data: xr.Dataset, **wanted: object) -> xr.Dataset:
    """The cases whose parameters are as wanted, and those on which they have no effect."""
    keep = np.ones(data.sizes["case"], dtype=bool)
    for name, value in wanted.items():
        keep &= _equals(data[name].values, value) | ~present(data[name])
    return data.isel(case=np.flatnonzero(keep))


def _equals(held: np.ndarray, value: object) -> np.ndarray:
    return np.isclose(held.astype(float), value, rtol=1e-9) if isinstance(value, (int, float)) else held == value


def levels(data: xr.Dataset, name: str) -> list:
    """The distinct values of a parameter, ascending; missing ones left out. Empty without the parameter."""
    if name not in data or data.sizes["case"] == 0:
        return []
    values = data[name].values[present(data[name])]
    return np.unique(values).tolist() if values.dtype.kind != "O" else sorted(set(values.tolist()))


def quartiles(data: xr.Dataset, by: str, column: str) -> tuple[np.ndarray, ...]:
    """Each value of `by`, and over its cases the lower quartile, median and upper quartile: [levels] each."""
    groups = [where(data, **{by: value})[column].values for value in levels(data, by)]
    triples = np.array([np.nanpercentile(group, (25, 50, 75)) for group in groups]).reshape(-1, 3)
    return np.array(levels(data, by), dtype=float), triples[:, 0], triples[:, 1], triples[:, 2]


def widest(data: xr.Dataset, parameter: str, *over: str) -> object:
    """The value of a parameter whose cases cover the most combinations of the parameters `over`."""
    over = tuple(name for name in over if name in data)

    def coverage(value: object) -> int:
        chosen = where(data, **{parameter: value})
        return len(set(zip(*(chosen[name].values.tolist() for name in over), strict=True)))

    return max(levels(data, parameter), key=coverage)


def nearest(choices: Iterable[float], wanted: float) -> float:
    """The measured value closest to the wanted one."""
    return min(choices, key=lambda value: abs(value - wanted))


def real_input(data: xr.Dataset) -> xr.Dataset:
    """Only the cases on captured attention of one model, where the report has some; of several texts the one with most cases."""
    held = levels(data, "input") if "input" in data else []
    for name in CAPTURES:
        if name in held:
            data = where(data, input=name)
            counts = {text: int((data["text"].values == text).sum()) for text in levels(data, "text")}
            return where(data, text=max(counts, key=counts.get)) if counts else data
    return data


def is_captured(data: xr.Dataset) -> np.ndarray:
    """Of each case."""
    return np.isin(data["input"].values.astype(str), list(CAPTURES))


def label(column: xr.DataArray, width: int = 44) -> str:
    """An axis label from the dataset's own attributes: long name, then units; broken after `width` letters."""
    name = str(column.attrs.get("long_name", column.name)).rstrip(".")
    units = str(column.attrs.get("units", "1"))
    return "\n".join(balanced(name if units in ("1", "", "none", "text") else f"{name} ({units})", width))


def metric(column: xr.DataArray, width: int = 44) -> str:
    """The label without what the error is measured against: that stands in the panel's title."""
    return label(column, 1000).split(" against ")[0].split(" of the output")[0][:width]
