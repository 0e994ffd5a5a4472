"""Writes a report with attachments, for tests that have no splash binary."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from splash_laboratory import report_writer
from splash_laboratory.report_writer import TEXT, Table, described

README = """A report of Adaptive Splash, made by python/tests/make_report.py: numbers for tests, not a study.

With h5py:
    import h5py
    report = h5py.File("report.h5")  # this file
    print({name: (column.attrs["units"], column[:3]) for name, column in report["results"].items()})

With xarray:
    import xarray
    results = xarray.open_dataset("report.h5", group="results", engine="h5netcdf")
    print(results, results["case_id"].attrs["long_name"])
"""


def write_report(
    path: Path,
    tables: list[Table],
    wide: dict[str, tuple[str, np.ndarray]],
    attachments: dict[str, dict[str, np.ndarray]],
    tokens: list[str],
    provenance: dict[str, str | int],
) -> None:
    """attachments: case id -> name -> array [query, key], both labelled by `tokens`."""
    report_writer.write_report(path, "A report for tests", README, tables, wide, provenance)
    with h5py.File(path, "r+") as file:
        held = file.create_group("attachments")
        held.attrs["long_name"] = "arrays of single cases, one group a case_id"
        for case_id, maps in attachments.items():
            _write_maps(held.create_group(case_id), maps, tokens)


def _write_maps(group: h5py.Group, maps: dict[str, np.ndarray], tokens: list[str]) -> None:
    for dimension in ("query", "key"):
        scale = group.create_dataset(dimension, data=tokens, dtype=TEXT)
        described(scale, "text", f"label of the {dimension}", "as given").make_scale(dimension)
    for name, values in maps.items():
        data = described(group.create_dataset(name, data=values), "1", f"attention probabilities, {name}", "MATH.md")
        data.dims[0].attach_scale(group["query"])
        data.dims[1].attach_scale(group["key"])
