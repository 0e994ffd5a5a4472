"""Softmax over a part of the keys that is chosen cheaply: Kascade's anchors and reuse, every layer's own choice, and pages by bounds.

Plain PyTorch on all scores, some rows at a time, for studies of quality. Shapes as attention.Call's; causal, without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from splash_attention._core import KascadePlan, kascade_keys
from splash_attention.language.dense_methods import Kept, dense_attention, score_rows, softmax_attention
from splash_attention.language.methods import Attention


class Kascade:
    """A plan in use in one model: the keys that the last anchor found, for the layers behind it."""

    def __init__(self, how: Attention) -> None:
        self.plan: KascadePlan = how.read_plan()
        self.anchor_of, self.heads = self.plan.anchor_of, self.plan.heads
        self.choice = (self.plan.budget if how.budget is None else how.budget, self.plan.tile, self.plan.least_keys)
        self.anchor, self.sets = -1, torch.empty(0)

    def check(self, layers: Sequence[int], heads: int) -> None:
        """Raises ValueError where the model has other layers or query heads than the plan."""
        if list(layers) != list(range(len(self.anchor_of))) or heads != self.plan.q_heads:
            raise ValueError(
                f"the plan is of {len(self.anchor_of)} layers of {self.plan.q_heads} query heads; the model has {len(layers)} of {heads}"
            )

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: Attention, scaling: float) -> tuple[Tensor, Tensor | None]:
        """(out, support, None where all keys that are seen are used)."""
        if self.anchor_of[layer] == layer:
            self.anchor, self.sets = layer, tile_sets(q, k, how, scaling, *self.choice)
        if layer == 0:
            return softmax_attention(q, k, v, scaling, None), None
        tiles = -(-q.shape[2] // self.choice[1])
        if self.anchor != self.anchor_of[layer] or self.sets.shape != (q.shape[0], k.shape[1], tiles, k.shape[2]):
            raise ValueError(f"layer {layer} reuses the keys of layer {self.anchor_of[layer]}, which did not attend before it in this call")
        return dense_attention(q, k, v, how, scaling, None, kept_of_tiles(self.sets[:, self.heads[layer]], self.choice[1]))


def choose_and_attend(q: Tensor, k: Tensor, v: Tensor, how: Attention, scaling: float) -> tuple[Tensor, Tensor]:
    """(out, support) of the kinds "tile-top-k" and "pages"."""
    if how.kind == "pages":
        return dense_attention(q, k, v, how, scaling, None, _Pages(q, k, how))
    sets = tile_sets(q, k, how, scaling, how.budget, how.tile, how.least_keys)
    return dense_attention(q, k, v, how, scaling, None, kept_of_tiles(sets, how.tile))


def tile_sets(q: Tensor, k: Tensor, how: Attention, scaling: float, budget: float, tile: int, least_keys: int) -> Tensor:
    """The keys of each tile of queries and key head, bool [batch, kv_heads, tiles, kv_len]: the tile's own and those with the largest
    sums of softmax over the tile's queries and the key head's query heads; the lower key among equals."""
    q_len, kv_len = q.shape[2], k.shape[2]
    parts = []
    for begin, scores, _ in score_rows(q, k, k, how, scaling, None, tile):
        rows, keys = scores.shape[3:]
        p = F.pad(torch.softmax(scores, -1), (0, 0, 0, -rows % tile))
        sums = p.unflatten(3, (-1, tile)).sum((2, 4))  # [batch, kv_heads, tiles, keys]
        firsts = torch.arange(begin, begin + rows, tile) + (kv_len - q_len)  # position of each tile's first query
        ends = (firsts + tile).clamp(max=kv_len)
        counts = [kascade_keys(budget, tile, least_keys, end, end - first) for first, end in zip(firsts.tolist(), ends.tolist())]
        key = torch.arange(keys, device=q.device)
        first, end, count = (torch.as_tensor(one, device=q.device)[:, None] for one in (firsts, ends, counts))
        sums = sums.masked_fill((key >= first) & (key < end), torch.inf).masked_fill(key >= end, -1.0)
        order = sums.sort(dim=-1, descending=True, stable=True).indices
        taken = (key < count).expand(order.shape)  # by rank
        parts.append(F.pad(torch.zeros_like(taken).scatter(-1, order, taken), (0, kv_len - keys)))
    return torch.cat(parts, 2)


def kept_of_tiles(sets: Tensor, tile: int) -> Kept:
    """sets: [batch, kv_heads, tiles, kv_len]."""

    def kept(begin: int, rows: int, keys: int) -> Tensor:
        of_rows = torch.arange(begin, begin + rows, device=sets.device) // tile
        return sets[:, :, of_rows, :keys][:, :, None]

    return kept


class _Pages:
    """Of each query and head the pages whose bound is largest, and the query's own."""

    def __init__(self, q: Tensor, k: Tensor, how: Attention) -> None:
        self.q = q.float().unflatten(1, (k.shape[1], -1))  # [batch, kv_heads, group, q_len, head_dim]
        self.how, self.before = how, k.shape[2] - q.shape[2]
        short = -k.shape[2] % how.page
        pages = lambda fill: F.pad(k.float(), (0, 0, 0, short), value=fill).unflatten(2, (-1, how.page))
        self.least, self.most = pages(torch.inf).amin(3)[:, :, None], pages(-torch.inf).amax(3)[:, :, None]

    def __call__(self, begin: int, rows: int, keys: int) -> Tensor:
        how, q = self.how, self.q[:, :, :, begin : begin + rows]
        bound = q.clamp(min=0) @ self.most.transpose(-1, -2) + q.clamp(max=0) @ self.least.transpose(-1, -2)
        page = torch.arange(bound.shape[-1], device=q.device)
        position = torch.arange(begin, begin + rows) + self.before
        wanted = [-(-kascade_keys(how.budget, 1, how.least_keys, at + 1, 1) // how.page) for at in position.tolist()]
        own, others = ((one.to(q.device))[:, None] for one in (position // how.page, torch.tensor(wanted) - 1))
        order = bound.masked_fill(page >= own, -torch.inf).argsort(-1, descending=True)
        taken = (page < others).expand(order.shape)  # by rank
        kept = torch.zeros_like(taken).scatter(-1, order, taken) | (page == own)
        return kept.repeat_interleave(how.page, -1)[..., :keys]


def is_chosen(how: Any) -> bool:
    return how.kind in ("kascade", "tile-top-k", "pages")
