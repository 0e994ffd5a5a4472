"""The kind gpu-kascade on a CPU: the quick profile of experiments/kascade."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable
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
    assert len(versions) == 18
    for name, q_len, kept, differing, error, seconds, version in zip(*column.values(), versions, strict=True):
        in_8_bits = name.endswith(b"-8-bits")
        if in_8_bits and q_len > 1:
            assert version == "not run: keys in 8 bits are for steps of decoding: a key head has at most 32 rows" and math.isnan(seconds)
            continue
        assert version.startswith("torch ") and seconds > 0
        if name.startswith(b"softmax-"):
            assert math.isnan(kept) and math.isnan(differing) and math.isnan(error)
        elif name.startswith(b"entmax"):
            assert math.isnan(kept) and math.isnan(differing) and error < 1e-5
        else:  # of 300 keys a tile keeps 128, or all that it sees
            assert kept == (128 if q_len == 1 else pytest.approx((32 + 64 + 96 + 7 * 128) / 10))
            assert differing <= (8 if in_8_bits else 2) and error < 1e-5


@pytest.mark.parametrize("implementation", ["softmax-cudnn", "softmax-layers", "kascade-anchor", "kascade-reuse", "kascade-layers", "kascade-layers-8-bits"])
def test_a_time_is_that_of_one_layer(monkeypatch: pytest.MonkeyPatch, implementation: str) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
    pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
    monkeypatch.syspath_prepend(str(ROOT / "experiments/peers"))
    import torch
    import torch_kascade
    from splash_attention.kascade import attention

    counted = {"attend_to": 0, "tile_keys": 0, "dense": 0}

    def counting(where: object, name: str, as_: str) -> None:
        inner = getattr(where, name)

        def call(*given: object, **named: object) -> object:
            counted[as_] += 1
            return inner(*given, **named)

        monkeypatch.setattr(where, name, call)

    counting(attention, "attend_to", "attend_to")
    counting(attention, "tile_keys", "tile_keys")
    counting(torch.nn.functional, "scaled_dot_product_attention", "dense")

    def samples(call: Callable[[], object], job: object, device: object, cold: bool) -> list[float]:
        counted.update(dict.fromkeys(counted, 0))
        call()
        assert cold == ("-layers" not in implementation)
        return [6.0]

    monkeypatch.setattr(torch_kascade, "samples", samples)
    in_8_bits = implementation.endswith("-8-bits")
    sizes = {"batch": 1, "heads": 4, "kv_heads": 2, "head_dim": 16, "q_len": 1 if in_8_bits else 40, "kv_len": 40}
    job = {"implementation": implementation, "dtype": "float32", "device": "cpu", "temperature": 2.0, "seed": 1, "share": 0.1, "least_keys": 8}
    done = torch_kascade.answer(job | sizes | {"layers": 6, "anchors": 2})
    layers = 6 if "-layers" in implementation else 1
    assert done["seconds"] == [6.0 / layers]
    if implementation.startswith("kascade-layers"):  # layer 0 is dense and finds keys; on a CPU attend_to is fused attention too
        assert (counted["tile_keys"], counted["attend_to"]) == (2, 5)
    elif implementation.startswith("softmax-"):
        assert counted == {"attend_to": 0, "tile_keys": 0, "dense": layers}


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
