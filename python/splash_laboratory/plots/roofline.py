"""Where the kernels of a report stand below the ceilings measured beside them: on a GPU at DRAM, at L2 and at the special
function units, which give the exponentials; on a CPU at DRAM and at L2."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from splash_laboratory.plots import style
from splash_laboratory.plots.data import NotInReport, cases_with, figure
from splash_laboratory.reports import Report


class Level(NamedTuple):
    """A panel: its title, what is counted, the ceilings of which the best is its slope, the axis's words and the slope's units."""

    title: str
    column: str
    ceilings: tuple[str, ...]
    words: str
    units: str = "B/s"


CPU = "cpu "  # how the unit of a case begins that ran on the CPU
LEVELS = (
    Level("DRAM", "dram_bytes_counted", ("dram copy", "dram read"), "executed FLOPs a byte asked of DRAM (counted)"),
    Level("L2", "l2_bytes_counted", ("l2 read",), "executed FLOPs a byte asked of L2 (counted)"),
)
EXPONENTIALS = Level("exponentials", "exponentials", ("exponentials",), "executed FLOPs an exponential (counted)", "1/s")
CPU_LEVELS = tuple(
    level._replace(title=f"{level.title} of the CPU", ceilings=tuple(CPU + name for name in level.ceilings))
    for level in LEVELS
)
UNIT_WORDS = {
    "float32": "float32 units",
    "tf32": "tf32 tensor",
    "float16": "fp16 tensor",
    "bfloat16": "bf16 tensor",
    "cpu float32": "float32 of all threads",
}


@figure("roofline")
def figure_roofline(report: Report) -> Figure:
    """Executed FLOP/s of every kernel over its FLOPs a byte, and an exponential where the report has their ceiling, below
    bandwidths and rates measured in the same run."""
    data = cases_with(report, "implementation", "executed_flops", "time_median", "math_unit")
    units = np.array(units_of(data))
    rates = {str(unit): _rate(report, unit) for unit in sorted(set(units))}
    achieved = data["executed_flops"].values / data["time_median"].values
    panels = []
    measured = True
    for on_cpu in (False, True):
        here = np.char.startswith(units.astype(str), CPU) == on_cpu
        if here.any():
            of_side = {unit: rate for unit, rate in rates.items() if unit.startswith(CPU) == on_cpu}
            known = [at for at in levels_of(report, on_cpu) if at.column in data and _slope(report, at) > 0]
            panels += [(level, here, of_side) for level in known]
            measured = measured and all(_is_measured(report, name) for level in known for name in level.ceilings)
    if not panels:
        raise NotInReport("the report has no ceiling of a level that its kernels' bytes are counted of")
    drawn, axes = style.canvas(1, len(panels), (5.5 * len(panels), 5.2), sharey=True)
    for panel, (level, here, of_side) in zip(axes[0], panels, strict=True):
        _draw(panel, report, data, level, here, of_side)
    axes[0, 0].set_ylabel("executed FLOP/s")
    handles = dict(zip(*reversed(axes[0, 0].get_legend_handles_labels()), strict=True))
    for panel in axes[0]:
        handles |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    drawn.legend(handles.values(), handles, loc="outside lower right", ncols=len(handles), frameon=False)
    share = achieved / np.array([rates[str(unit)] for unit in units])
    best = int(np.argmax(share))
    finding = f"{data['implementation'].values[best]} reaches {100 * share[best]:.0f} % of its products' ceiling"
    finding += f", half of {share.size} kernels less than {100 * np.median(share):.2g} %"
    ran_on = [name for name, cpu in (("gpu", False), ("cpu", True)) if (np.char.startswith(units.astype(str), CPU) == cpu).any()]
    context = " and ".join(str(report.provenance[name]) for name in ran_on)
    context += f". Lines: {'measured in the same run' if measured else 'figures of the data sheet, not measured'}"
    context += ". A dot is one kernel on one problem; padding"
    context += " counts as executed; what L1 serves counts as asked of L2, so a dot may lie above L2's slope."
    style.headline(drawn, finding, context + " Logarithmic axes.")
    return drawn


def _draw(
    panel: Axes, report: Report, data: xr.Dataset, level: Level, here: np.ndarray, rates: dict[str, float]
) -> None:
    """One level's roof, and a dot a case of `here` that asks something of it."""
    flops, counts = data["executed_flops"].values, data[level.column].values
    achieved = flops / data["time_median"].values
    ladders = np.array([str(name).partition("/")[0] for name in data["implementation"].values])
    asks = here & (counts > 0)  # of entmax and the power approximation nothing is an exponential
    intensity = np.divide(flops, counts, out=np.full_like(flops, np.nan), where=asks)
    if asks.any():
        _roof(panel, _slope(report, level), rates, intensity[asks])
    for at, ladder in enumerate(sorted(set(ladders))):
        chosen = (ladders == ladder) & asks
        if not (ladders == ladder)[here].any():
            continue
        panel.plot(
            intensity[chosen],
            achieved[chosen],
            style.MARKERS[at % len(style.MARKERS)],
            color=style.PALETTE[at % len(style.PALETTE)],
            markersize=4.5,
            alpha=0.75,
            label=style.plain(ladder),
        )
    panel.set_title(level.title)
    panel.set_xlabel(level.words)
    style.log_axis(panel, "x")
    style.log_axis(panel, "y")


