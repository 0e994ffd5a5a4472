"""A sentence in place of a traceback where the package of an extra is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# What of these belongs to which extra of this package.
_EXTRAS = {
    "torch": "torch",
    "transformers": "hf",
    "gguf": "language",
    "safetensors": "language",
    "tokenizers": "language",
    "h5py": "captures",
}


@contextmanager
def needed_by(name: str, extra: str | None = None) -> Iterator[None]:
    """Imports of `name` inside: raises ImportError, one sentence that names the package and the extra, where one is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        whole = f"splash-attention with its extra {extra or _EXTRAS[package]}"
        raise ImportError(f"{name} needs the package {package}: install it, or {whole}", name=name) from None
