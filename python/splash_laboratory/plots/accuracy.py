"""What keeping few keys costs: error against exact entmax and against softmax, by K_KEEP, sparsity, layer and head."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from splash_laboratory.plots import style
from splash_laboratory.plots.data import (
    CAPTURES,
    NotInReport,
    cases_with,
    figure,
    label,
    levels,
    metric,
    nearest,
    quartiles,
    real_input,
    where,
)
from splash_laboratory.reports import Report

REFERENCES = {"nmse_vs_entmax": "exact α-entmax", "nmse_vs_softmax": "softmax"}
SCOPES = {"row": "keys kept per query", "block": "keys kept per query and key block"}
FLOOR = 1e-10  # below this an error is drawn on the floor: for every use it is exact


def _kept(report: Report) -> xr.Dataset:
    """The cases in which a number of keys was kept, on real attention where there is some."""
    data = real_input(cases_with(report, "k_keep", "scope", "alpha", *REFERENCES))
    data = data.isel(case=np.flatnonzero(np.isin(data["scope"].values, list(SCOPES)) & (data["k_keep"].values > 0)))
    if data.sizes["case"] == 0:
        raise NotInReport("no case of the report keeps a number of keys per row or per block")
    return data


def _origin(data: xr.Dataset) -> str:
    heads = len({(layer, head) for layer, head in zip(data["layer"].values, data["head"].values, strict=True)})
    texts = levels(data, "text")
    models = [CAPTURES[name] for name in CAPTURES if "input" in data and name in levels(data, "input")]
    return f"{heads} heads" + (f" of a {models[0]}" if models else "") + (f" reading {texts[0]}" if texts else "")


@figure("accuracy-against-k-keep")
def figure_accuracy_against_k_keep(report: Report) -> Figure:
    """Trade-off curves: nmse over K_KEEP, a line per alpha, the middle half of all heads as a band."""
    data = _kept(report)
    scopes = [scope for scope in SCOPES if scope in levels(data, "scope")]
    alphas = levels(data, "alpha")
    drawn, axes = style.canvas(2, len(scopes), (4.9 * len(scopes) + 1.2, 7.2), sharex="col", sharey="row")
    for column, scope in enumerate(scopes):
        for row, reference in enumerate(REFERENCES):
            panel = axes[row, column]
            for alpha, colour, marker in zip(
                alphas, style.ordered_colours(len(alphas)), style.MARKERS * 9, strict=False
            ):
                chosen = where(data, scope=scope, alpha=alpha)
                if chosen.sizes["case"] == 0:
                    continue
                k_keep, low, middle, high = quartiles(chosen, "k_keep", reference)
                low, middle, high = (np.maximum(values, FLOOR) for values in (low, middle, high))
                panel.fill_between(k_keep, low, high, color=colour, alpha=0.13, linewidth=0)
                panel.plot(
                    k_keep, middle, color=colour, marker=marker, markersize=4.5, label=f"α = {alpha:g}", clip_on=False
                )
            style.log2_axis(panel, "x")
            style.ticks_at(panel, "x", levels(where(data, scope=scope), "k_keep"))
            panel.set_title(
                f"Against {REFERENCES[reference]}, {'per query' if scope == 'row' else 'per query and key block'}"
            )
            if row == 1:
                panel.set_xlabel(f"K_KEEP: {SCOPES[scope]}")
    for row, reference in enumerate(REFERENCES):
        style.log_axis(axes[row, 0], "y")
        axes[row, 0].set_ylabel(metric(data[reference]))
    axes[0, 0].set_ylim(bottom=FLOOR / 2)
    _name_floor(axes[0, 0], "y")
    handles, names = axes[0, 0].get_legend_handles_labels()
    drawn.legend(handles, names, loc="outside right center", frameon=False, title="median head,\nmiddle half shaded")
    style.headline(
        drawn, _k_keep_finding(data), f"{_origin(data)}. Errors of at most {FLOOR:.0e} are drawn on the floor."
    )
    return drawn


def _name_floor(panel: Axes, which: str) -> None:
    """Relabels the lowest tick "exact" on an axis whose errors were raised to FLOOR."""
    low, high = panel.get_ylim() if which == "y" else panel.get_xlim()
    exponents = range(int(np.log10(FLOOR)), int(np.ceil(np.log10(high))) + 1, 2)
    values = [10.0**exponent for exponent in exponents]
    names = ["exact", *(style.power_of_ten(value) for value in values[1:])]
    style.ticks_at(panel, which, values, names)


def _k_keep_finding(data: xr.Dataset) -> str:
    alpha = nearest(levels(data, "alpha"), 1.5)
    rows = where(data, scope="row" if "row" in levels(data, "scope") else levels(data, "scope")[0], alpha=alpha)
    k_keep = nearest(levels(rows, "k_keep"), 8)
    chosen = where(rows, k_keep=k_keep)
    entmax = float(np.nanmedian(chosen["nmse_vs_entmax"].values))
    softmax = float(np.nanmedian(chosen["nmse_vs_softmax"].values))
    exact = int((chosen["nmse_vs_entmax"].values <= FLOOR).sum())
    cost = "is exact" if entmax <= FLOOR else f"costs an nmse of {style.number(entmax)}"
    return (
        f"Keeping {k_keep:g} keys {cost} against exact {alpha:g}-entmax in the median head "
        f"(exact in {exact} of {chosen.sizes['case']}), and {style.number(softmax)} against softmax"
    )


@figure("accuracy-against-sparsity")
def figure_accuracy_against_sparsity(report: Report) -> Figure:
    """Each head's error over the share of visible keys that it dropped; large marks are medians over heads."""
    data = _kept(report)
    data = where(data, scope="row") if "row" in levels(data, "scope") else data
    if "token_sparsity" not in data:
        raise NotInReport("the report has no column 'token_sparsity'")
    alphas = levels(data, "alpha")
    drawn, axes = style.canvas(1, 2, (10.8, 4.7), sharey=True, sharex=True)
    for panel, (reference, name) in zip(axes[0], REFERENCES.items(), strict=True):
        for alpha, colour, marker in zip(alphas, style.ordered_colours(len(alphas)), style.MARKERS * 9, strict=False):
            chosen = where(data, alpha=alpha)
            kept = 1 - chosen["token_sparsity"].values
            panel.scatter(
                kept, np.maximum(chosen[reference].values, FLOOR), s=5, color=colour, alpha=0.18, linewidths=0
            )
            groups = [where(chosen, k_keep=value) for value in levels(chosen, "k_keep")]
            middle = [(1 - np.nanmedian(g["token_sparsity"]), max(np.nanmedian(g[reference]), FLOOR)) for g in groups]
            panel.plot(*zip(*middle, strict=True), color=colour, marker=marker, markersize=5.5, label=f"α = {alpha:g}")
        panel.set_xscale("log")
        panel.set_title(f"Error against {name}")
        panel.set_xlabel(label(data["token_sparsity"]))
    style.log_axis(axes[0, 0], "y")
    shares = [1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001]
    style.ticks_at(axes[0, 0], "x", shares, [f"{100 * (1 - share):g} %" for share in shares])
    kept = 1 - data["token_sparsity"].values
    axes[0, 0].set_xlim(min(1.15 * np.nanmax(kept), 1.0), np.nanmin(kept) / 1.15)
    axes[0, 0].set_ylim(bottom=FLOOR / 3)
    _name_floor(axes[0, 0], "y")
    axes[0, 0].set_ylabel(metric(data["nmse_vs_entmax"]))
    handles, names = axes[0, 0].get_legend_handles_labels()
    drawn.legend(
        handles, names, loc="outside right center", frameon=False, title="medians over heads;\na dot is one head"
    )
    style.headline(
        drawn, _sparsity_finding(data), f"{_origin(data)}, K_KEEP per query. Right is sparser; the axis is logarithmic."
    )
    return drawn


