"""Which solver finds tau in how many iterations, how exactly and how fast."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from splash_laboratory.plots import style
from splash_laboratory.plots.data import (
    NotInReport,
    cases_with,
    figure,
    fitting,
    label,
    levels,
    nearest,
    where,
    widest,
)
from splash_laboratory.reports import Report

RESIDUAL_FLOOR = 1e-17
STOPPING = ("tolerance", "max_iterations")  # 0: until tau stands still, no limit
SETTINGS = ("workload", "dtype", "query_variance", "gap", "spread", "histogram_bins")


def _looks(data: xr.Dataset) -> dict[str, tuple[str, str]]:
    """Colour and marker of each solver, the same in every plot."""
    names = levels(data, "solver")
    return {name: (style.PALETTE[at % 7], style.MARKERS[at % 8]) for at, name in enumerate(names)}


def comparable(data: xr.Dataset) -> tuple[xr.Dataset, str]:
    """Cases that differ in solver, alpha and n only, run until they stand still; and the words for the caption."""
    for parameter in STOPPING:
        if 0 in levels(data, parameter):
            data = fitting(data, **{parameter: 0})
    for parameter in SETTINGS:
        if levels(data, parameter):
            data = fitting(data, **{parameter: widest(data, parameter, "solver", "alpha", "n")})
    return data, ", ".join(str(data[name].values[0]) for name in ("workload", "dtype") if name in data)


def _lines(panel: Axes, data: xr.Dataset, by: str, column: str, floor: float = 0.0) -> None:
    looks = _looks(data)
    for solver in levels(data, "solver"):
        chosen = where(data, solver=solver)
        x = levels(chosen, by)
        y = [max(float(np.nanmedian(where(chosen, **{by: value})[column].values)), floor) for value in x]
        colour, marker = looks[solver]
        panel.plot(x, y, color=colour, marker=marker, markersize=5.5, label=style.plain(solver), clip_on=False)


@figure("solver-iterations")
def figure_solver_iterations(report: Report) -> Figure:
    """Iterations and residual of each solver, over alpha and over row length."""
    data, origin = comparable(cases_with(report, "solver", "alpha", "n", "iterations_mean", "residual_max"))
    n = max(levels(data, "n"), key=lambda value: (len(levels(where(data, n=value), "alpha")), value))
    alpha = max(
        levels(data, "alpha"), key=lambda value: (len(levels(where(data, alpha=value), "n")), -abs(value - 1.5))
    )
    drawn, axes = style.canvas(2, 2, (10.8, 7.0), sharex="col", sharey="row")
    for column, (by, chosen) in enumerate((("alpha", where(data, n=n)), ("n", where(data, alpha=alpha)))):
        _lines(axes[0, column], chosen, by, "iterations_mean")
        _lines(axes[1, column], chosen, by, "residual_max", RESIDUAL_FLOOR)
        axes[1, column].set_xlabel("α" if by == "alpha" else "row length n (keys)")
    style.log_axis(axes[1, 0], "y")
    style.log2_axis(axes[0, 1], "x")
    style.ticks_at(axes[0, 1], "x", levels(where(data, alpha=alpha), "n"))
    axes[0, 0].set_title(f"Over α, rows of {n:g} keys")
    axes[0, 1].set_title(f"Over row length, α = {alpha:g}")
    axes[0, 0].set_ylim(bottom=0)
    axes[0, 0].set_ylabel(label(data["iterations_mean"]))
    axes[1, 0].set_ylabel(label(data["residual_max"]))
    handles, names = axes[0, 0].get_legend_handles_labels()
    drawn.legend(handles, names, loc="outside right center", frameon=False, title="solver")
    style.headline(
        drawn,
        _iterations_finding(where(data, n=n, alpha=nearest(levels(where(data, n=n), "alpha"), 1.5))),
        f"Workload: {origin}.",
    )
    return drawn


def _iterations_finding(data: xr.Dataset) -> str:
    means = {
        name: float(np.nanmean(where(data, solver=name)["iterations_mean"].values)) for name in levels(data, "solver")
    }
    iterative = {name: value for name, value in means.items() if value >= 1}
    if len(iterative) < 2:
        return "Iterations and residual of the solvers"
    least, most = min(iterative, key=iterative.get), max(iterative, key=iterative.get)
    return (
        f"At α {data['alpha'].values[0]:g} and {data['n'].values[0]:g} keys {style.plain(least)} needs "
        f"{style.number(iterative[least])} iterations where {style.plain(most)} takes {style.number(iterative[most])}"
    )


@figure("solver-time")
def figure_solver_time(report: Report) -> Figure:
    """Time a row by solver, with its confidence interval and raw samples, a panel per alpha."""
    data, origin = comparable(cases_with(report, "solver", "alpha", "n", "time_median"))
    held = levels(data, "alpha")
    alphas = sorted({nearest(held, wanted) for wanted in (1.25, 1.5, 2.0)})
    n = max(levels(data, "n"), key=lambda value: (where(data, n=value).sizes["case"], value))
    data = where(data, n=n)
    solvers = levels(data, "solver")
    looks = _looks(data)
    drawn, axes = style.canvas(
        1, len(alphas), (3.4 * len(alphas) + 1.6, 1.2 + 0.42 * len(solvers)), sharey=True, sharex=True
    )
    for panel, alpha in zip(axes[0], alphas, strict=True):
        for place, solver in enumerate(reversed(solvers)):
            chosen = where(data, alpha=alpha, solver=solver)
            if chosen.sizes["case"] == 0:
                panel.text(
                    0.02,
                    place,
                    "not in the report",
                    transform=panel.get_yaxis_transform(),
                    va="center",
                    fontsize=8,
                    color=style.FAINT,
                )
                continue
            _interval(panel, chosen, place, looks[solver][0])
        panel.set_title(f"α = {alpha:g}")
        panel.set_xlabel("median time")
        panel.grid(False, axis="y")
    style.log_axis(axes[0, 0], "x")
    for panel in axes[0]:
        panel.xaxis.set_major_formatter(lambda value, _: style.seconds(value))
    style.ticks_at(axes[0, 0], "y", list(range(len(solvers))), [style.plain(name) for name in reversed(solvers)])
    axes[0, 0].set_ylim(-0.6, len(solvers) - 0.4)
    context = (
        f"{label(data['time_median'], 200)}. Rows of {n:g} keys, {origin}. "
        "Whiskers: interval of the median; strokes: samples. Left is faster."
    )
    style.headline(drawn, _time_finding(where(data, alpha=nearest(held, 1.5))), context)
    return drawn


def _interval(panel: Axes, chosen: xr.Dataset, place: float, colour: str) -> None:
    """One solver's samples below, its median and interval on the line."""
    if "time" in chosen:
        samples = chosen["time"].values.ravel()
        panel.plot(samples, np.full(samples.size, place - 0.24), "|", color=colour, markersize=5, alpha=0.5)
    style.interval(panel, chosen, "time", place, colour)


