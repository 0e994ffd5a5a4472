"""The functions on torch tensors: checks, autocast, then the operators of operators.py."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from splash_attention import _core, checks, folding
from splash_attention.auxiliary import Aux, EntmaxAux
from splash_attention.backends import host_arrays
from splash_attention.backends.torch import calls, cuda
from splash_attention.backends.torch.operators import TABLES, Problem, spec_of
from splash_attention.modifications import NONE, Modifications

checks.torch_names.update((getattr(torch, name), name) for name in (*checks.DTYPES, "uint8", "int32", "int64"))
_AUTOCAST = (torch.float32, torch.float16, torch.bfloat16)  # what autocast casts; float64 it leaves as it is


def check_tensor(name: str, tensor: Any, first: str) -> None:
    """A dense tensor, as the first argument is. What it refuses, PyTorch would only refuse somewhere inside, or compute
    as if it were another tensor."""
    if not isinstance(tensor, Tensor):
        kind = "NumPy array" if type(tensor).__name__ == "ndarray" else type(tensor).__name__
        raise TypeError(f"{name} is a {kind}; it must be a torch tensor" + (f", as {first} is" if name != first else ""))
    if tensor.is_nested:
        raise NotImplementedError(f"{name} is a nested tensor; pass a padded one, or packed sequences with cu_seqlens")
    if tensor.layout is not torch.strided:
        raise NotImplementedError(f"{name} is a tensor of layout {str(tensor.layout)[6:]}; pass {name}.to_dense()")
    if torch.compiler.is_compiling():
        return
    if type(tensor).__name__ == "MaskedTensor":
        raise NotImplementedError(f"{name} is a MaskedTensor, whose mask would be lost; pass a tensor without one")
    if tensor.is_neg():
        raise NotImplementedError(f"{name} is a negated view; pass {name}.resolve_neg()")
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
        raise NotImplementedError(f"{name} has a tangent; {calls.NO_FORWARD_MODE}")


def is_odd(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether check_tensor must look at them: for most calls it would take a third of what surrounds the computation."""
    dense = q.layout is k.layout is v.layout is torch.strided and not (q.is_nested or k.is_nested or v.is_nested)
    return not dense or q.is_neg() or k.is_neg() or v.is_neg() or forward_ad._current_level >= 0


def check_tensors(q: Any, k: Any, v: Any, names: Sequence[str] = checks.NAMES) -> None:
    """check_tensor of each, where it must look."""
    if not (type(q) is type(k) is type(v) is Tensor) or torch.compiler.is_compiling() or is_odd(q, k, v):
        for name, tensor in zip(names, (q, k, v)):
            check_tensor(name, tensor, names[0])


def to_one_width(q: Tensor, k: Tensor, v: Tensor, multiple: int = 1) -> tuple[Tensor, ...]:
    """With zeros behind what is narrower: the kernels take values as wide as keys, and zeros change neither scores nor the other
    components of the output. multiple: of the common width."""
    wide = (max(q.shape[-1], v.shape[-1]) + multiple - 1) // multiple * multiple
    of_scores, of_values = wide - q.shape[-1], wide - v.shape[-1]  # k as q: if it is of another width, the checks are to find it
    if of_scores:
        q, k = F.pad(q, (0, of_scores)), F.pad(k, (0, of_scores))
    return q, k, F.pad(v, (0, of_values)) if of_values else v


def check_devices(name: str, first: Tensor, **tensors: Tensor) -> None:
    """name: of the first."""
    device = first.device
    if first.is_cuda:
        if not _core.has_cuda:
            raise NotImplementedError(f"tensors are on {device}; this build has no CUDA, because no nvcc was found")
    elif not (first.is_cpu or first.is_meta):
        raise NotImplementedError(f"tensors are on {device}; allowed are the host's memory and NVIDIA GPUs")
    for other, tensor in tensors.items():
        if tensor.device != device:
            raise ValueError(f"{other} is on {tensor.device} and {name} on {device}; they must be on one device")


