"""Writes a report's HDF5 layout with h5py (docs/report-format.md), for tests that have no splash binary."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

TEXT = h5py.string_dtype("utf-8")

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


class Table:
    """Columns of one length along `rows`, filled row by row; what a row leaves out is missing."""

    def __init__(
        self, name: str, rows: str, described: dict[str, tuple[str, str, str]], parameters: set[str] = frozenset()
    ):
        """`described`: column -> (units, long_name, formula)."""
        self.name, self.rows, self.described, self.parameters = name, rows, described, parameters
        self.entries: list[dict] = []

    def add(self, **entry) -> None:
        unknown = set(entry) - set(self.described)
        assert not unknown, f"undescribed columns: {unknown}"
        self.entries.append(entry)

    def write(self, file: h5py.File, wide: dict[str, tuple[str, np.ndarray]]) -> None:
        """`wide`: column -> (second dimension, its coordinate)."""
        group = file.create_group(self.name)
        group.attrs["long_name"] = f"the {self.name}"
        columns = [name for name in self.described if any(name in entry for entry in self.entries)]
        if self.rows not in columns:
            scale = _described(
                group.create_dataset(self.rows, data=np.arange(len(self.entries))),
                "1",
                "index of the row",
                "0, 1, 2, ...",
            )
        else:
            columns.remove(self.rows)
            scale = self._column(group, self.rows, None)
        scale.make_scale(self.rows)
        scales = {}
        for dimension, coordinate in wide.values():
            if dimension not in scales:
                data = group.create_dataset(dimension, data=coordinate)
                scales[dimension] = _described(data, "1", f"coordinate {dimension}", "chosen by the experiment")
                scales[dimension].make_scale(dimension)
        for name in columns:
            dimension = wide[name][0] if name in wide else None
            data = self._column(group, name, len(wide[name][1]) if name in wide else None)
            data.dims[0].attach_scale(scale)
            if dimension:
                data.dims[1].attach_scale(scales[dimension])

    def _column(self, group: h5py.Group, name: str, width: int | None) -> h5py.Dataset:
        held = [entry.get(name) for entry in self.entries]
        if any(isinstance(value, str) for value in held):
            data = group.create_dataset(name, data=[value or "" for value in held], dtype=TEXT)
            missing = any(value is None for value in held)
        else:
            filled = np.full((len(held),) if width is None else (len(held), width), np.nan)
            for row, value in enumerate(held):
                if value is not None:
                    filled[row] = value
            data, missing = group.create_dataset(name, data=filled), bool(np.isnan(filled).any())
        _described(data, *self.described[name])
        data.attrs["role"] = "parameter" if name in self.parameters else "result"
        data.attrs["reproducible"] = 0 if name.startswith("time") or name.endswith("bytes") else 1
        if missing:
            data.attrs["missing_reason"] = "another kind of experiment fills this column"
        return data


def _described(data: h5py.Dataset, units: str, long_name: str, formula: str) -> h5py.Dataset:
    data.attrs["units"], data.attrs["long_name"], data.attrs["formula"] = units, long_name, formula
    return data


def write_report(
    path: Path,
    tables: list[Table],
    wide: dict[str, tuple[str, np.ndarray]],
    attachments: dict[str, dict[str, np.ndarray]],
    tokens: list[str],
    provenance: dict[str, str | int],
) -> None:
    """attachments: case id -> name -> array [query, key], both labelled by `tokens`."""
    with h5py.File(path, "w") as file:
        file.attrs.update(
            title="A report for tests", schema_version=1, run_id="test", history="made", status="complete"
        )
        _described(
            file.create_dataset("README", data=README, dtype=TEXT),
            "text",
            "what is here, and how to read it",
            "as given",
        )
        group = file.create_group("provenance")
        group.attrs["long_name"] = "how the run came about"
        for name, value in provenance.items():
            data = group.create_dataset(name, data=value, dtype=TEXT if isinstance(value, str) else "i8")
            _described(data, "text" if isinstance(value, str) else "1", f"the {name}", "recorded by the run")
        for table in tables:
            table.write(file, wide if table.name == "results" else {})
        held = file.create_group("attachments")
        held.attrs["long_name"] = "arrays of single cases, one group a case_id"
        for case_id, maps in attachments.items():
            _write_maps(held.create_group(case_id), maps, tokens)


def _write_maps(group: h5py.Group, maps: dict[str, np.ndarray], tokens: list[str]) -> None:
    for dimension in ("query", "key"):
        scale = group.create_dataset(dimension, data=tokens, dtype=TEXT)
        _described(scale, "text", f"label of the {dimension}", "as given").make_scale(dimension)
    for name, values in maps.items():
        data = _described(group.create_dataset(name, data=values), "1", f"attention probabilities, {name}", "MATH.md")
        data.dims[0].attach_scale(group["query"])
        data.dims[1].attach_scale(group["key"])
