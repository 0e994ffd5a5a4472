"""Entmax attention by every score, for what the kernels do not take: any mask and bias, with windows, soft caps, sinks and dropout beside.

Also what tests compare the kernels with.

Every score is computed, some rows at a time (dense.SCORES_AT_ONCE); backward computes them again. dense.py is the same plan for
the kernels' own problems, where thresholds and counts are asked for; here autograd differentiates, so each step stands once.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from splash_attention import checks
from splash_attention.backends.torch import calls, dense, functional

_told: set[str] = set()


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alpha: Any = 1.5,
    causal: bool = False,
    scale: float | None = None,
    k_keep: Any = None,
    mask: Tensor | None = None,
    first_keys: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    return_probabilities: bool = False,
) -> Any:
    """α-entmax attention of the scores softcap·tanh(scale·⟨q, k⟩ / softcap) + bias over the keys that a query sees.

    q: [batch, q_heads, q_len, head_dim]; k: [batch, kv_heads, kv_len, head_dim]; v: [batch, kv_heads, kv_len, value_dim]; one dtype,
    computed in float32, or in float64 for such. alpha, causal, scale, k_keep: as splash_attention has them.
    mask: bool, broadcasts to [batch, q_heads, q_len, kv_len]; False hides a key.
    first_keys: integers that broadcast to [batch, q_heads, q_len]: a query sees no key before its own (`window_starts` for windows).
    bias: real, broadcasts as mask does; added to scaled and capped scores, -inf hides a key. Differentiable.
    softcap: above 0; None caps nothing (Gemma 2, arXiv 2408.00118).
    sinks: [q_heads], one more score of each row, neither scaled nor capped, that takes probability and has no value (GPT-OSS, arXiv
    2508.10925); k_keep does not count it. Differentiable.
    dropout: share of probabilities set to 0, the others divided by 1 - dropout; drawn from PyTorch's generator of the device, and in
    backward drawn again, alike.

    Returns out [batch, q_heads, q_len, value_dim], of q's dtype; with return_probabilities (out, p [batch, q_heads, q_len, kv_len]), p
    after dropout. A query without visible keys gives zeros. Raises TypeError and ValueError for what does not fit.
    """
    q, k, v = functional.as_autocast_has_it(q, k, v)
    problem = functional.problem_of(q, k, k, alpha, causal, scale, k_keep, None, dict.fromkeys(functional.TABLES))
    values, number, causal, scale, k_keep, *_ = problem
    head_k_keep = problem.head_k_keep
    (batch, heads, q_len, head_dim), kv_len = q.shape, k.shape[2]
    if v.dim() != 4 or v.shape[:3] != k.shape[:3] or v.dtype != q.dtype:
        raise ValueError(
            f"v is of shape {list(v.shape)} and {str(v.dtype)[6:]}; it must be {[*k.shape[:3]]} and a width, {str(q.dtype)[6:]}"
        )
    scores = (batch, heads, q_len, kv_len)
    mask, bias = _broadcast("mask", mask, scores), _broadcast("bias", bias, scores)
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"mask is of {str(mask.dtype)[6:]}; it must be bool, and what is added to scores is a bias")
    if first_keys is not None:
        checks.check_integers("first_keys", first_keys)
        first_keys = _broadcast("first_keys", first_keys, scores[:3])
    if sinks is not None and tuple(sinks.shape) != (heads,):
        raise ValueError(f"sinks has shape {list(sinks.shape)}; it must be [{heads}], one a query head")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap is {softcap}; it must be above 0, or None")
    dropout = checks.check_dropout(dropout)
    if 0 in scores:
        out = q.new_zeros((*scores[:3], v.shape[3])) + 0 * (q.sum() + k.sum() + v.sum())
        return (out, q.new_zeros(scores)) if return_probabilities else out
    alpha = number if values is None else values.double().expand(heads)
    keep = head_k_keep if head_k_keep is not None else (k_keep or None)
    constants = (causal, scale or head_dim**-0.5, softcap, dropout, return_probabilities)
    tensors = (alpha, keep, mask, first_keys, bias, sinks)
    differentiable = [t for t in (q, k, v, alpha, bias, sinks) if isinstance(t, Tensor)]
    again = torch.is_grad_enabled() and any(t.requires_grad for t in differentiable)
    outs, ps = [], []
    for first, last in _parts(*scores):
        given = (q, k, v, *tensors, first, last, constants)
        out, p = checkpoint(_rows, *given, use_reentrant=False, preserve_rng_state=dropout > 0) if again else _rows(*given)
        outs.append(out)
        ps.append(p)
    out = outs[0] if len(outs) == 1 else torch.cat(outs, 2)
    return (out, torch.cat(ps, 2)) if return_probabilities else out


def window_starts(window: int, q_len: int, kv_len: int, device: Any = None) -> Tensor:
    """first_keys of a sliding window, [q_len]: with causal, each query sees its own key and the window - 1 before it."""
    return torch.arange(q_len, device=device) + (kv_len - q_len + 1 - checks.check_count("window", window))


@torch.compiler.assume_constant_result
def tell_once(what: str) -> None:
    """Warns, the first time for each, that `what` is computed without the kernels. A compiler says it while it traces."""
    if what in _told:
        return
    _told.add(what)
    warnings.warn(
        f"splash attention has no kernel for {what} yet: it computes every score, which is slower and takes more memory the longer "
        "the text is. Masks of bool (causal, windows, padding, packed sequences and others), soft caps, sinks, dropout and T5's biases "
        "run on the kernels: leave the rest out where you can.",
        stacklevel=4,
    )


def _broadcast(name: str, tensor: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    """With as many dimensions as shape, of which some are 1."""
    if tensor is None:
        return None
    fits = tensor.dim() <= len(shape) and all(n in (1, m) for n, m in zip(reversed(tensor.shape), reversed(shape)))
    if not fits:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; it must broadcast to {list(shape)}")
    return tensor.reshape((1,) * (len(shape) - tensor.dim()) + tuple(tensor.shape))


def _parts(batch: int, heads: int, q_len: int, kv_len: int) -> list[tuple[int, int]]:
    """First queries and those behind the last. One part is not a loop, so a graph of symbolic lengths serves all that need one."""
    if batch * heads * q_len * kv_len <= dense.SCORES_AT_ONCE:
        return [(0, q_len)]
    step = max(1, dense.SCORES_AT_ONCE // (batch * heads * kv_len))
    return [(first, min(first + step, q_len)) for first in range(0, q_len, step)]


def _queries(tensor: Tensor, first: int, last: int) -> Tensor:
    """Of queries alone, where dimension 2 has them."""
    return tensor if tensor.shape[2] == 1 else tensor[:, :, first:last]


def _rows(
    q: Tensor, k: Tensor, v: Tensor, alpha: Any, keep: Any, mask: Tensor | None, first_keys: Tensor | None, bias: Tensor | None,
    sinks: Tensor | None, first: int, last: int, constants: tuple[Any, ...],
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """out of the queries from first to before last, and their probabilities where asked for."""
    with torch.autocast(q.device.type, enabled=False):
        causal, scale, softcap, dropout, with_p = constants
        (batch, heads, q_len, _), (kv_heads, kv_len) = q.shape, k.shape[1:3]
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        rows = dense.grouped(q[:, :, first:last].to(dtype) * scale, kv_heads)
        scores = (rows @ k.to(dtype).transpose(-1, -2)).view(batch, heads, last - first, kv_len)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if bias is not None:
            scores = scores + _queries(bias, first, last).to(dtype)
        hidden = _hidden(q, kv_len, causal, mask, first_keys, first, last)
        if hidden is not None:
            scores = scores.masked_fill(hidden, -torch.inf)
        if keep is not None:
            scores = scores.masked_fill(~dense.among_largest(scores.detach(), keep), -torch.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks.to(dtype).view(1, -1, 1, 1).expand(batch, heads, last - first, 1)], -1)
        of_rows = None if not isinstance(alpha, Tensor) else alpha.view(1, -1, 1).expand(scores.shape[:3]).reshape(-1)
        number = alpha if of_rows is None else 0.0
        p = calls.entmax(scores.reshape(-1, scores.shape[-1]), of_rows, number).view(scores.shape)[..., :kv_len]
        if hidden is not None:
            p = p.masked_fill(hidden, 0)  # in a row of NaN, too
        if dropout > 0:
            p = F.dropout(p, dropout)
        values, weights = v.to(dtype), dense.grouped(p, kv_heads)
        strays = ~values.isfinite()  # where p is 0 they do not count
        out = weights @ values.masked_fill(strays, 0)
        out = out.masked_fill((weights > 0).to(dtype) @ strays.to(dtype) > 0, torch.nan)
        return out.view(batch, heads, last - first, -1).to(q.dtype), p.to(q.dtype) if with_p else None


def _hidden(
    q: Tensor, kv_len: int, causal: bool, mask: Tensor | None, first_keys: Tensor | None, first: int, last: int
) -> Tensor | None:
    """True where a query does not see a key; broadcasts to the rows' scores."""
    key, parts = torch.arange(kv_len, device=q.device), []
    if causal:
        parts.append((key > torch.arange(first, last, device=q.device)[:, None] + (kv_len - q.shape[2]))[None, None])
    if first_keys is not None:
        parts.append(key < _queries(first_keys, first, last)[..., None])
    if mask is not None:
        parts.append(~_queries(mask, first, last))
    hidden = None
    for part in parts:
        hidden = part if hidden is None else hidden | part
    return hidden
