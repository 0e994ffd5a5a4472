"""Learned alpha and factor of the scale of attention heads, within bounds that no optimizer's step leaves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
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
        self._given: tuple[Tensor, Tensor] | None = None  # alpha and factor, inside together()
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
        return _alpha_of(self.place, *self.bounds) if self._given is None else self._given[0]

    @property
    def factor(self) -> Tensor:
        return _factor_of(self.size) if self._given is None else self._given[1]


@contextlib.contextmanager
def together(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, alpha and factor of all LearnedHeads among the modules are those of its beginning, by few operations for all. On a GPU each
    operation on a layer's few numbers takes as long as one on all of them."""
    heads = [module for module in modules if isinstance(module, LearnedHeads)]
    if len({module.bounds for module in heads}) == 1:
        counts = [len(module.place) for module in heads]
        alphas = _alpha_of(torch.cat([module.place for module in heads]), *heads[0].bounds).split(counts)
        factors = _factor_of(torch.cat([module.size for module in heads])).split(counts)
        for module, alpha, factor in zip(heads, alphas, factors, strict=True):
            module._given = (alpha, factor)
    try:
        yield
    finally:
        for module in heads:
            module._given = None


def _alpha_of(place: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * torch.sigmoid(place.float())


def _factor_of(size: Tensor) -> Tensor:
    return size.float().exp()
