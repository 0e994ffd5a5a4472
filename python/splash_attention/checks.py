"""What every entry point checks before it computes: one sentence for each thing that can be wrong.

Works on anything with ``shape`` and ``dtype``: NumPy, PyTorch, JAX and CuPy arrays. What depends on values (positions,
cu_seqlens, alpha) the library checks itself. Names are those of the caller's arguments.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, Sequence

NAMES = ("q", "k", "v")
DTYPES = ("float16", "bfloat16", "float32", "float64")
_numpy_names: dict[Any, str] = {}  # of dtypes seen
torch_names: dict[Any, str] = {}  # filled once: a compiler guards what it met in a dictionary, and what it missed there


def dtype_name(array: Any) -> str:
    """"float32" for numpy.float32, torch.float32 and so on."""
    dtype = array.dtype
    if not hasattr(dtype, "char"):
        return torch_names.get(dtype) or str(dtype).rsplit(".", 1)[-1]
    name = _numpy_names.get(dtype)
    if name is None:
        name = _numpy_names[dtype] = dtype.name
    return name


def is_tensor(array: Any) -> bool:
    """Of PyTorch, which is not imported for this: by its protocol, which torch.compile can follow."""
    return hasattr(type(array), "__torch_function__")


def _is_bool(value: Any) -> bool:
    return type(value).__name__ in ("bool", "bool_")  # Python's, NumPy's of versions 2 and 1


def check_float(name: str, array: Any) -> None:
    if dtype_name(array) not in DTYPES:
        raise TypeError(f"{name} is of {dtype_name(array)}; allowed are {', '.join(DTYPES)}")


def check_integers(name: str, array: Any) -> None:
    if not dtype_name(array).startswith(("int", "uint")):
        raise TypeError(f"{name} is of {dtype_name(array)}; it must be of an integer dtype")


def check_rank(q: Any, k: Any, v: Any, names: Sequence[str] = NAMES) -> None:
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        name, shape = next((name, x.shape) for name, x in zip(names, (q, k, v)) if len(x.shape) != 4)
        raise ValueError(f"{name} has {len(shape)} dimensions; it must have 4: [batch, heads, length, head_dim]")


def check_inputs(q: Any, k: Any, v: Any, names: Sequence[str] = NAMES) -> tuple[int, int, int, int, int, int]:
    """(batch, q_heads, kv_heads, q_len, kv_len, head_dim) of q [batch, q_heads, q_len, head_dim] and k, v [batch,
    kv_heads, kv_len, head_dim]."""
    check_rank(q, k, v, names)
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    check_float(names[0], q)
    if not q.dtype == k.dtype == v.dtype:
        for name, other in zip(names[1:], (k, v)):
            if dtype_name(other) != dtype_name(q):
                raise TypeError(
                    f"{names[0]} is of {dtype_name(q)} and {name} of {dtype_name(other)}; they must be of one dtype"
                )
    batch, q_heads, q_len, head_dim = q_shape
    _, kv_heads, kv_len, _ = k_shape
    needed = (batch, kv_heads, kv_len, head_dim)
    if not k_shape == v_shape == needed:
        name, shape = (names[1], k_shape) if tuple(k_shape) != needed else (names[2], v_shape)
        raise ValueError(
            f"{name} has shape {list(shape)}; with these {names[0]} and {names[1]} it must be {list(needed)}"
        )
    return batch, q_heads, kv_heads, q_len, kv_len, head_dim


def check_scale(scale: float | None, name: str = "scale") -> float:
    """The library's scale, where 0 stands for 1/sqrt(head_dim)."""
    if scale is None:
        return 0.0
    if type(scale) is not float and (_is_bool(scale) or not isinstance(scale, Real)):
        raise TypeError(f"{name} is a {type(scale).__name__}; it must be a number or None, which is 1/sqrt(head_dim)")
    if scale == 0 or not math.isfinite(scale):
        raise ValueError(f"{name} is {scale}; it must be finite and not 0")
    return float(scale)


