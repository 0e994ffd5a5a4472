"""The command that captures a language model: the same tensors as the hook's, of the model before and after conversion."""

from __future__ import annotations

import json

import h5py
import pytest

from tiny_llama import llama, one_thread, torch, write_gguf  # noqa: F401

from splash_attention import capture
from splash_attention.language import load_model
from splash_attention.language.texts import read_tokens

pytest.importorskip("gguf", reason="the package gguf is not installed; ./splash test installs it")
from splash_attention.language.command_line import main  # noqa: E402

SIZED = ["--window", "40", "--windows", "2", "--device", "cpu"]
WINDOWS = {"part": "held_out", "length": 40, "count": 2}


@pytest.fixture
def given(tmp_path, monkeypatch):
    """Words that name a model and a text."""
    monkeypatch.setenv("SPLASH_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "tiny.gguf", llama())
    (tmp_path / "texts").mkdir()
    for at in range(99):
        (tmp_path / "texts" / f"{at}.txt").write_text(f"the document of the number {at}\n" * 4)
    model = str(tmp_path / "tiny.gguf")
    assert main(["texts", model, "--text", str(tmp_path / "texts"), "--most", "500", "--out", str(tmp_path / "tokens.npz")]) == 0
    return [model, "--text", str(tmp_path / "tokens.npz")]


def test_a_capture_by_the_command_equals_one_through_the_hook(given, tmp_path):
    assert main(["capture", *given, *SIZED, "--layers", "1", "--heads", "1", "--queries", "8", "--out", str(tmp_path / "ours.h5")]) == 0
    model = load_model(given[0]).model
    with torch.no_grad(), capture(model, tmp_path / "hook.h5"):
        for window in read_tokens(given[2]).windows("held_out", 40, 2):
            model(window[None])
    with h5py.File(tmp_path / "ours.h5") as ours, h5py.File(tmp_path / "hook.h5") as hook:
        assert ours["layer"][()].tolist() == [1] and ours["kv_head"][()].tolist() == [1]
        for call in ("call-0", "call-1"):
            assert (ours[call]["q"][()] == hook[call]["q"][1:, :, 2:, -8:]).all()
            for name in "kv":
                assert (ours[call][name][()] == hook[call][name][1:, :, 1:]).all()
            assert (ours[call]["token_id"][()] == hook[call]["token_id"][()]).all()
            assert ours[call].attrs["causal"] and ours[call]["scale"][()] == 0.25
        assert json.loads(ours.attrs["model"])["quantisation"] == "Q4_1 weights"
        assert json.loads(ours.attrs["text"])["sources"][0]["source"] == "texts" and json.loads(ours.attrs["windows"]) == WINDOWS


def test_the_cache_holds_each_choice_once(given, capsys):
    def made(*words):
        assert main(["capture", *given, *SIZED, *words]) == 0
        return capsys.readouterr().out.splitlines()[-1]

    first = made("--heads", "0")
    with open(first, "rb") as file:
        before = file.read()
    assert made("--heads", "0") == first
    with open(first, "rb") as file:
        assert file.read() == before, "made once"
    assert made("--heads", "1") != first


def test_a_converted_model_is_captured_with_its_method(given, tmp_path):
    trained = ["--window", "32", "--batch", "1", "--steps", "2", "--rank", "2", "--device", "cpu"]
    assert main(["convert", *given, *trained, "--out", str(tmp_path / "run")]) == 0
    adapter = ["--converted", str(tmp_path / "run/adapter.safetensors")]
    assert main(["capture", *given, *SIZED, *adapter, "--out", str(tmp_path / "after.h5")]) == 0
    assert main(["capture", *given, *SIZED, "--out", str(tmp_path / "before.h5")]) == 0
    with h5py.File(tmp_path / "after.h5") as after, h5py.File(tmp_path / "before.h5") as before:
        assert (after["call-0/q"][()] != before["call-0/q"][()]).any()
        assert "entmax" in after.attrs["method"] and len(json.loads(after.attrs["converted"])["sha256"]) == 64


def test_what_does_not_fit_is_one_sentence(given, tmp_path, capsys):
    out = ["--out", str(tmp_path / "x.h5")]
    for words, said in (
        (["--heads", "2"], "heads is [2]; the model has the key heads 0 to 1"),
        (["--queries", "0"], "queries is 0; it must be at least 1, or None"),
        (["--stored", "bfloat16"], 'dtype is \'bfloat16\'; allowed are "float32" and "float16"'),
        (["--layers", "7"], "no layer was captured"),
    ):
        assert main(["capture", *given, *SIZED, *words, *out]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "x.h5").exists()
