"""Error, speed and sparsity of the same cases, for one plot."""

from __future__ import annotations

import numpy as np
import xarray as xr

from splash_laboratory.page.tables import encoded, number, subject
from splash_laboratory.plots.data import present

ERRORS = ("nmse", "nmse_vs_entmax", "nmse_direct", "mse", "max_error", "max_error_vs_entmax", "tau_error_max")
SPEEDS = ("dense_equivalent_rate", "time_median")
KEYS = ("kv_len", "n", "length")
FLOOR = 1e-16  # smaller errors are drawn there: in double precision they are none


def tradeoffs(tables: list[tuple[str, xr.Dataset]]) -> list[dict]:
    """An entry an experiment whose cases have an error and a speed, or an error and a sparsity."""
    found = []
    for table, (_, cases) in enumerate(tables):
        error, speed = _first(cases, ERRORS), _first(cases, SPEEDS)
        sparse = sparsity(cases)
        if error is None or (speed is None and np.isnan(sparse).all()):
            continue
        across = cases[speed].values if speed else 1 - sparse
        rows = np.flatnonzero(present(cases[error]) & (across > 0) & np.isfinite(across))
        if rows.size < 2:
            continue
        who = subject(cases) or _first(cases, ("scope", "input"))
        groups = [group(str(name)) for name in cases[who].values[rows]] if who else [""] * rows.size
        found.append(
            {
                "table": table,
                "error": error,
                "speed": speed,
                "rows": rows.tolist(),
                "across": [number(value) for value in across[rows]],
                "sparsity": [number(value) for value in sparse[rows]],
                "group": encoded(np.array(groups, dtype=object)),
                "floor": FLOOR,
            }
        )
    return found


def sparsity(cases: xr.Dataset) -> np.ndarray:
    """Of each case the share of pairs that take no part: as recorded, else from FLOPs, else from the support."""
    share = _column(cases, "token_sparsity")
    flops = 1 - _column(cases, "useful_flops") / _column(cases, "dense_equivalent_flops")
    share = np.where(np.isnan(share), flops, share)
    for name in KEYS:
        if name in cases and cases[name].values.dtype.kind == "f":
            share = np.where(np.isnan(share), 1 - _column(cases, "support_mean") / cases[name].values, share)
    return np.clip(share, 0, 1)


def group(name: str) -> str:
    """Rungs by their ladder, PyTorch's kernels together, others each by itself."""
    return "torch" if name.startswith("torch-") else name.partition("/")[0]


def _first(cases: xr.Dataset, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in cases and cases[name].dims == ("case",)), None)


def _column(cases: xr.Dataset, name: str) -> np.ndarray:
    return cases[name].values.astype(float) if name in cases else np.full(cases.sizes["case"], np.nan)
