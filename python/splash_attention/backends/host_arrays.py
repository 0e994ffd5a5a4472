"""The functions on arrays in host memory that are no torch tensors: NumPy's, and others' through DLPack. No gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Iterable, Sequence

import numpy as np

from splash_attention import _core, checks, folding
from splash_attention.auxiliary import Aux, EntmaxAux
from splash_attention.modifications import NONE, Modifications


def to_numpy(name: str, array: Any) -> np.ndarray:
    """Without a copy where the array is contiguous and lies in host memory."""
    if isinstance(array, np.ndarray):
        if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
            raise TypeError(f"{name} is a masked array, whose mask would be lost; {_INSTEAD_OF_A_MASK.get(name, _NO_MASK)}")
        return array
    if not hasattr(type(array), "__dlpack__"):
        raise TypeError(f"{name} is a {type(array).__name__}; it must be an array (NumPy, PyTorch, or with __dlpack__)")
    try:
        if array.__dlpack_device__()[0] == 1:  # kDLCPU
            return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"{name} cannot be read through DLPack: {str(error).splitlines()[0]}") from error
    raise NotImplementedError(f"{name} is not in host memory, where the first argument is; they must be on one device")


_NO_MASK = "pass an array without one"
_INSTEAD_OF_A_MASK = {
    "x": "fill it with what entmax takes as masked: x.filled(-numpy.inf)",
    **dict.fromkeys(checks.NAMES, "say what is hidden by causal, positions or cu_seqlens"),
}


def _without_gradients(name: str, array: Any) -> np.ndarray:
    """Of what PyTorch's functions would take, were the first argument a tensor."""
    if checks.is_tensor(array):
        raise TypeError(f"{name} is a torch tensor and q is not; q, k and v must all be torch tensors, or none of them")
    return to_numpy(name, array)


def to_table(name: str, values: Any) -> np.ndarray:
    """int64, of an array, a list or a range."""
    if not isinstance(values, (list, tuple, range)):
        table = to_numpy(name, values)
    else:
        try:
            table = np.asarray(values)
        except ValueError:
            kind = type(values).__name__
            raise ValueError(f"{name} is a {kind} of parts of unequal shapes; it must be an array") from None
        table = table if table.size else table.astype(np.int64)
    checks.check_integers(name, table)
    if table.dtype == np.uint64:  # what is beyond int64 must not become negative
        table = np.minimum(table, np.uint64(2**63 - 1))
    return table.astype(np.int64, copy=False)


def to_alpha(alpha: Any) -> float | np.ndarray:
    """A number that the library takes, or an array that it will check."""
    alpha = checks.as_alpha(alpha)
    if type(alpha) is float:
        _core.check_alpha(alpha)
        return alpha
    return np.asarray(alpha if type(alpha) is list else to_numpy("alpha", alpha), np.float64)


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
    return entmax_and_aux(x, alpha, dim, False)[0]


def entmax_and_aux(x: Any, alpha: Any, dim: int, wanted: bool = True) -> tuple[Any, EntmaxAux | None]:
    """p, and of the rows tau and the support where they are wanted."""
    scores = to_numpy("x", x)
    checks.check_float("x", scores)
    dim = checks.check_dim(dim, scores.ndim)
    moved = np.moveaxis(scores, dim, -1)
    values = to_alpha(alpha)
    if type(values) is float:
        values = np.array([values])
    else:
        if values.ndim == scores.ndim and values.shape[dim] == 1:
            values = np.moveaxis(values, dim, -1)[..., 0]
        try:
            values = np.broadcast_to(values, moved.shape[:-1])
        except ValueError:
            raise ValueError(
                f"alpha has shape {list(values.shape)}; it must broadcast to {list(moved.shape[:-1])}, "
                "the shape of x without dim"
            ) from None
    p = _computed(moved)
    if p.size:
        p = _core.entmax(p.reshape(-1, p.shape[-1]), np.ascontiguousarray(values.reshape(-1))).reshape(moved.shape)
    return _like(x)(np.moveaxis(p, -1, dim)), _aux_of(moved, p, values) if wanted else None


