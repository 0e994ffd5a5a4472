"""A plan from a model's own attention on its user's texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splash_attention._core import KascadePlan, KascadeSimilarity
from splash_attention.files.whole_file import prepare_place
from splash_attention.kascade import write_plan
from splash_attention.watching import causal_of, importances, require_no_padding, watched

_WHO = "a plan"


@dataclass(frozen=True)
class Planned:
    """What plan() found."""

    plan: KascadePlan
    similarity: np.ndarray
    """[layer a, key head of a, layer b, key head of b]: share of b's attention on a's keys; 0 where a > b."""
    importance: np.ndarray
    """[layer]: 1 - cosine of the residual stream before and after attention, mean over tokens and texts."""


def plan(
    model: Any, inputs: Iterable[Any], *, anchors: int, budget: float = 0.1, tile: int = 32, least_keys: int = 128,
    alpha: float | None = None, over_tiles: str = "mean", tiles: int | None = None, importance: Sequence[float] | None = None,
    name: str | None = None, path: str | Path | None = None,
) -> Planned:  # fmt: skip
    """Chooses the anchors of a causal language model, and whose keys each head of the other layers reuses.

    model: of transformers (5.0 or newer), whose attention goes through its attention interface; all layers have the same heads.
    inputs: texts, each a call of the model: token ids [batch, length] or [length], or a mapping of the model's arguments as a
      tokenizer returns it, without padding. A few texts as long as those of later use.
    anchors: how many, layer 0 among them.
    budget, least_keys: a tile of `tile` queries keeps that share of the keys that its last query sees, rounded up, and at least
      least_keys. alpha: the attention is entmax of this alpha; None: softmax.
    over_tiles: "mean" or "minimum": what a text's tiles count by. tiles: of each text only so many, evenly spread with the last.
    importance: of each layer; None: measured, 1 - cosine of the residual stream before and after attention.
    name: of the model, as the plan tells it; None: its configuration's. path: where the plan is written, as TOML.

    The model runs once on each text. q and k of one layer at a time are copied to the CPU, in float32, and the library sums up their
    probabilities there in float64: O(length^2 · head_dim) a query head of the tiles that are looked at. Of earlier layers only the
    sets of keys are held, 4 bytes a key.

    Raises ValueError for arguments that do not fit, and for no text; NotImplementedError for padding, masks that are not causal,
    changed scores (soft caps, biases, sinks), and residual streams that are not known (give the importance); OSError where path
    cannot be written, which is tried first.
    """
    if path is not None:
        prepare_place(Path(path))
    collected = _Collected(anchors, budget, tile, least_keys, alpha, tiles)
    texts = 0
    with torch.no_grad(), watched(model, collected.see):
        for one in inputs:
            arguments = _arguments(one, model)
            texts += arguments["input_ids"].shape[0]
            if importance is None:
                with importances(model, collected.tell):
                    model.base_model(**arguments, use_cache=False)
            else:
                model.base_model(**arguments, use_cache=False)
            collected.end_text()
    similarity = collected.similarity(over_tiles)
    weights = collected.importance() if importance is None else np.asarray(importance, np.float64)
    made_by = f"{texts} text{'s' * (texts > 1)} of {collected.tokens} tokens"
    name = name or str(getattr(model.config, "_name_or_path", "") or type(model).__name__)
    made = collected.planner.plan(weights.tolist(), anchors, over_tiles, name, made_by)
    if path is not None:
        write_plan(made, path)
    return Planned(made, similarity, weights)


def _arguments(one: Any, model: Any) -> dict[str, Any]:
    if isinstance(one, Tensor):
        one = {"input_ids": one if one.dim() == 2 else one[None]}
    if not isinstance(one, Mapping) or not isinstance(one.get("input_ids"), Tensor) or one["input_ids"].dim() != 2:
        raise ValueError("a text must be token ids [length] or [batch, length], or a mapping with input_ids [batch, length]")
    require_no_padding(dict(one), _WHO)
    return {name: value.to(model.device) if isinstance(value, Tensor) else value for name, value in one.items()}


class _Collected:
    """What the calls of a model tell, layer by layer."""

    def __init__(self, anchors: int, budget: float, tile: int, least_keys: int, alpha: float | None, tiles: int | None) -> None:
        if tiles is not None and tiles < 1:
            raise ValueError(f"tiles is {tiles}; it must be at least 1, or None for all")
        self.anchors = anchors
        self.options = (budget, tile, least_keys, "softmax" if alpha is None else "entmax", 1.5 if alpha is None else alpha, tiles or 0)
        self.planner: KascadeSimilarity | None = None
        self.layers, self.next, self.tokens = 0, 0, 0
        self.turns: list[dict[int, float]] = []

    def see(self, number: int, module: Any, query: Tensor, key: Tensor, _: Tensor, mask: Tensor | None, others: dict[str, Any]) -> None:
        if not causal_of(module, query, key, mask, others, _WHO):
            raise NotImplementedError("a plan is for causal attention; this model's layers see all tokens")
        if self.planner is None:
            self.layers = module.config.num_hidden_layers
            self.planner = KascadeSimilarity(self.layers, query.shape[1], key.shape[1], *self.options)
        if number != self.next:
            raise NotImplementedError(
                f"layer {number} attends where layer {self.next} is due; a plan takes models whose layers attend once, in order"
            )
        if number == 0:
            self.turns.append({})
            self.tokens = max(self.tokens, query.shape[2])
        scale = others.get("scaling")
        q, k = (one.detach().to("cpu", torch.float32).contiguous().numpy() for one in (query, key))
        self.planner.add_layer(q, k, query.shape[-1] ** -0.5 if scale is None else float(scale))
        self.next += 1

    def tell(self, layer: int, importance: float) -> None:
        self.turns[-1][layer] = importance

    def end_text(self) -> None:
        if self.next != self.layers:
            raise ValueError(f"{self.next} of {self.layers} layers attended through transformers' interface; a plan needs all")
        self.next = 0

    def similarity(self, over_tiles: str) -> np.ndarray:
        if self.planner is None:
            raise ValueError("there is no text; a plan needs one or more")
        return self.planner.result(over_tiles)

    def importance(self) -> np.ndarray:
        return np.mean([[turns[layer] for layer in range(self.layers)] for turns in self.turns], 0)
