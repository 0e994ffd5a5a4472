"""A method in the place of a model's softmax, through transformers' attention interface: the model's own code stays as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from splash_attention.hugging_face import attention_of_heads, key_positions
from splash_attention.hugging_face.head_order import in_model_order
from splash_attention.hugging_face.learning import attention_layers, query_heads
from splash_attention.hugging_face.masks import tables_of
from splash_attention.hugging_face.plain import require_plain, softmax_attention, visible_keys
from splash_attention.kascade.attention import Reuse
from splash_attention.language.chosen_keys import choose_and_attend
from splash_attention.language.dense_methods import dense_attention
from splash_attention.language.methods import Attention, Method

NAME = "splash_method"


@dataclass
class Call:
    """One layer's attention in one call of the model; tensors are [batch, heads, length, head_dim]."""

    layer: int
    module: torch.nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    scaling: float
    mask: Tensor | None
    """None is causal; else the first query that sees each key, [batch, 1, 1, kv_len]."""
    out: Tensor
    support: Tensor
    """Keys with weight of each row, [batch, heads, q_len]."""

    def softmax(self) -> Tensor:
        """What softmax makes of the same inputs, as `out`."""
        return softmax_attention(self.query, self.key, self.value, self.scaling, self.mask)


_observers: list[Callable[[Call], None]] = []


def apply(model: Any, method: Method | None) -> None:
    """The attention of every layer from here on. method: None is the model's own softmax, by PyTorch's fused one.

    Raises ValueError where the model has no such layers, or the method is of more layers or other heads.
    """
    layers = attention_layers(model)
    if method is not None:
        unknown = sorted(set(method.layers) - set(layers))
        if unknown:
            raise ValueError(f"the method is of the layers {unknown} too; the model has 0 to {max(layers)}")
        for layer, module in layers.items():
            method.of(layer).check_heads(query_heads(module), layer)
    in_use = _kascade_of(method, layers)
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, key_positions)
    for layer, module in layers.items():
        module.splash_method, module.splash_kascade = None if method is None else method.of(layer), in_use
    model.set_attn_implementation("sdpa" if method is None else NAME)


def _kascade_of(method: Method | None, layers: dict[int, torch.nn.Module]) -> Reuse | None:
    """The plan of a method that has one, in use in one model. Raises ValueError where it does not fit the model or is not for all layers."""
    chosen = [] if method is None else [method.of(layer) for layer in sorted(layers)]
    if not any(one.kind == "kascade" for one in chosen):
        return None
    if len(set(chosen)) > 1:
        raise ValueError("kascade is a method of all layers of a model; layers of other methods cannot stand beside it")
    in_use = Reuse(chosen[0].read_plan(), chosen[0].budget, rounds_keys=chosen[0].bits is not None)
    in_use.check(sorted(layers), query_heads(layers[min(layers)]))
    return in_use


@contextlib.contextmanager
def applied(model: Any, method: Method) -> Iterator[None]:
    """apply, and the model's own attention again at the end."""
    before, layers = model.config._attn_implementation, attention_layers(model)
    methods = {layer: (getattr(module, "splash_method", None), getattr(module, "splash_kascade", None)) for layer, module in layers.items()}
    apply(model, method)
    try:
        yield
    finally:
        for layer, module in layers.items():
            module.splash_method, module.splash_kascade = methods[layer]
        model.set_attn_implementation(before)


@contextlib.contextmanager
def observed(observer: Callable[[Call], None]) -> Iterator[None]:
    """Each layer's attention of models with a method is told to observer."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def attention_forward(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, **others: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """transformers' attention interface, as hugging_face.attention_forward."""
    require_plain("a method", module, key, attention_mask, dropout, others)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    how, learned = module.splash_method, getattr(module, "splash_heads", None)
    if learned is not None and how.kind == "entmax":  # of a model in conversion
        alpha, factor = learned.alpha, learned.factor
    else:
        alpha, factor = how.alpha, how.factor
    counted = bool(_observers)
    if how.kind == "kascade":
        out, support = module.splash_kascade.attend(module.layer_idx, query, key, value, scaling, attention_mask, counted)
    else:
        straight = torch.is_grad_enabled() and getattr(module, "splash_straight_through", False)
        out, support = _attend(query, key, value, how, alpha, factor, scaling, attention_mask, counted, straight)
    if _observers:
        call = Call(module.layer_idx, module, query, key, value, scaling, attention_mask, out, support)
        for observer in _observers:
            observer(call)
    return in_model_order(out), None


def _attend(
    q: Tensor, k: Tensor, v: Tensor, how: Attention, alpha: Any, factor: Any, scaling: float, mask: Tensor | None, counted: bool,
    straight_through: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """straight_through: of entmax's k_keep. What it gives is the same, and so is the gradient of v; those of q, k, alpha and factor are of
    attention over all keys (source 004)."""
    if how.kind == "softmax" and factor == 1:
        return softmax_attention(q, k, v, scaling, mask), visible_keys(q, k, mask) if counted else None
    if how.kind == "entmax" and how.block is None:
        call: dict[str, Any] = {"scaling": scaling} | ({"causal": True} if mask is None else tables_of(mask, q, k))
        whole = None
        if straight_through:
            whole = attention_of_heads(q, k, v.detach(), alpha=alpha, factor=factor, **call)
            q, k, alpha, factor = (x.detach() if isinstance(x, Tensor) else x for x in (q, k, alpha, factor))
        done = attention_of_heads(q, k, v, alpha=alpha, factor=factor, k_keep=how.k_keep, return_support=counted, **call)
        out, support = done if counted else (done, None)
        return out if whole is None else out + (whole - whole.detach()), support
    if how.kind in ("tile-top-k", "pages"):
        return choose_and_attend(q, k, v, how, scaling, mask)
    return dense_attention(q, k, v, how, scaling, mask)
