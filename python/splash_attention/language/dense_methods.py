"""The methods without a kernel of ours: masked softmax by PyTorch's fused one, the others by all scores, some rows at a time, in
float32. For studies of what a method costs in quality, not in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from splash_attention.functional import entmax
from splash_attention.language.methods import Attention

Kept = Callable[[int, int, int], Tensor]  # (first row, rows, keys) -> bool, to broadcast with scores [batch, kv_heads, group, rows, keys]
_SCORES = 1 << 27  # at once: 512 MiB of float32, and a few times that while they are sorted


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, how: Attention, scaling: float, mask: Tensor | None, kept: Kept | None = None
) -> tuple[Tensor, Tensor]:
    """(out, support [batch, heads, q_len]). Shapes as attention.Call's. kept: of the keys that are seen, which ones take part."""
    if how.kind in ("softmax", "window-softmax"):
        return _masked_softmax(q, k, v, how, scaling, mask)
    outs, supports = [], []
    for begin, scores, values in _score_rows(q, k, v, how, scaling, mask):
        if kept is not None:
            scores = scores.masked_fill(~kept(begin, scores.shape[3], scores.shape[4]), -torch.inf)
        p = weights(scores, how)
        outs.append((p @ values).flatten(1, 2).to(q.dtype))
        supports.append((p > 0).sum(-1).flatten(1, 2))
    return torch.cat(outs, 2), torch.cat(supports, 2)


def _score_rows(
    q: Tensor, k: Tensor, v: Tensor, how: Attention, scaling: float, mask: Tensor | None
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Some rows at a time: (first row, scores [batch, kv_heads, group, rows, keys], -inf where hidden, values [batch, kv_heads, 1, keys,
    value_dim]); keys are those up to the last that one of the rows sees."""
    kv_heads = k.shape[1]
    factor = torch.as_tensor(how.factor, dtype=torch.float32, device=q.device).reshape(-1, 1, 1)
    queries = (q.float() * (factor * scaling)).unflatten(1, (kv_heads, -1))  # [batch, kv_heads, group, q_len, head_dim]
    keys, values = k.float()[:, :, None], v.float()[:, :, None]
    rows = max(1, _SCORES // (q.shape[0] * q.shape[1] * k.shape[2]))
    for begin in range(0, q.shape[2], rows):
        part = queries[:, :, :, begin : begin + rows]
        end = k.shape[2] if mask is not None else begin + part.shape[3] + k.shape[2] - q.shape[2]  # later keys are hidden from all
        seen = _seen(mask, begin, part.shape[3], q, k)[..., :end]
        yield begin, (part @ keys[..., :end, :].transpose(-1, -2)).masked_fill(~seen, -torch.inf), values[..., :end, :]


def _masked_softmax(q: Tensor, k: Tensor, v: Tensor, how: Attention, scaling: float, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """By PyTorch's fused one, which stores no scores; a key is in the support where it is seen, however small its weight."""
    seen = _seen(mask, 0, q.shape[2], q, k)[:, 0]  # [batch or 1, 1, q_len, kv_len]
    if how.kind == "window-softmax":
        own = torch.arange(q.shape[2], device=q.device)[:, None] + (k.shape[2] - q.shape[2])
        key = torch.arange(k.shape[2], device=q.device)
        seen = seen & ((key > own - how.window) | (key < how.sink))
    factor = torch.as_tensor(how.factor, dtype=torch.float32, device=q.device).reshape(-1, 1, 1)
    scaled = (q.float() * factor).to(q.dtype)
    k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))  # grouped heads and a mask have no fused kernel
    out = F.scaled_dot_product_attention(scaled, k, v, attn_mask=seen, scale=scaling)
    return out.nan_to_num(0.0), seen.sum(-1).expand(q.shape[:3])  # a row without keys is zero


def weights(scores: Tensor, how: Attention) -> Tensor:
    """p of each row. scores: [batch, kv_heads, group, rows, kv_len], -inf where masked."""
    if how.kind == "power":
        powers = scores.clamp(min=0) ** _per_head(how.alpha, scores)
        return powers / powers.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    if how.k_keep is not None:
        scores = _largest(scores, how)
    if how.kind == "entmax":
        return entmax(scores, _per_head(how.alpha, scores)[..., 0])
    return torch.softmax(scores, -1).nan_to_num(0.0)  # a row without keys is zero


def _largest(scores: Tensor, how: Attention) -> Tensor:
    """Only the k_keep largest of each row, or of each block of a row."""
    length = scores.shape[-1]
    block = length if how.block is None else min(how.block, length)
    blocks = F.pad(scores, (0, -length % block), value=-torch.inf).unflatten(-1, (-1, block))
    keep = torch.as_tensor(how.k_keep, device=scores.device).reshape(-1)
    keep = torch.where(keep == 0, block, keep).clamp(max=block)
    best = blocks.topk(int(keep.max()), -1)
    if keep.numel() > 1:
        beyond = torch.arange(best.values.shape[-1], device=scores.device) >= keep.view(1, *scores.shape[1:3], 1, 1, 1)
        best = type(best)((best.values.masked_fill(beyond, -torch.inf), best.indices))
    kept = torch.full_like(blocks, -torch.inf).scatter(-1, best.indices, best.values)
    return kept.flatten(-2)[..., :length]


def _per_head(values: float | tuple[float, ...], scores: Tensor) -> Tensor:
    """To broadcast with scores."""
    given = torch.as_tensor(values, dtype=torch.float32, device=scores.device)
    return given.expand(scores.shape[1] * scores.shape[2]).reshape(1, *scores.shape[1:3], 1, 1)


def _seen(mask: Tensor | None, begin: int, rows: int, q: Tensor, k: Tensor) -> Tensor:
    """[batch or 1, 1, 1, rows, kv_len]: which keys the rows from `begin` on see."""
    row = torch.arange(begin, begin + rows, device=q.device)[:, None]
    if mask is None:
        return (torch.arange(k.shape[2], device=q.device) <= row + (k.shape[2] - q.shape[2]))[None, None, None]
    return (mask[:, 0, 0, None, : k.shape[2]] <= row)[:, None, None]
