"""Where the GPU kernels of a report stand below the ceilings measured beside them, at DRAM, at L2 and at the special function
units, which give the exponentials."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from splash_attention.plots import style
from splash_attention.plots.data import NotInReport, cases_with, figure
from splash_attention.reports import Report

# A panel's title, what is counted, of which ceiling it is a part, and the axis's words.
LEVELS = (
    ("DRAM", "dram_bytes_counted", ("dram copy", "dram read"), "executed FLOPs a byte asked of DRAM (counted)"),
    ("L2", "l2_bytes_counted", ("l2 read",), "executed FLOPs a byte asked of L2 (counted)"),
)
EXPONENTIALS = ("exponentials", "exponentials", ("exponentials",), "executed FLOPs an exponential (counted)")
UNIT_WORDS = {"float32": "float32 units", "tf32": "tf32 tensor", "float16": "fp16 tensor", "bfloat16": "bf16 tensor"}


@figure("roofline")
def figure_roofline(report: Report) -> Figure:
    """Executed FLOP/s of every kernel over its FLOPs a byte, and an exponential where the report has their ceiling, below
    bandwidths and rates measured in the same run."""
    data = cases_with(
        report, "implementation", "executed_flops", "dram_bytes_counted", "l2_bytes_counted", "time_median"
    )
    rates = {unit: _rate(report, unit) for unit in sorted(set(units_of(data)))}
    flops = data["executed_flops"].values
    achieved = flops / data["time_median"].values
    ladders = np.array([str(name).partition("/")[0] for name in data["implementation"].values])
    levels = [*LEVELS, EXPONENTIALS] if _has_exponentials(report, data) else LEVELS
    drawn, axes = style.canvas(1, len(levels), (5.5 * len(levels), 5.2), sharey=True)
    for panel, (level, column, ceilings, words) in zip(axes[0], levels, strict=True):
        counts = data[column].values
        asks = counts > 0  # of entmax and the power approximation nothing is an exponential
        intensity = np.divide(flops, counts, out=np.full_like(flops, np.nan), where=asks)
        _roof(panel, max(_measured(report, name) for name in ceilings), rates, intensity[asks])
        for at, ladder in enumerate(sorted(set(ladders))):
            chosen = (ladders == ladder) & asks
            panel.plot(
                intensity[chosen],
                achieved[chosen],
                style.MARKERS[at % len(style.MARKERS)],
                color=style.PALETTE[at % len(style.PALETTE)],
                markersize=4.5,
                alpha=0.75,
                label=style.plain(ladder),
            )
        panel.set_title(level)
        panel.set_xlabel(words)
        style.log_axis(panel, "x")
        style.log_axis(panel, "y")
    axes[0, 0].set_ylabel("executed FLOP/s")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower right", ncols=len(labels), frameon=False)
    share = achieved / np.array([rates[unit] for unit in units_of(data)])
    best = int(np.argmax(share))
    finding = f"{data['implementation'].values[best]} reaches {100 * share[best]:.0f} % of its products' ceiling"
    finding += f", half of {flops.size} kernels less than {100 * np.median(share):.2g} %"
    context = f"{report.provenance['gpu']}. Lines: measured in the same run. A dot is one kernel on one problem; padding"
    context += " counts as executed; what L1 serves counts as asked of L2, so a dot may lie above L2's slope."
    style.headline(drawn, finding, context + " Logarithmic axes.")
    return drawn


def _has_exponentials(report: Report, data: xr.Dataset) -> bool:
    return "exponentials" in data and "exponentials" in report.ceilings.get("name", xr.DataArray([])).values


def units_of(data: xr.Dataset) -> list[str]:
    """The dtype of each case's ceiling; both 16-bit types are declared as float16, at rates of their own."""
    pairs = zip(data["math_unit"].values, data["dtype"].values, strict=True)
    return ["bfloat16" if unit == "float16" and dtype != "float16" else str(unit) for unit, dtype in pairs]


def _rate(report: Report, unit: str) -> float:
    return _measured(report, "fma" if unit == "float32" else "tensor", unit)


def _measured(report: Report, name: str, dtype: str = "") -> float:
    ceilings = report.ceilings
    if "name" in ceilings:
        found = (ceilings["name"].values == name) & (ceilings["dtype"].values == dtype)
        if found.any():
            return float(ceilings["measured"].values[found][0])
    raise NotInReport(f"the report has no measured ceiling '{name}'" + (f" in {dtype}" if dtype else ""))


def _roof(panel: Axes, bandwidth: float, rates: dict[str, float], intensity: np.ndarray) -> None:
    """The slope of the bandwidth up to the highest rate, and a flat line from it for each rate."""
    left, right = intensity.min() / 3, max(intensity.max() * 3, 3 * max(rates.values()) / bandwidth)
    ridge = max(rates.values()) / bandwidth
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
