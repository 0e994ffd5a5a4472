"""Exact entmax attention in models of the `transformers` library (5.0 or newer).

    from splash_attention import hugging_face
    hugging_face.register()
    model = AutoModelForCausalLM.from_config(config, attn_implementation="splash")

Three settings are read from the attention module, else from the model's configuration:

- ``splash_alpha``: a number, or a list or parameter of 1 or num_heads entries; else 1.5.
- ``splash_factor``: of the scale, a number, or a list or parameter of num_heads entries; else 1.
- ``splash_k_keep``: only the k_keep largest scores of each row, a number, or a list of num_heads entries, where 0 keeps all; else all.

``hugging_face.apply(model, "tuned.json")`` sets them from a file that splash_attention.language wrote.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Sequence

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import (
    AttentionMaskInterface,
    bidirectional_mask_function,
    causal_mask_function,
    sdpa_mask,
)

from splash_attention import checks
from splash_attention.functional import splash_attention

_ANOTHER_MASK = (
    "splash attention takes causal masks and padding; this model's mask (a sliding window, or packed sequences) is another: "
    "use sdpa or eager"
)


def register(name: str = "splash") -> None:
    """Makes attn_implementation=name known to transformers."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, key_positions)


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface. query: [batch, heads, q_len, head_dim]; key, value: [batch, kv_heads, kv_len,
    head_dim]; attention_mask: what key_positions returned. Returns [batch, q_len, heads, head_dim], and no weights.

    Raises NotImplementedError for dropout in training, softcap, a position bias, attention sinks and masks that were not
    made by key_positions.
    """
    if dropout and module.training:
        raise NotImplementedError(f"splash attention has no dropout (here {dropout}); set attention_dropout to 0")
    for option in ("softcap", "position_bias", "s_aux"):
        if others.get(option) is not None:
            raise NotImplementedError(f"splash attention does not take this model's {option}; use sdpa or eager")
    positions: dict[str, Tensor] = {}
    if attention_mask is not None:
        if attention_mask.dtype != torch.int32 or tuple(attention_mask.shape[1:3]) != (1, 1):
            raise NotImplementedError(
                f"splash attention takes no mask of shape {list(attention_mask.shape)} and {str(attention_mask.dtype)[6:]}; pass the tokenizer's [batch, length]"
            )
        positions = {
            "q_positions": torch.arange(query.shape[2], device=query.device),
            "k_positions": attention_mask[:, 0, 0, : key.shape[2]],
        }
    causal = attention_mask is None and (getattr(module, "is_causal", True) if is_causal is None else is_causal)
    out = attention_of_heads(
        query, key, value, alpha=_setting(module, "splash_alpha", 1.5), factor=_setting(module, "splash_factor", 1.0),
        k_keep=_setting(module, "splash_k_keep", None), causal=causal, scaling=scaling, **positions,
    )  # fmt: skip
    return out.transpose(1, 2).contiguous(), None


def attention_of_heads(
    query: Tensor, key: Tensor, value: Tensor, *, alpha: Any = 1.5, factor: Any = 1.0, k_keep: int | Sequence[int] | None = None,
    scaling: float | None = None, return_support: bool = False, **call: Any,
) -> Any:  # fmt: skip
    """splash_attention with a factor of the scale and a k_keep for each head.

    query: [batch, heads, q_len, head_dim]; key, value: [batch, kv_heads, kv_len, head_dim]. factor: of scaling (None: 1/√head_dim), a
    number, or a list or float32 tensor of heads entries, differentiable: by it the queries are multiplied, in float32, and rounded to
    their dtype once more. k_keep: a number, or a list of heads entries, where 0 keeps all. call: what splash_attention takes besides.
    Returns out, as query; with return_support (out, support [batch, heads, q_len]). Raises as splash_attention does.
    """
    if isinstance(factor, (list, tuple)) and len(set(factor)) == 1:
        factor = factor[0]
    if isinstance(factor, (int, float)):
        if factor != 1:  # what is passed on as it came, splash_attention checks
            scaling = factor * (checks.check_scale(scaling) or query.shape[-1] ** -0.5)
    else:
        given = factor if isinstance(factor, Tensor) else torch.tensor(factor, dtype=torch.float32, device=query.device)
        factors = given.reshape(-1)
        if factors.numel() not in (1, query.shape[1]):
            raise ValueError(f"factor has {factors.numel()} entries; allowed: 1, or {query.shape[1]} (one a query head)")
        query = (query * factors[:, None, None]).to(query.dtype)
    if isinstance(k_keep, (list, tuple)):
        if len(k_keep) != query.shape[1]:
            raise ValueError(f"k_keep has {len(k_keep)} entries; allowed: 1, or {query.shape[1]} (one a query head)")
        if len(set(k_keep)) == 1:  # a number keeps the fastest path
            k_keep = k_keep[0] or None
    done = splash_attention(query, key, value, alpha=alpha, scale=scaling, k_keep=k_keep, return_aux=return_support, **call)
    return (done[0], done[1].support) if return_support else done


def apply(model: Any, method: Any) -> None:
    """The attention of every layer from here on: method, a splash_attention.language.Method or the name of its file."""
    from splash_attention.language import Method, apply

    apply(model, Method.read(method) if isinstance(method, (str, Path)) else method)


def _setting(module: torch.nn.Module, name: str, otherwise: Any) -> Any:
    own = getattr(module, name, None)
    return getattr(module.config, name, otherwise) if own is None else own


def key_positions(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    **others: Any,
) -> Tensor | None:
    """transformers' mask interface: the first query that sees each key (q_length for a key that none sees), or None
    where the model's own causality says all. [batch, 1, 1, kv_len]: what has four dimensions, transformers passes on as it
    is. Queries behind the first must see the key too: so of masks, causal ones and all kinds of padding; others (sliding
    windows, packed sequences) raise NotImplementedError, or where a compiled graph meets them RuntimeError.
    """
    if attention_mask is None and mask_function is bidirectional_mask_function:
        return None
    if attention_mask is None and mask_function is causal_mask_function and q_offset + q_length == kv_offset + kv_length:
        return None
    device = device if attention_mask is None else attention_mask.device
    if mask_function in (causal_mask_function, bidirectional_mask_function):
        keys = torch.arange(kv_length, device=device)
        first = (keys + (kv_offset - q_offset)).clamp(0, q_length)
        first = (first if mask_function is causal_mask_function else 0 * keys).repeat(batch_size, 1)
        if attention_mask is not None:
            first = first.masked_fill(~_padding(attention_mask, kv_length), q_length)
        return _positions(first)
    mask = sdpa_mask(
        batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
        mask_function=mask_function, attention_mask=attention_mask, device=device,
        **{**others, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False, "allow_torch_fix": False},
    )  # fmt: skip
    seen = mask[:, 0]
    first = torch.where(seen.any(1), seen.to(torch.uint8).argmax(1), q_length)
    served = (seen == (first[:, None, :] <= torch.arange(q_length, device=device)[None, :, None])).all()
    if torch.compiler.is_compiling() or type(served) is not Tensor or served.is_meta:
        # What a compiler traces has no values yet, and there transformers takes every model without a mask and a cache for
        # packed sequences: the graph looks when it runs.
        torch._assert_async(served, _ANOTHER_MASK)
    elif not served:
        raise NotImplementedError(_ANOTHER_MASK)
    return _positions(first)


def _positions(first: Tensor) -> Tensor:
    """int32, which tells them from a mask of the user's, which transformers passes on as it is."""
    return first.to(torch.int32)[:, None, None, :]


def _padding(attention_mask: Tensor, kv_length: int) -> Tensor:
    """[batch, kv_length], False where there is padding or nothing yet."""
    mask = attention_mask[:, -kv_length:].to(torch.bool)
    missing = kv_length - mask.shape[1]
    return torch.nn.functional.pad(mask, (0, missing)) if missing else mask
