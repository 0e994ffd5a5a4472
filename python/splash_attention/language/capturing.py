"""A language model's q, k and v on windows of a text, as a capture that says which model and which text they are of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from splash_attention.captures import capture
from splash_attention.files.seal import Seal, check_seal
from splash_attention.language.cache import cache_folder


@dataclass(frozen=True)
class Part:
    """What of each layer is kept, as splash_attention.capture takes it: key heads, with their query heads, the last queries, importances."""

    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    queries: int | None = None
    dtype: str = "float32"
    importances: bool = False


def capture_windows(model: Any, windows: Tensor, path: Path, part: Part, about: dict[str, Any]) -> None:
    """Writes a capture of [windows, tokens]: each window is a call of the model. about: what the file says of model, text and windows,
    as JSON. Raises what splash_attention.capture raises."""
    device = next(model.parameters()).device
    notes = {name: held if isinstance(held, str) else json.dumps(held) for name, held in about.items()}
    with torch.no_grad(), capture(
        model, path, layers=part.layers, heads=part.heads, queries=part.queries, dtype=part.dtype, notes=notes, importances=part.importances
    ):  # fmt: skip
        for window in windows:
            model(window[None].to(device), use_cache=False, logits_to_keep=1)


def cached_path(windows: Tensor, part: Part, about: dict[str, Any]) -> Path:
    """Where the capture lies in the cache, by the hash of the model, the tokens and what is kept of them."""
    tokens = hashlib.sha256(windows.numpy().tobytes()).hexdigest()
    key = json.dumps([about, tokens, list(windows.shape), vars(part)], sort_keys=True)
    return cache_folder() / "captures" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.h5"


def is_whole(path: Path) -> bool:
    return path.is_file() and check_seal(path.read_bytes()) is Seal.INTACT
