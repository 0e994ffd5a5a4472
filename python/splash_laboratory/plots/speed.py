"""How fast attention is on this CPU, what memory it takes, and how exact it is: side by side."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from splash_laboratory.plots import style
from splash_laboratory.plots.data import cases_with, figure, label, levels, present, where
from splash_laboratory.reports import Report

ERRORS = ("max_error", "max_error_vs_reference", "max_error_vs_entmax", "nmse", "nmse_vs_entmax")


@figure("attention-speed")
def figure_attention_speed(report: Report) -> Figure:
    """Time with its interval, peak memory and error of each implementation, at the length that most were run at."""
    data = cases_with(report, "implementation", "n", "time_median")
    lengths = levels(data, "n")
    n = max(lengths, key=lambda value: (len(levels(where(data, n=value), "implementation")), value))
    data = where(data, n=n)
    threads = max(levels(data, "threads"), default=0)
    data = where(data, threads=threads) if threads else data
    passes = levels(data, "pass") if "pass" in data else []
    last = passes[-1] if passes else None
    names = sorted(levels(data, "implementation"), key=lambda name: -_best_time(data, name))
    error = next((column for column in ERRORS if column in data and present(data[column]).any()), None)
    columns = ["time_median"] + [c for c in ("peak_memory_bytes", error) if c and c in data and present(data[c]).any()]
    height = 1.3 + (0.3 * max(len(passes), 1) + 0.18) * len(names)
    drawn, axes = style.canvas(
        1,
        len(columns),
        (5.2 + 2.9 * (len(columns) - 1), height),
        sharey=True,
        width_ratios=[1.5] + [1] * (len(columns) - 1),
    )
    for panel, column in zip(axes[0], columns, strict=True):
        for at, direction in enumerate(passes or [None]):
            cases = where(data, **{"pass": direction}) if direction is not None else data
            offset = 0.3 * (at - (max(len(passes), 1) - 1) / 2)
            _bars(
                panel,
                cases,
                names,
                column,
                -offset,
                style.PALETTE[at],
                str(direction or "").replace("+", " + ").replace("_", " + "),
            )
        panel.set_title({"time_median": "Time", "peak_memory_bytes": "Peak memory"}.get(column, "Error"))
        panel.set_xlabel(label(data[column], 34))
        panel.grid(False, axis="y")
        highest = panel.get_xlim()[1]
        style.log_axis(panel, "x")
        panel.set_xlim(right=max(12 * highest, panel.get_xlim()[0] * 100))  # room for the numbers beside the dots
    axes[0, 0].xaxis.set_major_formatter(FuncFormatter(lambda value, _: style.seconds(value)))
    style.ticks_at(axes[0, 0], "y", list(range(len(names))), [style.plain(name) for name in names])
    axes[0, 0].set_ylim(-0.6, len(names) - 0.4)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    if len(passes) > 1:
        drawn.legend(handles, labels, loc="outside lower right", ncols=len(passes), frameon=False)
    on = f" on {style.count(threads, 'thread')}" if threads else ""
    context = (
        f"{n:g} queries and keys{on}. Logarithmic axes: a dot is a median, its whiskers the interval. Left is better."
    )
    style.headline(drawn, _speed_finding(where(data, **{"pass": passes[0]}) if last else data), context)
    return drawn


def _best_time(data: xr.Dataset, name: str) -> float:
    return float(np.nanmin(where(data, implementation=name)["time_median"].values))


def _bars(
    panel: Axes, cases: xr.Dataset, names: list[str], column: str, offset: float, colour: str, words: str
) -> None:
    """One pass of every implementation: dots on a logarithmic axis, for a bar's length would mean nothing there."""
    for place, implementation in enumerate(names):
        chosen = where(cases, implementation=implementation)
        if chosen.sizes["case"] == 0 or not present(chosen[column]).any():
            continue
        value = float(np.nanmedian(chosen[column].values))
        y = place + offset
        name = words if place == 0 else "_"
        if column == "time_median":
            style.interval(panel, chosen, "time", y, colour, name)
        else:
            panel.plot(value if value > 0 else np.nan, y, "o", color=colour, markersize=5.5, label=name)
        text = _value_text(value, column)
        panel.annotate(
            text, (value, y), xytext=(10, 0), textcoords="offset points", va="center", fontsize=8, color=style.INK
        )


def _value_text(value: float, column: str) -> str:
    if column == "time_median":
        return style.seconds(value)
    if column == "peak_memory_bytes":
        return f"{value / 1e6:.3g} MB" if value < 1e9 else f"{value / 1e9:.3g} GB"
    return style.number(value)


def _speed_finding(data: xr.Dataset) -> str:
    order = np.argsort(data["time_median"].values, kind="stable")
    names, times = data["implementation"].values[order], data["time_median"].values[order]
    if names.size < 2:
        return f"{names[0]} takes {style.seconds(float(times[0]))}"
    ratios = [style.number(float(time / times[0])) for time in times]
    finding = f"{style.plain(names[0])} takes {style.seconds(float(times[0]))}: {ratios[1]} times faster than "
    finding += style.plain(names[1])
    return finding if names.size == 2 else f"{finding}, {ratios[-1]} times than {style.plain(names[-1])}"
