"""NAME=VALUE,… as methods, plans and tunings are written on one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def read_named_values(text: str, kinds: Mapping[str, type], whole: str | None = None) -> dict[str, Any]:
    """The values of what `text` names. kinds: the names that are allowed, each with int, float or str. whole: what refusals quote, where
    text is a part of it. Raises ValueError for another name, a name without a value or that stands twice, and a value of another type."""
    whole = text if whole is None else whole
    values: dict[str, Any] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in kinds:
            raise ValueError(f"{part!r} of {whole!r} is no setting; allowed are NAME=VALUE of {', '.join(kinds)}")
        if name in values:
            raise ValueError(f"{name} stands twice in {whole!r}; name it once")
        try:
            values[name] = kinds[name](value)
        except ValueError:
            wanted = "an integer" if kinds[name] is int else "a number"
            raise ValueError(f"{name} of {whole!r} is {value!r}; it must be {wanted}") from None
    return values
