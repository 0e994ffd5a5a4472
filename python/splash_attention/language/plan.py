"""How a conversion trains: one declaration, also as text, name=value,…"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from splash_attention.language.named_values import read_named_values

ALPHA_LOW, ALPHA_HIGH = 1.25, 2.0
BOUNDS = ("median_keys", "p95_keys", "most_keys")
SCHEDULES = ("fixed", "annealed", "learned")
GRADIENTS = ("exact", "straight-through")


def _told(default: Any, what: str) -> Any:
    return field(default=default, metadata={"help": what})


@dataclass(frozen=True)
class Plan:
    """What convert does; each field tells what it is in its metadata. Raises ValueError for what does not fit."""

    kind: str = _told("entmax", "entmax, or softmax: the same training without a change of attention, to compare with")
    schedule: str = _told("learned", "of alpha and factor: fixed, annealed (from near softmax, over half the steps) or learned")
    alpha: float = _told(1.5, "of every head, from 1.25 to 2: where it ends, or where learning begins")
    factor: float = _told(0.5, "of the scale of every head: where it ends, or where learning begins")
    start: str = _told("", "a method's file, as `tune` writes it: alpha and factor of each head, in the place of these two")
    k_keep: int = _told(0, "entmax over the K largest scores of each row; 0: over all")
    gradients: str = _told("exact", "under k_keep: exact, or straight-through (source 004): those of scores as if all keys had been kept")
    median_keys: float = _told(0.0, "penalise support until half the heads use at most so many keys a query; 0: no penalty")
    p95_keys: float = _told(0.0, "penalise support until 95 % of heads use at most so many keys a query; 0: no penalty")
    most_keys: float = _told(0.0, "penalise support until each head uses at most so many keys a query; 0: no penalty")
    price: float = _told(0.1, "of support: nats for a unit of log(keys) of a head that is e times above its bound")
    rank: int = _told(16, "of the adapter on the attention's projections; 0: all weights are trained")
    steps: int = _told(300, "of training")
    batch: int = _told(2, "windows a step")
    length: int = _told(8192, "tokens of a window")
    rate: float = _told(1e-3, "learning rate of weights")
    head_rate: float = _told(2e-2, "learning rate of alpha's logit and log(factor)")
    seed: int = _told(1, "of the windows and of the adapter's first weights")

    def __post_init__(self) -> None:
        if self.kind not in ("entmax", "softmax"):
            raise ValueError(f'kind is {self.kind!r}; allowed are "entmax" and "softmax"')
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule is {self.schedule!r}; allowed are {', '.join(SCHEDULES)}")
        if self.gradients not in GRADIENTS:
            raise ValueError(f"gradients is {self.gradients!r}; allowed are {', '.join(GRADIENTS)}")
        if self.gradients == "straight-through" and not self.k_keep:
            raise ValueError("gradients are straight-through; that needs a k_keep, through whose choice they go")
        if not ALPHA_LOW <= self.alpha <= ALPHA_HIGH:
            raise ValueError(f"alpha is {self.alpha}; it must be from {ALPHA_LOW} to {ALPHA_HIGH}")
        for name, least in (("k_keep", 0), ("rank", 0), ("steps", 1), ("batch", 1), ("length", 2), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        for name in ("factor", "price", "rate", "head_rate"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be finite and above 0")
        for name in BOUNDS:
            value = getattr(self, name)
            if not (value == 0 or 1 <= value < math.inf):
                raise ValueError(f"{name} is {value}; it must be 0 (no penalty), or at least 1")
            if value and self.schedule != "learned":
                raise ValueError(f"{name} acts on alpha and factor; it needs the schedule learned")
        if self.kind == "softmax":
            for name in ("start", "k_keep", *BOUNDS):
                if getattr(self, name):
                    raise ValueError(f"{name} is {getattr(self, name)!r}; softmax has none")

    @property
    def penalised(self) -> bool:
        return any(getattr(self, name) for name in BOUNDS)

    @classmethod
    def parse(cls, text: str) -> Plan:
        """NAME=VALUE,… of these fields; what is not named has its default. Raises ValueError."""
        return cls(**read_named_values(text, {part.name: type(part.default) for part in fields(cls)}))
