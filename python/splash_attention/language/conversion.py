"""A model made ready to become an entmax model by a little training: alpha and the factor of the scale of each head, and an adapter of
a few MB or all weights. What is saved of it, and how it is loaded again. The training itself: training.py."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from splash_attention.files.whole_file import whole_file
from splash_attention.hugging_face.learning import attention_layers, query_heads
from splash_attention.language.attention import apply
from splash_attention.language.methods import Attention, Method
from splash_attention.learned_heads import LearnedHeads
from splash_attention.language.plan import ALPHA_HIGH, ALPHA_LOW, Plan

SCHEMA = "splash conversion 1"
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
_SOFT = (1.25, 0.75)  # alpha and factor with which annealing begins


class ScheduledHeads(nn.Module):
    """alpha and factor of a layer's query heads, [heads] each, float32, which training does not learn. They are saved under
    LearnedHeads' names."""

    def __init__(self, heads: int, alpha: Any, factor: Any) -> None:
        super().__init__()
        ends = torch.stack([torch.as_tensor(values, dtype=torch.float32).expand(heads) for values in (alpha, factor)])
        self.register_buffer("place", ends[0].clone())
        self.register_buffer("size", ends[1].clone())
        self.register_buffer("ends", ends, persistent=False)

    @property
    def alpha(self) -> Tensor:
        return self.place

    @property
    def factor(self) -> Tensor:
        return self.size

    def anneal(self, step: int, steps: int) -> None:
        """Sets them for a step, from 0, of `steps`."""
        share = min(1.0, (step + 1) / max(1, steps // 2))
        for values, soft, end in zip((self.place, self.size), _SOFT, self.ends):
            values.copy_(soft + share * (end - soft))


class LowRank(nn.Module):
    """A projection plus its adapter: base(x) + up(down(x)); up begins at zero. Its own weights are float32."""

    def __init__(self, base: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.base = base
        down = torch.randn(rank, base.in_features, generator=generator) / math.sqrt(base.in_features)
        self.down = nn.Parameter(down.to(base.weight.device))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))

    @property
    def weight(self) -> Tensor:
        """The whole one, in base's dtype."""
        return self.base.weight + (self.up @ self.down).to(self.base.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.down.to(x.dtype)), self.up.to(x.dtype))


class Converted:
    """A model that was made ready by prepare: what is trained of it, and how it is saved."""

    def __init__(self, model: Any, plan: Plan) -> None:
        self.model, self.plan = model, plan
        self.heads = [module.splash_heads for module in attention_layers(model).values()] if plan.kind == "entmax" else []

    def of_heads(self, name: str) -> Tensor:
        """alpha or factor, [layers, heads]."""
        return torch.stack([getattr(heads, name) for heads in self.heads])

    def state(self) -> dict[str, Tensor]:
        """What is saved: the adapter with alpha and factor, or all weights."""
        kept = self.model.state_dict()
        if self.plan.rank:
            kept = {name: values for name, values in kept.items() if ".splash_heads." in name or name.endswith((".down", ".up"))}
        elif self.model.config.tie_word_embeddings:
            kept = {name: values for name, values in kept.items() if name != "lm_head.weight"}
        return {name: values.detach().cpu().contiguous() for name, values in kept.items()}

    def save(self, path: str | Path, dtype: torch.dtype | None = None) -> None:
        """One safetensors file, which load_converted reads to the bit.

        dtype: of the stored weights, alpha and factor excepted; None keeps theirs. A model of bfloat16 computes the same with an
        adapter that was stored in bfloat16, for it rounds the adapter so.
        """
        kept = self.state()
        if dtype is not None:
            kept = {name: values if ".splash_heads." in name else values.to(dtype) for name, values in kept.items()}
        with whole_file(Path(path)) as temporary:
            about = {"schema": SCHEMA, "plan": json.dumps(asdict(self.plan))}
            temporary.write_bytes(_with_sorted_header(save(kept, about)))  # save_file's file would be its owner's alone to read

    def load(self, path: str | Path) -> None:
        with safe_open(path, "pt") as file:
            held = {name: file.get_tensor(name) for name in file.keys()}
        wanted = self.state()
        if {name: v.shape for name, v in held.items()} != {name: v.shape for name, v in wanted.items()}:
            raise ValueError(f"{path} is of another model: its tensors' names or shapes differ")
        self.model.load_state_dict(held, strict=False)

    def method(self) -> Method:
        """alpha and factor as a file of their own; they fit the trained weights alone."""
        k_keep = self.plan.k_keep or None
        layers = {
            layer: Attention("entmax", alpha=tuple(heads.alpha.tolist()), factor=tuple(heads.factor.tolist()), k_keep=k_keep)
            for layer, heads in enumerate(self.heads)
        }
        return Method(Attention("entmax" if layers else "softmax"), layers, "converted", {"how": "trained", "plan": asdict(self.plan)})


