"""Conversion by training: what is saved, how it goes on, and that it learns."""

from __future__ import annotations

import csv

import pytest

from tiny_llama import llama, one_thread, torch, windows  # noqa: F401

pytest.importorskip("safetensors", reason="the package safetensors is not installed")
from splash_attention.language import convert, load_converted, perplexity  # noqa: E402
from splash_attention.language.conversion import Plan, loss_of, prepare  # noqa: E402

SMALL = {"steps": 4, "batch": 1, "length": 24, "rank": 2}
TOKENS = windows(1, 400)[0]


@pytest.mark.parametrize("changes", [{}, {"rank": 0, "rate": 1e-3}, {"schedule": "annealed"}, {"kind": "softmax"}])
def test_a_converted_model_is_loaded_to_the_bit(tmp_path, changes):
    plan = Plan(**{**SMALL, **changes})
    model = llama()
    before = {name: values.clone() for name, values in model.state_dict().items()}
    done = convert(model, TOKENS, plan, tmp_path)
    path = tmp_path / ("adapter.safetensors" if plan.rank else "model.safetensors")
    again = llama()
    load_converted(again, path)
    with torch.inference_mode():
        assert torch.equal(again(windows()).logits, model(windows()).logits)
        assert not torch.equal(llama()(windows()).logits, model(windows()).logits)
    kept = {name.replace(".base.", "."): values for name, values in model.state_dict().items()}
    assert all(torch.equal(kept[name], values) for name, values in before.items()) == bool(plan.rank)
    if plan.kind == "entmax":
        alphas = torch.cat([heads.alpha for heads in done.heads])
        assert (alphas >= 1.25).all() and (alphas <= 2).all()
        assert (alphas == 1.5).all() == (plan.schedule != "learned")
        assert perplexity(model, windows(), done.method()).support()["median"] < 20
    with pytest.raises(ValueError, match="tensors' names or shapes differ"):
        load_converted(llama(num_hidden_layers=1), path)


def test_a_run_in_parts_is_the_run_in_one(tmp_path):
    plan = Plan(**SMALL)
    whole = convert(llama(), TOKENS, plan, tmp_path / "whole")
    for _ in range(plan.steps):
        parts = convert(llama(), TOKENS, plan, tmp_path / "parts", seconds=0.0)
    assert all(torch.equal(values, parts.state()[name]) for name, values in whole.state().items())
    rows = [list(csv.DictReader((tmp_path / name / "log.csv").open())) for name in ("whole", "parts")]
    assert [row["step"] for row in rows[1]] == ["0", "1", "2", "3"] and [r["loss"] for r in rows[0]] == [r["loss"] for r in rows[1]]
    with pytest.raises(ValueError, match="holds a run of another plan"):
        convert(llama(), TOKENS, Plan(**{**SMALL, "seed": 2}), tmp_path / "parts")


def test_it_learns_what_repeats(tmp_path):
    text = torch.arange(8).repeat(30)
    plan = Plan(steps=15, batch=1, length=24, rank=4, rate=5e-2)
    model = llama()
    convert(model, text, plan, tmp_path)
    rows = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert float(rows[-1]["loss"]) < 0.7 * float(rows[0]["loss"])


def test_alpha_and_factor_of_each_head_have_their_derivatives():
    """Against differences of the loss."""
    model = llama().double()
    heads = prepare(model, Plan(rank=0)).heads[1]
    heads.double()
    ids = windows(1, 24)
    loss_of(model, ids).backward()
    for values in (heads.place, heads.size):
        for head in range(4):
            with torch.no_grad():
                moved = []
                for step in (1e-3, -1e-3):
                    values[head] += step
                    moved.append(loss_of(model, ids).item())
                    values[head] -= step
            assert values.grad[head].item() == pytest.approx((moved[0] - moved[1]) / 2e-3, rel=0.05, abs=2e-6)


@pytest.mark.parametrize(
    "changes, said",
    [({"kind": "hardmax"}, "kind is 'hardmax'"), ({"schedule": "cosine"}, "schedule is 'cosine'; allowed are fixed"),
     ({"alpha": 1.1}, "alpha is 1.1; it must be from 1.25 to 2.0"), ({"rank": -1}, "rank is -1"), ({"factor": 0.0}, "factor is 0.0")],
)  # fmt: skip
def test_plans_that_do_not_fit_are_told(changes, said):
    with pytest.raises(ValueError, match=said):
        Plan(**changes)


def test_what_cannot_be_trained_is_told(tmp_path):
    with pytest.raises(ValueError, match="tokens has 24 entries; a window of 24 needs more"):
        convert(llama(), TOKENS[:24], Plan(**SMALL), tmp_path)
    with pytest.raises(ValueError, match="all weights are trained in float32; the model is of bfloat16"):
        convert(llama().bfloat16(), TOKENS, Plan(**{**SMALL, "rank": 0}), tmp_path)
    model = llama()
    prepare(model, Plan(**SMALL))
    with pytest.raises(ValueError, match="was prepared before"):
        prepare(model, Plan(**SMALL))
