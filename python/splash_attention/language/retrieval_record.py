"""What methods made of the prompts of `retrieval`, and the file that holds it: written anew after each batch, so that a command that was
stopped goes on where it was. Read without PyTorch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splash_attention.files.whole_file import whole_file
from splash_attention.language.intervals import mean_interval, sign_test, wilson_interval
from splash_attention.language.methods import Method

SCHEMA = "splash retrieval 1"


@dataclass(frozen=True)
class Answer:
    """What a model made of one prompt."""

    depth: float
    exact: bool
    rank: int
    """Of the right number among the candidates by likelihood; 1 is the likeliest, and a tie counts against it."""
    nll: float
    """Mean negative log-likelihood of the answer's tokens, nats."""


@dataclass(frozen=True)
class Retrieved:
    """What a model with a method made of the prompts of one length, or of the first of them."""

    method: Method
    length: int
    choices: int
    answers: tuple[Answer, ...]

    @property
    def exact(self) -> tuple[bool, ...]:
        return tuple(one.exact for one in self.answers)

    @property
    def chosen(self) -> tuple[bool, ...]:
        return tuple(one.rank == 1 for one in self.answers)

    @property
    def nll(self) -> float:
        return sum(one.nll for one in self.answers) / len(self.answers)

    @property
    def retrieves(self) -> bool:
        """It chooses the right number more often than not, beyond the noise: the interval of `chosen` lies above one half."""
        return wilson_interval(sum(self.chosen), len(self.chosen))[1] > 0.5

    def as_dict(self, softmax: Retrieved) -> dict[str, Any]:
        """For JSON. softmax: on the same prompts, or on these and more."""
        told: dict[str, Any] = {"title": self.method.title, "method": self.method.as_dict(), "length": self.length}
        for name in ("exact", "chosen"):
            own, others = getattr(self, name), getattr(softmax, name)
            share, low, high = wilson_interval(sum(own), len(own))
            lost, gained = sum(b and not a for a, b in zip(own, others)), sum(a and not b for a, b in zip(own, others))
            told[name] = {"share": share, "interval": [low, high], "level": 0.95, "how": "Wilson's", "by_depth": self._by_depth(own)}
            if self is not softmax:
                told[name]["against_softmax"] = {"lost": lost, "gained": gained, "p": sign_test(lost, gained), "how": "sign test"}
        told["nll"] = self.nll
        if self is not softmax:
            mean, low, high = self._nll_less(softmax)
            interval = None if math.isnan(low) else [low, high]
            told["nll_less_softmax"] = {"mean": mean, "interval": interval, "level": 0.95, "how": "Student's t over prompts"}
        told["softmax_retrieves"] = softmax.retrieves
        told["prompts"] = [vars(one) for one in self.answers]
        return told

    def _nll_less(self, other: Retrieved) -> tuple[float, float, float]:
        return mean_interval([a.nll - b.nll for a, b in zip(self.answers, other.answers)])

    def _by_depth(self, hits: Sequence[bool]) -> list[dict[str, float]]:
        depths = sorted({one.depth for one in self.answers})
        rows = [[hit for hit, one in zip(hits, self.answers) if one.depth == depth] for depth in depths]
        return [{"depth": depth, "share": sum(row) / len(row), "count": len(row)} for depth, row in zip(depths, rows)]


class Record:
    """Results by method's title and length, in the order in which they came.

    path: None keeps them in memory alone. about: what a result says of model, text, prompts and run (`runs`, one). resume: go on with what
    the file holds, if there is one; other methods and lengths in it stay. Raises ValueError where it holds answers of another model, text or
    prompts, or is no such file; OSError where it cannot be read.
    """

    def __init__(self, path: Path | None, about: Mapping[str, Any], *, resume: bool = False) -> None:
        self.path, self.about = path, dict(about)
        self.baselines: dict[int, Retrieved] = {}
        self._results: dict[tuple[str, int], dict[str, Any]] = {}
        if resume and path is not None and path.is_file():
            held = open_retrieval(path)
            for what, value in _identity(self.about).items():
                if _identity(held)[what] != value:
                    raise ValueError(f"{path} holds answers of another {what}; name another file, or leave out --resume")
            self.about["runs"] = [*held.get("runs", []), *self.about["runs"]]
            self.about["device"] = "; ".join(dict.fromkeys([*held["device"].split("; "), self.about["device"]]))
            self._results = {(one["title"], one["length"]): one for one in held["results"]}

    def answers(self, method: Method, length: int) -> tuple[Answer, ...]:
        """What there is of a method that is still the same."""
        held = self._results.get((method.title, length))
        if held is None or held["method"] != json.loads(json.dumps(method.as_dict())):
            return ()
        return tuple(Answer(**one) for one in held["prompts"])

    def keep(self, one: Retrieved) -> None:
        """Writes it in the place of what there was, unless that is of more prompts. Softmax comes first: all others are compared with it."""
        if one.method == Method():
            self.baselines[one.length] = one
        if len(self.answers(one.method, one.length)) > len(one.answers):
            return
        self._results[one.method.title, one.length] = one.as_dict(self.baselines[one.length])
        if self.path is not None:
            with whole_file(self.path) as temporary:
                temporary.write_text(json.dumps(self.as_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")

    def as_dict(self) -> dict[str, Any]:
        prompts = self.about["prompts"]
        beyond = sorted({length for _, length in self._results if length > prompts["context"]})
        return {"schema": SCHEMA, **self.about, "prompts": {**prompts, "beyond_context": beyond}, "results": list(self._results.values())}


def open_retrieval(path: str | Path) -> dict[str, Any]:
    """Raises ValueError for another file, OSError where it cannot be read."""
    try:
        held = json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error})") from None
    schema = held.get("schema") if isinstance(held, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"{path}: its schema is {schema!r}; allowed is {SCHEMA!r}")
    whole: dict[str, Any] = held
    return whole


def _identity(about: Mapping[str, Any]) -> dict[str, Any]:
    """What answers must share to stand in one file; texts may be fetched on another day."""
    part = about["prompts"]["part"]
    text = about["text"]
    return {
        "model": [about["model"][name] for name in ("sha256", "dtype")],
        "text": [text.get("sha256"), text.get("tokenizer_sha256"), text.get("tokens", {}).get(part)],
        "versions of packages": about["versions"],
        "kind of prompts": {name: about["prompts"][name] for name in ("part", "depths", "choices", "seed", "form")},
        "stretching of positions": about["prompts"].get("stretched", False),
    }
