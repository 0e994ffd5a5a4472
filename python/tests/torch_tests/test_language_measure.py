"""Perplexity, supports, divergence, tuning, and their command line, on a small random Llama."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tiny_llama import llama, one_thread, torch, windows, write_gguf, write_texts  # noqa: F401

from splash_attention.language import Attention, Method, compare, measure_curves, perplexity, tune
from splash_attention.language import measure
from splash_attention.language.attention import applied, observed
from splash_attention.language.intervals import mean_interval, student_quantile


def test_nll_is_cross_entropy_of_the_models_logits(monkeypatch):
    monkeypatch.setattr(measure, "_LOGITS", 7 * 320)  # seven rows at once
    model, ids = llama(), windows()
    measured = perplexity(model, ids)
    with torch.inference_mode():
        wanted = [torch.nn.functional.cross_entropy(model(one[None]).logits[0, :-1], one[1:]).item() for one in ids]
    assert measured.nll == pytest.approx(wanted, abs=1e-5)
    assert measured.perplexity == pytest.approx(math.exp(np.mean(wanted)), rel=1e-5)
    assert (measured.support_mean == 20.5).all() and (measured.nmse == 0).all()


def test_supports_and_divergence_are_those_of_the_calls():
    model, ids, calls = llama(), windows(), []
    method = Method(Attention("entmax", alpha=1.5))
    with torch.inference_mode(), applied(model, method), observed(calls.append):
        for one in ids[:2]:
            model(one[None], use_cache=False)
    measured = perplexity(model, ids, method, looked_at=2)
    for layer in (0, 1):
        own = [call for call in calls if call.layer == layer]
        rows = torch.cat([call.support[0] for call in own], 1).numpy()
        assert measured.support_mean[layer] == pytest.approx(rows.mean(1))
        assert measured.support_p95[layer] == pytest.approx(np.quantile(rows, 0.95, 1))
        error = sum((call.out - call.softmax()).square().sum((0, 2, 3)) for call in own)
        size = sum(call.softmax().square().sum((0, 2, 3)) for call in own)
        assert measured.nmse[layer] == pytest.approx((error / size).numpy(), rel=1e-4)
        assert measured.layer_nmse[layer] == pytest.approx((error.sum() / size.sum()).item(), rel=1e-4)
    assert measured.nmse.min() > 0 and measured.support()["largest"] == measured.support_mean.max()


def test_differences_are_paired_by_window():
    model, ids = llama(), windows()
    measured, baseline = compare(model, ids, [Method(Attention("entmax", alpha=1.5)), Method()])
    assert measured[0] is baseline and len(measured) == 2  # softmax is not measured twice
    differences = [a - b for a, b in zip(measured[1].nll, baseline.nll)]
    mean, low, high = measured[1].difference(baseline)
    assert mean == pytest.approx(np.mean(differences))
    assert (high - low) / 2 == pytest.approx(4.302653 * np.std(differences, ddof=1) / math.sqrt(3), rel=1e-5)
    assert measured[1].as_dict(baseline)["nll_less_softmax"]["interval"] == [low, high]


@pytest.mark.parametrize("degrees, quantile", [(1, 12.7062047), (2, 4.3026527), (7, 2.3646243), (63, 1.9983405)])
def test_students_quantiles_are_those_of_the_tables(degrees, quantile):
    assert student_quantile(0.975, degrees) == pytest.approx(quantile, rel=1e-6)
    assert math.isnan(mean_interval([1.0])[1])


def test_tuning_stays_within_its_budget_and_beats_one_setting_for_all():
    model, ids = llama(), windows()
    curves = measure_curves(model, ids)
    assert curves.error.shape == curves.support.shape == (2, 4, len(curves.candidates))
    for at in range(len(curves.candidates)):
        _, facts = curves.choose(curves.support[:, :, at].mean())
        assert facts["mean_support"] <= curves.support[:, :, at].mean() + 1e-9
    # Whatever one setting for all heads reaches, the choice of each head reaches with no more keys and no more error.
    errors = [curves.choose(curves.support[:, :, at].mean())[1]["error"] for at in range(len(curves.candidates))]
    assert all(error <= 1.25 * own for error, own in zip(errors, curves.error.sum((0, 1))))
    least, most = curves.support.min(2).mean(), np.take_along_axis(curves.support, curves.error.argmin(2)[..., None], 2).mean()
    errors = [curves.choose(least + share * (most - least))[1]["error"] for share in (0.1, 0.5, 1.0)]
    assert errors[0] > errors[1] > errors[2] == pytest.approx(curves.error.min(2).sum())
    with pytest.raises(ValueError, match="budget is 0.5 keys a query; these candidates use at least"):
        curves.choose(0.5)


def test_curves_are_those_of_the_residual_stream():
    """One head alone gets a candidate: the stream behind layer 0 moves by what the curve says."""
    model, ids, one = llama(), windows(1), Attention("entmax", alpha=1.5, factor=0.5)
    curves = measure_curves(model, ids, [one])
    soft = llama()
    with torch.inference_mode(), applied(soft, Method()):
        calls = []
        with observed(calls.append):
            before = soft.model(ids, use_cache=False, output_hidden_states=True).hidden_states[0][0]
    with torch.inference_mode():
        entmax_calls = []
        with applied(model, Method(one)), observed(entmax_calls.append):
            model(ids, use_cache=False)
        for head in range(4):
            change = torch.zeros_like(calls[0].out)
            change[:, head] = (entmax_calls[0].out - calls[0].out)[:, head]
            moved = model.model.layers[0].self_attn.o_proj(change.transpose(1, 2).flatten(2))[0]
            assert curves.error[0, head, 0] == pytest.approx((moved.square().sum(1) / before.square().sum(1)).mean().item(), rel=1e-3)
    assert curves.support[0, :, 0] == pytest.approx(entmax_calls[0].support[0].float().mean(1).numpy(), rel=1e-3)


def test_k_keep_is_tuned_the_same_way():
    tried = [Attention("entmax", alpha=1.25, factor=f, k_keep=keep) for f in (0.3, 0.6) for keep in (None, 2, 6)]
    method = tune(llama(), windows(), budget=4, tried=tried)
    assert any(any(of.k_keep or ()) for of in method.layers.values())
    assert perplexity(llama(), windows(), method, looked_at=3).support_mean.mean() == pytest.approx(4, rel=0.2)


def test_windows_of_another_shape_are_told():
    with pytest.raises(ValueError, match=r"windows has shape \[3\]"):
        perplexity(llama(), torch.arange(3))


def test_the_command_line(tmp_path, capsys, monkeypatch):
    pytest.importorskip("gguf", reason="the package gguf is not installed; ./splash test installs it")
    from splash_attention.language.command_line import main

    monkeypatch.setenv("SPLASH_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "tiny.gguf", llama())
    write_texts(tmp_path / "texts")
    model, sized = str(tmp_path / "tiny.gguf"), ["--window", "40", "--windows", "2", "--device", "cpu"]
    assert main(["texts", model, "--text", str(tmp_path / "texts"), "--most", "500", "--out", str(tmp_path / "tokens.npz")]) == 0
    text = ["--text", str(tmp_path / "tokens.npz")]
    assert main(["tune", model, *text, *sized, "--budget", "8", "--out", str(tmp_path / "tuned.json")]) == 0
    assert Method.read(tmp_path / "tuned.json").made_by["windows"] == {"part": "development", "length": 40, "count": 2}
    trained = ["--window", "32", "--batch", "1", "--steps", "2", "--rank", "2", "--device", "cpu"]
    assert main(["convert", model, *text, *trained, "--out", str(tmp_path / "run")]) == 0
    asked = ["--methods", "entmax:alpha=1.5", str(tmp_path / "tuned.json"), "--converted", str(tmp_path / "run/adapter.safetensors")]
    assert main(["perplexity", model, *text, *sized, *asked, "--out", str(tmp_path / "out.json")]) == 0
    held = json.loads((tmp_path / "out.json").read_text())
    assert [one["title"] for one in held["methods"]] == ["softmax", "entmax:alpha=1.5", "tuned to 8 keys", "converted: run"]
    assert held["model"]["quantisation"] == "Q4_1 weights"
    assert held["text"]["sources"] == [{"source": "texts", "documents": 99, "left_out_as_no_prose": 0}]
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("entmax:alpha=1.5 ") for line in lines)
    found = {}
    for stretch in ([], ["--stretch"]):
        words = ["--window", "200", "--windows", "1", "--device", "cpu", *asked, *stretch, "--out", str(tmp_path / "long.json")]
        assert main(["perplexity", model, *text, *words]) == 0
        long = json.loads((tmp_path / "long.json").read_text())
        assert long["windows"].get("stretched", False) == bool(stretch)
        found[bool(stretch)] = [one["perplexity"] for one in long["methods"]]
    assert all(a != b for a, b in zip(found[False], found[True]))
    capsys.readouterr()
    assert main(["perplexity", "nothing", *text]) == 2
    assert capsys.readouterr().err.startswith("error: nothing is no file, no folder and no package")
