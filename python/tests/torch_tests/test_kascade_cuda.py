"""Reuse of an anchor's keys on a GPU, at shapes of real models, against the same on the CPU in float64."""

from __future__ import annotations

import pytest

from gpu_inputs import GPU, chosen_of, inputs, torch
from tiny_llama import transformers

from splash_attention import entmax
from splash_attention.hugging_face import key_positions
from splash_attention.kascade import attention, kernels
from splash_attention.kascade.attention import Budget, attend_to, attend_to_all, attend_to_all_and_find, tile_keys
from splash_attention.kascade.keys_in_8_bits import KeysIn8Bits, quantized

BUDGET = Budget(0.1, 32, 128)


def on_the_cpu(q, k, v, keys, tile, tiles, alpha):
    """Some tiles of the first batch entry, in float64: [heads, tiles·tile, head_dim]."""
    group, kv_len, parts = q.shape[1] // k.shape[1], k.shape[2], []
    for at in tiles:
        rows = torch.arange(at * tile, min((at + 1) * tile, q.shape[2]))
        heads = []
        for head in range(q.shape[1]):
            taken = keys[0, head // group, at].long().cpu()
            taken = taken[taken < kv_len]
            of_q, of_k, of_v = (one.cpu().double() for one in (q[0, head, rows], k[0, head // group, taken], v[0, head // group, taken]))
            scores = (of_q @ of_k.T * q.shape[3] ** -0.5).masked_fill(taken > rows[:, None] + (kv_len - q.shape[2]), -torch.inf)
            heads.append((torch.softmax(scores, -1) if alpha is None else entmax(scores, alpha)) @ of_v)
        parts.append(torch.stack(heads))
    return torch.cat(parts, 1)


@pytest.mark.parametrize("alpha", [None, 1.5])
@pytest.mark.parametrize(
    "heads, kv_heads, dim, q_len, kv_len",
    [(9, 3, 64, 8192, 8192), (32, 8, 128, 4096, 4096), (32, 8, 128, 1, 32768), (8, 8, 80, 1000, 3001), (8, 4, 256, 3001, 3001), (8, 4, 256, 1, 32768)],
)
def test_tiles_on_a_gpu(alpha, heads, kv_heads, dim, q_len, kv_len):
    if GPU.type == "cpu":
        q_len, kv_len = min(q_len, 300), min(kv_len, 500)
    q, k, v = (one.to(GPU) for one in inputs(torch.bfloat16, q_len, kv_len, dim, 2.0, heads, kv_heads, 1))
    keys = tile_keys(q, k, dim**-0.5, BUDGET, alpha=alpha)
    assert (keys.diff(dim=-1) >= 0).all() and torch.equal(keys, tile_keys(q, k, dim**-0.5, BUDGET, alpha=alpha))
    out, _ = attend_to(keys, q, k, v, BUDGET, dim**-0.5, alpha=alpha)
    assert out.shape == q.shape and out.isfinite().all()
    tiles = sorted({0, keys.shape[2] // 2, keys.shape[2] - 1})
    found = torch.cat([out[0, :, at * 32 : (at + 1) * 32] for at in tiles], 1).double().cpu()
    wanted = on_the_cpu(q, k, v, keys, 32, tiles, alpha)
    assert (found - wanted).norm() / wanted.norm() < 0.01


@pytest.fixture
def hopper():
    if GPU.type == "cpu" or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the kernels take GPUs of compute capability 9.0")


SHAPES = [  # batch, heads, kv_heads, dim, q_len, kv_len
    (1, 9, 3, 64, 4096, 4096), (2, 32, 8, 128, 1000, 3001), (3, 8, 8, 80, 1, 5000), (1, 8, 2, 40, 33, 33), (1, 4, 4, 128, 70, 50), (2, 6, 2, 64, 1, 1),
    (1, 32, 8, 128, 1, 40_000), (2, 8, 2, 64, 6, 3000), (1, 24, 1, 128, 1, 2000), (2, 8, 4, 256, 1500, 3001), (1, 6, 2, 200, 70, 50),
    (2, 8, 4, 256, 1, 5000), (1, 16, 1, 192, 2, 3000)
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("batch, heads, kv_heads, dim, q_len, kv_len", SHAPES)
def test_kernels_and_plain_pytorch_agree(hopper, monkeypatch, dtype, batch, heads, kv_heads, dim, q_len, kv_len):
    torch.manual_seed(q_len)
    sizes = ((2, q_len, heads), (1, kv_len, kv_heads), (1, kv_len, kv_heads))
    q, k, v = (factor * torch.randn(batch, n, some, dim, device=GPU, dtype=dtype).transpose(1, 2) for factor, n, some in sizes)  # views
    assert kernels.are_for(q, k, v, dim**-0.5, 32, (0,) * batch, None)
    anchors = [(head + 1) % kv_heads for head in range(kv_heads)]
    keys = tile_keys(q, k, dim**-0.5, BUDGET)
    out, support = attend_to(keys, q, k, v, BUDGET, dim**-0.5, return_support=True, heads=anchors)
    monkeypatch.setattr(kernels, "are_for", lambda *call: False)
    plain = tile_keys(q, k, dim**-0.5, BUDGET)
    assert keys.shape == plain.shape and keys.dtype == plain.dtype and (keys.diff(dim=-1) >= 0).all()
    chosen, chosen_too = (chosen_of(one, kv_len) for one in (keys, plain))
    differing = (chosen != chosen_too)[..., :kv_len].sum().item()
    assert differing <= 2e-3 * chosen.sum().item(), "more keys differ than rounding explains"
    wanted, counted = attend_to(keys, q, k, v, BUDGET, dim**-0.5, return_support=True, heads=anchors)
    assert torch.equal(support, counted) and torch.equal(out[counted == 0], torch.zeros_like(out[counted == 0]))
    assert (out.double() - wanted.double()).norm() <= (0.01 if dtype == torch.bfloat16 else 0.002) * wanted.double().norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("batch, heads, kv_heads, dim, length", [(2, 9, 3, 64, 4096), (1, 32, 8, 128, 3001), (3, 8, 8, 80, 700), (1, 8, 4, 256, 2000)])
def test_a_dense_layer_finds_the_keys_that_a_search_finds(hopper, dtype, batch, heads, kv_heads, dim, length):
    q, k, v = (torch.randn(batch, some, length, dim, device=GPU, dtype=dtype) for some in (heads, kv_heads, kv_heads))
    assert kernels.tell_normalizers(q, k, v)
    out, support, keys = attend_to_all_and_find(2 * q, k, v, BUDGET, dim**-0.5, return_support=True)
    dense, counted = attend_to_all(2 * q, k, v, dim**-0.5, None, None, True)
    assert torch.equal(support, counted) and (out.double() - dense.double()).norm() <= 0.01 * dense.double().norm()
    searched = tile_keys(2 * q, k, dim**-0.5, BUDGET)
    assert keys.shape == searched.shape and (keys.diff(dim=-1) >= 0).all()
    chosen, chosen_too = (chosen_of(one, length) for one in (keys, searched))
    assert (chosen != chosen_too).sum() <= 2e-3 * chosen.sum(), "more keys differ than rounding explains"
    of_rows = kernels.dense(2 * q, k, v, dim**-0.5)[1]
    row = length // 2
    scores = (2 * q[:, :, row]).double().unflatten(1, (kv_heads, -1)) @ k[:, :, : row + 1].double().transpose(-1, -2) * dim**-0.5
    assert (of_rows[:, :, row] - scores.logsumexp(-1).flatten(1, 2)).abs().max() < 1e-2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("starts", [(0, 0), (0, 1234)])
@pytest.mark.parametrize("heads, kv_heads, dim, q_len, kv_len", [(32, 8, 128, 1, 40_001), (9, 3, 64, 1, 8192), (8, 4, 256, 3, 5000), (32, 1, 128, 1, 3001)])
def test_a_step_attends_to_all_keys_and_finds_some(hopper, dtype, starts, heads, kv_heads, dim, q_len, kv_len):
    torch.manual_seed(kv_len)
    q, k, v = (torch.randn(2, n, some, dim, device=GPU, dtype=dtype).transpose(1, 2) for n, some in ((q_len, heads), *[(kv_len, kv_heads)] * 2))  # views
    there = torch.arange(kv_len, device=GPU) >= torch.tensor(starts, device=GPU)[:, None]
    mask = key_positions(2, q_len, kv_len, q_offset=kv_len - q_len, attention_mask=there.long()) if any(starts) else None
    k, v = (x.masked_fill(~there[:, None, :, None], torch.nan) for x in (k, v))
    out, support, keys = attend_to_all_and_find(2 * q, k, v, BUDGET, dim**-0.5, mask, return_support=True)
    assert torch.equal(keys, tile_keys(2 * q, k, dim**-0.5, BUDGET, mask))
    for at, start in enumerate(starts):
        of_k, of_v = (x[at, :, start:].double().repeat_interleave(heads // kv_heads, 0) for x in (k, v))
        places = torch.arange(kv_len - start, device=GPU)
        hidden = places > torch.arange(q_len, device=GPU)[:, None] + (kv_len - start - q_len)
        scores = (2 * q[at].double() @ of_k.transpose(-1, -2) * dim**-0.5).masked_fill(hidden, -torch.inf)
        wanted = torch.softmax(scores, -1) @ of_v
        assert (out[at].double() - wanted).norm() <= (0.01 if dtype == torch.bfloat16 else 0.002) * wanted.norm()
        assert torch.equal(support[at], (~hidden).sum(-1).expand(heads, -1))


STEPS = [  # as SHAPES
    (3, 8, 8, 80, 1, 5000), (2, 6, 2, 64, 1, 2), (4, 32, 8, 128, 1, 40_001), (2, 8, 2, 64, 6, 3000), (1, 24, 1, 24, 1, 2000), (1, 4, 1, 128, 1, 70_000),
    (2, 8, 4, 256, 1, 5000), (1, 20, 1, 136, 1, 3000)
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("batch, heads, kv_heads, dim, q_len, kv_len", STEPS)
def test_a_step_chooses_by_keys_in_8_bits(hopper, monkeypatch, dtype, batch, heads, kv_heads, dim, q_len, kv_len):
    torch.manual_seed(kv_len)
    q, k = (torch.randn(batch, n, some, dim, device=GPU, dtype=dtype).transpose(1, 2) for n, some in ((q_len, heads), (kv_len, kv_heads)))  # views
    q, made = 2 * q, KeysIn8Bits()
    for end in sorted({1, kv_len // 2, kv_len - 1, kv_len}):
        made.append(k[:, :, :end])
    codes, scales = quantized(k)
    assert torch.equal(made.codes[:, :, :kv_len], codes) and torch.equal(made.scales[:, :, :kv_len], scales)
    keys = tile_keys(q, k, dim**-0.5, BUDGET, k8=made)
    monkeypatch.setattr(kernels, "are_for", lambda *call: False)
    plain = tile_keys(q, k, dim**-0.5, BUDGET, k8=made)
    assert keys.shape == plain.shape and keys.dtype == plain.dtype and (keys.diff(dim=-1) >= 0).all()
    chosen, chosen_too = (chosen_of(one, kv_len) for one in (keys, plain))
    differing = (chosen != chosen_too)[..., :kv_len].sum()
    assert differing <= 1e-2 * chosen.sum(), "more keys differ than probabilities in bfloat16 explain"


PADDED = [  # heads, kv_heads, dim, q_len, kv_len, starts: prefills, part of one, steps, one of more rows than a step's
    (9, 3, 64, 700, 700, (0, 650, 33)), (32, 8, 128, 100, 1500, (1450, 7)), (32, 8, 128, 1, 3001, (0, 1234, 3000)), (8, 2, 64, 6, 3000, (2996, 0, 17)),
    (24, 1, 24, 1, 2000, (5, 0)), (4, 1, 128, 1, 70_000, (30_001, 1)), (8, 1, 64, 5, 900, (100, 0)), (8, 4, 256, 300, 300, (0, 123)),
    (8, 4, 256, 1, 3001, (0, 1234))
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("in_8_bits", [False, True])
@pytest.mark.parametrize("heads, kv_heads, dim, q_len, kv_len, starts", PADDED)
def test_each_sequence_of_a_batch_padded_on_the_left_is_as_if_alone(
    hopper, monkeypatch, dtype, in_8_bits, heads, kv_heads, dim, q_len, kv_len, starts
):
    torch.manual_seed(kv_len)
    q, k, v = (torch.randn(len(starts), n, some, dim, device=GPU, dtype=dtype).transpose(1, 2) for n, some in ((q_len, heads), *[(kv_len, kv_heads)] * 2))
    q, anchors = 2 * q, [(head + 1) % kv_heads for head in range(kv_heads)]
    there = torch.arange(kv_len, device=GPU) >= torch.tensor(starts, device=GPU)[:, None]
    mask = key_positions(len(starts), q_len, kv_len, q_offset=kv_len - q_len, attention_mask=there.long())
    if in_8_bits and not kernels.is_step(q, k, 32):
        pytest.skip("no step")
    monkeypatch.setattr(attention, "_first_queries", None)  # of plain PyTorch
    dense, _, found = attend_to_all_and_find(q, k, v, BUDGET, dim**-0.5, mask)
    for one in (k, v):
        one[~there[:, None].expand(-1, kv_heads, -1)] = torch.nan  # what padding holds is nothing to a plan
    keys = tile_keys(q, k, dim**-0.5, BUDGET, mask, k8=in_8_bits_of(k) if in_8_bits else None)
    out, support = attend_to(keys, q, k, v, BUDGET, dim**-0.5, mask, return_support=True, heads=anchors)
    bound = 0.01 if dtype == torch.bfloat16 else 0.002
    for at, start in enumerate(starts):
        before = max(0, start - (kv_len - q_len))
        one = q[at : at + 1, :, before:], *(x[at : at + 1, :, start:] for x in (k, v))
        wanted = tile_keys(*one[:2], dim**-0.5, BUDGET, k8=in_8_bits_of(one[1]) if in_8_bits else None)
        tiles, kept = wanted.shape[2:]
        for ours in (keys,) if in_8_bits else (keys, found):
            its_keys = ours[at : at + 1, :, :tiles] - start
            assert (its_keys.diff(dim=-1) >= 0).all() and (its_keys >= 0).all() and (its_keys[..., kept:] == kv_len - start).all()
            chosen, chosen_too = (chosen_of(some, kv_len - start)[..., :-1] for some in (its_keys, wanted))
            assert (chosen != chosen_too).sum() <= (2e-2 if in_8_bits else 2e-3) * chosen.sum(), "more keys differ than rounding explains"
        wanted_out, counted = attend_to(keys[at : at + 1, :, :tiles] - start, *one, BUDGET, dim**-0.5, return_support=True, heads=anchors)
        wanted_dense, *_ = attend_to_all(*one, dim**-0.5, None, None, False)
        assert torch.equal(support[at, :, before:], counted[0]) and (support[at, :, :before] == 0).all()
        for ours, theirs in ((out, wanted_out), (dense, wanted_dense)):
            assert (ours[at, :, :before] == 0).all()
            assert (ours[at, :, before:].double() - theirs[0].double()).norm() <= bound * theirs.double().norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads, kv_heads, dim", [(9, 3, 64), (32, 8, 128), (8, 4, 256)])
def test_each_packed_sequence_is_as_if_alone(hopper, monkeypatch, dtype, heads, kv_heads, dim):
    torch.manual_seed(dim)
    packings, kv_len = ([700, 1, 33, 1266], [1999, 1]), 2000
    q, k, v = (torch.randn(2, kv_len, some, dim, device=GPU, dtype=dtype).transpose(1, 2) for some in (heads, kv_heads, kv_heads))
    q, anchors = 2 * q, [(head + 1) % kv_heads for head in range(kv_heads)]
    sequences = torch.stack([torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)) for lengths in packings]).to(GPU)
    masks = transformers.masking_utils
    function = masks.and_masks(masks.causal_mask_function, masks.packed_sequence_mask_function(sequences))
    mask = key_positions(2, kv_len, kv_len, mask_function=function, allow_is_causal_skip=False, device=GPU)
    monkeypatch.setattr(attention, "_first_queries", None)  # of plain PyTorch
    dense, seen, found = attend_to_all_and_find(q, k, v, BUDGET, dim**-0.5, mask, return_support=True)
    keys = tile_keys(q, k, dim**-0.5, BUDGET, mask)
    out, support = attend_to(keys, q, k, v, BUDGET, dim**-0.5, mask, return_support=True, heads=anchors)
    assert all((one.diff(dim=-1) >= 0).all() and (one <= kv_len).all() for one in (keys, found))
    for at, lengths in enumerate(packings):
        begin = tile = 0
        for length in lengths:
            one = [x[at : at + 1, :, begin : begin + length] for x in (q, k, v)]
            wanted = tile_keys(*one[:2], dim**-0.5, BUDGET)
            tiles, kept = wanted.shape[2:]
            its_keys = keys[at : at + 1, :, tile : tile + tiles]
            assert torch.equal(its_keys[..., :kept], torch.where(wanted < length, wanted + begin, kv_len)) and (its_keys[..., kept:] == kv_len).all()
            wanted_out, counted = attend_to(wanted, *one, BUDGET, dim**-0.5, return_support=True, heads=anchors)
            wanted_dense, wanted_seen, wanted_found = attend_to_all_and_find(*one, BUDGET, dim**-0.5, return_support=True)
            its_found = found[at : at + 1, :, tile : tile + tiles, : wanted_found.shape[3]]
            assert torch.equal(its_found, torch.where(wanted_found < length, wanted_found + begin, kv_len))
            out_of, dense_of, support_of, seen_of = (x[at : at + 1, :, begin : begin + length] for x in (out, dense, support, seen))
            assert torch.equal(support_of, counted) and torch.equal(seen_of, wanted_seen)
            for ours, theirs in ((out_of, wanted_out), (dense_of, wanted_dense)):
                assert (ours.double() - theirs.double()).norm() <= 0.002 * theirs.double().norm()
            begin, tile = begin + length, tile + tiles


def in_8_bits_of(k):
    made = KeysIn8Bits()
    made.append(k)
    return made


@pytest.mark.parametrize("in_8_bits", [False, True])
def test_a_model_takes_a_padded_batch_by_the_kernels(hopper, monkeypatch, in_8_bits):
    transformers = pytest.importorskip("transformers")
    from tiny_llama import llama, windows

    from splash_attention import kascade

    model = llama(num_hidden_layers=5, num_attention_heads=6, num_key_value_heads=3, hidden_size=96)
    plan = kascade.plan(model, list(windows(2)), anchors=2, least_keys=12, budget=0.2).plan
    kascade.apply(model.to(GPU, torch.float16), plan, keys_in_8_bits=in_8_bits)
    monkeypatch.setattr(attention, "_first_queries", None)  # of plain PyTorch
    ids, starts = windows(3, 100).to(GPU), (0, 41, 77)
    mask = (torch.arange(100) >= torch.tensor(starts)[:, None]).long().to(GPU)

    def logits_of(ids, mask):
        """Of a prefill, and of a step of each of the last three tokens."""
        cache, places = transformers.DynamicCache(config=model.config), (mask.cumsum(-1) - 1).clamp(min=0)
        ends = [ids.shape[1] - 3 + step for step in range(4)]
        return torch.cat(
            [
                model(ids[:, begin:end], attention_mask=mask[:, :end], position_ids=places[:, begin:end], past_key_values=cache).logits
                for begin, end in zip([0, *ends], ends)
            ],
            1,
        )

    with torch.inference_mode():
        together = logits_of(ids, mask)
        for at, start in enumerate(starts):
            alone = logits_of(ids[at : at + 1, start:], mask[at : at + 1, start:])
            for ours, theirs in ((together[at, start:], alone[0]), (together[at, -3:], alone[0, -3:])):
                assert (ours - theirs).float().norm() <= 0.1 * theirs.float().norm()


def test_what_the_kernels_do_not_take_plain_pytorch_does(hopper):
    q, k, v = (torch.randn(1, 4, 100, 64, device=GPU, dtype=torch.bfloat16) for _ in range(3))
    assert kernels.are_for(q, k, v, 0.125, 32, (0,), None)
    assert not kernels.are_for(q, k, v, 0.125, 16, (0,), None) and not kernels.are_for(q, k, v, 0.125, 32, (0,), 1.5)
    assert not kernels.are_for(q, k, v, 0.125, 32, (7,), None) and kernels.are_for(q[:, :, :8], k, v, 0.125, 32, (7,), None)
    assert not kernels.are_for(q, k, v, 0.125, 32, None, None)  # a mask that hides other keys
    assert not kernels.are_for(q.float(), k.float(), v.float(), 0.125, 32, (0,), None)
    for head_dim, takes in ((256, True), (264, False), (100, False)):
        assert kernels.are_for(*[q.new_zeros(1, 4, 100, head_dim)] * 3, 0.1, 32, (0,), None) == takes
    assert not kernels.are_for(q, k, v.requires_grad_(), 0.125, 32, (0,), None)
    with torch.no_grad():
        assert kernels.are_for(q, k, v, 0.125, 32, (0,), None)
    keys = tile_keys(q, k, 0.125, BUDGET)
    attend_to(keys, q, k, v, BUDGET, 0.125)[0].sum().backward()
    assert v.grad.isfinite().all()
