"""Figures in the prose of documents, from recorded reports.

    python -m splash_laboratory.documents.figures docs/figures README.md docs/questions/*.md

A passage stands between two markers:

    <!-- figures cpu-speed -->
    Forward takes 27.7 ms, 1.43 times as fast as dense softmax.
    <!-- end of figures -->

The file of figures tells, in the order in which the passage's numerals stand, what each is: a number, computed from
the reports, or the reason why it is none of theirs. A number is written with as many decimals as its numeral has.
What stands in code, in the targets of links and in names (fp32, AdaSplash-2) is no numeral.
"""

from __future__ import annotations

import functools
import re
import runpy
import sys
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import numpy as np

from splash_laboratory.documents.rewrite import rewrite
from splash_laboratory.reports import Report, open_report

MARKER = re.compile(r"(<!-- figures (?P<name>[\w-]+) -->\n)(?P<text>.*?)(<!-- end of figures -->)", re.DOTALL)
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
NO_NUMERALS = re.compile(r"`[^`\n]*`|\]\([^)]*\)|!\[[^\]]*\]|<!--.*?-->|https?://\S+", re.DOTALL)
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# 27.7, 1,234, 9·10⁻⁴, 9e-4; not the 2 of AdaSplash-2 nor the 32 of fp32.
NUMERAL = re.compile(r"(?<![\w.+])(?<![A-Za-z]-)\d+(?:,\d{3})*(?:\.\d+)?(?:·10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+|e-?\d+)?")


class FigureError(Exception):
    """A passage whose figures are not those that are told of it. The message is one sentence."""


def fill(document: str, figures: dict[str, list[float | str]]) -> str:
    """The document with every numeral of its passages written anew."""

    def passage(match: re.Match[str]) -> str:
        name, text = match["name"], match["text"]
        if name not in figures:
            raise FigureError(f"nothing is told of the figures of {name}")
        places = list(numerals(text))
        if len(places) != len(figures[name]):
            found = ", ".join(place.group() for place in places)
            raise FigureError(f"{name} has {len(places)} numerals and {len(figures[name])} figures: {found}")
        for place, figure in reversed(list(zip(places, figures[name], strict=True))):
            if not isinstance(figure, str):
                text = text[: place.start()] + written(figure, place.group()) + text[place.end() :]
        return match[1] + text + match[4]

    return MARKER.sub(passage, document)


def numerals(text: str):
    """The numerals of a text, in order."""
    return NUMERAL.finditer(_blank(NO_NUMERALS, _blank(FENCED, text)))


def loose(document: str) -> list[str]:
    """The numerals outside of the passages."""
    return [place.group() for place in numerals(_blank(MARKER, document))]


def written(value: float, numeral: str) -> str:
    """The value with the decimals of a numeral: 27.68 as 27.7 where 27.5 stood."""
    mantissa = re.match(r"[\d,.]+", numeral).group()
    decimals = len(mantissa.partition(".")[2])
    if mantissa != numeral:
        digits, power = f"{value:.{decimals}e}".split("e")
        return f"{digits}e{int(power)}" if "e" in numeral else f"{digits}·10{str(int(power)).translate(SUPERSCRIPT)}"
    rounded = Decimal(value).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)
    return f"{rounded:,}" if "," in mantissa else f"{rounded:f}"


class Records:
    """The recorded reports of a folder, as figures are read from them."""

    def __init__(self, folder: Path):
        self.folder = folder

    @functools.cache
    def report(self, name: str) -> Report:
        return open_report(self.folder / f"{name}.h5")

    def values(self, name: str, experiment: str, column: str, **where: object) -> np.ndarray:
        """A column of an experiment's cases with these parameters ("pass_" is the column "pass")."""
        cases = self.report(name).experiment(experiment)
        keep = np.ones(cases.sizes["case"], bool)
        for parameter, value in where.items():
            keep &= cases[parameter.rstrip("_")].values == value
        if not keep.any():
            raise FigureError(f"{name}: {experiment} has no case with {where}")
        return cases[column].values[keep]

    def one(self, name: str, experiment: str, column: str, **where: object) -> float:
        """Of the only such case, or of several that agree."""
        found = np.unique(self.values(name, experiment, column, **where))
        if found.size != 1:
            raise FigureError(f"{name}: {experiment} has {found.size} values of {column} with {where}")
        return float(found[0])

    def median(self, name: str, experiment: str, column: str, **where: object) -> float:
        return float(np.median(self.values(name, experiment, column, **where)))

    def verdicts(self, *names: str, method: str | None = None) -> dict[str, str]:
        """Verdicts by the id of the claim, of all methods or of one."""
        tables = [self.report(name).claims for name in names]
        rows = [row for t in tables for row in zip(*(t[x].values for x in ("id", "verdict", "method")), strict=True)]
        return {str(i): str(v) for i, v, m in rows if method in (None, str(m))}


def _blank(pattern: re.Pattern[str], text: str) -> str:
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def figures_of(path: Path) -> Callable[[str], dict[str, list[float | str]]]:
    """What the file of figures tells of each passage; or the folder, by its __main__.py."""
    return runpy.run_path(str(path))["figures"]


def main(arguments: list[str]) -> int:
    if len(arguments) < 2:
        print("usage: python -m splash_laboratory.documents.figures FIGURES DOCUMENT...", file=sys.stderr)
        return 2
    told = figures_of(Path(arguments[0]))()
    try:
        rewrite(arguments[1:], lambda text: fill(text, told), "figures")
    except FigureError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
