"""One real head, looked at: its attention under softmax, entmax and K_KEEP, and how many keys heads attend to."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from splash_laboratory.plots import style
from splash_laboratory.plots.data import (
    NotInReport,
    cases_with,
    figure,
    is_captured,
    label,
    levels,
    nearest,
    present,
    quantile_levels,
    real_input,
    where,
)
from splash_laboratory.reports import Report

MAPS = {"softmax": "Softmax", "entmax": "α-entmax", "k_keep": "K_KEEP"}
WINDOW = 30  # tokens whose names still fit
DARKEST, LIGHTEST = 1.0, 1e-4  # probabilities; smaller ones than LIGHTEST have the lightest tint, 0 is blank


@figure("attention-of-one-head")
def figure_attention_of_one_head(report: Report) -> Figure:
    """Heat maps of one head's probabilities, side by side; entries that are exactly zero stay white."""
    case_id, maps = _maps(report)
    names = [name for name in MAPS if name in maps]
    first = maps[names[0]]
    queries, keys = (_tokens(maps, first.dims[axis], first.shape[axis]) for axis in (0, 1))
    start_q, start_k = _window(maps[names[-1]].values)
    rows, columns = slice(start_q, start_q + WINDOW), slice(start_k, start_k + WINDOW)
    drawn, axes = style.canvas(1, len(names), (4.6 * len(names) + 0.9, 5.3), sharey=True)
    drawn.set_layout_engine("compressed")
    norm = LogNorm(LIGHTEST, DARKEST)
    for panel, name in zip(axes[0], names, strict=True):
        whole = maps[name].values
        window = np.ma.masked_less_equal(whole[rows, columns], 0.0)
        image = panel.imshow(window.clip(LIGHTEST), cmap=style.SEQUENTIAL, norm=norm, interpolation="nearest")
        panel.set_title(f"{MAPS[name]}: {_percent(float((whole == 0).mean()))} exactly zero")
        _token_axes(panel, queries[rows], keys[columns])
        panel.set_xlabel("key: the token looked at")
    axes[0, 0].set_ylabel("query: the token looking")
    bar = drawn.colorbar(image, ax=list(axes[0]), shrink=0.8, pad=0.012, extend="min")
    bar.set_label("attention probability")
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_formatter(style.power_of_ten)
    blank = Patch(facecolor=style.PAPER, edgecolor="#999999", linewidth=0.8, label="blank: exactly 0")
    bar.ax.legend(
        handles=[blank], loc="lower left", bbox_to_anchor=(-0.6, 1.03), frameon=False, fontsize=8.5, borderpad=0
    )
    case = where(report.results, case_id=case_id)
    style.headline(drawn, _map_finding(maps, case), _map_context(case, first, start_q, start_k))
    return drawn


def _maps(report: Report) -> tuple[str, xr.Dataset]:
    for case_id, held in report.attachments.items():
        if sum(name in held for name in MAPS) >= 2:
            return case_id, held
    raise NotInReport("no case of the report has attention maps attached (softmax, entmax, k_keep)")


def _tokens(maps: xr.Dataset, dimension: str, count: int) -> list[str]:
    """The text labels of a dimension, else positions."""
    candidates = [name for name in (*maps.coords, *maps.data_vars) if maps[name].dims == (dimension,)]
    for name in candidates:
        if maps[name].dtype.kind in "OUT":
            return [str(token) for token in maps[name].values]
    return [str(position) for position in range(count)]


def _window(probabilities: np.ndarray) -> tuple[int, int]:
    """The start of the WINDOW queries and keys on the diagonal that hold the most attention within them."""
    queries, keys = probabilities.shape
    if queries <= WINDOW and keys <= WINDOW:
        return 0, 0
    starts = range(1, max(2, min(queries, keys) - WINDOW))  # not the first token: it is [CLS] or a sink
    held = [probabilities[start : start + WINDOW, start : start + WINDOW].sum() for start in starts]
    return (starts[int(np.argmax(held))],) * 2


def _token_axes(panel: Axes, queries: list[str], keys: list[str]) -> None:
    style.ticks_at(panel, "x", list(range(len(keys))), keys, rotation=90, fontsize=7.5)
    style.ticks_at(panel, "y", list(range(len(queries))), queries, fontsize=7.5)
    panel.tick_params(length=0, pad=2)
    panel.grid(False)
    panel.spines[:].set_visible(True)
    panel.spines[:].set_color("#BBBBBB")


def _percent(share: float) -> str:
    return "none" if share == 0 else f"{100 * share:.1f} %"


def _map_finding(maps: xr.Dataset, case: xr.Dataset) -> str:
    if "entmax" not in maps:
        return "One head's attention, normalised in different ways"
    entmax = maps["entmax"].values
    support = float((entmax > 0).sum(axis=1).mean())
    if "support_entmax" in case:  # over all keys, where the maps are cut off
        support = float(case["support_entmax"].values[0])
    finding = f"In this head a query attends to {style.count(support, 'key')} under α-entmax on average"
    if "softmax" in maps:
        softmax = maps["softmax"].values
        dropped = float(softmax[entmax == 0].sum() / softmax.sum())
        finding += f"; softmax spends {100 * dropped:.0f} % of its attention on keys that entmax drops"
    return finding


