"""Entmax attention in three steps that PyTorch has on every device: a matrix of scores, entmax of its rows, a product.

Slower than the kernels, by as much as the scores are larger than the support; for what the kernels do not take. Rows are
done in parts, so that the scores need no more than some hundred MB; backward computes them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator

import torch
from torch import Tensor

SCORES_AT_ONCE = 1 << 25  # of all heads; one row of each at least
_ops = torch.ops.splash_attention


@dataclass(frozen=True)
class Problem:
    """As operators.py has it, but the scale is the one that counts, and the mask's parts are tables that a device can use."""

    alpha: Tensor | None
    alpha_value: float
    causal: bool
    scale: float
    k_keep: int
    window: int
    ranges: Tensor | None  # [q_len, 2]: the first key of each query, and the one behind its last
    q_positions: Tensor | None  # [1, batch or batch * q_heads, q_len]
    k_positions: Tensor | None
    tau_offsets: Tensor | None = None  # [batch, q_heads, q_len]
    head_k_keep: Tensor | None = None  # [q_heads], in k_keep's place; below 1: all keys
    pairs: Tensor | None = None  # [1, batch or batch * q_heads, q_len, words], as operators.py has them


@dataclass(frozen=True)
class _Part:
    """Some queries of all heads. scores and p: [batch, q_heads, queries, kv_len]."""

    queries: slice
    scores: Tensor  # -inf where a query does not see the key, or k_keep leaves it out
    p: Tensor
    alpha: Tensor | None  # of each row of p
    sees_keys: Tensor  # whether the row has any: [batch, q_heads, queries]
    shift: Tensor | None  # m - tau of each row, where thresholds are given: [batch, q_heads, queries, 1], float64


def _computed(tensor: Tensor) -> Tensor:
    return tensor.detach() if tensor.dtype == torch.float64 else tensor.detach().float()


def _without_strays(tensor: Tensor) -> Tensor:
    """Infinities and NaN as 0. Where p = 0 they do not count, and 0 times them would be NaN; elsewhere p is NaN."""
    return torch.where(tensor.isfinite(), tensor, 0)


