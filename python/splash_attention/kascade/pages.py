"""The kernels of a step of decoding over a PagedCache: softmax, causal, forward alone. Nothing waits for the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from splash_attention._core import KASCADE_STEP_ROWS, kascade_keys
from splash_attention.backends.torch.cuda import contiguous_and_aligned, current_stream
from splash_attention.decoding import PagedCache
from splash_attention.kascade import kernels

if TYPE_CHECKING:
    from splash_attention.kascade.attention import Budget


class Lists(NamedTuple):
    """keys: int32 [batch, kv_heads, 1, keys], rising; counts: int32 [batch, kv_heads, 1], how many of them are a sequence's."""

    keys: Tensor
    counts: Tensor


def are_for(q: Tensor, cache: PagedCache, scaling: float, tile: int, alpha: float | None) -> bool:
    """Whether the kernels take such a step. q: [batch, heads, q_len, head_dim], whose keys are in the cache already."""
    few = q.shape[2] <= tile and q.shape[1] // cache.kv_heads * q.shape[2] <= KASCADE_STEP_ROWS
    if not q.is_cuda or alpha is not None or not few or 0 in q.shape or q.dtype != cache.keys.dtype:
        return False
    if torch.is_grad_enabled() and q.requires_grad or _layout(cache) is None:
        return False
    return kernels.takes(_problem(q, cache, scaling), tile)


def find(q: Tensor, cache: PagedCache, scaling: float, budget: Budget) -> Lists:
    """As attention.tile_keys, of a step for which are_for holds."""
    return _find(q, cache, scaling, budget, None)


def attend_to_all_and_find(q: Tensor, cache: PagedCache, scaling: float, budget: Budget) -> tuple[Tensor, Lists]:
    """As attention.attend_to_all_and_find."""
    out = q.new_empty((*q.shape[:3], cache.keys.shape[3]))
    lists = _find(q, cache, scaling, budget, out)
    return out[..., : q.shape[3]], lists


def _find(q: Tensor, cache: PagedCache, scaling: float, budget: Budget, out: Tensor | None) -> Lists:
    problem, room, (batch, _, q_len, _) = _problem(q, cache, scaling), _room(cache), q.shape
    seen = cache.lengths.clamp(0, room)
    counts = budget.keys(seen, seen.clamp(max=q_len), room).to(torch.int32)[:, None, None].repeat(1, cache.kv_heads, 1)
    q, most = contiguous_and_aligned(cache.widened(q)), kascade_keys(*budget, room, min(q_len, room))
    keys = q.new_empty((batch, cache.kv_heads, 1, most), dtype=torch.int32)
    workspace = q.new_empty(problem.find_bytes(out is not None), dtype=torch.uint8)
    values = [0, 0] if out is None else [cache.values.data_ptr(), out.data_ptr()]
    addresses = q.data_ptr(), cache.keys.data_ptr(), [0, 0], 0, 0, 0, counts.data_ptr(), keys.data_ptr()
    problem.find(*addresses, most, workspace.data_ptr(), workspace.numel(), current_stream(q), values, _pages(cache))
    return Lists(keys, counts)


def attend(lists: Lists, heads: Sequence[int], q: Tensor, cache: PagedCache, scaling: float) -> Tensor:
    """As attention.attend_to. heads: whose keys each key head takes."""
    problem, most, head_dim = _problem(q, cache, scaling), lists.keys.shape[3], q.shape[3]
    q, of_heads = contiguous_and_aligned(cache.widened(q)), kernels.on_device(tuple(heads), q.device)
    out, workspace = torch.empty_like(q), q.new_empty(problem.reuse_bytes(most), dtype=torch.uint8)
    addresses = [x.data_ptr() for x in (q, cache.keys, cache.values, out)]
    given = lists.counts.data_ptr(), lists.keys.data_ptr(), most, of_heads.data_ptr()
    problem.attend(addresses, *given, workspace.data_ptr(), current_stream(q), _pages(cache))
    return out[..., :head_dim]


def _room(cache: PagedCache) -> int:
    """Keys that a sequence may have."""
    return cache.block_table.shape[1] * cache.page_size


def _problem(q: Tensor, cache: PagedCache, scaling: float) -> Any:
    batch, heads, q_len, _ = q.shape
    return kernels.problem_of((batch, heads, cache.kv_heads, q_len, _room(cache), cache.keys.shape[3]), scaling, q)


def _layout(cache: PagedCache) -> tuple[int, int, int] | None:
    """From a page, a token and a head of the pools to the next, in rows; None where these are no whole rows, or not those of the values."""
    (*strides, _), width = cache.keys.stride(), cache.keys.shape[3]
    whole = cache.keys.stride() == cache.values.stride() and not any(stride % width for stride in strides)
    if not whole or (cache.keys.data_ptr() | cache.values.data_ptr()) % 16 or cache.keys.shape[0] * strides[0] // width >= 1 << 32:
        return None
    page, second, third = (stride // width for stride in strides)
    return (page, third, second) if cache.heads_first else (page, second, third)


def _pages(cache: PagedCache) -> list[int]:
    """As the bindings take them."""
    return [cache.block_table.data_ptr(), cache.lengths.data_ptr(), *(_layout(cache) or ()), cache.keys.shape[0], cache.page_size]
