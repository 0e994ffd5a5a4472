"""Conversion by training: what is saved, how it goes on, and that it learns."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from tiny_llama import llama, one_thread, torch, windows  # noqa: F401

pytest.importorskip("safetensors", reason="the package safetensors is not installed")
import safetensors.torch  # noqa: E402
import splash_attention  # noqa: E402
from splash_attention.language import Attention, Method, Plan, convert, load_converted, perplexity, tune  # noqa: E402
from splash_attention.language.attention import _attend  # noqa: E402
from splash_attention.language.conversion import prepare  # noqa: E402
from splash_attention.language import training  # noqa: E402

SMALL = {"steps": 4, "batch": 1, "length": 24, "rank": 2}
STRAIGHT = {"k_keep": 3, "gradients": "straight-through"}
TOKENS = windows(1, 400)[0]


@pytest.mark.parametrize("changes", [{}, {"rank": 0, "rate": 1e-3}, {"schedule": "annealed"}, {"kind": "softmax"}, {"k_keep": 3}, STRAIGHT])
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
        support = perplexity(model, windows(), done.method()).support()
        assert support["median"] < 20 and (support["largest"] <= 3) == (plan.k_keep == 3)
    with pytest.raises(ValueError, match="tensors' names or shapes differ"):
        load_converted(llama(num_hidden_layers=1), path)


@pytest.mark.parametrize("changes", [{}, {"rank": 0}, {"schedule": "annealed"}, {"most_keys": 2.0}])
def test_a_run_in_parts_is_the_run_in_one(tmp_path, changes):
    plan = Plan(**{**SMALL, **changes})
    whole = convert(llama(), TOKENS, plan, tmp_path / "whole")
    for step in range(plan.steps):
        assert (tmp_path / "parts/state.pt").is_file() == (step > 0)
        parts = convert(llama(), TOKENS, plan, tmp_path / "parts", seconds=0.0)
    assert not (tmp_path / "parts/state.pt").exists()  # it is finished
    assert all(torch.equal(values, parts.state()[name]) for name, values in whole.state().items())
    rows = [list(csv.DictReader((tmp_path / name / "log.csv").open())) for name in ("whole", "parts")]
    assert [row["step"] for row in rows[1]] == ["0", "1", "2", "3"] and [r["loss"] for r in rows[0]] == [r["loss"] for r in rows[1]]
    again = convert(llama(), TOKENS, plan, tmp_path / "parts")  # what is finished is loaded
    assert all(torch.equal(values, again.state()[name]) for name, values in whole.state().items())
    convert(llama(), TOKENS, plan, tmp_path / "unfinished", seconds=0.0)
    for name in ("parts", "unfinished"):
        with pytest.raises(ValueError, match=r"holds a run of another plan \(seed=1\)"):
            convert(llama(), TOKENS, Plan(**{**SMALL, **changes, "seed": 2}), tmp_path / name)


def test_straight_through_gradients_are_those_of_all_keys_but_of_values():
    how, chosen = Attention("entmax", k_keep=2), torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, 12, 8, generator=chosen) for heads in (4, 2, 2))
    given = [x.requires_grad_() for x in (q, k, v, torch.full((4,), 1.5), torch.full((4,), 0.7))]
    dout = torch.randn(q.shape, generator=chosen)

    def both_passes(k_keep, **words):
        out, _ = _attend(*given[:3], replace(how, k_keep=k_keep), *given[3:], 0.4, None, False, **words)
        return out, torch.autograd.grad(out, given, dout)

    (out, gradients), (kept, of_kept), (_, of_all) = both_passes(2, straight_through=True), both_passes(2), both_passes(None)
    assert torch.equal(out, kept) and torch.equal(gradients[2], of_kept[2])
    for at in (0, 1, 3, 4):  # q, k, alpha, factor
        assert torch.equal(gradients[at], of_all[at]) and not torch.allclose(gradients[at], of_kept[at], rtol=0.05), at


def test_a_plan_of_straight_through_gradients_trains_by_them(tmp_path):
    states = []
    for name in ("exact", "straight-through"):
        states.append(convert(llama(), TOKENS, Plan(**{**SMALL, **STRAIGHT, "gradients": name}), tmp_path / name).state())
    assert not all(torch.equal(values, states[1][name]) for name, values in states[0].items())


def test_the_same_weights_are_the_same_file(tmp_path):
    converted = prepare(llama(), Plan(rank=2))
    files = set()
    for i in range(8):  # the library draws the order of metadata
        converted.save(tmp_path / f"{i}.safetensors")
        files.add((tmp_path / f"{i}.safetensors").read_bytes())
    assert len(files) == 1
    held = safetensors.torch.load(files.pop())
    assert held.keys() == converted.state().keys() and all(torch.equal(held[name], value) for name, value in converted.state().items())


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
    training.loss_of(model, ids).backward()
    for values in (heads.place, heads.size):
        for head in range(4):
            with torch.no_grad():
                moved = []
                for step in (1e-3, -1e-3):
                    values[head] += step
                    moved.append(training.loss_of(model, ids).item())
                    values[head] -= step
            assert values.grad[head].item() == pytest.approx((moved[0] - moved[1]) / 2e-3, rel=0.05, abs=2e-6)


def test_a_bfloat16_model_is_trained_with_an_adapter_of_float32(tmp_path):
    model = llama().bfloat16()
    before = {name: values.clone() for name, values in model.state_dict().items()}
    done = convert(model, TOKENS, Plan(**{**SMALL, "most_keys": 2.0}), tmp_path)
    assert {values.dtype for values in done.state().values()} == {torch.float32}
    after = {name.replace(".base.", "."): values for name, values in model.state_dict().items()}
    assert all(torch.equal(after[name], values) for name, values in before.items())
    assert all((heads.alpha != 1.5).all() and (heads.factor != 0.5).all() for heads in done.heads)
    again = llama().bfloat16()
    load_converted(again, tmp_path / "adapter.safetensors")
    with torch.no_grad():
        assert torch.equal(again(windows()).logits, model(windows()).logits)
    done.save(tmp_path / "half.safetensors", torch.bfloat16)
    half = load_converted(llama().bfloat16(), tmp_path / "half.safetensors")
    assert {values.dtype for values in half.state().values()} == {torch.float32}
    assert torch.equal(half.of_heads("alpha"), done.of_heads("alpha")) and torch.equal(half.of_heads("factor"), done.of_heads("factor"))
    with torch.no_grad():
        assert torch.equal(half.model(windows()).logits, model(windows()).logits)
    assert (tmp_path / "half.safetensors").stat().st_size < 0.8 * (tmp_path / "adapter.safetensors").stat().st_size


@pytest.mark.parametrize("name, k_keep", [("smollm2-entmax", 64), ("smollm2-entmax-40", None)])
def test_a_shipped_adapter_fits_its_model(name, k_keep):
    """A random model of SmolLM2-135M's shape, with few words."""
    path = Path(__file__).parents[3] / "data" / "adapters" / f"{name}.safetensors"
    shape = {"hidden_size": 576, "intermediate_size": 64, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    done = load_converted(llama(**shape, head_dim=64), path)
    alpha, factor = done.of_heads("alpha"), done.of_heads("factor")
    assert alpha.shape == (30, 9) and (alpha > 1.25).all() and (alpha < 2).all() and alpha.unique().numel() > 200
    assert (factor > 0.1).all() and (factor < 1).all() and done.method().layers[29].k_keep == k_keep
    assert all(values.isfinite().all() and values.any() for values in done.state().values())
    assert path.stat().st_size < 4e6


def test_a_conversion_begins_where_tuning_ended(tmp_path):
    tuned = Method(Attention("entmax"), {0: Attention("entmax", alpha=(1.25, 1.5, 1.75, 2.0), factor=(0.2, 0.3, 0.5, 1.0))})
    tuned.write(tmp_path / "tuned.json")
    fixed = convert(llama(), TOKENS, Plan(**SMALL, schedule="fixed", start=str(tmp_path / "tuned.json")), tmp_path / "fixed")
    assert fixed.method().layers[0] == Attention("entmax", alpha=(1.25, 1.5, 1.75, 2.0), factor=fixed.method().layers[0].factor)
    assert fixed.of_heads("factor").tolist() == [pytest.approx([0.2, 0.3, 0.5, 1.0]), [1.0] * 4]
    (tmp_path / "tuned.json").unlink()
    load_converted(llama(), tmp_path / "fixed/adapter.safetensors")  # without it
    learned = prepare(llama(), Plan(), tuned)  # what lies at alpha's ends begins inside, for there a logit barely moves it
    assert learned.of_heads("alpha").tolist() == [pytest.approx([1.2875, 1.5, 1.75, 1.9625]), pytest.approx([1.5] * 4)]
    annealed = prepare(llama(), Plan(schedule="annealed", steps=10), tuned).heads[0]
    annealed.anneal(0, 10)
    assert annealed.alpha.tolist() == pytest.approx([1.25, 1.3, 1.35, 1.4])
    annealed.anneal(9, 10)
    assert annealed.alpha.tolist() == pytest.approx([1.25, 1.5, 1.75, 2.0])
    for wrong, said in (
        (Method(), "layer 0 of the start is {'kind': 'softmax', 'factor': 1.0}; it must be entmax without k_keep"),
        (Method(Attention("entmax", alpha=1.1)), "alpha of layer 0 of the start is 1.1; it must be from 1.25 to 2"),
        (Method(Attention("entmax", alpha=(1.5, 1.5))), "alpha of layer 0 has 2 entries; the layer has 4 query heads"),
    ):
        with pytest.raises(ValueError) as error:
            prepare(llama(), Plan(), wrong)
        assert said in str(error.value)


@pytest.mark.parametrize(
    "changes, said",
    [({"kind": "hardmax"}, "kind is 'hardmax'"), ({"schedule": "cosine"}, "schedule is 'cosine'; allowed are fixed"),
     ({"alpha": 1.1}, "alpha is 1.1; it must be from 1.25 to 2.0"), ({"rank": -1}, "rank is -1"), ({"factor": 0.0}, "factor is 0.0"),
     ({"most_keys": 0.5}, "most_keys is 0.5; it must be 0"), ({"median_keys": 9.0, "schedule": "fixed"}, "needs the schedule learned"),
     ({"kind": "softmax", "k_keep": 8}, "k_keep is 8; softmax has none"), ({"k_keep": -1}, "k_keep is -1"),
     ({"gradients": "none", "k_keep": 8}, "gradients is 'none'; allowed are exact, straight-through"),
     ({"gradients": "straight-through"}, "that needs a k_keep")],
)  # fmt: skip
def test_plans_that_do_not_fit_are_told(changes, said):
    with pytest.raises(ValueError, match=said):
        Plan(**changes)


def test_it_stands_at_the_packages_top():
    assert splash_attention.convert is convert and splash_attention.tune is tune


def test_a_plan_is_read_from_text():
    assert Plan.parse("") == Plan()
    assert Plan.parse("kind=softmax, rank=0,rate=3e-4,steps=100") == Plan(kind="softmax", rank=0, rate=3e-4, steps=100)
    for text, said in (
        ("rank=16,depth=3", "'depth=3' of 'rank=16,depth=3' is no setting; allowed are NAME=VALUE of kind, schedule, alpha, factor, start,"),
        ("rank", "'rank' of 'rank' is no setting"),
        ("rank=1.5", "rank of 'rank=1.5' is '1.5'; it must be an integer"),
        ("rate=fast", "rate of 'rate=fast' is 'fast'; it must be a number"),
        ("rate=nan", "rate is nan; it must be finite"),
        ("rank=1,rank=2", "rank stands twice"),
    ):
        with pytest.raises(ValueError) as error:
            Plan.parse(text)
        assert said in str(error.value)


def test_what_cannot_be_trained_is_told(tmp_path):
    with pytest.raises(ValueError, match="tokens has 24 entries; a window of 24 needs more"):
        convert(llama(), TOKENS[:24], Plan(**SMALL), tmp_path)
    with pytest.raises(ValueError, match="all weights are trained in float32; the model is of bfloat16"):
        convert(llama().bfloat16(), TOKENS, Plan(**{**SMALL, "rank": 0}), tmp_path)
    model = llama()
    prepare(model, Plan(**SMALL))
    with pytest.raises(ValueError, match="was prepared before"):
        prepare(model, Plan(**SMALL))


def test_where_activations_do_not_fit_layers_are_computed_again_to_the_same_result(tmp_path, monkeypatch):
    plan, tokens = Plan(steps=3, batch=2, length=24, rank=2), windows(1, 400)[0]
    wanted = convert(llama(), tokens, plan, tmp_path / "wanted").state()
    own, calls = training.loss_of, []

    def small_memory(model, ids):
        calls.append(model.base_model.layers[0].gradient_checkpointing)
        if len(calls) == 2:  # of the second step
            raise torch.OutOfMemoryError("a made-up one")
        return own(model, ids)

    model = llama()
    run = training._Run(prepare(model.train(), plan), tokens, tmp_path / "state.pt")
    training._checkpointing(model, False)
    run.recomputes = False
    monkeypatch.setattr(training, "loss_of", small_memory)
    for _ in range(plan.steps):
        run.step()
    assert calls == [False, False, True, True]  # the step begins anew, and later ones stay so
    assert all(torch.equal(values, wanted[name]) for name, values in run.converted.state().items())


def test_a_step_that_a_graph_cannot_give_is_computed_without_it(monkeypatch, tmp_path):
    """The graph is a stand-in, for a real one needs a GPU: its first replay finds a gradient that is not finite, its third fails."""
    seen = []

    class Replayed:
        def __init__(self, model, loss, windows):
            seen.append("captured")
            self.model, self.loss = model, loss

        def __call__(self, windows):
            seen.append("replayed")
            loss = self.loss(self.model, windows)
            loss.backward()
            if seen.count("replayed") == 3:
                raise RuntimeError("out of memory")
            return None if seen.count("replayed") == 1 else loss.item()

    wanted = convert(llama(), TOKENS, Plan(**{**SMALL, "steps": 6}), tmp_path / "wanted").state()
    monkeypatch.setattr(training, "CapturedStep", Replayed)
    began = training._Run.__init__

    def begin(self, *given):
        began(self, *given)
        self.captures, self.recomputes = True, False

    monkeypatch.setattr(training._Run, "__init__", begin)
    with pytest.warns(UserWarning, match="from step 3 on steps are not replayed as CUDA graphs: out of memory"):
        found = convert(llama(), TOKENS, Plan(**{**SMALL, "steps": 6}), tmp_path / "found").state()
    assert seen == ["captured", "replayed", "captured", "replayed", "replayed"]  # steps 1 to 3; the last two without a graph
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
