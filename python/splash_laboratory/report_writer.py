"""Writes reports from Python, in the layout of docs/report-format.md; the laboratory's own come from `splash`."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from splash_attention.files.seal import seal
from splash_attention.files.whole_file import whole_file

TEXT = h5py.string_dtype("utf-8")
SCHEMA_VERSION = 1


class Table:
    """Columns of one length along `rows`, filled row by row; what a row leaves out is missing."""

    def __init__(
        self, name: str, rows: str, described_as: dict[str, tuple[str, str, str]], parameters: set[str] = frozenset()
    ):
        """described_as: column -> (units, long_name, formula)."""
        self.name, self.rows, self.described_as, self.parameters = name, rows, described_as, parameters
        self.entries: list[dict] = []

    def add(self, **entry) -> None:
        unknown = set(entry) - set(self.described_as)
        if unknown:
            raise ValueError(f"undescribed columns: {', '.join(sorted(unknown))}")
        self.entries.append(entry)

    def write(self, file: h5py.File, wide: dict[str, tuple[str, np.ndarray]]) -> None:
        """`wide`: column -> (second dimension, its coordinate)."""
        group = file.create_group(self.name)
        group.attrs["long_name"] = f"the {self.name}"
        columns = [name for name in self.described_as if any(name in entry for entry in self.entries)]
        if self.rows not in columns:
            scale = described(
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
                scales[dimension] = described(data, "1", f"coordinate {dimension}", "chosen by the experiment")
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
        described(data, *self.described_as[name])
        data.attrs["role"] = "parameter" if name in self.parameters else "result"
        data.attrs["reproducible"] = 0 if name.startswith("time") or name.endswith("bytes") else 1
        if missing:
            data.attrs["missing_reason"] = "does not apply to this case"
        return data


def described(data: h5py.Dataset, units: str, long_name: str, formula: str) -> h5py.Dataset:
    data.attrs["units"], data.attrs["long_name"], data.attrs["formula"] = units, long_name, formula
    return data


def write_report(
    path: Path,
    title: str,
    readme: str,
    tables: list[Table],
    wide: dict[str, tuple[str, np.ndarray]],
    provenance: dict[str, str | int],
) -> None:
    """The report is whole or not there. wide: column of `results` -> (its second dimension, that dimension's values)."""
    with whole_file(path) as temporary:
        _fill(temporary, title, readme, tables, wide, provenance)
        seal(temporary)


def _fill(
    path: Path,
    title: str,
    readme: str,
    tables: list[Table],
    wide: dict[str, tuple[str, np.ndarray]],
    provenance: dict[str, str | int],
) -> None:
    with h5py.File(path, "w") as file:
        run_id = str(provenance.get("started", "")) or "none"
        file.attrs.update(title=title, schema_version=SCHEMA_VERSION, run_id=run_id, history="made", status="complete")
        described(file.create_dataset("README", data=readme, dtype=TEXT), "text", "what is here, and how to read it", "as given")
        group = file.create_group("provenance")
        group.attrs["long_name"] = "how the run came about"
        for name, value in provenance.items():
            data = group.create_dataset(name, data=value, dtype=TEXT if isinstance(value, str) else "i8")
            described(data, "text" if isinstance(value, str) else "1", f"the {name}", "recorded by the run")
        for table in tables:
            table.write(file, wide if table.name == "results" else {})
