"""Kascade: plans of models, and what attends by them, against a plain implementation row by row and tile by tile."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tiny_llama import llama, one_thread, torch, windows  # noqa: F401

from splash_attention import capture, kascade
from splash_attention.language import Attention, Method, applied, apply, perplexity
from splash_attention.hugging_face import key_positions
from splash_attention.hugging_face.learning import attention_layers
from splash_attention.kascade.attention import Budget, tile_keys
from splash_attention.language.attention import observed
from splash_attention.language.chosen_keys import choose_and_attend

DEEP = {"num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}
TILE, LEAST = 4, 5


def plan_of(model, anchors=2, **options):
    return kascade.plan(model, list(windows(2)), anchors=anchors, tile=TILE, least_keys=LEAST, budget=0.2, **options)


def keys_kept(budget, visible, own):
    return min(visible, max(math.ceil(budget * visible), LEAST, own))


def by_hand_sets(q, k, scaling, budget):
    """[kv_head][tile]: sets of keys, by sums in float64."""
    group, length = q.shape[1] // k.shape[1], q.shape[2]
    sets = []
    for head in range(k.shape[1]):
        sets.append([])
        for begin in range(0, length, TILE):
            end = min(begin + TILE, length)
            sums = torch.zeros(end, dtype=torch.float64)
            for h in range(head * group, (head + 1) * group):
                for row in range(begin, end):
                    sums[: row + 1] += torch.softmax(k[0, head, : row + 1].double() @ q[0, h, row].double() * scaling, 0)
            own = set(range(begin, end))
            others = sorted(set(range(begin)), key=lambda key: (-sums[key].item(), key))
            sets[-1].append(own | set(others[: keys_kept(budget, end, end - begin) - len(own)]))
    return sets


def by_hand_out(q, k, v, scaling, kept):
    """kept: (query head, row) -> keys."""
    out, support = torch.zeros_like(q, dtype=torch.float64), torch.zeros(q.shape[:3], dtype=torch.int64)
    for head in range(q.shape[1]):
        keys, values = (t[0, head // (q.shape[1] // k.shape[1])].double() for t in (k, v))
        for row in range(q.shape[2]):
            taken = sorted(key for key in kept(head, row) if key <= row)
            out[0, head, row] = torch.softmax(keys[taken] @ q[0, head, row].double() * scaling, 0) @ values[taken]
            support[0, head, row] = len(taken)
    return out, support


def calls_of(model, method, ids):
    calls = []
    with torch.inference_mode(), applied(model, method), observed(calls.append):
        model(ids, use_cache=False)
    return calls


def check(call, kept):
    out, support = by_hand_out(call.query, call.key, call.value, call.scaling, kept)
    torch.testing.assert_close(call.out.double(), out, rtol=1e-4, atol=1e-5)
    assert torch.equal(call.support, support)


def test_a_model_under_a_plan_is_what_its_definition_says(tmp_path):
    model, path = llama(**DEEP), tmp_path / "plan.toml"
    planned = plan_of(model, path=path)
    assert planned.plan.anchors == [0, planned.plan.anchors[1]] and len(planned.plan.heads) == 5
    assert any(heads != [0, 1, 2] for heads in planned.plan.heads)
    for text, budget in ((f"kascade:plan={path}", 0.2), (f"kascade:plan={path},budget=0.4", 0.4)):
        calls = calls_of(model, Method.parse(text), windows(1))
        assert [call.layer for call in calls] == list(range(5))
        sets = {}
        for call in calls:
            anchor, heads = planned.plan.anchor_of[call.layer], planned.plan.heads[call.layer]
            if anchor == call.layer:
                sets = by_hand_sets(call.query, call.key, call.scaling, budget)
            if call.layer == 0:
                check(call, lambda head, row: range(row + 1))
            else:
                check(call, lambda head, row: sets[heads[head // 2]][row // TILE])


def test_every_layer_an_anchor_is_the_oracle(tmp_path):
    model, path = llama(**DEEP), tmp_path / "plan.toml"
    plan_of(model, anchors=5, path=path)
    method = Method.parse(f"tile-top-k:budget=0.2,tile={TILE},least_keys={LEAST},dense=1")
    assert method.of(0) == Attention() and method.of(1).kind == "tile-top-k"
    calls = calls_of(model, method, windows(1))
    for call in calls[1:]:
        sets = by_hand_sets(call.query, call.key, call.scaling, 0.2)
        check(call, lambda head, row: sets[head // 2][row // TILE])
    with torch.inference_mode():
        with applied(model, method):
            wanted = model(windows(1)).logits
        with applied(model, Method.parse(f"kascade:plan={path}")):
            assert torch.equal(model(windows(1)).logits, wanted)
        with applied(model, Method.parse(f"kascade:plan={path},budget=1")):
            torch.testing.assert_close(model(windows(1)).logits, model(windows(1), use_cache=False).logits)


def test_pages_are_those_of_the_largest_bounds():
    model, page = llama(**DEEP), 4
    for call in calls_of(model, Method.parse(f"pages:budget=0.3,page={page},least_keys={LEAST}"), windows(1)):
        k = call.key[0].double()

        def kept(head, row):
            q, keys = call.query[0, head, row].double(), k[head // 2]
            own = row // page
            bounds = []
            for at in range(own):
                part = keys[at * page : (at + 1) * page]
                bounds.append(torch.maximum(q * part.amin(0), q * part.amax(0)).sum().item())
            wanted = -(-keys_kept(0.3, row + 1, 1) // page) - 1
            best = sorted(range(own), key=lambda at: -bounds[at])[:wanted]
            return {key for at in [*best, own] for key in range(at * page, (at + 1) * page)}

        check(call, kept)


def test_ties_go_to_the_lower_key():
    random = torch.Generator().manual_seed(3)
    q, k = (torch.randint(-1, 2, (1, heads, 41, 4), generator=random).float() for heads in (4, 2))
    for budget in (0.1, 0.5):
        keys = tile_keys(q, k, 0.5, Budget(budget, TILE, LEAST))
        wanted = by_hand_sets(q, k, 0.5, budget)
        for head in range(2):
            for tile, kept in enumerate(wanted[head]):
                found = [key for key in keys[0, head, tile].tolist() if key < 41]
                assert len(found) == len(kept) and found == sorted(found) and set(found) >= set(range(tile * TILE, min((tile + 1) * TILE, 41)))
    q[:] = 0  # every key weighs the same in a row; the first are seen by all rows
    keys = tile_keys(q, k, 0.5, Budget(0.5, TILE, LEAST))
    assert keys[0, 0, 5].tolist() == [*range(8), 20, 21, 22, 23, *[41] * 9]


def test_a_few_rows_at_a_time_are_the_same(monkeypatch, tmp_path):
    from splash_attention.kascade import attention as shared
    from splash_attention.language import dense_methods

    model, path = llama(**DEEP), tmp_path / "plan.toml"
    plan_of(model, path=path)
    methods = [Method.parse(text) for text in (f"kascade:plan={path}", "pages:budget=0.2,page=4,least_keys=5")]
    for method in methods:
        wanted = calls_of(model, method, windows(1))
        with monkeypatch.context() as patched:
            for module in (dense_methods, shared):
                patched.setattr(module, "_SCORES", 6 * 40 * 9)
            patched.setattr(shared, "_GATHERED", 3 * 9 * 32 * 2)
            for one, other in zip(calls_of(model, method, windows(1)), wanted):
                torch.testing.assert_close(one.out, other.out, rtol=1e-4, atol=1e-4)
                assert torch.equal(one.support, other.support)


def test_a_plan_is_made_of_the_models_own_attention():
    model = llama(**DEEP)
    planned = plan_of(model)
    similarity, importance = planned.similarity, planned.importance
    assert similarity.shape == (5, 3, 5, 3) and (similarity[1, :, 0] == 0).all() and similarity.max() <= 1
    states = []
    with torch.inference_mode():
        for ids in windows(2):
            hooks = [layer.register_forward_pre_hook(lambda _, given: states.append(given[0])) for layer in model.model.layers]
            hooks += [layer.post_attention_layernorm.register_forward_pre_hook(lambda _, given: states.append(given[0])) for layer in model.model.layers]
            model(ids[None], use_cache=False)
            for hook in hooks:
                hook.remove()
    turns = [1 - torch.cosine_similarity(a[0].double(), b[0].double(), dim=-1).mean().item() for a, b in zip(states[::2], states[1::2])]
    np.testing.assert_allclose(importance, np.reshape(turns, (2, 5)).mean(0), atol=1e-9)
    np.testing.assert_allclose(planned.plan.importance, importance)
    calls = calls_of(model, Method(), windows(2)[:1])
    sets = {call.layer: by_hand_sets(call.query, call.key, call.scaling, 0.2) for call in calls}
    one = kascade.plan(model, windows(2)[:1], anchors=1, tile=TILE, least_keys=LEAST, budget=0.2).similarity
    for a, b, head, other in ((0, 2, 1, 2), (1, 4, 0, 0), (3, 3, 2, 1)):
        call, shares = calls[b], []
        for tile in range(10):
            mass = 0.0
            for h in range(other * 2, other * 2 + 2):
                for row in range(tile * TILE, (tile + 1) * TILE):
                    p = torch.softmax(call.key[0, other, : row + 1].double() @ call.query[0, h, row].double() * call.scaling, 0)
                    mass += sum(p[key].item() for key in sets[a][head][tile] if key <= row)
            shares.append(mass / (2 * TILE))
        assert one[a, head, b, other] == pytest.approx(np.mean(shares), abs=1e-6)


def test_permuted_heads_are_found():
    """Layers 1 and 2 attend as layer 0 does, with their key heads in another order."""
    model = llama(num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3, hidden_size=96)
    first, orders = model.model.layers[0], ([2, 0, 1], [1, 2, 0])
    with torch.no_grad():
        first.self_attn.o_proj.weight.zero_()
        first.mlp.down_proj.weight.zero_()
        for layer, order in zip(model.model.layers[1:], orders):
            layer.load_state_dict(first.state_dict())
            for name, rows in (("q_proj", 32), ("k_proj", 16)):
                weight = getattr(layer.self_attn, name).weight
                weight.copy_(getattr(first.self_attn, name).weight.unflatten(0, (3, rows))[order].flatten(0, 1))
    plan = plan_of(model, anchors=1, importance=[1, 1, 1]).plan
    assert plan.heads == [[0, 1, 2], *orders] and plan.identities == 0 and plan.similarity[1] == pytest.approx(plan.similarity[0])


def test_captures_hold_importances(tmp_path):
    import h5py

    model = llama(**DEEP)
    with torch.no_grad(), capture(model, tmp_path / "with.h5", importances=True), capture(model, tmp_path / "without.h5"):
        for ids in windows(2):
            model(ids[None], use_cache=False)
    with h5py.File(tmp_path / "with.h5") as held, h5py.File(tmp_path / "without.h5") as without:
        found = np.mean([held[f"call-{at}/importance"][()] for at in range(2)], 0)
        assert "importance" not in without["call-0"]
    np.testing.assert_allclose(found, plan_of(model).importance)


def test_perplexity_of_more_keys_comes_nearer_to_softmax(tmp_path):
    model, path = llama(**DEEP), tmp_path / "plan.toml"
    plan_of(model, path=path)
    softmax = perplexity(model, windows(), looked_at=1)
    few, many, all_keys = (perplexity(model, windows(), Method.parse(f"kascade:plan={path},budget={b}"), looked_at=1) for b in (0.1, 0.5, 1))
    assert all_keys.nll == pytest.approx(softmax.nll, abs=1e-5) and np.median(few.layer_nmse) > np.median(many.layer_nmse) > 1e-4
    assert few.support_mean[1:].mean() < many.support_mean[1:].mean() < softmax.support_mean[1:].mean()


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda model, path: Method.parse("kascade"), "kascade needs plan"),
        (lambda model, path: Method.parse("kascade:plan=nowhere.toml"), "cannot read plan nowhere.toml"),
        (lambda model, path: Method.parse(f"kascade:plan={path},budget=0"), "budget is 0.0; it must be finite and above 0"),
        (lambda model, path: Method.parse(f"kascade:plan={path},budget=1.5"), "budget is 1.5; it must be above 0 and at most 1"),
        (lambda model, path: Method.parse(f"kascade:plan={path},dense=1"), "'dense=1' of .* is no setting"),
        (lambda model, path: Method.parse("pages:page=4"), "pages needs budget"),
        (lambda model, path: Method.parse("tile-top-k:budget=0.1,tile=0"), "tile is 0; it must be at least 1"),
        (lambda model, path: Method.parse("tile-top-k:budget=0.1,bits=4"), "bits is 4; it must be 8, or left out"),
        (lambda model, path: Attention("pages", budget=0.1, bits=8), "pages has no bits"),
        (lambda model, path: Attention("softmax", page=8), "softmax has no page"),
        (lambda model, path: apply(llama(), Method.parse(f"kascade:plan={path}")), "the plan is of 5 layers of 6 query heads; the model has 2 of 4"),
        (lambda model, path: apply(model, Method(Method.parse(f"kascade:plan={path}").default, {2: Attention()})), "kascade is a method of all layers"),
        (lambda model, path: kascade.read_plan(path.parent), "cannot read plan"),
        (lambda model, path: plan_of(model, anchors=6), "anchors is 6; it must be from 1 to 5, the layers"),
        (lambda model, path: plan_of(model, tiles=0), "tiles is 0; it must be at least 1, or None for all"),
        (lambda model, path: plan_of(model, over_tiles="most"), "tiles are joined by 'most'; allowed are mean and minimum"),
        (lambda model, path: plan_of(model, importance=[1.0]), "importance has 1 entries; there is one for each of the 5 layers"),
        (lambda model, path: plan_of(model, alpha=0.5), "alpha is 0.5"),
        (lambda model, path: kascade.plan(model, [], anchors=1), "there is no text; a plan needs one or more"),
        (lambda model, path: kascade.plan(model, ["text"], anchors=1), "a text must be token ids"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(make, said, tmp_path):
    model, path = llama(**DEEP), tmp_path / "plan.toml"
    plan_of(model, path=path)
    with pytest.raises(ValueError, match=said):
        make(model, path)
    assert model.config._attn_implementation == "sdpa"


def test_padding_and_cut_models_are_told(tmp_path):
    model, path = llama(**DEEP), tmp_path / "plan.toml"
    plan_of(model, path=path)
    mask = torch.ones(1, 12, dtype=torch.long)
    mask[0, :3] = 0
    with pytest.raises(NotImplementedError, match="a plan takes no padding"):
        kascade.plan(model, [{"input_ids": windows(1, 12), "attention_mask": mask}], anchors=1)
    with applied(model, Method.parse("pages:budget=0.1")), pytest.raises(NotImplementedError, match="pages takes no padding"):
        model(windows(1, 12), attention_mask=mask)
    apply(model, Method.parse(f"kascade:plan={path}"))
    reusing = next(layer for layer in range(5) if kascade.read_plan(path).anchor_of[layer] != layer)
    module = attention_layers(model)[reusing]
    module.splash_kascade.anchor = -1
    from splash_attention.language.attention import attention_forward

    q, kv = torch.zeros(1, 6, 8, 16), torch.zeros(1, 3, 8, 16)
    with pytest.raises(ValueError, match="did not attend before it in this call"):
        attention_forward(module, q, kv, kv, None)


def test_a_plan_is_written_and_read(tmp_path):
    model = llama(**DEEP)
    planned = plan_of(model, alpha=1.5, over_tiles="minimum", tiles=3, name="tiny \"one\"")
    kascade.write_plan(planned.plan, tmp_path / "plan.toml")
    again = kascade.read_plan(tmp_path / "plan.toml")
    assert again == planned.plan and again.model == 'tiny "one"' and (again.normalizer, again.alpha) == ("entmax", 1.5)
    assert (again.tile, again.budget, again.least_keys, again.over_tiles) == (TILE, 0.2, LEAST, "minimum")
    (tmp_path / "plan.toml").write_text("schema = 1")
    with pytest.raises(ValueError, match="plan.toml:1: 'schema' must be text"):
        kascade.read_plan(tmp_path / "plan.toml")


def test_with_a_cache_each_new_query_is_a_tile(tmp_path):
    model, path, ids = llama(**DEEP), tmp_path / "plan.toml", windows(1, 24)
    plan_of(model, path=path)
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    pages = Method.parse(f"pages:budget=0.3,page=4,least_keys={LEAST}")
    with torch.inference_mode(), applied(model, pages):
        slow = ids
        for _ in range(4):
            slow = torch.cat([slow, model(slow, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)], 1)
        assert torch.equal(model.generate(ids, **options), slow)
    calls, method = [], Method.parse(f"kascade:plan={path}")
    with torch.inference_mode(), applied(model, method), observed(calls.append):
        model.generate(ids, **options)
    plan, last = kascade.read_plan(path), calls[-5:]
    for call in last:
        anchor, heads = last[plan.anchor_of[call.layer]], plan.heads[call.layer]
        assert call.query.shape[2] == 1 and call.key.shape[2] == 27
        if call.layer > 0:
            sets = [_last_set(anchor, head) for head in range(3)]
            out = torch.stack([_attend(call, head, sets[heads[head // 2]]) for head in range(6)])
            torch.testing.assert_close(call.out[0, :, 0].double(), out, rtol=1e-4, atol=1e-5)


def test_pages_take_a_mask_that_hides_nothing():
    """Older versions of transformers make one in `generate`."""
    q, k = torch.randn(1, 6, 1, 16), torch.randn(1, 3, 40, 16)
    ones, how = torch.ones(1, 40, dtype=torch.int64), Attention("pages", budget=0.3, page=4, least_keys=5)
    mask = key_positions(1, 1, 40, 39, attention_mask=ones)
    assert mask is not None
    for one, other in zip(choose_and_attend(q, k, k, how, 0.25, mask), choose_and_attend(q, k, k, how, 0.25, None)):
        assert torch.equal(one, other)
    ones[0, 3] = 0
    with pytest.raises(NotImplementedError, match="pages takes no padding"):
        choose_and_attend(q, k, k, how, 0.25, key_positions(1, 1, 40, 39, attention_mask=ones))


def _last_set(call, head):
    sums = sum(torch.softmax(call.key[0, head].double() @ call.query[0, h, 0].double() * call.scaling, 0) for h in (2 * head, 2 * head + 1))
    kept = keys_kept(0.2, 27, 1)
    return sorted([26, *sorted(range(26), key=lambda key: -sums[key].item())[: kept - 1]])


def _attend(call, head, keys):
    k, v = (t[0, head // 2, keys].double() for t in (call.key, call.value))
    return torch.softmax(k @ call.query[0, head, 0].double() * call.scaling, 0) @ v
