"""The training that turns a softmax model into an entmax model, in parts that go on where the last one stopped."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from splash_attention.files.whole_file import whole_file
from splash_attention.language.captured_step import CapturedStep
from splash_attention.language.conversion import Converted, plan_of, prepare
from splash_attention.language.methods import Method
from splash_attention.language.plan import Plan
from splash_attention.language.support_penalty import Keys, count_keys, penalty
from splash_attention.language.training_log import Log

_COUNTED = 25  # steps from one count of keys to the next; it takes a forward pass
_COUNTED_FOR_PENALTY = 10
_KEPT = 120.0  # seconds from one state.pt to the next


def convert(
    model: Any, tokens: Tensor, plan: Plan, folder: str | Path, *, start: Method | None = None, seconds: float = math.inf,
    said: Callable[[str], None] | None = None,
) -> Converted:  # fmt: skip
    """Trains for plan.steps steps, or until `seconds` are over: called again with the same folder and a freshly loaded model it goes
    on where it stopped, with the same windows and to the same result.

    model: a causal language model of transformers as load_model gives it; with rank 0 in float32. tokens: [tokens], of the training
    part. folder: gets log.csv, state.pt while it is unfinished (three times the trained weights, which are float32), and
    adapter.safetensors or model.safetensors with method.json at the end; and TensorBoard's events where that is installed. start: in the
    place of the file that plan.start names. said: told a line every 25 steps. Raises ValueError for too few tokens, a start that does not fit, or a folder of another plan, RuntimeError
    where the loss is not finite.
    """
    folder = Path(folder)
    if len(tokens) <= plan.length:
        raise ValueError(f"tokens has {len(tokens)} entries; a window of {plan.length} needs more")
    converted = prepared(model, plan, start)
    folder.mkdir(parents=True, exist_ok=True)
    finished = folder / ("adapter.safetensors" if plan.rank else "model.safetensors")
    if finished.is_file():
        _check_same(plan, plan_of(finished), folder)
        converted.load(finished)
        return converted
    run = _Run(converted, tokens, folder / "state.pt")
    model.train()
    begin = kept = time.monotonic()
    with Log(folder, run.done, plan.steps, said) as log:
        while run.done < plan.steps:
            before = time.monotonic()
            loss = run.step()
            log.write(run.done - 1, loss, run.rate, time.monotonic() - before, converted, run.fresh_keys)
            now = time.monotonic()
            if run.done < plan.steps and (now - begin > seconds or now - kept > _KEPT):
                run.keep()
                kept = time.monotonic()
            if now - begin > seconds:
                break
    _checkpointing(model, False)
    model.eval()
    if run.done < plan.steps and said:
        said(f"stopped at step {run.done} of {plan.steps}")
    if run.done == plan.steps:
        if converted.heads:
            converted.method().write(folder / "method.json")
        converted.save(finished)
        run.path.unlink(missing_ok=True)
    return converted


def prepared(model: Any, plan: Plan, start: Method | None = None) -> Converted:
    """prepare, from where the plan starts. Raises ValueError for all weights in another type than float32, too."""
    if plan.rank == 0 and model.dtype != torch.float32:
        raise ValueError(f"all weights are trained in float32; the model is of {str(model.dtype)[6:]} (an adapter takes any)")
    if start is None and plan.start:
        start = Method.read(plan.start)
    return prepare(model, plan, start)


class _Run:
    """What a step changes, and how it is kept."""

    def __init__(self, converted: Converted, tokens: Tensor, path: Path) -> None:
        self.converted, self.tokens, self.path = converted, tokens, path
        named = [(name, p) for name, p in converted.model.named_parameters() if p.requires_grad]
        of_heads = [p for name, p in named if ".splash_heads." in name]
        groups = [{"params": [p for name, p in named if ".splash_heads." not in name], "peak": converted.plan.rate}]
        if of_heads:
            groups.append({"params": of_heads, "peak": converted.plan.head_rate})
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)
        self.done, self.stepped, self.keys, self.fresh_keys = 0, False, None, None
        self.recomputes = converted.model.device.type != "cuda"  # else once memory does not suffice for all activations
        devices = {p.device for p in converted.model.parameters()}  # a graph is of one: what another did would not be replayed
        self.captures = len(devices) == 1 and converted.model.device.type == "cuda"  # steps behind the first, while that goes well
        self.captured: CapturedStep | None = None
        _checkpointing(converted.model, self.recomputes)
        if path.is_file():
            self._resume()

    @property
    def rate(self) -> float:
        return self.optimizer.param_groups[0]["lr"]

    def step(self) -> float:
        """Mean nll of the step's windows, without the penalty."""
        plan, model = self.converted.plan, self.converted.model
        share = min(1.0, (self.done + 1) / max(1, plan.steps // 10)) * max(0.05, 0.5 * (1 + math.cos(math.pi * self.done / plan.steps)))
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * share
        if plan.schedule == "annealed":
            for heads in self.converted.heads:
                heads.anneal(self.done, plan.steps)
        windows = self._windows()
        self._count(windows[:1])
        total = self._gradients(windows)
        if not math.isfinite(total):
            raise RuntimeError(f"the loss of step {self.done} is {total}; try a smaller rate, or another seed")
        if plan.penalised:
            penalty(self.keys, self.converted.of_heads("alpha"), self.converted.of_heads("factor"), plan).backward()
        for group in self.optimizer.param_groups:  # apart: a steep penalty is not to shorten the weights' step
            nn.utils.clip_grad_norm_(group["params"], 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.done += 1
        return total

    def _gradients(self, windows: Tensor) -> float:
        """The windows' mean nll; its gradients are the parameters'."""
        if self.captures and self.stepped and not self.recomputes:
            loss = self._replayed(windows)
            if loss is not None:
                return loss
            self.captured = None
            self.optimizer.zero_grad(set_to_none=True)
        self.stepped = True
        try:
            loss = loss_of(self.converted.model, windows)
            loss.backward()
            return loss.item()
        except torch.OutOfMemoryError:
            if self.recomputes:
                raise
        self.recomputes = True
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        _checkpointing(self.converted.model, True)
        return self._gradients(windows)

    def _replayed(self, windows: Tensor) -> float | None:
        """As _gradients, by a graph. None where it must be computed without one: gradients are not finite, and the next step is captured
        anew; or the model cannot be captured, or not in this memory, and no step is any more."""
        model = self.converted.model
        try:
            if self.captured is None:
                self.captured = CapturedStep(model, loss_of, windows)
            return self.captured(windows)
        except (RuntimeError, NotImplementedError) as error:  # a device's lasting error comes again in the step without a graph
            self.captures = False
            why = str(error).partition("\n")[0] or type(error).__name__
            warnings.warn(f"from step {self.done} on steps are not replayed as CUDA graphs: {why}", stacklevel=2)
            return None

    def _windows(self) -> Tensor:
        """[batch, length]: of this step alone, wherever a run began."""
        plan = self.converted.plan
        generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + self.done)
        starts = torch.randint(0, len(self.tokens) - plan.length, (plan.batch,), generator=generator).tolist()
        return torch.stack([self.tokens[begin : begin + plan.length] for begin in starts]).to(self.converted.model.device)

    def _count(self, ids: Tensor) -> None:
        plan, self.fresh_keys = self.converted.plan, None
        due = self.done % (_COUNTED_FOR_PENALTY if plan.penalised else _COUNTED) == 0 or self.done == plan.steps - 1
        if plan.kind == "entmax" and due:
            with _precision(self.converted.model):
                self.keys = self.fresh_keys = count_keys(self.converted, ids, slopes=plan.penalised)

    def keep(self) -> None:
        held = {
            "plan": asdict(self.converted.plan), "done": self.done, "state": self.converted.state(),
            "optimizer": self.optimizer.state_dict(), "keys": self.keys and self.keys.as_dict(),
        }  # fmt: skip
        with whole_file(self.path) as temporary:
            torch.save(held, temporary)

    def _resume(self) -> None:
        held = torch.load(self.path, map_location="cpu", weights_only=True)
        _check_same(self.converted.plan, Plan(**held["plan"]), self.path.parent)
        model = self.converted.model
        model.load_state_dict(held["state"], strict=False)
        self.optimizer.load_state_dict(held["optimizer"])
        self.done = int(held["done"])
        self.keys = held["keys"] and Keys(**{name: values.to(model.device) for name, values in held["keys"].items()})


def _check_same(plan: Plan, held: Plan, folder: Path) -> None:
    if plan != held:
        differ = ", ".join(f"{name}={value!r}" for name, value in asdict(held).items() if value != getattr(plan, name))
        raise ValueError(f"{folder} holds a run of another plan ({differ}); name another folder, or go on with that plan")


def _checkpointing(model: Any, on: bool) -> None:
    """Layers are computed again in backward. transformers renames the method in version 6."""
    word = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    if on:
        getattr(model, f"{word}_checkpointing_enable")(**{f"{word}_checkpointing_kwargs": {"use_reentrant": False}})
    else:
        getattr(model, f"{word}_checkpointing_disable")()


def _precision(model: Any) -> Any:
    """bfloat16 on a GPU, and for a model of bfloat16."""
    return torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda" or model.dtype == torch.bfloat16)


def loss_of(model: Any, ids: Tensor, rows: int = 2048) -> Tensor:
    """Mean nll of ids [windows, length], with the logits computed again in backward."""
    with _precision(model):
        states = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1].flatten(0, 1)
        wanted = ids[:, 1:].flatten()

        def part(some: Tensor, wanted: Tensor) -> Tensor:
            return F.cross_entropy(model.get_output_embeddings()(some).to(exact), wanted, reduction="sum")

        exact = torch.promote_types(states.dtype, torch.float32)
        total = states.new_zeros((), dtype=exact)
        for begin in range(0, len(wanted), rows):
            rows_of = states[begin : begin + rows], wanted[begin : begin + rows]
            total = total + checkpoint(part, *rows_of, use_reentrant=False, preserve_rng_state=False)
    return total / len(wanted)
