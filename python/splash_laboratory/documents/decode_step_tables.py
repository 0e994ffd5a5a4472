"""Writes the table of a model's whole step of decoding into the documents, from what `python -m splash_attention.language decode-step --out`
wrote.

    python -m splash_laboratory.documents.decode_step_tables data/reports/decode-step-h200.json docs/questions/*.md

The table stands between two markers:

    <!-- decode step -->
    ...
    <!-- end of decode step -->
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from splash_laboratory.documents.ladder_tables import markdown_table, open_json, write_tables

MARKER = re.compile(r"(<!-- decode step -->\n).*?(<!-- end of decode step -->)", re.DOTALL)
HEADINGS = ["sequences", "splash", "SDPA without mask", "transformers", "attention alone: splash, cuDNN", "the rest of the model"]
STEPS = ("splash", "sdpa without mask", "sdpa")


def fill(document: str, report: dict[str, Any]) -> str:
    """The document with the table written anew."""
    return MARKER.sub(lambda at: at[1] + markdown_table(HEADINGS, [row(one) for one in report["measured"]]) + at[2], document)


def row(one: dict[str, Any]) -> list[str]:
    """Medians in ms, of one number of sequences."""

    def median(part: str, name: str) -> str:
        return f"{one[part][name]['median']:#.3g}"

    attention = ", ".join(median("attention", name) for name in ("splash", "cudnn"))
    return [str(one["batch"]), *(median("steps", name) for name in STEPS), attention, median("steps", "no attention")]


def open_steps(path: str | Path) -> dict[str, Any]:
    """Raises ValueError, one sentence, for a file that decode-step did not write."""
    return open_json(path, lambda report: [row(one) for one in report["measured"]], "steps of decoding, as `decode-step --out` writes them")


def main(arguments: list[str]) -> int:
    return write_tables("decode_step_tables", fill, arguments, open_steps)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
