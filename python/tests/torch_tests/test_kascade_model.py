"""attn_implementation="splash-kascade": a plan in a model, prefill and generate, with softmax and entmax, padding and gradients."""

from __future__ import annotations

import copy

import pytest

from tiny_llama import llama, one_thread, torch, transformers, windows  # noqa: F401

from splash_attention import entmax, kascade
from splash_attention.hugging_face import key_positions
from splash_attention.kascade.attention import Budget, attend_to, attend_to_all, attend_to_all_and_find, tile_keys
from splash_attention.language import Method, applied

DEEP = {"num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}
TILE, LEAST = 4, 5
GENERATE = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}


@pytest.fixture(scope="module")
def model():
    return llama(**DEEP)


def plan_of(model, alpha=None):
    return kascade.plan(model, list(windows(2)), anchors=2, tile=TILE, least_keys=LEAST, budget=0.2, alpha=alpha).plan


@pytest.fixture(scope="module")
def plan(model):
    return plan_of(model)


def in_use(model, plan, **options):
    model = copy.deepcopy(model)
    kascade.apply(model, plan, **{"exact": False, **options})
    return model


def dense(q, k, v, kept, alpha):
    """By all scores in float64. kept: bool [batch, kv_heads, q_len, kv_len], beside causality."""
    group, (q_len, kv_len) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    q, k, v = (one.double() for one in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)))
    seen = kept.repeat_interleave(group, 1) & torch.ones(q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len)
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
    p = torch.softmax(scores, -1) if alpha is None else entmax(scores, alpha)
    return p @ v, (p > 0).sum(-1)


def kept_of(keys, q_len, kv_len):
    kept = torch.zeros(*keys.shape[:3], kv_len + 1, dtype=torch.bool).scatter_(-1, keys.long(), True)[..., :-1]
    return kept.repeat_interleave(TILE, 2)[:, :, :q_len]


def tensors(q_len, kv_len, seed=0, dim=16):
    random = torch.Generator().manual_seed(seed)
    return (torch.randn(2, heads, length, dim, generator=random) * 2 for heads, length in ((6, q_len), (3, kv_len), (3, kv_len)))


