"""A plan of Kascade over the pages of a SplashCache: in generate, by chunks, padded."""

from __future__ import annotations

import pytest

from tiny_llama import llama, one_thread, torch, transformers, windows  # noqa: F401

from splash_attention import kascade
from splash_attention.hugging_face import SplashCache
from splash_attention.hugging_face.cache import as_argument

GENERATE = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
DEEP = {"num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}


@pytest.fixture(scope="module", params=[(None, None), (1.5, None), (1.5, False)], ids=["softmax", "entmax", "sets-of-entmax"])
def model(request):
    model, (alpha, exact) = llama(**DEEP), request.param
    plan = kascade.plan(model, list(windows(2)), anchors=2, tile=4, least_keys=5, budget=0.2, alpha=alpha).plan
    kascade.apply(model, plan, exact=exact)
    return model


def cache_of(model, **options):
    return as_argument(model, SplashCache(model.config, page_size=16, **options))


@pytest.mark.parametrize("capacity", [None, 64])
def test_generate_is_that_of_transformers_own_cache(model, capacity):
    long, short = windows(1, 32), windows(2, 32)[1:, :21]
    ids = torch.cat([long, torch.nn.functional.pad(short, (11, 0))])
    mask = torch.ones_like(ids)
    mask[1, :11] = 0
    with torch.inference_mode():
        for given in ({"inputs": long}, {"inputs": ids, "attention_mask": mask}):
            ours = model.generate(**given, **GENERATE, **cache_of(model, max_cache_len=capacity))
            assert torch.equal(ours, model.generate(**given, **GENERATE))


def test_parts_of_a_text_are_as_with_transformers_own_cache(model):
    """Several tokens at a time, one of two sequences padded; drafts that are dropped again."""
    ids, mask = windows(2, 32), torch.ones(2, 32, dtype=torch.int64)
    mask[1, :11] = 0
    ours, theirs = cache_of(model), as_argument(model, transformers.DynamicCache(config=model.config))
    (cache,), (own,) = ours.values(), theirs.values()
    with torch.inference_mode():
        for begin, end in ((0, 8), (8, 20), (20, 23), (20, 24), (24, 32)):
            if dropped := int(cache.get_seq_length()) - begin:
                cache.crop(-dropped)
                own.crop(-dropped)
            part = {"input_ids": ids[:, begin:end], "attention_mask": mask[:, :end]}
            found, wanted = (model(**part, **one).logits for one in (ours, theirs))
            seen = mask[:, begin:end].bool()
            torch.testing.assert_close(found[seen], wanted[seen], rtol=1e-4, atol=1e-4)


def test_a_compiled_step_is_the_same(model):
    """A graph may break at sets, as generate() allows that compiles a step over a static cache; exact attention does not break it."""
    ids, caches = windows(2, 24), [cache_of(model, max_cache_len=64) for _ in range(2)]
    exact = model.model.layers[0].self_attn.splash_kascade.exact
    compiled = torch.compile(model, backend="eager", fullgraph=exact)
    with torch.inference_mode():
        for cache in caches:
            model(ids, **cache)
        for at in range(3):
            word = ids[:, at : at + 1]
            torch.testing.assert_close(compiled(word, **caches[0]).logits, model(word, **caches[1]).logits, rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()


def test_what_does_not_fit_is_told(model):
    plain = llama(**DEEP)
    plan = kascade.plan(plain, list(windows(2)), anchors=2, tile=4, least_keys=5, budget=0.2).plan
    kascade.apply(plain, plan, keys_in_8_bits=True)
    with pytest.raises(NotImplementedError, match="keys_in_8_bits takes transformers' own caches"):
        plain(windows(1), **cache_of(plain))
    cache = cache_of(model)
    model(windows(1), **cache)
    with pytest.raises(RuntimeError, match="decoding has no gradients"):
        model(windows(1)[:, :1], **cache)
