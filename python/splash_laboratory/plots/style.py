"""How every plot looks: colours that colour-blind readers tell apart, embedded fonts, a finding as headline."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

# Okabe and Ito 2008; yellow is left to the end, it is faint on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
INK, FAINT, GRID, PAPER = "#222222", "#666666", "#E4E4E4", "#FFFFFF"
GOOD, BAD, UNDECIDED = "#0072B2", "#D55E00", "#666666"

# Sequential, light to dark; starts at a clear tint so that white is free to mean "exactly zero".
SEQUENTIAL = LinearSegmentedColormap.from_list("splash", ["#CFE3EF", "#7DB4D6", "#2E7FB5", "#12507F", "#0A2540"])
ORDERED = LinearSegmentedColormap.from_list("ordered", ["#E69F00", "#D55E00", "#B0406A", "#5B3F8C", "#0F3B68"])

SETTINGS = {
    "font.family": "DejaVu Sans",  # shipped with matplotlib: the same letters on every machine
    "font.size": 10,
    "text.parse_math": False,  # tokens of real text hold dollar signs
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#999999",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "lines.linewidth": 1.8,
    "svg.fonttype": "path",  # letters as outlines: nothing to install
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.hashsalt": "splash",  # the same data gives the same file
}


@dataclass(frozen=True)
class Wishes:
    """What a reader wants in place of a plot's own: the size of the whole figure in inches, and its headline."""

    size: tuple[float, float] | None = None
    title: str | None = None


_wishes: ContextVar[Wishes] = ContextVar("wishes", default=Wishes())


@contextmanager
def wishes(size: tuple[float, float] | None = None, title: str | None = None) -> Iterator[None]:
    """Plots that are drawn inside have this size and this headline."""
    before = _wishes.set(Wishes(size, title))
    try:
        yield
    finally:
        _wishes.reset(before)


def canvas(
    rows: int = 1, columns: int = 1, size: tuple[float, float] = (10, 5), **options
) -> tuple[Figure, np.ndarray]:
    """A figure of `size` inches below its headline, and its axes as an array [rows, columns]."""
    figure = Figure(figsize=_wishes.get().size or size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    figure.get_layout_engine().set(w_pad=0.09, h_pad=0.09, wspace=0.03, hspace=0.03)
    return figure, axes


def headline(figure: Figure, finding: str, context: str) -> None:
    """Puts what the data say on top, and in small what was measured. Makes the figure taller to hold them, unless its size
    was asked for."""
    width, height = figure.get_size_inches()
    asked = _wishes.get()
    title = balanced(finding if asked.title is None else asked.title, int(width * 9.2))
    small = textwrap.wrap(context, int(width * 14.0))
    top = 0.12 + 0.245 * len(title) + 0.185 * len(small) + 0.12  # inches
    total = height if asked.size else height + top
    figure.set_size_inches(width, total)
    figure.get_layout_engine().set(rect=(0, 0, 1, max(1 - top / total, 0.3)))
    left, y = 0.12 / width, 1 - 0.12 / total
    figure.text(left, y, "\n".join(title), fontsize=13, fontweight="bold", color=INK, va="top", linespacing=1.25)
    y -= 0.245 * len(title) / total + 0.04 / total
    figure.text(left, y, "\n".join(small), fontsize=9, color=FAINT, va="top", linespacing=1.3)


def balanced(text: str, letters: int) -> list[str]:
    """Lines of at most `letters`, as few as possible and then as even as possible: no word left alone."""
    lines = textwrap.wrap(text, letters)
    while letters > 20 and len(narrower := textwrap.wrap(text, letters - 2)) == len(lines):
        lines, letters = narrower, letters - 2
    return lines


def ordered_colours(count: int) -> list[tuple[float, ...]]:
    """Colours for values that have an order, for example alpha."""
    return [ORDERED(position) for position in (np.linspace(0, 1, count) if count > 1 else [0.5])]


def ink_on(colour: object) -> str:
    """Black or white, whichever reads better on `colour` (relative luminance)."""
    red, green, blue = to_rgb(colour)
    return INK if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.45 else "#FFFFFF"


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power_of_ten(value: float, _position: object = None) -> str:
    """10⁻³ in plain letters; empty where the value is no power of ten."""
    if value <= 0:
        return ""
    exponent = round(np.log10(value))
    if not np.isclose(value, 10.0**exponent):
        return ""
    if -2 <= exponent <= 3:
        return f"{value:g}"
    return "10" + str(exponent).translate(_SUPERSCRIPT)


def number(value: float) -> str:
    """A number for prose: two significant digits, no needless exponent."""
    if value != value:
        return "—"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e4:
        return f"{value:.2g}" if abs(value) < 10 else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}·10{str(int(exponent)).translate(_SUPERSCRIPT)}"


def plain(name: object) -> str:
    """A name from the report as words: halley_bisection is halley bisection."""
    return str(name).replace("_", " ")


def count(value: float, noun: str) -> str:
    """A number and its noun: 1 key, 3.2 keys."""
    text = number(value)
    return f"{text} {noun}" if text == "1" else f"{text} {noun}s"


def seconds(value: float) -> str:
    """A duration with the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= size:
            scaled = value / size
            return f"{scaled:.3g} {unit}" if abs(scaled) < 100 else f"{scaled:.0f} {unit}"
    return f"{value / 1e-9:.3g} ns"


def log_axis(axes: Axes, which: str) -> None:
    """A logarithmic axis to whole powers of ten. Call it when everything is drawn: it fixes the limits."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    low, high = sorted(axes.get_xlim() if which == "x" else axes.get_ylim())
    low, high = 10.0 ** np.floor(np.log10(low) + 0.05), 10.0 ** np.ceil(np.log10(high) - 0.05)
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, max(high, 10 * low))
    axis.set_major_locator(LogLocator(10, numticks=9))
    axis.set_major_formatter(FuncFormatter(power_of_ten))
    axis.set_minor_locator(NullLocator())


def log2_axis(axes: Axes, which: str) -> None:
    """A logarithmic axis that names powers of two."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log", base=2)
    axis.set_major_locator(LogLocator(2, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def ticks_at(axes: Axes, which: str, values: list[float], labels: list[str] | None = None, **text) -> None:
    """Ticks exactly where measurements are."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    axis.set_ticks(values, labels or [f"{value:g}" for value in values], **text)


def interval(axes: Axes, case, quantity: str, y: float, colour: str, name: str = "_") -> None:
    """A median as a dot and its interval as whiskers, at height y; `case` holds quantity_median, _low and _high."""
    median = float(case[f"{quantity}_median"].values[0])
    if f"{quantity}_low" in case and f"{quantity}_high" in case:
        reach = [
            [median - float(case[f"{quantity}_low"].values[0])],
            [float(case[f"{quantity}_high"].values[0]) - median],
        ]
        axes.errorbar(median, y, xerr=np.maximum(reach, 0), color=colour, capsize=5, capthick=1.4, elinewidth=1.4)
    axes.plot(median, y, "o", color=colour, markersize=5.5, label=name)
