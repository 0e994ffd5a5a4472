"""scaled_dot_product_attention: PyTorch's name and arguments, entmax in softmax's place."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from splash_attention import checks, folding
from splash_attention.backends.torch import cuda, modified
from splash_attention.backends.torch.functional import TABLES, as_autocast_has_it, attention, check_tensor, check_tensors, to_one_width
from splash_attention.modifications import NONE, Modifications

_NAMES = ("query", "key", "value")


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    alpha: Any = 1.5,
) -> Tensor:
    """Exact α-entmax attention with the arguments of torch.nn.functional.scaled_dot_product_attention.

    query: [..., q_heads, q_len, head_dim]; key: [..., kv_heads, kv_len, head_dim]; value: [..., kv_heads, kv_len, value_dim]. Two
    dimensions at least; those before the last two broadcast. What is empty gives zeros, or an empty tensor, as in PyTorch.
    attn_mask: broadcasts to [..., q_heads, q_len, kv_len]; bool, of which False hides a key, or a floating-point number that is added
    to the scaled score.
    dropout_p: share of probabilities set to 0, the others divided by 1 - dropout_p; applied whenever it is above 0.
    is_causal: query i sees the keys j ≤ i (top left), as PyTorch has it; `splash_attention(causal=True)` lets the last query see the last
    key (bottom right). With q_len = kv_len they are one.
    scale: of the scores; None is 1/√head_dim.
    enable_gqa: q_heads is a multiple of kv_heads, and query heads share keys and values.
    alpha: as splash_attention has it: a number above 1, or one a query head, or [batch, q_heads].

    Masks of bool, is_causal and dropout run on the kernels; what is added to scores computes every score, and says so once. is_causal, and
    masks that hide keys from all queries alike (attn_mask [..., 1, kv_len]), take less than a mask of pairs.

    Returns [..., q_heads, q_len, value_dim], in query's dtype. A query without visible keys gives a zero row. Differentiable by query, key,
    value, attn_mask and a tensor alpha. Raises TypeError, ValueError and NotImplementedError as splash_attention does.
    """
    query, key, value = as_autocast_has_it(query, key, value, _NAMES)
    check_tensors(query, key, value, _NAMES)
    is_causal, enable_gqa = checks.check_flag("is_causal", is_causal), checks.check_flag("enable_gqa", enable_gqa)
    leading = _check_shapes(query, key, value, enable_gqa)
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask and is_causal are both given; allowed is one of them: put causality into attn_mask")
    dropout_p = checks.check_dropout(dropout_p, "dropout_p")
    (q_len, head_dim), (kv_len, width) = query.shape[-2:], value.shape[-2:]
    mask = None if attn_mask is None else _broadcast_mask(attn_mask, query, (*leading, q_len, kv_len))
    scale = checks.check_scale(scale) or head_dim**-0.5
    if 0 in (*leading, q_len, kv_len, width):
        anchor = sum(tensor.narrow(-1, 0, 0).sum() for tensor in (query, key, value))  # 0, with a gradient
        return query.new_zeros((*leading, q_len, width)) + anchor
    q, k, v = _four_dimensions(query, key, value, leading)
    if folding.is_alpha_of_batch(alpha, q):
        if mask is not None:
            mask = folding.fold(mask.expand(*q.shape[:2], *mask.shape[2:]))
        q, k, v, alpha = *map(folding.fold, (q, k, v)), alpha.reshape(-1)
    out = _attend_from_top_left(q, k, v, mask, is_causal, alpha=alpha, scale=scale, dropout=dropout_p)
    return out.reshape(*leading, q_len, width)


def _check_shapes(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[int, ...]:
    """The leading dimensions of the output."""
    for name, tensor in zip(_NAMES, (query, key, value)):
        checks.check_float(name, tensor)
        if tensor.dtype != query.dtype:
            raise TypeError(f"query is of {checks.dtype_name(query)} and {name} of {checks.dtype_name(tensor)}; they must be of one dtype")
        if tensor.device != query.device:
            raise ValueError(f"{name} is on {tensor.device} and query on {query.device}; they must be on one device")
        if tensor.dim() < (3 if enable_gqa else 2):
            needed = "3 with enable_gqa: [..., heads, length, head_dim]" if enable_gqa else "2: [..., length, head_dim]"
            raise ValueError(f"{name} has {tensor.dim()} dimensions; it must have at least {needed}")
    if query.shape[-1] != key.shape[-1] or query.shape[-1] == 0:
        raise ValueError(f"query has head_dim {query.shape[-1]} and key {key.shape[-1]}; they must be equal and at least 1")
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"key has {key.shape[-2]} rows and value {value.shape[-2]}; they must have as many")
    shapes = [tensor.shape[:-2] for tensor in (query, key, value)]
    if enable_gqa:
        heads = query.shape[-3]
        for name, tensor in (("key", key), ("value", value)):
            if tensor.shape[-3] == 0 or heads % tensor.shape[-3]:
                raise ValueError(f"query has {heads} heads and {name} {tensor.shape[-3]}; with enable_gqa it must be a multiple")
        shapes = [(*shape[:-1], heads) for shape in shapes]
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        given = " and ".join(f"{name} {list(tensor.shape)}" for name, tensor in zip(_NAMES, (query, key, value)))
        why = "" if enable_gqa else " (or enable_gqa, where heads are shared)"
        raise ValueError(f"the shapes are {given}; dimensions before the last two must broadcast{why}") from None


def _broadcast_mask(attn_mask: Any, query: Tensor, scores: tuple[int, ...]) -> Tensor:
    """[1 or batch, 1 or q_heads, 1 or q_len, 1 or kv_len]."""
    check_tensor("attn_mask", attn_mask, "query")
    if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
        raise TypeError(f"attn_mask is of {checks.dtype_name(attn_mask)}; it must be bool, or of floating-point numbers")
    if attn_mask.device != query.device:
        raise ValueError(f"attn_mask is on {attn_mask.device} and query on {query.device}; they must be on one device")
    sizes = zip(reversed(attn_mask.shape), reversed(scores))
    if attn_mask.dim() > len(scores) or not all(size in (1, whole) for size, whole in sizes):
        raise ValueError(f"attn_mask has shape {list(attn_mask.shape)}; it must broadcast to {list(scores)}")
    missing = max(len(scores), 4) - attn_mask.dim()
    mask = attn_mask.reshape((1,) * missing + tuple(attn_mask.shape))
    if mask.dim() > 4:
        mask = mask.expand(*scores[:-3], *mask.shape[-3:]).flatten(0, -4)
    return mask


def _four_dimensions(query: Tensor, key: Tensor, value: Tensor, leading: tuple[int, ...]) -> list[Tensor]:
    """[batch, heads, length, dim] of each; keys and values have one number of heads, which query's is a multiple of."""
    batch, heads = leading[:-1], leading[-1] if leading else 1
    of_keys = [tensor.shape[-3] if tensor.dim() > 2 else 1 for tensor in (key, value)]
    if of_keys[0] != of_keys[1]:
        key, value = (
            tensor.repeat_interleave(heads // count, -3) if 1 < count < heads else tensor
            for tensor, count in zip((key, value), of_keys)
        )
        of_keys = [heads, heads]
    return [
        tensor.expand(*batch, count, *tensor.shape[-2:]).reshape(math.prod(batch), count, *tensor.shape[-2:])
        for tensor, count in zip((query, key, value), (heads, *of_keys))
    ]


def _attend_from_top_left(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, **call: Any) -> Tensor:
    """Query i sees the keys j ≤ i: those up to the last query's are a square; queries behind the last key see all."""
    q_len, kv_len = q.shape[2], k.shape[2]
    if not is_causal:
        return _attend(q, k, v, mask, False, **call)
    if q_len <= kv_len:
        return _attend(q, k[:, :, :q_len], v[:, :, :q_len], mask, True, **call)
    square, below = q[:, :, :kv_len], q[:, :, kv_len:]
    return torch.cat([_attend(square, k, v, mask, True, **call), _attend(below, k, v, mask, False, **call)], 2)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, *, alpha: Any, scale: float, dropout: float
) -> Tensor:
    hides = mask is None or mask.dtype == torch.bool
    width = v.shape[3]
    wide = to_one_width(q, k, v, 8 if q.is_cuda else 1)  # a GPU's kernels take multiples of 8
    served = dropout == 0 or not q.is_cuda or cuda.takes_modified(q.dtype, wide[0].shape[3], alpha)
    if not (hides and served):
        modified.tell_once("this attn_mask" if not hides else "dropout of such tensors")
        added = {"bias" if mask is not None and mask.is_floating_point() else "mask": mask}
        return modified.attention(q, k, v, alpha=alpha, causal=causal, scale=scale, dropout=dropout, **added)
    tables: dict[str, Tensor | None] = dict.fromkeys(TABLES)
    pairs = mask if mask is not None and mask.shape[2] > 1 else None
    if mask is not None and pairs is None:  # a hidden key's position is behind every query's
        (batch, heads), kv_len = q.shape[:2], k.shape[2]
        shape = (batch, kv_len) if mask.shape[1] == 1 else (batch, heads, kv_len)
        hidden = mask[:, 0, 0] if mask.shape[1] == 1 else mask[:, :, 0]
        tables["q_positions"] = torch.zeros(q.shape[2], dtype=torch.int32, device=q.device)
        tables["k_positions"] = (~hidden).to(torch.int32).expand(shape)
    modifications = NONE if dropout == 0 and pairs is None else Modifications(dropout=dropout, mask=pairs)
    return attention(*wide, alpha, causal, scale, None, None, tables, False, modifications)[..., :width]
