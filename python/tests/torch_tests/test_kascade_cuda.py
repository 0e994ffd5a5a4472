"""Reuse of an anchor's keys on a GPU, at shapes of real models, against the same on the CPU in float64."""

from __future__ import annotations

import pytest

from gpu_inputs import GPU, inputs, torch

from splash_attention import entmax
from splash_attention.kascade.attention import Budget, attend_to, tile_keys


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
    keys = tile_keys(q, k, dim**-0.5, Budget(0.1, 32, 128), alpha=alpha)
    assert (keys.diff(dim=-1) >= 0).all() and torch.equal(keys, tile_keys(q, k, dim**-0.5, Budget(0.1, 32, 128), alpha=alpha))
    out, _ = attend_to(keys, q, k, v, 32, dim**-0.5, alpha=alpha)
    assert out.shape == q.shape and out.isfinite().all()
    tiles = sorted({0, keys.shape[2] // 2, keys.shape[2] - 1})
    found = torch.cat([out[0, :, at * 32 : (at + 1) * 32] for at in tiles], 1).double().cpu()
    wanted = on_the_cpu(q, k, v, keys, 32, tiles, alpha)
    assert (found - wanted).norm() / wanted.norm() < 0.01