def as_alpha(alpha: Any, first: str, tensor: Tensor, takes: Callable[[float], bool] = lambda _: True) -> tuple[Tensor | None, float]:
    """(tensor or None, number): what an operator takes, for the first argument of that name. Beside a tensor the number is
    0, or one of its values that a GPU's kernels do not take, if the host knows of one."""
    compiling = torch.compiler.is_compiling()
    if type(alpha) is float and not compiling:
        _core.check_alpha(alpha)
        return None, alpha
    if isinstance(alpha, Tensor):
        check_tensor("alpha", alpha, first)
        check_devices(first, tensor, alpha=alpha)
        alpha = checks.as_alpha(alpha)
        return alpha if alpha.is_floating_point() else alpha.double(), 0.0
    if compiling:
        # A number among an operator's arguments would be a constant of the graph, and each new one another graph.
        if isinstance(alpha, (np.ndarray, np.generic)):  # whose dtype the compiler does not tell
            return torch.as_tensor(alpha, dtype=torch.float64, device=tensor.device), 0.0
        one = torch.ones(1, dtype=torch.float64, device=tensor.device)
        values = checks.as_alpha(alpha)
        others = [value for value in (values if type(values) is list else [values]) if not takes(value)]
        return (one * values if type(values) is float else one.new_tensor(values)), others[0] if others else 0.0
    values = host_arrays.to_alpha(alpha)
    if type(values) is float:
        return None, values
    others = [value for value in values.reshape(-1).tolist() if not takes(value)]
    return torch.as_tensor(values, device=tensor.device), others[0] if others else 0.0


def check_scores(name: str, x: Any) -> None:
    """A dense tensor of real numbers where there are kernels."""
    check_tensor(name, x, name)
    checks.check_float(name, x)
    check_devices(name, x)


def _alpha_of_rows(alpha: Any, x: Tensor, dim: int) -> tuple[Tensor | None, float]:
    """As as_alpha; a tensor has one entry, or the shape of x without dim."""
    values, number = as_alpha(alpha, "x", x)
    if values is None or values.numel() == 1:
        return values if values is None else values.reshape(1), number
    rows = x.shape[:dim] + x.shape[dim + 1 :]
    if values.dim() == x.dim() and values.shape[dim] == 1:
        values = values.squeeze(dim)
    try:
        return values.expand(rows), number
    except RuntimeError:
        raise ValueError(
            f"alpha has shape {list(values.shape)}; it must broadcast to {list(rows)}, the shape of x without dim"
        ) from None


def entmax(x: Tensor, alpha: Any, dim: int) -> Tensor:
    check_scores("x", x)
    dim = checks.check_dim(dim, x.dim()) % x.dim()
    if x.dtype in _AUTOCAST and torch._C._is_any_autocast_enabled() and not x.is_meta:
        if torch.is_autocast_enabled(x.device.type):
            x = x.float()  # as softmax
    scores = x.movedim(dim, -1)
    values, number = _alpha_of_rows(alpha, x, dim)
    if x.numel() == 0:
        return x.clone()
    p = calls.entmax(scores.reshape(-1, scores.shape[-1]), None if values is None else values.reshape(-1), number)
    return p.reshape(scores.shape).movedim(-1, dim)


def entmax_and_aux(x: Tensor, alpha: Any, dim: int) -> tuple[Tensor, EntmaxAux]:
    """p, and of the rows tau and the support."""
    check_scores("x", x)
    scores = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    p = entmax(scores, alpha, dim)
    with torch.no_grad():
        dim = checks.check_dim(dim, x.dim()) % x.dim()
        values, number = _alpha_of_rows(alpha, x, dim)
        less_one = number - 1 if values is None else values.detach().to(scores.dtype) - 1
        if scores.shape[dim] == 0:
            rows = p.sum(dim)
            return p.to(x.dtype), EntmaxAux(rows + torch.inf, rows.to(torch.int32))
        largest = scores.amax(dim)
        tau = torch.where(largest == -torch.inf, torch.inf, less_one * largest - p.amax(dim) ** less_one)
        support = (p > 0).sum(dim, dtype=torch.int32)
    autocast = x.dtype in _AUTOCAST and torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(x.device.type)
    return p if autocast else p.to(x.dtype), EntmaxAux(tau, support)


