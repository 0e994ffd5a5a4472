"""The functions on torch tensors: checks, autocast, then the operators of torch_ops."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from splash_attention import _core, checks, torch_calls
from splash_attention.aux import Aux
from splash_attention.torch_ops import TABLES, spec_of


def _check_devices(first: Tensor, **tensors: Tensor) -> None:
    device = first.device
    if first.is_cuda:
        if not _core.has_cuda:
            raise NotImplementedError(f"tensors are on {device}; this build has no CUDA, because no nvcc was found")
    elif not (first.is_cpu or first.is_meta):
        raise NotImplementedError(f"tensors are on {device}; allowed are the host's memory and NVIDIA GPUs")
    for name, tensor in tensors.items():
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device} and the first argument on {device}; they must be on one device")


def _as_alpha(alpha: Any) -> tuple[Tensor | None, float]:
    """(tensor or None, number): what an operator takes."""
    if isinstance(alpha, Tensor):
        if not alpha.is_floating_point():
            raise TypeError(f"alpha is of {checks.dtype_name(alpha)}; it must be of a floating-point dtype")
        return alpha, 0.0
    if type(alpha) is not float or not 1 < alpha < 2:  # what most calls have needs no closer look
        checks.check_alpha(alpha)
    return None, float(alpha)


def entmax(x: Tensor, alpha: Any, dim: int) -> Tensor:
    checks.check_float("x", x)
    _check_devices(x)
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"dim is {dim}; x has {x.dim()} dimensions")
    if torch.is_autocast_enabled(x.device.type):
        x = x.float()  # as softmax
    scores = x.movedim(dim, -1)
    rows = scores.shape[:-1]
    values, number = _as_alpha(alpha)
    if values is not None:
        _check_devices(x, alpha=values)
        if values.dim() == x.dim() and values.shape[dim] == 1:
            values = values.movedim(dim, -1).squeeze(-1)
        try:
            values = values.expand(rows).reshape(-1) if values.numel() > 1 else values.reshape(1)
        except RuntimeError:
            raise ValueError(
                f"alpha has shape {list(values.shape)}; it must broadcast to {list(rows)}, the shape of x without dim"
            ) from None
    if x.numel() == 0:
        return x.clone()
    p = torch_calls.entmax(scores.reshape(-1, scores.shape[-1]), values, number)
    return p.reshape(scores.shape).movedim(-1, dim)


def problem_of(
    q: Tensor, k: Tensor, v: Tensor, alpha: Any, causal: bool, scale: float | None, k_keep: int | None,
    tables: dict[str, Tensor | None],
) -> tuple[Any, ...]:  # fmt: skip
    """The operators' arguments behind q, k and v, checked."""
    batch, q_heads, _, q_len, kv_len, _ = checks.check_inputs(q, k, v)
    if not (q.is_cpu and k.is_cpu and v.is_cpu):
        _check_devices(q, k=k, v=v)
    checks.check_tables(tables, batch, q_heads, q_len, kv_len)
    values, number = _as_alpha(alpha)
    if values is not None:
        _check_devices(q, alpha=values)
        checks.check_head_alpha(values, q_heads)
        values = values.reshape(-1)
    scale, k_keep = checks.check_scale(scale), checks.check_k_keep(k_keep)
    return (values, number, bool(causal), scale, k_keep, *map(tables.get, TABLES))


def attention(
    q: Tensor, k: Tensor, v: Tensor, alpha: Any, causal: bool, scale: float | None, k_keep: int | None,
    tables: dict[str, Tensor | None], return_aux: bool,
) -> Any:  # fmt: skip
    if torch._C._is_any_autocast_enabled() and isinstance(q, Tensor) and torch.is_autocast_enabled(q.device.type):
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    on_gpu = isinstance(q, Tensor) and q.is_cuda
    if on_gpu and not (return_aux or any(table is not None for table in tables.values())):
        out = torch_calls.repeated_output(q, k, v, alpha, causal, scale, k_keep)
        if out is not None:
            return out
    problem = problem_of(q, k, v, alpha, causal, scale, k_keep, tables)
    if not return_aux:
        return torch_calls.output(q, k, v, *problem)
    out, tau, support, _ = torch_calls.attention(q, k, v, *problem, counted=True)
    return out, make_aux(q, k, tau, support, problem)


def make_aux(q: Tensor, k: Tensor, tau: Tensor, support: Tensor, problem: tuple[Any, ...]) -> Aux:
    """Of a call with these inputs and results."""
    q, k = q.detach(), k.detach()
    fixed = tuple(part.detach() if isinstance(part, Tensor) else part for part in problem)

    def as_sparse(entries: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        offsets, columns, values = entries
        size = (q.shape[0] * q.shape[1] * q.shape[2], k.shape[2])
        with warnings.catch_warnings():  # PyTorch says once a process that sparse CSR is in beta
            warnings.simplefilter("ignore", UserWarning)
            return torch.sparse_csr_tensor(offsets, columns.to(torch.int64), values, size=size, check_invariants=False)

    operator = torch.ops.splash_attention.probabilities
    return Aux(tau, support, lambda: spec_of(q, k, fixed), lambda: operator(q, k, *fixed), as_sparse)
