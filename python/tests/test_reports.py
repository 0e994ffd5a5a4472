"""Reading reports, and refusing what is none in one sentence."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from splash_attention import ReportError, open_report, recorded_report
from splash_attention.reports import _dataset, _dataset_by_hand


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


def test_both_ways_of_reading_agree(any_report: Path) -> None:
    for group in ("results", "claims"):
        through, by_hand = _dataset(any_report, group), _dataset_by_hand(any_report, group)
        assert dict(through.sizes) == dict(by_hand.sizes)
        assert set(through.variables) == set(by_hand.variables)
        for name in through.data_vars:
            assert through[name].dims == by_hand[name].dims
            np.testing.assert_array_equal(through[name].values, by_hand[name].values)


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


def test_the_recorded_report(sample_report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPLASH_REPORT", str(sample_report))
    assert recorded_report().path == sample_report
    monkeypatch.delenv("SPLASH_REPORT")
    with pytest.raises(ReportError, match="splash reproduce"):
        recorded_report(tmp_path)
