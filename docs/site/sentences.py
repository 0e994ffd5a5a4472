"""The mean number of words per sentence of each page: python docs/site/sentences.py [PAGE...]. The aim is 12 to 20."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOT_PROSE = re.compile(r"^(```|:::|~~~).*?^\1$|<!--.*?-->|^\s*\|.*?$|^#.*?$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
BLOCK = re.compile(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ")
END = re.compile(r"(?<=[.!?])[*`)\"]*\s+(?=[*`\"(]*[A-ZΑ-Ω0-9])")


def sentences(page: str) -> list[list[str]]:
    """The words of each sentence of a page of Markdown, without tables, headings and code."""
    text = LINK.sub(r"\1", NOT_PROSE.sub("\n\n", page))
    found = [sentence.split() for block in BLOCK.split(text) for sentence in END.split(" ".join(block.split()))]
    return [words for words in found if len(words) > 1]


def pages() -> list[Path]:
    """Those that people read for themselves: no records of decisions, no change log."""
    return [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if not {"decisions", "log"} & set(path.parts))]


def main(arguments: list[str]) -> int:
    told = []
    for path in map(Path, arguments) if arguments else pages():
        counts = [len(words) for words in sentences(path.read_text(encoding="utf-8"))]
        if counts:
            told.append((sum(counts) / len(counts), len(counts), max(counts), path.resolve().relative_to(ROOT)))
    print(f"{'mean':>5} {'longest':>8} {'sentences':>10}  page")
    for mean, count, longest, path in sorted(told, key=lambda one: -one[0]):
        print(f"{mean:5.1f} {longest:8d} {count:10d}  {path}")
    if told:
        print(f"{sum(mean * count for mean, count, *_ in told) / sum(count for _, count, *_ in told):5.1f}  words per sentence, all pages")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
