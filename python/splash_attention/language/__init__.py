"""What exact entmax attention costs a language model, and how to choose or learn it: perplexity, tuning, conversion.

    from splash_attention.language import Attention, Method, load_model, perplexity
    model, tokenizer, description = load_model("model.gguf")
    measured = perplexity(model, windows, Method(Attention("entmax", alpha=1.5, factor=0.5)))

    python -m splash_attention.language --help

It needs PyTorch and the packages of splash-attention[language]: transformers, gguf, tokenizers, safetensors.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from splash_attention.extras import needed_by

if TYPE_CHECKING:
    from splash_attention.language.attention import applied, apply
    from splash_attention.language.conversion import Converted, load_converted
    from splash_attention.language.methods import Attention, Method
    from splash_attention.language.models import load_model
    from splash_attention.language.measure import Measured, compare, perplexity
    from splash_attention.language.plan import Plan
    from splash_attention.language.retrieval import plant, retrieve
    from splash_attention.language.texts import documents, read_tokens, tokenise
    from splash_attention.language.training import convert
    from splash_attention.language.tuning import measure_curves, tune

_HOMES = {
    "applied": "attention", "apply": "attention",
    "Converted": "conversion", "load_converted": "conversion",
    "Attention": "methods", "Method": "methods",
    "load_model": "models",
    "Measured": "measure", "compare": "measure", "perplexity": "measure",
    "Plan": "plan",
    "convert": "training",
    "plant": "retrieval", "retrieve": "retrieval",
    "documents": "texts", "read_tokens": "texts", "tokenise": "texts",
    "measure_curves": "tuning", "tune": "tuning",
}  # fmt: skip
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needed_by(f"{__name__}.{name}", "language"):
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
