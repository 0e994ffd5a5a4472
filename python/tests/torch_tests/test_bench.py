"""python -m splash_laboratory.bench, on a small problem."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_laboratory import bench, open_report  # noqa: E402

SMALL = ["--device", "cpu", "--shape", "1,2,1,40,50,16", "--samples", "5", "--causal"]


@pytest.mark.parametrize("backward", [[], ["--backward"]])
def test_a_run_writes_a_report(backward: list[str], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "bench.h5"
    assert bench.main([*SMALL, *backward, "--out", str(path)]) == 0
    said = capsys.readouterr().out
    results = open_report(path).results
    names = [str(name) for name in results["implementation"].values]
    assert {"splash", "torch-math"} <= set(names) and all(name in said for name in names)
    times = results["time"].values
    assert times.shape == (len(names), 5) and (times > 0).all()
    np.testing.assert_allclose(results["time_median"].values, np.median(times, axis=1))
    assert (results["time_low"] <= results["time_median"]).all() and (results["time_median"] <= results["time_high"]).all()
    errors = dict(zip(names, results["nmse"].values))
    assert errors["splash"] < 1e-10 and np.isnan(errors["torch-math"])
    assert errors.get("entmax", 0) < 1e-8
    assert set(results["pass"].values) == {"forward+backward" if backward else "forward"}


def test_bad_words_end_with_code_2(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stopped:
        bench.main(["--shape", "1,2,3"])
    assert stopped.value.code == 2
    assert bench.main([*SMALL, "--only", "nobody"]) == 2
    assert "no implementation could be measured" in capsys.readouterr().err
