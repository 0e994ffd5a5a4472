"""What the power approximation max(s, 0)^alpha of source 000 is worth."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from splash_laboratory.plots import style
from splash_laboratory.plots.data import cases_with, figure, levels, metric, present, real_input, where
from splash_laboratory.reports import Report

GOLDEN = (1 + 5**0.5) / 2  # alpha (alpha − 1) = 1: where the approximation's exponent is entmax's


@figure("power-approximation")
def figure_power_approximation(report: Report) -> Figure:
    """Error of the power approximation over alpha, against entmax and softmax, with and without the division."""
    data = real_input(cases_with(report, "normalized", "alpha", "nmse_vs_entmax"))
    references = {"nmse_vs_entmax": "exact α-entmax", "nmse_vs_softmax": "softmax"}
    references = {column: name for column, name in references.items() if column in data and present(data[column]).any()}
    drawn, axes = style.canvas(1, len(references), (4.6 * len(references) + 1.8, 4.6), sharey=True)
    for panel, (column, name) in zip(axes[0], references.items(), strict=True):
        for line, (words, chosen) in enumerate(_power_lines(data)):
            x = levels(chosen, "alpha")
            groups = [where(chosen, alpha=value)[column].values for value in x]
            low, middle, high = np.array([np.nanpercentile(group, (25, 50, 75)) for group in groups]).T
            panel.fill_between(x, low, high, color=style.PALETTE[line], alpha=0.13, linewidth=0)
            panel.plot(x, middle, color=style.PALETTE[line], marker=style.MARKERS[line], markersize=5.5, label=words)
        panel.axvline(GOLDEN, color=style.FAINT, linewidth=1, linestyle=(0, (4, 3)))
        panel.text(
            GOLDEN,
            0.5,
            "α = 1.618",
            transform=panel.get_xaxis_transform(),
            fontsize=8.5,
            color=style.FAINT,
            ha="center",
            va="center",
            rotation=90,
            bbox={"facecolor": style.PAPER, "edgecolor": "none", "pad": 1.5},
        )
        panel.axhline(1, color=style.FAINT, linewidth=1)
        panel.set_xlabel("α")
        panel.set_title(f"Error against {name}")
    style.log_axis(axes[0, 0], "y")
    axes[0, 0].set_ylabel(metric(data["nmse_vs_entmax"]))
    handles, names = axes[0, 0].get_legend_handles_labels()
    drawn.legend(
        handles, names, loc="outside right center", frameon=False, title="max(s, 0)^α, median\nhead, middle half shaded"
    )
    best = int(np.nanargmin(data["nmse_vs_entmax"].values))
    finding = (
        f"The power approximation never comes closer to exact entmax than an nmse of "
        f"{style.number(float(data['nmse_vs_entmax'].values[best]))} (at α = {data['alpha'].values[best]:g})"
    )
    context = (
        "The two exponents agree only at α = 1.618, where α(α−1) = 1, and even there the thresholds differ. "
        "The line at 1: as wrong as an output of zeros."
    )
    style.headline(drawn, finding, context)
    return drawn


def _power_lines(data: xr.Dataset) -> list[tuple[str, xr.Dataset]]:
    names = {1.0: "divided by its sum", 0.0: "as the source wrote it"}
    lines = [(words, where(data, normalized=value)) for value, words in names.items()]
    return [(words, chosen) for words, chosen in lines if chosen.sizes["case"]]
