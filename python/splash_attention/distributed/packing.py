"""cu_seqlens of a whole sequence, and of what a piece of its queries sees."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from splash_attention import checks
from splash_attention.backends import host_arrays


def lengths_of(cu_seqlens: Any, length: int) -> tuple[int, ...] | None:
    """As numbers; length: of the whole sequence."""
    if cu_seqlens is None:
        return None
    table = cu_seqlens if isinstance(cu_seqlens, Tensor) else host_arrays.to_table("cu_seqlens", cu_seqlens)
    checks.check_integers("cu_seqlens", table)
    if len(table.shape) != 1:
        raise ValueError(f"cu_seqlens has {len(table.shape)} dimensions; it must have 1: [sequences + 1]")
    lengths = tuple(table.tolist())
    rises = all(a <= b for a, b in zip(lengths, lengths[1:]))
    if len(lengths) < 2 or not rises or lengths[0] != 0 or lengths[-1] != length:
        raise ValueError(f"cu_seqlens must rise from 0 to {length}, the length of the whole sequence, of all ranks")
    return lengths


@functools.lru_cache(maxsize=256)
def tables_of(lengths: tuple[int, ...], begin: int, end: int, keys: int) -> tuple[Tensor, Tensor]:
    """cu_seqlens_q and cu_seqlens_k of the queries from begin to end over so many first keys: sequences cut at these places. Under a causal
    mask keys is end, so that in each sequence the last query sees the last key. On the host; the same tensors every time, for
    which kernels are prepared once."""
    queries = [min(max(place, begin), end) - begin for place in lengths]
    return torch.tensor(queries, dtype=torch.int32), torch.tensor([min(place, keys) for place in lengths], dtype=torch.int32)
