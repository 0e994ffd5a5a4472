"""Exact entmax attention over several GPUs: how time falls with ranks (strong scaling), and how it keeps with as many tokens a rank (weak)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from splash_laboratory.distributed_model import Problem, Rates, best
from splash_laboratory.plots import style
from splash_laboratory.plots.data import NotInReport, figure
from splash_laboratory.reports import Report, ReportError
from splash_laboratory.scaling import RANKS, cases_of, rates_of, times_of

TITLES = {"forward": "Forward", "forward_backward": "Forward and backward"}
Curve = dict[int, tuple[float, float, float | None]]  # ranks: (nothing hidden, all hidden, measured), where 1 is one GPU's speed or share


@figure("strong-scaling")
def figure_strong_scaling(report: Report) -> Figure:
    """Speed of the same sequence over more GPUs, in one GPU's: measured, beside the model of bytes and rates."""
    cases, rates = _cases(report)
    curves: dict[str, dict[Problem, Curve]] = {}
    alone, several = times_of(cases)
    for (problem, direction), one in alone.items():
        if measured := several.get((problem, direction)):
            same = {ranks: (one, problem) for ranks in RANKS}
            curves.setdefault(direction, {})[problem] = _curve(same, {ranks: one for ranks in RANKS}, measured, direction, rates)
    return _drawn(cases, rates, curves, "Speed, in one GPU's", "ideal", "times one GPU's speed")


@figure("weak-scaling")
def figure_weak_scaling(report: Report) -> Figure:
    """The share of its ideal speed that each GPU keeps, as the sequence grows with their number: measured, beside the model."""
    cases, rates = _cases(report)
    alone, several = times_of(cases)
    curves: dict[str, dict[Problem, Curve]] = {}
    for (problem, direction), one in alone.items():
        # The whole has ranks² as many pairs, so at full speed a GPU's share takes ranks times as long.
        grown = {ranks: (one * ranks**2, replace(problem, length=problem.length * ranks)) for ranks in RANKS}
        found = {ranks: several.get((longer, direction), {}).get(ranks) for ranks, (_, longer) in grown.items()}
        if measured := {ranks: time for ranks, time in found.items() if time}:
            curves.setdefault(direction, {})[problem] = _curve(grown, {ranks: one * ranks for ranks in RANKS}, measured, direction, rates)
    return _drawn(cases, rates, curves, "Share of ideal speed a GPU", "", "of ideal speed")


def _cases(report: Report) -> tuple[xr.Dataset, Rates]:
    try:
        cases = cases_of(report.results)
    except ReportError as error:
        raise NotInReport(str(error)) from error
    return cases, rates_of(cases)


def _curve(grown: dict[int, tuple[float, Problem]], ideal: dict[int, float], measured: dict[int, float], direction: str, rates: Rates) -> Curve:
    """grown: of each number of ranks one GPU's seconds and the problem; ideal: the seconds that count as 1."""
    curve: Curve = {}
    for ranks, (one, problem) in grown.items():
        try:
            model = best(one, problem, direction, ranks, rates)
        except ValueError:
            break
        seen = ideal[ranks] / measured[ranks] if ranks in measured else None
        curve[ranks] = (ideal[ranks] / model.in_turn, ideal[ranks] / model.hidden, seen)
    return curve


def _drawn(cases: xr.Dataset, rates: Rates, curves: dict[str, dict[Problem, Curve]], says: str, ideal: str, of_one: str) -> Figure:
    if not curves:
        raise NotInReport("no problem of the report was measured on one GPU and over several")
    drawn, axes = style.canvas(1, len(curves), (5.2 * len(curves), 4.2), sharey=True)
    for panel, direction in zip(axes[0], sorted(curves), strict=True):
        for at, (problem, curve) in enumerate(sorted(curves[direction].items(), key=lambda item: item[0].length)):
            _one(panel, problem, curve, style.PALETTE[at % len(style.PALETTE)])
        panel.set_title(TITLES.get(direction, direction))
        panel.set_xlabel("GPUs")
        style.log2_axis(panel, "x")
        if ideal:
            panel.plot(RANKS, RANKS, "--", color=style.FAINT, linewidth=1, label=ideal)
            style.log2_axis(panel, "y")
        else:
            panel.set_ylim(0, 1.05)
    axes[0, 0].set_ylabel(says)
    axes[0, -1].legend(loc="best")
    (direction, of_direction) = sorted(curves.items())[-1]
    problem, curve = max(of_direction.items(), key=lambda item: item[0].length)
    ranks = max((count for count, values in curve.items() if values[2] is not None), default=0)
    finding = f"{_k(problem.length)} tokens: {style.count(ranks, 'GPU')} reach {style.number(curve[ranks][2] or 0.0)} {of_one}, {TITLES[direction].lower()}"
    context = (
        f"Dots are measured, the fastest mode ({cases['device_name'].values[0]}). Bands are a model, not a measurement: bytes at {rates.link / 1e9:.3g} GB/s inside a "
        f"host of {rates.gpus_a_host}, {rates.network / 1e9:.0f} GB/s a GPU between hosts; lower edge nothing hidden behind work, upper edge all."
    )
    style.headline(drawn, finding, context)
    return drawn


def _one(panel: Axes, problem: Problem, curve: Curve, colour: str) -> None:
    ranks = np.array(list(curve))
    low, high, seen = (np.array([np.nan if value is None else value for value in column]) for column in zip(*curve.values(), strict=True))
    panel.fill_between(ranks, low, high, color=colour, alpha=0.18, linewidth=0)
    panel.plot(ranks, low, color=colour, linewidth=1)
    panel.plot(ranks, seen, "o", color=colour, markersize=6, label=f"{_k(problem.length)} tokens, {problem.heads}/{problem.kv_heads} heads")


def _k(length: int) -> str:
    return f"{length >> 10}k" if length % 1024 == 0 else str(length)
