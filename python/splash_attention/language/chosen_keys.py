"""Softmax over a part of the keys that each layer chooses: keys that tiles of queries share, and pages by bounds.

Plain PyTorch on all scores, some rows at a time, for studies of quality. Shapes and mask as attention.Call's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from splash_attention._core import kascade_keys
from splash_attention.hugging_face.masks import left_padding
from splash_attention.kascade.attention import Budget, attend_to, tile_keys
from splash_attention.kascade.keys_in_8_bits import rounded
from splash_attention.language.dense_methods import dense_attention
from splash_attention.language.methods import Attention


def choose_and_attend(q: Tensor, k: Tensor, v: Tensor, how: Attention, scaling: float, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """(out, support) of the kinds "tile-top-k" and "pages". Raises NotImplementedError for padding with pages."""
    if how.kind == "pages":
        hidden = (0,) if mask is None else left_padding(mask, q.shape[2])  # older versions of transformers make a mask of ones
        if hidden is None or any(hidden):
            raise NotImplementedError("pages takes no padding; give the model texts of one length")
        return dense_attention(q, k, v, how, scaling, None, _Pages(q, k, how))
    if isinstance(how.factor, tuple):
        q = (q * torch.tensor(how.factor, device=q.device)[:, None, None]).to(q.dtype)
    else:
        scaling *= how.factor
    budget = Budget(how.budget, how.tile, how.least_keys)
    keys = tile_keys(q, k, scaling, budget, mask) if how.bits is None else tile_keys(q.float(), rounded(k), scaling, budget, mask)
    out, support = attend_to(keys, q, k, v, budget, scaling, mask, return_support=True)
    return out, support


class _Pages:
    """Of each query and head the pages whose bound is largest, and the query's own."""

    def __init__(self, q: Tensor, k: Tensor, how: Attention) -> None:
        self.q = q.float().unflatten(1, (k.shape[1], -1))  # [batch, kv_heads, group, q_len, head_dim]
        self.how, self.before = how, k.shape[2] - q.shape[2]
        short = -k.shape[2] % how.page
        pages = lambda fill: F.pad(k.float(), (0, 0, 0, short), value=fill).unflatten(2, (-1, how.page))
        self.least, self.most = pages(torch.inf).amin(3)[:, :, None], pages(-torch.inf).amax(3)[:, :, None]

    def __call__(self, begin: int, rows: int, keys: int) -> Tensor:
        how, q = self.how, self.q[:, :, :, begin : begin + rows]
        bound = q.clamp(min=0) @ self.most.transpose(-1, -2) + q.clamp(max=0) @ self.least.transpose(-1, -2)
        page = torch.arange(bound.shape[-1], device=q.device)
        position = torch.arange(begin, begin + rows) + self.before
        wanted = [-(-kascade_keys(how.budget, 1, how.least_keys, at + 1, 1) // how.page) for at in position.tolist()]
        own, others = ((one.to(q.device))[:, None] for one in (position // how.page, torch.tensor(wanted) - 1))
        order = bound.masked_fill(page >= own, -torch.inf).argsort(-1, descending=True)
        taken = (page < others).expand(order.shape)  # by rank
        kept = torch.zeros_like(taken).scatter(-1, order, taken) | (page == own)
        return kept.repeat_interleave(how.page, -1)[..., :keys]
