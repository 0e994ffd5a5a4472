"""What every entry point checks before it computes: one sentence for each thing that can be wrong.

Works on anything with ``shape`` and ``dtype``: NumPy, PyTorch, JAX and CuPy arrays. What depends on values (positions,
cu_seqlens, alpha) the library checks itself.
"""

from __future__ import annotations

import math
from typing import Any

DTYPES = ("float16", "bfloat16", "float32", "float64")
# Of dtypes seen: PyTorch's, and NumPy's apart, for torch.compile looks into a dictionary that it meets, and some
# versions of it stop at those.
_torch_names: dict[Any, str] = {}
_numpy_names: dict[Any, str] = {}


def dtype_name(array: Any) -> str:
    """"float32" for numpy.float32, torch.float32 and so on."""
    dtype = array.dtype
    names = _numpy_names if hasattr(dtype, "char") else _torch_names
    name = names.get(dtype)
    if name is None:
        name = names[dtype] = str(dtype).rsplit(".", 1)[-1]
    return name


def check_float(name: str, array: Any) -> None:
    if dtype_name(array) not in DTYPES:
        raise TypeError(f"{name} is of {dtype_name(array)}; allowed are {', '.join(DTYPES)}")


def check_inputs(q: Any, k: Any, v: Any) -> tuple[int, int, int, int, int, int]:
    """(batch, q_heads, kv_heads, q_len, kv_len, head_dim) of q [batch, q_heads, q_len, head_dim] and k, v [batch,
    kv_heads, kv_len, head_dim]."""
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    if not len(q_shape) == len(k_shape) == len(v_shape) == 4:
        name, shape = next((name, x.shape) for name, x in (("q", q), ("k", k), ("v", v)) if len(x.shape) != 4)
        raise ValueError(f"{name} has {len(shape)} dimensions; it must have 4: [batch, heads, length, head_dim]")
    check_float("q", q)
    if not q.dtype == k.dtype == v.dtype:
        name, other = ("k", k) if k.dtype != q.dtype else ("v", v)
        raise TypeError(f"q is of {dtype_name(q)} and {name} of {dtype_name(other)}; they must be of one dtype")
    batch, q_heads, q_len, head_dim = q_shape
    _, kv_heads, kv_len, _ = k_shape
    needed = (batch, kv_heads, kv_len, head_dim)
    if not k_shape == v_shape == needed:
        name, shape = ("k", k_shape) if tuple(k_shape) != needed else ("v", v_shape)
        raise ValueError(f"{name} has shape {list(shape)}; with these q and k it must be {list(needed)}")
    return batch, q_heads, kv_heads, q_len, kv_len, head_dim


def check_scale(scale: float | None) -> float:
    """The library's scale, where 0 stands for 1/sqrt(head_dim)."""
    if scale is None:
        return 0.0
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"scale is a {type(scale).__name__}; it must be a number or None, which is 1/sqrt(head_dim)")
    if scale == 0 or not math.isfinite(scale):
        raise ValueError(f"scale is {scale}; it must be finite and not 0")
    return float(scale)


def check_k_keep(k_keep: int | None) -> int:
    """The library's k_keep, where 0 stands for all keys."""
    if k_keep is None:
        return 0
    if isinstance(k_keep, bool) or not isinstance(k_keep, int):
        raise TypeError(f"k_keep is a {type(k_keep).__name__}; it must be an integer or None, which keeps all keys")
    if k_keep < 1:
        raise ValueError(f"k_keep is {k_keep}; it must be at least 1")
    return k_keep


def check_alpha(alpha: Any) -> None:
    """Of a number; the values of arrays are checked by the library."""
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)):
        raise TypeError(f"alpha is a {type(alpha).__name__}; it must be a number or an array")
    if not (alpha > 1 and math.isfinite(alpha)):
        raise ValueError(f"alpha is {alpha}; entmax takes finite numbers above 1 (towards 1 it becomes softmax)")


def check_head_alpha(alpha: Any, q_heads: int) -> None:
    """Of an array: one entry, or one a query head."""
    if math.prod(alpha.shape) not in (1, q_heads):
        raise ValueError(f"alpha has {math.prod(alpha.shape)} entries; allowed: 1, or {q_heads} (one a query head)")


def check_tables(tables: dict[str, Any], batch: int, heads: int, q_len: int, kv_len: int) -> None:
    """Positions and cu_seqlens: integers, of a shape that they may have."""
    positions = tables["q_positions"] is not None or tables["k_positions"] is not None
    if not positions and tables["cu_seqlens_q"] is None and tables["cu_seqlens_k"] is None:
        return
    given_tables = {name: table for name, table in tables.items() if table is not None}
    for name, table in given_tables.items():
        if not dtype_name(table).startswith(("int", "uint")):
            raise TypeError(f"{name} is of {dtype_name(table)}; it must be of an integer dtype")
        if name.startswith("cu_seqlens"):
            if len(table.shape) != 1:
                raise ValueError(f"{name} has {len(table.shape)} dimensions; it must have 1: [sequences + 1]")
            continue
        length = q_len if name.startswith("q") else kv_len
        allowed = [(length,), (batch, length), (batch, heads, length), (batch * heads, length)]
        if tuple(table.shape) not in allowed:
            raise ValueError(
                f"{name} has shape {list(table.shape)}; allowed: [{length}], [{batch}, {length}], "
                f"[{batch}, {heads}, {length}] or [{batch * heads}, {length}]"
            )
    for a, b in (("q_positions", "k_positions"), ("cu_seqlens_q", "cu_seqlens_k")):
        given, missing = (a, b) if tables[a] is not None else (b, a)
        if tables[given] is not None and tables[missing] is None:
            raise ValueError(f"only {given} is given; {missing} is needed too")
