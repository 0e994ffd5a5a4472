"""The functions on arrays in host memory that are no torch tensors: NumPy's, and others' through DLPack. No gradients."""

from __future__ import annotations

from typing import Any, Callable, Iterable

import numpy as np

from splash_attention import _core, checks
from splash_attention.aux import Aux


def to_numpy(name: str, array: Any) -> np.ndarray:
    """Without a copy where the array is contiguous and lies in host memory."""
    if isinstance(array, np.ndarray):
        return array
    if not hasattr(array, "__dlpack__"):
        raise TypeError(f"{name} is a {type(array).__name__}; it must be an array (NumPy, PyTorch, or with __dlpack__)")
    if array.__dlpack_device__()[0] != 1:  # kDLCPU
        raise NotImplementedError(f"{name} is not in host memory, where the first argument is; they must be on one device")
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError) as error:
        raise TypeError(f"{name} cannot be read through DLPack: {error}") from error


def _computed(array: np.ndarray) -> np.ndarray:
    """As the library takes it: contiguous, float64 as it is, narrower types as float32."""
    return np.ascontiguousarray(array, np.float64 if array.dtype == np.float64 else np.float32)


def _like(source: Any) -> Callable[[np.ndarray], Any]:
    """Back to the caller's kind of array and its dtype."""
    if isinstance(source, np.ndarray):
        return lambda result: result.astype(source.dtype, copy=False)
    namespace = source.__array_namespace__()
    return lambda result: namespace.from_dlpack(result.astype(checks.dtype_name(source), copy=False))


def entmax(x: Any, alpha: Any, dim: int) -> Any:
    scores = to_numpy("x", x)
    checks.check_float("x", scores)
    if not -scores.ndim <= dim < scores.ndim:
        raise ValueError(f"dim is {dim}; x has {scores.ndim} dimensions")
    moved = np.moveaxis(scores, dim, -1)
    if hasattr(alpha, "shape"):
        values = np.asarray(to_numpy("alpha", alpha), np.float64)
        if values.ndim == scores.ndim and values.shape[dim] == 1:
            values = np.moveaxis(values, dim, -1)[..., 0]
        try:
            values = np.broadcast_to(values, moved.shape[:-1])
        except ValueError:
            raise ValueError(
                f"alpha has shape {list(values.shape)}; it must broadcast to {list(moved.shape[:-1])}, "
                "the shape of x without dim"
            ) from None
    else:
        checks.check_alpha(alpha)
        values = np.array([alpha], np.float64)
    if scores.size == 0:
        return _like(x)(np.zeros_like(scores))
    rows = _computed(moved).reshape(-1, moved.shape[-1])
    p = _core.entmax(rows, np.ascontiguousarray(values.reshape(-1)))
    return _like(x)(np.moveaxis(p.reshape(moved.shape), -1, dim))


def make_spec(
    extents: tuple[int, ...], alpha: list[float], causal: bool, scale: float, k_keep: int, tables: Iterable[Any]
) -> _core.Spec:
    """tables: q_positions, k_positions, cu_seqlens_q, cu_seqlens_k, each a NumPy array or None."""
    rows = [None if table is None else np.ascontiguousarray(table, np.int64).reshape(-1) for table in tables]
    return _core.Spec(*extents, alpha, scale, causal, k_keep, *rows)


def attention(
    q: Any, k: Any, v: Any, alpha: Any, causal: bool, scale: float | None, k_keep: int | None, tables: dict[str, Any],
    return_aux: bool,
) -> Any:  # fmt: skip
    arrays = [to_numpy(name, array) for name, array in (("q", q), ("k", k), ("v", v))]
    extents = checks.check_inputs(*arrays)
    tables = {name: None if table is None else to_numpy(name, table) for name, table in tables.items()}
    checks.check_tables(tables, extents[0], extents[1], extents[3], extents[4])
    if hasattr(alpha, "shape"):
        checks.check_head_alpha(alpha, extents[1])
        values = np.asarray(to_numpy("alpha", alpha), np.float64).reshape(-1).tolist()
    else:
        checks.check_alpha(alpha)
        values = [float(alpha)]
    spec = make_spec(extents, values, causal, checks.check_scale(scale), checks.check_k_keep(k_keep), tables.values())
    inputs = [_computed(array) for array in arrays]
    out, tau, support, _ = _core.attention_forward(spec, *inputs, False)
    result = _like(q)(out)
    if not return_aux:
        return result
    return result, Aux(tau, support, lambda: spec, lambda: _core.attention_probabilities(spec, *inputs), lambda parts: parts)
