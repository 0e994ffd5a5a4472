"""One step of decoding whose keys lie on several ranks: all ranks have the queries, and each some of the keys."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from splash_attention import checks
from splash_attention.distributed.groups import all_gather, finish, process_group
from splash_attention.functional import entmax


@torch.no_grad()
def decode(q: Tensor, k: Tensor, v: Tensor, *, group: Any = None, alpha: Any = 1.5, scale: float | None = None) -> Tensor:
    """Exact entmax attention of queries over the keys of all ranks: the same on every rank, [batch, q_heads, q_len, head_dim].

    q: [batch, q_heads, q_len, head_dim], the same on all ranks; each query sees all keys. k, v: [batch, kv_heads, keys, head_dim] of this
    rank, any number of keys, none too. alpha: a number above 1, or a tensor of q_heads. scale: None is 1/√head_dim. Without gradients.

    tau is at least the maximum less 1, so only keys within 1 of it (in units of (alpha - 1) score) can have weight. A row's maximum is
    compared; the candidates' scores, tens of numbers, are gathered, and every rank finds the same tau; the ranks' sums of p·v are added
    in the order of the ranks. Beside q, two exchanges wait for the host: how many candidates there are decides a shape. Scores are
    computed in float32 (float64 for such): every key is read once, as it is.
    """
    group = process_group(group)
    batch, heads, kv_heads, q_len, keys, width = checks.check_inputs(q, k, v)
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"q has {heads} heads and k {kv_heads}; q's must be a multiple")
    ranks, me = dist.get_world_size(group), dist.get_rank(group)
    wide = torch.promote_types(q.dtype, torch.float32)
    alphas = torch.as_tensor(checks.as_alpha(alpha), dtype=wide, device=q.device).reshape(-1)
    checks.check_head_alpha(alphas, heads, batch)
    less_one = (alphas - 1).reshape(-1, 1, 1)
    shared = q.to(wide).reshape(batch, kv_heads, heads // kv_heads * q_len, width)  # queries of the heads that share a key head, behind one another
    scores = (checks.check_scale(scale) or width**-0.5) * (shared @ k.to(wide).mT).view(batch, heads, q_len, keys)
    z = less_one * scores
    largest = z.amax(-1, keepdim=True) if keys else z.new_full((batch, heads, q_len, 1), -torch.inf)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    near = (z >= largest - 1) | z.isnan()
    most = near.sum(-1).amax().reshape(1) if keys else torch.zeros(1, dtype=torch.int64, device=q.device)
    dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    room = int(most)
    kept = scores.masked_fill(~near, -torch.inf).topk(min(room, keys), -1)
    mine = torch.nn.functional.pad(kept.values, (0, max(room - keys, 0)), value=-torch.inf).contiguous()
    everyone = _all_gather(mine, group)
    rows = everyone.movedim(0, -2).flatten(-2)  # [batch, q_heads, q_len, ranks · room]
    p = entmax(rows, alphas.reshape(-1, 1) if alphas.numel() > 1 else float(alphas))
    p = p.unflatten(-1, (ranks, room))[..., me, :][..., :keys]
    weights = torch.zeros_like(scores).scatter_(-1, kept.indices, p)
    part = (weights.view(batch, kv_heads, heads // kv_heads * q_len, keys) @ v.to(wide)).view(batch, heads, q_len, width)
    out = torch.zeros_like(part)
    for other in _all_gather(part.contiguous(), group):
        out += other
    return out.to(q.dtype)


def _all_gather(x: Tensor, group: Any) -> Tensor:
    work, parts = all_gather(x, group)
    finish(work, "to decode")
    return parts