def factor_of_heads(factor: Any, heads: int) -> float | list[float]:
    """Of the scale: one number, or a list with one a head."""
    values = list(factor) if isinstance(factor, (list, tuple)) else [factor]
    if len(values) not in (1, heads):
        raise ValueError(f"factor has {len(values)} entries; allowed: 1, or num_heads, which is {heads}")
    for value in values:
        if _is_bool(value) or not isinstance(value, Real):
            raise TypeError(f"factor is {factor!r}; it must be a number, or a list with one a head")
        if not 0 < value < math.inf:
            raise ValueError(f"factor is {value}; it must be finite and above 0")
    return float(values[0]) if len(values) == 1 else list(map(float, values))


def check_count(name: str, value: Any, otherwise: str = "") -> int:
    """An integer of at least 1. otherwise: what else the argument may be."""
    if type(value) is not int:
        if _is_bool(value) or not isinstance(value, Integral):
            raise TypeError(f"{name} is a {type(value).__name__}; it must be an integer{otherwise}")
        value = int(value)
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be at least 1")
    return value


def check_window(window: int | None) -> int:
    """The library's window, where 0 stands for none."""
    return 0 if window is None else min(check_count("window", window, " or None, which is no window"), 2**62)


def check_softcap(softcap: float | None) -> float:
    """The library's, where 0 stands for none."""
    if softcap is None:
        return 0.0
    if _is_bool(softcap) or not isinstance(softcap, Real):
        raise TypeError(f"softcap is a {type(softcap).__name__}; it must be a number, or None")
    if not 0 < softcap < math.inf:
        raise ValueError(f"softcap is {softcap}; it must be a finite number above 0, or None")
    return float(softcap)


def check_dropout(dropout: float, name: str = "dropout") -> float:
    if _is_bool(dropout) or not isinstance(dropout, Real):
        raise TypeError(f"{name} is a {type(dropout).__name__}; it must be a number")
    if not 0 <= dropout < 1:
        raise ValueError(f"{name} is {dropout}; it must be at least 0 and below 1")
    return float(dropout)


def check_bias(bias: Any, first: int | None, q_heads: int) -> int:
    """Of an array [q_heads, distances]; returns the distance of its first entry."""
    if dtype_name(bias) not in DTYPES:
        raise TypeError(f"bias is of {dtype_name(bias)}; it must be of floating-point numbers")
    if len(bias.shape) != 2 or bias.shape[0] != q_heads or bias.shape[1] < 1:
        raise ValueError(f"bias has shape {list(bias.shape)}; it must be [{q_heads}, distances], a row for each query head")
    if first is None:
        return 1 - bias.shape[1]
    if type(first) is not int:
        if _is_bool(first) or not isinstance(first, Integral):
            raise TypeError(f"bias_first is a {type(first).__name__}; it must be an integer, or None")
        first = int(first)
    return first