def _map_context(case: xr.Dataset, first: xr.DataArray, start_q: int, start_k: int) -> str:
    words = {
        "text": "text {}",
        "layer": "layer {:g}",
        "head": "head {:g}",
        "alpha": "α = {:g}",
        "k_keep": "K_KEEP = {:g}",
    }
    held = [name for name in words if name in case and present(case[name]).any()]
    parts = [words[name].format(case[name].values[0]) for name in held]
    last_q, last_k = min(start_q + WINDOW, first.shape[0]) - 1, min(start_k + WINDOW, first.shape[1]) - 1
    window = (
        f"Shown: queries {start_q}–{last_q} and keys {start_k}–{last_k}; "
        f"shares are of the recorded {first.shape[0]} × {first.shape[1]} entries"
    )
    place = ", ".join(parts)
    return ". ".join([place[:1].upper() + place[1:], window] if parts else [window]) + "."


@figure("support-by-layer-and-head")
def figure_support_by_layer_and_head(report: Report) -> Figure:
    """How many keys a query attends to: a bar per head from its quantiles over queries, a panel per alpha."""
    data = all_keys(report)
    quantiles = quantile_levels(data)
    held = levels(data, "alpha")
    alphas = sorted({nearest(held, wanted) for wanted in (1.25, 1.5, 2.0)})
    drawn, axes = style.canvas(len(alphas), 1, (11.5, 1.1 + 2.05 * len(alphas)), sharex=True, sharey=True)
    heads = sorted(
        {(int(layer), int(head)) for layer, head in zip(data["layer"].values, data["head"].values, strict=True)}
    )
    for panel, alpha in zip(axes[:, 0], alphas, strict=True):
        chosen = where(data, alpha=alpha)
        for layer, head, row in zip(
            chosen["layer"].values, chosen["head"].values, chosen["support_quantile"].values, strict=True
        ):
            at = heads.index((int(layer), int(head)))
            value = {level: float(np.interp(level, quantiles, row)) for level in (0.05, 0.25, 0.5, 0.75, 0.95)}
            colour = style.PALETTE[int(layer) % 2 * 2]
            panel.vlines(at, value[0.05], value[0.95], color=colour, linewidth=1.1, alpha=0.7)
            panel.vlines(at, value[0.25], value[0.75], color=colour, linewidth=5.0, alpha=0.85)
            panel.plot(
                at, value[0.5], "o", color=style.PAPER, markersize=3.2, markeredgecolor=style.INK, markeredgewidth=0.8
            )
        mean = float(np.nanmean(chosen["support_mean"].values))
        panel.set_title(f"α = {alpha:g}: {style.count(mean, 'key')} a query on average")
        style.log2_axis(panel, "y")
        panel.grid(False, axis="x")
        panel.margins(x=0.01)
    axes[len(alphas) // 2, 0].set_ylabel(label(data["support_mean"]).split(",")[0] + " of a query")
    _layer_axis(axes[:, 0], heads)
    style.headline(drawn, _support_finding(data, heads), _support_context(data))
    return drawn


def all_keys(report: Report) -> xr.Dataset:
    """One case a head and alpha, with all keys selected: of the kind "workload", else of the accuracy study."""
    needed = ("support_quantile", "support_mean", "alpha", "layer", "head")
    try:
        data = real_input(cases_with(report, *needed, "block_density_64", "k_keep"))
        data = where(data, k_keep=0)
        if data.sizes["case"] and is_captured(data).any():
            return data
    except NotInReport:
        pass
    data = where(real_input(cases_with(report, *needed, "scope")), scope="all")
    if data.sizes["case"] == 0:
        raise NotInReport("no case of the report selects all keys (scope = all)")
    return where(data, k_keep=levels(data, "k_keep")[0]) if levels(data, "k_keep") else data


def _layer_axis(panels: np.ndarray, heads: list[tuple[int, int]]) -> None:
    """Layers as alternating bands, named once below their heads."""
    layers = sorted({layer for layer, _ in heads})
    middles = []
    for layer in layers:
        places = [place for place, (held, _) in enumerate(heads) if held == layer]
        middles.append(float(np.mean(places)))
        for panel in panels:
            if layer % 2:
                panel.axvspan(min(places) - 0.5, max(places) + 0.5, color="#F6F6F6", zorder=-5, linewidth=0)
    style.ticks_at(panels[-1], "x", middles, [f"layer {layer}" for layer in layers])
    for panel in panels:
        panel.tick_params(axis="x", length=0)
    panels[-1].set_xlabel("heads, in order within each layer")


def _support_finding(data: xr.Dataset, heads: list[tuple[int, int]]) -> str:
    alpha = nearest(levels(data, "alpha"), 1.5)
    chosen = where(data, alpha=alpha)
    means = chosen["support_mean"].values
    least, most = int(np.nanargmin(means)), int(np.nanargmax(means))

    def place(at: int) -> str:
        return f"layer {chosen['layer'].values[at]:g} head {chosen['head'].values[at]:g}"

    return (
        f"Under {alpha:g}-entmax heads differ widely: a query keeps "
        f"{style.count(float(means[least]), 'key')} on average "
        f"in {place(least)} and {style.number(float(means[most]))} in {place(most)}"
    )


def _support_context(data: xr.Dataset) -> str:
    texts = levels(data, "text")
    origin = f"Real encoder reading {texts[0]}. " if texts else ""
    return f"{origin}Dot: median query of the head; thick bar: middle half of its queries; thin line: 5 % to 95 %."
