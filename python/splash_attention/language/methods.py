"""What stands in softmax's place in each layer and head of a model: one declaration, one small JSON file.

    Method(Attention("entmax", alpha=1.5, factor=0.5))                     # every layer
    Method(Attention("softmax"), {0: Attention("entmax", alpha=1.25)})     # layer 0 alone is another
    Method.parse("entmax:alpha=1.5,factor=0.5,k_keep=32")                  # as the command line has it
    Method.parse("kascade:plan=plan.toml,budget=0.05")                     # a plan of splash_attention.kascade
    Method.parse("pages:budget=0.1,dense=2")                               # the first two layers are softmax
    Method.read("tuned.json")                                              # what tuning wrote

A file: {"schema": "splash attention method 1", "name": ..., "default": {"kind": "entmax", "alpha": 1.5, ...},
"layers": {"0": {...}}, "made_by": {...}}. alpha, factor and k_keep are one number, or a list with one a query head.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Union

from splash_attention.language.named_values import read_named_values
from splash_attention.files.whole_file import whole_file

SCHEMA = "splash attention method 1"
KINDS = {
    "softmax": ("factor",),
    "entmax": ("alpha", "factor", "k_keep", "block"),
    "top-k-softmax": ("factor", "k_keep"),
    "window-softmax": ("factor", "window", "sink"),
    "power": ("alpha", "factor"),
    "kascade": ("plan", "budget", "bits"),
    "tile-top-k": ("factor", "budget", "tile", "least_keys", "bits"),
    "pages": ("factor", "budget", "page", "least_keys"),
}
_TYPES: dict[str, type] = {"alpha": float, "factor": float, "budget": float, "plan": str}  # others are int
_NEEDED = {"top-k-softmax": "k_keep", "window-softmax": "window", "kascade": "plan", "tile-top-k": "budget", "pages": "budget"}
_USUAL = ("factor", "tile", "least_keys", "page")  # not told where they are the default
PerHead = Union[float, tuple[float, ...]]


@dataclass(frozen=True)
class Attention:
    """Of one layer. Scores are factor * scaling * <q, k>, scaling the model's own (1/sqrt(head_dim) in a Llama).

    kind: "softmax"; "entmax" (exact); "top-k-softmax": softmax over the k_keep largest scores of a row; "window-softmax": over the
      `window` last keys and the `sink` first ones; "power": max(score, 0)^alpha over its row's sum, source 000's approximation;
      "kascade": softmax over the keys that the layer's anchor found (splash_attention.kascade), dense in layer 0; "tile-top-k": the
      same with every layer an anchor, the oracle of kascade; "pages": softmax over the pages of keys with the largest bounds of their
      scores, by least and largest of each channel, for each query and head, and the query's own page (as Quest, arXiv 2406.10774).
    alpha: above 1 (power: above 0); a number, or one a query head.
    factor: above 0; a number, or one a query head.
    k_keep: only the k_keep largest scores of each row, or with `block` of each row's keys block·n to block·(n+1)-1; a number, or
      one a query head, where 0 keeps all; None keeps all.
    plan: a file. budget: share of the keys that a query (of a tile the last) sees, rounded up, at least least_keys of them; None: the
      plan's. tile: queries that share keys. page: keys of a page. bits: 8: keys are chosen by their copies in 8 bits, as
      kascade.apply(keys_in_8_bits=True) chooses them in steps of decoding, here in every call; None: by the keys themselves.
    Raises TypeError and ValueError for what a kind does not have or allow.
    """

    kind: str = "softmax"
    alpha: PerHead = 1.5
    factor: PerHead = 1.0
    k_keep: int | tuple[int, ...] | None = None
    block: int | None = None
    window: int | None = None
    sink: int = 4
    plan: str | None = None
    budget: float | None = None
    tile: int = 32
    least_keys: int = 128
    page: int = 16
    bits: int | None = None

    def __post_init__(self) -> None:
        _require_kind(self.kind)
        for part in fields(self)[1:]:
            if part.name not in KINDS[self.kind] and getattr(self, part.name) != part.default:
                raise ValueError(f"{self.kind} has no {part.name}; it has {', '.join(KINDS[self.kind])}")
        low = 0.0 if self.kind == "power" else 1.0
        object.__setattr__(self, "alpha", _numbers("alpha", self.alpha, low))
        object.__setattr__(self, "factor", _numbers("factor", self.factor, 0.0))
        object.__setattr__(self, "k_keep", _counts("k_keep", self.k_keep, 0 if isinstance(self.k_keep, (list, tuple)) else 1))
        for name, least in (("block", 1), ("window", 1), ("sink", 0), ("tile", 1), ("least_keys", 1), ("page", 1)):
            object.__setattr__(self, name, _counts(name, getattr(self, name), least))
        if self.budget is not None and not 0 < _numbers("budget", self.budget, 0.0) <= 1:
            raise ValueError(f"budget is {self.budget}; it must be above 0 and at most 1")
        check_bits(self.bits)
        needed = _NEEDED.get(self.kind)
        if needed and getattr(self, needed) is None:
            raise ValueError(f"{self.kind} needs {needed}")
        if self.plan is not None:
            self.read_plan()
        if self.block is not None and not isinstance(self.k_keep, int):
            raise ValueError("block needs k_keep, one number: how many keys of each block are kept")

    def as_dict(self) -> dict[str, Any]:
        parts = {name: getattr(self, name) for name in KINDS[self.kind]}
        return {"kind": self.kind, **{name: list(v) if isinstance(v, tuple) else v for name, v in parts.items() if v is not None}}

    def read_plan(self) -> Any:
        """The splash_attention.kascade.KascadePlan of `plan`. Raises ValueError for what is none."""
        from splash_attention.kascade import read_plan

        return read_plan(str(self.plan))

    def check_heads(self, heads: int, layer: int) -> None:
        """Raises ValueError where a list has not one entry a query head."""
        for name in ("alpha", "factor", "k_keep"):
            values = getattr(self, name)
            if isinstance(values, tuple) and len(values) != heads:
                raise ValueError(f"{name} of layer {layer} has {len(values)} entries; the layer has {heads} query heads")


@dataclass(frozen=True)
class Method:
    """default: of the layers that `layers` does not name. made_by: how it came about; kept, never read."""

    default: Attention = field(default_factory=Attention)
    layers: Mapping[int, Attention] = field(default_factory=dict)
    name: str = ""
    made_by: Mapping[str, Any] = field(default_factory=dict)

    def of(self, layer: int) -> Attention:
        return self.layers.get(layer, self.default)

    @property
    def title(self) -> str:
        if self.name:
            return self.name
        parts = {name: value for name, value in self.default.as_dict().items() if name != "kind"}
        usual = {part.name: part.default for part in fields(Attention) if part.name in _USUAL}
        told = ",".join(f"{name}={_short(value)}" for name, value in parts.items() if usual.get(name) != value)
        return self.default.kind + (f":{told}" if told else "") + (f" + {len(self.layers)} layers" if self.layers else "")

    @classmethod
    def parse(cls, text: str) -> Method:
        """KIND, KIND:NAME=VALUE,… or the name of a JSON file. dense=N of a kind but softmax and kascade: the first N layers are softmax.
        Raises ValueError, OSError for a file."""
        if text.endswith(".json"):
            return cls.read(text)
        kind, _, rest = text.partition(":")
        _require_kind(kind)
        types = {name: _TYPES.get(name, int) for name in KINDS[kind]}
        values = read_named_values(rest, types if kind in ("softmax", "kascade") else {**types, "dense": int}, text)
        dense = _counts("dense", values.pop("dense", 0), 0)
        return cls(Attention(kind, **values), {layer: Attention() for layer in range(dense)})

    @classmethod
    def read(cls, path: str | Path) -> Method:
        """Raises ValueError for what is no such file, OSError where it cannot be read."""
        try:
            held = json.loads(Path(path).read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{path} is not JSON ({error})") from None
        if not isinstance(held, dict) or held.get("schema") != SCHEMA:
            raise ValueError(f"{path} is no method of attention; its schema must be {SCHEMA!r}")
        try:
            layers = {int(layer): _attention(one) for layer, one in held.get("layers", {}).items()}
            return cls(_attention(held["default"]), layers, str(held.get("name", "")), held.get("made_by", {}))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ValueError(f"{path}: {error}") from error

    def as_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "name": self.name,
            "default": self.default.as_dict(),
            "layers": {str(layer): one.as_dict() for layer, one in sorted(self.layers.items())},
            "made_by": dict(self.made_by),
        }

    def write(self, path: str | Path) -> None:
        """Raises OSError where it cannot."""
        with whole_file(Path(path)) as temporary:
            temporary.write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8")


def check_bits(bits: Any) -> None:
    """Raises ValueError for bits of Attention that are not."""
    if bits not in (None, 8):
        raise ValueError(f"bits is {bits!r}; it must be 8, or left out")


def _require_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; allowed are {', '.join(KINDS)}")


def _attention(held: Any) -> Attention:
    if not isinstance(held, dict):
        raise ValueError(f"a layer's attention is {held!r}; it must be an object with a kind")
    known = {part.name for part in fields(Attention)}
    for name in held:
        if name not in known:
            raise ValueError(f"a layer's attention has {name!r}; allowed are {', '.join(sorted(known))}")
    return Attention(**{name: tuple(v) if isinstance(v, list) else v for name, v in held.items()})


def _numbers(name: str, value: Any, above: float) -> PerHead:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    for one in values:
        if isinstance(one, bool) or not isinstance(one, (int, float)):
            raise TypeError(f"{name} is {value!r}; it must be a number, or a list with one a query head")
        if not (math.isfinite(one) and one > above):
            raise ValueError(f"{name} is {one}; it must be finite and above {above:g}")
    if not values:
        raise ValueError(f"{name} is an empty list; it must have one number a query head")
    return tuple(map(float, values)) if isinstance(value, (list, tuple)) else float(value)


def _counts(name: str, value: Any, least: int) -> Any:
    for one in value if isinstance(value, (list, tuple)) else [value]:
        if one is not None and (isinstance(one, bool) or not isinstance(one, int)):
            raise TypeError(f"{name} is {one!r}; it must be an integer")
        if one is not None and one < least:
            raise ValueError(f"{name} is {one}; it must be at least {least}")
    return tuple(value) if isinstance(value, list) else value


def _short(value: Any) -> str:
    if isinstance(value, str):
        return Path(value).name
    return f"{min(value):g}..{max(value):g}" if isinstance(value, (list, tuple)) else f"{value:g}"
