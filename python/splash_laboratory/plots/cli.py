"""The command line of the plots. Paths on stdout, narration on stderr."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from splash_attention.files.printable import one_line
from splash_attention.files.whole_file import whole_file
from splash_laboratory.plots import FIGURES, NotInReport
from splash_laboratory.plots.columns import figure_columns
from splash_laboratory.plots.style import SETTINGS, wishes
from splash_laboratory.reports import ReportError, open_report

DONE, USAGE = 0, 2
FORMATS = ("png", "svg")  # where none is asked for
ALL_FORMATS = (*FORMATS, "pdf")
DOTS_PER_INCH = 160
UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # the same data gives the same file
EXAMPLES = """\
examples:
  python -m splash_laboratory.plots report.h5 --out plots
  python -m splash_laboratory.plots report.h5 --out plots --only claims --only workloads
  python -m splash_laboratory.plots report.h5 --only claims --format pdf --size 6x4 --title "What holds"
  python -m splash_laboratory.plots report.h5 --x kv_len --y time_median --by implementation --where experiment=kascade
  python -m splash_laboratory.plots --list

exit codes: 0 done (plots whose data the report lacks are skipped, and named), 2 usage or no report
"""


def main(arguments: list[str] | None = None) -> int:
    """Draws every plot whose data the report holds, or one of chosen columns. Returns the exit code."""
    words = _parser().parse_args(arguments)
    if words.list:
        for name, function in FIGURES.items():
            print(f"{name:32} {(function.__doc__ or '').splitlines()[0]}")
        return DONE
    unknown = [name for name in words.only if name not in FIGURES]
    if unknown:
        close = difflib.get_close_matches(unknown[0], FIGURES, n=1, cutoff=0.3)
        return _refuse(f"no plot '{unknown[0]}'" + (f"; did you mean '{close[0]}'?" if close else "; see --list"))
    if words.report is None:
        return _refuse("a report is needed: python -m splash_laboratory.plots report.h5 --out DIR")
    if (words.x is None) != (words.y is None):
        return _refuse("a plot of columns needs --x and --y")
    if words.x is None and (words.by or words.where):
        return _refuse("--by and --where belong to a plot of columns, with --x and --y")
    try:
        report = open_report(words.report)
        with wishes(words.size, words.title):
            if words.x is not None:
                drawn = figure_columns(report, words.x, words.y, words.by, words.where)
                _save(drawn, words.out / f"{words.y}-over-{words.x}", words.format)
                return DONE
            for name in words.only or FIGURES:
                try:
                    drawn = FIGURES[name](report)
                except NotInReport as missing:
                    print(f"skipped {name}: {one_line(str(missing))}", file=sys.stderr)
                    continue
                _save(drawn, words.out / name, words.format)
    except NotInReport as missing:
        return _refuse(str(missing))
    except ReportError as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{words.out}: cannot be written ({error.strerror or error})")
    return DONE


def _save(drawn: Figure, stem: Path, formats: Sequence[str]) -> None:
    for path in save(drawn, stem, formats):
        print(path, flush=True)


def save(drawn: Figure, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Writes stem.png and stem.svg, or in these formats, and makes their folder. Each file is whole or not there."""
    paths = []
    stem.parent.mkdir(parents=True, exist_ok=True)
    for kind in formats:
        path = stem.with_name(f"{stem.name}.{kind}")
        with whole_file(path) as temporary, matplotlib.rc_context(SETTINGS):
            drawn.savefig(temporary, format=kind, dpi=DOTS_PER_INCH, metadata=UNDATED.get(kind))
        paths.append(path)
    return paths


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m splash_laboratory.plots",
        description="Plots of a report: those whose data it holds, or one of chosen columns.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("report", nargs="?", help="the HDF5 report of a run")
    parser.add_argument("--out", type=Path, default=Path("plots"), metavar="DIR", help="where to (default: plots)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this plot; may be repeated")
    parser.add_argument("--format", type=_formats, default=FORMATS, metavar="A,B", help="png, svg and pdf (default: png,svg)")
    parser.add_argument("--size", type=_size, metavar="WxH", help="of the whole figure in inches, as 6.5x4")
    parser.add_argument("--title", metavar="TEXT", help="in place of the finding on top; '' for none")
    parser.add_argument("--x", metavar="COLUMN", help="with --y: one plot of these columns, in place of the named ones")
    parser.add_argument("--y", metavar="COLUMN", help="its median over the cases of a point; see --x")
    parser.add_argument("--by", metavar="COLUMN", help="a curve for each of its values")
    parser.add_argument(
        "--where", action="append", default=[], metavar="NAME=V,V", help="only these cases; may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="name the plots")
    parser.error = lambda message: parser.exit(USAGE, f"error: {one_line(message)}\n")  # one sentence, no usage
    return parser


def _formats(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(ALL_FORMATS):
        raise argparse.ArgumentTypeError(f"'{text}'; allowed: {', '.join(ALL_FORMATS)}")
    return names


def _size(text: str) -> tuple[float, float]:
    try:
        width, height = (float(side) for side in text.split("x"))
    except ValueError:
        width = height = 0.0
    if not (1 <= width <= 100 and 1 <= height <= 100):
        raise argparse.ArgumentTypeError(f"'{text}'; it takes WIDTHxHEIGHT in inches, each from 1 to 100, as 6.5x4")
    return width, height


def _refuse(sentence: str) -> int:
    print(f"error: {one_line(sentence)}", file=sys.stderr)
    return USAGE
