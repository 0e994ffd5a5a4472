"""One α for each batch entry and head: the batch becomes a part of the heads, for the kernels take one α a head. On tensors and arrays."""

from __future__ import annotations

from typing import Any


def is_alpha_of_batch(alpha: Any, q: Any) -> bool:
    """Whether alpha has the shape [batch, q_heads] or [batch, q_heads, 1, 1]."""
    if isinstance(alpha, (int, float)):  # of which a compiler tells no attributes
        return False
    shape = getattr(alpha, "shape", ())
    if len(shape) not in (2, 4) or getattr(q, "is_nested", False) or len(q.shape) != 4:
        return False
    return tuple(shape) in (tuple(q.shape[:2]), (*q.shape[:2], 1, 1)) and q.shape[0] > 1


def fold(x: Any) -> Any:
    """[batch, heads, length, dim] as [1, batch * heads, length, dim]."""
    return x.reshape(1, x.shape[0] * x.shape[1], *x.shape[2:])


def fold_table(table: Any, batch: int, heads: int) -> Any:
    """Positions in one of their shapes as [length] or [batch * heads, length]; what is another shape is returned as it is, for the
    checks to find."""
    shape = tuple(table.shape)
    if len(shape) == 2 and shape[0] == batch:
        return table[[entry for entry in range(batch) for _ in range(heads)]]
    return table.reshape(batch * heads, -1) if len(shape) == 3 and shape[:2] == (batch, heads) else table
