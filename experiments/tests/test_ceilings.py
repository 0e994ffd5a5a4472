"""splash ceilings: without a device one sentence and exit code 3; with one a table, JSON and a report."""

from __future__ import annotations

import pytest

from conftest import Splash


def has_gpu(splash: Splash) -> bool:
    return next(finding["ok"] for finding in splash.json("doctor") if finding["name"] == "GPU")


def test_without_a_device(splash: Splash):
    if has_gpu(splash):
        pytest.skip("this machine has a GPU")
    for words in ((), ("--json",), ("--device", "1"), ("--out", "report.h5")):
        assert "no CUDA device: " in splash.refused("ceilings", *words, code=3)
    assert not (splash.folder / "report.h5").exists()


def test_refusals(splash: Splash):
    assert "--device" in splash.refused("ceilings", "--device", "x")
    assert "did not expect" in splash.refused("ceilings", "all")
    assert "device -1 is not there" in splash.refused("ceilings", "--device=-1", code=3) or not has_gpu(splash)


def test_with_a_device(splash: Splash):
    if not has_gpu(splash):
        pytest.skip("no GPU")
    measured = splash.json("ceilings", "--out", "report.h5")
    named = {(c["name"], c["dtype"]): c for c in measured["ceilings"]}
    assert named["dram copy", ""]["units"] == "bytes/s"
    assert all(c["low"] <= c["measured"] <= c["high"] for c in named.values() if c["measured"] is not None)
    assert "tensor" in splash("ceilings").stdout
    assert "Ceilings of" in splash("show", "report.h5").stdout
