"""The laboratory of splash_attention: reports, their plots and page, the benchmark, the tables and figures of the documents.

    from splash_laboratory import open_report
    python -m splash_laboratory.page report.h5 --out page.html
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from splash_laboratory.reports import Report, ReportError, open_report, recorded_report

__all__ = ["Report", "ReportError", "open_report", "recorded_report"]


def __getattr__(name: str) -> Any:
    """Found when they are asked for: they need h5py and xarray, which a peer's Python may lack (language_model does without)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.reports"), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"{__name__}.{name} needs the package {error.name}: install it, or splash-laboratory with what it needs") from None


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
