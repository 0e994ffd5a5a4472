"""Exact entmax attention over several GPUs: what a report of the kind gpu-distributed measured, beside a model of 2 to 1024 GPUs.

    python -m splash_laboratory.scaling report.h5 another.h5 --link 313 --network 50

The model and what it leaves out: distributed_model.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import xarray as xr

from splash_attention.files.printable import one_line
from splash_laboratory.distributed_model import Problem, Rates, best
from splash_laboratory.reports import ReportError, open_report

OVER_SEVERAL = ("entmax-gather", "entmax-heads", "entmax-auto")
RANKS = tuple(2**i for i in range(1, 11))


def problem_of(case: xr.Dataset) -> Problem:
    """Of one case of the kind gpu-distributed."""
    width = 4 if "float32" in str(case["computed_in"].values) else 2
    return Problem(*(int(case[name]) for name in ("length", "heads", "kv_heads", "head_dim")), width)


def cases_of(results: xr.Dataset) -> xr.Dataset:
    """The cases of the kind gpu-distributed that ran. Raises ReportError where there are none."""
    if {"link_rate", "implementation", "ranks", "time_median"} <= set(results.data_vars):
        ours = np.char.startswith(results["implementation"].values.astype(str), "entmax")
        ran = ours & ~np.isnan(results["ranks"].values) & ~np.isnan(results["time_median"].values)
        if "calls" in results:  # the model is of a call alone; before there was the parameter all were
            ran &= ~(results["calls"].values > 1)
        if ran.any():
            return results.isel(case=np.flatnonzero(ran))
    raise ReportError("the report holds no case of the kind gpu-distributed that ran")


COLUMNS = ["length", "heads", "kv_heads", "head_dim", "computed_in", "pass", "implementation", "ranks", "time_median", "link_rate"]


def together(reports: Sequence[str | Path]) -> xr.Dataset:
    """The cases of several reports: one GPU's may stand in one, those of more GPUs of the same host in another."""
    parts = [cases_of(open_report(report).results)[COLUMNS].reset_coords(drop=True) for report in reports]
    return xr.concat(parts, dim="case")


Key = tuple[Problem, str]  # a problem and a pass


def times_of(cases: xr.Dataset) -> tuple[dict[Key, float], dict[Key, dict[int, float]]]:
    """Seconds: on one GPU, and over ranks those of the fastest mode."""
    alone: dict[Key, float] = {}
    several: dict[Key, dict[int, float]] = {}
    for at in range(cases.sizes["case"]):
        case = cases.isel(case=at)
        key, name, time = (problem_of(case), str(case["pass"].values)), str(case["implementation"].values), float(case["time_median"])
        if name == "entmax":
            alone[key] = time
        elif name in OVER_SEVERAL:
            held, ranks = several.setdefault(key, {}), int(case["ranks"])
            held[ranks] = min(held.get(ranks, time), time)
    return alone, several


def rates_of(cases: xr.Dataset, given: Rates = Rates()) -> Rates:
    """With the link's rate as the report's own ranks measured it."""
    held = cases["link_rate"].values.astype(float)
    held = held[~np.isnan(held)]
    return replace(given, link=float(np.median(held))) if held.size else given


def lines(cases: xr.Dataset, rates: Rates) -> list[str]:
    """A table of each problem and pass."""
    told = [
        f"A model, not a measurement: {rates.link / 1e9:.3g} GB/s inside a host of {rates.gpus_a_host} GPUs, {rates.network / 1e9:.0f} GB/s a GPU between hosts.",
        "Error: of the model with nothing hidden, against the fastest measured.",
    ]
    alone, several = times_of(cases)
    for (problem, direction), one in sorted(alone.items(), key=lambda item: (item[0][1], item[0][0].length)):
        measured = several.get((problem, direction), {})
        told += ["", f"{direction}, {problem.length} tokens, {problem.heads}/{problem.kv_heads} heads, head_dim {problem.head_dim}: one GPU {_ms(one)}"]
        told.append(f"{'ranks':>6} {'mode':>7} {'computing':>12} {'exchanges':>12} {'all hidden':>12} {'in turn':>12} {'measured':>12} {'error':>7}")
        for ranks in RANKS:
            try:
                model = best(one, problem, direction, ranks, rates)
            except ValueError:
                break
            seen = measured.get(ranks)
            beside = f"{_ms(seen):>12} {100 * (model.in_turn / seen - 1):>+6.0f}%" if seen else ""
            times = " ".join(f"{_ms(value):>12}" for value in (model.computing, model.exchanging, model.hidden, model.in_turn))
            told.append(f"{ranks:>6} {model.mode:>7} {times} {beside}".rstrip())
    return told


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 10 else f"{1e3 * seconds:.0f} ms"


def _rate(text: str) -> float:
    try:
        value = 1e9 * float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}'; it takes a rate in GB/s above 0")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}'; it takes a number of GPUs from 1 on")
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m splash_laboratory.scaling", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("report", nargs="+", help="of the kind gpu-distributed; one of them gives one GPU's times")
    parser.add_argument("--link", type=_rate, metavar="GB/S", help="that a rank receives inside a host (the report's own, else 313)")
    parser.add_argument("--network", type=_rate, default=Rates.network, metavar="GB/S", help="that a GPU's adapter receives (50)")
    parser.add_argument("--gpus-a-host", type=_count, default=Rates.gpus_a_host, metavar="N", help="of one NVLink domain (8)")
    parser.error = lambda message: parser.exit(2, f"error: {one_line(message)}\n")  # type: ignore[method-assign]
    words = parser.parse_args(arguments)
    try:
        cases = together(words.report)
    except ReportError as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr)
        return 2
    rates = Rates(network=words.network, gpus_a_host=words.gpus_a_host)
    rates = replace(rates, link=words.link) if words.link else rates_of(cases, rates)
    print("\n".join(lines(cases, rates)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
