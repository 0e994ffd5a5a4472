"""The kind gpu-kascade on a CPU: the quick profile of experiments/kascade."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import h5py
import pytest

from conftest import ROOT, Splash

DEFINITION = ROOT / "experiments/kascade/layers.toml"


def test_a_report_holds_times_lists_and_errors(program: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:  # an import takes seconds
        pytest.skip("PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
    pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
    splash = Splash(program, tmp_path)
    done = splash("run", str(DEFINITION), "--quick", "--out", "out.h5", env={"SPLASH_PEER_PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr
    assert "the check holds" in done.stdout
    with h5py.File(tmp_path / "out.h5") as file:
        results = file["results"]
        column = {name: results[name][:].tolist() for name in ("implementation", "q_len", "keys_kept", "differing_keys", "relative_error", "time_median")}
        versions = results["version"].asstr()[:]
    assert len(versions) == 10 and all(one.startswith("torch ") for one in versions) and min(column["time_median"]) > 0
    for name, q_len, kept, differing, error in zip(*list(column.values())[:5], strict=True):
        if name.startswith(b"softmax-"):
            assert math.isnan(kept) and math.isnan(differing) and math.isnan(error)
        else:  # of 300 keys a tile keeps 128, or all that it sees
            assert kept == (128 if q_len == 1 else pytest.approx((32 + 64 + 96 + 7 * 128) / 10))
            assert differing <= 2 and error < 1e-5


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("heads=30", "heads is 30; it must be a multiple of kv_heads"),
        ("q_len=200000", "q_len is 200000; it must be at most kv_len"),
        ("anchors=33", "anchors is 33; it must be at most the layers"),
        ("share=0", "share is 0; it must be above 0 and at most 1"),
        ("temperature=0", "temperature is 0; it must be above 0"),
        ("implementation=kascade-layer", "did you mean 'kascade-layers'?"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_case(splash: Splash, setting: str, sentence: str) -> None:
    assert sentence in splash.refused("run", str(DEFINITION), "--set", setting)
