"""A bias of distances as a matrix, for references."""

from __future__ import annotations

import torch


def of_pairs(bias, q_len, kv_len, first):
    """[heads, q_len, kv_len] of bias [heads, distances], whose first entry has the distance `first`."""
    rows, keys = torch.arange(q_len, device=bias.device), torch.arange(kv_len, device=bias.device)
    distance = keys - (rows[:, None] + kv_len - q_len)
    return bias[:, (distance - first).clamp(0, bias.shape[1] - 1)]
