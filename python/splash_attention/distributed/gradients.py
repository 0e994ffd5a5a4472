"""Gradients of parameters that every rank has whole."""

from __future__ import annotations

from typing import Any, Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from splash_attention.distributed.groups import process_group


def sum_gradients(parameters: Iterable[Tensor], group: Any = None) -> None:
    """Replaces each parameter's gradient by its sum over the ranks, added in the order of the ranks in float32 (float64 for such): the
    same bits on every rank and in every run.

    Each rank's gradient is the part of its own tokens, learned alphas' like all others'. DistributedDataParallel and FSDP do this sum
    themselves, as a mean and in NCCL's order; then do not call it. A parameter without a gradient counts as zeros.
    parameters: the same, in the same order, on all ranks. group: as of ring_splash_attention.
    """
    group = process_group(group)
    given = [parameter for parameter in parameters if parameter.requires_grad]
    for dtype, device in dict.fromkeys((parameter.dtype, parameter.device) for parameter in given):
        some = [parameter for parameter in given if (parameter.dtype, parameter.device) == (dtype, device)]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in some])
        total = sum_in_order(flat, group)
        for parameter, part in zip(some, total.split([parameter.numel() for parameter in some])):
            parameter.grad = part.view_as(parameter).to(dtype)


def sum_in_order(flat: Tensor, group: Any) -> Tensor:
    """Of [n] on each rank: [n], in float32 or float64. Each rank adds up its part, and tells it: twice the bytes of n travel, as in a
    ring's all-reduce."""
    ranks = dist.get_world_size(group)
    wide = torch.promote_types(flat.dtype, torch.float32)
    size = -(-flat.numel() // ranks)
    sent = torch.nn.functional.pad(flat, (0, ranks * size - flat.numel()))
    parts = torch.empty_like(sent)
    dist.all_to_all_single(parts, sent, group=group)
    total = torch.zeros(size, dtype=wide, device=flat.device)
    for part in parts.view(ranks, size):
        total += part
    whole = total.new_empty(ranks * size)
    dist.all_gather_into_tensor(whole, total, group=group)
    return whole[: flat.numel()]
