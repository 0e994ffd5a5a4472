"""Predicted against measured, for the page: what the model says of cases that it did not see."""

from __future__ import annotations

import numpy as np
import xarray as xr

from splash_laboratory.page.tables import number
from splash_laboratory.plots.data import present


def predicted(tables: list[tuple[str, xr.Dataset]]) -> dict:
    """The cases with a prediction, as rows of their tables, and how far half and eight in ten of them are off.

    Empty where the report holds none.
    """
    found: list[tuple[int, int]] = []
    errors: list[float] = []
    for table, (_, cases) in enumerate(tables):
        if not {"time_predicted", "time_median", "implementation"} <= set(cases.data_vars):
            continue
        measured, told = cases["time_median"].values, cases["time_predicted"].values
        drawn = present(cases["time_predicted"]) & present(cases["time_median"]) & (measured > 0) & (told > 0)
        found += [(table, int(row)) for row in np.flatnonzero(drawn)]
        errors += list(np.abs(told[drawn] / measured[drawn] - 1))
    if not found:
        return {}
    return {
        "table": [table for table, _ in found],
        "row": [row for _, row in found],
        "half": number(float(np.quantile(errors, 0.5))),
        "most": number(float(np.quantile(errors, 0.8))),
    }
