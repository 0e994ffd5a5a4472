"""Exact entmax attention beside every peer: time over length, and over how many keys a row keeps."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from splash_laboratory.plots import style
from splash_laboratory.plots.data import NotInReport, cases_with, figure, levels, present, where, widest
from splash_laboratory.reports import Report

# What makes two cases the same problem, whatever computes it.
PROBLEM = "pass batch q_heads kv_heads q_len kv_len head_dim dtype mask query_variance input seed method cache".split()


@figure("time-against-length-and-support")
def figure_time_against_length_and_support(report: Report) -> Figure:
    """Time a head of each implementation over length, on the sparsest inputs, and over the keys a row keeps, at one length."""
    data = cases_with(report, "implementation", "kv_len", "head_dim", "time_median", "pass")
    data = _with_support(data)
    for name in ("head_dim", "mask"):
        data = where(data, **{name: widest(data, name, "kv_len", "support", "pass")})
    if len(levels(data, "kv_len")) < 2:
        raise NotInReport("the report has one length of the problems whose support it tells")
    names, passes = levels(data, "implementation"), levels(data, "pass")
    length = widest(data, "kv_len", "support")
    both = len(levels(where(data, kv_len=length), "support")) > 1
    drawn, axes = style.canvas(len(passes), 1 + both, (5.3 * (1 + both), 1.2 + 3.3 * len(passes)), sharey="row")
    for row, direction in zip(axes, passes, strict=True):
        cases = where(data, **{"pass": direction})
        sparsest = cases.isel(case=np.flatnonzero(cases["support"].values <= 1.01 * _least_support(cases)))
        words = direction.replace("_", " + ")
        _curves(row[0], sparsest, "kv_len", names)
        row[0].set_title(f"{words}, the sparsest rows")
        row[0].set_ylabel("time a head")
        if both:
            _curves(row[1], where(cases, kv_len=length), "support", names)
            row[1].set_title(f"{words}, {length:.0f} keys")
            style.log_axis(row[1], "x")
        style.log_axis(row[0], "y")
        row[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: style.seconds(value)))
        style.log2_axis(row[0], "x")
    axes[-1, 0].set_xlabel("keys")
    if both:
        axes[-1, 1].set_xlabel("keys that exact entmax keeps, a row")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=min(len(names), 4), frameon=False)
    style.headline(drawn, _finding(where(data, kv_len=length, **{"pass": passes[0]})), _context(data))
    return drawn


def _with_support(data: xr.Dataset) -> xr.Dataset:
    """With the column `support`: what one implementation counted of a problem holds for all; other problems go."""
    if "support_mean" not in data or not present(data["support_mean"]).any():
        raise NotInReport("the report does not tell how many keys a row keeps ('support_mean')")
    keys = [name for name in PROBLEM if name in data]
    problems = [str(key) for key in zip(*(data[name].values.tolist() for name in keys), strict=True)]
    told = {p: s for p, s in zip(problems, data["support_mean"].values.tolist(), strict=True) if not np.isnan(s)}
    keep = np.flatnonzero([problem in told for problem in problems])
    data = data.isel(case=keep)
    heads = data["batch"].values * data["q_heads"].values
    support = np.array([told[problems[at]] for at in keep])
    return data.assign(support=("case", support), time_a_head=("case", data["time_median"].values / heads))


def _least_support(cases: xr.Dataset) -> np.ndarray:
    """Of each case: the least support at its length."""
    lengths, support = cases["kv_len"].values, cases["support"].values
    return np.array([support[lengths == length].min() for length in lengths])


def _curves(panel: Axes, cases: xr.Dataset, x: str, names: list[str]) -> None:
    for at, name in enumerate(names):
        own = where(cases, implementation=name)
        places = levels(own, x)
        times = [float(np.median(where(own, **{x: place})["time_a_head"].values)) for place in places]
        marker = style.MARKERS[at % len(style.MARKERS)]
        panel.plot(places, times, marker + "-", color=style.PALETTE[at % len(style.PALETTE)], markersize=5, label=style.plain(name))


def _finding(cases: xr.Dataset) -> str:
    """Who is quickest where rows keep the fewest and the most keys."""
    supports = levels(cases, "support")
    words = []
    for support in dict.fromkeys((supports[0], supports[-1])):
        there = where(cases, support=support)
        best = there["implementation"].values[int(np.argmin(there["time_a_head"].values))]
        words.append(f"{style.plain(best)} where a row keeps {style.count(support, 'key')}")
    return f"At {cases['kv_len'].values[0]:.0f} keys the quickest is " + ", ".join(words)


def _context(data: xr.Dataset) -> str:
    mask = levels(data, "mask")[0]
    seen = "every key visible" if mask == "none" else mask
    return f"d {data['head_dim'].values[0]:.0f}, {seen}. Peers compute the same problem; those of softmax keep every key."
