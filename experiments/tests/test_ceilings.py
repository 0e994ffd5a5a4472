"""splash ceilings: a table, JSON and a report, of the GPU; without one, or with --cpu, of the processor."""

from __future__ import annotations

import pytest

from conftest import Splash


def has_gpu(splash: Splash) -> bool:
    return next(finding["ok"] for finding in splash.json("doctor") if finding["name"] == "GPU")


def test_a_device_that_is_not_there_is_refused(splash: Splash):
    if has_gpu(splash):
        pytest.skip("this machine has a GPU")
    for words in (("--device", "0"), ("--device", "1", "--json"), ("--device", "0", "--out", "report.h5")):
        assert "no CUDA device: " in splash.refused("ceilings", *words, code=3)
    assert not (splash.folder / "report.h5").exists()


def test_refusals(splash: Splash):
    assert "--device" in splash.refused("ceilings", "--device", "x")
    assert "did not expect" in splash.refused("ceilings", "all")
    assert "--device" in splash.refused("ceilings", "--cpu", "--device", "0")
    assert "device -1 is not there" in splash.refused("ceilings", "--device=-1", code=3) or not has_gpu(splash)


def test_of_the_processor(splash: Splash):
    measured = splash.json("ceilings", "--cpu", "--out", "report.h5")
    named = {(c["name"], c["dtype"]): c for c in measured["ceilings"]}
    assert measured["device"] and all(name.startswith("cpu ") for name, _ in named)
    single, double = named["cpu fma", "float32"], named["cpu fma", "float64"]
    assert single["units"] == "FLOP/s" and 1e9 < single["measured"] < 1e15
    assert 1.5 < single["measured"] / double["measured"] < 2.7  # float32 has twice as many lanes
    for name in ("cpu dram read", "cpu dram copy"):
        assert named[name, ""]["units"] == "bytes/s" and named[name, ""]["measured"] > 1e8
    # Nearer caches are faster. A cache whose size the system does not tell is not measured.
    cache = named["cpu l2 read", ""]["measured"]
    assert cache is None or cache > named["cpu dram read", ""]["measured"]
    assert all(c["low"] <= c["measured"] == c["high"] for c in named.values() if c["measured"] is not None)
    assert "Ceilings of" in splash("show", "report.h5").stdout


def test_without_a_device_they_are_the_processors(splash: Splash):
    if has_gpu(splash):
        pytest.skip("this machine has a GPU")
    done = splash("ceilings")
    assert "no CUDA device" in done.stderr and "cpu fma" in done.stdout and "GFLOP/s" in done.stdout


def test_with_a_device(splash: Splash):
    if not has_gpu(splash):
        pytest.skip("no GPU")
    measured = splash.json("ceilings", "--out", "report.h5")
    named = {(c["name"], c["dtype"]): c for c in measured["ceilings"]}
    assert named["dram copy", ""]["units"] == "bytes/s"
    assert all(c["low"] <= c["measured"] <= c["high"] for c in named.values() if c["measured"] is not None)
    assert "tensor" in splash("ceilings").stdout
    assert "Ceilings of" in splash("show", "report.h5").stdout
