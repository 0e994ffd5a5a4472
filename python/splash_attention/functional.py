"""entmax and attention as functions, on tensors of PyTorch and arrays of NumPy, JAX and others."""

from __future__ import annotations

from typing import Any

from splash_attention import checks
from splash_attention.modifications import Modifications

_CUDA = (2, 13)  # DLPack's kDLCUDA and kDLCUDAManaged


def _backend(array: Any) -> Any:
    if checks.is_tensor(array):
        from splash_attention.backends.torch import functional

        return functional
    if hasattr(type(array), "__dlpack_device__") and array.__dlpack_device__()[0] in _CUDA:
        from splash_attention.backends import gpu_arrays

        return gpu_arrays
    from splash_attention.backends import host_arrays

    return host_arrays


def entmax(x: Any, alpha: Any = 1.5, dim: int = -1, *, return_aux: bool = False) -> Any:
    """α-entmax along one dimension: p = [(α-1)x - τ]₊^(1/(α-1)) with Σp = 1, truly zero off its support (Peters,
    Niculae, Martins 2019, arXiv 1905.05702).

    x: any shape, float16, bfloat16 (PyTorch only), float32 or float64; computed in float32, or float64 for such x.
    -inf is a masked entry; entries that are all masked give zeros, NaN or +inf gives NaN.
    alpha: a number above 1, or an array or list that broadcasts to the shape of x without ``dim`` (or with 1 there): one
    α a row. 2 is sparsemax; towards 1 it becomes softmax.

    Returns p, of the shape and dtype of x; with return_aux (p, EntmaxAux), which has τ and the support's size of each row.
    On torch tensors differentiable by x and by a tensor alpha; the second derivative and forward-mode AD raise
    NotImplementedError. Raises TypeError for a dtype or object that it does not take (masked arrays among them), ValueError
    for values and shapes.
    """
    backend = _backend(x)
    if checks.check_flag("return_aux", return_aux):
        return backend.entmax_and_aux(x, alpha, dim)
    return backend.entmax(x, alpha, dim)


def sparsemax(x: Any, dim: int = -1, k: int | None = None) -> Any:
    """entmax with α = 2: the Euclidean projection onto the simplex (Martins, Astudillo 2016). k: how many entries the package
    `entmax` sorts at first; nothing is sorted here, so that it changes nothing."""
    return entmax(x, 2.0, dim)


def entmax15(x: Any, dim: int = -1, k: int | None = None) -> Any:
    """entmax with α = 1.5. k: as in sparsemax."""
    return entmax(x, 1.5, dim)


def entmax_bisect(x: Any, alpha: Any = 1.5, dim: int = -1, n_iter: int = 50, ensure_sum_one: bool = True) -> Any:
    """entmax with the arguments of the package `entmax`: a tensor alpha broadcasts to the shape of x with 1 at ``dim``, so that
    [heads, 1, 1] has one α a head of [batch, heads, length, keys]. n_iter and ensure_sum_one change nothing: p is exact, and
    sums to 1."""
    shape = () if isinstance(alpha, (int, float)) else tuple(getattr(alpha, "shape", ()))
    if shape and hasattr(x, "shape"):
        position = checks.check_dim(dim, len(x.shape)) % len(x.shape)
        missing = len(x.shape) - len(shape)
        alpha = alpha.reshape((1,) * missing + shape) if missing > 0 else alpha
        if missing >= 0 and alpha.shape[position] != 1:
            wanted = [*x.shape[:position], 1, *x.shape[position + 1 :]]
            raise ValueError(f"alpha has shape {list(shape)}; it must broadcast to {wanted}, the shape of x with 1 at dim")
    return entmax(x, alpha, dim)


def splash_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    alpha: Any = 1.5,
    causal: bool = False,
    scale: float | None = None,
    k_keep: Any = None,
    window: int | None = None,
    q_positions: Any = None,
    k_positions: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    dropout: float = 0.0,
    bias: Any = None,
    bias_first: int | None = None,
    mask: Any = None,
    return_aux: bool = False,
) -> Any:
    """Exact α-entmax attention: each query's weights over its visible keys are entmax of scale·⟨q, k⟩, and most of them
    are truly zero.

    q: [batch, q_heads, q_len, head_dim]; k, v: [batch, kv_heads, kv_len, head_dim], q_heads a multiple of kv_heads
    (grouped-query attention); of one dtype, float16, bfloat16 (PyTorch only), float32 or float64. What is not contiguous
    is copied.
    alpha: a number above 1, or an array or list of 1 or q_heads entries (one α a head), or an array of [batch, q_heads] or
    [batch, q_heads, 1, 1].
    causal: query i sees the keys j ≤ i + kv_len - q_len; with cu_seqlens so inside each sequence.
    window: a query sees the keys less than `window` from its place i + kv_len - q_len: with causal the last `window` of those that it shows,
    as transformers' sliding_window (flash-attention's window_size of (window - 1, 0)); without causal those to both sides, as
    ModernBERT's layers ((window - 1, window - 1)). None hides no more.
    scale: of the scores; None is 1/√head_dim.
    k_keep: entmax over the k_keep largest scores of each row only (ties: the earlier key); None keeps all. A list, or an
    array or tensor of integers, has one a query head, of which 0 keeps all (in a list None does too).
    q_positions, k_positions: integers (arrays or lists), [length], [batch, length], [batch, q_heads, length] or
    [batch·q_heads, length]: query i sees key j where k_positions[j] ≤ q_positions[i].
    cu_seqlens_q, cu_seqlens_k: packed sequences, integers [sequences + 1] rising from 0 to q_len and kv_len: queries see
    keys of their own sequence only. With tensors on a GPU the host reads them, and waits for it, at the first call with these
    tensors and after something was written into them: give all layers the same ones.
    softcap: above 0: scores are softcap·tanh(scale·⟨q, k⟩ / softcap) (Gemma 2, arXiv 2408.00118). None caps nothing.
    sinks: numbers [q_heads]: one more score of each row, neither scaled nor capped, that takes probability and has no value
    (GPT-OSS, arXiv 2508.10925); k_keep does not count it, and -inf is none.
    dropout: share of probabilities set to 0, the others divided by 1 - dropout; torch tensors only. Its seed comes from
    PyTorch's generator of the device. Aux tells of the probabilities before it.
    bias: finite numbers [q_heads, distances], added to the scaled and capped scores by the distance from query to key, j - (i + kv_len - q_len):
    T5's relative positions (arXiv 1910.10683), ALiBi's slopes (arXiv 2108.12409). bias_first: the distance of its first entry; None is
    1 - distances, so that the last entry is that of a query's own place. What is before the first distance or behind the last has the
    entry at that end. With cu_seqlens, which then must be the same of queries and keys, it is j - i.
    mask: bool, broadcasts to [batch, q_heads, q_len, kv_len]; False hides a key, beside what all others hide. It is read as a bit for each pair;
    tiles of which no pair is seen are left out. What causal, a window, positions or cu_seqlens can say takes less.

    Returns out, as q; with return_aux (out, Aux). A query without visible keys gives a zero row; NaN or +inf among a
    row's scores gives a NaN row. On torch tensors differentiable by q, k, v and tensors alpha, sinks and bias. Raises TypeError for
    dtypes and objects that it does not take, ValueError for shapes and values, NotImplementedError for what is valid but
    not served.
    """
    tables = {
        "q_positions": q_positions,
        "k_positions": k_positions,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
    }
    modifications = Modifications(softcap, sinks, dropout, bias, bias_first, mask)
    return _backend(q).attention(q, k, v, alpha, causal, scale, k_keep, window, tables, return_aux, modifications)
