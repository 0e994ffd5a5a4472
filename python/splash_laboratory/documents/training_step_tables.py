"""Writes the table of a model's training step into the documents, from what `python -m splash_attention.language training-step --out` wrote.

    python -m splash_laboratory.documents.training_step_tables data/reports/training-step-h200.json docs/questions/*.md

The table stands between two markers:

    <!-- training step -->
    ...
    <!-- end of training step -->
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from splash_laboratory.documents.ladder_tables import markdown_table, open_json, write_tables

MARKER = re.compile(r"(<!-- training step -->\n).*?(<!-- end of training step -->)", re.DOTALL)
WORK = ("attention", "attention's gradients", "matrix products", "other kernels")
HEADINGS = ["windows", "what trains", "step, ms", "softmax's step over it", *WORK, "no kernel", "launched one by one", "loss"]


def fill(document: str, report: dict[str, Any]) -> str:
    """The document with the table written anew."""
    return MARKER.sub(lambda at: at[1] + markdown_table(HEADINGS, rows(report)) + at[2], document)


def rows(report: dict[str, Any]) -> list[list[str]]:
    """Medians in ms, an arm a row."""
    size = lambda one: (one["batch"], one["length"])
    softmax = {size(one): one["step"]["median"] for one in report["measured"] if report["arms"][one["arm"]]["plan"]["kind"] == "softmax"}
    return [_row(one, softmax.get(size(one))) for one in report["measured"]]


def _row(one: dict[str, Any], softmax: float | None) -> list[str]:
    step, work = one["step"]["median"], one["work"]
    windows = f"{one['batch']} × {one['length']}" + (f", {one['times_the_context']:g} times its context" if one["times_the_context"] > 1 else "")
    parts = [f"{work[name]:.1f}" for name in WORK]
    idle = max(0.0, step - sum(work.values()))
    return [
        windows, f"`{one['arm']}`", f"{step:.1f}", f"{softmax / step:.2f}" if softmax else "", *parts, f"{idle:.1f}",
        f"{one['launched_one_by_one']['median']:.0f}", f"{one['loss']:.3f}",
    ]  # fmt: skip


def open_steps(path: str | Path) -> dict[str, Any]:
    """Raises ValueError, one sentence, for a file that training-step did not write on a GPU."""
    return open_json(path, rows, "training steps, as `training-step --out` writes them on a GPU")


def main(arguments: list[str]) -> int:
    return write_tables("training_step_tables", fill, arguments, open_steps)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
