"""Reports of the laboratory as xarray Datasets. Nothing is known of a report but what its own attributes say.

from splash_laboratory import open_report
report = open_report("report.h5")
report.experiment("accuracy").nmse_vs_entmax.median()
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np
import xarray as xr

from splash_attention.files.apart import NotReadError, try_apart
from splash_attention.files.contained import NotContainedError, require_contained
from splash_attention.files.printable import one_line
from splash_attention.files.seal import LENGTH, MARKER, Seal, check_seal

REQUIRED_GROUPS = ("results", "provenance")
REQUIRED_ATTRIBUTES = ("title", "schema_version", "run_id", "status")
SCHEMA_VERSION = 1
RECORDED = Path("data") / "reports" / "reproduce-quick.h5"  # below the repository's root


class ReportError(Exception):
    """A file that cannot be read as a report. The message is one sentence."""


@dataclass(frozen=True)
class Report:
    """What one run found.

    results: columns along `case`; some have a second dimension, for example time(case, sample)
    claims: columns along `claim`
    ceilings: columns along `ceiling`: what this machine was measured to reach
    attachments: case id -> Dataset of stand-alone arrays, for example one head's attention map
    """

    path: Path
    attributes: dict[str, object]
    readme: str
    results: xr.Dataset
    claims: xr.Dataset
    ceilings: xr.Dataset
    provenance: dict[str, object]
    attachments: dict[str, xr.Dataset] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return str(self.attributes["title"])

    @property
    def run_id(self) -> str:
        return str(self.attributes["run_id"])

    @property
    def experiments(self) -> list[str]:
        """Names of the experiments in the report, in the order they were run."""
        if "experiment" not in self.results:
            return []
        return list(dict.fromkeys(self.results["experiment"].values.tolist()))

    def experiment(self, name: str) -> xr.Dataset:
        """The cases of one experiment, without the columns that are missing in all of them.

        Raises ReportError where the report has no such experiment.
        """
        if name not in self.experiments:
            held = ", ".join(self.experiments) or "none"
            raise ReportError(f"{self.path}: no experiment '{name}' in this report (it has: {held})")
        chosen = self.results.isel(case=np.flatnonzero(self.results["experiment"].values == name))
        return without_missing(chosen)


def open_report(path: str | os.PathLike[str]) -> Report:
    """Reads a whole report into memory; the file is closed again.

    Raises ReportError: no such file, not HDF5, truncated, damaged (a checksum tells), data that the file does not hold
    itself, HDF5 that is not a report, or one of another schema.
    """
    path = Path(path)
    if not path.exists():
        raise ReportError(f"{path}: no such file")
    if path.is_dir():
        raise ReportError(f"{path}: is a folder, a report was expected")
    if not path.is_file():
        raise ReportError(f"{path}: is not a regular file")
    try:
        _check_seal(path)
        try_apart(path, lambda: _read_or_refuse(path), ReportError)
        return _read_or_refuse(path)
    except NotReadError as error:
        raise ReportError(str(error)) from error
    except OSError as error:
        raise ReportError(f"{path}: may not be read ({error.strerror or error})") from error


def recorded_report(start: Path | None = None) -> Report:
    """The report that $SPLASH_REPORT names, else the one recorded in this repository.

    Raises ReportError, and says how to make one, where there is neither.
    """
    named = os.environ.get("SPLASH_REPORT")
    if named:
        return open_report(named)
    start = (start or Path(__file__)).resolve()
    for folder in (start, *start.parents):
        if (folder / RECORDED).is_file():
            return open_report(folder / RECORDED)
    raise ReportError(
        f"no recorded report at {RECORDED}: run `./splash reproduce` and set SPLASH_REPORT to the report.h5 it writes"
    )


def _check_seal(path: Path) -> None:
    content = path.read_bytes()
    found = check_seal(content)
    if found is Seal.BROKEN:
        raise ReportError(f"{path}: is damaged, its checksum does not match its content")
    if found is Seal.ABSENT and MARKER[:4] in content[-LENGTH:]:
        raise ReportError(f"{path}: is truncated, its last line is not whole")


def _read_or_refuse(path: Path) -> Report:
    try:
        return _read(path)
    except NotContainedError as error:
        raise ReportError(f"{path}: {error}") from error
    except OSError as error:
        raise ReportError(f"{path}: {_reason(path, error)}") from error
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RuntimeError) as error:  # h5py's, xarray's
        raise ReportError(f"{path}: is damaged, it cannot be read as a report ({one_line(str(error))})") from error


def _read(path: Path) -> Report:
    with h5py.File(path, "r") as file:
        require_contained(file)
        absent = [f"attribute '{name}'" for name in REQUIRED_ATTRIBUTES if name not in file.attrs]
        absent += [f"group '/{name}'" for name in REQUIRED_GROUPS if name not in file]
        if absent:
            raise ReportError(f"{path}: HDF5, but not a report: it lacks {', '.join(absent)}")
        attributes = {name: _plain(value) for name, value in file.attrs.items()}
        if attributes["schema_version"] != SCHEMA_VERSION:
            version = attributes["schema_version"]
            raise ReportError(f"{path}: is a report of schema {version}, this package reads schema {SCHEMA_VERSION}")
        tables = {name: _dataset(file[name]) for name in ("results", "claims", "ceilings") if name in file}
        empty = xr.Dataset()
        return Report(
            path=path,
            attributes=attributes,
            readme=str(_plain(file["README"][()])) if "README" in file else "",
            results=tables["results"],
            claims=tables.get("claims", empty),
            ceilings=tables.get("ceilings", empty),
            provenance=_scalars(file["provenance"]),
            attachments={name: _dataset(group) for name, group in file.get("attachments", {}).items()},
        )


def _dataset(group: h5py.Group) -> xr.Dataset:
    """One group in memory: dimensions from the attached scales, then from their labels, then by position."""
    variables, coordinates = {}, {}
    for name, data in group.items():
        if not isinstance(data, h5py.Dataset):
            continue
        if data.is_scale and data.ndim == 1:
            dimensions = (name,)
        else:
            dimensions = tuple(_dimension(data, axis) for axis in range(data.ndim))
        values = data.asstr()[()] if h5py.check_string_dtype(data.dtype) else data[()]
        described = {
            key: _plain(data.attrs[key])
            for key in ("units", "long_name", "formula", "role", "missing_reason")
            if key in data.attrs
        }
        target = coordinates if data.is_scale else variables
        target[name] = (dimensions, values, described)
    return xr.Dataset(variables, coordinates)


def _dimension(data: h5py.Dataset, axis: int) -> str:
    dimension = data.dims[axis]
    if len(dimension):
        return dimension[0].name.rsplit("/", 1)[-1]
    return dimension.label or f"{data.name.rsplit('/', 1)[-1]}_{axis}"


def _scalars(group: h5py.Group) -> dict[str, object]:
    """A group of scalars as a dict: its attributes and its scalar datasets."""
    found = {name: _plain(value) for name, value in group.attrs.items() if name != "long_name"}
    found.update({name: _plain(data[()]) for name, data in group.items() if isinstance(data, h5py.Dataset)})
    return found


def _plain(value: object) -> object:
    """An HDF5 value as Python's own: str, int, float, bool, or a list of them."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, np.ndarray):
        return [_plain(entry) for entry in value.tolist()]
    return value.item() if isinstance(value, np.generic) else value


def _is_missing(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind in "OUST":
        return np.vectorize(lambda text: text == "" or text != text, otypes=[bool])(values)
    return np.zeros(values.shape, dtype=bool)


def without_missing(data: xr.Dataset) -> xr.Dataset:
    """The Dataset without the columns that are missing in all its cases."""
    empty = [name for name, column in data.data_vars.items() if column.size == 0 or _is_missing(column.values).all()]
    return data.drop_vars(empty)


def _reason(path: Path, error: OSError) -> str:
    text = str(error).lower()
    size = path.stat().st_size
    if size == 0:
        return "is empty (0 bytes)"
    if "truncated" in text:
        return f"is truncated ({size} bytes are there): make it again or resume the run"
    if "signature not found" in text:
        return "is not an HDF5 file"
    return f"cannot be read as HDF5 ({str(error).splitlines()[0]})"
