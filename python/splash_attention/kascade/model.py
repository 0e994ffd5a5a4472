"""A plan in a model of transformers: attn_implementation="splash-kascade", prefill and generate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from splash_attention._core import KascadePlan
from splash_attention.hugging_face.learning import attention_layers, query_heads
from splash_attention.hugging_face.masks import hides_nothing, key_positions
from splash_attention.hugging_face.plain import require_plain
from splash_attention.kascade import read_plan
from splash_attention.kascade.attention import Reuse

NAME = "splash-kascade"


def apply(model: Any, plan: KascadePlan | str | Path, *, budget: float | None = None, keys_in_8_bits: bool = False) -> None:
    """The attention of every layer from here on: the plan's anchors find keys, the layers behind them attend to these alone.

    model: a causal model of transformers (5.0 or newer). plan: of kascade.plan, or the name of its file. budget: in place of the plan's, the
    share of the keys that a tile keeps, above 0 and at most 1. Layer 0 attends to all keys. A prefill shares keys among `plan.tile`
    queries; in generate each step chooses its own. Padding and transformers' own caches are taken; in a batch padded on the left each
    sequence gets what it would get alone. Training is taken, too, without dropout and without gradient checkpointing.
    model.set_attn_implementation("sdpa") ends it.

    keys_in_8_bits: steps of decoding choose keys by a copy in 8 bits of each anchor's keys, half as large as these, and attend to the keys
    themselves; what is chosen is an approximation. A step by softmax takes it, padded on the left or not, on Hopper or on a CPU, where query
    heads of a key head times new tokens are at most 32. The first step makes the copies, later ones add their keys, as long as the cache
    holds what it held after the step before: beam search, a cropped cache and several caches in turns have them made anew in each step,
    which is slower than without them. They stay until the next prefill, or until another attention implementation is called.

    Raises ValueError where the plan is of other layers or heads, or is no plan; what a layer computes besides (soft caps, biases, sinks,
    windows, packed sequences, SplashCache) raises NotImplementedError when it is called.
    """
    plan = read_plan(plan) if isinstance(plan, (str, Path)) else plan
    if budget is not None and not 0 < budget <= 1:
        raise ValueError(f"budget is {budget}; it must be above 0 and at most 1")
    layers = attention_layers(model)
    in_use = Reuse(plan, budget, keys_in_8_bits)
    in_use.check(sorted(layers), query_heads(layers[min(layers)]))
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, _positions)
    for module in layers.values():
        module.splash_kascade = in_use
        if keys_in_8_bits and not hasattr(module, "splash_kascade_sees_cache"):
            module.splash_kascade_sees_cache = True
            module.register_forward_pre_hook(_see_cache, with_kwargs=True)
    model.set_attn_implementation(NAME)


def _positions(batch_size: int, q_length: int, kv_length: int, *given: Any, attention_mask: Tensor | None = None, **others: Any) -> Tensor | None:
    """key_positions, but None also in a step of decoding whose mask hides nothing: a layer that attends to all keys is faster without positions.
    A GPU is waited for, as generate itself does in each step."""
    if attention_mask is not None and attention_mask.shape[-1] == kv_length and hides_nothing(attention_mask):
        attention_mask = None
    return key_positions(batch_size, q_length, kv_length, *given, attention_mask=attention_mask, **others)


def _see_cache(module: torch.nn.Module, _: Any, given: dict[str, Any]) -> None:
    """Before an attention layer puts its keys into the cache."""
    in_use: Reuse = module.splash_kascade
    if module.config._attn_implementation != NAME:
        in_use.forget_copies()
        return
    cache = given.get("cache", given.get("past_key_values"))  # the newer name of transformers first
    layers = getattr(cache, "layers", ())
    in_use.see_cache(module.layer_idx, getattr(layers[module.layer_idx], "keys", None) if module.layer_idx < len(layers) else None)


def attention_forward(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, **others: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """transformers' attention interface, as hugging_face.attention_forward. Raises as apply says."""
    in_use = getattr(module, "splash_kascade", None)
    if in_use is None:
        raise ValueError(f'attn_implementation="{NAME}" needs a plan: call splash_attention.kascade.apply(model, plan)')
    require_plain("a plan of Kascade", module, key, attention_mask, dropout, others)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    out, _ = in_use.attend(module.layer_idx, query, key, value, scaling, attention_mask)
    return out.transpose(1, 2).contiguous(), None
