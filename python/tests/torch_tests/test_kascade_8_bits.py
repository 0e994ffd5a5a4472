"""Keys in 8 bits, from which an anchor's steps of decoding choose: their values, their growth, and when a copy of a cache goes on."""

from __future__ import annotations

import copy

import pytest

from tiny_llama import llama, one_thread, torch, windows  # noqa: F401

from splash_attention import kascade
from splash_attention.kascade.attention import Budget, Reuse, attend_to, tile_keys
from splash_attention.kascade.keys_in_8_bits import CopiesOfCache, KeysIn8Bits
from splash_attention.language import Method, applied
from splash_attention.language.attention import observed

DEEP = {"num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}
GENERATE = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
BUDGET = Budget(0.2, 4, 5)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def holding(k):
    made = KeysIn8Bits()
    made.append(k)
    return made


def by_hand(key):
    """Code by code, of one key: (scale, codes)."""
    largest = max(abs(x) for x in key.tolist())
    scale = torch.tensor(largest) / 127
    return scale, [int(max(-127, min(127, round((x / scale).item())))) if scale > 0 else 0 for x in key]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_codes_are_the_nearest_of_each_keys_scale(dtype):
    k = random(2, 3, 17, 8).to(dtype)
    k[0, 0, 3] = 0
    k[0, 1, 4] *= 1000
    k[1, 2, 5] = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0, 126.5])  # scale 1: halves go to the even neighbour
    made = holding(k)
    assert made.length == 17 and made.codes.shape[2] % 16 == 0
    for at in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(17)).tolist():
        scale, codes = by_hand(k[tuple(at)].float())
        assert made.scales[tuple(at)] == scale and made.codes[tuple(at)].tolist() == codes
    assert made.codes[1, 2, 5].tolist() == [127, 0, 2, 2, 0, -2, -127, 126]
    assert ((made.values() - k.float()).abs() <= 0.501 * made.scales[:, :, :17, None]).all()


def test_keys_that_are_not_finite_have_no_value():
    k = random(1, 1, 5, 8)
    k[0, 0, 1, 3], k[0, 0, 2, 4], k[0, 0, 3, 0] = torch.nan, torch.inf, -torch.inf
    made = holding(k)
    assert made.scales[0, 0, :5].isnan().tolist() == [False, True, True, True, False] and (made.codes[0, 0, 1:4] == 0).all()
    q = random(1, 2, 1, 8)
    assert tile_keys(q, k, 1.0, Budget(0.2, 4, 2), k8=made).tolist() == [[[[0, 4]]]]  # its own and the first, for none is chosen


def test_keys_come_one_after_another():
    k, made, capacities = random(2, 3, 2000, 8), KeysIn8Bits(), set()
    for end in [300, *range(301, 320), 700, 1999, 2000]:
        made.append(k[:, :, :end])
        capacities.add(made.codes.shape[2])
    assert len(capacities) == 3 and made.nbytes == 6 * max(capacities) * (8 + 4)
    whole = holding(k)
    assert torch.equal(made.values(), whole.values())
    made.reset()
    made.append(k[:, :, 5:900])
    assert made.length == 895 and torch.equal(made.values(), holding(k[:, :, 5:900]).values()) and made.codes.shape[2] == max(capacities)
    for other in (k[:1], k[:, :2], k[..., :4], k[:, :, :800]):
        with pytest.raises(ValueError, match="do not continue the 895 keys in 8 bits"):
            made.append(other)
    with pytest.raises(ValueError, match="there are 895 keys in 8 bits of 2000 keys"):
        tile_keys(random(2, 3, 1, 8), k, 1.0, BUDGET, k8=made)


def test_what_inference_mode_made_is_continued_outside_of_it():
    k = random(1, 1, 40, 8)
    with torch.inference_mode():
        made = holding(k[:, :, :30])
    made.append(k)
    assert torch.equal(made.values(), holding(k).values())


@pytest.mark.parametrize("q_len", [1, 3])
def test_a_step_chooses_by_the_rounded_keys(q_len):
    q, k = 2 * random(2, 6, q_len, 16, seed=1), random(2, 3, 200, 16, seed=2)
    made = holding(k)
    keys = tile_keys(q, k, 0.25, BUDGET, k8=made)
    assert torch.equal(keys, tile_keys(q, made.values(), 0.25, BUDGET))
    exact = tile_keys(q, k, 0.25, BUDGET)
    assert keys.shape == exact.shape
    shared = [len(set(a) & set(b)) / len(a) for a, b in zip(keys.flatten(0, 2).tolist(), exact.flatten(0, 2).tolist())]
    assert min(shared) > 0.9


