"""Exact α-entmax sparse attention for PyTorch, NumPy and what speaks DLPack, and the laboratory's reports and plots.

    from splash_attention import entmax, splash_attention, AdaptiveSplashAttention
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from splash_attention.aux import Aux
    from splash_attention.captures import capture, read_capture
    from splash_attention.functional import entmax, entmax15, sparsemax, splash_attention
    from splash_attention.module import AdaptiveSplashAttention
    from splash_attention.reports import Report, ReportError, open_report, recorded_report

# Found when they are asked for: reports need h5py and xarray, the module PyTorch, the functions the built extension.
_HOMES = {
    "Aux": "aux",
    "capture": "captures",
    "read_capture": "captures",
    "entmax": "functional",
    "entmax15": "functional",
    "sparsemax": "functional",
    "splash_attention": "functional",
    "AdaptiveSplashAttention": "module",
    "Report": "reports",
    "ReportError": "reports",
    "open_report": "reports",
    "recorded_report": "reports",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
