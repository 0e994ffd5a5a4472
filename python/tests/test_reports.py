"""Reading reports, and refusing what is none in one sentence."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr

from splash_laboratory import ReportError, open_report, recorded_report
from splash_attention.files.seal import MARKER, Seal, check_seal, fnv1a, seal
from splash_laboratory.report_writer import Table, write_report

REPORTS = Path(__file__).resolve().parents[2] / "data" / "reports"


def test_a_report_as_datasets(any_report: Path) -> None:
    report = open_report(any_report)
    assert report.results.sizes["case"] > 0
    assert report.results["nmse_vs_entmax"].dims == ("case",)
    assert report.results["nmse_vs_entmax"].attrs["units"] == "1"
    assert report.results["support_quantile"].dims == ("case", "quantile")
    assert isinstance(report.provenance["commit"], str)
    assert isinstance(report.provenance["seed"], int)
    assert "xarray" in report.readme


def test_one_experiment_without_its_missing_columns(sample_report: Path) -> None:
    report = open_report(sample_report)
    assert "iterations_mean" in report.results
    accuracy = report.experiment("accuracy")
    assert "iterations_mean" not in accuracy
    assert set(accuracy["experiment"].values) == {"accuracy"}
    assert "solver" not in accuracy


def test_exact_selection_has_no_error(any_report: Path) -> None:
    """The numbers mean what they say: all keys kept is exact entmax."""
    accuracy = open_report(any_report).experiment("accuracy")
    everything = accuracy["scope"].values == "all"
    assert everything.any()
    assert np.nanmax(accuracy["nmse_vs_entmax"].values[everything]) < 1e-20
    assert (accuracy["nmse_vs_entmax"].values[~everything] >= 0).all()


def test_an_unknown_experiment_names_those_there_are(sample_report: Path) -> None:
    with pytest.raises(ReportError, match="no experiment 'acuracy'.*accuracy"):
        open_report(sample_report).experiment("acuracy")


def test_attachments_carry_their_tokens(sample_report: Path) -> None:
    maps = next(iter(open_report(sample_report).attachments.values()))
    assert maps["entmax"].dims == ("query", "key")
    assert maps["key"].values.dtype.kind in "OUT"
    assert np.allclose(maps["entmax"].sum("key"), 1)


def test_xarray_reads_the_same(any_report: Path) -> None:
    report = open_report(any_report)
    for group, ours in (("results", report.results), ("claims", report.claims)):
        with xr.open_dataset(any_report, group=group, engine="h5netcdf") as theirs:
            assert dict(theirs.sizes) == dict(ours.sizes)
            assert set(theirs.variables) == set(ours.variables)
            for name in theirs.data_vars:
                assert theirs[name].dims == ours[name].dims
                np.testing.assert_array_equal(theirs[name].values, ours[name].values)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_text("name,value\n" * 200), "is not an HDF5 file"),
        (lambda path: h5py.File(path, "w").close(), "HDF5, but not a report"),
    ],
)
def test_what_is_no_report(tmp_path: Path, make, words: str) -> None:
    path = tmp_path / "report.h5"
    make(path)
    with pytest.raises(ReportError, match=words) as refused:
        open_report(path)
    assert "\n" not in str(refused.value)


def test_a_report_of_another_schema(sample_report: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.h5"
    other.write_bytes(sample_report.read_bytes())
    with h5py.File(other, "r+") as file:
        file.attrs["schema_version"] = 7
    with pytest.raises(ReportError, match="other.h5: is a report of schema 7, this package reads schema 1$"):
        open_report(other)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.99])
def test_a_truncated_report(sample_report: Path, tmp_path: Path, share: float) -> None:
    whole = sample_report.read_bytes()
    cut = tmp_path / "cut.h5"
    cut.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ReportError, match="is truncated"):
        open_report(cut)


def test_a_flipped_bit_is_damage(tmp_path: Path) -> None:
    """Every shipped report has its line, and one flipped bit anywhere is told."""
    path = tmp_path / "flipped.h5"
    for shipped in sorted(REPORTS.glob("*.h5")):
        whole = shipped.read_bytes()
        assert check_seal(whole) is Seal.INTACT, shipped
    whole = (REPORTS / "ceilings-h200.h5").read_bytes()
    for at in range(0, len(whole) - len(MARKER) - 18, 2003):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with pytest.raises(ReportError, match="flipped.h5: is damaged, its checksum does not match its content$"):
            open_report(path)
    for missing in (1, 20, 35):
        path.write_bytes(whole[:-missing])
        with pytest.raises(ReportError, match="is truncated, its last line is not whole$"):
            open_report(path)


def test_the_checksum_is_fnv1a() -> None:
    def byte_by_byte(content: bytes) -> int:
        value = 0xCBF29CE484222325
        for byte in content:
            value = (value ^ byte) * 0x100000001B3 % 2**64
        return value

    random = np.random.default_rng(4)
    assert fnv1a(b"foobar") == 0x85944171F73967E8  # of the authors' test suite
    for size in (0, 1, 65535, 65536, 65537, 150000):
        content = random.bytes(size)
        assert fnv1a(content) == byte_by_byte(content), size


def test_a_report_written_here_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "made.h5"
    table = Table("results", "case", {"n": ("1", "a number", "given")})
    table.add(n=1.0)
    write_report(path, "made", "nothing", [table], {}, {"commit": "none"})
    assert check_seal(path.read_bytes()) is Seal.INTACT
    assert open_report(path).results["n"].values.tolist() == [1.0]
    with h5py.File(path, "r+") as file:
        file.attrs["title"] = "changed"
    assert check_seal(path.read_bytes()) is Seal.ABSENT
    assert open_report(path).title == "changed"
    seal(path)
    assert check_seal(path.read_bytes()) is Seal.INTACT
    assert open_report(path).title == "changed"


def test_the_recorded_report(sample_report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPLASH_REPORT", str(sample_report))
    assert recorded_report().path == sample_report
    monkeypatch.delenv("SPLASH_REPORT")
    with pytest.raises(ReportError, match="splash reproduce"):
        recorded_report(tmp_path)
