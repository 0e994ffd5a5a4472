"""The command line of the page. Its path on stdout, what is wrong on stderr."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from splash_attention.files.printable import one_line
from splash_attention.files.whole_file import prepare_place, whole_file
from splash_laboratory.page.beside import compared
from splash_laboratory.page.build import page_of
from splash_laboratory.plots.columns import require_column
from splash_laboratory.plots.data import NotInReport
from splash_laboratory.reports import ReportError, open_report

DONE, USAGE = 0, 2
EXAMPLES = """\
examples:
  python -m splash_laboratory.page report.h5
  python -m splash_laboratory.page data/reports/ladders-h200.h5 --out ladders.html
  python -m splash_laboratory.page report.h5 --title "My kernels" --columns implementation,kv_len,time_median
  python -m splash_laboratory.page after.h5 --beside before.h5
  python -m splash_laboratory.page report.h5 --recorded data/reports/ladders-h200.h5

exit codes: 0 done, 2 usage or no report
"""


def main(arguments: list[str] | None = None) -> int:
    """Writes the page of a report. Returns the exit code."""
    words = _parser().parse_args(arguments)
    if words.report is None:
        return _refuse("a report is needed: python -m splash_laboratory.page report.h5 --out page.html")
    try:
        prepare_place(words.out)
    except OSError as error:
        return _refuse_place(words.out, error)
    try:
        report = open_report(words.report)
        for name in words.columns:
            require_column(report.results, name)
        other = (open_report(words.beside), compared(words.beside, words.report)) if words.beside else None
        html = page_of(report, [open_report(path) for path in words.recorded], words.title, words.columns, other)
    except (ReportError, NotInReport) as error:
        return _refuse(str(error))
    try:
        write(html, words.out)
    except OSError as error:
        return _refuse_place(words.out, error)
    print(words.out)
    return DONE


def write(html: str, path: Path) -> None:
    """The page is whole or not there."""
    with whole_file(path) as temporary:
        temporary.write_text(html, encoding="utf-8", newline="\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m splash_laboratory.page",
        description="A report as one self-contained HTML page.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("report", nargs="?", help="the HDF5 report of a run")
    parser.add_argument(
        "--out", type=Path, default=Path("page.html"), metavar="FILE", help="where to (default: page.html)"
    )
    parser.add_argument(
        "--recorded",
        action="append",
        default=[],
        metavar="REPORT",
        help="also show the rooflines, or language models, of this recorded report; may be repeated",
    )
    parser.add_argument("--beside", metavar="BEFORE", help="a run to compare with, as `splash compare BEFORE report.h5` does: the page begins with what changed")
    parser.add_argument("--title", metavar="TEXT", help="in place of the report's own")
    parser.add_argument(
        "--columns",
        type=lambda names: names.split(","),
        default=[],
        metavar="A,B",
        help="columns of the tables of results (default: all that vary)",
    )
    return parser


def _refuse_place(path: Path, error: OSError) -> int:
    return _refuse(f"{path}: cannot be written ({error.strerror or error})")


def _refuse(sentence: str) -> int:
    print(f"error: {one_line(sentence)}", file=sys.stderr)
    return USAGE