def _sparsity_finding(data: xr.Dataset) -> str:
    alpha = nearest(levels(data, "alpha"), 1.5)
    chosen = where(data, alpha=alpha)
    for k_keep in levels(chosen, "k_keep"):  # the fewest keys that most heads do without harm
        group = where(chosen, k_keep=k_keep)
        error, sparsity = float(np.nanmedian(group["nmse_vs_entmax"])), float(np.nanmedian(group["token_sparsity"]))
        if error < 1e-2:
            return (
                f"{100 * sparsity:.1f} % of the pairs can be zero (K_KEEP {k_keep:g}) "
                f"while the median head stays within "
                f"an nmse of 0.01 of exact {alpha:g}-entmax"
            )
    return f"No K_KEEP in the study brings the median head within an nmse of 0.01 of exact {alpha:g}-entmax"


@figure("error-by-layer-and-head")
def figure_error_by_layer_and_head(report: Report) -> Figure:
    """Heat maps, layer by head, of the nmse with 8 keys kept a query."""
    data = _kept(report)
    data = where(data, scope="row") if "row" in levels(data, "scope") else data
    data = where(data, alpha=nearest(levels(data, "alpha"), 1.5))
    data = where(data, k_keep=nearest(levels(data, "k_keep"), 8))
    alpha, k_keep = float(data["alpha"][0]), float(data["k_keep"][0])
    layers, heads = levels(data, "layer"), levels(data, "head")
    drawn, axes = style.canvas(1, 2, (max(9.5, 1.9 + 0.72 * len(heads)), 1.3 + 0.44 * len(layers)), sharey=True)
    grids = {}
    for reference in REFERENCES:
        grid = np.full((len(layers), len(heads)), np.nan)
        for layer, head, value in zip(data["layer"].values, data["head"].values, data[reference].values, strict=True):
            grid[layers.index(layer), heads.index(head)] = max(value, FLOOR)
        grids[reference] = grid
    together = np.concatenate([grid.ravel() for grid in grids.values()])
    norm = LogNorm(max(np.nanmin(together), 1e-6), max(np.nanmax(together), 1e-5))
    for panel, (reference, grid) in zip(axes[0], grids.items(), strict=True):
        image = panel.imshow(np.ma.masked_less_equal(grid, FLOOR), cmap=style.SEQUENTIAL, norm=norm, aspect="auto")
        panel.grid(False)
        panel.spines[:].set_visible(False)
        for (row, column), value in np.ndenumerate(grid):
            if value == value:
                exact = value <= FLOOR
                text = "exact" if exact else f"{np.log10(value) + 0.0:.1f}".replace("-0.0", "0.0").replace("-", "−")
                colour = style.FAINT if exact else style.ink_on(style.SEQUENTIAL(norm(value)))
                panel.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)
        style.ticks_at(panel, "x", list(range(len(heads))), [f"{head:g}" for head in heads])
        style.ticks_at(panel, "y", list(range(len(layers))), [f"{layer:g}" for layer in layers])
        panel.tick_params(length=0)
        panel.set_xlabel("head")
        panel.set_title(f"Error against {REFERENCES[reference]}")
    axes[0, 0].set_ylabel("layer")
    bar = drawn.colorbar(image, ax=list(axes[0]), pad=0.015, extend="min")
    bar.set_label("nmse (cells: log₁₀ of it)")
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_formatter(style.power_of_ten)
    entmax = grids["nmse_vs_entmax"]
    row, column = np.unravel_index(np.nanargmax(entmax), entmax.shape)
    style.headline(
        drawn,
        f"With {k_keep:g} keys a query, head {heads[column]:g} of layer {layers[row]:g} loses most against exact "
        f"{alpha:g}-entmax: an nmse of {style.number(entmax[row, column])}; the median head loses "
        f"{style.number(float(np.nanmedian(entmax)))}",
        f"{_origin(data)}, α = {alpha:g}, K_KEEP = {k_keep:g} per query. "
        f"Darker is worse; blank is exact (nmse ≤ {FLOOR:.0e}).",
    )
    return drawn