def check_mask(mask: Any, scores: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """The shape with which it broadcasts to [batch, q_heads, q_len, kv_len]."""
    if dtype_name(mask) != "bool":
        raise TypeError(f"mask is of {dtype_name(mask)}; it must be bool, True where a query sees a key")
    shape = tuple(mask.shape)
    if len(shape) > 4 or not all(n in (1, whole) for n, whole in zip(reversed(shape), reversed(scores))):
        raise ValueError(f"mask has shape {list(shape)}; it must broadcast to {list(scores)}")
    return (1,) * (4 - len(shape)) + shape  # type: ignore[return-value]


def check_sinks(sinks: Any, q_heads: int) -> None:
    """Of an array: numbers, one a query head."""
    if dtype_name(sinks) not in DTYPES:
        raise TypeError(f"sinks is of {dtype_name(sinks)}; it must be of floating-point numbers")
    if tuple(sinks.shape) != (q_heads,):
        raise ValueError(f"sinks has shape {list(sinks.shape)}; it must be [{q_heads}], one a query head")


def check_k_keep(k_keep: int | None) -> int:
    """The library's k_keep, where 0 stands for all keys."""
    if k_keep is None:
        return 0
    return min(check_count("k_keep", k_keep, " or None, which keeps all keys"), 2**62)


def k_keep_of_heads(k_keep: Any, q_heads: int) -> list[int]:
    """Of a sequence or array of integers or None, one a query head or one for all: the library's, 0 for all keys."""
    values = k_keep.reshape(-1).tolist() if hasattr(k_keep, "reshape") else list(k_keep)
    if len(values) not in (1, q_heads):
        raise ValueError(f"k_keep has {len(values)} entries; allowed: 1, or {q_heads} (one a query head)")
    for value in values:
        if value is not None and (_is_bool(value) or not isinstance(value, Integral)):
            raise TypeError(f"k_keep has a {type(value).__name__}; its entries must be integers, or None for all keys")
        if value is not None and value < 0:
            raise ValueError(f"k_keep has {value}; its entries must be at least 1, or 0 or None for all keys")
    kept = [0 if value is None else min(int(value), 2**31 - 1) for value in values]
    return kept * (q_heads // len(kept))


def is_k_keep_number(k_keep: Any) -> bool:
    """One for all heads, rather than a sequence or an array."""
    return k_keep is None or not (isinstance(k_keep, (list, tuple)) or hasattr(k_keep, "shape") and len(k_keep.shape) > 0)


def check_flag(name: str, value: Any) -> bool:
    if type(value) is not bool and not _is_bool(value):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be True or False")
    return bool(value)


def check_dim(dim: Any, dimensions: int) -> int:
    if type(dim) is not int:
        if _is_bool(dim) or not isinstance(dim, Integral):
            raise TypeError(f"dim is a {type(dim).__name__}; it must be an integer")
        dim = int(dim)
    if dimensions == 0:
        raise ValueError("x has 0 dimensions; it must have at least 1")
    if not -dimensions <= dim < dimensions:
        raise ValueError(f"dim is {dim}; x has {dimensions} dimensions")
    return dim


def as_alpha(alpha: Any) -> Any:
    """A float, a list of floats, or an array of real numbers, whose values are not looked at: that the library does."""
    if type(alpha) is float:
        return alpha
    if isinstance(alpha, (list, tuple)):
        numbers = [as_alpha(value) for value in alpha]
        if not all(type(number) is float for number in numbers):
            raise TypeError(f"alpha is a {type(alpha).__name__} of arrays; it must be a number, or an array of numbers")
        return numbers
    if isinstance(alpha, Real) and not _is_bool(alpha):  # NumPy's numbers, too
        return float(alpha)
    if not (hasattr(alpha, "shape") and hasattr(alpha, "dtype")) or _is_bool(alpha):
        raise TypeError(f"alpha is a {type(alpha).__name__}; it must be a number, or an array of numbers")
    if dtype_name(alpha) not in DTYPES and not dtype_name(alpha).startswith(("int", "uint")):
        raise TypeError(f"alpha is of {dtype_name(alpha)}; it must be of real numbers")
    return alpha


def check_head_alpha(alpha: Any, q_heads: int, batch: int) -> None:
    """Of an array that has not one entry for each batch entry and head: one entry, or one a query head."""
    if math.prod(alpha.shape) not in (1, q_heads):
        entries = f"alpha has {math.prod(alpha.shape)} entries"
        raise ValueError(f"{entries}; allowed: 1, or {q_heads} (one a query head), or the shape [{batch}, {q_heads}]")


def check_tables(
    tables: dict[str, Any], batch: int, heads: int, q_len: int, kv_len: int, names: dict[str, str] | None = None
) -> None:
    """Positions and cu_seqlens: integers, of a shape that they may have. names: of the caller's arguments, where they
    are others."""
    given_tables = {name: table for name, table in tables.items() if table is not None}
    if not given_tables:
        return
    called = {name: name for name in tables} if names is None else {**{name: name for name in tables}, **names}
    for name, table in given_tables.items():
        check_integers(called[name], table)
        if name.startswith("cu_seqlens"):
            if len(table.shape) != 1:
                raise ValueError(f"{name} has {len(table.shape)} dimensions; it must have 1: [sequences + 1]")
            continue
        length = q_len if name.startswith("q") else kv_len
        allowed = [(length,), (batch, length), (batch, heads, length), (batch * heads, length)]
        if not any(tuple(table.shape) == shape for shape in allowed):  # `in` is not traced by every PyTorch
            raise ValueError(
                f"{called[name]} has shape {list(table.shape)}; allowed: [{length}], [{batch}, {length}], "
                f"[{batch}, {heads}, {length}] or [{batch * heads}, {length}]"
            )
    for a, b in (("q_positions", "k_positions"), ("cu_seqlens_q", "cu_seqlens_k")):
        given, missing = (a, b) if tables[a] is not None else (b, a)
        if tables[given] is not None and tables[missing] is None:
            raise ValueError(f"only {called[given]} is given; {called[missing]} is needed too")
