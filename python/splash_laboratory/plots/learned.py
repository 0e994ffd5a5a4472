"""What source 004 wants learned: thresholds predicted from the query, and gradients that pass the selection by."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from splash_laboratory.plots import style
from splash_laboratory.plots.data import cases_with, figure, levels, nearest, present, quartiles, where
from splash_laboratory.reports import Report


@figure("learned-thresholds")
def figure_learned_thresholds(report: Report) -> Figure:
    """Loss of the predicted threshold before and after training, and the Newton steps that it saves."""
    data = cases_with(report, "loss_before", "loss_after", "iterations_cold", "iterations_warm")
    data = where(data, alpha=nearest(levels(data, "alpha"), 1.5))
    unseen = [text for text in levels(data, "eval_text") if text not in levels(data, "text")]
    data = where(data, eval_text=(unseen or levels(data, "eval_text"))[0]) if levels(data, "eval_text") else data
    data = data.isel(case=np.argsort(data["loss_after"].values, kind="stable"))
    count = data.sizes["case"]
    height = max(3.6, 1.4 + min(0.19 * count, 8.0))
    drawn, axes = style.canvas(1, 2, (11, height), sharey=True)
    left, right = axes[0]
    y = np.arange(count)
    _dumbbells(left, y, data["loss_before"].values, data["loss_after"].values, ("before training", "after training"))
    if "loss_constant" in data and present(data["loss_constant"]).any():
        left.plot(data["loss_constant"].values, y, "|", color=style.INK, markersize=8, label="best constant")
    _dumbbells(
        right, y, data["iterations_cold"].values, data["iterations_warm"].values, ("cold start", "from the prediction")
    )
    style.log_axis(left, "x")
    right.set_xlim(left=0)
    left.set_title("Error of the predicted threshold")
    right.set_title("Newton steps to the exact threshold")
    left.set_xlabel("mean squared error of τ on rows not trained on")
    right.set_xlabel("Newton steps a query, mean")
    names = [
        f"layer {layer:g} head {head:g}" for layer, head in zip(data["layer"].values, data["head"].values, strict=True)
    ]
    style.ticks_at(left, "y", y.tolist(), names, fontsize=8 if count < 40 else 5.5)
    left.set_ylim(-0.7, count - 0.3)
    for panel in (left, right):
        panel.grid(False, axis="y")
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.6 / (height - 1.2)), ncols=3, frameon=False)
    style.headline(drawn, _threshold_finding(data), _threshold_context(data))
    return drawn


def _dumbbells(panel, y: np.ndarray, before: np.ndarray, after: np.ndarray, names: tuple[str, str]) -> None:
    panel.hlines(y, np.minimum(before, after), np.maximum(before, after), color="#CFCFCF", linewidth=2, zorder=1)
    panel.plot(
        before, y, "o", markerfacecolor=style.PAPER, markeredgecolor=style.PALETTE[1], markersize=6, label=names[0]
    )
    panel.plot(after, y, "o", color=style.PALETTE[0], markersize=6, label=names[1])


def _threshold_finding(data: xr.Dataset) -> str:
    left_over = float(np.nanmedian(data["loss_after"].values / data["loss_before"].values))
    saved = float(np.nanmedian(data["iterations_cold"].values - data["iterations_warm"].values))
    steps = "saves" if saved >= 0 else "costs"
    cold = style.number(float(np.nanmedian(data["iterations_cold"].values)))
    return (
        f"Training leaves {100 * left_over:.2g} % of the threshold's squared error in the median head; "
        f"starting from the prediction {steps} {style.number(abs(saved))} Newton steps of {cold}"
    )


def _threshold_context(data: xr.Dataset) -> str:
    texts = [levels(data, name) for name in ("text", "eval_text")]
    origin = f" Trained on {', '.join(texts[0])}, judged on {', '.join(texts[1])}." if all(texts) else ""
    direct = ""
    if "nmse_direct" in data:
        value = style.number(float(np.nanmedian(data["nmse_direct"].values)))
        direct = (
            f" Used directly instead of exactly, the predicted threshold gives an nmse of {value} in the median head."
        )
    constant = ""
    if "loss_constant" in data:
        better = int((data["loss_after"].values < data["loss_constant"].values).sum())
        constant = f" It beats a constant threshold in {better} of {data.sizes['case']} heads."
    return f"α = {data['alpha'].values[0]:g}, best head below.{origin}{constant}{direct}"


@figure("gradient-agreement")
def figure_gradient_agreement(report: Report) -> Figure:
    """Direction of the straight-through gradients against exact ones, over K_KEEP."""
    references = {"selected": "the same K_KEEP forward", "full": "entmax over all keys"}
    tensors = {"dq": "dQ", "dk": "dK", "dv": "dV"}
    data = cases_with(report, "k_keep", "alpha", *(f"cosine_dq_vs_{name}" for name in references))
    if "scope" in data and "row" in levels(data, "scope"):
        data = where(data, scope="row")
    data = where(data, alpha=nearest(levels(data, "alpha"), 1.5))
    drawn, axes = style.canvas(1, 2, (10.6, 4.6), sharey=True, sharex=True)
    for panel, (reference, words) in zip(axes[0], references.items(), strict=True):
        for at, (tensor, name) in enumerate(tensors.items()):
            column = f"cosine_{tensor}_vs_{reference}"
            if column not in data:
                continue
            k_keep, low, middle, high = quartiles(data, "k_keep", column)
            panel.fill_between(k_keep, low, high, color=style.PALETTE[at], alpha=0.13, linewidth=0)
            panel.plot(
                k_keep,
                middle,
                color=style.PALETTE[at],
                marker=style.MARKERS[at],
                markersize=5.5,
                label=name,
                clip_on=False,
            )
        style.log2_axis(panel, "x")
        panel.set_title(f"Exact gradient: {words}")
        panel.set_xlabel("K_KEEP: keys kept per query")
    style.ticks_at(axes[0, 0], "x", levels(data, "k_keep"))
    low = axes[0, 0].get_ylim()[0]
    axes[0, 0].set_ylim(min(0.0, low) if low < 0.5 else 0.5 if low < 0.95 else low, 1.0)
    axes[0, 0].set_ylabel("cosine of the angle between the gradients\n(1: the same direction)")
    handles, names = axes[0, 0].get_legend_handles_labels()
    drawn.legend(handles, names, loc="outside right center", frameon=False, title="median head,\nmiddle half shaded")
    style.headline(
        drawn,
        _gradient_finding(data),
        f"{data.sizes['case']} cases, α = {data['alpha'].values[0]:g}. Gradients of a random output gradient.",
    )
    return drawn


def _gradient_finding(data: xr.Dataset) -> str:
    k_keep = nearest(levels(data, "k_keep"), 8)
    chosen = where(data, k_keep=k_keep)
    same, full = (float(np.nanmedian(chosen[f"cosine_dq_vs_{name}"].values)) for name in ("selected", "full"))
    return (
        f"With {k_keep:g} keys kept, the straight-through dQ points with a cosine of {same:.3f} along "
        f"the exact gradient of its "
        f"own forward, and of {full:.3f} along full entmax's"
    )