class Cache:
    """Of one layer, as transformers' DynamicLayer: its keys are a new tensor after every step."""

    def __init__(self, length, seed):
        self.keys, self.seed = random(2, 3, length, 8, seed=seed), seed

    def step(self, copies, added=1):
        copies.see(0, self.keys)
        self.keys = torch.cat([self.keys, random(2, 3, added, 8, seed=self.seed + self.keys.shape[2])], 2)
        held = copies.copies[0].length if 0 in copies.copies else 0
        goes_on = 0 in copies.goes_on and held + added == self.keys.shape[2]
        made = copies.of(0, self.keys, added)
        assert torch.equal(made.values(), holding(self.keys).values())
        return goes_on


def test_a_copy_goes_on_with_its_own_cache_alone():
    copies, cache, other = CopiesOfCache(), Cache(50, 0), Cache(52, 100)
    assert not cache.step(copies) and cache.step(copies) and cache.step(copies, added=3)
    cache.keys = cache.keys[torch.tensor([1, 0])]  # beam search
    assert not cache.step(copies) and cache.step(copies)
    cache.keys = cache.keys[:, :, :-2]
    assert not cache.step(copies, added=2) and cache.step(copies)
    cache.keys.mul_(2)
    assert not cache.step(copies) and cache.step(copies)
    other.keys = random(2, 3, cache.keys.shape[2], 8, seed=9)  # as long as what the copy holds
    assert not other.step(copies) and not cache.step(copies) and not other.step(copies) and other.step(copies)
    copies.see(0, None)
    assert 0 not in copies.goes_on
    copies.forget(0)
    assert not copies.copies and not other.step(copies)


@pytest.fixture(scope="module")
def model():
    return llama(**DEEP)


@pytest.fixture(scope="module")
def plan(model):
    return kascade.plan(model, list(windows(2)), anchors=2, tile=4, least_keys=5, budget=0.2).plan


def in_use(model, plan, **options):
    model = copy.deepcopy(model)
    kascade.apply(model, plan, keys_in_8_bits=True, **options)
    return model, model.model.layers[0].self_attn.splash_kascade


def checked(monkeypatch):
    """Every step's copy is held against its keys. Returns, of the anchors' steps, whether the copy went on."""
    went_on, of = [], CopiesOfCache.of

    def call(self, layer, k, added):
        held = self.copies[layer].length if layer in self.copies else 0
        went_on.append(layer in self.goes_on and held + added == k.shape[2])
        made = of(self, layer, k, added)
        assert torch.equal(made.values(), holding(k).values())
        return made

    monkeypatch.setattr(CopiesOfCache, "of", call)
    return went_on


def test_generate_makes_a_copy_and_adds_to_it(model, plan, monkeypatch):
    (ours, reuse), went_on = in_use(model, plan), checked(monkeypatch)
    for length in (24, 24 + 5, 10):  # the second as long as what the first one left
        went_on.clear()
        with torch.inference_mode():
            ours.generate(windows(2, length), **GENERATE)
        assert went_on == [False] + [True] * 4  # 5 steps of one anchor: layer 0 reads all keys anyway
        assert {layer: made.length for layer, made in reuse.copies.copies.items()} == dict.fromkeys(plan.anchors[1:], length + 5)
    with torch.inference_mode():
        ours(windows(1))
    assert not reuse.copies.copies  # a prefill needs none


def test_beams_have_their_copies_made_anew(model, plan, monkeypatch):
    (ours, _), went_on = in_use(model, plan), checked(monkeypatch)
    with torch.inference_mode():
        ours.generate(windows(2, 20), **GENERATE, num_beams=3)
    assert went_on and not any(went_on)


def test_caches_in_turns_are_told_apart(model, plan, monkeypatch):
    from transformers import DynamicCache

    (ours, _), went_on = in_use(model, plan), checked(monkeypatch)
    caches, ids = [DynamicCache(config=ours.config) for _ in range(2)], windows(2, 30)
    with torch.inference_mode():
        for at, cache in enumerate(caches):
            ours(ids[at : at + 1, : 20 + at], past_key_values=cache)
        for end in range(22, 26):
            for at, cache in enumerate(caches):
                ours(ids[at : at + 1, end - 2 + at : end - 1 + at], past_key_values=cache)
        assert went_on == [False] * 8
        for end in range(26, 28):
            ours(ids[1:2, end : end + 1], past_key_values=caches[1])
        assert went_on[8:] == [True] * 2


def test_all_keys_in_8_bits_are_all_keys(model, plan):
    ids = windows(2, 24)
    (ours, _), exact = in_use(model, plan, budget=1.0), copy.deepcopy(model)
    with torch.inference_mode():
        assert torch.equal(ours.generate(ids, **GENERATE), exact.generate(ids, **GENERATE))


