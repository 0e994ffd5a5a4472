"""A report explains itself: these tests know nothing of it but its attributes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr

GROUPS = ("results", "claims", "ceilings")


def every_dataset(file: h5py.File) -> list[h5py.Dataset]:
    found: list[h5py.Dataset] = []
    file.visititems(lambda _name, held: found.append(held) if isinstance(held, h5py.Dataset) else None)
    return found


def text_of(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def test_the_root_says_what_the_file_is(any_report: Path) -> None:
    with h5py.File(any_report) as file:
        for name in ("title", "run_id", "history", "status"):
            assert name in file.attrs
        assert int(file.attrs["schema_version"]) >= 1
        assert text_of(file.attrs["status"]) in ("complete", "partial", "interrupted")


def test_every_dataset_says_units_long_name_and_formula(any_report: Path) -> None:
    with h5py.File(any_report) as file:
        for data in every_dataset(file):
            for name in ("units", "long_name", "formula"):
                assert text_of(data.attrs.get(name, "")).strip(), f"{data.name} has no {name}"


def test_every_dimension_has_a_name_and_a_scale(any_report: Path) -> None:
    with h5py.File(any_report) as file:
        for data in every_dataset(file):
            if data.is_scale:
                continue
            for axis, dimension in enumerate(data.dims):
                assert len(dimension) >= 1, f"{data.name} has no scale on axis {axis}"
                assert dimension[0].shape == (data.shape[axis],)


def test_results_run_along_case(any_report: Path) -> None:
    with h5py.File(any_report) as file:
        for name, data in file["results"].items():
            if not data.is_scale:
                assert data.dims[0][0].name == "/results/case", name


def test_what_is_missing_has_a_reason(any_report: Path) -> None:
    with h5py.File(any_report) as file:
        for data in every_dataset(file):
            if data.dtype.kind == "f" and np.isnan(data[()]).any():
                assert text_of(data.attrs.get("missing_reason", "")).strip(), (
                    f"{data.name} misses values without a reason"
                )


def test_parameters_and_results_are_told_apart(any_report: Path) -> None:
    with h5py.File(any_report) as file:
        roles = {name: text_of(data.attrs["role"]) for name, data in file["results"].items() if not data.is_scale}
    assert set(roles.values()) == {"parameter", "result"}
    assert roles["alpha"] == "parameter" and roles["nmse_vs_entmax"] == "result"


def test_times_say_that_they_are_not_reproducible(any_report: Path) -> None:
    with h5py.File(any_report) as file:
        for name, data in file["results"].items():
            if not data.is_scale and text_of(data.attrs["units"]) == "s":
                assert not int(data.attrs["reproducible"]), name


@pytest.mark.parametrize("group", GROUPS)
def test_xarray_opens_every_group(any_report: Path, group: str) -> None:
    with xr.open_dataset(any_report, group=group, engine="h5netcdf") as data:
        assert not [name for name in data.sizes if name.startswith("phony")], f"unnamed dimensions in {group}"
        data.load()


def test_the_readme_runs(any_report: Path, tmp_path: Path) -> None:
    """The lines of Python in /README, executed as they stand beside a file called report.h5."""
    with h5py.File(any_report) as file:
        readme = file["README"].asstr()[()]
    examples = re.findall(r"^With \w+:\n((?:    .*\n)+)", readme, flags=re.MULTILINE)
    assert len(examples) >= 2
    (tmp_path / "report.h5").symlink_to(any_report)
    for example in examples:
        lines = textwrap.dedent(example)
        command = [sys.executable, "-W", "error::UserWarning", "-c", lines]
        done = subprocess.run(command, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{lines}\n{done.stderr}"
        assert done.stdout.strip()
