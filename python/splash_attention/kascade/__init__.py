"""Kascade (arXiv 2512.16391): a few layers of a model, the anchors, find the keys that matter, and the layers behind reuse them.

    from splash_attention import kascade
    planned = kascade.plan(model, [tokenizer(text, return_tensors="pt")], anchors=5, path="plan.toml")
    print(planned.plan.anchors, planned.plan.heads[3], planned.similarity.shape)
    kascade.apply(model, planned.plan)          # attn_implementation="splash-kascade", for prefill and generate
    plan = kascade.read_plan("plan.toml")

A plan is a file of TOML. `splash kascade plan` makes it from captures. What it costs a model: `python -m splash_attention.language
perplexity … --methods kascade:plan=plan.toml`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splash_attention._core import KascadePlan
from splash_attention.extras import needed_by
from splash_attention.files.whole_file import whole_file

if TYPE_CHECKING:
    from splash_attention.kascade.model import apply
    from splash_attention.kascade.planning import Planned, plan

__all__ = ["KascadePlan", "Planned", "apply", "plan", "read_plan", "write_plan"]
_HOMES = {"Planned": "planning", "apply": "model", "plan": "planning"}  # they need PyTorch and transformers


def read_plan(path: str | Path) -> KascadePlan:
    """The plan of a file. Raises ValueError, one sentence with file and line, for what is no plan or cannot be read."""
    return KascadePlan.read(str(path))


def write_plan(plan: KascadePlan, path: str | Path) -> None:
    """Writes the plan as TOML; the file is whole or not there. Raises OSError where it cannot."""
    with whole_file(Path(path)) as temporary:
        temporary.write_text(plan.to_toml(), encoding="utf-8")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needed_by(f"{__name__}.{name}", "hf"):
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
