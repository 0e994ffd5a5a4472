"""The reports of data/reports say what is so: labels, storage, and that nothing measured was changed after the run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest

from measured import fingerprint, recorded
from splash_laboratory.reports import Report, open_report
from test_self_describing import every_dataset, text_of

FOLDER = Path(__file__).resolve().parents[2] / "data" / "reports"
SHIPPED = sorted(FOLDER.glob("*.h5"))
NAMES = [path.stem for path in SHIPPED]


@pytest.fixture(params=SHIPPED, ids=NAMES)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_what_was_measured_is_as_it_was_recorded(path: Path) -> None:
    assert fingerprint(path) == recorded(FOLDER / "measured.sha256")[path.name], "see python/tests/measured.py"


def test_every_report_is_held_by_its_fingerprint() -> None:
    assert sorted(recorded(FOLDER / "measured.sha256")) == sorted(path.name for path in SHIPPED)


def filters_of(data: h5py.Dataset) -> int:
    return data.id.get_create_plist().get_nfilters()


def vlen_texts(path: Path) -> list[str]:
    """Texts of variable length that pass through a filter."""
    with h5py.File(path) as file:
        return [
            data.name
            for data in every_dataset(file)
            if (held := h5py.check_string_dtype(data.dtype)) and held.length is None and filters_of(data) > 0
        ]


def test_no_text_passes_through_a_filter(path: Path) -> None:
    assert vlen_texts(path) == []


def test_no_text_of_a_new_report_passes_through_a_filter(real_report: Path) -> None:
    assert vlen_texts(real_report) == []


@pytest.fixture(scope="module")
def nccopy() -> str:
    found = shutil.which("nccopy")
    if not found:
        pytest.skip(
            "there is no nccopy here (Debian and Ubuntu: netcdf-bin): that netCDF's tools copy reports is not tested"
        )
    return found


def test_netcdf_copies_it(path: Path, nccopy: str, tmp_path: Path) -> None:
    copied(path, nccopy, tmp_path)


def test_netcdf_copies_a_new_report(real_report: Path, nccopy: str, tmp_path: Path) -> None:
    copied(real_report, nccopy, tmp_path)


def copied(path: Path, nccopy: str, folder: Path) -> None:
    copy = folder / "copy.h5"
    done = subprocess.run([nccopy, path, copy], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    with h5py.File(path) as before, h5py.File(copy) as after:
        for data in every_dataset(before):
            if data.dtype.kind == "f":
                assert np.array_equal(data[()], after[data.name][()], equal_nan=True), data.name
            elif h5py.check_string_dtype(data.dtype) and data.shape:
                assert list(data.asstr()[()]) == list(after[data.name].asstr()[()]), data.name


def test_what_is_missing_has_a_reason(path: Path) -> None:
    with h5py.File(path) as file:
        for data in every_dataset(file):
            texts = h5py.check_string_dtype(data.dtype) and data.attrs.get("role") == "parameter"
            missing = (data[()] == b"").any() if texts else data.dtype.kind == "f" and np.isnan(data[()]).any()
            assert not missing or text_of(data.attrs.get("missing_reason", "")).strip(), data.name


def rows(report: Report, **where: object) -> np.ndarray:
    """Whether each case has these values; no case where the report lacks a column."""
    held = np.ones(report.results.sizes.get("case", 0), bool)
    for name, value in where.items():
        held &= report.results[name].values == value if name in report.results else False
    return held


def test_captured_inputs_are_recorded_as_they_are(path: Path) -> None:
    """Not with the length, the head dimension or the draws that synthetic ones would have had."""
    results = open_report(path).results
    captured = rows(open_report(path), input="minilm")
    for name, expected in {"length": 512, "head_dim": 32}.items():
        if name in results:
            assert (results[name].values[captured] == expected).all()
    captured |= rows(open_report(path), input="gpl-3") | rows(open_report(path), input="gfdl-1.3")
    if "query_variance" in results:
        assert np.isnan(results["query_variance"].values[captured]).all()
        drawn = rows(open_report(path), input="gaussian")
        assert np.isfinite(results["query_variance"].values[drawn]).all()


def test_the_dense_peers_are_recorded_as_softmax(path: Path) -> None:
    report = open_report(path)
    if "normalizer" not in report.results:
        return
    for name in ("torch-cudnn", "torch-flash", "torch-efficient", "torch-math", "torch-math-tf32"):
        of_peer = rows(report, implementation=name)
        assert (report.results["normalizer"].values[of_peer] == "softmax").all()
        assert (report.results["selection"].values[of_peer] == "all").all()
        assert np.isnan(report.results["alpha"].values[of_peer]).all()


def test_counters_name_functions(path: Path) -> None:
    results = open_report(path).results
    if "kernel_counter" not in results:
        return
    named = [name for name in results["kernel_counter"].values if name]
    assert len(named) == {"ladders-h100": 201, "ladders-h200": 59}[path.stem]
    assert all(name.isidentifier() for name in named), named


@pytest.mark.parametrize("name", ["flagship-h200", "ladders-h200", "papers-h200"])
def test_the_history_tells_of_the_migration(name: str) -> None:
    assert "splash migrate" in str(open_report(FOLDER / f"{name}.h5").attributes["history"])
