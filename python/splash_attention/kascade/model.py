"""A plan in a model of transformers: attn_implementation="splash-kascade", prefill and generate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from splash_attention._core import KascadePlan
from splash_attention.decoding import MOST_QUERIES
from splash_attention.hugging_face.cache import Step
from splash_attention.hugging_face.learning import attention_layers, query_heads
from splash_attention.hugging_face.masks import hides_nothing, is_packed, key_positions, packed_by
from splash_attention.hugging_face.plain import require_plain
from splash_attention.kascade import read_plan
from splash_attention.kascade.attention import Reuse

NAME = "splash-kascade"


def apply(
    model: Any, plan: KascadePlan | str | Path, *, budget: float | None = None, keys_in_8_bits: bool = False, exact: bool | None = None
) -> None:  # fmt: skip
    """The attention of every layer from here on: the plan's anchors find keys, the layers behind them attend to these alone.

    model: a causal model of transformers (5.0 or newer). plan: of kascade.plan, or the name of its file. budget: in place of the plan's, the
    share of the keys that a tile keeps, above 0 and at most 1. Layer 0 attends to all keys. A prefill shares keys among `plan.tile`
    queries; in generate each step chooses its own. Padding, transformers' own caches and SplashCache are taken; in a batch padded on the left
    each sequence gets what it would get alone. So does each of packed sequences, in a call of the whole text: its position_ids begin again,
    without mask and cache, or it has one entry of the batch and cu_seq_lens_q. Training is taken, too, without dropout and without gradient
    checkpointing.
    model.set_attn_implementation("sdpa") ends it.

    exact: what a plan of entmax does by default. Entmax's screen proves which keys have probability 0, so that every layer attends to all keys
    by it, and no set is guessed; it is as attn_implementation="splash" with the plan's alpha. Sets have no kernel under entmax. False:
    layers attend to their sets alone, as under softmax, for studies of what that costs.

    keys_in_8_bits: steps of decoding choose keys by a copy in 8 bits of each anchor's keys, half as large as these, and attend to the keys
    themselves; what is chosen is an approximation. A step by softmax takes it, padded on the left or not, on Hopper or on a CPU, where query
    heads of a key head times new tokens are at most 32. The first step makes the copies, later ones add their keys, as long as the cache
    holds what it held after the step before: beam search, a cropped cache and several caches in turns have them made anew in each step,
    which is slower than without them. They stay until the next prefill, or until another attention implementation is called.

    Raises ValueError where the plan is of other layers or heads, or is no plan; what a layer computes besides (soft caps, biases, sinks,
    windows, parts of packed sequences, keys_in_8_bits with SplashCache) raises NotImplementedError when it is called.
    """
    plan = read_plan(plan) if isinstance(plan, (str, Path)) else plan
    if budget is not None and not 0 < budget <= 1:
        raise ValueError(f"budget is {budget}; it must be above 0 and at most 1")
    layers = attention_layers(model)
    entmax = plan.normalizer == "entmax"
    if exact and not entmax:
        raise ValueError(f"exact is True and the plan is of {plan.normalizer}; a plan of entmax alone can be exact")
    in_use = Reuse(plan, budget, keys_in_8_bits, exact=entmax and exact is not False)
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
    several = q_length > 1 and q_length == kv_length  # new tokens of a SplashCache, whose keys are counted from the first of these
    if attention_mask is not None and (several or attention_mask.shape[-1] == kv_length) and hides_nothing(attention_mask[..., -kv_length:]):
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
    of_pages = isinstance(key, Step)
    require_plain("a plan of Kascade", module, key, attention_mask, dropout, others, packed=not of_pages, takes_steps=True)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if of_pages:
        out = _attend_with(key, in_use, module.layer_idx, query, scaling, attention_mask)
    else:
        attention_mask = _by_lengths(query, key, attention_mask, others)
        out, _ = in_use.attend(module.layer_idx, query, key, value, scaling, attention_mask)
    return out.transpose(1, 2).contiguous(), None


def _attend_with(step: Step, in_use: Reuse, layer: int, query: Tensor, scaling: float, mask: Tensor | None) -> Tensor:
    """Of a call with SplashCache: a text's beginning attends to its own tokens, later calls to what is in the pages."""
    if in_use.copies is not None:
        raise NotImplementedError("keys_in_8_bits takes transformers' own caches; with SplashCache a plan chooses by the keys themselves")
    step.store(mask)
    if step.layer.sequences.began:
        return in_use.attend(layer, query, step.k, step.v, scaling, mask)[0]
    step.refuse_gradients(query)
    if in_use.exact and query.shape[2] <= MOST_QUERIES:
        return step.decode(query, mask, *step.layer.numbers(query, scaling, in_use.alpha, 1.0))
    padded = mask is not None and query.shape[2] > 1  # a query of padding would choose, too
    if not padded and in_use.takes_pages(query, step.layer.paged, scaling):
        return in_use.attend_in_pages(layer, query, step.layer.paged, scaling)
    key, value, of_all = step.gather_with_padding_first()
    return step.with_padding_first(query, mask, lambda ordered: in_use.attend(layer, ordered, key, value, scaling, of_all)[0])


def _by_lengths(query: Tensor, key: Tensor, mask: Tensor | None, others: dict[str, Any]) -> Tensor | None:
    """The call's mask; where cu_seq_lens_q alone tells of packed sequences, as with a cache, theirs. Waits for a GPU then."""
    given = others.get("cu_seq_lens_q"), others.get("cu_seq_lens_k")
    if given[0] is None or (mask is not None and is_packed(mask, None)):
        return mask
    if mask is not None or query.shape[0] > 1 or query.shape[2] != key.shape[2]:
        raise NotImplementedError("a plan of Kascade takes cu_seq_lens_q for one whole text, without padding, and else position_ids that begin again")
    of_queries, of_keys = (None if lengths is None else lengths.tolist() for lengths in given)
    if of_queries != sorted(of_queries) or of_queries[:1] != [0] or of_queries[-1] != key.shape[2] or of_keys not in (None, of_queries):
        raise ValueError(f"cu_seq_lens_q and cu_seq_lens_k must be the same and rise from 0 to {key.shape[2]}, the tokens of the text")
    return packed_by(of_queries, key.device)
