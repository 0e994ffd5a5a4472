"""Learned alpha and factor of the scale of attention heads, within bounds that no optimizer's step leaves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

ALPHA_LOW, ALPHA_HIGH = 1.05, 2.0  # of a learned alpha, where nothing else is said
_EDGE = 0.05  # of alpha's interval: nearer to its ends a logit barely moves it, so learning begins inside


class LearnedHeads(nn.Module):
    """alpha, between two bounds, and factor, above 0, of a layer's query heads: parameters [heads] each, float32.

    alpha, factor: where they start, a number or one a head; an alpha at a bound starts a little inside.
    """

    def __init__(self, heads: int, alpha: Any = 1.5, factor: Any = 1.0, low: float = ALPHA_LOW, high: float = ALPHA_HIGH) -> None:
        super().__init__()
        self.bounds = (low, high)
        start, size = (torch.as_tensor(x, dtype=torch.float32).detach().reshape(-1).expand(heads).clone() for x in (alpha, factor))
        if not start.is_meta:  # where a checkpoint is loaded values come later
            if not ((start >= low) & (start <= high)).all():
                raise ValueError(f"alpha is {start.tolist()}; where it is learned it must start from {low} to {high}")
            if not (size > 0).all():
                raise ValueError(f"factor is {size.tolist()}; it must be above 0")
        share = (start - low) / (high - low)
        self.place, self.size = nn.Parameter(share.clamp(_EDGE, 1 - _EDGE).logit()), nn.Parameter(size.log())

    @property
    def alpha(self) -> Tensor:
        low, high = self.bounds
        return low + (high - low) * torch.sigmoid(self.place.float())

    @property
    def factor(self) -> Tensor:
        return self.size.float().exp()
