"""A plan of Kascade: how well each layer's keys serve each later layer, which layers were made anchors, and what is lost by reuse."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from splash_laboratory.plots import style
from splash_laboratory.plots.data import NotInReport, cases_with, figure, label, levels
from splash_laboratory.reports import Report

PAIRS = "layer_similarity"


@figure("kascade-plan")
def figure_kascade_plan(report: Report) -> Figure:
    """A heat map of layer by layer with a frame around what each anchor serves, and below it what each layer's attention keeps."""
    data = cases_with(report, "layer", "anchor", "similarity", "own_similarity")
    pairs = _pairs(report)
    layer, anchor = data["layer"].values.astype(int), data["anchor"].values.astype(int)
    shown = np.where(np.tri(*pairs.shape, -1, dtype=bool), np.nan, 100 * pairs.values)
    drawn, axes = style.canvas(2, 1, (7.5, 8.6), sharex=True, height_ratios=[3, 1])
    image = axes[0, 0].imshow(shown, cmap=style.SEQUENTIAL, vmax=100, aspect="auto", interpolation="nearest")
    for first in np.unique(anchor):
        served = layer[anchor == first]
        frame = (served.min() - 0.5, first - 0.5)
        axes[0, 0].add_patch(Rectangle(frame, len(served), 1, fill=False, edgecolor=style.BAD, linewidth=1.8, clip_on=False))
    axes[0, 0].set_ylabel("layer that chooses keys")
    axes[0, 0].grid(False)
    step = 1 if len(layer) <= 16 else 5
    style.ticks_at(axes[0, 0], "y", list(range(0, len(layer), step)))
    bar = drawn.colorbar(image, ax=list(axes[:, 0]), pad=0.02)
    bar.set_label("attention on these keys, %")
    bar.outline.set_visible(False)
    for name, colour, marker in (("own_similarity", style.PALETTE[0], "o"), ("similarity", style.PALETTE[1], "s")):
        axes[1, 0].plot(layer, 100 * data[name].values, color=colour, marker=marker, markersize=4, label=_short(data[name]))
    axes[1, 0].set_ylabel("attention kept, %")
    axes[1, 0].set_xlabel("layer that uses keys; frames: what an anchor serves")
    style.ticks_at(axes[1, 0], "x", list(range(0, len(layer), step)))
    axes[1, 0].legend(loc="lower right")
    style.headline(drawn, _finding(data, anchor), _context(data))
    return drawn


def _pairs(report: Report) -> xr.DataArray:
    for held in report.attachments.values():
        if PAIRS in held:
            return held[PAIRS]
    raise NotInReport(f"no case of the report has {PAIRS} attached, as splash kascade plan --report writes it")


def _short(column: xr.DataArray) -> str:
    return label(column, 1000).replace("share of the layer's attention ", "")


def _finding(data: xr.Dataset, anchor: np.ndarray) -> str:
    reusing = data["layer"].values.astype(int) != anchor
    count = f"{style.count(len(np.unique(anchor)), 'anchor')} of {style.count(len(anchor), 'layer')}"
    if not reusing.any():
        return f"{count}: no layer reuses another's keys"
    kept, own = (100 * float(data[name].values[reusing].mean()) for name in ("similarity", "own_similarity"))
    return (
        f"With {count}, a layer that reuses keys keeps {kept:.1f}\u00a0% of its attention in the mean; "
        f"keys of its own would keep {own:.1f}\u00a0%"
    )


def _context(data: xr.Dataset) -> str:
    words = {"budget": "budget {:g}", "least_keys": "at least {:g} keys", "tile": "tiles of {:g} queries"}
    held = [said.format(levels(data, name)[0]) for name, said in words.items() if levels(data, name)]
    model = [f"{name}. " for name in levels(data, "model")[:1]]
    return f"{''.join(model)}{', '.join([*held, 'layer 0 itself attends to all keys']).capitalize()}."
