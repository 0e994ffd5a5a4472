"""Ladders for the page: who solved the same problem in what time, and what each rung gained over the one it names."""

from __future__ import annotations

import numpy as np
import xarray as xr

from splash_laboratory.page.tables import number, problems, subject
from splash_laboratory.plots.data import present


def ladders(tables: list[tuple[str, xr.Dataset]]) -> list[dict]:
    """A ladder a problem that at least two were timed on; rows are rows of its table, in the order they ran."""
    found = []
    for table, (_, cases) in enumerate(tables):
        who = subject(cases)
        if who is None or "time_median" not in cases:
            continue
        timed = present(cases["time_median"]) & present(cases[who]) & (cases["time_median"].values > 0)
        groups: dict[str, list[int]] = {}
        for row, problem in enumerate(problems(cases)):
            if timed[row]:
                groups.setdefault(problem, []).append(row)
        names = cases[who].values
        found += [
            {"table": table, "subject": who, "problem": problem, "rows": rows, **gains(cases, rows)}
            for problem, rows in groups.items()
            if len({names[row] for row in rows}) > 1
        ]
    return found


def gains(cases: xr.Dataset, rows: list[int]) -> dict:
    """Of each row the time of the rung it is compared with over its own: gain, low, high, and that rung as `over`.

    A rung (LADDER/RUNG) is compared with the one its prediction names, else with the rung before; others with none.
    """
    names = cases[subject(cases)].values
    time = {end: _column(cases, f"time_{end}") for end in ("median", "low", "high")}
    for end in ("low", "high"):
        time[end] = np.where(np.isnan(time[end]), time["median"], time[end])
    named = cases["predicted_over"].values if "predicted_over" in cases else [""] * cases.sizes["case"]
    seen: dict[str, int] = {}
    columns: dict[str, list] = {"over": [], "gain": [], "gain_low": [], "gain_high": []}
    before = ""
    for row in rows:
        name = str(names[row])
        over = seen.get(str(named[row]) or before) if "/" in name else None
        columns["over"].append("" if over is None else str(names[over]))
        pairs = (("gain", "median", "median"), ("gain_low", "low", "high"), ("gain_high", "high", "low"))
        for column, theirs, ours in pairs:
            columns[column].append(None if over is None else number(time[theirs][over] / time[ours][row]))
        seen[name] = row
        before = name if "/" in name else before
    return columns


def _column(cases: xr.Dataset, name: str) -> np.ndarray:
    return cases[name].values if name in cases else np.full(cases.sizes["case"], np.nan)
