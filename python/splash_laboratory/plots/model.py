"""What another attention costs a language model, from recorded cases: perplexity by keys, and the keys of each head."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from splash_laboratory.plots.data import NotInReport, cases_with, figure
from splash_laboratory.plots.language import SOFTMAX, family_and_name, perplexity_against_keys, support_maps
from splash_laboratory.reports import Report

MOST_MAPS = 4


@figure("perplexity-against-keys")
def figure_perplexity_against_keys(report: Report) -> Figure:
    """A point a method, a curve a family."""
    data = cases_with(report, "method", "perplexity", "support_mean")
    methods = data["method"].values.tolist()
    if SOFTMAX not in methods or len(methods) < 2:
        raise NotInReport("no method was measured beside softmax")
    families, names = zip(*map(family_and_name, methods), strict=True)
    return perplexity_against_keys(names, families, data["perplexity"].values.tolist(), supports(report, data), context(data))


@figure("keys-of-a-model-by-layer-and-head")
def figure_keys_of_heads(report: Report) -> Figure:
    """A map of heads for the best method of each family of entmax, from the highest perplexity to the lowest."""
    data = cases_with(report, "perplexity", "support_mean", "model_name")
    works = [works_of(case) for case in (data.isel(case=at) for at in range(data.sizes["case"]))]
    best: dict[str, int] = {}
    for at in np.argsort(data["perplexity"].values):
        family, _ = family_and_name(works[at])
        if "alpha_of_heads" in report.attachments[str(data["case_id"].values[at])]:  # all of its heads are entmax
            best.setdefault(family, int(at))
    if not best:
        raise NotInReport("no method gives each head an alpha")
    order = list(best.values())[:MOST_MAPS][::-1]
    held = supports(report, data)
    return support_maps({", ".join(filter(None, family_and_name(works[at]))): held[at] for at in order}, context(data))


def works_of(case: xr.Dataset) -> str:
    """Its method, or the plan of its training."""
    names = [str(case[name].values) for name in ("method", "plan") if name in case]
    return next(name for name in names if name)


def supports(report: Report, data: xr.Dataset) -> list[np.ndarray]:
    """Of each case [layers, heads], mean keys of a query."""
    return [report.attachments[str(case)]["support_of_heads"].values for case in data["case_id"].values]


def context(data: xr.Dataset) -> str:
    case = data.isel(case=0)
    windows, length = int(case["windows"]), int(case["window"])
    return f"{str(case['model_name'].values).partition(' (')[0]}, {windows} windows of {length} tokens, {case['device_name'].values}."
