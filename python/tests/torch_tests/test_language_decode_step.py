"""The command that times a step of decoding, in its quick form on a small random Llama."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tiny_llama import llama, model_and_texts, one_thread, torch  # noqa: F401

pytest.importorskip("gguf", reason="the package gguf is not installed; ./splash test installs it")
from splash_attention import _core  # noqa: E402
from splash_attention.hugging_face import SplashCache  # noqa: E402
from splash_attention.hugging_face.cache import as_argument  # noqa: E402
from splash_attention.language import Attention, Method, decode_step  # noqa: E402
from splash_attention.language.command_line import main  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() and _core.has_cuda else [])]


@pytest.mark.parametrize("device", DEVICES)
def test_the_quick_form(tmp_path, monkeypatch, capsys, device):
    out = tmp_path / "step.json"
    words = ["decode-step", *model_and_texts(tmp_path, monkeypatch, device), "--rows", "1", "--out", str(out)]
    assert main([*words, "--quick", "--page-size", "16", "--method", "entmax:alpha=1.5,factor=2"]) == 0
    assert "| 2 × 48 | splash |" in capsys.readouterr().out
    held = json.loads(out.read_text())
    assert held["model"]["quantisation"] == "Q4_1 weights" and held["text"]["sources"] and held["method"]["default"]["factor"] == 2
    (one,) = held["measured"]
    assert set(one["steps"]) == {"no attention", "splash", "sdpa", "sdpa without mask"}
    assert all(0 < step["p10"] <= step["median"] <= step["p90"] for step in one["steps"].values())
    assert all("refused" in alone or (alone["median"] > 0 and len(alone["of_layers"]) == 2) for alone in one["attention"].values())
    assert one["fastest_sdpa"] in one["attention"] and all(1 <= layer["mean"] <= layer["largest"] <= 49 for layer in one["support_of_layers"])
    assert main([*words, "--quick", "--method", "softmax"]) == 2
    assert "layer 0 has softmax; decode does entmax over all keys" in capsys.readouterr().err


def test_prompts_are_of_one_text_at_places_far_apart():
    ids = decode_step.prompts(np.arange(10), 3, 6)
    assert ids.tolist() == [[0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 8], [6, 7, 8, 9, 0, 1]]


def test_caches_filled_by_rows_are_those_of_the_whole_batch():
    model, ids = llama(), decode_step.prompts(np.arange(300), 5, 40)
    decode_step.set_method(model, Method(Attention("entmax", alpha=1.5), {1: Attention("entmax", alpha=(1.2, 1.4, 1.6, 1.8), factor=2.0)}))
    assert [layer.self_attn.splash_alpha for layer in model.model.layers] == [1.5, [1.2, 1.4, 1.6, 1.8]]
    with torch.inference_mode():
        pages = decode_step._pages(model, ids, 4, 16, 2)
        whole = SplashCache(model.config, 64)
        expected = model(ids, **as_argument(model, whole)).logits[:, -1].argmax(-1, keepdim=True)
        steps = [model(expected, position_ids=torch.full((5, 1), 40), **as_argument(model, cache)).logits for cache in (pages, whole)]
        torch.testing.assert_close(*steps)
        rows = decode_step._rows_of_softmax(model, ids, 2)
        step = model(expected, position_ids=torch.full((5, 1), 40), **as_argument(model, rows)).logits
        torch.testing.assert_close(step, model(torch.cat([ids, expected], 1)).logits[:, -1:], atol=1e-4, rtol=1e-4)
        assert not torch.allclose(step, steps[0], atol=1e-2)
