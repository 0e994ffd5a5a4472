"""alpha, factor and k_keep of each head, chosen without training.

Each candidate is tried once on each head, on the inputs that the head has in the model as it is: how far its output moves from
softmax's, and how many keys it uses. From these curves a Lagrangian picks one candidate a head: the one of least error + price ·
support, at the one price for all heads at which the mean support is the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splash_attention.hugging_face import attention_of_heads
from splash_attention.hugging_face.learning import attention_layers, query_heads
from splash_attention.language.attention import Call, applied, observed
from splash_attention.language.methods import Attention, Method

ALPHAS = (1.25, 1.375, 1.5, 1.75, 2.0)
FACTORS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0)


def candidates(
    alphas: Sequence[float] = ALPHAS, factors: Sequence[float] = FACTORS, k_keeps: Sequence[int | None] = (None,)
) -> list[Attention]:
    """All combinations."""
    return [Attention("entmax", alpha=alpha, factor=f, k_keep=keep) for keep in k_keeps for alpha in alphas for f in factors]


@dataclass(frozen=True)
class Curves:
    """What each candidate does to each head."""

    candidates: tuple[Attention, ...]
    error: np.ndarray
    """[layers, heads, candidates]: squared distance of the head's contribution to the residual stream from softmax's, over the squared
    length of the stream there; mean over tokens. Where a model's layers do not show it, over the head's own softmax output."""
    support: np.ndarray
    """[layers, heads, candidates]: mean keys of a query."""

    def choose(self, budget: float) -> tuple[Method, dict[str, float]]:
        """(method, its mean support and error summed over heads) with the least error at a mean support of at most budget keys.

        Raises ValueError where no choice uses so few keys.
        """
        least = self.support.min(2).mean()
        if not budget >= least:
            raise ValueError(f"budget is {budget:g} keys a query; these candidates use at least {least:.2f} in the mean over heads")
        low, high = -40.0, 40.0  # of the price's logarithm
        picked = self._at(high)
        for _ in range(60):
            middle = (low + high) / 2
            tried = self._at(middle)
            if self._mean(self.support, tried) <= budget:
                picked, high = tried, middle
            else:
                low = middle
        if self._mean(self.support, picked) > budget:
            picked = self.support.argmin(2)
        error = float(np.take_along_axis(self.error, picked[..., None], 2).sum())
        facts = {"mean_support": self._mean(self.support, picked), "error": error}
        return self._method(picked, budget, facts), facts

    def _at(self, price: float) -> np.ndarray:
        return (self.error + np.exp(price) * self.support).argmin(2)

    @staticmethod
    def _mean(values: np.ndarray, picked: np.ndarray) -> float:
        return float(np.take_along_axis(values, picked[..., None], 2).mean())

    def _method(self, picked: np.ndarray, budget: float, facts: dict[str, float]) -> Method:
        layers = {}
        for layer, numbers in enumerate(picked):
            chosen = [self.candidates[number] for number in numbers]
            keeps = tuple(one.k_keep or 0 for one in chosen)
            layers[layer] = Attention(
                "entmax", alpha=tuple(one.alpha for one in chosen), factor=tuple(one.factor for one in chosen),
                k_keep=keeps if any(keeps) else None,
            )  # fmt: skip
        made_by = {"how": "tuned without training", "budget": budget, **facts}
        return Method(Attention("entmax"), layers, f"tuned to {budget:g} keys", made_by)


def tune(model: Any, windows: Tensor, *, budget: float, tried: Sequence[Attention] | None = None) -> Method:
    """The method whose heads stay nearest to softmax at a mean support of at most budget keys a query.

    model: of transformers. windows: token ids [windows, length], of a development text: judge the result on another. tried: entmax
    with one alpha, factor and k_keep each; None: candidates(). Raises ValueError for a budget below what any choice uses.
    """
    return measure_curves(model, windows, tried).choose(budget)[0]


def measure_curves(model: Any, windows: Tensor, tried: Sequence[Attention] | None = None) -> Curves:
    """Each candidate on each head, on the inputs that softmax gives it. As tune."""
    tried = tuple(candidates() if tried is None else tried)
    if not tried or any(one.kind != "entmax" or one.block is not None for one in tried):
        raise ValueError("candidates must be of kind entmax, without block, and at least one")
    if windows.dim() != 2 or windows.shape[0] < 1:
        raise ValueError(f"windows has shape {list(windows.shape)}; it must be [windows, length]")
    layers = attention_layers(model)
    shape = (len(layers), query_heads(layers[0]), len(tried))
    error, support = np.zeros(shape), np.zeros(shape)
    stream: dict[int, Tensor] = {}

    def see(call: Call) -> None:
        size = stream.get(call.layer)
        weigh = _weigher(call, size)
        for at, one in enumerate(tried):
            out, keys = attention_of_heads(
                call.query, call.key, call.value, alpha=one.alpha, factor=one.factor, k_keep=one.k_keep,
                scaling=call.scaling, causal=True, return_support=True,
            )  # fmt: skip
            error[call.layer, :, at] += weigh(out[0].float() - call.out[0].float()).cpu().numpy() / len(windows)
            support[call.layer, :, at] += keys[0].float().mean(1).cpu().numpy() / len(windows)

    with torch.no_grad(), applied(model, Method(Attention())), _streams(model, layers, stream), observed(see):
        for window in windows:
            model.base_model(input_ids=window[None].to(model.device), use_cache=False)
    return Curves(tried, error, support)


def _weigher(call: Call, size: Tensor | None) -> Any:
    """How much a change of the heads' outputs, [heads, tokens, head_dim], weighs: [heads]."""
    output = getattr(call.module, "o_proj", None)
    if size is None or output is None:
        own = call.out[0].float().square().sum((1, 2))
        return lambda change: change.square().sum((1, 2)) / own
    heads, _, head_dim = call.out.shape[1:]
    columns = output.weight.detach().float().view(-1, heads, head_dim).permute(1, 2, 0)  # [heads, head_dim, width]
    gram = columns @ columns.transpose(1, 2)
    return lambda change: (((change @ gram) * change).sum(2) / size).mean(1)


@contextmanager
def _streams(model: Any, layers: dict[int, Any], stream: dict[int, Tensor]) -> Iterator[None]:
    """Into stream: of each layer, the squared length of each token's state before it, [tokens]."""
    numbers = {id(module): layer for layer, module in layers.items()}
    hooks = []
    for parent in model.modules():
        for child in parent.children():
            if id(child) in numbers:
                layer = numbers[id(child)]

                def keep(_: Any, given: tuple[Any, ...], named: dict[str, Any], layer: int = layer) -> None:
                    states = given[0] if given else named["hidden_states"]
                    stream[layer] = states[0].float().square().sum(1)

                hooks.append(parent.register_forward_pre_hook(keep, with_kwargs=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
