"""A penalty on support, the count of keys with weight, which itself has no gradient.

Key k of a row has weight exactly where sum_j [(alpha - 1) factor (s_j - s_k)]_+^(1 / (alpha - 1)) < 1 (the row's threshold put at k).
The left-hand side rises in alpha and in factor, so a row's support never grows in either, and its mean over the thousands of rows of a
head is nearly smooth in both. So log(keys) of each head is counted on its own inputs at alpha and factor, at a larger factor and at a
smaller alpha; what is penalised is this first-order model of it, counted anew every few steps. A price for each head makes it a
Lagrangian's gradient: in alpha and factor at once, so that what a head loses for its keys is least.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from splash_attention.hugging_face import attention_of_heads
from splash_attention.language.attention import Call, observed
from splash_attention.language.conversion import Converted
from splash_attention.language.plan import Plan

_ALPHA_STEP, _LOG_STEP = 0.05, 0.1  # wide enough that thousands of rows cross a key, towards what kernels take
_LEAST = 0.5  # of -d log(keys) / d log(factor): a head that uses every key shows none, and is to be moved too


@dataclass(frozen=True)
class Keys:
    """log(mean keys of a query) of each head near where it was counted, to first order; all [layers, heads], float32."""

    log_keys: Tensor
    alpha: Tensor
    log_factor: Tensor
    by_alpha: Tensor
    """d log_keys / d alpha, below 0; likewise the next."""
    by_log_factor: Tensor

    def at(self, alpha: Tensor, factor: Tensor) -> Tensor:
        """log(keys), differentiable."""
        return self.log_keys + self.by_alpha * (alpha - self.alpha) + self.by_log_factor * (factor.log() - self.log_factor)

    def as_dict(self) -> dict[str, Tensor]:
        return {name: values.cpu() for name, values in asdict(self).items()}


def penalty(keys: Keys, alpha: Tensor, factor: Tensor, plan: Plan) -> Tensor:
    """Whose gradient is each head's price times the gradient of its log(keys).

    The price is plan.price times how far the head is above its bound, in log(keys): so the whole falls with the squared distance from
    the set of models within the plan's bounds. It is zero for a head within its bound.
    """
    log_keys = keys.at(alpha, factor)
    above = (log_keys - log_bounds(log_keys, plan)).clamp(min=0).detach()
    return plan.price * (above * log_keys).sum()


def log_bounds(log_keys: Tensor, plan: Plan) -> Tensor:
    """Of each head, infinite where it has none. Heads stand in the order of their keys, and the bound of a quantile holds for every head
    up to it: the nearest model whose quantile is within its bound has just these heads lowered."""
    count = log_keys.numel()
    in_order = torch.full((count,), math.inf, device=log_keys.device)
    for share, keys in ((1.0, plan.most_keys), (0.95, plan.p95_keys), (0.5, plan.median_keys)):
        if keys:
            in_order[: math.ceil(share * (count - 1)) + 1].clamp_(max=math.log(keys))
    order = log_keys.detach().flatten().argsort()
    return torch.empty_like(in_order).scatter_(0, order, in_order).view_as(log_keys)


@torch.no_grad()
def count_keys(converted: Converted, ids: Tensor, *, slopes: bool) -> Keys:
    """Of the model as it is, on ids [1, length]: one forward pass, with slopes two more of its attention. Without, they are 0."""
    model = converted.model
    alpha, factor = converted.of_heads("alpha"), converted.of_heads("factor")
    counted = [torch.zeros_like(alpha) for _ in range(3)]

    def see(call: Call) -> None:
        own = (alpha[call.layer], factor[call.layer])
        counted[0][call.layer] = call.support[0].float().mean(1)
        moved = ((own[0] - _ALPHA_STEP, own[1]), (own[0], own[1] * math.exp(_LOG_STEP))) if slopes else ()
        for at, (one_alpha, one_factor) in enumerate(moved, 1):
            counted[at][call.layer] = _support(call, one_alpha, one_factor, converted.plan)

    training = model.training
    model.eval()
    with observed(see):
        model.base_model(input_ids=ids, use_cache=False)
    model.train(training)
    log_keys, nothing = counted[0].clamp(min=1).log(), torch.zeros_like(alpha)
    if not slopes:
        return Keys(log_keys, alpha, factor.log(), nothing, nothing)
    by_log_factor = ((counted[2].clamp(min=1).log() - log_keys) / _LOG_STEP).clamp(max=-_LEAST)
    by_alpha = (log_keys - counted[1].clamp(min=1).log()) / _ALPHA_STEP
    # At the threshold the left-hand side above grows in alpha by (1 / (alpha - 1) + the row's entropy) of what it grows in log(factor).
    by_alpha = torch.minimum(by_alpha, by_log_factor / (alpha - 1))
    return Keys(log_keys, alpha, factor.log(), by_alpha, by_log_factor)


def _support(call: Call, alpha: Tensor, factor: Tensor, plan: Plan) -> Any:
    """Mean keys of a query, [heads]."""
    _, support = attention_of_heads(
        call.query, call.key, call.value, alpha=alpha, factor=factor, k_keep=plan.k_keep or None, scaling=call.scaling, causal=True,
        return_support=True,
    )  # fmt: skip
    return support[0].float().mean(1)
