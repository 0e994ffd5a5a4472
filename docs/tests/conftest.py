"""Ends with how long the sentences of each page are: told, not judged."""

import contextlib
import io
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "site")]


def pytest_terminal_summary(terminalreporter):
    from sentences import main

    with contextlib.redirect_stdout(io.StringIO()) as told:
        main([])
    terminalreporter.write(told.getvalue())
