"""Retrieval by methods that choose keys: their steps, their budgets, those that are made for model and text, and runs that were stopped."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tiny_llama import llama, one_thread, torch  # noqa: F401

pytest.importorskip("gguf", reason="the package gguf is not installed; ./splash test installs it")
pytest.importorskip("safetensors", reason="the package safetensors is not installed")
from transformers import DynamicCache  # noqa: E402

from splash_attention import kascade  # noqa: E402
from splash_attention.hugging_face.cache import as_argument  # noqa: E402
from splash_attention.language import Method, applied, plant, retrieve, retrieval  # noqa: E402
from splash_attention.language.command_line import main  # noqa: E402
from splash_attention.language.made_methods import Share, check_method  # noqa: E402
from splash_attention.language.retrieval import Prompt, log_probabilities  # noqa: E402
from splash_attention.language.retrieval_record import Record, open_retrieval  # noqa: E402
from splash_attention.language.texts import PARTS, Texts  # noqa: E402
from test_language_retrieval import LENGTH, tiny  # noqa: E402, F401

CHOOSING = ["kascade", "tile-top-k", "pages", "window-softmax", "top-k-softmax"]


@pytest.fixture(scope="module")
def planned(tiny, tmp_path_factory):  # noqa: F811
    """A plan's file."""
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    kascade.plan(llama(), [torch.from_numpy(tiny[2][:200].astype(np.int64))[None]], anchors=1, path=path)
    return path


def of(kind, budget, planned):
    """The method, of a text of LENGTH tokens."""
    if kind == "kascade":
        return Method.parse(f"kascade:plan={planned},budget={budget}")
    share = Share.parse(f"{kind}:budget={budget}")
    return Method.parse(f"{kind}:budget={budget}") if share is None else share.method(LENGTH)


@pytest.fixture(scope="module")
def prompts(tiny):  # noqa: F811
    return plant(tiny[1], tiny[2], LENGTH, 3, choices=3, form="raw")


@pytest.mark.parametrize("kind", CHOOSING)
def test_with_all_keys_each_answers_as_softmax_does_and_with_few_it_does_not(prompts, planned, kind):
    model = llama()
    softmax, whole, few = (retrieve(model, prompts, method) for method in (None, of(kind, 1, planned), of(kind, 0.01, planned)))
    assert (whole.exact, whole.chosen) == (softmax.exact, softmax.chosen)
    assert [one.nll for one in whole.answers] == pytest.approx([one.nll for one in softmax.answers], abs=1e-4)
    assert [one.nll for one in few.answers] != pytest.approx([one.nll for one in softmax.answers], abs=1e-4)


@pytest.mark.parametrize("kind", CHOOSING)
def test_each_token_of_an_answer_is_a_step_of_its_own(prompts, planned, kind):
    """As generation reads it: one candidate, one token after the other."""
    model, prompt = llama(), prompts[0]
    with torch.no_grad(), applied(model, of(kind, 0.5, planned)):
        found, cache, logits = log_probabilities(model, [prompt])[0], DynamicCache(config=model.config), []
        cached = as_argument(model, cache)
        model(prompt.ids[None, :-1], **cached)
        for token in [prompt.ids[-1], *prompt.candidates[1, :-1]]:
            logits.append(model(token[None, None], **cached).logits[0, -1])
    torch.testing.assert_close(found[1], torch.stack(logits).log_softmax(-1), atol=1e-3, rtol=1e-4)


def test_an_attention_that_drops_everything_cannot_find(tiny, prompts):  # noqa: F811
    """What it makes of an answer is the same whatever number was planted."""
    _, tokenizer, _ = tiny
    model, prompt = llama(), prompts[0]
    number = tokenizer.decode(prompt.candidates[0]).strip()
    text = tokenizer.decode(prompt.ids)
    assert text.count(number) == 1
    changed = Prompt(torch.tensor(tokenizer(text.replace(number, "00000"), add_special_tokens=False).input_ids), prompt.candidates, prompt.depth)
    assert changed.ids.shape == prompt.ids.shape and not torch.equal(changed.ids, prompt.ids)

    def differ(method):
        with torch.no_grad(), applied(model, method):
            one, other = log_probabilities(model, [prompt, changed])
        return (one - other).abs().max().item()

    assert differ(Method.parse("window-softmax:window=1,sink=0")) == 0 and differ(Method()) > 1e-3


def test_prompts_that_are_read_together_are_answered_as_alone(prompts, planned):
    model, told = llama(), []
    for kind in ("kascade", "pages"):
        alone = retrieve(model, prompts, of(kind, 0.5, planned))
        together = retrieve(model, prompts, of(kind, 0.5, planned), batch=2, said=told.append)
        assert [(one.exact, one.rank) for one in together.answers] == [(one.exact, one.rank) for one in alone.answers]
        assert [one.nll for one in together.answers] == pytest.approx([one.nll for one in alone.answers], abs=1e-4)
    assert [len(one.answers) for one in told] == [2, 3, 2, 3]
    with pytest.raises(ValueError, match="batch is 0; it must be at least 1"):
        retrieve(model, prompts, batch=0)


