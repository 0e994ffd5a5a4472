"""Writes tables of what language models retrieve into the documents, from what `python -m splash_attention.language retrieval --out` wrote.

    python -m splash_laboratory.documents.retrieval_tables data/reports/retrieval-chat-h200.json docs/questions/*.md

A table stands between two markers; the word of the first is the prompts' form, chat or raw, with `beyond` behind it where their lengths
are beyond the model's context:

    <!-- retrieval chat -->
    ...
    <!-- end of retrieval -->
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from splash_laboratory.documents.ladder_tables import markdown_table, write_tables

MARKER = re.compile(r"(<!-- retrieval (?P<prompts>(?:chat|raw)(?: beyond)?) -->\n).*?(<!-- end of retrieval -->)", re.DOTALL)
SCHEMA = "splash retrieval 1"


def fill(document: str, report: dict[str, Any]) -> str:
    """The document with every table of such prompts written anew."""
    prompts = report["prompts"]["form"] + (" beyond" if report["prompts"]["beyond_context"] else "")
    headings, *rows = table(report)
    return MARKER.sub(lambda at: at[0] if at["prompts"] != prompts else at[1] + markdown_table(headings, rows) + at[3], document)


def table(report: dict[str, Any]) -> list[list[str]]:
    """A row a method, a column a length: the share of exact answers with its interval, and of right choices. Lengths at which softmax
    itself does not retrieve are marked."""
    results = {(one["title"], one["length"]): one for one in report["results"]}
    lengths = sorted({length for _, length in results})
    judged = {length: all(one["softmax_retrieves"] for (_, other), one in results.items() if other == length) for length in lengths}
    headings = ["exact; chosen", *(f"{length} tokens" + ("" if judged[length] else ", softmax does not retrieve") for length in lengths)]
    methods = dict.fromkeys(title for title, _ in results)
    return [headings, *([f"`{method}`", *(shares(results[method, length]) for length in lengths)] for method in methods)]


def shares(one: dict[str, Any]) -> str:
    low, high = one["exact"]["interval"]
    return f"{100 * one['exact']['share']:.0f} % [{100 * low:.0f}, {100 * high:.0f}]; {100 * one['chosen']['share']:.0f} %"


def open_retrieval(path: str | Path) -> dict[str, Any]:
    report = json.loads(Path(path).read_text())
    if report.get("schema") != SCHEMA:
        raise ValueError(f"{path}: its schema is {report.get('schema')!r}; allowed is {SCHEMA!r}")
    return report


def main(arguments: list[str]) -> int:
    return write_tables("retrieval_tables", fill, arguments, open_retrieval)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
