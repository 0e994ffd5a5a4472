"""Cutting whole sequences into shards, and back."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from splash_attention import checks
from splash_attention.distributed.groups import all_gather, finish, process_group
from splash_attention.distributed.shards import Shards


def shard(x: Tensor, group: Any = None, dim: int = 1, *, shard: str = "zigzag") -> Tensor:
    """This rank's tokens of a sequence that every rank has whole; a copy, differentiable.

    group: a ProcessGroup, a DeviceMesh of one dimension, or None, which is all ranks. dim: the sequence's. shard: "zigzag" (balanced
    under a causal mask), "striped" or "contiguous". Raises ValueError where the length is no multiple of the number of chunks (twice as
    many as ranks for a zigzag).
    """
    group = process_group(group)
    shards, dim = Shards(shard, dist.get_world_size(group)), checks.check_dim(dim, x.dim()) % x.dim()
    check_length(shards, x.shape[dim])
    return shards.part(x, dist.get_rank(group), dim)


def unshard(x: Tensor, group: Any = None, dim: int = 1, *, shard: str = "zigzag") -> Tensor:
    """The whole sequence, on every rank, of what each holds; without a gradient. Arguments as of shard."""
    group = process_group(group)
    shards, dim = Shards(shard, dist.get_world_size(group)), checks.check_dim(dim, x.dim()) % x.dim()
    mine = x.detach().contiguous()
    work, parts = all_gather(mine, group)
    finish(work, "to gather a sequence")
    return shards.join(shards.in_order(parts.unbind(0), dim), dim)


def position_ids(length: int, group: Any = None, *, shard: str = "zigzag", device: Any = None) -> Tensor:
    """Where this rank's tokens stand in a sequence of this length, for rotary embeddings: int64 [length / ranks]."""
    places = torch.arange(checks.check_count("length", length), device=device)
    group = process_group(group)
    shards = Shards(shard, dist.get_world_size(group))
    check_length(shards, length)
    return shards.part(places, dist.get_rank(group), 0)


def check_length(shards: Shards, length: int) -> None:
    if length % shards.count:
        raise ValueError(
            f"the sequence has {length} tokens; a {shards.kind} over {shards.ranks} ranks takes a multiple of {shards.count}: pad it"
        )