def _as_table(name: str, table: Any, first: str, q: Tensor) -> Tensor:
    """On q's device where the kernels read it; cu_seqlens may lie anywhere, for the host reads them."""
    if not isinstance(table, Tensor):
        return torch.as_tensor(host_arrays.to_table(name, table), device=q.device)
    check_tensor(name, table, first)
    if name not in TABLES[2:] or table.is_meta:
        check_devices(first, q, **{name: table})
    if table.dtype == torch.uint64:  # what is beyond int64 must not become negative
        signed = table.view(torch.int64)
        return signed.masked_fill(signed < 0, 2**63 - 1)
    return table


def _as_k_keep(k_keep: Any, q_heads: int, first: str, q: Tensor) -> tuple[int, Tensor | None]:
    """(the number for all heads, or None and one of each: int32 on q's device). Of a tensor on a GPU the values are not
    looked at: below 1 is all keys there."""
    if checks.is_k_keep_number(k_keep):
        return checks.check_k_keep(k_keep), None
    if not isinstance(k_keep, Tensor):
        if not isinstance(k_keep, (list, tuple)):
            k_keep = host_arrays.to_numpy("k_keep", k_keep)
            checks.check_integers("k_keep", k_keep)
        return 0, torch.tensor(checks.k_keep_of_heads(k_keep, q_heads), dtype=torch.int32, device=q.device)
    check_tensor("k_keep", k_keep, first)
    check_devices(first, q, k_keep=k_keep)
    checks.check_integers("k_keep", k_keep)
    if k_keep.numel() not in (1, q_heads):
        raise ValueError(f"k_keep has {k_keep.numel()} entries; allowed: 1, or {q_heads} (one a query head)")
    if k_keep.is_cpu and not torch.compiler.is_compiling() and (k_keep < 0).any():
        raise ValueError(f"k_keep has {k_keep.min().item()}; its entries must be at least 1, or 0 for all keys")
    kept = k_keep.detach().reshape(-1).clamp(max=2**31 - 1).to(torch.int32)
    return 0, kept.expand(q_heads).contiguous()


def problem_of(
    q: Tensor, k: Tensor, v: Tensor, alpha: Any, causal: bool, scale: float | None, k_keep: Any, window: int | None,
    tables: dict[str, Tensor | None], names: Sequence[str] = checks.NAMES, table_names: dict[str, str] | None = None,
    modifications: Modifications = NONE,
) -> Problem:  # fmt: skip
    """The operators' arguments behind q, k and v, checked. names, table_names: of the caller's arguments."""
    check_tensors(q, k, v, names)
    batch, q_heads, _, q_len, kv_len, _ = checks.check_inputs(q, k, v, names)
    if not (q.is_cpu and k.is_cpu and v.is_cpu):
        check_devices(names[0], q, **{names[1]: k, names[2]: v})
    a, b, c, d = tables.values()
    if not (a is b is c is d is None):
        called = table_names or {}
        tables = {
            name: None if table is None else _as_table(called.get(name, name), table, names[0], q)
            for name, table in tables.items()
        }
        checks.check_tables(tables, batch, q_heads, q_len, kv_len, table_names)
    values, number = as_alpha(alpha, names[0], q, cuda.takes_alpha if q.is_cuda else lambda _: True)
    if values is not None:
        checks.check_head_alpha(values, q_heads, batch)
        values = values.reshape(-1)
    causal, scale = checks.check_flag("causal", causal), checks.check_scale(scale)
    window = checks.check_window(window)
    k_keep, of_heads = _as_k_keep(k_keep, q_heads, names[0], q)
    fixed = (values, number, causal, scale, k_keep, window)
    if modifications.is_none:
        return Problem(*fixed, 0.0, 0.0, 0, *map(tables.get, TABLES), None, of_heads)
    softcap, dropout = checks.check_softcap(modifications.softcap), checks.check_dropout(modifications.dropout)
    sinks = _as_sinks(modifications.sinks, q_heads, names[0], q)
    bias, first = _as_bias(modifications, q_heads, names[0], q)
    mask = modifications.mask
    pairs = None if mask is None else _as_pairs(mask, (batch, q_heads, q_len, kv_len), names[0], q)
    seed = torch.randint(2**63 - 1, (1,), dtype=torch.int64, device=q.device) if dropout > 0 else None
    problem = Problem(*fixed, softcap, dropout, first, *map(tables.get, TABLES), None, of_heads, sinks, seed, bias, pairs)
    if q.is_cuda and problem.is_modified and not cuda.takes_modified(q.dtype, q.shape[3], number or None):
        raise NotImplementedError(
            "on a GPU softcap, sinks, dropout and bias take float16, bfloat16 and float32, a head_dim that is a multiple of 8 up to 256, and "
            f"alphas from {_core.LEAST_ATTENTION_ALPHA:g} to {_core.MOST_ATTENTION_ALPHA:g}"
        )
    return problem


