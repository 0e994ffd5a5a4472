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
from splash_attention.hugging_face.masks import key_positions
from splash_attention.hugging_face.plain import require_plain
from splash_attention.kascade import read_plan
from splash_attention.kascade.attention import Reuse

NAME = "splash-kascade"


def apply(model: Any, plan: KascadePlan | str | Path, *, budget: float | None = None) -> None:
    """The attention of every layer from here on: the plan's anchors find keys, the layers behind them attend to these alone.

    model: a causal model of transformers (5.0 or newer). plan: of kascade.plan, or the name of its file. budget: in place of the plan's, the
    share of the keys that a tile keeps, above 0 and at most 1. Layer 0 attends to all keys. A prefill shares keys among `plan.tile`
    queries; in generate each step chooses its own. Padding and transformers' own caches are taken; training is, too, without dropout
    and without gradient checkpointing. model.set_attn_implementation("sdpa") ends it.

    Raises ValueError where the plan is of other layers or heads, or is no plan; what a layer computes besides (soft caps, biases, sinks,
    windows, packed sequences, SplashCache) raises NotImplementedError when it is called.
    """
    plan = read_plan(plan) if isinstance(plan, (str, Path)) else plan
    if budget is not None and not 0 < budget <= 1:
        raise ValueError(f"budget is {budget}; it must be above 0 and at most 1")
    layers = attention_layers(model)
    in_use = Reuse(plan, budget)
    in_use.check(sorted(layers), query_heads(layers[min(layers)]))
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, key_positions)
    for module in layers.values():
        module.splash_kascade = in_use
    model.set_attn_implementation(NAME)


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