def _aux_of(scores: np.ndarray, p: np.ndarray, alpha: np.ndarray) -> EntmaxAux:
    """scores, p: [..., n]; alpha: one, or of the shape of the rows."""
    largest = scores.max(-1, initial=-np.inf).astype(p.dtype)
    less_one = (alpha - 1).astype(p.dtype)
    with np.errstate(invalid="ignore"):
        tau = np.where(largest == -np.inf, np.inf, less_one * largest - p.max(-1, initial=0) ** less_one)
    return EntmaxAux(tau.reshape(largest.shape), (p > 0).sum(-1, dtype=np.int32))


def make_spec(
    extents: tuple[int, ...], alpha: list[float], causal: bool, scale: float, k_keep: int, window: int,
    tables: Iterable[Any], head_k_keep: Sequence[int] = (), softcap: float = 0.0, sinks: Sequence[float] = (), dropout: float = 0.0,
    dropout_seed: int = 0, bias: np.ndarray | None = None, bias_first: int = 0, pairs: np.ndarray | None = None,
) -> _core.Spec:  # fmt: skip
    """tables: q_positions, k_positions, cu_seqlens_q, cu_seqlens_k, each a NumPy array or None. bias: float64 [q_heads, distances]; pairs:
    int64 [1, batch or batch·q_heads, q_len, words]."""
    rows = [None if table is None else np.ascontiguousarray(table, np.int64).reshape(-1) for table in tables]
    modifications = (head_k_keep, softcap, sinks, dropout, dropout_seed, bias, bias_first, pairs)
    return _core.Spec(*extents, alpha, scale, causal, k_keep, window, *rows, *modifications)


def attention(
    q: Any, k: Any, v: Any, alpha: Any, causal: bool, scale: float | None, k_keep: Any, window: int | None,
    tables: dict[str, Any], return_aux: bool, modifications: Modifications = NONE,
) -> Any:  # fmt: skip
    arrays = [to_numpy("q", q), _without_gradients("k", k), _without_gradients("v", v)]
    extents = checks.check_inputs(*arrays)
    tables = {name: None if table is None else to_table(name, table) for name, table in tables.items()}
    checks.check_tables(tables, extents[0], extents[1], extents[3], extents[4])
    values = to_alpha(alpha)
    if folding.is_alpha_of_batch(values, arrays[0]):
        return _folded_attention(q, arrays, values, causal, scale, k_keep, window, tables, return_aux, modifications)
    if type(values) is float:
        values = [values]
    else:
        checks.check_head_alpha(values, extents[1], extents[0])
        values = values.reshape(-1).tolist()
    causal, scale = checks.check_flag("causal", causal), checks.check_scale(scale)
    if checks.is_k_keep_number(k_keep):
        kept, of_heads = checks.check_k_keep(k_keep), []
    else:
        if not isinstance(k_keep, (list, tuple)):
            k_keep = to_numpy("k_keep", k_keep)
            checks.check_integers("k_keep", k_keep)
        kept, of_heads = 0, checks.k_keep_of_heads(k_keep, extents[1])
    if checks.check_dropout(modifications.dropout) > 0:
        raise NotImplementedError("dropout draws from PyTorch's generator; pass torch tensors, or dropout=0")
    softcap, sinks = checks.check_softcap(modifications.softcap), sinks_of_heads(modifications.sinks, extents[1])
    bias, first = bias_of_heads(modifications.bias, modifications.bias_first, extents[1])
    batch, heads, _, q_len, kv_len, _ = extents
    pairs = None if modifications.mask is None else pack_pairs(modifications.mask, (batch, heads, q_len, kv_len))
    window = checks.check_window(window)
    fixed = (extents, values, causal, scale, kept, window)
    spec = make_spec(*fixed, tables.values(), of_heads, softcap, sinks, bias=bias, bias_first=first, pairs=pairs)
    inputs = [_computed(array) for array in arrays]
    out, tau, support, _ = _core.attention_forward(spec, *inputs, False)
    result = _like(q)(out)
    if not return_aux:
        return result
    return result, Aux(tau, support, lambda: spec, lambda: _core.attention_probabilities(spec, *inputs), lambda parts: parts)


