"""What is known of an attention call besides its output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple

from splash_attention import _core, checks


class EntmaxAux(NamedTuple):
    """Statistics of entmax's rows, of the shape of x without ``dim``, detached from gradients."""

    tau: Any
    """Threshold of each row in units of z = (alpha - 1) x; +inf for a row that is all masked."""

    support: Any
    """Entries with p > 0 of each row: int32."""


@dataclass
class Aux:
    """Statistics of one call, detached from gradients. What is not a field is computed when it is asked for, from the
    call's inputs, which are kept alive until then."""

    tau: Any
    """Threshold of each row in units of z = (alpha - 1) score: [batch, q_heads, q_len]; +inf for a row without keys."""

    support: Any
    """Keys with p > 0 of each row: integers [batch, q_heads, q_len]."""

    _spec: Callable[[], _core.Spec] = field(repr=False)
    _entries: Callable[[], tuple[Any, Any, Any]] = field(repr=False)
    _as_sparse: Callable[[tuple[Any, Any, Any]], Any] = field(repr=False)

    @property
    def sparsity_by_token(self) -> float:
        """1 - (pairs with p > 0) / (visible pairs), over all heads."""
        visible = int(self._spec().visible_keys().sum())
        return 1 - int(self.support.sum()) / visible if visible else 0.0

    def sparsity_by_block(self, block: int = 64) -> float:
        """1 - (blocks with some p > 0) / (blocks with a visible pair), of block x block pairs, over all heads."""
        import numpy as np

        block = checks.check_count("block", block)
        offsets, columns = (np.asarray(part.cpu() if hasattr(part, "cpu") else part) for part in self._entries()[:2])
        active, visible = _core.block_counts(self._spec(), offsets, columns, block)
        return 1 - active / visible if visible else 0.0

    def probabilities(self) -> Any:
        """The probabilities as a sparse matrix [batch * q_heads * q_len, kv_len], rows in the order of ``tau``: a
        torch.sparse_csr tensor for PyTorch inputs, else (row_offsets, columns, values)."""
        return self._as_sparse(self._entries())
