"""Reuse of an anchor's keys on a GPU, at shapes of real models, against the same on the CPU in float64."""

from __future__ import annotations

import pytest

from gpu_inputs import GPU, inputs, torch

from splash_attention import entmax
from splash_attention.kascade import kernels
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
    [(9, 3, 64, 8192, 8192), (32, 8, 128, 4096, 4096), (32, 8, 128, 1, 32768), (8, 8, 80, 1000, 3001)],
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


def chosen_of(keys, kv_len):
    """Of each tile and key, whether it is listed; behind them whether a place is empty: [batch, kv_heads, tiles, kv_len + 1]."""
    return torch.zeros(*keys.shape[:3], kv_len + 1, dtype=torch.bool, device=GPU).scatter_(3, keys.long(), True)


SHAPES = [  # batch, heads, kv_heads, dim, q_len, kv_len
    (1, 9, 3, 64, 4096, 4096), (2, 32, 8, 128, 1000, 3001), (3, 8, 8, 80, 1, 5000), (1, 8, 2, 40, 33, 33), (1, 4, 4, 128, 70, 50), (2, 6, 2, 64, 1, 1),
    (1, 32, 8, 128, 1, 40_000), (2, 8, 2, 64, 6, 3000), (1, 24, 1, 128, 1, 2000)
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("batch, heads, kv_heads, dim, q_len, kv_len", SHAPES)
def test_kernels_and_plain_pytorch_agree(hopper, monkeypatch, dtype, batch, heads, kv_heads, dim, q_len, kv_len):
    torch.manual_seed(q_len)
    sizes = ((2, q_len, heads), (1, kv_len, kv_heads), (1, kv_len, kv_heads))
    q, k, v = (factor * torch.randn(batch, n, some, dim, device=GPU, dtype=dtype).transpose(1, 2) for factor, n, some in sizes)  # views
    assert kernels.are_for(q, k, v, dim**-0.5, 32, None, None)
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
@pytest.mark.parametrize("batch, heads, kv_heads, dim, length", [(2, 9, 3, 64, 4096), (1, 32, 8, 128, 3001), (3, 8, 8, 80, 700)])
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
@pytest.mark.parametrize(
    "batch, heads, kv_heads, dim, q_len, kv_len",
    [(3, 8, 8, 80, 1, 5000), (2, 6, 2, 64, 1, 2), (4, 32, 8, 128, 1, 40_001), (2, 8, 2, 64, 6, 3000), (1, 24, 1, 24, 1, 2000), (1, 4, 1, 128, 1, 70_000)],
)
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


def test_what_the_kernels_do_not_take_plain_pytorch_does(hopper):
    q, k, v = (torch.randn(1, 4, 100, 64, device=GPU, dtype=torch.bfloat16) for _ in range(3))
    assert kernels.are_for(q, k, v, 0.125, 32, None, None)
    assert not kernels.are_for(q, k, v, 0.125, 16, None, None) and not kernels.are_for(q, k, v, 0.125, 32, None, 1.5)
    assert not kernels.are_for(q.float(), k.float(), v.float(), 0.125, 32, None, None)
    assert not kernels.are_for(q, k, v.requires_grad_(), 0.125, 32, None, None)
    with torch.no_grad():
        assert kernels.are_for(q, k, v, 0.125, 32, None, None)
    keys = tile_keys(q, k, 0.125, BUDGET)
    attend_to(keys, q, k, v, BUDGET, 0.125)[0].sum().backward()
    assert v.grad.isfinite().all()