def prepare(model: Any, plan: Plan, start: Method | None = None) -> Converted:
    """Gives the model's heads their alpha and factor, and its projections their adapter; the model is changed in place.

    start: alpha and factor of each head, in the place of the plan's. Raises ValueError where the model was prepared before, its
    attention has no q_proj, k_proj, v_proj and o_proj for an adapter, or start does not fit.
    """
    layers = attention_layers(model)
    if any(hasattr(module, "splash_heads") or isinstance(getattr(module, "q_proj", None), LowRank) for module in layers.values()):
        raise ValueError("the model was prepared before; load it anew")
    if start is not None:
        _check_start(start, layers)
    generator = torch.Generator().manual_seed(plan.seed)
    model.requires_grad_(plan.rank == 0)
    for layer, module in layers.items():
        for name in _PROJECTIONS if plan.rank else ():
            base = getattr(module, name, None)
            if not isinstance(base, nn.Linear):
                raise ValueError(f"layer {layer} has no linear {name}, which an adapter needs; rank=0 trains all weights instead")
            setattr(module, name, LowRank(base, plan.rank, generator))
        if plan.kind == "entmax":
            module.splash_heads = _heads_of(query_heads(module), plan, start and start.of(layer)).to(model.device)
            module.splash_straight_through = plan.gradients == "straight-through"
    apply(model, Method(Attention(plan.kind, k_keep=plan.k_keep or None)))
    return Converted(model, plan)


def _heads_of(heads: int, plan: Plan, start: Attention | None) -> nn.Module:
    at = start or plan
    if plan.schedule == "learned":
        return LearnedHeads(heads, at.alpha, at.factor, ALPHA_LOW, ALPHA_HIGH)
    return ScheduledHeads(heads, at.alpha, at.factor)


def _check_start(start: Method, layers: dict[int, Any]) -> None:
    for layer, module in layers.items():
        how = start.of(layer)
        how.check_heads(query_heads(module), layer)
        if how.kind != "entmax" or how.k_keep is not None:
            raise ValueError(f"layer {layer} of the start is {how.as_dict()}; it must be entmax without k_keep, which the plan has")
        alphas = how.alpha if isinstance(how.alpha, tuple) else (how.alpha,)
        if not all(ALPHA_LOW <= alpha <= ALPHA_HIGH for alpha in alphas):
            raise ValueError(f"alpha of layer {layer} of the start is {how.alpha}; it must be from {ALPHA_LOW} to {ALPHA_HIGH}")


def plan_of(path: str | Path) -> Plan:
    """Of what Converted.save wrote. Raises ValueError for another file."""
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
    except Exception as error:  # safetensors' own type, of what is no such file
        if isinstance(error, OSError):
            raise
        raise ValueError(f"{path} is no safetensors file ({error})") from error
    if about.get("schema") != SCHEMA:
        raise ValueError(f"{path} is no conversion of splash_attention.language")
    return Plan(**json.loads(about["plan"]))


def load_converted(model: Any, path: str | Path) -> Converted:
    """The model, as loaded from its original file, with what Converted.save wrote. Raises ValueError for another file or model."""
    converted = prepare(model, plan_of(path))
    converted.load(path)
    model.eval()
    return converted


def _with_sorted_header(file: bytes) -> bytes:
    """A safetensors file whose bytes follow from what it holds: the library writes metadata in another order each time."""
    end = 8 + int.from_bytes(file[:8], "little")
    header = json.dumps(json.loads(file[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # values are aligned
    return len(header).to_bytes(8, "little") + header + file[end:]
