"""A softmax model becomes an entmax model by a little training: all weights, or an adapter of a few MB.

alpha and the factor of the scale belong to each head. Their schedule is "fixed" (as given), "annealed" (from near softmax to what is
given, over the first half of the steps) or "learned" (parameters of each head, alpha kept between 1.25 and 2, factor above 0).
"""

from __future__ import annotations

import csv
import json
import math
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from splash_attention.language.attention import apply, attention_layers, query_heads
from splash_attention.language.methods import Attention, Method
from splash_attention.whole_file import whole_file

SCHEMA = "splash conversion 1"
ALPHA_LOW, ALPHA_HIGH = 1.25, 2.0
SCHEDULES = ("fixed", "annealed", "learned")
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
_SOFT = (1.25, 0.75)  # alpha and factor with which annealing begins


@dataclass(frozen=True)
class Plan:
    """What convert does. Raises ValueError for what does not fit.

    kind: "entmax", or "softmax": the same training without a change of attention, to compare with.
    alpha, factor: of every head: where it ends, or where learning begins.
    rank: of the adapter on the attention's projections; 0 trains all weights.
    steps, batch, length: windows of `length` tokens, `batch` a step. rate: of weights; head_rate: of alpha and factor.
    """

    kind: str = "entmax"
    schedule: str = "learned"
    alpha: float = 1.5
    factor: float = 0.5
    rank: int = 16
    steps: int = 300
    batch: int = 2
    length: int = 8192
    rate: float = 1e-3
    head_rate: float = 2e-2
    seed: int = 1

    def __post_init__(self) -> None:
        if self.kind not in ("entmax", "softmax"):
            raise ValueError(f'kind is {self.kind!r}; allowed are "entmax" and "softmax"')
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule is {self.schedule!r}; allowed are {', '.join(SCHEDULES)}")
        if not ALPHA_LOW <= self.alpha <= ALPHA_HIGH or (self.schedule == "learned" and self.alpha in (ALPHA_LOW, ALPHA_HIGH)):
            raise ValueError(f"alpha is {self.alpha}; it must be from {ALPHA_LOW} to {ALPHA_HIGH}, and between them where it is learned")
        for name, least in (("rank", 0), ("steps", 1), ("batch", 1), ("length", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        for name in ("factor", "rate", "head_rate"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be finite and above 0")

    @classmethod
    def parse(cls, text: str) -> Plan:
        """NAME=VALUE,… of these fields; what is not named has its default. Raises ValueError."""
        kinds = {part.name: type(part.default) for part in fields(cls)}
        values: dict[str, Any] = {}
        for part in filter(None, (one.strip() for one in text.split(","))):
            name, equals, value = (word.strip() for word in part.partition("="))
            if not equals or name not in kinds:
                raise ValueError(f"{part!r} of {text!r} is no setting; allowed are NAME=VALUE of {', '.join(kinds)}")
            if name in values:
                raise ValueError(f"{name} stands twice in {text!r}; name it once")
            try:
                values[name] = kinds[name](value)
            except ValueError:
                raise ValueError(f"{name} of {text!r} is {value!r}; it must be {'an integer' if kinds[name] is int else 'a number'}") from None
        return cls(**values)


class Heads(nn.Module):
    """alpha and factor of a layer's query heads, [heads] each, float32."""

    def __init__(self, heads: int, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        share = (plan.alpha - ALPHA_LOW) / (ALPHA_HIGH - ALPHA_LOW)
        learned = plan.schedule == "learned"
        place = torch.full((heads,), math.log(share / (1 - share)) if learned else plan.alpha)
        size = torch.full((heads,), math.log(plan.factor) if learned else plan.factor)
        if learned:
            self.place, self.size = nn.Parameter(place), nn.Parameter(size)
        else:
            self.register_buffer("place", place)
            self.register_buffer("size", size)

    @property
    def alpha(self) -> Tensor:
        return ALPHA_LOW + (ALPHA_HIGH - ALPHA_LOW) * torch.sigmoid(self.place) if self.plan.schedule == "learned" else self.place

    @property
    def factor(self) -> Tensor:
        return self.size.exp() if self.plan.schedule == "learned" else self.size

    def at(self, step: int) -> None:
        """Sets annealed ones for a step, from 0."""
        if self.plan.schedule == "annealed":
            share = min(1.0, (step + 1) / max(1, self.plan.steps // 2))
            self.place.fill_(_SOFT[0] + share * (self.plan.alpha - _SOFT[0]))
            self.size.fill_(_SOFT[1] + share * (self.plan.factor - _SOFT[1]))


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

    def state(self) -> dict[str, Tensor]:
        """What is saved: the adapter with alpha and factor, or all weights."""
        kept = self.model.state_dict()
        if self.plan.rank:
            kept = {name: values for name, values in kept.items() if ".splash_heads." in name or name.endswith((".down", ".up"))}
        elif self.model.config.tie_word_embeddings:
            kept = {name: values for name, values in kept.items() if name != "lm_head.weight"}
        return {name: values.detach().cpu().contiguous() for name, values in kept.items()}

    def save(self, path: str | Path) -> None:
        """One safetensors file, which load_converted reads to the bit."""
        with whole_file(Path(path)) as temporary:
            save_file(self.state(), temporary, {"schema": SCHEMA, "plan": json.dumps(asdict(self.plan))})

    def load(self, path: str | Path) -> None:
        with safe_open(path, "pt") as file:
            held = {name: file.get_tensor(name) for name in file.keys()}
        wanted = self.state()
        if {name: v.shape for name, v in held.items()} != {name: v.shape for name, v in wanted.items()}:
            raise ValueError(f"{path} is of another model: its tensors' names or shapes differ")
        self.model.load_state_dict(held, strict=False)

    def method(self) -> Method:
        """alpha and factor as a file of their own; they fit the trained weights alone."""
        layers = {
            layer: Attention("entmax", alpha=tuple(heads.alpha.tolist()), factor=tuple(heads.factor.tolist()))
            for layer, heads in enumerate(self.heads)
        }
        return Method(Attention("entmax" if layers else "softmax"), layers, "converted", {"how": "trained", "plan": asdict(self.plan)})


def prepare(model: Any, plan: Plan) -> Converted:
    """Gives the model's heads their alpha and factor, and its projections their adapter; the model is changed in place.

    Raises ValueError where it was prepared before, or its attention has no q_proj, k_proj, v_proj and o_proj for an adapter.
    """
    layers = attention_layers(model)
    if any(hasattr(module, "splash_heads") or isinstance(getattr(module, "q_proj", None), LowRank) for module in layers.values()):
        raise ValueError("the model was prepared before; load it anew")
    generator = torch.Generator().manual_seed(plan.seed)
    model.requires_grad_(plan.rank == 0)
    for layer, module in layers.items():
        for name in _PROJECTIONS if plan.rank else ():
            base = getattr(module, name, None)
            if not isinstance(base, nn.Linear):
                raise ValueError(f"layer {layer} has no linear {name}, which an adapter needs; rank=0 trains all weights instead")
            setattr(module, name, LowRank(base, plan.rank, generator))
        if plan.kind == "entmax":
            module.splash_heads = Heads(query_heads(module), plan).to(model.device)
    apply(model, Method(Attention(plan.kind)))
    return Converted(model, plan)


def load_converted(model: Any, path: str | Path) -> Converted:
    """The model, as loaded from its original file, with what Converted.save wrote. Raises ValueError for another file or model."""
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
    except Exception as error:  # safetensors' own type, of what is no such file
        if isinstance(error, OSError):
            raise
        raise ValueError(f"{path} is no safetensors file ({error})") from error
    if about.get("schema") != SCHEMA:
        raise ValueError(f"{path} is no conversion of splash_attention.language")
    converted = prepare(model, Plan(**json.loads(about["plan"])))
    converted.load(path)
    model.eval()
    return converted


def convert(model: Any, tokens: Tensor, plan: Plan, folder: str | Path, *, seconds: float = math.inf, every: int = 25) -> Converted:
    """Trains for plan.steps steps, or until `seconds` are over: called again with the same folder and a freshly loaded model it goes
    on where it stopped, with the same windows and to the same result.

    model: a causal language model of transformers as load_model gives it; with rank 0 in float32. tokens: [tokens], of the training
    part. folder: gets log.csv (step, loss, rate, seconds of the step, alpha, factor), state.pt while it is unfinished, and adapter.safetensors or
    model.safetensors at the end; and TensorBoard's events where that is installed. Raises ValueError for too few tokens, or a folder
    of another plan.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if len(tokens) <= plan.length:
        raise ValueError(f"tokens has {len(tokens)} entries; a window of {plan.length} needs more")
    if plan.rank == 0 and model.dtype != torch.float32:
        raise ValueError(f"all weights are trained in float32; the model is of {str(model.dtype)[6:]} (an adapter takes any)")
    converted = prepare(model, plan)
    optimizer = _optimizer(converted)
    done = _resume(converted, optimizer, folder / "state.pt")
    begin = time.monotonic()
    model.train()
    _checkpointing(model, True)
    with _Log(folder, done) as log:
        for step in range(done, plan.steps):
            start = time.monotonic()
            loss = _step(converted, optimizer, tokens, step)
            log.write(step, loss, optimizer.param_groups[0]["lr"], time.monotonic() - start, converted)
            done = step + 1
            if done % every == 0 or time.monotonic() - begin > seconds:
                _keep(converted, optimizer, done, folder / "state.pt")
            if time.monotonic() - begin > seconds:
                break
    _checkpointing(model, False)
    model.eval()
    if done == plan.steps:
        converted.save(folder / ("adapter.safetensors" if plan.rank else "model.safetensors"))
        if converted.heads:
            converted.method().write(folder / "method.json")
    return converted


def _checkpointing(model: Any, on: bool) -> None:
    """Layers are computed again in backward. transformers renames the method in version 6."""
    word = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    if on:
        getattr(model, f"{word}_checkpointing_enable")(**{f"{word}_checkpointing_kwargs": {"use_reentrant": False}})
    else:
        getattr(model, f"{word}_checkpointing_disable")()


def _optimizer(converted: Converted) -> torch.optim.Optimizer:
    named = [(name, p) for name, p in converted.model.named_parameters() if p.requires_grad]
    of_heads = [p for name, p in named if ".splash_heads." in name]
    groups = [{"params": [p for name, p in named if ".splash_heads." not in name], "peak": converted.plan.rate}]
    if of_heads:
        groups.append({"params": of_heads, "peak": converted.plan.head_rate})
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)


def _step(converted: Converted, optimizer: torch.optim.Optimizer, tokens: Tensor, step: int) -> float:
    plan, model = converted.plan, converted.model
    share = min(1.0, (step + 1) / max(1, plan.steps // 10)) * max(0.05, 0.5 * (1 + math.cos(math.pi * step / plan.steps)))
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * share
    for heads in converted.heads:
        heads.at(step)
    generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + step)  # so that a step's windows are its own
    starts = torch.randint(0, len(tokens) - plan.length, (plan.batch,), generator=generator).tolist()
    total = 0.0
    for begin in starts:
        loss = loss_of(model, tokens[begin : begin + plan.length][None].to(model.device)) / plan.batch
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total


def loss_of(model: Any, ids: Tensor, rows: int = 2048) -> Tensor:
    """Mean nll of ids [1, length], with the logits computed again in backward; on a GPU in bfloat16."""
    with torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda"):
        states = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]

        def part(some: Tensor, wanted: Tensor) -> Tensor:
            return F.cross_entropy(model.get_output_embeddings()(some).to(exact), wanted, reduction="sum")

        exact = torch.promote_types(states.dtype, torch.float32)
        total = states.new_zeros((), dtype=exact)
        for begin in range(0, ids.shape[1] - 1, rows):
            end = min(begin + rows, ids.shape[1] - 1)
            total = total + checkpoint(part, states[begin:end], ids[0, begin + 1 : end + 1], use_reentrant=False)
    return total / (ids.shape[1] - 1)


def _keep(converted: Converted, optimizer: torch.optim.Optimizer, done: int, path: Path) -> None:
    held = {"plan": asdict(converted.plan), "done": done, "state": converted.state(), "optimizer": optimizer.state_dict()}
    with whole_file(path) as temporary:
        torch.save(held, temporary)


def _resume(converted: Converted, optimizer: torch.optim.Optimizer, path: Path) -> int:
    """Steps done."""
    if not path.is_file():
        return 0
    held = torch.load(path, map_location="cpu", weights_only=True)
    if held["plan"] != asdict(converted.plan):
        raise ValueError(f"{path.parent} holds a run of another plan; name another folder, or go on with {held['plan']}")
    converted.model.load_state_dict(held["state"], strict=False)
    optimizer.load_state_dict(held["optimizer"])
    return int(held["done"])


class _Log:
    """log.csv, from the step that a run begins with, and TensorBoard's events."""

    _COLUMNS = ("step", "loss", "rate", "seconds", "alpha", "factor")

    def __init__(self, folder: Path, done: int) -> None:
        path = folder / "log.csv"
        before = list(csv.reader(path.open())) if path.is_file() and done else [list(self._COLUMNS)]
        self.file = path.open("w", newline="")
        self.rows = csv.writer(self.file)
        self.rows.writerows(before[: done + 1])
        self.board = _board(folder)

    def write(self, step: int, loss: float, rate: float, seconds: float, converted: Converted) -> None:
        means = [math.nan, math.nan]
        if converted.heads:
            means = [torch.cat([getattr(h, name) for h in converted.heads]).mean().item() for name in ("alpha", "factor")]
        self.rows.writerow([step, f"{loss:.6f}", f"{rate:.3e}", f"{seconds:.3f}", *(f"{mean:.4f}" for mean in means)])
        self.file.flush()
        if self.board is not None:
            for name, value in zip(("loss", "alpha", "factor"), (loss, *means)):
                self.board.add_scalar(name, value, step)

    def __enter__(self) -> _Log:
        return self

    def __exit__(self, *_: Any) -> None:
        self.file.close()
        if self.board is not None:
            self.board.close()


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))
