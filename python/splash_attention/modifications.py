"""What changes the scores and probabilities of attention, beside masks."""

from __future__ import annotations

from typing import Any, NamedTuple


class Modifications(NamedTuple):
    """As splash_attention has them."""

    softcap: float | None = None
    sinks: Any = None
    dropout: float = 0.0

    def __bool__(self) -> bool:
        return self.softcap is not None or self.sinks is not None or self.dropout != 0


NONE = Modifications()
