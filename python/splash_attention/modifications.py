"""What attention takes beside its inputs, α, windows, positions and lengths."""

from __future__ import annotations

from typing import Any, NamedTuple


class Modifications(NamedTuple):
    """As splash_attention has them."""

    softcap: float | None = None
    sinks: Any = None
    dropout: float = 0.0
    bias: Any = None
    bias_first: int | None = None
    mask: Any = None

    @property
    def is_none(self) -> bool:
        """Whether nothing is modified. Not __bool__: torch.compile does not trace `not` of a tuple that has one."""
        return self.softcap is self.sinks is self.bias is self.bias_first is self.mask is None and self.dropout == 0


NONE = Modifications()
