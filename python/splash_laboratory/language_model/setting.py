"""What one case of the experiments with language models asks for, read without PyTorch (but for place_of): what
cannot be is refused at once."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from splash_attention.language.made_methods import PLANNED, TUNED, Tuning, check_method
from splash_attention.language.methods import Method
from splash_attention.language.packages import MODELS, TEXTS


@dataclass(frozen=True)
class Setting:
    """On what methods are compared. text: sources, separated by spaces or commas, as texts_of takes them. device and dtype: "auto" is
    the GPU in bfloat16 where there is one, else the CPU in float32."""

    model: str
    text: str
    part: str
    window: int
    windows: int
    looked_at: int
    device: str
    dtype: str

    @property
    def sources(self) -> list[str]:
        return [source for source in re.split(r"[\s,]+", self.text) if source]


class Unavailable(RuntimeError):
    """The machine has not what a case asks for."""


def place_of(setting: Setting) -> tuple[str, str]:
    """(dtype, device). Raises Unavailable where there is no such device."""
    import torch

    device = setting.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise Unavailable("device is cuda, and PyTorch finds no GPU here")
    return ("bfloat16" if device == "cuda" else "float32") if setting.dtype == "auto" else setting.dtype, device


def check(setting: Setting, method: str | None = None, plan: str | None = None) -> None:
    """Raises ValueError and OSError for what no case could be made of. Loads nothing."""
    if not setting.sources:
        raise ValueError("text names no source; it takes files, folders, fetched packages, or one *.npz of tokens")
    if method is not None and method.endswith(".safetensors"):
        Path(method).stat()
    elif method is not None:
        check_method(method)
    if plan is not None:
        from splash_attention.language.plan import Plan

        start = Plan.parse(plan).start
        if start:
            (Tuning if start.startswith(TUNED) else Method).parse(start)


def fetchable(setting: Setting) -> list[str]:
    """The packages among model and text that `fetch` knows and that are not there as files."""
    return [name for name in (setting.model, *setting.sources) if name in (*MODELS, *TEXTS) and not Path(name).exists()]


def fingerprint(setting: Setting, method: str | None = None, plan: str | None = None) -> str:
    """Of the model's file, the texts, the file of the method, or of the plan's start, if it is one, and of kascade's plan. Raises OSError and ValueError
    where they are not there."""
    from splash_attention.language.model_file import sha256_of
    from splash_attention.language.plan import Plan

    parts = [f"model {_hash_of_model(setting.model)}", f"text {_hash_of_texts(tuple(setting.sources))}"]
    for what, file in (("method", method), ("start", plan and Plan.parse(plan).start)):
        if file and file.endswith((".json", ".safetensors")):
            parts.append(f"{what} {sha256_of(Path(file))}")
    if method and method.startswith("kascade:") and not method.startswith(PLANNED):
        parts.append(f"plan {sha256_of(Path(str(Method.parse(method).default.plan)))}")
    return ", ".join(parts)


@functools.lru_cache
def _hash_of_model(name: str) -> str:
    from splash_attention.language.model_file import find_model, sha256_of

    return sha256_of(find_model(name))


@functools.lru_cache
def _hash_of_texts(sources: tuple[str, ...]) -> str:
    from splash_attention.language.model_file import sha256_of
    from splash_attention.language.texts import documents

    if len(sources) == 1 and sources[0].endswith(".npz"):
        return sha256_of(Path(sources[0]))
    return documents(sources)[1]["sha256"]
