"""Methods in softmax's place: their declaration, and what they compute inside a model."""

from __future__ import annotations

import json

import pytest

from tiny_llama import llama, one_thread, torch, windows  # noqa: F401

from splash_attention import entmax, hugging_face
from splash_attention.language import Attention, Method, applied, apply
from splash_attention.hugging_face.learning import attention_layers
from splash_attention.language.attention import observed
from splash_attention.language.made_methods import Tuning

METHODS = {
    "softmax": Attention("softmax", factor=0.7),
    "entmax": Attention("entmax", alpha=(1.25, 1.5, 1.75, 2.0), factor=(0.4, 0.5, 0.6, 1.0)),
    "k_keep": Attention("entmax", alpha=(1.25, 1.5, 1.75, 2.0), factor=0.3, k_keep=(0, 2, 5, 2)),
    "k_keep of blocks": Attention("entmax", alpha=1.25, factor=0.3, k_keep=3, block=8),
    "top-k": Attention("top-k-softmax", k_keep=6),
    "window": Attention("window-softmax", window=7, sink=2),
    "power": Attention("power", alpha=1.5),
}


def by_hand(q, k, v, how, scaling):
    """(out, support) of the definition, row by row, in float64."""
    out, support = torch.zeros_like(q, dtype=torch.float64), torch.zeros(q.shape[:3], dtype=torch.int64)
    of = lambda values, head: values[head] if isinstance(values, tuple) else values
    for head in range(q.shape[1]):
        keys, values = (t[0, head // (q.shape[1] // k.shape[1])].double() for t in (k, v))
        for row in range(q.shape[2]):
            scores = keys[: row + 1] @ q[0, head, row].double() * scaling * of(how.factor, head)
            if how.kind == "window-softmax":
                at = torch.arange(row + 1)
                scores[(at <= row - how.window) & (at >= how.sink)] = -torch.inf
            keep = of(how.k_keep, head)
            for begin in range(0, row + 1, how.block or row + 1) if keep else ():
                part = scores[begin : begin + (how.block or row + 1)]
                part[part < part.sort(descending=True).values[: keep][-1]] = -torch.inf
            alpha = of(how.alpha, head)
            p = entmax(scores, alpha) if how.kind == "entmax" else torch.softmax(scores, 0)
            if how.kind == "power":
                p = scores.clamp(min=0) ** alpha
                p = p / p.sum() if p.sum() > 0 else p
            out[0, head, row], support[0, head, row] = p @ values[: row + 1], (p > 0).sum()
    return out, support


@pytest.mark.parametrize("name", METHODS)
def test_each_method_is_what_its_definition_says(name):
    model, calls = llama(), []
    with torch.inference_mode(), applied(model, Method(METHODS[name])), observed(calls.append):
        model(windows(1), use_cache=False)
    assert [call.layer for call in calls] == [0, 1] and model.config._attn_implementation == "sdpa"
    for call in calls:
        out, support = by_hand(call.query, call.key, call.value, METHODS[name], call.scaling)
        torch.testing.assert_close(call.out.double(), out, rtol=1e-4, atol=1e-5)
        assert (call.support - support).abs().float().mean() < 0.02  # a weight at the edge of the support may be either
        plain = by_hand(call.query, call.key, call.value, Attention(), call.scaling)[0]
        torch.testing.assert_close(call.softmax().double(), plain, rtol=1e-4, atol=1e-5)
        assert (out - plain).abs().max() > 1e-3


def test_softmax_is_the_models_own_and_layers_may_differ():
    model, ids = llama(), windows()
    with torch.inference_mode():
        own = model(ids).logits
        with applied(model, Method()):
            assert torch.equal(model(ids).logits, own)
        apply(model, Method(Attention(), {1: Attention("entmax", alpha=2.0)}))
        last = model(ids).logits
        apply(model, Method(Attention("entmax", alpha=2.0), {0: Attention()}))
        assert torch.equal(model(ids).logits, last) and not torch.allclose(last, own)
        apply(model, None)
        assert torch.equal(model(ids).logits, own)


@pytest.mark.parametrize("name", METHODS)
def test_a_cache_and_padding_change_nothing(name):
    model, ids = llama(), windows(1, 12)
    apply(model, Method(METHODS[name]))
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with torch.inference_mode():
        slow = ids
        for _ in range(4):
            slow = torch.cat([slow, model(slow, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)], 1)
        assert torch.equal(model.generate(ids, **options), slow)
        if name != "window" and METHODS[name].block is None:  # whose first keys and blocks are counted with the padding
            longer = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], 1)
            mask = (torch.arange(15) >= 3).long()[None]
            assert torch.equal(model.generate(longer, attention_mask=mask, **options)[:, 3:], slow)


