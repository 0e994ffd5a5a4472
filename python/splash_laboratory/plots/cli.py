"""The command line of the plots. Paths on stdout, narration on stderr."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from splash_attention.files.printable import one_line
from splash_attention.files.whole_file import whole_file
from splash_laboratory.plots import FIGURES, NotInReport
from splash_laboratory.plots.style import SETTINGS
from splash_laboratory.reports import ReportError, open_report

DONE, USAGE = 0, 2
FORMATS = ("png", "svg")
DOTS_PER_INCH = 160
EXAMPLES = """\
examples:
  python -m splash_laboratory.plots report.h5 --out plots
  python -m splash_laboratory.plots report.h5 --out plots --only claims --only workloads
  python -m splash_laboratory.plots --list

exit codes: 0 done (plots whose data the report lacks are skipped, and named), 2 usage or no report
"""


def main(arguments: list[str] | None = None) -> int:
    """Draws every plot whose data the report holds, as PNG and SVG. Returns the exit code."""
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
    try:
        report = open_report(words.report)
        words.out.mkdir(parents=True, exist_ok=True)
        for name in words.only or FIGURES:
            try:
                drawn = FIGURES[name](report)
            except NotInReport as missing:
                print(f"skipped {name}: {one_line(str(missing))}", file=sys.stderr)
                continue
            for path in save(drawn, words.out / name):
                print(path, flush=True)
    except ReportError as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{words.out}: cannot be written ({error.strerror or error})")
    return DONE


def save(drawn: Figure, stem: Path) -> list[Path]:
    """Writes stem.png and stem.svg. Each is whole or not there."""
    paths = []
    for kind in FORMATS:
        path = stem.with_name(f"{stem.name}.{kind}")
        with whole_file(path) as temporary, matplotlib.rc_context(SETTINGS):
            drawn.savefig(
                temporary, format=kind, dpi=DOTS_PER_INCH, metadata={"Date": None} if kind == "svg" else None
            )
        paths.append(path)
    return paths


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m splash_laboratory.plots",
        description="Plots of a report, as PNG and SVG.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("report", nargs="?", help="the HDF5 report of a run")
    parser.add_argument("--out", type=Path, default=Path("plots"), metavar="DIR", help="where to (default: plots)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this plot; may be repeated")
    parser.add_argument("--list", action="store_true", help="name the plots")
    return parser


def _refuse(sentence: str) -> int:
    print(f"error: {one_line(sentence)}", file=sys.stderr)
    return USAGE
