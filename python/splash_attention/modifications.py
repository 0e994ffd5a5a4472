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

    def __bool__(self) -> bool:
        return not (self.softcap is self.sinks is self.bias is self.bias_first is self.mask is None) or self.dropout != 0


NONE = Modifications()