def _as_sinks(sinks: Any, q_heads: int, first: str, q: Tensor) -> Tensor | None:
    if sinks is None:
        return None
    if not isinstance(sinks, Tensor):
        sinks = torch.tensor(host_arrays.sinks_of_heads(sinks, q_heads), dtype=torch.float32, device=q.device)
    check_tensor("sinks", sinks, first)
    check_devices(first, q, sinks=sinks)
    checks.check_sinks(sinks, q_heads)
    return sinks


def _as_bias(modifications: Modifications, q_heads: int, first_name: str, q: Tensor) -> tuple[Tensor | None, int]:
    """(bias [q_heads, distances], the distance of its first entry)."""
    bias, first = modifications.bias, modifications.bias_first
    if not isinstance(bias, Tensor):
        array, first = host_arrays.bias_of_heads(bias, first, q_heads)
        return None if array is None else torch.as_tensor(array, dtype=torch.float32, device=q.device), first
    check_tensor("bias", bias, first_name)
    check_devices(first_name, q, bias=bias)
    return bias, checks.check_bias(bias, first, q_heads)


def _as_pairs(mask: Any, scores: tuple[int, int, int, int], first_name: str, q: Tensor) -> Tensor:
    """int64 [1, batch or batch·q_heads, q_len, words]: a bit for each pair (core/pair_words.h)."""
    if not isinstance(mask, Tensor):
        return torch.as_tensor(host_arrays.pack_pairs(mask, scores), device=q.device)
    check_tensor("mask", mask, first_name)
    check_devices(first_name, q, mask=mask)
    mask = mask.reshape(checks.check_mask(mask, scores))
    kv_len = scores[3]
    shape = scores if mask.shape[1] > 1 else (mask.shape[0], 1, *scores[2:])
    bits = F.pad(mask.expand(shape).flatten(0, 1), (0, -kv_len % 64)).unflatten(-1, (-1, 8, 8)).to(torch.uint8)
    powers = 2 ** torch.arange(8, dtype=torch.uint8, device=q.device)
    return (bits * powers).sum(-1, dtype=torch.uint8).view(torch.int64).squeeze(-1)