def test_hugging_face_has_the_same_settings_of_a_head():
    model, ids, how = llama(), windows(), METHODS["k_keep"]
    with torch.inference_mode():
        with applied(model, Method(how)):
            wanted = model(ids).logits
        hugging_face.register()
        model.set_attn_implementation("splash")
        for module in attention_layers(model).values():
            module.splash_alpha, module.splash_factor, module.splash_k_keep = list(how.alpha), how.factor, how.k_keep
        assert torch.equal(model(ids).logits, wanted)


def test_a_file_says_it_all(tmp_path):
    method = Method(Attention("entmax", alpha=1.5), {1: METHODS["k_keep"]}, "mine", {"how": "by hand"})
    method.write(tmp_path / "method.json")
    assert Method.read(tmp_path / "method.json") == method == Method.parse(str(tmp_path / "method.json"))
    model = llama()
    hugging_face.apply(model, tmp_path / "method.json")
    assert attention_layers(model)[1].splash_method == METHODS["k_keep"]
    assert Method.parse("entmax:alpha=1.5,factor=0.5,k_keep=32").default == Attention("entmax", 1.5, 0.5, 32)
    assert Method.parse("entmax:alpha=1.5,factor=0.5").title == "entmax:alpha=1.5,factor=0.5"


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: Attention("hardmax"), "kind is 'hardmax'; allowed are softmax, entmax"),
        (lambda: Attention("softmax", k_keep=3), "softmax has no k_keep; it has factor"),
        (lambda: Attention("entmax", alpha=1.0), "alpha is 1.0; it must be finite and above 1"),
        (lambda: Attention("entmax", factor=(0.5, 0.0)), "factor is 0.0; it must be finite and above 0"),
        (lambda: Attention("entmax", k_keep=0), "k_keep is 0; it must be at least 1"),
        (lambda: Attention("entmax", block=8), "block needs k_keep"),
        (lambda: Attention("window-softmax"), "window-softmax needs window"),
        (lambda: Method.parse("entmax:alpha"), "'alpha' of 'entmax:alpha' is no setting"),
        (lambda: Method.parse("entmax:k_keep=few"), "k_keep of 'entmax:k_keep=few' is 'few'; it must be an integer"),
        (lambda: Method.parse("entmax:alpha=1.5,alpha=2"), "alpha stands twice in 'entmax:alpha=1.5,alpha=2'; name it once"),
        (lambda: Method.parse("softmax:alpha=2"), "'alpha=2' of 'softmax:alpha=2' is no setting; allowed are NAME=VALUE of factor"),
        (lambda: Method.parse("hardmax:alpha=2"), "kind is 'hardmax'; allowed are softmax, entmax,"),
        (lambda: Tuning.parse("tuned:budget=0"), "budget is 0.0; it must be finite and above 0"),
        (lambda: Tuning.parse("tuned:k_keep=4"), "'tuned:k_keep=4' names no budget"),
        (lambda: Tuning.parse("tuned:budget=few"), "budget of 'tuned:budget=few' is 'few'; it must be a number"),
        (lambda: apply(llama(), Method(Attention("entmax", alpha=(1.5, 1.5)))), "alpha of layer 0 has 2 entries; the layer has 4"),
        (lambda: apply(llama(), Method(layers={5: Attention()})), r"the method is of the layers \[5\] too; the model has 0 to 1"),
    ],
)
def test_what_does_not_fit_is_told(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_other_files_are_told(tmp_path):
    path = tmp_path / "method.json"
    schema = {"schema": "splash attention method 1"}
    odd = {**schema, "default": {"kind": "entmax", "size": 3}}
    for text, said in (("{", "is not JSON"), ("[]", "is no method"), (json.dumps(schema), "default"), (json.dumps(odd), "has 'size'")):
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            Method.read(path)
