"""Calls of transformers' attention interface that are causal attention with padding, and nothing else."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from splash_attention.distributed import context
from splash_attention.hugging_face.cache import Step
from splash_attention.hugging_face.masks import is_packed, is_positions, seen_keys

_CHANGES = ("softcap", "position_bias", "s_aux", "sliding_window", "cu_seq_lens_q")


def require_plain(
    who: str, module: nn.Module, key: Any, mask: Tensor | None, dropout: float, others: dict[str, Any], packed: bool = False,
    takes_steps: bool = False,
) -> None:  # fmt: skip
    """Raises NotImplementedError, one sentence that begins with who, for a call that is not such. others: the call's other options. packed:
    whether packed sequences are taken, too; takes_steps: those of a SplashCache."""
    if context.active():
        raise NotImplementedError(f'{who} attends on one rank; context_parallel takes attn_implementation="splash"')
    if isinstance(key, Step) and not takes_steps:
        raise NotImplementedError(f'{who} takes transformers\' own caches; SplashCache is for attn_implementation="splash"')
    for option in _CHANGES:
        if others.get(option) is not None and not (packed and option == "cu_seq_lens_q"):
            raise NotImplementedError(f"{who} does not take this model's {option}")
    if dropout and module.training:
        raise NotImplementedError(f"{who} has no dropout (here {dropout}); set attention_dropout to 0")
    if not getattr(module, "is_causal", True):
        raise NotImplementedError(f"{who} is for causal attention; this model's layers see all tokens")
    if mask is not None and not is_positions(mask) and not (packed and is_packed(mask, None)):
        taken, other = (", padding and packed sequences", "one of your own") if packed else (" and padding", "packed sequences")
        raise NotImplementedError(f"{who} takes causal masks{taken}; this mask (a sliding window, or {other}) is another")


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, scaling: float, mask: Tensor | None) -> Tensor:
    """Softmax by PyTorch's fused attention. q: [batch, heads, q_len, head_dim]; k: [batch, kv_heads, kv_len, head_dim]; v: so, of any
    width. mask: None is causal; else of key_positions. A query without keys gives a zero row."""
    grouped = q.shape[1] != k.shape[1]
    if mask is None and q.shape[2] in (1, k.shape[2]):  # one query, the last, sees all keys
        return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, scale=scaling, enable_gqa=grouped)
    seen = seen_keys(mask, True, q, k.shape[2])
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scaling, enable_gqa=grouped)
    return out if mask is None else out.masked_fill(~seen.any(-1, keepdim=True), 0.0)


def visible_keys(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """How many keys each query sees: [batch, heads, q_len]. Arguments as softmax_attention's."""
    return seen_keys(mask, True, q, k.shape[2]).sum(-1).expand(q.shape[:3])