def as_autocast_has_it(q: Any, k: Any, v: Any, names: Sequence[str] = checks.NAMES) -> tuple[Any, Any, Any]:
    """In the dtype of the autocast region, as scaled_dot_product_attention: what is float64 stays so."""
    if not torch._C._is_any_autocast_enabled():
        return q, k, v
    for name, tensor in zip(names, (q, k, v)):
        check_tensor(name, tensor, names[0])  # a cast may hide what it was
    if q.is_meta or not torch.is_autocast_enabled(q.device.type) or not all(t.dtype in _AUTOCAST for t in (q, k, v)):
        return q, k, v
    dtype = torch.get_autocast_dtype(q.device.type)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def attention(
    q: Tensor, k: Tensor, v: Tensor, alpha: Any, causal: bool, scale: float | None, k_keep: Any, window: int | None,
    tables: dict[str, Tensor | None], return_aux: bool, modifications: Modifications = NONE,
) -> Any:  # fmt: skip
    q, k, v = as_autocast_has_it(q, k, v)
    on_gpu = isinstance(q, Tensor) and q.is_cuda
    q_positions, k_positions, *lengths = tables.values()
    plain = not return_aux and modifications.is_none and q_positions is k_positions is None
    if on_gpu and forward_ad._current_level < 0 and plain:
        out = calls.repeated_output(q, k, v, alpha, causal, scale, k_keep, window, *lengths)
        if out is not None:
            return out
    if isinstance(q, Tensor) and folding.is_alpha_of_batch(alpha, q):
        return _folded_attention(q, k, v, alpha, causal, scale, k_keep, window, tables, return_aux, modifications)
    problem = problem_of(q, k, v, alpha, causal, scale, k_keep, window, tables, modifications=modifications)
    if not return_aux:
        return calls.output(q, k, v, *problem)
    out, tau, support, _ = calls.attention(q, k, v, *problem, counted=True)
    return out, make_aux(q, k, tau, support, problem)


def _folded_attention(
    q: Tensor, k: Tensor, v: Tensor, alpha: Any, causal: bool, scale: float | None, k_keep: Any, window: int | None,
    tables: dict[str, Tensor | None], return_aux: bool, modifications: Modifications,
) -> Any:  # fmt: skip
    """Of one alpha for each batch entry and head."""
    checks.check_inputs(q, k, v)
    batch, heads = q.shape[:2]
    tables = {name: None if table is None else _as_table(name, table, "q", q) for name, table in tables.items()}
    checks.check_tables(tables, batch, heads, q.shape[2], k.shape[2])
    folded = {
        name: table if table is None or name in TABLES[2:] else folding.fold_table(table, batch, heads)
        for name, table in tables.items()
    }
    number, kept = _as_k_keep(k_keep, heads, "q", q)
    kept = (number or None) if kept is None else kept.repeat(batch)
    sinks = _as_sinks(modifications.sinks, heads, "q", q)
    mask = modifications.mask
    if mask is not None:
        scores = (batch, heads, q.shape[2], k.shape[2])
        mask = torch.as_tensor(mask, device=q.device) if not isinstance(mask, Tensor) else mask
        modifications = modifications._replace(mask=folding.fold(mask.reshape(checks.check_mask(mask, scores)).expand(scores)))
    bias, first = _as_bias(modifications, heads, "q", q)
    modifications = modifications._replace(sinks=None if sinks is None else sinks.repeat(batch))
    if bias is not None:
        modifications = modifications._replace(bias=bias.repeat(batch, 1), bias_first=first)
    folded_inputs = (*map(folding.fold, (q, k, v)), alpha.reshape(-1))
    done = attention(*folded_inputs, causal, scale, kept, window, folded, return_aux, modifications)
    if not return_aux:
        return done.reshape(q.shape)
    out, aux = done
    return out.reshape(q.shape), replace(aux, tau=aux.tau.reshape(q.shape[:3]), support=aux.support.reshape(q.shape[:3]))


def make_aux(q: Tensor, k: Tensor, tau: Tensor, support: Tensor, problem: Problem) -> Aux:
    """Of a call with these inputs and results."""
    q, k = q.detach(), k.detach()
    fixed = Problem(*(part.detach() if isinstance(part, Tensor) else part for part in problem))

    def as_sparse(entries: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        offsets, columns, values = entries
        size = (q.shape[0] * q.shape[1] * q.shape[2], k.shape[2])
        with warnings.catch_warnings():  # PyTorch says once a process that sparse CSR is in beta
            warnings.simplefilter("ignore", UserWarning)
            return torch.sparse_csr_tensor(offsets, columns.to(torch.int64), values, size=size, check_invariants=False)

    return Aux(tau, support, lambda: spec_of(q, k, fixed), lambda: calls.probabilities(q, k, *fixed), as_sparse)