def sinks_of_heads(sinks: Any, q_heads: int) -> list[float]:
    if sinks is None:
        return []
    array = np.asarray(sinks, np.float64) if isinstance(sinks, (list, tuple)) else to_numpy("sinks", sinks)
    checks.check_sinks(array, q_heads)
    return array.tolist()


def pack_pairs(mask: Any, scores: tuple[int, int, int, int]) -> np.ndarray:
    """int64 [1, batch or batch·q_heads, q_len, words], as core/pair_words.h has them."""
    array = np.asarray(mask) if isinstance(mask, (list, tuple)) else to_numpy("mask", mask)
    array = array.reshape(checks.check_mask(array, scores))
    batch, heads, q_len, kv_len = scores
    shape = scores if array.shape[1] > 1 else (array.shape[0], 1, q_len, kv_len)
    array = np.broadcast_to(array, shape).reshape(-1, q_len, kv_len)
    packed = np.packbits(np.pad(array, ((0, 0), (0, 0), (0, -kv_len % 64))), axis=-1, bitorder="little")
    return packed.view("<i8").astype(np.int64, copy=False)


def bias_of_heads(bias: Any, first: int | None, q_heads: int) -> tuple[np.ndarray | None, int]:
    """(float64 [q_heads, distances] or None, the distance of the first entry)."""
    if bias is None:
        if first is not None:
            raise ValueError(f"bias_first is {first} without a bias; pass both, or neither")
        return None, 0
    array = np.asarray(bias, np.float64) if isinstance(bias, (list, tuple)) else to_numpy("bias", bias)
    first = checks.check_bias(array, first, q_heads)
    return np.ascontiguousarray(array, np.float64), first


def _folded_attention(
    q: Any, arrays: list[np.ndarray], alpha: np.ndarray, causal: bool, scale: float | None, k_keep: Any,
    window: int | None, tables: dict[str, Any], return_aux: bool, modifications: Modifications,
) -> Any:  # fmt: skip
    """Of one alpha for each batch entry and head."""
    batch, heads = shape = arrays[0].shape[:2]
    for name in ("q_positions", "k_positions"):
        if tables[name] is not None:
            tables[name] = folding.fold_table(tables[name], batch, heads)
    if not checks.is_k_keep_number(k_keep):
        if not isinstance(k_keep, (list, tuple)):
            k_keep = to_numpy("k_keep", k_keep)
            checks.check_integers("k_keep", k_keep)
        k_keep = checks.k_keep_of_heads(k_keep, heads) * batch
    if modifications.mask is not None:
        scores = (*shape, arrays[0].shape[2], arrays[1].shape[2])
        mask = to_numpy("mask", modifications.mask)
        mask = np.broadcast_to(mask.reshape(checks.check_mask(mask, scores)), scores)
        modifications = modifications._replace(mask=folding.fold(mask))
    bias, first = bias_of_heads(modifications.bias, modifications.bias_first, heads)
    if bias is not None:
        modifications = modifications._replace(bias=np.tile(bias, (batch, 1)), bias_first=first)
    modifications = modifications._replace(sinks=sinks_of_heads(modifications.sinks, heads) * batch or None)
    out, aux = attention(*map(folding.fold, arrays), alpha.reshape(-1), causal, scale, k_keep, window, tables, True, modifications)
    result = _like(q)(out.reshape(arrays[0].shape))
    rows = (*shape, -1)
    return (result, replace(aux, tau=aux.tau.reshape(rows), support=aux.support.reshape(rows))) if return_aux else result
