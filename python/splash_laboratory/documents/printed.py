"""Writes what the program prints into the documents.

    python -m splash_laboratory.documents.printed ./splash docs/questions/*.md

The output stands between two markers; the first holds the command, without the program's name:

    <!-- splash diagnose data/reports/ladders-h200.h5 --summary -->
    ...
    <!-- end of splash -->

Run in the folder that the command's paths start from.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from splash_laboratory.documents.rewrite import rewrite

MARKER = re.compile(r"(<!-- splash (?P<words>[^\n]*?) -->\n).*?(<!-- end of splash -->)", re.DOTALL)


DIFFERS = 1  # the exit code of a comparison that found a difference: an answer, too


class PrintedError(Exception):
    """A command that the program refuses. The message is one sentence."""


def fill(text: str, program: str) -> str:
    """The document with every output written anew."""
    return MARKER.sub(lambda match: f"{match[1]}```text\n{printed(program, match['words'])}```\n{match[3]}", text)


def printed(program: str, words: str) -> str:
    """What a command prints where the terminal has 120 columns, without blank lines at its end."""
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "120"}
    done = subprocess.run(
        [program, *shlex.split(words)], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode not in (0, DIFFERS):
        raise PrintedError(f"splash {words}: {done.stderr.strip()}")
    return done.stdout.rstrip() + "\n"


def main(arguments: list[str]) -> int:
    if len(arguments) < 2:
        print("usage: python -m splash_laboratory.documents.printed PROGRAM DOCUMENT...", file=sys.stderr)
        return 2
    program = str(Path(arguments[0]).resolve())
    try:
        rewrite(arguments[1:], lambda text: fill(text, program), "output")
    except PrintedError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