def grouped(rows: Tensor, kv_heads: int) -> Tensor:
    """[batch, q_heads, n, m] as [batch, kv_heads, group * n, m]: the heads that share keys lie one under another."""
    batch, heads, n, m = rows.shape
    return rows.reshape(batch, kv_heads, heads // kv_heads * n, m)


def _hidden(problem: Problem, q: Tensor, kv_len: int, queries: slice) -> Tensor | None:
    """What the queries do not see: true; of a shape that broadcasts to the scores'."""
    batch, heads, q_len, _ = q.shape
    key, query = torch.arange(kv_len, device=q.device), torch.arange(q_len, device=q.device)[queries, None]
    hidden = None
    if problem.ranges is not None:
        begin, end = problem.ranges[queries, :1], problem.ranges[queries, 1:]
        hidden = (key < begin) | (key >= end)
    elif problem.causal or problem.window:
        place = query + (kv_len - q_len)
        hidden = key > place if problem.causal else key >= place + problem.window
        if problem.window:
            hidden = hidden | (key <= place - problem.window)
    if problem.q_positions is not None and problem.k_positions is not None:
        tables = []
        for table in (problem.q_positions, problem.k_positions):
            table = table.reshape(-1, table.shape[-1])
            tables.append(table.reshape(*((batch, -1) if len(table) > 1 else (1, 1)), table.shape[-1]))
        later = tables[1][:, :, None, :] > tables[0][:, :, queries, None]
        hidden = later if hidden is None else hidden | later
    if problem.pairs is not None:
        unseen = (problem.pairs[:, queries, :, None] >> torch.arange(64, device=q.device) & 1).flatten(-2)[..., :kv_len] == 0
        unseen = unseen.reshape(*((batch, -1) if len(unseen) > 1 else (1, 1)), *unseen.shape[1:])
        hidden = unseen if hidden is None else hidden | unseen
    return hidden


def among_largest(scores: Tensor, keep: int | Tensor) -> Tensor:
    """True for the `keep` largest scores of each row [batch, q_heads, queries, kv_len], of equal ones the earlier; keep: a number, or
    one a head, below 1 all."""
    kv_len = scores.shape[-1]
    if isinstance(keep, Tensor):
        keep = torch.where(keep < 1, kv_len, keep).view(1, -1, 1, 1)
    order = scores.sort(stable=True, dim=-1, descending=True)[1]
    kept = (torch.arange(kv_len, device=scores.device) < keep).expand_as(scores)
    return torch.zeros_like(kept).scatter(-1, order, kept)


def _less_one(rows: Tensor, alpha: Tensor | None, problem: Problem) -> Tensor:
    """alpha - 1 of each of the rows [batch, q_heads, queries, n], float64."""
    if alpha is None:
        return torch.full((1, 1, 1, 1), problem.alpha_value - 1, dtype=torch.float64, device=rows.device)
    return alpha.view(*rows.shape[:3], 1) - 1


def _at_shift(scores: Tensor, less_one: Tensor, shift: Tensor) -> Tensor:
    """p where thresholds are given (cpu_ref/attention/given_threshold.h); NaN for rows with a NaN or +inf."""
    largest = scores.amax(-1, keepdim=True).double()
    weights = ((scores.double() - largest) * (less_one / shift) + 1).clamp(min=0) ** (1 / less_one)
    p = torch.where(largest == -torch.inf, 0, weights / weights.sum(-1, keepdim=True))
    return p.to(scores.dtype)


def _gradient_at_shift(part: _Part, d_p: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
    """(dL/dscores, dL/dalpha of each row), the offsets being constants."""
    p, less_one = part.p.double(), _less_one(part.p, part.alpha, problem)
    of_log = p * (d_p - (p * d_p).sum(-1, keepdim=True))
    down = (p.amax(-1, keepdim=True) / p).log()  # +inf where p is 0, which has no gradient
    d_scores = torch.where(p == 0, 0, of_log / (part.shift * (-less_one * down).exp()))
    x = less_one * down
    rise = torch.where(x < 1e-3, 0.5 + x / 6 + x * x / 24, (x.expm1() - x) / (x * x))  # (e^x - 1 - x) / x^2
    d_alpha = torch.where(p == 0, 0, of_log * down * down * rise).sum(-1)
    return d_scores.to(part.p.dtype), -d_alpha


def _parts(q: Tensor, k: Tensor, problem: Problem) -> Iterator[_Part]:
    batch, heads, q_len, _ = q.shape
    kv_heads, kv_len = k.shape[1:3]
    step = max(1, SCORES_AT_ONCE // max(1, batch * heads * kv_len))
    keys = _computed(k).transpose(-1, -2)
    for first in range(0, q_len, step):
        queries = slice(first, min(first + step, q_len))
        count = queries.stop - first
        scores = torch.matmul(grouped(_computed(q[:, :, queries]), kv_heads), keys).mul_(problem.scale)
        scores = scores.view(batch, heads, count, kv_len)
        hidden = _hidden(problem, q, kv_len, queries)
        if hidden is not None:
            scores.masked_fill_(hidden, -torch.inf)
        if 0 < problem.k_keep < kv_len:
            scores.masked_fill_(~among_largest(scores, problem.k_keep), -torch.inf)
        if problem.head_k_keep is not None:
            scores.masked_fill_(~among_largest(scores, problem.head_k_keep), -torch.inf)
        alpha = problem.alpha
        if alpha is not None:
            alpha = alpha.detach().double().expand(heads)[None, :, None].expand(batch, heads, count).reshape(-1)
        shift = None
        if problem.tau_offsets is None:
            p = _ops.entmax(scores.view(-1, kv_len), alpha, problem.alpha_value).view_as(scores)
        else:
            less_one = _less_one(scores, alpha, problem)
            shift = (-problem.tau_offsets[:, :, queries, None].double()).clamp(max=1).maximum(kv_len**-less_one)
            p = _at_shift(scores, less_one, shift)
        if hidden is not None:
            p = p.masked_fill(hidden, 0)  # in a row of NaN, too
        yield _Part(queries, scores, p, alpha, (scores != -torch.inf).any(-1), shift)


def _alpha_of_rows(part: _Part, problem: Problem) -> Any:
    return problem.alpha_value if part.alpha is None else part.alpha.view(part.p.shape[:3])


def forward(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """out, tau, support and peak, as the operator attention has them."""
    kv_heads = k.shape[1]
    values = _computed(v)
    strays = ~values.isfinite()
    values = _without_strays(values)
    rows, dtype = q.shape[:3], values.dtype
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    tau, peak = (q.new_empty(rows, dtype=dtype) for _ in range(2))
    support = q.new_empty(rows, dtype=torch.int32)
    for part in _parts(q, k, problem):
        p, at = grouped(part.p, kv_heads), (slice(None), slice(None), part.queries)
        product = torch.matmul(p, values)
        product.masked_fill_(torch.matmul((p > 0).to(dtype), strays.to(dtype)) > 0, torch.nan)
        out[at] = product.view(*part.p.shape[:3], -1).to(out.dtype)
        less_one = _alpha_of_rows(part, problem) - 1
        largest = part.p.amax(-1).double() ** less_one if part.shift is None else part.shift.squeeze(-1)
        tau[at] = torch.where(part.sees_keys, part.scores.amax(-1).double() * less_one - largest, torch.inf).to(dtype)
        peak[at] = torch.where(part.sees_keys, largest, 0).to(dtype)
        support[at] = (part.p > 0).sum(-1, dtype=torch.int32)
    return out, tau, support, peak


def backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dL/dq, dk, dv, of the inputs' dtype, and dL/dalpha of each head in float64."""
    batch, heads = q.shape[:2]
    kv_heads, kv_len = k.shape[1:3]
    values, keys = _computed(v), _without_strays(_computed(k))
    d_q = torch.empty_like(q, memory_format=torch.contiguous_format)
    d_k, d_v = torch.zeros_like(keys), torch.zeros_like(values)
    d_alpha = q.new_zeros(heads, dtype=torch.float64)
    for part in _parts(q, k, problem):
        queries, d_rows = (grouped(_computed(x[:, :, part.queries]), kv_heads) for x in (q, d_out))
        p = grouped(part.p, kv_heads)
        d_v += torch.matmul(p.transpose(-1, -2), d_rows)
        d_p = torch.where(p > 0, torch.matmul(d_rows, values.transpose(-1, -2)), 0)
        if part.shift is None:
            d_scores, of_rows = _ops.entmax_backward(
                p.reshape(-1, kv_len), d_p.reshape(-1, kv_len), part.alpha, problem.alpha_value
            )
        else:
            d_scores, of_rows = _gradient_at_shift(part, d_p.view_as(part.p), problem)
        d_alpha += of_rows.view(batch, heads, -1).sum((0, 2))
        d_scores = d_scores.view_as(p).masked_fill_(p == 0, 0).mul_(problem.scale)
        d_q[:, :, part.queries] = torch.matmul(d_scores, keys).view(batch, heads, -1, q.shape[-1]).to(q.dtype)
        d_k += torch.matmul(d_scores.transpose(-1, -2), _without_strays(queries))
    return d_q, d_k.to(k.dtype), d_v.to(v.dtype), d_alpha


def probabilities(q: Tensor, k: Tensor, problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """(row_offsets, columns, values), as the operator of that name has them. Waits."""
    batch, heads, q_len, _ = q.shape
    rows, columns, entries = [], [], []
    for part in _parts(q, k, problem):
        b, h, i, key = part.p.nonzero(as_tuple=True)
        rows.append((b * heads + h) * q_len + i + part.queries.start)
        columns.append(key)
        entries.append(part.p[b, h, i, key])
    row, column, entry = (torch.cat(parts) for parts in (rows, columns, entries))
    order = torch.argsort(row * k.shape[2] + column)
    counts = torch.bincount(row, minlength=batch * heads * q_len)
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    return offsets, column[order].to(torch.int32), entry[order].to(q.dtype)
