"""transformers' masks as the kernels take them, or as boolean tensors."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

_ANOTHER_MASK = (
    "this compiled graph takes causal masks and padding; this mask (packed sequences, or one of your own) is another: set "
    "config.splash_any_mask to True before you compile, or do not compile"
)


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
    """transformers' mask interface: None where the model's own causality says all; where each key is seen by a query and by all behind
    it, as in causal masks with any padding, the first query that sees it (q_length for none), int32 [batch, 1, 1, kv_len]; else (windows,
    packed sequences, masks of one's own) bool [batch, 1, q_len, kv_len]. What has four dimensions, transformers passes on as it is.
    Raises RuntimeError where a graph that was compiled without splash_any_mask meets packed sequences.
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
    compiling = torch.compiler.is_compiling()
    # What a compiler traces has no values yet, and without a mask and a cache transformers takes every model for packed sequences there.
    if compiling and (others.get("local_size") is not None or getattr(others.get("config"), "splash_any_mask", False)):
        return mask
    seen = mask[:, 0]
    first = torch.where(seen.any(1), seen.to(torch.uint8).argmax(1), q_length)
    served = (seen == (first[:, None, :] <= torch.arange(q_length, device=device)[None, :, None])).all()
    if compiling or type(served) is not Tensor or served.is_meta:
        torch._assert_async(served, _ANOTHER_MASK)
    elif not served:
        return mask
    return _positions(first)


def is_positions(mask: Tensor) -> bool:
    """Whether key_positions made it so, in the kernels' form."""
    return mask.dtype == torch.int32 and tuple(mask.shape[1:3]) == (1, 1)


def tables_of(mask: Tensor, q: Tensor, k: Tensor) -> dict[str, Tensor]:
    """The positions that splash_attention takes, of a mask in the kernels' form."""
    return {"q_positions": torch.arange(q.shape[2], device=q.device), "k_positions": mask[:, 0, 0, : k.shape[2]]}


def seen_keys(mask: Tensor | None, causal: bool, q: Tensor, kv_len: int) -> Tensor:
    """bool, broadcasts to [batch, q_heads, q_len, kv_len]: the keys that each query sees. mask: of key_positions, or bool."""
    rows = torch.arange(q.shape[2], device=q.device)[:, None]
    if mask is not None:
        return mask[..., :kv_len] <= rows if is_positions(mask) else mask[..., :kv_len]
    keys = torch.arange(kv_len, device=q.device)
    return (keys <= rows + (kv_len - q.shape[2]) if causal else keys.expand(q.shape[2], -1) >= 0)[None, None]


def _positions(first: Tensor) -> Tensor:
    """int32, which tells them from a mask of the user's, which transformers passes on as it is."""
    return first.to(torch.int32)[:, None, None, :]


def _padding(attention_mask: Tensor, kv_length: int) -> Tensor:
    """[batch, kv_length], False where there is padding or nothing yet."""
    mask = attention_mask[:, -kv_length:].to(torch.bool)
    missing = kv_length - mask.shape[1]
    return torch.nn.functional.pad(mask, (0, missing)) if missing else mask
