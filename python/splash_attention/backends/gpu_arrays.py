"""The functions on arrays in a GPU's memory that are not PyTorch's, such as CuPy's and JAX's. DLPack hands them to PyTorch,
which owns the memory of results, and back: nothing is copied, and each side's current stream waits for the other's. No
gradients."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Callable

try:
    import torch
except ImportError as error:
    raise NotImplementedError("arrays on a GPU go through PyTorch, which is not installed") from error

from splash_attention.backends.torch import functional  # noqa: E402
from splash_attention.modifications import NONE, Modifications  # noqa: E402


def _tensor(name: str, array: Any) -> torch.Tensor:
    if not hasattr(array, "__dlpack__"):
        raise TypeError(f"{name} is a {type(array).__name__}; it must be an array on a GPU (CuPy, JAX, or with __dlpack__)")
    try:
        return torch.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError) as error:
        raise TypeError(f"{name} cannot be read through DLPack: {str(error).splitlines()[0]}") from error


def _alpha(alpha: Any) -> Any:
    return _tensor("alpha", alpha) if hasattr(alpha, "shape") else alpha


def _back(source: Any) -> Callable[[torch.Tensor], Any]:
    """To the caller's kind of array."""
    if hasattr(source, "__array_namespace__"):
        return source.__array_namespace__().from_dlpack
    return sys.modules[type(source).__module__.split(".")[0]].from_dlpack  # CuPy's before version 14


def entmax(x: Any, alpha: Any, dim: int) -> Any:
    with torch.no_grad():
        return _back(x)(functional.entmax(_tensor("x", x), _alpha(alpha), dim).contiguous())


def entmax_and_aux(x: Any, alpha: Any, dim: int) -> Any:
    back = _back(x)
    with torch.no_grad():
        p, aux = functional.entmax_and_aux(_tensor("x", x), _alpha(alpha), dim)
        return back(p.contiguous()), type(aux)(*map(back, aux))


def attention(
    q: Any, k: Any, v: Any, alpha: Any, causal: bool, scale: float | None, k_keep: int | None, window: int | None,
    tables: dict[str, Any], return_aux: bool, modifications: Modifications = NONE,
) -> Any:  # fmt: skip
    back = _back(q)
    tensors = (_tensor("q", q), _tensor("k", k), _tensor("v", v))
    tables = {name: None if table is None else _tensor(name, table) for name, table in tables.items()}
    if hasattr(modifications.sinks, "shape"):
        modifications = modifications._replace(sinks=_tensor("sinks", modifications.sinks))
    if hasattr(modifications.mask, "shape"):
        modifications = modifications._replace(mask=_tensor("mask", modifications.mask))
    if hasattr(modifications.bias, "shape"):
        modifications = modifications._replace(bias=_tensor("bias", modifications.bias))
    with torch.no_grad():
        result = functional.attention(*tensors, _alpha(alpha), causal, scale, k_keep, window, tables, return_aux, modifications)
    if not return_aux:
        return back(result)
    out, aux = result
    entries: Callable[[Any], Any] = lambda parts: tuple(back(part) for part in parts)
    return back(out), replace(aux, tau=back(aux.tau), support=back(aux.support), _as_sparse=entries)