@pytest.mark.parametrize("alpha", [None, 1.25, 1.5, 2.0])
@pytest.mark.parametrize("q_len, kv_len", [(40, 40), (23, 23), (1, 17), (3, 30), (9, 30), (4, 4), (1, 1)])
def test_reuse_is_attention_to_the_shared_keys(alpha, q_len, kv_len):
    q, k, v = tensors(q_len, kv_len, seed=q_len)
    keys = tile_keys(q, k, 0.25, Budget(0.2, TILE, LEAST), alpha=alpha)
    assert keys.shape[:3] == (2, 3, -(-q_len // TILE)) and (keys.diff(dim=-1) >= 0).all()
    out, support = attend_to(keys, q, k, v, Budget(0.2, TILE, LEAST), 0.25, alpha=alpha, return_support=True)
    wanted, counted = dense(q, k, v, kept_of(keys, q_len, kv_len), alpha)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(support.long(), counted)


@pytest.mark.parametrize("alpha", [None, 1.5])
def test_all_keys_are_dense_attention(alpha):
    q, k, v = tensors(37, 37)
    keys = tile_keys(q, k, 0.25, Budget(1.0, TILE, LEAST), alpha=alpha)
    out, _ = attend_to(keys, q, k, v, Budget(1.0, TILE, LEAST), 0.25, alpha=alpha)
    torch.testing.assert_close(out.double(), dense(q, k, v, torch.ones(2, 3, 37, 37, dtype=torch.bool), alpha)[0], rtol=1e-4, atol=1e-5)


def test_entmax_unites_what_a_tiles_queries_read():
    """Where the budget holds the union of the supports, reuse by the anchor itself leaves out nothing."""
    q, k, v = tensors(32, 32, seed=4)
    everything = torch.ones(2, 3, 32, 32, dtype=torch.bool)
    out, support = dense(q, k, v, everything, 1.5)
    keys = tile_keys(q, k, 0.25, Budget(0.9, TILE, LEAST), alpha=1.5)
    done, kept = attend_to(keys, q, k, v, Budget(0.9, TILE, LEAST), 0.25, alpha=1.5, return_support=True)
    torch.testing.assert_close(done.double(), out, rtol=1e-4, atol=1e-5)
    assert torch.equal(kept.long(), support)


@pytest.mark.parametrize("alpha", [None, 1.5])
def test_gradients_are_those_of_the_shared_keys(alpha):
    given = [one.requires_grad_() for one in tensors(21, 21, seed=6)]
    keys = tile_keys(*(one.detach() for one in given[:2]), 0.25, Budget(0.3, TILE, LEAST), alpha=alpha)
    weights = torch.randn(2, 6, 21, 16, generator=torch.Generator().manual_seed(1))
    (attend_to(keys, *given, Budget(0.3, TILE, LEAST), 0.25, alpha=alpha)[0] * weights).sum().backward()
    found = [one.grad.double() for one in given]
    for one in given:
        one.grad = None
    (dense(*given, kept_of(keys, 21, 21), alpha)[0] * weights).sum().backward()
    for ours, theirs in zip(found, given):
        torch.testing.assert_close(ours, theirs.grad.double(), rtol=1e-3, atol=1e-4)


def test_a_query_of_nan_spoils_no_other():
    q, k, v = tensors(16, 16)
    q[0, 1, 6] = torch.nan
    keys = tile_keys(q, k, 0.25, Budget(0.3, TILE, LEAST))
    out, _ = attend_to(keys, q, k, v, Budget(0.3, TILE, LEAST), 0.25)
    spoiled = out.isnan().any(-1)
    assert spoiled[0, 1, 6] and spoiled.sum() == 1
    others = [(head, row) for head in (0, 1) for row in range(4, 8) if (head, row) != (1, 6)]  # of its tile; they alone choose keys
    sums = sum(torch.nn.functional.pad(torch.softmax(k[0, 0, : row + 1] @ q[0, head, row] * 0.25, 0), (0, 7 - row)) for head, row in others)
    wanted = sorted([*range(4, 8), int(sums[:4].argmax())])
    assert [key for key in keys[0, 0, 1].tolist() if key < 16] == wanted and sums[:4].argmax() > 0


def test_keys_of_another_call_are_refused(plan):
    from splash_attention.kascade.attention import Reuse

    in_use = Reuse(plan)
    reusing = next(layer for layer, anchor in enumerate(plan.anchor_of) if anchor != layer)
    in_use.attend(plan.anchor_of[reusing], *tensors(12, 12), 0.25)
    assert in_use.attend(reusing, *tensors(12, 12), 0.25)[0].shape == (2, 6, 12, 16)
    for q_len, kv_len in ((12, 13), (1, 12)):
        with pytest.raises(ValueError, match="which did not attend before it in this call"):
            in_use.attend(reusing, *tensors(q_len, kv_len), 0.25)


@pytest.mark.parametrize("alpha", [None, 1.5])
def test_a_model_generates_under_a_plan(model, plan, alpha, tmp_path):
    plan = plan if alpha is None else plan_of(model, alpha)
    kascade.write_plan(plan, tmp_path / "plan.toml")
    ours, ids = in_use(model, tmp_path / "plan.toml"), windows(2, 24)
    assert ours.config._attn_implementation == "splash-kascade"
    with torch.inference_mode():
        wanted = ours.generate(ids, **GENERATE)
        static = ours.generate(ids, **GENERATE, cache_implementation="static")
        with applied(model, Method.parse(f"kascade:plan={tmp_path / 'plan.toml'}")):
            method = model.generate(ids, **GENERATE)
    assert torch.equal(wanted, static) and torch.equal(wanted, method)


def test_a_plan_of_entmax_is_exact(model, tmp_path):
    """What attn_implementation="splash" gives, unless sets are asked for."""
    exact, sets, ids = in_use(model, plan_of(model, 1.5), exact=None), in_use(model, plan_of(model, 1.5)), windows(2, 24)
    own = copy.deepcopy(model)
    own.config.splash_alpha = 1.5
    own.set_attn_implementation("splash")
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    with torch.inference_mode():
        for given in ({"inputs": ids}, {"inputs": ids, "attention_mask": mask}):
            wanted = own.generate(**given, **GENERATE)
            assert torch.equal(exact.generate(**given, **GENERATE), wanted)
        assert not torch.equal(sets.generate(ids, **GENERATE), own.generate(ids, **GENERATE))


def test_more_keys_come_nearer_to_the_models_own(model, plan):
    ids = windows(2)
    with torch.inference_mode():
        own = model(ids).logits
        far = [(in_use(model, plan, budget=share)(ids).logits - own).abs().max().item() for share in (0.1, 0.5, 1.0)]
    assert far[0] > far[1] > 1e-3 > far[2]


@pytest.mark.parametrize("alpha", [None, 1.5])
@pytest.mark.parametrize("q_len, kv_len, starts", [(23, 23, (0, 9)), (9, 30, (2, 25)), (3, 30, (0, 28)), (1, 17, (16, 5)), (4, 4, (1, 3))])
def test_each_sequence_of_a_batch_padded_on_the_left_is_as_if_alone(alpha, q_len, kv_len, starts):
    """By queries of one tile and of more, some of padding."""
    given, budget = [one.requires_grad_() for one in tensors(q_len, kv_len, seed=kv_len)], Budget(0.2, TILE, LEAST)
    there = torch.arange(kv_len) >= torch.tensor(starts)[:, None]
    mask = key_positions(2, q_len, kv_len, q_offset=kv_len - q_len, attention_mask=there.long())
    dense, seen, found = attend_to_all_and_find(*given, budget, 0.25, mask, alpha, return_support=True)
    keys = tile_keys(*given[:2], 0.25, budget, mask, alpha)
    assert torch.equal(found, keys) and (keys.diff(dim=-1) >= 0).all()
    out, support = attend_to(keys, *given, budget, 0.25, mask, alpha, return_support=True)
    for at, start in enumerate(starts):
        before = max(0, start - (kv_len - q_len))
        q, k, v = given[0][at : at + 1, :, before:], *(one[at : at + 1, :, start:] for one in given[1:])
        wanted_dense, wanted_seen, wanted = attend_to_all_and_find(q, k, v, budget, 0.25, None, alpha, return_support=True)
        tiles, kept = wanted.shape[2:]
        assert torch.equal(keys[at : at + 1, :, :tiles, :kept] - start, wanted) and (keys[at, :, :tiles, kept:] == kv_len).all()
        wanted_out, wanted_support = attend_to(wanted, q, k, v, budget, 0.25, None, alpha, return_support=True)
        for ours, theirs in ((dense, wanted_dense), (out, wanted_out), (seen, wanted_seen), (support, wanted_support)):
            torch.testing.assert_close(ours[at : at + 1, :, before:], theirs, rtol=1e-4, atol=1e-5, check_dtype=False)
            assert (ours[at, :, :before] == 0).all()
        if at == 1:
            gradients = (torch.autograd.grad((x * x).sum(), given, retain_graph=True) for x in (out[1:, :, before:], wanted_out))
            for ours, theirs in zip(*gradients):
                torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("alpha", [None, 1.5])
def test_padding_on_the_left_changes_nothing(model, plan, alpha):
    """The budget is a share of what a query sees, and padding is not seen."""
    from transformers import DynamicCache

    ours, long, short = in_use(model, plan if alpha is None else plan_of(model, alpha)), windows(1, 32), windows(2, 32)[1:, :21]
    ids = torch.cat([long, torch.nn.functional.pad(short, (11, 0))])
    mask, cache = torch.ones_like(ids), DynamicCache(config=ours.config)
    mask[1, :11] = 0
    with torch.inference_mode():
        together = ours(ids, attention_mask=mask, use_cache=False).logits
        torch.testing.assert_close(together[0], ours(long, use_cache=False).logits[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(together[1, 11:], ours(short, use_cache=False).logits[0], rtol=1e-4, atol=1e-4)
        assert together.isfinite().all()
        generated = ours.generate(ids, attention_mask=mask, **GENERATE)
        assert torch.equal(generated[0], ours.generate(long, **GENERATE)[0])
        assert torch.equal(generated[1, 11:], ours.generate(short, **GENERATE)[0])
        ours(ids[:, :8], attention_mask=mask[:, :8], past_key_values=cache)  # of the second nothing is there yet
        parts = [ours(ids[:, 8:20], attention_mask=mask[:, :20], past_key_values=cache), ours(ids[:, 20:], attention_mask=mask, past_key_values=cache)]
        cache = DynamicCache(config=ours.config)
        wanted = [ours(short[:, :9], past_key_values=cache), ours(short[:, 9:], past_key_values=cache)]
    torch.testing.assert_close(parts[0].logits[1, 3:], wanted[0].logits[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(parts[1].logits[1], wanted[1].logits[0], rtol=1e-4, atol=1e-4)


def positions_of(lengths):
    return torch.cat([torch.arange(length) for length in lengths])


def packed_mask(packings):
    """As transformers asks for it. packings: of each entry the lengths of its sequences."""
    masks, length = transformers.masking_utils, sum(packings[0])
    sequences = torch.stack([torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)) for lengths in packings])
    function = masks.and_masks(masks.causal_mask_function, masks.packed_sequence_mask_function(sequences))
    return key_positions(len(packings), length, length, mask_function=function, allow_is_causal_skip=False)


PACKINGS = [([9, 1, 14, 3, 16], [2, 41]), ([43], [42, 1]), ([4, 8, 31], [1] * 43)]  # lengths of tiles, one less and one more; whole; of one token


@pytest.mark.parametrize("alpha", [None, 1.5])
@pytest.mark.parametrize("packings", PACKINGS)
def test_each_packed_sequence_is_as_if_alone(alpha, packings):
    given, budget, mask = [one.requires_grad_() for one in tensors(43, 43, seed=7)], Budget(0.2, TILE, LEAST), packed_mask(packings)
    heads, weights = [1, 2, 0], torch.randn(2, 6, 43, 16, generator=torch.Generator().manual_seed(1))
    dense, seen, found = attend_to_all_and_find(*given, budget, 0.25, mask, alpha, return_support=True)
    keys = tile_keys(*given[:2], 0.25, budget, mask, alpha)
    assert torch.equal(found, keys) and keys.dtype == torch.int32 and (keys.diff(dim=-1) >= 0).all()
    assert keys.shape[2] == max(sum(-(-length // TILE) for length in lengths) for lengths in packings)
    out, support = attend_to(keys, *given, budget, 0.25, mask, alpha, True, heads)
    dense_too, seen_too = attend_to_all(*given, 0.25, mask, alpha, True)
    assert torch.equal(dense_too, dense) and torch.equal(seen_too, seen)
    assert attend_to(keys, *given, budget, 0.25, mask, alpha, heads=heads)[1] is None
    sums = []
    for at, lengths in enumerate(packings):
        begin = tile = 0
        for length in lengths:
            q, k, v = (one[at : at + 1, :, begin : begin + length] for one in given)
            wanted_dense, wanted_seen, wanted = attend_to_all_and_find(q, k, v, budget, 0.25, None, alpha, return_support=True)
            its_keys, kept = keys[at : at + 1, :, tile : tile + wanted.shape[2]], wanted.shape[3]
            assert torch.equal(its_keys[..., :kept], torch.where(wanted < length, wanted + begin, 43)) and (its_keys[..., kept:] == 43).all()
            wanted_out, wanted_support = attend_to(wanted, q, k, v, budget, 0.25, None, alpha, True, heads)
            for ours, theirs in ((dense, wanted_dense), (out, wanted_out), (seen, wanted_seen), (support, wanted_support)):
                torch.testing.assert_close(ours[at : at + 1, :, begin : begin + length], theirs, rtol=1e-4, atol=1e-5)
            sums.append(((wanted_out + wanted_dense) * weights[at, :, begin : begin + length]).sum())
            begin, tile = begin + length, tile + wanted.shape[2]
        assert (keys[at, :, tile:] == 43).all()
    gradients = (torch.autograd.grad(x, given, retain_graph=True) for x in (((out + dense) * weights).sum(), sum(sums)))
    for ours, theirs in zip(*gradients):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("alpha", [None, 1.5])
def test_packed_texts_are_read_as_alone(model, plan, alpha):
    """By position_ids, of two entries and of one, and by lengths beside a cache; trained, too."""
    plan, ids, packings = plan if alpha is None else plan_of(model, alpha), windows(2), ([21, 1, 18], [7, 33])
    ours, positions = in_use(model, plan), torch.stack([positions_of(lengths) for lengths in packings])
    texts = [part[None] for entry, lengths in zip(ids, packings) for part in entry.split(lengths)]
    wanted = torch.cat([ours(text, use_cache=False).logits[0] for text in texts])
    together = ours(ids, position_ids=positions, use_cache=False).logits
    torch.testing.assert_close(together.flatten(0, 1), wanted, rtol=1e-4, atol=1e-4)
    assert (ours(ids, use_cache=False).logits - together)[0, 21:].abs().max() > 0.1  # which a text of all of them is not
    lengths = torch.tensor([0, 21, 22, 22, 40], dtype=torch.int32)  # one without a token
    given = {"position_ids": positions[:1], "cu_seq_lens_q": lengths, "cu_seq_lens_k": lengths, "max_length_q": 21, "max_length_k": 21}
    for use_cache in (False, True):
        out = ours(ids[:1], **given, use_cache=use_cache).logits[0]
        torch.testing.assert_close(out, wanted[:40], rtol=1e-4, atol=1e-4)
    parameter, weights = ours.model.layers[1].self_attn.k_proj.weight, torch.randn(wanted.shape, generator=torch.Generator().manual_seed(2))
    of_packed, of_texts = (torch.autograd.grad((x * weights).sum(), parameter)[0] for x in (together.flatten(0, 1), wanted))
    torch.testing.assert_close(of_packed, of_texts, rtol=1e-3, atol=1e-3 * of_texts.abs().max().item())


def test_a_layer_sees_the_packed_sequences_of_its_anchor(plan):
    """As where some layers of a model see chunks and others all."""
    from splash_attention.kascade.attention import Reuse

    in_use, mask = Reuse(plan), packed_mask([[5, 7]] * 2)
    reusing = next(layer for layer, anchor in enumerate(plan.anchor_of) if anchor != layer)
    in_use.attend(plan.anchor_of[reusing], *tensors(12, 12), 0.25, mask)
    assert in_use.attend(reusing, *tensors(12, 12), 0.25, packed_mask([[5, 7]] * 2))[0].shape == (2, 6, 12, 16)
    for other in (None, packed_mask([[6, 6]] * 2)):
        with pytest.raises(NotImplementedError, match=f"layer {reusing} sees other packed sequences, or chunks, than layer {plan.anchor_of[reusing]}"):
            in_use.attend(reusing, *tensors(12, 12), 0.25, other)


def test_a_part_of_packed_sequences_is_refused():
    (q, k, v), mask, budget = tensors(12, 12), packed_mask([[5, 7]] * 2), Budget(0.2, TILE, LEAST)
    keys = tile_keys(q, k, 0.25, budget, mask)
    for call in (
        lambda q: tile_keys(q, k, 0.25, budget, mask),
        lambda q: attend_to(keys, q, k, v, budget, 0.25, mask),
        lambda q: attend_to_all(q, k, v, 0.25, mask, None, False),
    ):
        call(q)
        with pytest.raises(NotImplementedError, match="in a call of the whole text; this one has 3 queries of 12 keys"):
            call(q[:, :, -3:])


def test_padding_elsewhere_is_taken(model, plan):
    ours, ids = in_use(model, plan), windows(2, 32)
    mask = torch.ones_like(ids)
    mask[1, 21:] = 0
    with torch.inference_mode():
        together = ours(ids, attention_mask=mask, use_cache=False).logits
        torch.testing.assert_close(together[1, :20], ours(ids[1:, :20], use_cache=False).logits[0], rtol=1e-4, atol=1e-4)  # whole tiles
        mask[:, 5] = 0
        assert ours(ids, attention_mask=mask, use_cache=False).logits.isfinite().all()


def test_a_model_is_trained_under_a_plan(model, plan):
    ours = in_use(model, plan).train()
    ids = windows(2)
    optimizer = torch.optim.Adam(ours.parameters(), 3e-3)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = ours(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_the_models_own_attention_comes_back(model, plan):
    ours, ids = in_use(model, plan), windows(1)
    ours.set_attn_implementation("sdpa")
    with torch.inference_mode():
        assert torch.equal(ours(ids).logits, model(ids).logits)


@pytest.mark.parametrize(
    "make, error, said",
    [
        (lambda model, plan: kascade.apply(llama(), plan), ValueError, "the plan is of 5 layers of 6 query heads; the model has 2 of 4"),
        (lambda model, plan: kascade.apply(model, plan, budget=0.0), ValueError, "budget is 0.0; it must be above 0 and at most 1"),
        (lambda model, plan: kascade.apply(model, "nowhere.toml"), ValueError, "cannot read plan nowhere.toml"),
        (lambda model, plan: kascade.apply(torch.nn.Linear(2, 2), plan), ValueError, "Linear has no attention layers"),
        (lambda model, plan: kascade.apply(model, plan, exact=True), ValueError, "exact is True and the plan is of softmax"),
        (lambda model, plan: without_plan(model, plan), ValueError, r"needs a plan: call splash_attention.kascade.apply\(model, plan\)"),
        (lambda model, plan: with_dropout(model, plan), NotImplementedError, r"has no dropout \(here 0.1\)"),
        (lambda model, plan: with_mask_of_pairs(model, plan), NotImplementedError, r"takes causal masks, padding and packed sequences; this mask \(a slid"),
        (lambda model, plan: with_packed_window(model, plan), NotImplementedError, r"takes causal masks, padding and packed sequences; this mask \(a slid"),
        (lambda model, plan: with_lengths(model, plan, [0, 25, 40], rows=2), NotImplementedError, "takes cu_seq_lens_q for one whole text"),
        (lambda model, plan: with_lengths(model, plan, [0, 25, 40], attention_mask=HOLE), NotImplementedError, "takes cu_seq_lens_q for one whole text"),
        (lambda model, plan: with_lengths(model, plan, [0, 25, 39]), ValueError, "must be the same and rise from 0 to 40, the tokens of the text"),
        (lambda model, plan: with_lengths(model, plan, [0, 25, 12, 40]), ValueError, "must be the same and rise from 0 to 40"),
        (lambda model, plan: with_lengths(model, plan, [0, 25, 40], of_keys=[0, 24, 40]), ValueError, "must be the same and rise from 0 to 40"),
        (lambda model, plan: step_with_lengths(model, plan), NotImplementedError, "takes cu_seq_lens_q for one whole text"),
        (lambda model, plan: packed_under_a_method(model), NotImplementedError, "a method takes causal masks and padding; this mask"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(make, error, said, model, plan):
    with pytest.raises(error, match=said):
        make(copy.deepcopy(model), plan)


def without_plan(model, plan):
    kascade.apply(copy.deepcopy(model), plan)  # which registers the name
    model.set_attn_implementation("splash-kascade")
    model(windows(1))


def with_dropout(model, plan):
    ours = in_use(model, plan).train()
    for layer in ours.model.layers:
        layer.self_attn.attention_dropout = 0.1
    ours(windows(1))


HOLE = (torch.arange(40) != 3)[None].long()


def with_mask_of_pairs(model, plan):
    in_use(model, plan)(windows(1), attention_mask=torch.ones(1, 1, 40, 40, dtype=torch.bool).tril(3), use_cache=False)


def with_packed_window(model, plan):
    """A mask whose window hides keys of packed sequences, of a layer that does not name it."""
    from splash_attention.kascade.model import attention_forward

    masks = transformers.masking_utils
    of_packed = masks.packed_sequence_mask_function((torch.arange(40) >= 25).long()[None])
    config = transformers.MistralConfig(sliding_window=5)
    mask = key_positions(
        1, 40, 40, mask_function=masks.and_masks(masks.sliding_window_causal_mask_function(5), of_packed), local_size=5, config=config,
        allow_is_causal_skip=False,
    )  # fmt: skip
    assert mask.shape == (1, 1, 5, 40)
    attention_forward(in_use(model, plan).model.layers[0].self_attn, *tensors(40, 40), mask)


def with_lengths(model, plan, lengths, rows=1, of_keys=None, **given):
    of_queries, of_keys = (torch.tensor(one, dtype=torch.int32) for one in (lengths, of_keys or lengths))
    return in_use(model, plan)(windows(rows), cu_seq_lens_q=of_queries, cu_seq_lens_k=of_keys, **given)


def step_with_lengths(model, plan):
    ours, lengths = in_use(model, plan), torch.tensor([0, 1])
    cache = ours(windows(1)).past_key_values
    ours(windows(1, 1), past_key_values=cache, cu_seq_lens_q=lengths, cu_seq_lens_k=lengths)


def packed_under_a_method(model):
    with applied(model, Method.parse(f"tile-top-k:budget=0.2,tile={TILE},least_keys={LEAST}")):
        model(windows(1), position_ids=positions_of([25, 15])[None], use_cache=False)