def _time_finding(data: xr.Dataset) -> str:
    data = data.isel(case=np.argsort(data["time_median"].values, kind="stable"))
    times, names = data["time_median"].values, data["solver"].values
    if times.size < 2:
        return "Time by solver"
    apart = ""
    if "time_high" in data and data["time_high"].values[0] >= data["time_low"].values[1]:
        apart = f"; {style.plain(names[1])} cannot be told apart from it"
    return (
        f"At α {data['alpha'].values[0]:g} {style.plain(names[0])} is the fastest, "
        f"{style.number(times[-1] / times[0])} times faster than {style.plain(names[-1])}{apart}"
    )


@figure("solver-adversary")
def figure_solver_adversary(report: Report) -> Figure:
    """Iterations and residual of the worst row on each workload; limited iterations are a row of their own."""
    data = cases_with(report, "solver", "workload", "n", "alpha", "iterations_max", "residual_max")
    if 0 in levels(data, "tolerance"):
        data = fitting(data, tolerance=0)
    if levels(data, "dtype"):
        data = where(data, dtype=widest(data, "dtype", "workload", "solver"))
    workloads = levels(data, "workload")
    if len(workloads) < 2:
        raise NotInReport("the solvers were run on one workload only")
    limits = np.nan_to_num(data["max_iterations"].values) if "max_iterations" in data else np.zeros(data.sizes["case"])
    data = data.assign(limit=("case", limits))
    rows = sorted({(solver, limit) for solver, limit in zip(data["solver"].values, limits, strict=True)}, reverse=True)
    drawn, axes = style.canvas(1, 2, (11.2, 1.1 + 0.36 * len(rows)), sharey=True)
    for panel, column in zip(axes[0], ("iterations_max", "residual_max"), strict=True):
        for at, workload in enumerate(workloads):
            worst = [
                _worst(where(data, workload=workload, solver=solver, limit=limit), column) for solver, limit in rows
            ]
            panel.plot(
                worst,
                np.arange(len(rows)),
                style.MARKERS[at],
                color=style.PALETTE[at],
                markersize=7,
                label=style.plain(workload),
            )
        panel.set_xlabel(label(data[column]))
    style.log_axis(axes[0, 1], "x")
    axes[0, 0].set_xlim(left=-0.03 * axes[0, 0].get_xlim()[1])
    words = [
        style.plain(solver) + (f", at most {style.count(limit, 'iteration')}" if limit else "")
        for solver, limit in rows
    ]
    style.ticks_at(axes[0, 0], "y", list(range(len(rows))), words)
    axes[0, 0].set_ylim(-0.6, len(rows) - 0.4)
    handles, names = axes[0, 0].get_legend_handles_labels()
    drawn.legend(handles, names, loc="outside right center", frameon=False, title="workload")
    context = "The worst case of each solver on each workload, over every α, row length and setting in the report."
    style.headline(drawn, _adversary_finding(data), context)
    return drawn


def _worst(cases: xr.Dataset, column: str) -> float:
    if cases.sizes["case"] == 0:
        return float("nan")
    return max(float(np.nanmax(cases[column].values)), RESIDUAL_FLOOR if column == "residual_max" else 0.0)


def _adversary_finding(data: xr.Dataset) -> str:
    def described(cases: xr.Dataset) -> str:
        at = int(np.nanargmax(cases["residual_max"].values))
        solver, workload = (style.plain(cases[name].values[at]) for name in ("solver", "workload"))
        return f"{style.number(float(cases['residual_max'].values[at]))} ({solver}, {workload})"

    free, limited = where(data, limit=0), data.isel(case=np.flatnonzero(data["limit"].values > 0))
    finding = f"Left to finish, no solver leaves a row further than {described(free)} from a sum of 1"
    if limited.sizes["case"]:
        fewest = float(np.nanmin(limited["limit"].values))
        cut = where(limited, limit=fewest)
        finding += f"; stopped after {style.count(fewest, 'iteration')}, {described(cut)}"
    return finding