def test_a_share_is_as_many_keys_as_other_methods_of_its_budget_keep():
    window, largest = (Share.parse(f"{kind}:budget=0.025,dense=1") for kind in ("window-softmax", "top-k-softmax"))
    assert window.method(8192).default == Method.parse("window-softmax:window=201").default  # and 4 sinks
    assert window.method(1024).default == Method.parse("window-softmax:window=124").default
    assert largest.method(8192) == Method.parse("top-k-softmax:k_keep=205,dense=1")
    assert Share.parse("pages:budget=0.1") is Share.parse("window-softmax:window=8") is None
    for text, said in (
        ("window-softmax:budget=2", "budget is 2.0; it must be above 0 and at most 1"), ("top-k-softmax:budget=0.1,page=2", "is no setting"),
        ("window-softmax:budget=0.1,budget=0.2", "budget stands twice"), ("kascade:anchors=0", "anchors is 0"), ("tuned:k_keep=4", "names no budget"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            check_method(text)


@pytest.fixture
def asked(tiny, tmp_path, monkeypatch):  # noqa: F811
    """Runs the command on the tiny model, 2 choices at LENGTH tokens, and returns what --out holds and how many prompts the model read."""
    monkeypatch.setenv("SPLASH_CACHE", str(tmp_path / "cache"))
    path, _, ids = tiny
    Texts({part: ids for part in PARTS}, {"sha256": "abc"}).write(tmp_path / "tokens.npz")
    words = ["retrieval", str(path), "--text", str(tmp_path / "tokens.npz"), "--device", "cpu", "--choices", "2", "--window", str(LENGTH)]
    read, log = [], retrieval.log_probabilities

    def counted(model, prompts):
        read.append(len(prompts))
        return log(model, prompts)

    monkeypatch.setattr(retrieval, "log_probabilities", counted)

    def run(*more, name="out.json"):
        read.clear()
        assert main([*words, *more, "--out", str(tmp_path / name)]) == 0
        return open_retrieval(tmp_path / name), sum(read)

    return run


def test_the_command_makes_methods_for_model_and_text(asked):
    methods = ["kascade:anchors=1,budget=0.5", "tile-top-k:budget=0.5,dense=1", "pages:budget=0.5,dense=1", "window-softmax:budget=0.5,dense=1",
               "top-k-softmax:budget=0.5,dense=1", "entmax:alpha=1.5,factor=0.5", "tuned:budget=30"]  # fmt: skip
    held, read = asked("--prompts", "2", "--methods", *methods)
    assert [one["title"] for one in held["results"]] == ["softmax", *methods] and read == 16
    by_title = {one["title"]: one["method"] for one in held["results"]}
    assert by_title[methods[0]]["made_by"]["anchors"] == [0] and by_title[methods[0]]["default"]["budget"] == 0.5
    assert by_title[methods[3]]["default"]["window"] == 156 and by_title[methods[4]]["default"]["k_keep"] == 160
    assert len(by_title[methods[6]]["layers"]) == 2
    (run,) = held["runs"]
    assert run["command"].startswith("python -m splash_attention.language retrieval ") and methods[0] in run["command"] and run["device"] == "CPU"
    assert run["command"].endswith(" --out out.json"), "which folder it lay in says nothing elsewhere"


def test_a_stopped_run_goes_on(asked, monkeypatch, capsys):
    methods = ["--methods", "kascade:anchors=1,budget=0.5", "entmax:alpha=1.5"]
    whole, read = asked("--prompts", "4", *methods, name="whole.json")
    assert read == 12
    keep, kept = Record.keep, []

    def stop(record, one):
        keep(record, one)
        kept.append(one)
        if len(kept) == 8:  # softmax's four and the whole of them, and three of kascade
            raise KeyboardInterrupt

    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr(Record, "keep", stop)
        asked("--prompts", "4", *methods)
    resumed, read = asked("--prompts", "4", *methods, "--resume")
    assert read == 12 - 7 and resumed["results"] == whole["results"] and len(resumed["runs"]) == 2
    more, read = asked("--prompts", "5", "--methods", "entmax:alpha=2", "--resume")  # what is not asked for stays
    assert read == 1 + 5 and [len(one["prompts"]) for one in more["results"]] == [5, 4, 4, 5]
    fewer, read = asked("--prompts", "2", "--resume")
    assert read == 0 and fewer["results"] == more["results"]
    capsys.readouterr()
    with pytest.raises(AssertionError):
        asked("--prompts", "4", "--seed", "2", "--resume")
    assert "out.json holds answers of another kind of prompts; name another file, or leave out --resume" in capsys.readouterr().err