def test_steps_of_a_padded_batch_choose_by_keys_in_8_bits(model, plan, monkeypatch):
    (ours, _), went_on = in_use(model, plan), checked(monkeypatch)
    ids = windows(2, 24)
    mask = torch.ones_like(ids)
    mask[1, :11] = 0
    with torch.inference_mode():
        generated = ours.generate(ids, attention_mask=mask, **GENERATE)
        assert went_on == [False] + [True] * 4  # 5 steps of one anchor: layer 0 reads all keys anyway
        assert torch.equal(generated[0], ours.generate(ids[:1], **GENERATE)[0])
        assert torch.equal(generated[1, 11:], ours.generate(ids[1:, 11:], **GENERATE)[0])
        went_on.clear()
        mask[:, 5] = 1  # of the second between its padding
        assert ours.generate(ids, attention_mask=mask, **GENERATE).shape == generated.shape and not went_on


def test_long_chunks_choose_by_the_keys_themselves(model, plan, monkeypatch):
    from transformers import DynamicCache

    (ours, reuse), went_on = in_use(model, plan), checked(monkeypatch)
    ids, cache = windows(2, 24), DynamicCache(config=ours.config)
    with torch.inference_mode():
        ours(ids[:, :10], past_key_values=cache)
        ours(ids[:, 10:20], past_key_values=cache)  # 10 queries are more than a tile
    assert not went_on and not reuse.copies.copies
    with torch.inference_mode():
        ours(ids[:, 20:23], past_key_values=cache)
        ours(ids[:, 23:], past_key_values=cache)
    assert went_on == [False, True]


@pytest.mark.parametrize("by", ["generate", "steps"])
def test_a_tokenizers_mask_of_ones_is_no_padding(model, plan, monkeypatch, by):
    from transformers import DynamicCache

    (ours, _), went_on = in_use(model, plan), checked(monkeypatch)
    ids, cache = windows(2, 24), DynamicCache(config=ours.config)
    mask = torch.ones_like(ids)
    with torch.inference_mode():
        if by == "generate":
            ours.generate(ids, attention_mask=mask, **GENERATE)
        else:
            ours(ids[:, :20], attention_mask=mask[:, :20], past_key_values=cache)
            ours(ids[:, 20:23], attention_mask=mask[:, :23], past_key_values=cache)
            ours(ids[:, 23:], attention_mask=mask, past_key_values=cache)
    assert went_on[:2] == [False, True]


def test_another_implementation_gives_the_memory_back(model, plan):
    ours, reuse = in_use(model, plan)
    with torch.inference_mode():
        ours.generate(windows(1, 20), **GENERATE)
        assert reuse.copies.copies
        ours.set_attn_implementation("sdpa")
        assert torch.equal(ours(windows(1)).logits, model(windows(1)).logits)
    assert not reuse.copies.copies


def test_a_plan_without_them_keeps_none(model, plan):
    ours, _ = in_use(model, plan)
    kascade.apply(ours, plan)
    with torch.inference_mode():
        ours.generate(windows(1, 20), **GENERATE)
    assert ours.model.layers[0].self_attn.splash_kascade.copies is None
    assert Reuse(plan).copies is None


@pytest.mark.parametrize("kind", ["kascade", "tile-top-k"])
def test_methods_choose_by_rounded_keys_and_attend_to_the_keys(tmp_path, kind):
    """What the choice costs is told by perplexity: a method whose every call chooses as steps of decoding do."""
    ours, path, ids = llama(**DEEP), tmp_path / "plan.toml", windows(1, 40)
    for layer in ours.model.layers:  # one channel's numbers are so large that 8 bits hold little of the others
        for projection, factor in ((layer.self_attn.q_proj, 1 / 200), (layer.self_attn.k_proj, 200)):
            projection.weight.data.unflatten(0, (-1, 16))[:, 0] *= factor
    plan = kascade.plan(ours, [ids], anchors=2, budget=0.2, tile=4, least_keys=5, path=path).plan
    text = f"kascade:plan={path}" if kind == "kascade" else "tile-top-k:budget=0.2,tile=4,least_keys=5"
    found = {}
    for bits in ("", ",bits=8"):
        with torch.inference_mode(), applied(ours, Method.parse(text + bits)), observed(found.setdefault(bits, []).append):
            ours(ids)
    anchors = plan.anchors if kind == "kascade" else range(5)
    for call in found[",bits=8"]:
        if call.layer not in anchors or (kind == "kascade" and call.layer == 0):  # layer 0 attends to all keys
            continue
        held = tile_keys(call.query, holding(call.key).values(), call.scaling, BUDGET)
        out, _ = attend_to(held, call.query, call.key, call.value, BUDGET, call.scaling)
        torch.testing.assert_close(call.out, out, rtol=1e-5, atol=1e-6)
    assert torch.equal(found[""][0].out, found[",bits=8"][0].out) == (kind == "kascade")
    assert not torch.equal(found[""][-1].out, found[",bits=8"][-1].out)
