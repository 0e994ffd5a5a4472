"""Exact α-entmax sparse attention for PyTorch, NumPy and what speaks DLPack.

    from splash_attention import entmax, splash_attention, AdaptiveSplashAttention
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from splash_attention.extras import needed_by

if TYPE_CHECKING:
    from splash_attention.activations import Entmax15, EntmaxBisect, Sparsemax
    from splash_attention.auxiliary import Aux, EntmaxAux
    from splash_attention.backends.torch.sdpa import scaled_dot_product_attention
    from splash_attention.captures import capture, read_capture
    from splash_attention.decoding import BatchDecodeWrapper, PagedCache, block_table_of, decode
    from splash_attention.functional import entmax, entmax15, entmax_bisect, sparsemax, splash_attention
    from splash_attention.language.training import convert
    from splash_attention.language.tuning import tune
    from splash_attention.losses import Entmax15Loss, EntmaxBisectLoss, SparsemaxLoss, entmax15_loss, entmax_bisect_loss, sparsemax_loss
    from splash_attention.module import AdaptiveSplashAttention

# Found when they are asked for: captures need h5py, the module PyTorch, the functions the built extension.
_HOMES = {
    "Aux": "auxiliary",
    "EntmaxAux": "auxiliary",
    "convert": "language.training",
    "tune": "language.tuning",
    "capture": "captures",
    "read_capture": "captures",
    **dict.fromkeys(("BatchDecodeWrapper", "PagedCache", "block_table_of", "decode"), "decoding"),
    "entmax": "functional",
    "entmax15": "functional",
    "entmax_bisect": "functional",
    "sparsemax": "functional",
    "splash_attention": "functional",
    "scaled_dot_product_attention": "backends.torch.sdpa",
    "AdaptiveSplashAttention": "module",
    **dict.fromkeys(("Entmax15", "EntmaxBisect", "Sparsemax"), "activations"),
    **dict.fromkeys(("Entmax15Loss", "EntmaxBisectLoss", "SparsemaxLoss"), "losses"),
    **dict.fromkeys(("entmax15_loss", "entmax_bisect_loss", "sparsemax_loss"), "losses"),
}
__all__ = list(_HOMES)
__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needed_by(f"{__name__}.{name}", "language" if _HOMES[name].startswith("language.") else None):
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
