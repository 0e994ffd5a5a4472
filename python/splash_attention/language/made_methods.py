"""Methods that follow from a model, its texts or a text's length, as the command line and the experiments name them; read without PyTorch.

    tuned:budget=64                             # what `tune` finds on the development part
    kascade:anchors=5,budget=0.1                # by the plan that `kascade` makes on it
    window-softmax:budget=0.1,sink=4,dense=1    # as many keys as a tenth of the text, at least 128
    top-k-softmax:budget=0.1,dense=1
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from splash_attention._core import kascade_keys
from splash_attention.language.methods import Attention, Method, check_bits
from splash_attention.language.named_values import read_named_values

TUNED = "tuned:"
PLANNED = "kascade:anchors="
_SIZES = {"window-softmax": "window", "top-k-softmax": "k_keep"}  # what a share of the length stands for


@dataclass(frozen=True)
class Tuning:
    """tuned:budget=KEYS,k_keep=K,windows=N: what `tune` finds on the first N windows of the development part, as long as those that
    are measured. k_keep: each candidate is tried with its K largest scores alone, too."""

    budget: float
    k_keep: int | None = None
    windows: int = 1

    def __post_init__(self) -> None:
        for name in ("budget", "k_keep", "windows"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}; it must be finite and above 0")

    @classmethod
    def parse(cls, text: str) -> Tuning:
        """Raises ValueError."""
        values = read_named_values(text.removeprefix(TUNED), {"budget": float, "k_keep": int, "windows": int}, text)
        if "budget" not in values:
            raise ValueError(f"{text!r} names no budget, such as {TUNED}budget=32")
        return cls(**values)


@dataclass(frozen=True)
class Planning:
    """kascade:anchors=N,budget=SHARE,windows=N,bits=8: Kascade by the plan that `kascade` makes on the first N windows of the development
    part, as long as those that are measured. budget: of the attention (0.1); the plan's own is 0.1, so that plans of other budgets are one.
    bits: as of Attention."""

    anchors: int
    budget: float = 0.1
    windows: int = 1
    bits: int | None = None

    def __post_init__(self) -> None:
        for name in ("anchors", "windows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        _check_share(self.budget)
        check_bits(self.bits)

    @classmethod
    def parse(cls, text: str) -> Planning:
        """Raises ValueError."""
        return cls(**read_named_values(text.partition(":")[2], {"anchors": int, "budget": float, "windows": int, "bits": int}, text))


@dataclass(frozen=True)
class Share:
    """window-softmax:budget=SHARE,… or top-k-softmax:budget=SHARE,…: as many keys as the other methods of that budget keep at a text's end,
    a window's with its sinks. budget: share of the length, rounded up; at least 128 keys. others: what else the text names."""

    kind: str
    budget: float
    others: str

    def __post_init__(self) -> None:
        _check_share(self.budget)

    @classmethod
    def parse(cls, text: str) -> Share | None:
        """None for another method. Raises ValueError."""
        kind, _, rest = text.partition(":")
        parts = [part.strip() for part in rest.split(",")]
        shares = [part for part in parts if part.startswith("budget=")]
        if kind not in _SIZES or not shares:
            return None
        values = read_named_values(",".join(shares), {"budget": float}, text)
        return cls(kind, values["budget"], ",".join(part for part in parts if part not in shares))

    def method(self, length: int) -> Method:
        """Of a text of so many tokens. Raises ValueError for what else the text names."""
        keys = kascade_keys(self.budget, 1, Attention.least_keys, length, 1)
        method = Method.parse(f"{self.kind}:{_SIZES[self.kind]}={keys},{self.others}")
        if self.kind == "window-softmax":
            method = replace(method, default=replace(method.default, window=keys - method.default.sink))
        return method


def check_method(text: str) -> None:
    """Raises ValueError and OSError for what is neither a method nor one that is made."""
    if text.startswith(TUNED):
        Tuning.parse(text)
    elif text.startswith(PLANNED):
        Planning.parse(text)
    elif share := Share.parse(text):
        share.method(Attention.least_keys)
    else:
        Method.parse(text)


def named(method: Method, text: str) -> Method:
    """What is made, or has dense layers, by the text that asked for it."""
    made = text.startswith((TUNED, PLANNED)) or Share.parse(text) is not None
    return replace(method, name=text) if made or method.layers and not text.endswith(".json") else method


def _check_share(budget: float) -> None:
    if not 0 < budget <= 1:
        raise ValueError(f"budget is {budget}; it must be above 0 and at most 1")
