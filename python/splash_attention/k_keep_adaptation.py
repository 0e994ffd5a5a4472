"""How a module's k_keep follows the probabilities that it sees (AdaptiveSplashAttention.adapt_k_keep).

k_keep is a number and has no gradient. So it is counted: the mean, over rows, of the probability that each rank has in its
row (the largest, the second largest, …) is known of each call; of a running mean of these the smallest k is taken whose
ranks below k hold the share that is asked for.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from torch import Tensor

from splash_attention import checks

NEWEST = 0.1  # what the newest call weighs in the running mean
_UNIT = 2**30  # of a probability: sums of integers are the same in any order, so on a GPU too


def check_target(target: Any) -> float | None:
    if target is None:
        return None
    if isinstance(target, bool) or not isinstance(target, Real):
        raise TypeError(f"k_keep_target is a {type(target).__name__}; it must be a number or None")
    if not 0 < target <= 1:
        raise ValueError(f"k_keep_target is {target}; it must be above 0 and at most 1")
    return float(target)


def check_bounds(bounds: Any) -> tuple[int, int]:
    if not isinstance(bounds, (list, tuple)) or len(bounds) != 2:
        raise TypeError(f"k_keep_bounds is {bounds!r}; it must be two integers: the smallest and the largest k_keep")
    low, high = (checks.check_count("k_keep_bounds", bound) for bound in bounds)
    if low > high:
        raise ValueError(f"k_keep_bounds is {(low, high)}; the first must not be above the second")
    return low, high


def mass_by_rank(offsets: Tensor, values: Tensor, q_shape: torch.Size, groups: int, bins: int) -> Tensor:
    """Probability by rank, summed over the rows of each head (or of all, where groups is 1), as shares of it all: float64
    [groups, bins]. Ranks from bins - 1 on are in the last one. offsets, values: of the sparse rows [batch, q_heads, q_len].
    A head without a probability has 0, and so has one with a NaN."""
    counts = offsets.diff()
    row = torch.repeat_interleave(counts)
    order = values.float().argsort(descending=True, stable=True)
    order = order[row[order].argsort(stable=True)]  # row after row, the largest first; row[order] is row again
    rank = torch.arange(row.numel(), device=row.device) - offsets[row]
    head = row // q_shape[2] % q_shape[1] if groups > 1 else torch.zeros_like(row)
    place = head * bins + rank.clamp(max=bins - 1)
    sums = torch.zeros(groups * bins, dtype=torch.int64, device=row.device)
    sums.index_add_(0, place, (values[order].double().nan_to_num(nan=0.0) * _UNIT).round().to(torch.int64))
    sums = sums.view(groups, bins).double()
    broken = torch.zeros(groups, dtype=torch.int64, device=row.device).index_add_(0, head, values[order].isnan().long())
    return torch.where(broken[:, None] > 0, 0, sums / sums.sum(-1, keepdim=True).clamp(min=1))


def running_mean(before: Tensor, seen: Tensor) -> Tensor:
    """Of shares; a head with nothing before takes what is seen, one with nothing seen keeps what was."""
    started, sees = (mass.sum(-1, keepdim=True) > 0 for mass in (before, seen))
    return torch.where(sees, torch.where(started, before.lerp(seen, NEWEST), seen), before)


def smallest_that_keeps(mass: Tensor, k_keep: Tensor, target: float, bounds: tuple[int, int]) -> Tensor:
    """The smallest k of which ranks below k hold the target of each head's mass, within the bounds; heads of which nothing
    is known keep their k_keep. Shares are off by their rounding: 1e-6 less than the target counts as it."""
    total = mass.sum(-1, keepdim=True)
    short = mass.cumsum(-1) < (target - 1e-6) * total
    return torch.where(total.squeeze(-1) > 0, (short.sum(-1) + 1).clamp(*bounds).to(k_keep.dtype), k_keep)