def levels_of(report: Report, on_cpu: bool) -> tuple[Level, ...]:
    """The levels of a side: exponentials where the report has their ceiling."""
    if on_cpu:
        return CPU_LEVELS
    held = "exponentials" in report.ceilings.get("name", xr.DataArray([])).values
    return (*LEVELS, EXPONENTIALS) if held else LEVELS


def units_of(data: xr.Dataset) -> list[str]:
    """The dtype of each case's ceiling; both 16-bit types are declared as float16, at rates of their own."""
    units = data["math_unit"].values
    dtypes = data["dtype"].values if "dtype" in data else [""] * len(units)
    pairs = zip(units, dtypes, strict=True)
    return ["bfloat16" if unit == "float16" and dtype != "float16" else str(unit) for unit, dtype in pairs]


def rate_name(unit: str) -> tuple[str, str]:
    """The name and dtype of a unit's ceiling."""
    if unit.startswith(CPU):
        return "cpu fma", unit.removeprefix(CPU)
    return ("fma" if unit == "float32" else "tensor"), unit


def _rate(report: Report, unit: str) -> float:
    return _measured(report, *rate_name(unit))


def _slope(report: Report, level: Level) -> float:
    """The best of a level's ceilings; NaN where none is known."""
    return float(np.fmax.reduce([_measured(report, name) for name in level.ceilings]))


def _is_measured(report: Report, name: str) -> bool:
    ceilings = report.ceilings
    return bool((ceilings["measured"].values[ceilings["name"].values == name] > 0).any())


def _measured(report: Report, name: str, dtype: str = "") -> float:
    """What was measured, or else the data sheet's figure; NaN where neither is known."""
    ceilings = report.ceilings
    if "name" in ceilings:
        found = (ceilings["name"].values == name) & (ceilings["dtype"].values == dtype)
        if found.any():
            measured = float(ceilings["measured"].values[found][0])
            return measured if measured == measured else float(ceilings["datasheet"].values[found][0])
    raise NotInReport(f"the report has no measured ceiling '{name}'" + (f" in {dtype}" if dtype else ""))


def _roof(panel: Axes, bandwidth: float, rates: dict[str, float], intensity: np.ndarray) -> None:
    """The slope of the bandwidth up to the highest rate, and a flat line from it for each rate."""
    ridge = max(rates.values()) / bandwidth
    left, right = min(intensity.min(), ridge) / 3, 3 * max(intensity.max(), ridge)
    panel.plot([left, ridge], [left * bandwidth, ridge * bandwidth], color=style.INK, linewidth=1.4)
    for rate in rates.values():
        panel.plot([rate / bandwidth, right], [rate, rate], color=style.FAINT, linewidth=1.1)
    for rate, words in _named_together(rates):
        panel.annotate(
            words,
            (right, rate),
            xytext=(-2, 3),
            textcoords="offset points",
            ha="right",
            fontsize=7.5,
            color=style.FAINT,
        )


def _named_together(rates: dict[str, float]) -> list[tuple[float, str]]:
    """Rates within a tenth of one another share a name, above the highest of them."""
    named: list[tuple[float, str]] = []
    for unit, rate in sorted(rates.items(), key=lambda item: -item[1]):
        words = UNIT_WORDS.get(unit, unit)
        if named and rate > 0.9 * named[-1][0]:
            named[-1] = (named[-1][0], f"{named[-1][1]}, {words}")
        else:
            named.append((rate, words))
    return named
