"""How long a training step takes a language model, and where a GPU's time goes: exact entmax beside PyTorch's fused softmax.

A step is the loss of some windows and its gradients, as `convert` computes them (training.py), without the optimizer. On a GPU it is
timed as `convert` runs it, replayed as a CUDA graph, and also launched kernel by kernel. One more replay is profiled: a moment in which
several kernels run counts for the one that began first.
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from splash_attention.language.captured_step import CapturedStep
from splash_attention.language.conversion import plan_of
from splash_attention.language.intervals import spread
from splash_attention.language.model_file import sha256_of
from splash_attention.language.models import stretched
from splash_attention.language.named_values import read_named_values
from splash_attention.language.plan import Plan
from splash_attention.language.training import loss_of, prepared

_WARM = 2  # steps before the first that is timed: kernels learn how much memory supports take
# What a kernel does, by its name: the first that is found in it.
_WORK = (
    ("attention's gradients", re.compile(r"splash::.*backward|sdpa.*bprop|fmha.*backward|flash.*(bwd|backward)")),
    ("attention", re.compile(r"splash::(?!.*reorder_kernel)|sdpa|fmha|flash_fwd")),
    ("matrix products", re.compile(r"nvjet|gemm|cutlass|xmma")),
)
_OTHER = "other kernels"
WORK = (*(name for name, _ in _WORK), _OTHER)


@dataclass(frozen=True)
class Arm:
    """What trains: a plan, or what `convert` made of one."""

    name: str
    plan: Plan
    adapter: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Arm:
        """NAME=VALUE,… of a plan; or FILE.safetensors of `convert`, and behind it perhaps ,k_keep=K in the place of its plan's. Raises
        ValueError."""
        file, _, changes = text.partition(",")
        if not file.endswith(".safetensors"):
            return cls(text, Plan.parse(text))
        changed = read_named_values(changes, {"k_keep": int}) if changes else {}
        return cls(",".join(filter(None, (Path(file).name, changes))), replace(plan_of(file), **changed), Path(file))

    def as_dict(self) -> dict[str, Any]:
        return {"plan": asdict(self.plan), "adapter_sha256": sha256_of(self.adapter) if self.adapter else None}


def measure(model: Any, arm: Arm, ids: Tensor, *, steps: int = 9, said: Callable[[str], None] = print) -> dict[str, Any]:
    """Of one arm, in a copy of the model. ids: [batch, length], on the model's device. Times in ms; memory in GiB, and None on a CPU."""
    held = copy.deepcopy(model)
    with stretched(held, ids.shape[1]) as beyond:
        told = {"arm": arm.name, "batch": ids.shape[0], "length": ids.shape[1], "times_the_context": beyond, "unit": "ms"}
        told |= _measured(held, arm, ids, steps)
    del held
    if ids.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(ids.device)
    said(f"{ids.shape[0]} x {ids.shape[1]}, {arm.name}: {told['step']['median']:.1f} ms, loss {told['loss']:.4f}")
    return told


def _measured(model: Any, arm: Arm, ids: Tensor, steps: int) -> dict[str, Any]:
    converted = prepared(model, arm.plan)
    if arm.adapter:
        converted.load(arm.adapter)
    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def step() -> float:
        for parameter in parameters:
            parameter.grad = None
        loss = loss_of(model, ids)
        loss.backward()
        return loss.item()

    for _ in range(_WARM):
        loss = step()
    on_gpu = ids.device.type == "cuda"
    launched = _times(step, steps, on_gpu)
    if not on_gpu:
        return {"loss": loss, "step": launched, "launched_one_by_one": None, "work": None, "memory": None}
    captured = CapturedStep(model, loss_of, ids)
    replayed = _times(lambda: captured(ids), steps, on_gpu)
    memory = torch.cuda.max_memory_reserved(ids.device) / 2**30
    work = _work_of(lambda: captured(ids))
    return {"loss": loss, "step": replayed, "launched_one_by_one": launched, "work": work, "memory": memory}


def table(measured: list[dict[str, Any]]) -> str:
    """Markdown."""
    headings = ["windows", "what trains", "step, ms", "launched one by one", *WORK, "no kernel", "loss"]
    return "\n".join("| " + " | ".join(row) + " |" for row in (headings, ["---"] * len(headings), *map(cells, measured)))


def cells(one: dict[str, Any]) -> list[str]:
    """Of one arm; the parts of the step in ms."""
    step, work, launched = one["step"]["median"], one["work"], one["launched_one_by_one"]
    parts = [f"{work[name]:.1f}" for name in WORK] if work else [""] * len(WORK)
    idle = f"{max(0.0, step - sum(work.values())):.1f}" if work else ""
    alone = f"{launched['median']:.0f}" if launched else ""
    return [f"{one['batch']} × {one['length']}", one["arm"], f"{step:.1f}", alone, *parts, idle, f"{one['loss']:.3f}"]


def _times(step: Callable[[], Any], steps: int, on_gpu: bool) -> dict[str, float]:
    """Of whole steps, each waited for."""
    times = []
    for _ in range(steps):
        if on_gpu:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        if on_gpu:
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return spread(times)


def _work_of(step: Callable[[], Any]) -> dict[str, float]:
    """ms of a step's kernels, by what they do."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        step()
        torch.cuda.synchronize()
    ran = [e for e in profiled.events() if e.device_type == DeviceType.CUDA]
    return shared_out((e.time_range.start, e.time_range.end, e.name) for e in ran)


def shared_out(kernels: Iterable[tuple[float, float, str]]) -> dict[str, float]:
    """kernels: (begin, end, name), in µs. ms of each kind of work; a moment counts once, for the kernel that began first."""
    work, covered = dict.fromkeys(WORK, 0.0), -float("inf")
    for begin, end, name in sorted(kernels):
        kind = next((kind for kind, words in _WORK if words.search(name)), _OTHER)
        work[kind] += max(0.0, end - max(begin, covered)) / 1e3
        covered = max(covered, end)
    return work
