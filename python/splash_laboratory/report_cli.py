"""splash-report: the plots and the HTML page of a report, in one folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from splash_laboratory.page.cli import main as page
from splash_laboratory.plots.cli import main as plots


def main(arguments: list[str] | None = None) -> int:
    """Writes FOLDER/report.html and FOLDER/plots. Returns 0, or 2 where there is no such report."""
    parser = argparse.ArgumentParser(prog="splash-report", description="The plots and the HTML page of a report.")
    parser.add_argument("report", help="the HDF5 report of a run")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to (default: the report's name without .h5)")
    words = parser.parse_args(arguments)
    folder = words.out or Path(words.report).with_suffix("")
    code = page([words.report, "--out", str(folder / "report.html")])
    return code or plots([words.report, "--out", str(folder / "plots")])
