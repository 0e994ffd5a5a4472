"""Writes tables of what language models retrieve into the documents, from what `python -m splash_attention.language retrieval --out` wrote.

    python -m splash_laboratory.documents.retrieval_tables data/reports/retrieval-chat-h200.json docs/questions/*.md

A table stands between two markers; the word of the first is the prompts' form, chat or raw, with `beyond` behind it where their lengths
are beyond the model's context, or `stretched` where the model was stretched for them, and `kascade` where Kascade is among the methods:

    <!-- retrieval chat -->
    ...
    <!-- end of retrieval -->
"""

from __future__ import annotations

import re
import sys
from typing import Any

from splash_attention.language.retrieval_record import open_retrieval
from splash_laboratory.documents.ladder_tables import markdown_table, write_tables

MARKER = re.compile(r"(<!-- retrieval (?P<prompts>(?:chat|raw)(?: beyond| stretched)?(?: kascade)?) -->\n).*?(<!-- end of retrieval -->)", re.DOTALL)


def fill(document: str, report: dict[str, Any]) -> str:
    """The document with every table of such prompts written anew."""
    kinds = {one["method"]["default"]["kind"] for one in report["results"]}
    asked = report["prompts"]
    length = "" if not asked["beyond_context"] else " stretched" if asked.get("stretched") else " beyond"
    prompts = asked["form"] + length + (" kascade" if "kascade" in kinds else "")
    headings, *rows = table(report)
    return MARKER.sub(lambda at: at[0] if at["prompts"] != prompts else at[1] + markdown_table(headings, rows) + at[3], document)


def table(report: dict[str, Any]) -> list[list[str]]:
    """A row a method, a column a length: the share of exact answers with its interval, and of right choices. Lengths at which softmax
    itself does not retrieve are marked, as the entry with the most prompts says; a method that was not asked at a length has an empty cell."""
    results = {(one["title"], one["length"]): one for one in report["results"]}
    lengths = sorted({length for _, length in results})
    of_length = {length: [one for (_, other), one in results.items() if other == length] for length in lengths}
    judged = {length: max(ones, key=lambda one: len(one["prompts"]))["softmax_retrieves"] for length, ones in of_length.items()}
    headings = ["exact; chosen", *(f"{length} tokens" + ("" if judged[length] else ", softmax does not retrieve") for length in lengths)]
    methods = dict.fromkeys(title for title, _ in results)
    return [headings, *([f"`{method}`", *(shares(results.get((method, length))) for length in lengths)] for method in methods)]


def shares(one: dict[str, Any] | None) -> str:
    if one is None:
        return ""
    low, high = one["exact"]["interval"]
    return f"{100 * one['exact']['share']:.0f} % [{100 * low:.0f}, {100 * high:.0f}]; {100 * one['chosen']['share']:.0f} %"


def main(arguments: list[str]) -> int:
    return write_tables("retrieval_tables", fill, arguments, open_retrieval)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
