"""Makes the methods of made_methods for one model, on the development part of its texts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from splash_attention.kascade import plan, read_plan
from splash_attention.language.cache import cache_folder
from splash_attention.language.made_methods import PLANNED, TUNED, Planning, Share, Tuning
from splash_attention.language.methods import Attention, Method
from splash_attention.language.model_file import sha256_of
from splash_attention.language.models import Description
from splash_attention.language.texts import Texts
from splash_attention.language.tuning import Curves, candidates, measure_curves


@dataclass(frozen=True)
class Maker:
    """length: of the windows on which methods are tuned and planned. Tuning's curves are kept; plans are, in the cache."""

    model: Any
    description: Description
    texts: Texts
    device: str
    length: int
    _curves: dict[tuple[int | None, int], Curves] = field(default_factory=dict)

    def make(self, text: str, length: int | None = None) -> Method:
        """A METHOD of the command line, made or not. length: of the text that is read, for shares of it; None: that of the windows.

        Raises ValueError and OSError for what is none, and as Texts.windows.
        """
        if text.startswith(TUNED):
            return self._tuned(Tuning.parse(text))
        if text.startswith(PLANNED):
            return self._planned(Planning.parse(text))
        share = Share.parse(text)
        return Method.parse(text) if share is None else share.method(self.length if length is None else length)

    def _tuned(self, tuning: Tuning) -> Method:
        key = (tuning.k_keep, tuning.windows)
        if key not in self._curves:
            windows = self.texts.windows("development", self.length, tuning.windows)
            self._curves[key] = measure_curves(self.model, windows, candidates(k_keeps=tuple(dict.fromkeys((None, tuning.k_keep)))))
        return self._curves[key].choose(tuning.budget)[0]

    def _planned(self, planning: Planning) -> Method:
        """By a plan in the cache, which is made where it is not there."""
        of, record = self.description, json.dumps(self.texts.record, sort_keys=True)
        whole = f"{of.sha256} {record} {of.dtype} {self.device} {self.length} {planning.windows} {planning.anchors}"
        path = cache_folder() / "kascade" / f"{hashlib.sha256(whole.encode()).hexdigest()[:32]}.toml"
        if not path.is_file():
            windows = self.texts.windows("development", self.length, planning.windows)
            plan(self.model, list(windows), anchors=planning.anchors, name=of.name, path=path)
        made = {"part": "development", "windows": planning.windows, "length": self.length, "anchors": list(read_plan(path).anchors)}
        return Method(Attention("kascade", plan=str(path), budget=planning.budget, bits=planning.bits), made_by={**made, "sha256": sha256_of(path)})
