"""The command that captures a language model: the same tensors as the hook's, of the model before and after conversion."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import h5py
import pytest

from tiny_llama import llama, one_thread, torch, write_gguf, write_texts  # noqa: F401

from splash_attention import capture, read_capture, splash_attention
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
    write_texts(tmp_path / "texts")
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
        assert "entmax" in after.attrs["method"]
        assert json.loads(after.attrs["converted"])["sha256"] == hashlib.sha256((tmp_path / "run/adapter.safetensors").read_bytes()).hexdigest()
    measured_by_the_program(tmp_path / "after.h5")


def measured_by_the_program(capture_file):
    """Each experiment on a decoder's heads takes the file in the shipped decoder's place, and finds what the module finds."""
    program = os.environ.get("SPLASH_BIN")
    if not program:
        return
    out = capture_file.with_suffix(".out.h5")
    chosen = ["--set", f"input={capture_file.name}", "--set", "layer=1", "--set", "head=3", "--quick", "--out", str(out)]
    for definition in sorted(Path(__file__).parents[3].glob("experiments/definitions/*-decoder.toml")):
        given = [*chosen, "--set", "rows=8"] if definition.name.startswith("solvers") else chosen
        done = subprocess.run([program, "run", str(definition), *given], cwd=capture_file.parent, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        if definition.name.startswith("sparsity"):
            q, k, v, scale, causal = read_capture(capture_file, layer=1)
            _, aux = splash_attention(q, k, v, alpha=1.5, scale=scale, causal=causal, return_aux=True)
            with h5py.File(out) as report:
                assert report["results/support_mean"][()].tolist() == pytest.approx([aux.support[0, 3].float().mean().item()])


def test_a_capture_is_of_the_model_with_its_method(given, tmp_path):
    """Layer 0's inputs are the model's own; layer 1's are of what the method made of layer 0."""
    for name, words in (("own", []), ("sparse", ["--method", "entmax:alpha=2,factor=0.5"])):
        assert main(["capture", *given, *SIZED, *words, "--out", str(tmp_path / f"{name}.h5")]) == 0
    with h5py.File(tmp_path / "own.h5") as own, h5py.File(tmp_path / "sparse.h5") as sparse:
        same = own["call-0/q"][()] == sparse["call-0/q"][()]
        assert same[0].all() and not same[1].all()
        assert json.loads(sparse.attrs["method"])["default"]["alpha"] == 2 and "method" not in own.attrs


def test_what_does_not_fit_is_one_sentence(given, tmp_path, capsys):
    out = ["--out", str(tmp_path / "x.h5")]
    for words, said in (
        (["--heads", "2"], "heads is [2]; the model has the key heads 0 to 1"),
        (["--queries", "0"], "queries is 0; it must be at least 1, or None"),
        (["--stored", "bfloat16"], 'dtype is \'bfloat16\'; allowed are "float32" and "float16"'),
        (["--layers", "7"], "no layer was captured"),
        (["--method", "entmax:beta=1"], "'beta=1' of 'entmax:beta=1' is no setting"),
        (["--converted", given[2]], "is no safetensors file"),
    ):
        assert main(["capture", *given, *SIZED, *words, *out]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "x.h5").exists()
