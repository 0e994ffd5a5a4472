"""Where sparsity is: supports and blocks that are in use, by input; and what a selection does to gradients."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from splash_laboratory.plots import style
from splash_laboratory.plots.data import (
    CAPTURES,
    NotInReport,
    cases_with,
    figure,
    fitting,
    is_captured,
    label,
    levels,
    nearest,
    present,
    quartiles,
    real_input,
    where,
    widest,
)
from splash_laboratory.reports import Report

DENSITIES = {
    "token_density": "keys in use",
    "block_density_64": "64 × 64 tiles in use",
    "block_density_128": "128 × 128 tiles in use",
}


@figure("workloads")
def figure_workloads(report: Report) -> Figure:
    """Support size beside the share of keys and of tiles in use: few keys do not make few tiles."""
    data = cases_with(report, "input", "alpha", "block_density_64", "token_sparsity", "support_mean")
    data = _one_case_an_input(data)
    data = data.assign(token_density=1 - data["token_sparsity"])
    held = levels(data, "alpha")
    alpha = nearest(held, 1.5)
    data = where(data, alpha=alpha)
    rows = _rows(data)
    drawn, axes = style.canvas(1, 2, (11, 1.5 + 0.42 * len(rows)), sharey=True, width_ratios=(1, 1.5))
    left, right = axes[0]
    for place, (_, cases) in enumerate(rows):
        values = cases["support_mean"].values
        left.plot(
            [np.nanmin(values), np.nanmax(values)], [place, place], color=style.PALETTE[0], linewidth=5, alpha=0.25
        )
        left.plot(np.nanmedian(values), place, "o", color=style.PALETTE[0], markersize=7)
        for offset, (column, colour, marker) in zip((0.2, 0, -0.2), _density_looks(data), strict=False):
            values = 100 * np.maximum(cases[column].values, 1e-4)
            y = place + offset
            right.plot([np.nanmin(values), np.nanmax(values)], [y, y], color=colour, linewidth=3.5, alpha=0.25)
            right.plot(
                np.nanmedian(values),
                y,
                marker,
                color=colour,
                markersize=6.5,
                label=DENSITIES[column] if place == 0 else "_",
            )
    style.log_axis(left, "x")
    left.set_xlabel(label(data["support_mean"]))
    left.set_title("Support")
    style.log_axis(right, "x")
    right.set_xlim(right=115)
    right.xaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    right.set_xlabel("share of the visible keys or tiles (%)")
    right.set_title("What is in use")
    for panel in (left, right):
        panel.grid(False, axis="y")
    style.ticks_at(left, "y", list(range(len(rows))), [name for name, _ in rows])
    left.set_ylim(-0.6, len(rows) - 0.4)
    handles, names = right.get_legend_handles_labels()
    drawn.legend(handles, names, loc="outside lower right", ncols=3, frameon=False)
    style.headline(
        drawn,
        _workload_finding(rows, alpha),
        f"Exact entmax attention, α = {alpha:g}. Dot: median of the cases; bar: all of them.",
    )
    return drawn


def _density_looks(data: xr.Dataset) -> list[tuple[str, str, str]]:
    looks = zip(DENSITIES, (style.PALETTE[0], style.PALETTE[1], style.PALETTE[2]), ("o", "s", "D"), strict=True)
    return [look for look in looks if look[0] in data and present(data[look[0]]).any()]


def _one_case_an_input(data: xr.Dataset) -> xr.Dataset:
    """All keys selected; synthetic inputs of one length, variance and mask; captured heads of one text."""
    data = where(data, k_keep=0) if 0 in levels(data, "k_keep") else data
    captured = is_captured(data)
    made = data.isel(case=np.flatnonzero(~captured))
    for parameter in ("length", "query_variance", "causal"):
        if levels(made, parameter):
            made = fitting(made, **{parameter: widest(made, parameter, "input", "alpha")})
    real = [real_input(where(data, input=name)) for name in CAPTURES if name in levels(data, "input")]
    return xr.concat([made, *real], "case", data_vars="minimal", coords="minimal", compat="override", join="override")


def _rows(data: xr.Dataset) -> list[tuple[str, xr.Dataset]]:
    """One row an input, the sparsest on top."""
    rows = [
        (CAPTURES.get(str(name)) or style.plain(name), where(data, input=name))
        for name in levels(data, "input")
    ]
    return sorted(rows, key=lambda row: float(np.nanmedian(row[1]["token_sparsity"])))


def _workload_finding(rows: list[tuple[str, xr.Dataset]], alpha: float) -> str:
    def gap(row: tuple[str, xr.Dataset]) -> float:
        return float(np.nanmedian(row[1]["block_density_64"]) / np.nanmedian(row[1]["token_density"]))

    name, cases = max(rows, key=gap)
    keys, tiles = (100 * float(np.nanmedian(cases[column])) for column in ("token_density", "block_density_64"))
    return (
        f"Few keys do not make few tiles: on {name}, {alpha:g}-entmax uses {style.number(keys)} % of the keys "
        f"but {style.number(tiles)} % of the 64 × 64 tiles"
    )


@figure("sparsity-against-length")
def figure_sparsity_against_length(report: Report) -> Figure:
    """The share of keys in use over the length: K_KEEP fixes the keys, entmax chooses them."""
    data = cases_with(report, "input", "length", "k_keep", "alpha", "block_density_64", "token_sparsity")
    data = data.isel(case=np.flatnonzero(~is_captured(data)))
    for parameter in ("input", "query_variance", "alpha", "causal"):
        if levels(data, parameter):
            data = where(data, **{parameter: widest(data, parameter, "length", "k_keep")})
    if len(levels(data, "length")) < 2:
        raise NotInReport("no input was measured at several lengths")
    data = data.assign(token_density=1 - data["token_sparsity"])
    drawn, axes = style.canvas(1, 2, (10.4, 4.3), sharex=True, sharey=True)
    for panel, column in zip(axes[0], ("token_density", "block_density_64"), strict=True):
        for at, k_keep in enumerate(levels(data, "k_keep")):
            lengths, low, middle, high = quartiles(where(data, k_keep=k_keep), "length", column)
            words = f"K_KEEP = {k_keep:g}" if k_keep else "all keys"
            panel.fill_between(lengths, 100 * low, 100 * high, color=style.PALETTE[at], alpha=0.13, linewidth=0)
            panel.plot(
                lengths, 100 * middle, color=style.PALETTE[at], marker=style.MARKERS[at], markersize=5.5, label=words
            )
        style.log2_axis(panel, "x")
        panel.set_xlabel("queries and keys")
        panel.set_title(DENSITIES[column][0].upper() + DENSITIES[column][1:])
    style.ticks_at(axes[0, 0], "x", levels(data, "length"))
    style.log_axis(axes[0, 0], "y")
    axes[0, 0].set_ylim(top=130)
    axes[0, 0].yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    axes[0, 0].set_ylabel("share of the visible keys or tiles (%)")
    handles, names = axes[0, 0].get_legend_handles_labels()
    drawn.legend(handles, names, loc="outside right center", frameon=False, title="keys selected")
    settings = [f"{style.plain(data['input'].values[0])} inputs", f"α = {data['alpha'].values[0]:g}"]
    if "query_variance" in data:
        settings.append(f"query variance {data['query_variance'].values[0]:g}")
    style.headline(drawn, _length_finding(data), f"{', '.join(settings)}. Lower is sparser.")
    return drawn


def _length_finding(data: xr.Dataset) -> str:
    k_keep = max(levels(data, "k_keep"))
    cases = where(data, k_keep=k_keep)
    ends = [min(levels(cases, "length")), max(levels(cases, "length"))]
    least, most = (100 * float(np.nanmedian(where(cases, length=length)["token_sparsity"].values)) for length in ends)
    words = f"K_KEEP {k_keep:g} drops" if k_keep else "entmax drops"
    dropped = f"{words} {least:.1f} % of the keys at {ends[0]:g} and {most:.2f} % at {ends[1]:g}"
    return f"Sparsity depends on the length: {dropped}"
